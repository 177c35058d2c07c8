package fleet

import (
	"maps"
	"slices"
	"testing"

	"github.com/sluice-gateway/sluice/route"
)

// burst picks all the requests at one instant, none of them finishing, and returns how many each endpoint got, most
// first.
func burst(t *testing.T, p *Pool, now float64, requests ...*Request) []int {
	t.Helper()
	got := make(map[string]int)
	for _, r := range requests {
		got[pick(t, p, now, r).Endpoint.Name]++
	}
	audit(t, p)
	counts := slices.Sorted(maps.Values(got))
	slices.Reverse(counts)
	return counts
}

func repeat(n int, request func(i int) *Request) []*Request {
	var out []*Request
	for i := range n {
		out = append(out, request(i))
	}
	return out
}

// E03, E05, E36, E45: requests of one instant see each other, whatever the profile: choosing and counting are one step.
func TestBurstSpreads(t *testing.T) {
	weights, err := route.Weights(route.DefaultWeights())
	if err != nil {
		t.Fatal(err)
	}
	noPrefix := func(int) *Request { return &Request{Model: "m", PromptBytes: 4000, Streamed: true} }
	unlike := func(i int) *Request { return prompt(i+1, 4000) }
	whole := func(i int) *Request { r := prompt(i+1, 4000); r.Streamed = false; return r }
	for _, profile := range []*route.Profile{route.Latency(), weights, route.RoundRobin()} {
		for says, request := range map[string]func(int) *Request{"no prefix": noPrefix, "unlike prefixes": unlike, "whole answers": whole} {
			for _, readings := range []func(*Pool){func(*Pool) {}, func(p *Pool) {
				for _, e := range named(8) {
					p.Observe(0, 0, e.Name, UnknownReading(), nil)
				}
			}} {
				p := newPool(t, 8)
				readings(p)
				p.Apply(PoolConfig{Name: "m", Profile: profile, Endpoints: named(8)})
				for _, at := range []float64{0, .05} { // in the instant of the reading, and between two readings
					if got := burst(t, p, at, repeat(64, request)...); len(got) != 8 || got[0] > 12 {
						t.Errorf("%s, %s, at %v s: 64 requests at one instant went %v, want about 8 each", profile.Name, says, at, got)
					}
				}
			}
		}
	}
}

// E03, E43: requests for one prompt stay together only while that is cheaper: a new prompt is computed everywhere, a
// short warm one spreads from the endpoint that holds it, and of many that hold it no one gets everything.
func TestBurstOnOnePrefix(t *testing.T) {
	one := func(bytes int) []*Request { return repeat(64, func(int) *Request { return prompt(1, bytes) }) }
	warm := func(p *Pool, name string, bytes int) {
		r := prompt(1, bytes)
		for _, e := range p.Endpoints() {
			if e.Name != name {
				r.Tried = append(r.Tried, e.Name)
			}
		}
		l := pick(t, p, 0, r)
		l.FirstByte(sec(.01))
		l.Done(sec(.02), Outcome{OutputTokens: 10})
	}
	p := newPool(t, 8)
	if got := burst(t, p, .1, one(4000)...); len(got) < 7 || got[0] > 16 {
		t.Errorf("a new prompt: got %v, want nearly all endpoints", got)
	}
	p = newPool(t, 8)
	warm(p, "e3:8000", 4000)
	if got := burst(t, p, .1, one(4000)...); len(got) < 4 || got[0] > 40 {
		t.Errorf("one endpoint holds a short prompt: got %v, want several endpoints", got)
	}
	for _, bytes := range []int{4000, 40_000} {
		p = newPool(t, 8)
		for _, e := range named(8) {
			warm(p, e.Name, bytes)
		}
		if got := burst(t, p, .1, one(bytes)...); len(got) < 3 || got[0] > 32 {
			t.Errorf("all endpoints hold %d bytes: got %v, want at least 3 endpoints", bytes, got)
		}
	}
}

