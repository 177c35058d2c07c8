package route

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// WriteText writes the explanation for people: what was known of every endpoint, what each filter and term said, and in
// words why the chosen one won and what became of the others. v is the View that was explained.
func (e *Explanation) WriteText(w io.Writer, v *View) error {
	t := &explainer{Explanation: e, v: v}
	t.request()
	t.readings()
	t.scores()
	t.line("")
	t.words()
	_, err := io.WriteString(w, t.String())
	return err
}

// Reason says in one short line of ASCII why d came out of v, for a response header and for logs: profile and total,
// how many of all endpoints were as good, and how many of the request's units the endpoint holds.
func (p *Profile) Reason(v *View, d Decision) string {
	p = p.of(v)
	b := make([]byte, 0, 96)
	b = append(b, p.Name...)
	if d.Endpoint < 0 || int(d.Endpoint) >= v.Snapshot.Len() {
		b = append(b, "; no endpoint of "...)
		return string(strconv.AppendInt(b, int64(v.Snapshot.Len()), 10))
	}
	b = append(b, ' ')
	if p.Cost {
		b = strconv.AppendFloat(b, float64(d.Total), 'f', 1, 32)
	} else {
		b = strconv.AppendFloat(b, float64(d.Total), 'f', 3, 32)
	}
	b = append(b, p.Unit...)
	b = append(b, "; near "...)
	b = strconv.AppendInt(b, int64(d.Near), 10)
	b = append(b, '/')
	b = strconv.AppendInt(b, int64(v.Snapshot.Len()), 10)
	if v.Request.Units > 0 && v.Match != nil {
		b = append(b, "; match "...)
		b = strconv.AppendInt(b, int64(v.Match[d.Endpoint]), 10)
		b = append(b, '/')
		b = strconv.AppendInt(b, int64(v.Request.Units), 10)
	}
	if d.Blind {
		b = append(b, "; blind"...)
	}
	return string(b)
}

// explainer builds the text of one explanation.
type explainer struct {
	strings.Builder
	*Explanation
	v *View
	// guessed says that a value that is not known was printed.
	guessed bool
}

func (t *explainer) line(format string, args ...any) {
	fmt.Fprintf(t, format+"\n", args...)
}

// name is row i's name, after its pod's where it is one, or "none".
func (t *explainer) name(i int32) string {
	if i < 0 || int(i) >= t.v.Snapshot.Len() {
		return "none"
	}
	s := t.v.Snapshot
	if s.Pods != nil && s.Pods[i] != "" {
		return printable(s.Pods[i]) + " (" + printable(s.Names[i]) + ")"
	}
	return printable(s.Names[i])
}

func (t *explainer) request() {
	r := &t.v.Request
	t.line("request: model %q, %.0f prompt tokens in %d units of %.0f, %.0f output tokens expected",
		r.Model, r.PromptTokens, r.Units, r.UnitTokens, r.OutputTokens)
	if r.Missed > 0 {
		t.line("missed by requests with the same beginning: %s ms, which pay for a copy of it", short(r.Missed))
	}
	if r.Adapter != "" {
		t.line("adapter: %q", r.Adapter)
	}
	for i := range t.v.Rates {
		t.kind(&t.v.Rates[i])
	}
}

// kind writes what a step takes there.
func (t *explainer) kind(r *Rate) {
	source := ""
	if r.Source != "" {
		source = " (" + printable(r.Source) + ")"
	}
	t.line("kind %s: a step takes max(%s, %s + %s a prompt token) + %s a million pairs, × %.2f; with output alone %s + %s a request + %s per 1000 tokens of context, × %.2f ms%s",
		printable(r.Name), short(r.T0), short(r.PA), short(r.PB), short(r.PC), r.Prefill, short(r.T0), short(r.DB), short(r.DC), r.Decode, source)
}

// readings writes what was known of each endpoint.
func (t *explainer) readings() {
	v, s := t.v, t.v.Snapshot
	header := []string{"known of", "kind", "read ago", "waiting", "running", "KV use", "KV tokens",
		"in flight", "prefilling", "backlog", "work", "held", "context", "match"}
	if v.Expected != nil {
		header = append(header, "in its cache")
	}
	if v.Adapters != nil {
		header = append(header, "adapter")
	}
	rows := [][]string{header}
	for i := range s.Names {
		row := []string{t.name(int32(i)), printable(v.Rates[s.Kinds[i]].Name), t.age(i), t.reading(s.Waiting[i], 1, ""), t.reading(s.Running[i], 1, ""),
			t.reading(s.KVUse[i], 100, "%"), t.reading(s.KVTokens[i], 1, "")}
		for _, own := range []Column{v.InFlight, v.Prefilling, v.Backlog, v.Work, v.Held, v.Context, v.Match} {
			x := float32(0)
			if own != nil {
				x = own[i]
			}
			row = append(row, t.reading(x, 1, ""))
		}
		if v.Expected != nil {
			row = append(row, fmt.Sprintf("%.0f %s", v.Expected[i], v.Known[i]))
		}
		if v.Adapters != nil {
			row = append(row, v.Adapters[i].String())
		}
		rows = append(rows, row)
	}
	t.line("")
	writeTable(&t.Builder, rows)
}

