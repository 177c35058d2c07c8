package console

import (
	"cmp"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-gateway/sluice/route"
)

// Bounds of what one answer holds.
const (
	maxRequests  = 200 // requests in a list
	maxSearch    = 4096
	maxDecisions = 8  // of one request, which decides again each time it moves
	maxBars      = 64 // endpoints in an explanation
)

// requestLine is one line of /console/requests: a request by its latest decision.
type requestLine struct {
	ID      string `json:"id"`
	Time    string `json:"time"`
	Pool    string `json:"pool"`
	Model   string `json:"model"`
	Adapter string `json:"adapter,omitempty"`
	// Endpoint is the chosen one, empty when there was none.
	Endpoint string `json:"endpoint"`
	// Prompt and Matched are estimated tokens: of the prompt, and of what the endpoint was thought to hold of it.
	Prompt  figure `json:"prompt"`
	Matched figure `json:"matched"`
	// Known says how well it is known what the endpoint holds: exact, at least, guessed.
	Known string `json:"known"`
	Near  int    `json:"near"`
	Of    int    `json:"of"`
	Blind bool   `json:"blind"`
	// Decisions is how often it was decided: more than once when it moved.
	Decisions int      `json:"decisions"`
	Outcome   *outcome `json:"outcome"`
}

// outcome is how a request ended; null while it runs, and when too many have ended since.
type outcome struct {
	OK       bool   `json:"ok"`
	Endpoint string `json:"endpoint"`
	// TTFT is in milliseconds, null when there was no first token to see.
	TTFT   figure `json:"ttft"`
	Tokens int    `json:"tokens"`
	Prompt int    `json:"prompt"`
	Cached int    `json:"cached"`
}

func (s *Side) outcome(id string) *outcome {
	if s.Series == nil {
		return nil
	}
	x, ok := s.Series.outcome(id)
	if !ok {
		return nil
	}
	o := &outcome{OK: x.OK, Endpoint: x.Endpoint, TTFT: figure(math.NaN()), Tokens: x.Tokens, Prompt: x.Prompt, Cached: x.Cached}
	if x.TTFT > 0 {
		o.TTFT = figure(x.TTFT.Seconds() * 1000)
	}
	return o
}

// records are the latest n decisions of a side, newest first.
func (s *Side) records(n int) []*route.Record {
	if s.Records == nil {
		return nil
	}
	return s.Records(n)
}

func (s *site) serveRequests(w http.ResponseWriter, r *http.Request) {
	n := 50
	if text := r.URL.Query().Get("last"); text != "" {
		var err error
		if n, err = strconv.Atoi(text); err != nil || n < 1 {
			http.Error(w, "last is a number of requests, 1 or more", http.StatusBadRequest)
			return
		}
	}
	n = min(n, maxRequests)
	side, ok := s.side(r)
	if !ok {
		http.Error(w, "there is no side of this name", http.StatusNotFound)
		return
	}
	lines := []requestLine{}
	at := make(map[string]int)
	for _, rec := range side.records(2 * n) {
		if i, seen := at[rec.ID]; seen {
			lines[i].Decisions++
			continue
		}
		if len(lines) == n {
			continue
		}
		at[rec.ID] = len(lines)
		lines = append(lines, lineOf(side, rec))
	}
	reply(w, lines)
}

func lineOf(side *Side, rec *route.Record) requestLine {
	v, d := &rec.View, &rec.Decision
	l := requestLine{ID: rec.ID, Time: rec.Time, Pool: rec.Pool, Model: v.Request.Model, Adapter: v.Request.Adapter, Prompt: figure(v.Request.PromptTokens),
		Near: int(d.Near), Blind: d.Blind, Decisions: 1, Outcome: side.outcome(rec.ID)}
	if v.Snapshot == nil {
		return l
	}
	l.Of = v.Snapshot.Len()
	if i := int(d.Endpoint); i >= 0 && i < l.Of {
		l.Endpoint = v.Snapshot.Names[i]
		l.Matched, l.Known = matched(v, i)
	}
	return l
}

// matched is the tokens of the prompt that row i was thought to hold, and how well that is known.
func matched(v *route.View, i int) (tokens figure, known string) {
	switch {
	case v.Expected != nil:
		return figure(v.Expected[i]), v.Known[i].String()
	case v.Match == nil:
		return 0, route.Guessed.String()
	}
	return figure(min(v.Match[i]*v.Request.UnitTokens, v.Request.PromptTokens)), route.Guessed.String()
}

// explained is the JSON of /console/explain.
type explained struct {
	ID string `json:"id"`
	// Decisions are those of the request, oldest first; the last one says where it ended up.
	Decisions []decision `json:"decisions"`
	Outcome   *outcome   `json:"outcome"`
}

// decision is one decision with its reasons.
type decision struct {
	Time    string `json:"time"`
	Pool    string `json:"pool"`
	Profile string `json:"profile"`
	Model   string `json:"model"`
	// Cost says that totals are costs in Unit and the least wins; else they are sums of scores × weights and the most
	// wins.
	Cost bool   `json:"cost"`
	Unit string `json:"unit"`
	// Sentences are the reasons in words, Text the whole explanation as the command prints it.
	Sentences []string `json:"sentences"`
	Text      string   `json:"text"`
	// Expected is the time to first token that the chosen endpoint was thought to need, in milliseconds; null where the
	// profile counts none.
	Expected figure `json:"expected"`
	Terms    []term `json:"terms"`
	// Bars are the endpoints, best first, those left out last; Omitted how many more there are.
	Bars    []bar `json:"bars"`
	Omitted int   `json:"omitted"`
}