// E01, E04, E08: with nothing to tell endpoints apart, each gets its share, one request at a time, within one tick of
// the clock.
func TestTiesSpread(t *testing.T) {
	for says, request := range map[string]func(i int) *Request{
		"no prefix":       func(int) *Request { return short() },
		"unlike prefixes": func(i int) *Request { return prompt(i+1, 2000) },
	} {
		p, got := newPool(t, 4), make(map[string]int)
		for i := range 1000 {
			l := pick(t, p, 1, request(i))
			got[l.Endpoint.Name]++
			l.Done(sec(1), Outcome{})
		}
		for _, e := range named(4) {
			if n := got[e.Name]; n < 190 || n > 310 { // 250 ± 4 deviations
				t.Errorf("%s: %s got %d of 1000, want about 250", says, e.Name, n)
			}
		}
	}
}

// E06: replicas that share nothing still agree on where a new prompt goes.
func TestReplicasAgreeOnNewPrefix(t *testing.T) {
	a, b := newPool(t, 6), newPool(t, 6)
	eps := named(6)
	slices.Reverse(eps)
	b.SetEndpoints(eps)
	for i := range 100 {
		x, y := pick(t, a, .1, prompt(i+1, 9000)), pick(t, b, .1, prompt(i+1, 9000))
		if x.Endpoint.Name != y.Endpoint.Name {
			t.Fatalf("prompt %d: one replica chose %s, the other %s", i, x.Endpoint.Name, y.Endpoint.Name)
		}
		x.Done(sec(.1), Outcome{})
		y.Done(sec(.1), Outcome{})
	}
}

// A conversation stays where its beginning is, as it grows and while others come and go.
func TestConversationStays(t *testing.T) {
	p := newPool(t, 8)
	home := make(map[int]string)
	for turn := range 10 {
		for id := range 20 {
			now := float64(turn) + float64(id)/100
			l := pick(t, p, now, prompt(id+1, 8000+turn*3000))
			if home[id] == "" {
				home[id] = l.Endpoint.Name
			}
			if l.Endpoint.Name != home[id] {
				t.Errorf("turn %d of conversation %d: went to %s, began at %s", turn, id, l.Endpoint.Name, home[id])
			}
			l.FirstByte(sec(now + .02))
			l.Done(sec(now+.03), Outcome{OutputTokens: 20})
		}
		observeAll(p, float64(turn)+.5)
	}
}

// E41: work before the first token is counted until the first byte, room in the cache until the end; whole answers show
// no first token.
func TestFirstByteReleasesPrefill(t *testing.T) {
	p := newPool(t, 1)
	status := func() Status { return p.Status(0)[0] }
	l := pick(t, p, 0, prompt(1, 4000))
	if s := status(); s.InFlight != 1 || s.Prefilling != 1 || s.BacklogTokens != 1000 {
		t.Errorf("sent: got %+v", s)
	}
	l.FirstByte(sec(.1))
	l.FirstByte(sec(.2))
	if s := status(); s.InFlight != 1 || s.Prefilling != 0 || s.BacklogTokens != 0 || p.view.Held[0] != 1200 {
		t.Errorf("first byte: in flight %d, prefilling %d, backlog %v, held %v, want 1, 0, 0, 1200", s.InFlight, s.Prefilling, s.BacklogTokens, p.view.Held[0])
	}
	l.Done(sec(.3), Outcome{})
	empty(t, p)
}

// Engines prefill in order: a first token says that whole answers sent before it are past theirs, and nothing of what
// was sent later.
func TestFirstTokenTellsOfEarlierWholeAnswers(t *testing.T) {
	p := newPool(t, 1)
	whole := func() *Request { r := prompt(1, 4000); r.Streamed = false; return r }
	before, stream, after := pick(t, p, 0, whole()), pick(t, p, .1, prompt(2, 4000)), pick(t, p, .2, whole())
	stream.FirstByte(sec(.3))
	audit(t, p)
	if before.queued || !after.queued {
		t.Errorf("before it: queued %v, after it: queued %v, want false and true", before.queued, after.queued)
	}
	for _, l := range []*Lease{after, stream, before} {
		l.Done(sec(1), Outcome{})
	}
	empty(t, p)
}