// age is how long ago row i was read.
func (t *explainer) age(i int) string {
	at := t.v.Snapshot.ReadAt[i]
	switch {
	case t.v.Snapshot.States[i]&Unmetered != 0:
		return "no metrics"
	case at <= Never:
		return "never"
	}
	return fmt.Sprintf("%.2fs", t.v.Now-at)
}

// reading prints a value of a column of the View, ? when it is not known.
func (t *explainer) reading(x, scale float32, unit string) string {
	if !(x <= huge && x >= -huge) {
		t.guessed = true
		return "?"
	}
	return fmt.Sprintf("%.0f%s", x*scale, unit)
}

// scores writes what filters and terms said of each endpoint.
func (t *explainer) scores() {
	header := []string{t.Profile, "filters"}
	var terms []*TermColumn
	for k := range t.Terms {
		if c := &t.Terms[k]; !c.Rare || t.says(c) {
			terms = append(terms, c)
		}
	}
	for _, c := range terms {
		if t.Cost {
			header = append(header, c.Name)
		} else {
			header = append(header, c.Name+"×"+short(c.Weight))
		}
	}
	rows := [][]string{append(header, "total", "")}
	for i := range t.v.Snapshot.Names {
		row := []string{t.name(int32(i)), t.filters(i)}
		for _, c := range terms {
			row = append(row, t.score(c, i))
		}
		total := "-"
		if t.scored(i) {
			total = t.total(t.Totals[i])
		}
		rows = append(rows, append(row, total, strings.Join(t.Marks(i), ", ")))
	}
	t.line("")
	writeTable(&t.Builder, rows)
	if t.guessed {
		t.line("? is not known: as a score, the mean of the known ones stands in; as a reading, nothing is added to what this gateway sent there.")
	}
}

// says reports whether a term is something for any row.
func (t *explainer) says(c *TermColumn) bool {
	for i, x := range c.Values {
		if t.scored(i) && x != 0 {
			return true
		}
	}
	return false
}

// filters names the filters that had something against row i.
func (t *explainer) filters(i int) string {
	said := "pass"
	for _, f := range t.Filters {
		switch {
		case f.Dropped[i] && f.Lifted && said == "pass":
			said = "(" + f.Name + ")"
		case f.Dropped[i] && f.Lifted:
			said += " (" + f.Name + ")"
		case f.Dropped[i]:
			return f.Name
		}
	}
	return said
}

func (t *explainer) score(c *TermColumn, i int) string {
	if !t.scored(i) {
		return "-"
	}
	text := fmt.Sprintf("%.2f", c.Values[i])
	if t.Cost {
		text = fmt.Sprintf("%.1f", c.Values[i])
	}
	if c.Unknown[i] {
		t.guessed = true
		text += "?"
	}
	return text
}

// total prints a total or a difference of totals with its unit.
func (t *explainer) total(x float32) string {
	if t.Cost {
		return fmt.Sprintf("%.1f %s", x, t.Unit)
	}
	return fmt.Sprintf("%.3f", x)
}

// words says why.
func (t *explainer) words() {
	if d := &t.Decision; d.Verdict != Send {
		t.line("No endpoint may serve the request.")
	} else {
		if t.Profile == guardedName {
			t.line("Guarded: hits have fallen while the backlog has risen, so that the weights decide until either is over.")
		}
		t.choice()
		t.forecast()
		t.tie()
		if d.Fallbacks[0] >= 0 {
			t.line("If it fails before its first byte: %s.", t.fallbacks())
		}
		if d.Blind {
			t.line("Blind: every reading is older than %gs, so none was used; the choice rests on what this gateway itself sent.", t.v.StaleAfter)
		}
		t.lifted()
	}
	for i := range t.v.Snapshot.Names {
		if said := t.LeftOut(t.v, i); said != "" {
			t.line("Left out: %s, %s.", t.name(int32(i)), said)
		}
	}
}