type term struct {
	Name   string `json:"name"`
	Weight figure `json:"weight"`
}

// bar is one endpoint in a decision.
type bar struct {
	Name string `json:"name"`
	Kind string `json:"kind"`
	// Marks are chosen, fallback 1, near tie.
	Marks []string `json:"marks"`
	// Parts has a value a term, times its weight; null where the endpoint was left out. Guessed marks those that were
	// not known and stand at the mean of the others.
	Parts   []figure `json:"parts"`
	Guessed []bool   `json:"guessed"`
	Total   figure   `json:"total"`
	// LeftOut says in words why the endpoint could not serve; empty when it could.
	LeftOut string `json:"leftOut"`
	// Matched is the tokens of the prompt that it was thought to hold, Known how well that is known: exact, at least, guessed.
	Matched figure `json:"matched"`
	Known   string `json:"known"`
}

func (s *site) serveExplain(w http.ResponseWriter, r *http.Request) {
	side, ok := s.side(r)
	id := r.URL.Query().Get("id")
	if !ok || id == "" {
		http.Error(w, "id names a request, and side the side it was on", http.StatusBadRequest)
		return
	}
	out := explained{ID: id, Outcome: side.outcome(id)}
	for _, rec := range side.records(maxSearch) {
		if rec.ID != id || len(out.Decisions) == maxDecisions {
			continue
		}
		d, err := explain(rec)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		out.Decisions = append(out.Decisions, *d)
	}
	if len(out.Decisions) == 0 {
		http.Error(w, "this request's decision is not kept, or no longer", http.StatusNotFound)
		return
	}
	slices.Reverse(out.Decisions)
	reply(w, out)
}

// explain decides the record again and puts the reasons into the page's form. The record's own View is left alone:
// several may ask at once.
func explain(rec *route.Record) (*decision, error) {
	p, err := rec.OwnProfile()
	if err != nil {
		return nil, err
	}
	v := rec.View.Clone()
	e := p.Explain(&v)
	var text strings.Builder
	if err := e.WriteText(&text, &v); err != nil {
		return nil, err
	}
	d := &decision{Time: rec.Time, Pool: rec.Pool, Profile: e.Profile, Model: v.Request.Model, Cost: e.Cost, Unit: e.Unit,
		Sentences: e.Sentences(&v), Text: text.String()}
	for _, t := range e.Terms {
		d.Terms = append(d.Terms, term{t.Name, figure(t.Weight)})
	}
	d.Expected = expected(&e, &v)
	order := rows(&e)
	d.Omitted = max(len(order)-maxBars, 0)
	for _, i := range order[:len(order)-d.Omitted] {
		d.Bars = append(d.Bars, barOf(&e, &v, i))
	}
	return d, nil
}

// The terms of a cost profile that are not part of the time to first token as they stand: decode is no part of it, and
// prefill also counts what computing something again costs those who come after.
const (
	termDecode  = "decode"
	termPrefill = "prefill"
)

func expected(e *route.Explanation, v *route.View) figure {
	if !e.Cost || e.Decision.Verdict != route.Send {
		return figure(math.NaN())
	}
	i := int(e.Decision.Endpoint)
	held, _ := matched(v, i)
	uncached := max(v.Request.PromptTokens-float32(held), 1)
	rate := &v.Rates[v.Snapshot.Kinds[i]]
	sum := rate.Prefill * rate.Compute(uncached, v.Request.PromptTokens-uncached)
	for _, t := range e.Terms {
		if t.Name != termDecode && t.Name != termPrefill {
			sum += t.Values[i] * t.Weight
		}
	}
	return figure(sum)
}

// rows orders the rows of an explanation: the chosen one, then by total, then those left out.
func rows(e *route.Explanation) []int {
	order := make([]int, len(e.Kept))
	for i := range order {
		order[i] = i
	}
	place := func(i int) (int, float64) {
		switch {
		case i == int(e.Decision.Endpoint):
			return 0, 0
		case !e.Kept[i]:
			return 2, 0
		case e.Cost:
			return 1, float64(e.Totals[i])
		}
		return 1, -float64(e.Totals[i])
	}
	slices.SortStableFunc(order, func(a, b int) int {
		groupA, totalA := place(a)
		groupB, totalB := place(b)
		return cmp.Or(cmp.Compare(groupA, groupB), cmp.Compare(totalA, totalB))
	})
	return order
}

func barOf(e *route.Explanation, v *route.View, i int) bar {
	b := bar{Name: v.Snapshot.Names[i], Kind: v.Rates[v.Snapshot.Kinds[i]].Name, Marks: []string{}, Total: figure(math.NaN()),
		Parts: make([]figure, len(e.Terms)), Guessed: make([]bool, len(e.Terms))}
	b.Matched, b.Known = matched(v, i)
	for t := range b.Parts {
		b.Parts[t] = figure(math.NaN())
	}
	if !e.Kept[i] || e.Decision.Verdict != route.Send {
		b.LeftOut = cmp.Or(e.LeftOut(v, i), "no endpoint may serve")
		return b
	}
	b.Total = figure(e.Totals[i])
	for t, c := range e.Terms {
		b.Parts[t], b.Guessed[t] = figure(c.Values[i]*c.Weight), c.Unknown[i]
	}
	b.Marks = append(b.Marks, e.Marks(i)...)
	return b
}
