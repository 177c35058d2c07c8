package route

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// evenView is n endpoints alike, of which nothing is known to be wrong.
func evenView(n int) *View {
	v := randomView(n, 1)
	s := v.Snapshot
	for _, c := range []Column{s.Waiting, s.Running, s.KVUse, v.InFlight, v.Prefilling, v.Backlog, v.Work, v.Head, v.Held, v.Context, v.SentSince, v.Match} {
		clear(c)
	}
	for i := range n {
		s.KVTokens[i], s.Kinds[i], v.Adapters[i] = 400_000, 0, AdapterNone
		v.LastCold[i], v.StepEnd[i], s.ReadAt[i] = 0, 0, 99.5
	}
	v.Request.Affinity, v.Request.Adapter = 0, ""
	return v
}

// send books a decision as the fleet does: the request is in flight and has not reached its first token.
func send(v *View, i int32) {
	tokens := v.Request.uncached(v.Match[i])
	v.InFlight[i]++
	v.Prefilling[i]++
	v.SentSince[i]++
	work := v.Rates[v.Snapshot.Kinds[i]].Compute(tokens, 0)
	v.Backlog[i] += tokens
	v.Work[i] += work
	v.Held[i] += tokens + v.Request.OutputTokens
	v.HeadSince[i] = v.Now
	v.Head[i] = max(v.Head[i], work)
}

// wantEven fails when a count is further from its share than five standard deviations.
func wantEven(t *testing.T, what string, counts []int) {
	t.Helper()
	total := 0
	for _, c := range counts {
		total += c
	}
	share := float64(total) / float64(len(counts))
	for i, c := range counts {
		if off := float64(c) - share; off*off > 25*share {
			t.Errorf("%s: endpoint %d got %d of %d, want about %.0f", what, i, c, total, share)
		}
	}
}

// E01: ties don't go to the first. E04: seeds that are only a counter, or all of one tick, spread as well as random
// ones.
// E08: at one request at a time every endpoint is used.
func TestTiesSpread(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	seeds := map[string]func(k uint64) uint64{
		"counter":  func(k uint64) uint64 { return k },
		"high":     func(k uint64) uint64 { return k << 40 },
		"one tick": func(k uint64) uint64 { return 1_700_000_000_000_000_000 + k%1000 },
		"random":   func(uint64) uint64 { return r.Uint64() },
	}
	for what, seed := range seeds {
		for _, p := range []*Profile{Latency(), allScorers()} {
			for _, n := range []int{2, 4, 16} {
				v, counts := evenView(n), make([]int, n)
				for k := range uint64(1000) {
					v.Seed = seed(k)
					d := p.Decide(v)
					if d.Near != int32(n) {
						t.Fatalf("%s: %d of %d alike endpoints are near ties", p.Name, d.Near, n)
					}
					counts[d.Endpoint]++
				}
				wantEven(t, fmt.Sprintf("%s, %s seeds, %d endpoints", p.Name, what, n), counts)
			}
		}
	}
}

// E01: prefixes that nobody holds spread over endpoints too, each always to the same one, whoever decides.
func TestNewPrefixesSpreadAndStay(t *testing.T) {
	p := Latency()
	v, counts := evenView(5), make([]int, 5)
	for k := range uint64(1000) {
		v.Request.Affinity, v.Seed = k+1, 1
		here := p.Decide(v)
		v.Seed = 2
		if there := p.Decide(v); there != here {
			t.Fatalf("affinity %d: replicas choose %d and %d", k+1, here.Endpoint, there.Endpoint)
		}
		counts[here.Endpoint]++
	}
	wantEven(t, "prefixes", counts)
}

// E36: 256 unrelated prompts at once occupy all endpoints alike. E05, E45: so does a burst shorter than a scrape, of
// which no reading tells: what was sent is booked. Endpoints that fail leave their share to all others.
func TestBurstsSpread(t *testing.T) {
	queue, err := Weights(map[string]float64{ScorerQueue: 2, ScorerRunningRequests: 1})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []*Profile{Latency(), queue} {
		v, counts := evenView(5), make([]int, 5)
		for k := range uint64(256) {
			v.Seed = k
			d := p.Decide(v)
			send(v, d.Endpoint)
			counts[d.Endpoint]++
		}
		if slices.Max(counts)-slices.Min(counts) > 8 {
			t.Errorf("%s: a burst of 256 goes to 5 endpoints as %v, want within 8 of each other", p.Name, counts)
		}
	}
	v, counts := evenView(6), make([]int, 6)
	for k := range uint64(3000) {
		v.Seed = k
		if d := Latency().Decide(v); d.Endpoint == 2 {
			counts[d.Fallbacks[0]]++
		}
	}
	wantEven(t, "first fallbacks of endpoint 2", append(counts[:2:2], counts[3:]...))
}

