package sim

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// Outcome is how a goal fared.
type Outcome uint8

const (
	// Met for sure, at 95 %.
	Met Outcome = iota
	// Open is what the interval leaves undecided.
	Open
	// Missed by the mean, and surely worse than what it is measured against.
	Missed
)

// String is the outcome in a word.
func (o Outcome) String() string { return [...]string{"met", "undecided", "missed"}[o] }

// MarshalText writes the word.
func (o Outcome) MarshalText() ([]byte, error) { return []byte(o.String()), nil }

// Goal is something that the default profile should reach.
type Goal struct {
	// Row is the row's id, or a suite's letter.
	Row  string `json:"row"`
	Name string `json:"goal"`
	// Outcome is the worst of all that the goal asks; Details say where it is not met, or how it was.
	Outcome Outcome `json:"outcome"`
	Details string  `json:"details,omitempty"`
}

const (
	// The default profile's figure may be so many times another policy's: that one's is lower by 5 %.
	maxLoss = 1 / .95
	// What counts as a trade: so many points of good requests, too.
	maxGood = .05
	// maxRecovery is in seconds.
	maxRecovery = 10
	// beatsIn is in how many of the columns C the default profile should be better than each other policy.
	beatsIn = 2
)

// nearGreedy is how much worse than the all-knowing greedy mean, P50 and P95, and P99 may be.
func nearGreedy(replicas int) (most, p99 float64) {
	if replicas > 1 {
		return 1.2, 1.3
	}
	return 1.1, 1.2
}

// asks gathers what a goal asks.
type asks struct {
	goal  Goal
	found [Missed + 1][]string
}

func (a *asks) add(o Outcome, details string) { a.found[o] = append(a.found[o], details) }

// done is the goal; of those met no details unless brief.
func (a *asks) done(brief bool) Goal {
	g := a.goal
	for o := Missed; ; o-- {
		if len(a.found[o]) > 0 || o == Met {
			g.Outcome = o
			break
		}
	}
	switch {
	case g.Outcome == Missed && len(a.found[Open]) > 0:
		g.Details = strings.Join(a.found[Missed], "; ") + "; undecided: " + strings.Join(a.found[Open], "; ")
	case g.Outcome != Met || brief:
		g.Details = strings.Join(a.found[g.Outcome], "; ")
	}
	return g
}

// within says whether a figure is at most the limit times the other's: missed if it is above by the mean and surely
// worse than the other.
func (p *Pair) within(m Measure, limit float64) Outcome {
	r := p.Ratios[m]
	switch {
	case p.Unknown[m] || math.IsNaN(r.Mean):
		return Open
	case r.Mean > limit && r.Low > 1:
		return Missed
	case r.High <= limit:
		return Met
	}
	return Open
}

// goodWithin says whether no more than so large a share of requests fewer are good.
func (p *Pair) goodWithin(share float64) Outcome {
	switch {
	case p.Good.Mean < -share && p.Good.High < 0:
		return Missed
	case p.Good.Low >= -share:
		return Met
	}
	return Open
}

func (p *Pair) say(m Measure) string {
	return fmt.Sprintf("%s %s against %s", measureNames()[m], p.Text(m), p.To)
}

// rival says whether the other policy is one to be measured against: not one that knows everything, nor the gateway's
// own with more knowledge.
func (p *Pair) rival() bool { return rival(p.To) }

func rival(policy string) bool {
	return policy != Greedy().Name && policy != ExactLatency().Name && policy != Latency().Name && policy != Unseen().Name
}

// Goals judges every goal that the table's rows allow to judge. A single seed leaves everything undecided.
func (t *Table) Goals() []Goal {
	var out []Goal
	for i := range t.Rows {
		l := &t.Rows[i]
		if len(l.Pairs) == 0 {
			continue
		}
		if strings.HasPrefix(l.ID, "A") {
			out = append(out, l.greedyGoal(t.Replicas)...)
		}
		if l.uniform {
			out = append(out, l.uniformGoal()...)
		}
		if strings.HasPrefix(l.ID, "C") {
			out = append(out, l.bestGoal())
		}
		out = append(out, l.lossGoal())
		out = append(out, l.recoveryGoal()...)
	}
	return append(out, t.columnsGoal()...)
}

// greedyGoal: near the all-knowing greedy.
func (l *Line) greedyGoal(replicas int) []Goal {
	i := slices.IndexFunc(l.Pairs, func(p Pair) bool { return p.To == Greedy().Name })
	if i < 0 {
		return nil
	}
	most, p99 := nearGreedy(replicas)
	p := &l.Pairs[i]
	a := asks{goal: Goal{Row: l.ID, Name: fmt.Sprintf("mean, P50, P95 within %.0f %% of the all-knowing greedy, P99 within %.0f %%", 100*(most-1), 100*(p99-1))}}
	for m := range P99 + 1 {
		limit := most
		if m == P99 {
			limit = p99
		}
		a.add(p.within(m, limit), fmt.Sprintf("%s %s", measureNames()[m], p.Text(m)))
	}
	return []Goal{a.done(true)}
}

// uniformGoal: on a uniform fleet with uniform traffic no worse than round robin.
func (l *Line) uniformGoal() []Goal {
	i := slices.IndexFunc(l.Pairs, func(p Pair) bool { return p.To == RoundRobin().Name })
	if i < 0 {
		return nil
	}
	a := asks{goal: Goal{Row: l.ID, Name: "at least equal to round robin"}}
	for m := range P95 + 1 {
		a.add(l.Pairs[i].within(m, 1+noise), fmt.Sprintf("%s %s", measureNames()[m], l.Pairs[i].Text(m)))
	}
	return []Goal{a.done(true)}
}

