package scrape

import (
	"bytes"
	"hash/maphash"
	"math"
	"math/bits"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-gateway/sluice/fleet"
)

// What is believed of a value. An engine that says KV use is 37 may mean percent, but then .9 from it would be .9
// percent, and nothing on the page says so: a share above shareSlack counts as absent, and so do negative, infinite and
// absurd values.
const (
	shareSlack = 1.05
	absurd     = 1e15
)

// cell collects the values of one operand while a page is read.
type cell struct {
	operand
	// all has every series; own those of the wanted model and those without a model.
	all, own series
}

// series are values by identity. Of two with one identity the larger counts: for a counter that is the later one, for
// load the one that can't be beaten by reading order.
type series struct {
	keys   []uint64
	values []float64
}

// distinct is how many series of one metric are told apart; a page with more is summed as it stands.
const distinct = 256

func (s *series) add(key uint64, v float64) {
	if len(s.keys) < distinct {
		if i := slices.Index(s.keys, key); i >= 0 {
			s.values[i] = max(s.values[i], v)
			return
		}
	}
	s.keys, s.values = append(s.keys, key), append(s.values, v)
}

func (s *series) reset() { s.keys, s.values = s.keys[:0], s.values[:0] }

func (s *series) value(r rule) float64 {
	if len(s.values) == 0 {
		return math.NaN()
	}
	var total, top float64
	for _, v := range s.values {
		total += v
		top = max(top, v)
	}
	switch r {
	case mean:
		return total / float64(len(s.values))
	case most:
		return top
	}
	return total
}

// target is one wanted metric name and the cells it feeds.
type target struct {
	name  string
	cells []int
}

// step is a way whose operands are cells; b is -1 without a second one.
type step struct {
	op   byte
	a, b int
	// lastA and last are of the page before, for differences.
	lastA, last float64
}

// scanner reads pages of one dialect. It keeps its room from page to page and isn't for concurrent use.
type scanner struct {
	d *dialect
	// targets are sorted by first byte; index says where a first byte begins and ends.
	targets []target
	index   [256][2]uint8
	cells   []cell
	pairs   []pair // labels of the present line
	seed    maphash.Seed
	steps   [columns][]step
	// model, when set, is whose series count on a page with several models.
	model string
	// rank, when set, is whose series count on a page of several data-parallel ranks; those without a rank count for all.
	rank  string
	own   bool
	found int

	loraAt                 float64
	running, queued        []byte // labels of the newest adapter series, in the page
	slots                  float64
	oldRunning, oldQueued  []byte
	resident, waitingNames []string
	adaptersSeen           bool
	known                  [columns]float64
	lastLack               lack
	lastMask               uint32
}

func newScanner(d *dialect) *scanner {
	s := &scanner{d: d, lastMask: math.MaxUint32, seed: maphash.MakeSeed()}
	byName := make(map[string][]int)
	add := func(o operand) int {
		if i := slices.IndexFunc(s.cells, func(c cell) bool { return c.operand == o }); i >= 0 {
			return i
		}
		s.cells = append(s.cells, cell{operand: o})
		i := len(s.cells) - 1
		byName[o.name] = append(byName[o.name], i)
		if o.counter {
			byName[o.name+"_total"] = append(byName[o.name+"_total"], i)
		}
		return i
	}
	for c, ways := range d.ways {
		for _, w := range ways {
			st := step{op: w.op, a: add(w.a), b: -1}
			if w.op != 0 {
				st.b = add(w.b)
			}
			s.steps[c] = append(s.steps[c], st)
		}
	}
	for name, cells := range byName {
		s.targets = append(s.targets, target{name, cells})
	}
	slices.SortFunc(s.targets, func(a, b target) int { return strings.Compare(a.name, b.name) })
	for i, t := range s.targets {
		b := t.name[0]
		if s.index[b][1] == 0 {
			s.index[b][0] = uint8(i)
		}
		s.index[b][1] = uint8(i + 1)
	}
	return s
}

