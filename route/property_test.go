package route

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// views is how many random views each property is tried on.
const views = 2000

// wildView makes a View of a few endpoints with everything that can be odd about one: endpoints that may not serve,
// readings that are stale, absent, or one of bad, and bookkeeping columns that are nil.
func wildView(seed uint64, bad ...float32) *View {
	r := rand.New(rand.NewPCG(seed, 2))
	n := 1 + r.IntN(12)
	v := randomView(n, seed)
	s := v.Snapshot
	if seed%2 == 0 { // so that kvWait has a say
		for i := range s.KVTokens {
			s.KVTokens[i] /= 8
		}
	}
	if len(bad) > 0 {
		for _, c := range []Column{s.Waiting, s.Running, s.KVUse, s.KVTokens} {
			for i := range c {
				if r.IntN(4) == 0 {
					c[i] = bad[r.IntN(len(bad))]
				}
			}
		}
	}
	for i := range n {
		if r.IntN(8) == 0 {
			s.States[i] = State(r.IntN(8))
			s.Why[i] = "a reason\x1b[2J"
		}
		if r.IntN(3) == 0 {
			s.ReadAt[i] = []float64{Never, 90}[r.IntN(2)]
		}
		v.Tried[i] = r.IntN(10) == 0
		v.Outside = append(v.Outside, r.IntN(20) == 0)
		v.LastByte = append(v.LastByte, []float64{0, 99}[r.IntN(2)])
		v.Errors = append(v.Errors, []float32{0, 0, .1, 1}[r.IntN(4)])
		v.EjectedUntil[i] = []float64{0, 0, 101}[r.IntN(3)]
		if r.IntN(10) == 0 {
			v.Adapters[i] = AdapterMissing
		}
		if r.IntN(4) == 0 {
			v.LastCold[i] = 0
		}
	}
	for _, c := range []*Column{&v.InFlight, &v.Prefilling, &v.Backlog, &v.Work, &v.Head, &v.Held, &v.Context, &v.SentSince, &v.Match} {
		if r.IntN(10) == 0 {
			*c = nil
		}
	}
	if r.IntN(10) == 0 {
		v.HeadSince, v.StepEnd, v.LastCold, v.EjectedUntil, v.Adapters, v.Tried = nil, nil, nil, nil, nil, nil
		v.Outside = nil
	}
	v.Home, v.SessionMS = int32(r.IntN(n+1)), 50
	if r.IntN(2) == 0 {
		v.Request.Affinity = 0
	}
	wildTraffic(v, r)
	return v
}

// wildTraffic adds what a pool that is in use knows besides: who else comes, what copies have been missed, adapters'
// slots and loads. A third of the views have none of it.
func wildTraffic(v *View, r *rand.Rand) {
	if r.IntN(3) == 0 {
		return
	}
	for range v.Snapshot.Len() {
		v.Arrivals = append(v.Arrivals, []float32{0, .5, 20, 5000, nan()}[r.IntN(5)])
		v.Occupied = append(v.Occupied, []float32{0, .5, 1, 1.01, nan()}[r.IntN(5)])
		v.Cached = append(v.Cached, float32(r.IntN(5000)))
		v.SlotIdle = append(v.SlotIdle, []float32{0, 30, 1e6}[r.IntN(3)])
		v.SlotAhead = append(v.SlotAhead, float32(r.IntN(3)))
		v.LoadEnd = append(v.LoadEnd, []float64{0, v.Now + 1}[r.IntN(2)])
	}
	v.Busy, v.Alone = []float32{0, .9, 1}[r.IntN(3)], []float32{0, .5, 1}[r.IntN(3)]
	v.Request.Missed, v.Guard = []float32{0, 100, 1e6}[r.IntN(3)], r.IntN(8) == 0
}

var badReadings = []float32{nan(), float32(math.Inf(1)), float32(math.Inf(-1)), -1, 37, math.MaxFloat32, -math.MaxFloat32, 1e29}

func profiles() []*Profile { return []*Profile{Latency(), allScorers(), RoundRobin()} }

func names(v *View, d Decision) []string {
	var names []string
	for _, i := range append([]int32{d.Endpoint}, d.Fallbacks[:]...) {
		if i >= 0 {
			names = append(names, v.Snapshot.Names[i])
		}
	}
	return names
}

