package sim

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
)

// Table is what an experiment came to.
type Table struct {
	Seeds    int    `json:"seeds"`
	Replicas int    `json:"replicas"`
	Share    bool   `json:"share,omitempty"`
	Labels   bool   `json:"labels"`
	Rows     []Line `json:"rows"`
}

// Line is a row with the figures of each policy.
type Line struct {
	ID    string `json:"id"`
	Name  string `json:"name"`
	Cells []Cell `json:"policies"`
	// Pairs compare the default profile with each other policy, seed by seed; empty when it was not among them.
	Pairs []Pair `json:"pairs,omitempty"`
	// Verdict says it in words; nil where there is nothing to compare.
	Verdict *Verdict `json:"verdict,omitempty"`
}

// Cell is one policy's figures in one row.
type Cell struct {
	Policy  string
	Figures [measures]Interval
	// AtLeast says that a figure is a lower bound: in some seed, requests that never had a first token had waited for
	// less.
	AtLeast [measures]bool
	// Curve is the mean over seeds of the time to first token in seconds that each share of the requests stays below,
	// in equal steps from 0 to 1; infinite where some seed had no answer.
	Curve []float64
}

// Pair is how a policy's times to first token compare with another's that had the same traffic.
type Pair struct {
	Policy, To string
	// Ratios are the policy's figure over the other's: mean, P50, P95 and P99. Below 1 is faster.
	Ratios [P99 + 1]Interval
	// Unknown says that the policy's figure is a lower bound, and not above the other's or the other's is a lower bound
	// too.
	Unknown [P99 + 1]bool
	// Bound says that the other's figure is a lower bound, so that the policy is better by the ratio or more; how much more depends on how
	// long the run was.
	Bound [P99 + 1]bool
}

// Verdict is what a row says about the default profile.
type Verdict struct {
	Text string `json:"text"`
	// Failed are the goals it misses: to be no worse than another policy where they differ by more than noise, and near
	// the all-knowing greedy.
	Failed []string `json:"failed,omitempty"`
}

const (
	// noise is the difference that counts as none, however sure it is.
	noise = .03
	// nearGreedy is how much worse than the all-knowing greedy one gateway may be at P50 and P95, nearGreedyReplicas
	// several.
	nearGreedy, nearGreedyReplicas = .15, .20
)

// line is a row of the table from its runs: policy after policy, seed after seed.
func (e *Experiment) line(row Row, runs []figures) Line {
	l := Line{ID: row.ID, Name: row.Name}
	of := func(policy int) []figures { return runs[policy*e.Seeds:][:e.Seeds] }
	for i, p := range e.Policies {
		l.Cells = append(l.Cells, cell(p.Name, of(i)))
	}
	named := func(name string) int {
		return slices.IndexFunc(e.Policies, func(p Policy) bool { return p.Name == name })
	}
	ours := named(Latency().Name)
	if ours < 0 {
		return l
	}
	for i, p := range e.Policies {
		if i != ours {
			l.Pairs = append(l.Pairs, pair(l.Cells[ours].Policy, p.Name, of(ours), of(i)))
		}
	}
	if len(l.Pairs) > 0 {
		l.Verdict = verdict(l.Pairs, e.Replicas)
	}
	return l
}

func cell(name string, runs []figures) Cell {
	c := Cell{Policy: name, Curve: make([]float64, curvePoints)}
	for m := range measures {
		values := column(runs, m)
		c.Figures[m] = Mean(values)
		c.AtLeast[m] = slices.ContainsFunc(runs, func(f figures) bool { return f.open[m] })
	}
	for _, f := range runs {
		for i, x := range f.curve {
			c.Curve[i] += x / float64(len(runs))
		}
	}
	return c
}

func column(runs []figures, m Measure) []float64 {
	var out []float64
	for _, f := range runs {
		out = append(out, f.of[m])
	}
	return out
}

func pair(name, other string, a, b []figures) Pair {
	p := Pair{Policy: name, To: other}
	for m := range P99 + 1 {
		p.Ratios[m] = Ratio(column(a, m), column(b, m))
		for i := range a {
			p.Bound[m] = p.Bound[m] || b[i].open[m]
			p.Unknown[m] = p.Unknown[m] || a[i].open[m] && (b[i].open[m] || a[i].of[m] <= b[i].of[m]) ||
				b[i].open[m] && a[i].of[m] >= b[i].of[m]
		}
	}
	return p
}

// sign is what the ratio of one figure says.
type sign uint8

const (
	equal sign = iota
	better
	worse
	undecided
)

func (p *Pair) judge(m Measure) sign {
	r := p.Ratios[m]
	switch {
	case p.Unknown[m] || math.IsNaN(r.Mean):
		return undecided
	case math.Abs(r.Mean-1) <= noise:
		return equal
	case r.High < 1:
		return better
	case r.Low > 1:
		return worse
	}
	return undecided
}

// against says in words how the pair stands at mean, P50 and P95, and whether the first is worse anywhere.
func (p *Pair) against() (text string, bad bool) {
	var found [undecided + 1][]string
	for m := range P95 + 1 {
		r := p.judge(m)
		found[r] = append(found[r], fmt.Sprintf("%s %s", measureNames()[m], percent(p.Ratios[m].Mean)))
	}
	switch {
	case len(found[worse]) > 0 && len(found[better]) > 0:
		return fmt.Sprintf("loses to %s in %s, gains in %s", p.To, strings.Join(found[worse], ", "), strings.Join(found[better], ", ")), true
	case len(found[worse]) > 0:
		return fmt.Sprintf("loses to %s in %s", p.To, strings.Join(found[worse], ", ")), true
	case len(found[better]) > 0:
		return "beats " + p.To, false
	case len(found[undecided]) > 0:
		return fmt.Sprintf("is undecided against %s in %s", p.To, strings.Join(found[undecided], ", ")), false
	}
	return "equals " + p.To, false
}