// lossGoal: no policy better by more than 5 %. Another is better with a lower mean, or with a lower quantile and a mean
// that is no more than noise above ours: what answers some sooner and makes the others wait is a trade, see Notes.
func (l *Line) lossGoal() Goal {
	a := asks{goal: Goal{Row: l.ID, Name: "no other policy better by over 5 %"}}
	for i := range l.Pairs {
		p := &l.Pairs[i]
		if !p.rival() {
			continue
		}
		a.add(p.within(MeanTTFT, maxLoss), p.say(MeanTTFT))
		for m := P50; m <= P99; m++ {
			o := p.within(m, maxLoss)
			switch worse, sure := p.trade(); {
			case sure:
				o = Met
			case worse:
				o = min(o, Open)
			}
			a.add(o, p.say(m))
		}
	}
	return a.done(false)
}

// trade says whether the other policy's mean is above ours by more than noise, so that being better at a quantile is
// paid for, and whether that is sure.
func (p *Pair) trade() (worse, sure bool) {
	const limit = 1 / (1 + noise)
	r, known := p.Ratios[MeanTTFT], !p.Unknown[MeanTTFT]
	return known && r.Mean < limit, known && r.High < limit
}

// Note is where another policy is surely better by more than 5 % (or points of good requests) without missing a goal.
type Note struct {
	Row  string `json:"row"`
	Text string `json:"note"`
}

// Notes lists trades: what is better at a quantile and worse in the mean, and what is better in time to the end or in
// good requests.
func (t *Table) Notes() []Note {
	var out []Note
	for i := range t.Rows {
		for k := range t.Rows[i].Pairs {
			if p := &t.Rows[i].Pairs[k]; p.rival() {
				for _, text := range p.notes() {
					out = append(out, Note{t.Rows[i].ID, text})
				}
			}
		}
	}
	return out
}

func (p *Pair) notes() []string {
	var out, at, other []string
	if worse, _ := p.trade(); worse {
		for m := P50; m <= P99; m++ {
			if p.within(m, maxLoss) == Missed {
				at = append(at, fmt.Sprintf("%s (ours %s)", measureNames()[m], p.Text(m)))
			}
		}
	}
	if len(at) > 0 {
		out = append(out, fmt.Sprintf("%s: better at %s, worse in the mean (ours %s)", p.To, strings.Join(at, ", "), p.Text(MeanTTFT)))
	}
	if p.within(E2E, maxLoss) == Missed {
		other = append(other, "E2E (ours "+p.Text(E2E)+")")
	}
	if p.goodWithin(maxGood) == Missed {
		other = append(other, fmt.Sprintf("good requests (ours %+.1f points)", 100*p.Good.Mean))
	}
	if len(other) > 0 {
		out = append(out, fmt.Sprintf("%s: better in %s", p.To, strings.Join(other, ", ")))
	}
	return out
}

// bestGoal: at least equal to every other policy.
func (l *Line) bestGoal() Goal {
	a := asks{goal: Goal{Row: l.ID, Name: "at least equal to the best other policy"}}
	for i := range l.Pairs {
		p := &l.Pairs[i]
		if !p.rival() {
			continue
		}
		for _, m := range []Measure{MeanTTFT, P99} {
			a.add(p.within(m, 1+noise), p.say(m))
		}
		a.add(p.goodWithin(noise), fmt.Sprintf("good %+.1f points against %s", 100*p.Good.Mean, p.To))
	}
	return a.done(false)
}

// recoveryGoal: back to normal in time.
func (l *Line) recoveryGoal() []Goal {
	for _, c := range l.Cells {
		r := c.Figures[Recovery]
		if c.Policy != Latency().Name || math.IsNaN(r.Mean) {
			continue
		}
		g := Goal{Row: l.ID, Name: fmt.Sprintf("normal again within %d s", maxRecovery), Details: fmt.Sprintf("%.1f s", r.Mean)}
		if !math.IsNaN(r.Low) {
			g.Details += fmt.Sprintf(" (%.1f…%.1f)", r.Low, r.High)
		}
		switch {
		case r.Mean > maxRecovery && !math.IsNaN(r.Low):
			g.Outcome = Missed
		case !(r.High <= maxRecovery):
			g.Outcome = Open
		}
		return []Goal{g}
	}
	return nil
}

// columnsGoal: better than each other policy in two columns, by mean time to first token.
func (t *Table) columnsGoal() []Goal {
	var names []string
	sure, perhaps, columns := make(map[string]int), make(map[string]int), 0
	for i := range t.Rows {
		l := &t.Rows[i]
		if !strings.HasPrefix(l.ID, "C") || len(l.Pairs) == 0 {
			continue
		}
		columns++
		for k := range l.Pairs {
			p := &l.Pairs[k]
			if !p.rival() {
				continue
			}
			if !slices.Contains(names, p.To) {
				names = append(names, p.To)
			}
			switch s := p.judge(MeanTTFT); {
			case s == better:
				sure[p.To]++
			case s == undecided && !(p.Ratios[MeanTTFT].Mean > 1):
				perhaps[p.To]++
			}
		}
	}
	if columns < beatsIn {
		return nil
	}
	a := asks{goal: Goal{Row: "C", Name: fmt.Sprintf("better than each other policy in at least %d of %d columns", beatsIn, columns)}}
	for _, name := range names {
		o := Missed
		switch {
		case sure[name] >= beatsIn:
			o = Met
		case sure[name]+perhaps[name] >= beatsIn:
			o = Open
		}
		a.add(o, fmt.Sprintf("%s in %d", name, sure[name]))
	}
	return []Goal{a.done(false)}
}