// Z08: whatever was scraped, totals are finite, the same View gives the same Decision, and Explain gives it too.
func TestTotalsAreFinite(t *testing.T) {
	for seed := range uint64(views) {
		v := wildView(seed, badReadings...)
		for _, p := range profiles() {
			if err := v.Check(); err != nil {
				t.Fatal(err)
			}
			d := p.Decide(v)
			e := p.Explain(v)
			if missed := float64(d.Missed); !(missed >= 0) || math.IsInf(missed, 0) {
				t.Fatalf("seed %d, %s: missed is %v", seed, p.Name, missed)
			}
			if e.Decision != d {
				t.Fatalf("seed %d, %s: Explain decides %+v, Decide %+v", seed, p.Name, e.Decision, d)
			}
			for i, kept := range e.Kept {
				if total := float64(e.Totals[i]); kept && (math.IsNaN(total) || math.IsInf(total, 0)) {
					t.Fatalf("seed %d, %s: total of row %d is %v", seed, p.Name, i, total)
				}
			}
			if (d.Verdict == Send) != slices.Contains(e.Kept, true) || d.Endpoint >= 0 && !e.Kept[d.Endpoint] {
				t.Fatalf("seed %d, %s: got %+v of kept %v", seed, p.Name, d, e.Kept)
			}
		}
	}
}

// Z08: an endpoint with an impossible reading is, by that reading, neither better than the best nor worse than the
// worst of those that are read well.
func TestImpossibleReadingIsNeitherBestNorWorst(t *testing.T) {
	for _, bad := range badReadings[:7] {
		for _, scorer := range []string{ScorerKVCache, ScorerQueue, ScorerRunningRequests} {
			p, err := Weights(map[string]float64{scorer: 1})
			if err != nil {
				t.Fatal(err)
			}
			v := randomView(9, 3)
			v.SentSince, v.InFlight = nil, make(Column, 9)
			if scorer == ScorerKVCache {
				v.Snapshot.KVUse[4] = bad
			}
			if bad != 37 && scorer == ScorerQueue {
				v.Snapshot.Waiting[4] = bad
			}
			e := p.Explain(v)
			others := append(slices.Clone(e.Totals[:4]), e.Totals[5:]...)
			if got := e.Totals[4]; got > slices.Max(others) || got < slices.Min(others) {
				t.Errorf("%s of an endpoint that says %v: got %v, want it among %v", scorer, bad, got, others)
			}
		}
	}
}

// Z08: an infinite reading is one that is not known.
func TestInfiniteReadingIsUnknown(t *testing.T) {
	for seed := range uint64(views) {
		v := wildView(seed, float32(math.Inf(1)), float32(math.Inf(-1)))
		w, s := v.Clone(), *v.Snapshot
		w.Snapshot = &s
		for _, c := range []*Column{&s.Waiting, &s.Running, &s.KVUse, &s.KVTokens} {
			*c = slices.Clone(*c)
			for i, x := range *c {
				if math.IsInf(float64(x), 0) {
					(*c)[i] = nan()
				}
			}
		}
		for _, p := range profiles() {
			want, got := p.Explain(&w), p.Explain(v)
			for i, kept := range want.Kept {
				if kept && got.Totals[i] != want.Totals[i] {
					t.Fatalf("seed %d, %s: total of row %d is %v, without infinities %v", seed, p.Name, i, got.Totals[i], want.Totals[i])
				}
			}
		}
	}
}

// The order of rows decides nothing, except whose turn it is in round robin.
func TestRowOrderDecidesNothing(t *testing.T) {
	for seed := range uint64(views) {
		v := wildView(seed, badReadings...)
		w := permuted(v, seed)
		for _, p := range []*Profile{Latency(), allScorers()} {
			got, want := names(w, p.Decide(w)), names(v, p.Decide(v))
			if diff := cmp.Diff(want, got); diff != "" {
				t.Fatalf("seed %d, %s: rows in another order (-want +got):\n%s", seed, p.Name, diff)
			}
		}
	}
}

// permuted copies v with its rows in another order.
func permuted(v *View, seed uint64) *View {
	order := rand.New(rand.NewPCG(seed, 3)).Perm(v.Snapshot.Len())
	w := v.Clone()
	s := *v.Snapshot
	w.Snapshot = &s
	s.Names, s.Hashes, s.States, s.Why = reorder(s.Names, order), reorder(s.Hashes, order), reorder(s.States, order), reorder(s.Why, order)
	s.Kinds, s.ReadAt = reorder(s.Kinds, order), reorder(s.ReadAt, order)
	for _, c := range []*Column{&s.Waiting, &s.Running, &s.KVUse, &s.KVTokens,
		&w.InFlight, &w.Prefilling, &w.Backlog, &w.Work, &w.Head, &w.Held, &w.Context, &w.SentSince, &w.Match, &w.Errors,
		&w.Arrivals, &w.Occupied, &w.Cached, &w.SlotIdle, &w.SlotAhead} {
		*c = reorder(*c, order)
	}
	for _, c := range []*[]float64{&w.HeadSince, &w.StepEnd, &w.LastCold, &w.EjectedUntil, &w.LastByte, &w.LoadEnd} {
		*c = reorder(*c, order)
	}
	for to, from := range order {
		if int(v.Home) == from+1 {
			w.Home = int32(to + 1)
		}
	}
	w.Adapters, w.Tried, w.Outside = reorder(w.Adapters, order), reorder(w.Tried, order), reorder(w.Outside, order)
	return &w
}