// E07: a miss goes to the idle endpoint, not to the one that many heavy prompts made look empty of prefixes.
// E43: a holder of the shared prompt does not hoard it: the queue before it costs more than computing it elsewhere.
func TestLoadBeatsCache(t *testing.T) {
	for _, p := range []*Profile{Latency(), allScorers()} {
		v := evenView(2)
		v.Snapshot.Running[0], v.Snapshot.Waiting[0], v.Snapshot.KVUse[0] = 60, 8, .9
		for seed := range uint64(50) {
			v.Seed = seed
			if d := p.Decide(v); d.Endpoint != 1 {
				t.Fatalf("%s: a miss goes to the overloaded endpoint: %+v", p.Name, d)
			}
		}
	}
	v := evenView(4)
	v.Request.Affinity = 7
	v.Match[0] = 28
	counts := make([]int, 4)
	for range 200 {
		d := Latency().Decide(v)
		send(v, d.Endpoint)
		v.Match[d.Endpoint] = 28
		counts[d.Endpoint]++
	}
	if slices.Min(counts) < 30 {
		t.Errorf("200 requests with one shared prompt go as %v, want all four endpoints warm", counts)
	}
}

// Weights that leave caches out spread requests of one beginning among equals; those that count them keep them together.
func TestWeightsWithoutCachesSpread(t *testing.T) {
	f := func(spread bool, weights map[string]float64) {
		t.Helper()
		p, err := Weights(weights)
		if err != nil {
			t.Fatal(err)
		}
		v := evenView(2)
		v.Request.Affinity = 7
		counts := make([]int, 2)
		for seed := range uint64(100) {
			v.Seed = mix(seed)
			counts[p.Decide(v).Endpoint]++
		}
		if least := slices.Min(counts); spread && least < 30 || !spread && least > 0 {
			t.Errorf("%v: 100 requests with one beginning go as %v", weights, counts)
		}
	}
	f(true, map[string]float64{ScorerQueue: 3, ScorerKVCache: 2, ScorerPrefix: 0})
	f(false, DefaultWeights())
}

// E13: an endpoint with long sessions that finishes nothing is the busiest, by what is in flight there now. So it is
// when the engine tells nothing.
func TestInFlightCountsAgainst(t *testing.T) {
	for _, running := range []float32{0, nan()} {
		p, err := Weights(map[string]float64{ScorerRunningRequests: 1})
		if err != nil {
			t.Fatal(err)
		}
		v := evenView(3)
		v.InFlight[1] = 40
		v.Snapshot.Running[1] = running
		for _, p := range []*Profile{p, Latency()} {
			e := p.Explain(v)
			if p.sign()*e.Totals[1] <= p.sign()*e.Totals[0] {
				t.Errorf("%s: 40 in flight and %v running: total %v, idle %v, want worse", p.Name, running, e.Totals[1], e.Totals[0])
			}
		}
	}
}

// E16: an ejection ends by itself. E19: a draining endpoint gets nothing new, even as the last one.
func TestEjectionEndsAndDrainingHolds(t *testing.T) {
	v, p := evenView(2), Latency()
	v.EjectedUntil[0] = v.Now + 3
	v.InFlight[1], v.Backlog[1], v.Work[1], v.Prefilling[1] = 9, 9000, 200, 9
	steps := []struct {
		after float64
		want  int32
	}{
		{0, 1},   // failed a moment ago: the busy one serves
		{2.9, 1}, // still
		{.1, 0},  // over: the idle one is back, with no event to say so
	}
	for _, step := range steps {
		v.Now += step.after
		v.Snapshot.ReadAt[0], v.Snapshot.ReadAt[1] = v.Now, v.Now
		if d := p.Decide(v); d.Endpoint != step.want {
			t.Errorf("at %.1f: got %d, want %d", v.Now, d.Endpoint, step.want)
		}
	}
	v.Snapshot.States[0], v.Snapshot.States[1] = Draining, Draining
	if d := p.Decide(v); d.Verdict != NoEndpoint || d.Endpoint != -1 {
		t.Errorf("all draining: got %+v, want no endpoint", d)
	}
}