// wanted are the names of all samples that are read, as pages have them.
func (s *scanner) wanted() []string {
	names := make([]string, len(s.targets))
	for i, t := range s.targets {
		names[i] = s.d.prefix + s.d.separator + t.name
	}
	return names
}

// scan reads a page and reports how many samples of its dialect it found. A last line without a line end may be cut in
// the middle of its value, so it doesn't count.
func (s *scanner) scan(page []byte) int {
	for i := range s.cells {
		s.cells[i].all.reset()
		s.cells[i].own.reset()
	}
	s.own, s.found = false, 0
	s.loraAt, s.slots, s.adaptersSeen = math.Inf(-1), math.NaN(), false
	n := len(s.d.prefix)
	for {
		end := bytes.IndexByte(page, '\n')
		if end < 0 {
			break
		}
		if end > n+1 && page[0] == s.d.prefix[0] && (page[n] == ':' || page[n] == '_') && string(page[:n]) == s.d.prefix {
			s.line(page[n+1 : end])
		}
		page = page[end+1:]
	}
	s.settle()
	return s.found
}

// line looks whether a line, less its prefix, is wanted.
func (s *scanner) line(line []byte) {
	in := s.index[line[0]]
	for i := in[0]; i < in[1]; i++ {
		t := &s.targets[i]
		n := len(t.name)
		if len(line) > n && (line[n] == '{' || line[n] == ' ' || line[n] == '\t') && string(line[:n]) == t.name {
			s.sample(t, line[n:])
			return
		}
	}
}

// sample takes the rest of a wanted line: labels, value, and whatever follows the value.
func (s *scanner) sample(t *target, rest []byte) {
	rest, ok := s.labels(rest)
	if !ok {
		return
	}
	v, ok := number(token(rest))
	if !ok {
		return
	}
	if s.rank != "" && s.d.rank != "" {
		if rank := s.label(s.d.rank); len(rank) > 0 && string(rank) != s.rank {
			return
		}
	}
	key, own := s.identity()
	for _, i := range t.cells {
		c := &s.cells[i]
		if c.only[0] != "" && string(s.label(c.only[0])) != c.only[1] {
			continue
		}
		if c.rule == newest {
			s.adapterSeries(v)
			continue
		}
		x := v
		if c.from != "" {
			if x, ok = number(s.label(c.from)); !ok {
				continue
			}
		}
		x, ok = believed(x, c.rule)
		if !ok {
			continue
		}
		s.found++
		c.all.add(key, x)
		if own {
			c.own.add(key, x)
		}
	}
}

// believed says whether a value can be one, and clamps a share that is over one by rounding.
func believed(v float64, r rule) (float64, bool) {
	if !(v >= 0 && v <= absurd) || r == mean && v > shareSlack {
		return 0, false
	}
	if r == mean {
		v = min(v, 1)
	}
	return v, true
}

// identity hashes the labels that tell series apart, whatever their order, and says whether the series counts for the
// wanted model.
func (s *scanner) identity() (key uint64, own bool) {
	own = true
	for i := range s.pairs {
		p := &s.pairs[i]
		if s.model != "" && string(p.name) == s.d.model {
			own = string(p.value) == s.model
			s.own = s.own || own
		}
		if !slices.ContainsFunc(s.d.copies, func(label string) bool { return label == string(p.name) }) {
			key += maphash.Bytes(s.seed, p.name) ^ bits.RotateLeft64(maphash.Bytes(s.seed, p.value), 1)
		}
	}
	return key, own
}

// adapterSeries keeps the newest set of adapters: old label sets stay on the page for ever, and the value is the time
// at which each was last true.
func (s *scanner) adapterSeries(at float64) {
	if math.IsNaN(at) || at < s.loraAt {
		return
	}
	s.found++
	s.adaptersSeen = true
	s.loraAt, s.running, s.queued = at, s.label("running_lora_adapters"), s.label("waiting_lora_adapters")
	s.slots = math.NaN()
	if n, ok := number(s.label("max_lora")); ok && n >= 0 && n <= absurd {
		s.slots = n
	}
}

