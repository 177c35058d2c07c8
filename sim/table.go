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
	// Verdict says in words how the default profile stands; empty where there is nothing to compare, or one seed only.
	Verdict string `json:"verdict,omitempty"`
	// Hopeless are policies that have no more than the first four seeds, see Experiment.
	Hopeless []string `json:"hopeless,omitempty"`

	uniform bool
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

// Pair is how a policy compares with another that had the same traffic.
type Pair struct {
	Policy, To string
	// Ratios are the policy's times over the other's. Below 1 is faster.
	Ratios [E2E99 + 1]Interval
	// Good is by how much more of the requests are good, a difference of shares.
	Good Interval
	// Unknown says that the policy's figure is a lower bound, and not above the other's or the other's is a lower bound
	// too.
	Unknown [E2E99 + 1]bool
	// Bound says that the other's figure is a lower bound, so that the policy is better by the ratio or more; how much
	// more depends on how long the run was.
	Bound [E2E99 + 1]bool
}

// noise is the difference that counts as none, however sure it is.
const noise = .03

// line is a row of the table from its runs: policy after policy, seed after seed.
func (e *Experiment) line(row Row, runs []figures) Line {
	l := Line{ID: row.ID, Name: row.Name, uniform: row.Uniform}
	of := func(policy int) []figures {
		if e.hopeless(runs, policy) {
			return runs[policy*e.Seeds:][:hopelessSeeds]
		}
		return runs[policy*e.Seeds:][:e.Seeds]
	}
	for i, p := range e.Policies {
		l.Cells = append(l.Cells, cell(p.Name, of(i)))
		if e.hopeless(runs, i) {
			l.Hopeless = append(l.Hopeless, p.Name)
		}
	}
	ours := e.ours()
	if ours < 0 {
		return l
	}
	for i, p := range e.Policies {
		if theirs := of(i); i != ours {
			l.Pairs = append(l.Pairs, pair(l.Cells[ours].Policy, p.Name, of(ours)[:len(theirs)], theirs))
		}
	}
	if e.Seeds > 1 { // what one seed shows may be chance
		l.Verdict = verdict(l.Pairs)
	}
	return l
}

