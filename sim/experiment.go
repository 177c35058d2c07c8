package sim

import (
	"cmp"
	"fmt"
	"math"
	"strings"
	"time"
)

// Row is a fleet with its traffic.
type Row struct {
	Name    string
	Engines []EngineConfig
	// Requests draws the traffic of a seed until the end.
	Requests func(seed uint64, end time.Duration) []Request
}

const (
	// runFor is how long requests arrive, and warmUp the beginning of it that does not count.
	runFor, warmUp = 180 * time.Second, 20 * time.Second
	// drainFor is how long a run goes on after the last arrival for requests to finish.
	drainFor = 60 * time.Second
)

// RowsA lists the rows of experiment A: mixed, bursty, prefix and uniform.
func RowsA() []Row {
	mixed := func(rate float64) func(uint64, time.Duration) []Request {
		return Mix{Rate: Steady(rate), Prompt: Length{600, .8}, Output: Length{200, .8}}.Generate
	}
	prefixes := func(rate float64, groups, tokens int) func(uint64, time.Duration) []Request {
		return Mix{Rate: Steady(rate), Prompt: Length{250, .8}, Output: Length{150, .8}, Prefixes: groups, PrefixTokens: tokens}.Generate
	}
	eight := append(engines("l8-h100", 4), engines("l8-a10g", 4)...)
	return []Row{
		{"4×H100 + 4×A10G, 8B, 40 req/s", eight, mixed(40)},
		{"same, 110 req/s", eight, mixed(110)},
		{"4×H100 + 4×(4×A10G), 32B, 16 req/s", append(engines("q32-h100x1", 4), engines("q32-a10gx4", 4)...), mixed(16)},
		{"4×(8×H100), 70B, 40 req/s in bursts", engines("l70-h100x8", 4),
			Mix{Rate: Bursts(40, 4.5, 2, 10), Prompt: Length{900, 1}, Output: Length{250, 1}}.Generate},
		{"6×H100, 8B, 60 prefixes of 4k, 80 req/s", engines("l8-h100", 6), prefixes(80, 60, 4096)},
		{"8×A10G, 8B, 12 prefixes of 2k, 10 req/s, cold", engines("l8-a10g", 8), prefixes(10, 12, 2048)},
		{"4×(8×H100), 70B, 35 req/s, uniform", engines("l70-h100x8", 4),
			Mix{Rate: Steady(35), Prompt: Length{600, .6}, Output: Length{200, .6}}.Generate},
	}
}

// RowsB lists conversations and agents, after experiment B: traffic that lives by finding its beginnings again, up to where caches
// hardly hold what is in use.
func RowsB() []Row {
	eight := engines("q32-h100x2", 8)
	var rows []Row
	for _, rate := range []float64{3, 4.5, 6} {
		rows = append(rows, Row{fmt.Sprintf("8×(2×H100), 32B, agents, %.1f sessions/s", rate), eight, Agents(Steady(rate)).Generate})
	}
	for _, rate := range []float64{10, 18} {
		rows = append(rows, Row{fmt.Sprintf("8×(2×H100), 32B, chats, %.0f sessions/s", rate), eight, Chat(Steady(rate)).Generate})
	}
	return rows
}

// engines is n engines of one profile.
func engines(profile string, n int) []EngineConfig {
	p, err := ProfileNamed(profile)
	if err != nil {
		panic(err) // a name in this file
	}
	out := make([]EngineConfig, n)
	for i := range out {
		out[i].Profile = p
	}
	return out
}

// PoliciesA lists the policies of experiment A; the last is the yardstick.
func PoliciesA() []Policy {
	return []Policy{RoundRobin(), LeastRequests(), Weights(), Latency(), Greedy()}
}

// Setup is what experiment A leaves open.
type Setup struct {
	// Policies are compared; nil means PoliciesA. Table prints distances from the last.
	Policies []Policy
	// Labels, Replicas, Scrape and Wire are as in Options.
	Labels       bool
	Replicas     int
	Scrape, Wire time.Duration
	// For is how long requests arrive, 0 means 180 s; the first 20 s don't count.
	For time.Duration
}

// Cell is one policy in one row, all seeds together.
type Cell struct {
	Policy string
	*Result
}

// Table is the figures of an experiment: a line of cells, one for each policy, for each row.
type Table struct {
	Rows  []string
	Cells [][]Cell
}

// ExperimentA runs every policy in every row with the same seeds 1..seeds: each seed is the same traffic for all.
func ExperimentA(seeds int, rows []Row, s Setup) Table {
	var t Table
	length := cmp.Or(s.For, runFor)
	if s.Policies == nil {
		s.Policies = PoliciesA()
	}
	for _, row := range rows {
		cells := make([]Cell, len(s.Policies))
		for seed := uint64(1); seed <= uint64(seeds); seed++ {
			requests := row.Requests(seed, length)
			for i, p := range s.Policies {
				r := Run(Options{Engines: row.Engines, Labels: s.Labels, Requests: requests, Policy: p, Replicas: s.Replicas, Scrape: s.Scrape, Wire: s.Wire,
					Warm: warmUp, End: length + drainFor, Seed: seed})
				if cells[i].Result == nil {
					cells[i] = Cell{p.Name, r}
				} else {
					cells[i].merge(r)
				}
			}
		}
		t.Rows, t.Cells = append(t.Rows, row.Name), append(t.Cells, cells)
	}
	return t
}

// String prints times to first token in seconds: mean, P50, P95 and P99 of each policy, and each mean's and quantile's
// distance from the last policy's.
func (t Table) String() string {
	var b strings.Builder
	for i, row := range t.Rows {
		fmt.Fprintf(&b, "%s\n", row)
		last := t.Cells[i][len(t.Cells[i])-1]
		for _, c := range t.Cells[i] {
			fmt.Fprintf(&b, "  %-22s", c.Policy)
			for k, x := range c.figures() {
				fmt.Fprintf(&b, " %8s %6s", figure(x), distance(x, last.figures()[k]))
			}
			fmt.Fprintf(&b, "  tpot %s  hit %.2f", figure(c.MeanTPOT()), c.HitRate())
			if c.Unfinished > 0 {
				fmt.Fprintf(&b, "  %d of %d unfinished", c.Unfinished, c.Counted())
			}
			b.WriteByte('\n')
		}
	}
	return b.String()
}

func (c Cell) figures() [4]float64 {
	return [4]float64{c.Mean(), c.Quantile(.5), c.Quantile(.95), c.Quantile(.99)}
}

// figure prints seconds with three digits that matter; – for never.
func figure(x float64) string {
	switch {
	case math.IsInf(x, 1) || math.IsNaN(x):
		return "–"
	case x < 1:
		return strings.TrimPrefix(fmt.Sprintf("%.4f", x), "0")
	case x < 10:
		return fmt.Sprintf("%.2f", x)
	}
	return fmt.Sprintf("%.0f", x)
}

func distance(x, from float64) string {
	if math.IsInf(x, 1) || math.IsInf(from, 1) || from == 0 {
		return ""
	}
	return fmt.Sprintf("%+.0f%%", 100*(x/from-1))
}