// settle turns cells into columns.
func (s *scanner) settle() {
	for c := range s.known {
		s.known[c] = math.NaN()
		for i := range s.steps[c] {
			if v := s.evaluate(&s.steps[c][i]); !math.IsNaN(v) {
				s.known[c] = v
				break
			}
		}
	}
	if s.rank != "" {
		for _, c := range s.d.unranked {
			s.known[c] = math.NaN()
		}
	}
	if !math.IsNaN(s.slots) {
		s.known[maxAdapters] = s.slots
	}
	if s.known[kvUse] > 1 {
		s.known[kvUse] = 1
	}
	s.names()
}

func (s *scanner) evaluate(st *step) float64 {
	a := s.operand(st.a)
	if st.b < 0 {
		return a
	}
	b := s.operand(st.b)
	switch st.op {
	case '*':
		a *= b
	case '-':
		a = st.difference(a, b)
	case '/':
		if !(b > 0) {
			return math.NaN()
		}
		a /= b
	}
	if !(a <= absurd) {
		return math.NaN()
	}
	return a
}

// difference is a-b of two counters. A page may be written between the steps of the one and of the other; a difference
// that falls while a does not would look like a restart of the engine, so it keeps its height.
func (st *step) difference(a, b float64) float64 {
	d := max(a-b, 0)
	if a >= st.lastA {
		d = max(d, st.last)
	}
	if !math.IsNaN(a - b) {
		st.lastA, st.last = a, d
	}
	return d
}

func (s *scanner) operand(i int) float64 {
	c := &s.cells[i]
	if s.own {
		return c.own.value(c.rule)
	}
	return c.all.value(c.rule)
}

// names makes the lists of adapters, anew only when the labels changed. An adapter that has waiting requests and is in
// memory is not waiting for a slot.
func (s *scanner) names() {
	if !s.adaptersSeen {
		s.running, s.queued = nil, nil
	}
	if bytes.Equal(s.running, s.oldRunning) && bytes.Equal(s.queued, s.oldQueued) {
		return
	}
	s.oldRunning, s.oldQueued = append(s.oldRunning[:0], s.running...), append(s.oldQueued[:0], s.queued...)
	s.resident = nameList(s.running)
	s.waitingNames = slices.DeleteFunc(nameList(s.queued), func(n string) bool {
		_, in := slices.BinarySearch(s.resident, n)
		return in
	})
}