func reorder[S ~[]E, E any](column S, order []int) S {
	if column == nil {
		return nil
	}
	out := make(S, len(column))
	for to, from := range order {
		out[to] = column[from]
	}
	return out
}

func TestDoubledWeightsDecideTheSame(t *testing.T) {
	for seed := range uint64(views) {
		r := rand.New(rand.NewPCG(seed, 4))
		once, twice := map[string]float64{}, map[string]float64{}
		for _, name := range ScorerNames() {
			once[name] = float64(float32(r.IntN(4)) * r.Float32())
			twice[name] = 2 * once[name]
		}
		p, err := Weights(once)
		if err != nil {
			t.Fatal(err)
		}
		q, err := Weights(twice)
		if err != nil {
			t.Fatal(err)
		}
		v := wildView(seed, badReadings...)
		want, got := p.Decide(v), q.Decide(v)
		want.Total *= 2
		if got != want {
			t.Fatalf("seed %d: weights %v give %+v, twice those %+v", seed, once, want, got)
		}
	}
}

// What counts as a tie does not depend on how large the weights are.
func TestTiesScaleWithWeights(t *testing.T) {
	v := evenView(2)
	for _, weight := range []float64{.001, 1, 1000} {
		p, err := Weights(map[string]float64{ScorerKVCache: weight})
		if err != nil {
			t.Fatal(err)
		}
		for use, near := range map[float32]int32{1e-3: 1, 1e-6: 2} {
			v.Snapshot.KVUse[1] = use
			if d := p.Decide(v); d.Near != near {
				t.Errorf("weight %v, KV use 0 and %v: %d near ties, want %d", weight, use, d.Near, near)
			}
		}
	}
}

// A better reading of one endpoint never makes its own total worse. Others' totals do change in relative scorers
// (queue, runningRequests, predictedLatency), and may change places among themselves.
func TestBetterReadingNeverHurts(t *testing.T) {
	better := map[string]func(v *View, i int){
		"waiting": func(v *View, i int) { v.Snapshot.Waiting[i] *= .7 },
		"running": func(v *View, i int) { v.Snapshot.Running[i] *= .7 },
		"kvUse":   func(v *View, i int) { v.Snapshot.KVUse[i] *= .7 },
		"work":    func(v *View, i int) { v.Work[i] = v.Head[i] + .7*(v.Work[i]-v.Head[i]) },
		"context": func(v *View, i int) { v.Context[i] *= .7 },
		"held":    func(v *View, i int) { v.Held[i] *= .7 },
		"match":   func(v *View, i int) { v.Match[i] = min(v.Match[i]+3, float32(v.Request.Units)) },
		"adapter": func(v *View, i int) { v.Adapters[i] = AdapterResident },
	}
	weights := allScorers().Weights()
	delete(weights, ScorerLRU) // a match anywhere switches it off: it is about cold requests only
	all, err := Weights(weights)
	if err != nil {
		t.Fatal(err)
	}
	for seed := range uint64(views / 4) {
		for what, improve := range better {
			for _, p := range []*Profile{Latency(), all} {
				v := randomView(6, seed)
				for i := range v.Snapshot.Names {
					v.Snapshot.KVTokens[i] /= 4 // so that kvWait has a say
				}
				i := int(seed % 6)
				before := p.Explain(v).Totals[i]
				improve(v, i)
				after := p.Explain(v).Totals[i]
				if rounding := 1e-5 * max(before, -before); p.sign()*after > p.sign()*before+rounding {
					t.Fatalf("seed %d, %s: better %s changes the total from %v to %v", seed, p.Name, what, before, after)
				}
			}
		}
	}
}

