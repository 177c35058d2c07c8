package route

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// Record is one decision with everything it was made from: one line of JSON, what replay reads and what a bug report
// attaches. It holds no prompt text, only its size and a hash of its beginning.
type Record struct {
	// Format is recordFormat where this version wrote it. Records of other formats can't be read: what a decision is
	// made from has changed.
	Format int `json:"format"`
	// ID is the request's x-request-id.
	ID string `json:"id"`
	// Time is the wall-clock time of the decision, RFC 3339, for people.
	Time string `json:"time"`
	// Pool names the pool that decided.
	Pool string `json:"pool"`
	// Profile names the profile, with its weights when it is a weights profile.
	Profile string             `json:"profile"`
	Weights map[string]float64 `json:"weights,omitzero"`
	// View is what it was made from.
	View View `json:"view"`
	// Decision is what was decided then.
	Decision Decision `json:"decision"`
	// Cached is how many tokens of the prompt the chosen endpoint was expected to find in its cache; CachedExact says
	// that its own events and the prompt's tokens told that, and it isn't an estimate.
	Cached      int  `json:"cached,omitempty"`
	CachedExact bool `json:"cachedExact,omitempty"`
	// Objective is the configured one that the request named, empty for none, and Priority what it says. They don't enter the
	// decision.
	Objective string `json:"objective,omitempty"`
	Priority  int64  `json:"priority,omitempty"`
}

// recordFormat grows when columns change their meaning, or a rule reads new ones. 2: rates are shapes with factors,
// Head is milliseconds; before, records had no format. 3: Arrivals and Occupied. Columns that are absent where there is
// nothing to say, as Outside, don't count: older records are decided as they were.
const recordFormat = 3

// The names of profiles.
const (
	profileLatency    = "latency"
	profileWeights    = "weights"
	profileRoundRobin = "round-robin"
)

// Named makes the profile called name: latency, weights or round-robin. Weights are used by the profile "weights" only;
// nil means DefaultWeights.
func Named(name string, weights map[string]float64) (*Profile, error) {
	switch name {
	case profileLatency:
		return Latency(), nil
	case profileWeights:
		if weights == nil {
			weights = DefaultWeights()
		}
		return Weights(weights)
	case profileRoundRobin:
		return RoundRobin(), nil
	}
	return nil, fmt.Errorf("cannot use profile %q: known are %s", name, strings.Join(ProfileNames(), ", "))
}

// ProfileNames lists the names that Named accepts.
func ProfileNames() []string { return []string{profileLatency, profileWeights, profileRoundRobin} }

// Weights returns what Named needs besides the name to make this profile again: the weights above 0 of a weights
// profile, not nil even when there are none; nil for other profiles.
func (p *Profile) Weights() map[string]float64 {
	if p.Name != profileWeights {
		return nil
	}
	weights := make(map[string]float64, len(p.Terms))
	for _, t := range p.Terms {
		w, err := strconv.ParseFloat(short(t.Weight), 64) // .1 rather than .10000000149011612
		if err != nil {
			w = float64(t.Weight)
		}
		weights[t.Name] = w
	}
	return weights
}

// Record keeps d, which p made of v, with all it was made from; the caller adds ID, Time and Pool. v's columns become
// the record's: what goes on being used is handed in as a Clone.
func (p *Profile) Record(v *View, d Decision) Record {
	return Record{Format: recordFormat, Profile: p.Name, Weights: p.Weights(), View: *v, Decision: d}
}

// OwnProfile makes the profile that made the decision.
func (r *Record) OwnProfile() (*Profile, error) { return Named(r.Profile, r.Weights) }