// Whole answers leave the backlog once the engine's queue is empty and they have had the time their prefill takes.
func TestWholeAnswersLeaveTheBacklog(t *testing.T) {
	p := newPool(t, 1)
	r := prompt(1, 40_000) // 10 000 tokens, a second at the speed assumed at first
	r.Streamed = false
	l := pick(t, p, 0, r)
	for _, s := range []struct {
		now, waiting float64
		want         int
		says         string
	}{
		{.5, 0, 1, "half of its prefill"},
		{1.5, 2, 1, "the engine's queue is not empty"},
		{2, 0, 0, "it has had its time"},
	} {
		reading := working(1, 1000)
		reading.Waiting = s.waiting
		p.Observe(sec(s.now), sec(s.now), "e0:8000", reading, nil)
		if got := p.Status(sec(s.now))[0]; got.Prefilling != s.want || got.InFlight != 1 {
			t.Errorf("%s: prefilling %d, in flight %d, want %d and 1", s.says, got.Prefilling, got.InFlight, s.want)
		}
		audit(t, p)
	}
	l.FirstByte(sec(3))
	l.Done(sec(3), Outcome{})
	empty(t, p)
}

// Endpoints that failed a request don't get it again; when all have, nobody is left.
func TestTried(t *testing.T) {
	p := newPool(t, 3)
	r := prompt(1, 4000)
	for range 3 {
		l := pick(t, p, 0, r)
		if slices.Contains(r.Tried, l.Endpoint.Name) {
			t.Fatalf("%s gets a request that it failed", l.Endpoint.Name)
		}
		r.Tried = append(r.Tried, l.Endpoint.Name)
		l.Done(0, Outcome{Ending: Moved})
	}
	if l, d := p.Pick(0, r); l != nil || d.Verdict != route.NoEndpoint || d.Endpoint != -1 {
		t.Errorf("everyone tried: got %+v, want no endpoint", d)
	}
	empty(t, p)
}

func TestEmptyPool(t *testing.T) {
	var f Fleet
	f.Apply([]PoolConfig{{Name: "m", Model: "m"}}, "")
	p := f.Pools()[0]
	if l, d := p.Pick(0, short()); l != nil || d.Verdict != route.NoEndpoint {
		t.Errorf("got %v, want no endpoint", d.Verdict)
	}
	if p.Tick(0); p.Ready() || len(p.Status(0)) != 0 || len(p.Models()) != 0 {
		t.Error("a pool without endpoints is ready, or knows models")
	}
}

// What an endpoint's expected output is, and the request's own limit.
func TestExpectedOutput(t *testing.T) {
	p := newPool(t, 1)
	for max, want := range map[int]float32{0: 200, 10: 10, 5000: 200} {
		r := prompt(1, 4000)
		r.MaxOutput, r.Record = max, true
		_, c := p.Pick(0, r)
		if got := c.View.Request.OutputTokens; got != want {
			t.Errorf("limit %d: got %v tokens expected, want %v", max, got, want)
		}
	}
}

// S18, E31: what comes after the end changes nothing: not what is counted, not what is learned, not what is known of
// the endpoint.
func TestNothingCountsAfterDone(t *testing.T) {
	p := newPool(t, 1)
	l := pick(t, p, 1, short())
	l.Done(sec(2), Outcome{Ending: Aborted})
	ep := p.rows[0]
	first, byteAt, fails, speed := ep.lastFirst, ep.lastByte.Load(), ep.fails, ep.speed
	l.FirstByte(sec(3))
	l.Done(sec(4), Outcome{Ending: Refused})
	if ep.lastFirst != first || ep.lastByte.Load() != byteAt || ep.fails != fails || ep.speed != speed {
		t.Error("a request that had ended changed its endpoint")
	}
	empty(t, p)
}
