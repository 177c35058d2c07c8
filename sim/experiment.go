package sim

import (
	"cmp"
	"context"
	"fmt"
	"runtime"
	"time"
)

const (
	// runFor is how long requests arrive, and warmUp the beginning of it that does not count.
	runFor, warmUp = 180 * time.Second, 20 * time.Second
	// drainFor is how long a run goes on at most for what counts to finish; what arrives meanwhile, as conversations go
	// on, does not count.
	drainFor = 180 * time.Second
)

// PoliciesA lists the policies of experiment A; the last is the yardstick.
func PoliciesA() []Policy {
	return []Policy{RoundRobin(), LeastRequests(), Weights(), Latency(), Greedy()}
}

// Experiment is every policy in every row with the same seeds 1 to Seeds: each seed is the same traffic for all. A
// policy whose mean time to first token is above ten times the default profile's in each of the first four seeds of a
// row has no more of them there.
type Experiment struct {
	Rows []Row
	// Policies are compared; nil means PoliciesA.
	Policies []Policy
	// Seeds is how many repetitions there are, 0 means 1.
	Seeds int
	// Labels, Replicas, Share, Scrape and Wire are as in Options.
	Labels       bool
	Replicas     int
	Share        bool
	Scrape, Wire time.Duration
	// Objective is what good requests keep; its zero value means DefaultObjective.
	Objective Objective
	// For is how long requests arrive, 0 means what the row says; the first 20 s don't count.
	For time.Duration
	// Workers is how many runs there are at a time, 0 means GOMAXPROCS. The figures don't depend on it.
	Workers int
	// Progress, if not nil, is called before the first run and after each, by one goroutine at a time: how many runs
	// are done, of how many, and about how long the others will take, 0 for unknown.
	Progress func(done, of int, more time.Duration)
}

// Run makes all runs and returns their table. When the context ends first it returns its error, after the runs under
// way.
func (e Experiment) Run(ctx context.Context) (*Table, error) {
	if e.Policies == nil {
		e.Policies = PoliciesA()
	}
	e.Objective.TTFT = cmp.Or(e.Objective.TTFT, DefaultObjective().TTFT)
	e.Objective.TPOT = cmp.Or(e.Objective.TPOT, DefaultObjective().TPOT)
	e.Seeds, e.Replicas, e.Workers = max(e.Seeds, 1), max(e.Replicas, 1), cmp.Or(e.Workers, runtime.GOMAXPROCS(0))
	if e.Progress == nil {
		e.Progress = func(int, int, time.Duration) {}
	}
	for _, r := range e.Rows {
		if length := e.length(&r); length <= warmUp {
			return nil, fmt.Errorf("cannot compare over %v: the first %v don't count", length, warmUp)
		}
	}
	r := newRuns(&e)
	if err := r.all(ctx); err != nil {
		return nil, err
	}
	t := &Table{Seeds: e.Seeds, Replicas: e.Replicas, Share: e.Share, Labels: e.Labels}
	for i, row := range e.Rows {
		t.Rows = append(t.Rows, e.line(row, r.row(i)))
	}
	return t, nil
}

// one makes one run.
func (e *Experiment) one(row, policy int, seed uint64) figures {
	r := &e.Rows[row]
	length := e.length(r)
	return Run(Options{Engines: r.Engines, Labels: e.Labels, Requests: r.Requests(seed, length), Policy: e.Policies[policy], Replicas: e.Replicas, Share: e.Share,
		Scrape: e.Scrape, Wire: e.Wire, Warm: warmUp, Until: length, End: length + drainFor, Faults: r.Faults, Seed: seed}).figures(e.Objective)
}

func (e *Experiment) length(r *Row) time.Duration { return cmp.Or(e.For, r.Length, runFor) }