// A record gives back every column, NaN included, and replays to the identical Decision under its own profile, even
// where infinite readings became unknown on the way.
func TestRecordsRoundTrip(t *testing.T) {
	for seed := range uint64(views / 20) {
		for _, bad := range [][]float32{{nan()}, badReadings} {
			v := wildView(seed, bad...)
			for _, p := range append(profiles(), randomWeights(seed)) {
				d := p.Decide(v)
				record := p.Record(v, d)
				line, err := json.Marshal(record)
				if err != nil {
					t.Fatal(err)
				}
				back, err := readRecord(line)
				if err != nil {
					t.Fatalf("seed %d: %v", seed, err)
				}
				if diff := cmp.Diff(&record, back, cmpopts.EquateNaNs(), cmpopts.IgnoreUnexported(View{})); len(bad) == 1 && diff != "" {
					t.Fatalf("seed %d (-written +read):\n%s", seed, diff)
				}
				own, err := back.OwnProfile()
				if err != nil {
					t.Fatal(err)
				}
				if got := own.Decide(&back.View); got != d {
					t.Fatalf("seed %d, %s: replay gives %+v, want %+v", seed, p.Name, got, d)
				}
			}
		}
	}
}

// randomWeights makes a weights profile with fractions, and now and then one without any term.
func randomWeights(seed uint64) *Profile {
	r := rand.New(rand.NewPCG(seed, 5))
	weights := map[string]float64{}
	if seed%10 != 0 {
		for _, name := range ScorerNames() {
			weights[name] = r.Float64() * 3
		}
	}
	p, err := Weights(weights)
	if err != nil {
		panic(err)
	}
	return p
}

// recordFile is 20 decisions by latency, one a line, and a line that was cut off.
func recordFile(t *testing.T) []byte {
	var file bytes.Buffer
	for seed := range uint64(20) {
		v, p := randomView(4, seed), Latency()
		record := p.Record(v, p.Decide(v))
		record.ID = fmt.Sprintf("request-%d", seed)
		line, err := json.Marshal(record)
		if err != nil {
			t.Fatal(err)
		}
		file.Write(append(line, '\n'))
	}
	file.WriteString("{\"id\":\"cut off")
	return file.Bytes()
}

func TestReplay(t *testing.T) {
	file := recordFile(t)
	own, err := Replay(bytes.NewReader(file), nil)
	if err != nil {
		t.Fatal(err)
	}
	if own.Records != 20 || own.Differ != 0 || own.Drifted != 0 || own.Unreadable != 1 {
		t.Errorf("under their own profiles: got %+v, want 20 records, none that differs, 1 unreadable", own)
	}
	other, err := Replay(bytes.NewReader(file), RoundRobin())
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	if err := other.WriteText(&text); err != nil {
		t.Fatal(err)
	}
	const want = `20 records decided again under profile round-robin: 10 differ, 0 have no endpoint
1 lines skipped; the first: cannot replay line 21: cannot read record: unexpected end of JSON input

request    was                       is  recorded total  its total here   total of is
request-0  10.0.0.2:8000  10.0.0.0:8000         516.615    2.000 places  0.000 places
request-1  10.0.0.2:8000  10.0.0.0:8000         384.591    2.000 places  0.000 places
request-3  10.0.0.2:8000  10.0.0.0:8000         367.838    2.000 places  0.000 places
request-4  10.0.0.2:8000  10.0.0.0:8000         570.421    2.000 places  0.000 places
request-6  10.0.0.2:8000  10.0.0.0:8000         232.927    2.000 places  0.000 places
and 5 more
`
	if diff := cmp.Diff(want, text.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// A damaged record is an error, and what is read can be decided and explained under every profile.
func FuzzReadRecord(f *testing.F) {
	for seed := range uint64(6) {
		v := wildView(seed, badReadings...)
		for _, p := range profiles() {
			line, err := json.Marshal(p.Record(v, p.Decide(v)))
			if err != nil {
				f.Fatal(err)
			}
			f.Add(line)
		}
	}
	f.Add([]byte(`{"format":3,"view":{"snapshot":{"names":[],"states":[]}},"decision":{"endpoint":-1,"fallbacks":[-1,-1]}}`))
	f.Add([]byte(`{"format":3,"view":{"snapshot":{"names":["a"],"kinds":[7]}}}`))
	f.Add([]byte(`{"format":3,"decision":{"endpoint":9}}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		r, err := readRecord(line)
		if err != nil {
			return
		}
		for _, p := range profiles() {
			d := p.Decide(&r.View)
			e := p.Explain(&r.View)
			if e.Decision != d {
				t.Fatalf("Explain decides %+v, Decide %+v", e.Decision, d)
			}
			if err := e.WriteText(&strings.Builder{}, &r.View); err != nil {
				t.Fatal(err)
			}
			p.Reason(&r.View, d)
			for i, kept := range e.Kept {
				if total := float64(e.Totals[i]); kept && (math.IsNaN(total) || math.IsInf(total, 0)) {
					t.Fatalf("%s: total of row %d is %v", p.Name, i, total)
				}
			}
		}
		if _, err := Replay(bytes.NewReader(line), nil); err != nil {
			t.Fatal(err)
		}
	})
}