// When every reading is too old, the decision goes by what was sent, and not by what was read last.
func TestBlindUsesNoReading(t *testing.T) {
	v := evenView(2)
	v.Now += 60
	v.Snapshot.Waiting[1], v.Snapshot.Running[1], v.Snapshot.KVUse[1] = 900, 200, 1
	v.InFlight[0], v.Prefilling[0], v.Backlog[0], v.Work[0], v.SentSince[0] = 5, 5, 5000, 100, 5
	for _, p := range []*Profile{Latency(), allScorers()} {
		if d := p.Decide(v); !d.Blind || d.Endpoint != 1 {
			t.Errorf("%s: got %+v, want blind and the endpoint with nothing in flight", p.Name, d)
		}
	}
}

func TestReasonIsOneLineOfASCII(t *testing.T) {
	for seed := range uint64(views) {
		v := wildView(seed, badReadings...)
		for _, p := range profiles() {
			reason := p.Reason(v, p.Decide(v))
			if len(reason) > 96 || strings.ContainsFunc(reason, func(r rune) bool { return r < ' ' || r > '~' }) {
				t.Fatalf("seed %d: reason %q", seed, reason)
			}
		}
	}
}

// What endpoints are called and say of themselves can't move the cursor of whoever reads an explanation.
func TestExplanationIsPrintable(t *testing.T) {
	v := evenView(2)
	v.Snapshot.Names[0], v.Snapshot.States[1], v.Snapshot.Why[1] = "a\x1b[2J", NotReady, "said \r\x07"
	v.Request.Model, v.Request.Adapter, v.Rates[0].Name = "m\x1b", "l\x1b", "k\x1b"
	e := Latency().Explain(v)
	var text strings.Builder
	if err := e.WriteText(&text, v); err != nil {
		t.Fatal(err)
	}
	if strings.ContainsFunc(text.String(), func(r rune) bool { return r != '\n' && r < ' ' }) {
		t.Errorf("got control characters in %q", text.String())
	}
}

func TestDecideDoesNotAllocate(t *testing.T) {
	for _, p := range profiles() {
		for what, v := range map[string]*View{"all known": randomView(100, 7), "blind": randomView(100, 7)} {
			if what == "blind" {
				v.Now += 60
			}
			p.Decide(v)
			if n := testing.AllocsPerRun(100, func() { p.Decide(v) }); n != 0 {
				t.Errorf("%s, %s: %v allocations per decision, want 0", p.Name, what, n)
			}
		}
	}
}

func BenchmarkReason(b *testing.B) {
	v, p := randomView(100, 7), Latency()
	d := p.Decide(v)
	b.ReportAllocs()
	for b.Loop() {
		p.Reason(v, d)
	}
}

// What is missed for want of a copy is what one more would save on average, not what the best of all would; it pays for
// as much of the true price.
func TestMissedIsWhatOneMoreCopySaves(t *testing.T) {
	v := evenView(3)
	v.Alone = 1
	v.Request.PromptTokens, v.Request.Units, v.Request.UnitTokens = 4000, 60, 64
	v.Match, v.Work = Column{60, 0, 0}, Column{40, 10, 500}
	d := Latency().Decide(v)
	if want := float32(40-10) / 2; d.Endpoint != 0 || d.Missed < want-1 || d.Missed > want+1 {
		t.Errorf("the holder has 40 ms to do, the others 10 and 500: got endpoint %d, missed %v ms, want 0 and %v", d.Endpoint, d.Missed, want)
	}
	before := v.total[1]
	v.Request.Missed = 20
	Latency().Decide(v)
	if got := before - v.total[1]; got < 39 || got > 41 {
		t.Errorf("20 ms missed took %v ms off the total where the beginning is not held, want 40", got)
	}
	v.Match[1], v.Match[2] = 60, 60
	if d := Latency().Decide(v); d.Missed != 0 {
		t.Errorf("all hold it: got %v ms missed, want none", d.Missed)
	}
}