// EachRecord calls use for each record in r, one JSON object a line, and damaged with the number of each line that
// holds none or that use could do nothing with. Empty lines are passed over. The error is r's.
func EachRecord(r io.Reader, use func(*Record) error, damaged func(line int, err error)) error {
	in := bufio.NewReader(r)
	for n := 1; ; n++ {
		line, err := in.ReadBytes('\n')
		if len(bytes.TrimSpace(line)) > 0 {
			record, bad := readRecord(line)
			if bad == nil {
				bad = use(record)
			}
			if bad != nil {
				damaged(n, bad)
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("cannot read records after line %d: %w", n, err)
		}
	}
}

// readRecord reads one line of a record file and checks that all its columns are of one length, so that a damaged line
// is an error and never a panic later.
func readRecord(line []byte) (*Record, error) {
	r := new(Record)
	if err := json.Unmarshal(line, r); err != nil {
		return nil, fmt.Errorf("cannot read record: %w", err)
	}
	if r.Format != recordFormat {
		return nil, fmt.Errorf("cannot use record %q: its format is %d and this version reads %d: use the version that wrote it", r.ID, r.Format, recordFormat)
	}
	if s := r.View.Snapshot; s != nil {
		s.Hashes = make([]uint64, s.Len())
		for i, name := range s.Names {
			s.Hashes[i] = HashName(name)
		}
	}
	if err := r.View.Check(); err != nil {
		return nil, fmt.Errorf("cannot use record %q: %w", r.ID, err)
	}
	for _, i := range append([]int32{r.Decision.Endpoint}, r.Decision.Fallbacks[:]...) {
		if i < -1 || int(i) >= r.View.Snapshot.Len() {
			return nil, fmt.Errorf("cannot use record %q: its decision names endpoint %d of %d", r.ID, i, r.View.Snapshot.Len())
		}
	}
	return r, nil
}

// Check reports the first column whose length differs from the number of endpoints, or kind that has no rate. Decide
// does not look and may panic on such a View; whoever builds Views calls Check in tests.
func (v *View) Check() error {
	s := v.Snapshot
	if s == nil {
		return fmt.Errorf("it has no snapshot")
	}
	n := s.Len()
	required := []struct {
		name string
		n    int
	}{
		{"hashes", len(s.Hashes)}, {"states", len(s.States)}, {"why", len(s.Why)}, {"kinds", len(s.Kinds)}, {"readAt", len(s.ReadAt)},
		{"waiting", len(s.Waiting)}, {"running", len(s.Running)}, {"kvUse", len(s.KVUse)}, {"kvTokens", len(s.KVTokens)},
	}
	optional := []struct {
		name string
		n    int
		set  bool
	}{
		{"inFlight", len(v.InFlight), v.InFlight != nil}, {"prefilling", len(v.Prefilling), v.Prefilling != nil},
		{"backlog", len(v.Backlog), v.Backlog != nil}, {"work", len(v.Work), v.Work != nil}, {"context", len(v.Context), v.Context != nil},
		{"head", len(v.Head), v.Head != nil},
		{"headSince", len(v.HeadSince), v.HeadSince != nil}, {"held", len(v.Held), v.Held != nil},
		{"stepEnd", len(v.StepEnd), v.StepEnd != nil},
		{"sentSince", len(v.SentSince), v.SentSince != nil}, {"lastCold", len(v.LastCold), v.LastCold != nil},
		{"ejectedUntil", len(v.EjectedUntil), v.EjectedUntil != nil}, {"match", len(v.Match), v.Match != nil}, {"cached", len(v.Cached), v.Cached != nil},
		{"lastByte", len(v.LastByte), v.LastByte != nil}, {"errors", len(v.Errors), v.Errors != nil},
		{"arrivals", len(v.Arrivals), v.Arrivals != nil}, {"occupied", len(v.Occupied), v.Occupied != nil},
		{"slotIdle", len(v.SlotIdle), v.SlotIdle != nil}, {"slotAhead", len(v.SlotAhead), v.SlotAhead != nil}, {"loadEnd", len(v.LoadEnd), v.LoadEnd != nil},
		{"expected", len(v.Expected), v.Expected != nil}, {"known", len(v.Known), v.Expected != nil || v.Known != nil},
		{"adapters", len(v.Adapters), v.Adapters != nil}, {"tried", len(v.Tried), v.Tried != nil},
		{"outside", len(v.Outside), v.Outside != nil}, {"pods", len(s.Pods), s.Pods != nil},
	}
	for _, c := range required {
		if c.n != n {
			return fmt.Errorf("column %s has %d values for %d endpoints", c.name, c.n, n)
		}
	}
	for _, c := range optional {
		if c.n != n && c.set {
			return fmt.Errorf("column %s has %d values for %d endpoints", c.name, c.n, n)
		}
	}
	for i, k := range s.Kinds {
		if k < 0 || int(k) >= len(v.Rates) {
			return fmt.Errorf("endpoint %q has kind %d of %d rates", s.Names[i], k, len(v.Rates))
		}
	}
	return nil
}

// Clone copies the View so that it can be kept after the pool goes on; the Snapshot is shared, since it never changes.
func (v *View) Clone() View {
	c := *v
	c.keep, c.before, c.all, c.score, c.part, c.total, c.zero = nil, nil, nil, nil, nil, nil, nil
	c.waiting, c.running, c.use, c.masked = nil, nil, nil, [3]Column{}
	for _, col := range []*Column{&c.InFlight, &c.Prefilling, &c.Backlog, &c.Work, &c.Head, &c.Held, &c.Context, &c.SentSince, &c.Match, &c.Cached,
		&c.Errors, &c.Arrivals, &c.Occupied, &c.SlotIdle, &c.SlotAhead, &c.Expected} {
		*col = slices.Clone(*col)
	}
	for _, col := range []*[]float64{&c.HeadSince, &c.StepEnd, &c.LastCold, &c.EjectedUntil, &c.LastByte, &c.LoadEnd} {
		*col = slices.Clone(*col)
	}
	c.Adapters, c.Tried, c.Rates, c.Known = slices.Clone(c.Adapters), slices.Clone(c.Tried), slices.Clone(c.Rates), slices.Clone(c.Known)
	c.Outside = slices.Clone(c.Outside)
	return c
}