// nameList is a label's comma list as a sorted set.
func nameList(list []byte) []string {
	var names []string
	for n := range strings.SplitSeq(unescape(list), ",") {
		if n = strings.TrimSpace(n); n != "" {
			names = append(names, n)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func unescape(b []byte) string {
	if !bytes.ContainsRune(b, '\\') {
		return string(b)
	}
	return strings.NewReplacer(`\\`, `\`, `\"`, `"`, `\n`, "\n").Replace(string(b))
}

// reading is what the last scanned page says. capacity is the size of the KV cache where only asking tells it, NaN
// otherwise. The lists of names are shared with later readings and must not be written to; so is missing.
func (s *scanner) reading(capacity float64) (fleet.Reading, lack) {
	k := &s.known
	if math.IsNaN(k[kvTokens]) {
		k[kvTokens] = capacity
	}
	if math.IsNaN(k[kvUse]) && k[kvTokens] > 0 {
		k[kvUse] = min(k[kvUsed]/k[kvTokens], 1)
	}
	var mask uint32
	for _, c := range required {
		if math.IsNaN(k[c]) {
			mask |= 1 << c
		}
	}
	if mask != s.lastMask {
		s.lastMask, s.lastLack = mask, s.d.missing(k)
	}
	return fleet.Reading{Waiting: k[waiting], Running: k[running], KVUse: k[kvUse], KVTokens: k[kvTokens], MaxAdapters: k[maxAdapters],
		Resident: s.resident, WaitingAdapters: s.waitingNames, PrefillSeconds: k[prefillSeconds], PrefillTokens: k[prefillTokens],
		DecodeSeconds: k[decodeSeconds], DecodeTokens: k[decodeTokens], CachedTokens: k[cachedTokens],
		Firsts: k[firsts], FirstSeconds: k[firstSeconds], Finished: k[finished], FinishedPrompt: k[finishedPrompt], FinishedOutput: k[finishedOutput],
		Progress: k[progress]}, s.lastLack
}

// pair is one label: its name, and its value as it stands between the quotes.
type pair struct{ name, value []byte }

// labels takes "{…}" off, filling the scanner's pairs; without a brace there are none.
func (s *scanner) labels(b []byte) (rest []byte, ok bool) {
	s.pairs = s.pairs[:0]
	b = trimLeft(b)
	if len(b) == 0 || b[0] != '{' {
		return b, len(b) > 0
	}
	b = b[1:]
	for {
		for len(b) > 0 && (b[0] == ' ' || b[0] == '\t' || b[0] == ',') {
			b = b[1:]
		}
		if len(b) == 0 {
			return nil, false
		}
		if b[0] == '}' {
			return b[1:], true
		}
		eq := bytes.IndexByte(b, '=')
		if eq < 0 {
			return nil, false
		}
		name := bytes.TrimRight(b[:eq], " \t")
		b = trimLeft(b[eq+1:])
		if len(b) == 0 || b[0] != '"' {
			return nil, false
		}
		end := closingQuote(b)
		if end < 0 {
			return nil, false
		}
		s.pairs = append(s.pairs, pair{name, b[1:end]})
		b = b[end+1:]
	}
}

// closingQuote finds the quote that ends the value which b[0] begins.
func closingQuote(b []byte) int {
	for i := 1; i < len(b); {
		end := bytes.IndexByte(b[i:], '"')
		if end < 0 {
			return -1
		}
		escape := bytes.IndexByte(b[i:i+end], '\\')
		if escape < 0 {
			return i + end
		}
		i += escape + 2
	}
	return -1
}

// label is the value of a label of the present line, nil if it has none of that name.
func (s *scanner) label(want string) []byte {
	for i := range s.pairs {
		if string(s.pairs[i].name) == want {
			return s.pairs[i].value
		}
	}
	return nil
}

func trimLeft(b []byte) []byte {
	for len(b) > 0 && (b[0] == ' ' || b[0] == '\t') {
		b = b[1:]
	}
	return b
}

// token is the first word; what follows a value is a time or an exemplar and doesn't matter.
func token(b []byte) []byte {
	b = trimLeft(b)
	for i, c := range b {
		if c == ' ' || c == '\t' || c == '\r' {
			return b[:i]
		}
	}
	return b
}

// number parses a sample's value. What only Go's own syntax allows is not a number on a page.
func number(b []byte) (float64, bool) {
	const longest = 32 // what string(b) holds without allocating, and more than any float64 needs
	if len(b) == 0 || len(b) > longest || bytes.ContainsAny(b, "_xXpP") {
		return 0, false
	}
	v, err := strconv.ParseFloat(string(b), 64)
	return v, err == nil
}

// detect is the dialect that a page speaks most of, nil if it speaks none.
func detect(page []byte) *dialect {
	var best *dialect
	most := 0
	for i := range dialects {
		if n := newScanner(&dialects[i]).scan(page); n > most {
			best, most = &dialects[i], n
		}
	}
	return best
}

// dialectOf is the row of an engine's name, nil if there is none.
func dialectOf(engine string) *dialect {
	for i := range dialects {
		if dialects[i].engine == engine {
			return &dialects[i]
		}
	}
	return nil
}
