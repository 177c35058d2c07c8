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
	// Note says why there are no intervals, empty where there are.
	Note string `json:"note,omitempty"`
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
		lane.figures[m] = bounded(sim.Mean(column(rounds, m)), len(rounds))
		lane.Figures[name] = lane.figures[m]
	}
	if len(t.Targets) > 0 {
		lane.Ratios = make(map[string]sim.Interval)
		for _, m := range liveCompared() {
			lane.ratios[m] = bounded(sim.Ratio(column(first, m), column(rounds, m)), len(rounds))
			lane.Ratios[names[m]] = lane.ratios[m]
		}
	}
	t.Targets = append(t.Targets, lane)
}

// liveLeast is how many rounds an interval needs: of two, Student's t makes one thirteen times as wide as they are apart.
const liveLeast = 3

// bounded leaves the interval out where there are too few rounds for one.
func bounded(x sim.Interval, rounds int) sim.Interval {
	if rounds < liveLeast {
		x.Low, x.High = math.NaN(), math.NaN()
	}
	return x
}

// liveBounds are the ratios beyond which how much more it is doesn't matter.
const liveBounds = 100

// liveChange prints a ratio as a difference, with its interval, in few letters whatever it is.
func liveChange(x sim.Interval) string {
	one := func(ratio float64) string {
		switch {
		case ratio > liveBounds:
			return fmt.Sprintf(">×%d", liveBounds)
		case ratio < 1./liveBounds:
			return fmt.Sprintf(">÷%d", liveBounds)
		}
		return sim.Interval{Mean: ratio, Low: math.NaN(), High: math.NaN()}.Change()
	}
	if math.IsNaN(x.Low) {
		return one(x.Mean)
	}
	return fmt.Sprintf("%s (%s…%s)", one(x.Mean), strings.TrimSuffix(one(x.Low), "%"), strings.TrimSuffix(one(x.High), "%"))
}

// String prints the table for people, at most liveColumns wide unless a target's name is long.
func (t *liveTable) String() string {
	var b strings.Builder
	rounds := "one round"
	if t.Rounds > 1 {
		rounds = fmt.Sprintf("%d rounds", t.Rounds)
	}
	fmt.Fprintf(&b, "%s at real servers, model %s: %s of %v each, the same arrivals at each target\n", t.Row, t.Model, rounds, t.Length)
	means := "mean of rounds ± 95 % interval"
	if t.Note != "" {
		means = "mean of rounds, " + t.Note
	}
	fmt.Fprintf(&b, "Seconds, %s; good is within %v to the first token and %v between tokens\n", means, t.TTFT, t.TPOT)
	if t.Late > .01 {
		fmt.Fprintf(&b, "The machine that sent them was late: 1 %% of the requests by %.0f ms or more. Read small differences with that in mind.\n", 1000*t.Late)
	}
	names := liveNames()
	label := 14
	for _, l := range t.Targets {
		label = max(label, len([]rune(l.Name))+8) // "against "
	}
	var rows [][]string
	for m, name := range names {
		column := []string{name}
		for _, l := range t.Targets {
			column = append(column, liveText(m, l.figures[m]))
		}
		rows = append(rows, column)
	}
	labels := []string{""}
	for _, l := range t.Targets {
		labels = append(labels, l.Name)
	}
	writeColumns(&b, label, labels, rows[:liveGood]) // times
	writeColumns(&b, label, labels, rows[liveGood:])
	if len(t.Targets) < 2 {
		return b.String()
	}
	labels, rows = []string{t.Targets[0].Name}, nil
	for _, l := range t.Targets[1:] {
		labels = append(labels, "against "+l.Name)
	}
	for _, m := range liveCompared() {
		column := []string{names[m]}
		for _, l := range t.Targets[1:] {
			column = append(column, liveChange(l.ratios[m]))
		}
		rows = append(rows, column)
	}
	writeColumns(&b, label, labels, rows)
	return b.String()
}

// liveColumns is how wide a table may be.
const liveColumns = 120

// writeColumns writes lines with a label each, as many columns of them at a time as fit.
func writeColumns(b *strings.Builder, label int, labels []string, columns [][]string) {
	for len(columns) > 0 {
		n, used := 0, 2+label
		var widths []int
		for _, column := range columns {
			wide := 0
			for _, text := range column {
				wide = max(wide, len([]rune(text)))
			}
			if used += 2 + wide; n > 0 && used > liveColumns {
				break
			}
			widths = append(widths, wide)
			n++
		}
		b.WriteByte('\n')
		for i, l := range labels {
			fmt.Fprintf(b, "  %-*s", label, l)
			for k, column := range columns[:n] {
				fmt.Fprintf(b, "  %*s", widths[k], column[i])
			}
			b.WriteByte('\n')
		}
		columns = columns[n:]
	}
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