// lifted says which filters were not applied, and which readings were not used.
func (t *explainer) lifted() {
	if t.Aged > 0 && !t.Decision.Blind {
		t.line("Readings older than %gs were not used, %d of them: of such an endpoint only what this gateway itself sent is known.", t.v.StaleAfter, t.Aged)
	}
	for _, f := range t.Filters {
		switch {
		case !f.Lifted || f.Name == filterStale && t.Decision.Blind:
		case f.Name == filterStale:
			t.line("The filter %s (%s) was lifted: it would have left fewer than half of the endpoints.", f.Name, f.Says)
		default:
			t.line("The filter %s (%s) was lifted: it would have left no endpoint.", f.Name, f.Says)
		}
	}
}

// choice says what the chosen endpoint won by.
func (t *explainer) choice() {
	chosen, rival := int(t.Decision.Endpoint), t.rival()
	if rival < 0 {
		t.line("%s is chosen: no other endpoint may serve the request.", t.name(int32(chosen)))
		return
	}
	own, other := t.Totals[chosen], t.Totals[rival]
	verb := "wins over"
	if t.sign()*own > t.sign()*other {
		verb = "is as good as"
	} else if own == other {
		verb = "ties with"
	}
	reasons := t.differences(chosen, rival)
	if len(reasons) == 0 {
		reasons = []string{"no term differs"}
	}
	t.line("%s is chosen with %s; it %s %s with %s: %s.", t.name(int32(chosen)), t.total(own), verb, t.name(int32(rival)), t.total(other),
		strings.Join(reasons, ", "))
}

// rival is the best endpoint that was not chosen, -1 when there is none: the first fallback.
func (t *explainer) rival() int { return int(t.Decision.Fallbacks[0]) }

// differences names the terms in which two rows differ visibly, the largest first, as seen from the first.
func (t *explainer) differences(a, b int) []string {
	type difference struct {
		name string
		by   float32
	}
	var all []difference
	for _, c := range t.Terms {
		by := c.Weight * (c.Values[a] - c.Values[b])
		if size := max(by, -by); t.Cost && size >= .05 || !t.Cost && size >= .0005 {
			all = append(all, difference{c.Name, by})
		}
	}
	slices.SortStableFunc(all, func(x, y difference) int {
		return cmp.Compare(max(y.by, -y.by), max(x.by, -x.by))
	})
	var said []string
	for _, d := range all[:min(len(all), 3)] {
		word := "more"
		if d.by < 0 {
			word = "less"
		}
		said = append(said, fmt.Sprintf("%s %s %s", d.name, t.total(max(d.by, -d.by)), word))
	}
	return said
}

// tie says how near ties were settled.
func (t *explainer) tie() {
	if t.Decision.Near < 2 {
		return
	}
	p := Profile{Cost: t.Cost}
	best := t.best()
	width := fmt.Sprintf("%s from the best, %s", t.total(p.limit(best, t.TieRatio, t.TieSlack)-p.sign()*best), t.total(best))
	if !t.Cost {
		width = "rounding of the best, " + t.total(best)
	}
	by := "by rendezvous of the request's seed, as it has no prefix to share: such requests spread evenly"
	if t.v.Request.Affinity != 0 {
		by = "by rendezvous of the request's prefix: whoever sees the same chooses the same, so the prefix stays in one place"
	}
	if home := t.v.Home - 1; t.v.SessionMS > 0 && home == t.Decision.Endpoint {
		by = "by the request's session, which stays where it is"
	}
	t.line("Near tie: %d endpoints are within %s. It was settled %s.", t.Decision.Near, width, by)
}

func (t *explainer) fallbacks() string {
	var names []string
	for _, f := range t.Decision.Fallbacks {
		if f >= 0 {
			names = append(names, t.name(f))
		}
	}
	return strings.Join(names, ", then ")
}

// String names the standing as explanations print it.
func (a Adapter) String() string {
	names := [...]string{"-", "resident", "waiting", "room", "full", "missing"}
	if a < 0 || int(a) >= len(names) {
		return "adapter " + strconv.Itoa(int(a))
	}
	return names[a]
}

func short(x float32) string { return strconv.FormatFloat(float64(x), 'g', -1, 32) }

// printable keeps what comes from outside from moving a terminal's cursor.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, s)
}

// writeTable aligns columns: the first two and an untitled last one to the left, the others to the right.
func writeTable(b *strings.Builder, rows [][]string) {
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for c, cell := range row {
			widths[c] = max(widths[c], utf8.RuneCountInString(cell))
		}
	}
	for _, row := range rows {
		var line strings.Builder
		for c, cell := range row {
			pad := strings.Repeat(" ", widths[c]-utf8.RuneCountInString(cell))
			if c < 2 || rows[0][c] == "" {
				cell += pad
			} else {
				cell = pad + cell
			}
			line.WriteString(cell + "  ")
		}
		b.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
}