func verdict(pairs []Pair, replicas int) *Verdict {
	v := &Verdict{}
	var said []string
	limit := nearGreedy
	if replicas > 1 {
		limit = nearGreedyReplicas
	}
	for i := range pairs {
		p := &pairs[i]
		if p.To != Greedy().Name {
			text, bad := p.against()
			said = append(said, text)
			if bad {
				v.Failed = append(v.Failed, p.Policy+" "+text)
			}
			continue
		}
		p50, p95 := p.Ratios[P50].Mean, p.Ratios[P95].Mean
		near, text := "within", fmt.Sprintf("%.0f %% of %s (P50 %s, P95 %s)", 100*limit, p.To, percent(p50), percent(p95))
		if !(p50 <= 1+limit && p95 <= 1+limit) {
			near = "not within"
			v.Failed = append(v.Failed, p.Policy+" is "+near+" "+text)
		}
		said = append(said, "is "+near+" "+text)
	}
	v.Text = pairs[0].Policy + " " + strings.Join(said, "; ")
	return v
}

// Failed lists every goal missed, with its row.
func (t *Table) Failed() []string {
	var out []string
	for _, l := range t.Rows {
		if l.Verdict != nil {
			for _, f := range l.Verdict.Failed {
				out = append(out, l.ID+": "+f)
			}
		}
	}
	return out
}

// measureNames are the columns' heads.
func measureNames() [measures]string {
	return [measures]string{"mean", "P50", "P95", "P99", "TPOT", "tokens/s", "hits", "lost"}
}

// String prints the table for people: times to first token and between tokens in seconds with the half-width of their
// interval, then how the default profile compares with each other policy.
func (t *Table) String() string {
	var b strings.Builder
	for _, l := range t.Rows {
		fmt.Fprintf(&b, "%s  %s\n  %-19s", l.ID, l.Name, "")
		for m, name := range measureNames() {
			fmt.Fprintf(&b, " %*s", columnWidth(Measure(m)), name)
		}
		b.WriteByte('\n')
		for _, c := range l.Cells {
			fmt.Fprintf(&b, "  %-19s", c.Policy)
			for m := range measures {
				fmt.Fprintf(&b, " %*s", columnWidth(m), c.Text(m))
			}
			b.WriteByte('\n')
		}
		for i := range l.Pairs {
			p := &l.Pairs[i]
			if i == 0 {
				fmt.Fprintf(&b, "  %-19s %23s %23s %23s %23s\n", p.Policy+" against", "mean", "P50", "P95", "P99")
			}
			fmt.Fprintf(&b, "  %-19s", p.To)
			for m := range P99 + 1 {
				fmt.Fprintf(&b, " %23s", p.Text(m))
			}
			b.WriteByte('\n')
		}
		if l.Verdict != nil {
			fmt.Fprintf(&b, "  → %s\n", l.Verdict.Text)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

func columnWidth(m Measure) int {
	switch {
	case m <= P99:
		return 13
	case m == TPOT:
		return 6
	}
	return 8
}

// Text is a figure as String prints it.
func (c *Cell) Text(m Measure) string {
	f := c.Figures[m]
	switch m {
	case TPOT:
		return figure(f.Mean)
	case Tokens:
		return fmt.Sprintf("%.0f", f.Mean)
	case Hits, Lost:
		return fmt.Sprintf("%.1f%%", 100*f.Mean)
	}
	if c.AtLeast[m] {
		return ">" + f.String()
	}
	return f.String()
}

// Text is the difference as String prints it: in percent, with its interval.
func (p *Pair) Text(m Measure) string {
	r := p.Ratios[m]
	switch {
	case p.Unknown[m] || math.IsNaN(r.Mean):
		return "unknown"
	case p.Bound[m]:
		return percent(r.Mean) + " or better"
	}
	return r.Change()
}

// percent prints a ratio as a difference in percent, or as a factor where that reads better.
func percent(ratio float64) string {
	switch {
	case math.IsNaN(ratio):
		return "unknown"
	case ratio >= 10:
		return fmt.Sprintf("×%.0f", ratio)
	case ratio <= .1:
		return fmt.Sprintf("÷%.0f", 1/ratio)
	}
	return fmt.Sprintf("%+.1f%%", 100*(ratio-1))
}

// figure prints seconds with three digits that matter; – for none.
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

// MarshalJSON names the figures: in seconds, tokens a second and shares.
func (c Cell) MarshalJSON() ([]byte, error) {
	out := struct {
		Policy  string              `json:"policy"`
		Figures map[string]Interval `json:"figures"`
		AtLeast []string            `json:"lowerBounds,omitempty"`
	}{c.Policy, make(map[string]Interval), nil}
	for m, name := range measureNames() {
		out.Figures[name] = c.Figures[m]
		if c.AtLeast[m] {
			out.AtLeast = append(out.AtLeast, name)
		}
	}
	return json.Marshal(out)
}

// MarshalJSON names the ratios.
func (p Pair) MarshalJSON() ([]byte, error) {
	out := struct {
		Policy  string              `json:"policy"`
		To      string              `json:"against"`
		Ratios  map[string]Interval `json:"ratios"`
		Unknown []string            `json:"unknown,omitempty"`
	}{p.Policy, p.To, make(map[string]Interval), nil}
	for m := range P99 + 1 {
		out.Ratios[measureNames()[m]] = p.Ratios[m]
		if p.Unknown[m] {
			out.Unknown = append(out.Unknown, measureNames()[m])
		}
	}
	return json.Marshal(out)
}
