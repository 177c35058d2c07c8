package sim

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"
)

const (
	// After so many seeds a policy is out of a row if its mean is above so many times the default profile's in each of
	// them.
	hopelessSeeds, hopelessFactor = 4, 10
)

// runs are an experiment's runs in progress.
type runs struct {
	e     *Experiment
	made  []figures // row after row, policy after policy, seed after seed
	mu    sync.Mutex
	pairs []effort // row after row, policy after policy
	whole effort
}

// effort is how long the runs of one policy in one row took.
type effort struct {
	spent      time.Duration
	done, left int
}

func (e *effort) mean() time.Duration { return e.spent / time.Duration(max(e.done, 1)) }

func newRuns(e *Experiment) *runs {
	r := &runs{e: e, pairs: make([]effort, len(e.Rows)*len(e.Policies))}
	r.made = make([]figures, len(r.pairs)*e.Seeds)
	for i := range r.pairs {
		r.pairs[i].left = e.Seeds
	}
	return r
}

// row is what was made of a row.
func (r *runs) row(i int) []figures {
	n := len(r.e.Policies) * r.e.Seeds
	return r.made[i*n:][:n]
}

// all makes the runs: the first seeds of everything, seed after seed, so that it is soon known how long all will take,
// then of whoever has a chance the others, those that take long first, so that no worker is left with one at the end.
func (r *runs) all(ctx context.Context) error {
	r.progress()
	first := min(r.e.Seeds, hopelessSeeds)
	var jobs []int
	for seed := range first {
		for p := range r.pairs {
			jobs = append(jobs, p*r.e.Seeds+seed)
		}
	}
	if err := r.make(ctx, jobs); err != nil || first == r.e.Seeds {
		return err
	}
	jobs = jobs[:0]
	for p := range r.pairs {
		n := len(r.e.Policies)
		if r.e.hopeless(r.row(p/n), p%n) {
			r.pairs[p].left = 0
			continue
		}
		for seed := first; seed < r.e.Seeds; seed++ {
			jobs = append(jobs, p*r.e.Seeds+seed)
		}
	}
	slices.SortStableFunc(jobs, func(a, b int) int {
		return cmp.Compare(r.pairs[b/r.e.Seeds].mean(), r.pairs[a/r.e.Seeds].mean())
	})
	return r.make(ctx, jobs)
}

// make makes some runs, by their places.
func (r *runs) make(ctx context.Context, jobs []int) error {
	var workers sync.WaitGroup
	for range r.e.Workers {
		workers.Go(func() {
			for {
				r.mu.Lock()
				if len(jobs) == 0 || ctx.Err() != nil {
					r.mu.Unlock()
					return
				}
				i := jobs[0]
				jobs = jobs[1:]
				r.mu.Unlock()
				began, pair := time.Now(), i/r.e.Seeds
				r.made[i] = r.e.one(pair/len(r.e.Policies), pair%len(r.e.Policies), uint64(i%r.e.Seeds)+1)
				r.mu.Lock()
				for _, e := range []*effort{&r.pairs[pair], &r.whole} {
					e.spent, e.done, e.left = e.spent+time.Since(began), e.done+1, e.left-1
				}
				r.progress()
				r.mu.Unlock()
			}
		})
	}
	workers.Wait()
	if len(jobs) > 0 {
		return ctx.Err()
	}
	return nil
}

// progress says how far it is: a run of which none was yet will take as long as the others.
func (r *runs) progress() {
	left, more := 0, time.Duration(0)
	for i := range r.pairs {
		p := &r.pairs[i]
		left += p.left
		if p.done > 0 {
			more += p.mean() * time.Duration(p.left)
		} else {
			more += r.whole.mean() * time.Duration(p.left)
		}
	}
	r.e.Progress(r.whole.done, r.whole.done+left, more/time.Duration(r.e.Workers))
}

// ours is the place of the default profile among the policies, -1 for none.
func (e *Experiment) ours() int {
	return slices.IndexFunc(e.Policies, func(p Policy) bool { return p.Name == Latency().Name })
}

// hopeless says whether a policy has no more than the first seeds in the row that these runs are of.
func (e *Experiment) hopeless(row []figures, policy int) bool {
	ours := e.ours()
	if ours < 0 || e.Seeds <= hopelessSeeds || !rival(e.Policies[policy].Name) {
		return false
	}
	for seed := range hopelessSeeds {
		if !(row[policy*e.Seeds+seed].of[MeanTTFT] > hopelessFactor*row[ours*e.Seeds+seed].of[MeanTTFT]) {
			return false
		}
	}
	return true
}