func cell(name string, runs []figures) Cell {
	c := Cell{Policy: name, Curve: make([]float64, curvePoints)}
	for m := range measures {
		c.Figures[m] = Mean(column(runs, m))
		c.AtLeast[m] = slices.ContainsFunc(runs, func(f figures) bool { return f.open[m] })
	}
	c.Figures[Recovery] = recovery(runs)
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
	for m := range E2E99 + 1 {
		p.Ratios[m] = Ratio(column(a, m), column(b, m))
		for i := range a {
			p.Bound[m] = p.Bound[m] || b[i].open[m]
			p.Unknown[m] = p.Unknown[m] || a[i].open[m] && (b[i].open[m] || a[i].of[m] <= b[i].of[m]) ||
				b[i].open[m] && a[i].of[m] >= b[i].of[m]
		}
	}
	var more []float64
	for i := range a {
		more = append(more, a[i].of[Good]-b[i].of[Good])
	}
	p.Good = Mean(more)
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
	case p.Unknown[m] || math.IsNaN(r.Mean) || math.IsNaN(r.Low):
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

// against says how the pair stands at mean, P50 and P95: what is worse anywhere counts as worse, what is not sure
// anywhere as undecided. details are the differences that make it so.
func (p *Pair) against() (all sign, details string) {
	var found [undecided + 1][]string
	for m := range P95 + 1 {
		s := p.judge(m)
		found[s] = append(found[s], fmt.Sprintf("%s %s", measureNames()[m], percent(p.Ratios[m].Mean)))
	}
	for _, s := range []sign{worse, undecided, better, equal} {
		if len(found[s]) > 0 {
			return s, strings.Join(found[s], ", ")
		}
	}
	return equal, ""
}

// verdict sums up pairs, those of a kind together.
func verdict(pairs []Pair) string {
	if len(pairs) == 0 {
		return ""
	}
	var found [undecided + 1][]string
	for i := range pairs {
		p := &pairs[i]
		s, details := p.against()
		if s == worse || s == undecided {
			found[s] = append(found[s], fmt.Sprintf("%s (%s)", p.To, details))
		} else {
			found[s] = append(found[s], p.To)
		}
	}
	var said []string
	for _, s := range []sign{better, equal, undecided, worse} {
		if len(found[s]) > 0 {
			said = append(said, [...]string{"equals ", "beats ", "loses to ", "is undecided against "}[s]+strings.Join(found[s], ", "))
		}
	}
	return pairs[0].Policy + " " + strings.Join(said, "; ")
}

// measureNames are the columns' heads, in JSON the figures' names.
func measureNames() [measures]string {
	return [measures]string{"mean", "P50", "P95", "P99", "TPOT", "TPOT P50", "TPOT P95", "TPOT P99", "E2E", "E2E P50", "E2E P95", "E2E P99",
		"good", "tokens/s", "hits", "imbalance", "lost", "recovery"}
}

// View is a way to print a table.
type View uint8

const (
	// ViewTTFT prints times to first token with intervals, and one figure of everything else.
	ViewTTFT View = iota
	// ViewPairs prints how the default profile compares in them with each other policy.
	ViewPairs
	// ViewTPOT prints times between tokens.
	ViewTPOT
	// ViewE2E prints times to the last token.
	ViewE2E
	// ViewFleet prints what concerns the fleet, with intervals.
	ViewFleet
)

// SelectViews finds views by their names: ttft, pairs, tpot, e2e, fleet; all means all of them.
func SelectViews(names []string) ([]View, error) {
	known := []string{"ttft", "pairs", "tpot", "e2e", "fleet"}
	var out []View
	for _, name := range names {
		i := slices.Index(known, name)
		switch {
		case name == "all":
			return []View{ViewTTFT, ViewPairs, ViewTPOT, ViewE2E, ViewFleet}, nil
		case i < 0:
			return nil, fmt.Errorf("cannot find measures %q: known are all, %s", name, strings.Join(known, ", "))
		}
		out = append(out, View(i))
	}
	return out, nil
}

// columns are the figures of a view and whether each has its interval.
func (v View) columns(l *Line) (ms []Measure, intervals bool) {
	switch v {
	case ViewTPOT:
		return []Measure{TPOT, TPOT50, TPOT95, TPOT99}, true
	case ViewE2E:
		return []Measure{E2E, E2E50, E2E95, E2E99}, true
	case ViewFleet:
		ms, intervals = []Measure{Good, Tokens, Hits, Imbalance, Lost}, true
	default:
		ms = []Measure{MeanTTFT, P50, P95, P99, TPOT, E2E, Tokens, Good, Hits}
	}
	if slices.ContainsFunc(l.Cells, func(c Cell) bool { return c.Figures[Recovery].Mean >= 0 }) {
		return append(ms, Recovery), intervals
	}
	if v == ViewTTFT {
		ms = append(ms, Lost)
	}
	return ms, intervals
}

// String prints the table for people, in ViewTTFT.
func (t *Table) String() string { return t.Text([]View{ViewTTFT}) }

// Text prints the table for people in these views, each row at most 120 columns wide: times in seconds with the
// half-width of their interval.
func (t *Table) Text(views []View) string {
	var b strings.Builder
	for i := range t.Rows {
		l := &t.Rows[i]
		fmt.Fprintf(&b, "%s  %s\n", l.ID, l.Name)
		for _, v := range views {
			if v == ViewPairs {
				l.writePairs(&b)
			} else {
				l.writeFigures(&b, v)
			}
		}
		if len(l.Hopeless) > 0 {
			writeWrapped(&b, "  ", "    ", fmt.Sprintf("%d seeds only: hopeless (mean above %d times the default profile's in each): %s", hopelessSeeds, hopelessFactor,
				strings.Join(l.Hopeless, ", ")))
		}
		if l.Verdict != "" {
			writeWrapped(&b, "  → ", "    ", l.Verdict)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

func (l *Line) writeFigures(b *strings.Builder, v View) {
	ms, intervals := v.columns(l)
	width := func(m Measure) int {
		if m <= P99 || intervals {
			return 13
		}
		if m == Tokens {
			return 7
		}
		return 6
	}
	fmt.Fprintf(b, "  %-19s", "")
	for _, m := range ms {
		head := measureNames()[m]
		switch m {
		case Tokens:
			head = "tok/s"
		case Recovery:
			head = "normal"
		}
		fmt.Fprintf(b, " %*s", width(m), head)
	}
	b.WriteByte('\n')
	for i := range l.Cells {
		c := &l.Cells[i]
		fmt.Fprintf(b, "  %-19s", c.Policy)
		for _, m := range ms {
			text := c.Text(m)
			if intervals && m > P99 {
				text = c.withInterval(m)
			}
			fmt.Fprintf(b, " %*s", width(m), text)
		}
		b.WriteByte('\n')
	}
}

func (l *Line) writePairs(b *strings.Builder) {
	for i := range l.Pairs {
		p := &l.Pairs[i]
		if i == 0 {
			fmt.Fprintf(b, "  %-19s %23s %23s %23s %23s\n", p.Policy+" against", "mean", "P50", "P95", "P99")
		}
		fmt.Fprintf(b, "  %-19s", p.To)
		for m := range P99 + 1 {
			fmt.Fprintf(b, " %23s", p.Text(m))
		}
		b.WriteByte('\n')
	}
}

// tableWidth is how wide a table may be.
const tableWidth = 120

// writeWrapped writes words in lines of at most tableWidth columns.
func writeWrapped(b *strings.Builder, first, other, text string) {
	line := first
	used := len([]rune(first))
	for i, word := range strings.Fields(text) {
		n := len([]rune(word))
		if i > 0 && used+1+n > tableWidth {
			b.WriteString(line + "\n")
			line, used = other, len([]rune(other))
		} else if i > 0 {
			line, used = line+" ", used+1
		}
		line, used = line+word, used+n
	}
	b.WriteString(line + "\n")
}

// Text is a figure as String prints it.
func (c *Cell) Text(m Measure) string {
	f := c.Figures[m]
	switch m {
	case Tokens:
		return fmt.Sprintf("%.0f", f.Mean)
	case Good, Hits, Lost:
		return fmt.Sprintf("%.1f%%", 100*f.Mean)
	case Recovery:
		return fmt.Sprintf("%.1fs", f.Mean)
	case MeanTTFT, P50, P95, P99:
		if c.AtLeast[m] {
			return ">" + f.String()
		}
		return f.String()
	}
	if c.AtLeast[m] {
		return ">" + figure(f.Mean)
	}
	return figure(f.Mean)
}

// withInterval is a figure with half the width of its interval.
func (c *Cell) withInterval(m Measure) string {
	f, half := c.Figures[m], (c.Figures[m].High-c.Figures[m].Low)/2
	switch {
	case math.IsNaN(half):
		return c.Text(m)
	case m == Tokens:
		return fmt.Sprintf("%.0f ±%.0f", f.Mean, half)
	case m == Good || m == Hits || m == Lost:
		return fmt.Sprintf("%.1f%% ±%.1f", 100*f.Mean, 100*half)
	case m == Recovery:
		return fmt.Sprintf("%.1fs ±%.1f", f.Mean, half)
	case c.AtLeast[m]:
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

// MarshalJSON names the figures: in seconds, tokens a second, ratios and shares.
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
		Good    Interval            `json:"good"`
		Unknown []string            `json:"unknown,omitempty"`
	}{p.Policy, p.To, make(map[string]Interval), p.Good, nil}
	for m := range E2E99 + 1 {
		out.Ratios[measureNames()[m]] = p.Ratios[m]
		if p.Unknown[m] {
			out.Unknown = append(out.Unknown, measureNames()[m])
		}
	}
	return json.Marshal(out)
}
