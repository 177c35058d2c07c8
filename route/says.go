package route

import (
	"fmt"
	"strings"
)

// Sentences says in words why the chosen endpoint won and what became of the others, a sentence or two each: what
// WriteText ends with. v is the View that was explained.
func (e *Explanation) Sentences(v *View) []string {
	t := &explainer{Explanation: e, v: v}
	t.words()
	return strings.Split(strings.TrimSuffix(t.String(), "\n"), "\n")
}

// Marks says in a word or two each what became of a row, 0 up to the number of endpoints: chosen, fallback 1, near tie,
// left out; nil when nothing did.
func (e *Explanation) Marks(row int) []string {
	d := &e.Decision
	var marks []string
	if int(d.Endpoint) == row {
		marks = append(marks, "chosen")
	}
	for k, f := range d.Fallbacks {
		if int(f) == row {
			marks = append(marks, fmt.Sprintf("fallback %d", k+1))
		}
	}
	if e.scored(row) && d.Near > 1 && e.near(row) {
		marks = append(marks, "near tie")
	}
	if !e.Kept[row] {
		marks = append(marks, "left out")
	}
	return marks
}

// LeftOut says what the filter that dropped a row says of it, with the reason where there is one; empty when none did.
// v is the View that was explained.
func (e *Explanation) LeftOut(v *View, row int) string {
	for _, f := range e.Filters {
		if !f.Dropped[row] || f.Lifted {
			continue
		}
		if why := v.Snapshot.Why[row]; why != "" && v.Snapshot.States[row]&(NotReady|Draining) != 0 {
			return f.Says + ": " + printable(why)
		}
		return f.Says
	}
	return ""
}

// scored reports whether row i has values and a total.
func (e *Explanation) scored(i int) bool { return e.Kept[i] && e.Decision.Verdict == Send }

func (e *Explanation) sign() float32 { return (&Profile{Cost: e.Cost}).sign() }

// near reports whether row i is in the tie band.
func (e *Explanation) near(i int) bool {
	p := Profile{Cost: e.Cost}
	return p.sign()*e.Totals[i] <= p.limit(e.best(), e.TieRatio, e.TieSlack)
}

// best is the best total of a kept row.
func (e *Explanation) best() float32 {
	best := e.Totals[e.Decision.Endpoint]
	for i, kept := range e.Kept {
		if kept && e.sign()*e.Totals[i] < e.sign()*best {
			best = e.Totals[i]
		}
	}
	return best
}

// Known says how well it is known what an endpoint holds of a prompt.
type Known int8

// The ways to know it, from the worst on.
const (
	// Guessed: by what was sent there.
	Guessed Known = iota
	// AtLeast: its KV events tell that it holds so much, and the tokens that follow in the prompt are not known.
	AtLeast
	// Exact: its KV events tell that it holds so much, and of the tokens that follow that it doesn't hold them.
	Exact
)

// String names it as explanations print it.
func (k Known) String() string {
	switch k {
	case Exact:
		return "exact"
	case AtLeast:
		return "at least"
	}
	return "guessed"
}

// forecast says what the chosen endpoint should find in its cache, and how that is known.
func (t *explainer) forecast() {
	v, i := t.v, t.Decision.Endpoint
	switch {
	case v.Expected == nil:
	case v.Known[i] == Exact:
		t.line("Its KV events say that it should find %.0f of the prompt's tokens in its cache.", v.Expected[i])
	case v.Known[i] == AtLeast:
		t.line("Its KV events say that it should find %.0f of the prompt's tokens in its cache, or more: those that follow were not known yet.", v.Expected[i])
	case v.Expected[i] > 0:
		t.line("By what was sent there it should find about %.0f of the prompt's tokens in its cache: a guess.", v.Expected[i])
	}
}
