package main

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/sluice-gateway/sluice/sim"
)

// The figures of a round.
const (
	liveMean = iota
	liveP50
	liveP95
	liveP99
	liveTPOT50
	liveTPOT95
	liveTotal50
	liveTotal95
	liveGood
	liveTokens
	liveHits
	liveLost
	liveMeasures
)

// liveFigures are what one round at one target came to: seconds, shares, tokens a second.
type liveFigures [liveMeasures]float64

// liveNames are the figures' names.
func liveNames() [liveMeasures]string {
	return [...]string{"TTFT mean", "TTFT P50", "TTFT P95", "TTFT P99", "TPOT P50", "TPOT P95", "E2E P50", "E2E P95", "good", "tokens/s", "hits", "lost"}
}

// liveCompared are the figures that the first target is compared in.
func liveCompared() []int {
	return []int{liveMean, liveP50, liveP95, liveP99, liveTPOT50, liveTotal50, liveTotal95, liveTokens}
}

// liveTable is what a comparison came to.
type liveTable struct {
	Row    string        `json:"workload"`
	Rate   string        `json:"-"`
	Model  string        `json:"model"`
	Rounds int           `json:"rounds"`
	Length time.Duration `json:"-"`
	TTFT   time.Duration `json:"-"`
	TPOT   time.Duration `json:"-"`
	// Late is by how many seconds the latest hundredth of requests was sent after its time, in the worst round: what the machine that sends adds to all.
	Late    float64    `json:"lateP99"`
	Targets []liveLane `json:"targets"`
}

// liveLane is a target's figures, and the first target's over its own.
type liveLane struct {
	Name    string                  `json:"name"`
	Figures map[string]sim.Interval `json:"figures"`
	Ratios  map[string]sim.Interval `json:"firstOverThis,omitempty"`

	figures [liveMeasures]sim.Interval
	ratios  [liveMeasures]sim.Interval
}

func (t *liveTable) late(seconds []float64) {
	slices.Sort(seconds)
	t.Late = max(t.Late, sim.Quantile(seconds, .99))
}

// add adds a target's rounds, beside those of the first.
func (t *liveTable) add(name string, rounds, first []liveFigures) {
	lane := liveLane{Name: name, Figures: make(map[string]sim.Interval)}
	column := func(of []liveFigures, m int) []float64 {
		var values []float64
		for _, f := range of {
			values = append(values, f[m])
		}
		return values
	}
	names := liveNames()
	for m, name := range names {
		lane.figures[m] = sim.Mean(column(rounds, m))
		lane.Figures[name] = lane.figures[m]
	}
	if len(t.Targets) > 0 {
		lane.Ratios = make(map[string]sim.Interval)
		for _, m := range liveCompared() {
			lane.ratios[m] = sim.Ratio(column(first, m), column(rounds, m))
			lane.Ratios[names[m]] = lane.ratios[m]
		}
	}
	t.Targets = append(t.Targets, lane)
}

// String prints the table for people.
func (t *liveTable) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s at real servers, model %s: %d rounds of %v, the same arrivals at each target in each round\n", t.Row, t.Model, t.Rounds, t.Length)
	fmt.Fprintf(&b, "Seconds, mean of rounds ± 95 %% interval; good is within %v to the first token and %v between tokens\n", t.TTFT, t.TPOT)
	if t.Late > .01 {
		fmt.Fprintf(&b, "The machine that sent them was late: 1 %% of the requests by %.0f ms or more. Read small differences with that in mind.\n", 1000*t.Late)
	}
	width := 14
	for _, l := range t.Targets {
		width = max(width, len(l.Name)+8) // "against "
	}
	names := liveNames()
	fmt.Fprintf(&b, "\n  %-*s", width, "")
	for m, name := range names {
		fmt.Fprintf(&b, " %*s", liveWidth(m), name)
	}
	b.WriteByte('\n')
	for _, l := range t.Targets {
		fmt.Fprintf(&b, "  %-*s", width, l.Name)
		for m := range l.figures {
			fmt.Fprintf(&b, " %*s", liveWidth(m), liveText(m, l.figures[m]))
		}
		b.WriteByte('\n')
	}
	if len(t.Targets) < 2 {
		return b.String()
	}
	fmt.Fprintf(&b, "\n  %-*s", width, t.Targets[0].Name)
	for _, m := range liveCompared() {
		fmt.Fprintf(&b, " %23s", names[m])
	}
	b.WriteByte('\n')
	for _, l := range t.Targets[1:] {
		fmt.Fprintf(&b, "  %-*s", width, "against "+l.Name)
		for _, m := range liveCompared() {
			fmt.Fprintf(&b, " %23s", l.ratios[m].Change())
		}
		b.WriteByte('\n')
	}
	return b.String()
}

func liveWidth(m int) int {
	if m < liveGood {
		return 13
	}
	return 8
}

func liveText(m int, x sim.Interval) string {
	switch {
	case m == liveTokens:
		return fmt.Sprintf("%.0f", x.Mean)
	case m >= liveGood && !math.IsNaN(x.Mean):
		return fmt.Sprintf("%.1f%%", 100*x.Mean)
	}
	return x.String()
}
