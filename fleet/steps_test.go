package fleet

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gateway/sluice/route"
)

// step is something that happens at a time in seconds, and which endpoints new requests go to afterwards.
type step struct {
	at   float64
	says string
	do   func(p *Pool)
	want string // names without port, joined by blanks
}

// play runs steps on a pool. To see where requests go it sends some that have no prefix and end at once, aborted.
func play(t *testing.T, p *Pool, steps []step) {
	t.Helper()
	for _, s := range steps {
		if s.do != nil {
			s.do(p)
		}
		got := make(map[string]bool)
		for range 64 {
			l, _ := p.Pick(sec(s.at), short())
			if l != nil {
				got[strings.TrimSuffix(l.Endpoint.Name, ":8000")] = true
				l.Done(sec(s.at), Outcome{Ending: Aborted})
			}
		}
		var names []string
		for _, e := range p.Endpoints() {
			if name := strings.TrimSuffix(e.Name, ":8000"); got[name] {
				names = append(names, name)
			}
		}
		if joined := strings.Join(names, " "); joined != s.want {
			t.Errorf("%v s, %s: requests go to %q, want %q", s.at, s.says, joined, s.want)
		}
		audit(t, p)
	}
}

func read(at float64, name string, r Reading) func(*Pool) {
	return func(p *Pool) { p.Observe(sec(at), sec(at), name+":8000", r, nil) }
}

func fail(at float64, name string, f Failure) func(*Pool) {
	return func(p *Pool) { p.ObserveFailure(name+":8000", f, "connection refused") }
}

func both(fs ...func(*Pool)) func(*Pool) {
	return func(p *Pool) {
		for _, f := range fs {
			f(p)
		}
	}
}

// F06, F07: one late reading is harmless, an endpoint without any is left out while others have theirs, and when nobody
// has one, routing goes on by what it counts itself.
func TestStaleEndpointLeavesAndReturns(t *testing.T) {
	play(t, newPool(t, 2), []step{
		{at: 0, says: "both read at 0", want: "e0 e1"},
		{at: 1.9, says: "both late, not yet stale", want: "e0 e1"},
		{at: 2, says: "e0 read again, e1 exactly at the limit", do: read(2, "e0", idle(1)), want: "e0 e1"},
		{at: 2.1, says: "e1 past the limit", want: "e0"},
		{at: 2.1, says: "its failed scrapes say nothing more", do: fail(2.1, "e1", ScrapeFailed), want: "e0"},
		{at: 3, says: "e1 read again", do: read(3, "e1", idle(1)), want: "e0 e1"},
		{at: 60, says: "nobody could be read for a minute", want: "e0 e1"},
		{at: 60, says: "one comes back and is preferred", do: read(60, "e1", idle(1)), want: "e1"},
	})
	p := newPool(t, 1)
	l, d := p.Pick(sec(60), short())
	if l == nil || !d.Blind {
		t.Errorf("one endpoint, stale: got lease %v, blind %v, want a lease and blind", l, d.Blind)
	}
	if s := p.Status(sec(60))[0]; s.State != "stale" || s.Why == "" {
		t.Errorf("got state %q because %q, want stale with a reason", s.State, s.Why)
	}
}

// F06, F07: the metrics of one endpoint after another are blocked while all of them serve. As long as answers flow
// there, or once most are unreadable, the rest are not left with everyone's requests, and what waits is not moved.
func TestReadingsThatFailOneByOne(t *testing.T) {
	for _, flowing := range []bool{true, false} {
		p := newPool(t, 8)
		waiting := make(map[string]*Lease)
		for _, e := range p.Endpoints() {
			waiting[e.Name] = at(t, p, 0, e.Name, *short())
		}
		for now := 1.; now <= 50; now++ {
			blocked := int(now / 5) // each 5 s another one
			got := make(map[string]int)
			for i, e := range p.Endpoints() {
				if i >= blocked {
					p.Observe(sec(now), sec(now), e.Name, idle(now), nil)
				}
				if flowing {
					waiting[e.Name].Progress(sec(now))
				}
			}
			for range 400 {
				l := pick(t, p, now, short())
				got[l.Endpoint.Name]++
				l.Done(sec(now), Outcome{Ending: Aborted})
			}
			most := 0
			for _, n := range got {
				most = max(most, n)
			}
			if want := map[bool]int{true: 90, false: 150}[flowing]; most > want {
				t.Errorf("answers flow %v, %d of 8 blocked: one endpoint got %d of 400 requests, want at most %d", flowing, min(blocked, 8), most, want)
			}
			if p.Tick(sec(now)); flowing && slices.ContainsFunc(p.Endpoints(), func(e Endpoint) bool { return told(waiting[e.Name]) }) {
				t.Fatalf("%v s: told to move from an endpoint whose answers flow", now)
			}
		}
		for _, l := range waiting {
			l.Done(sec(51), Outcome{})
		}
	}
}

// F06: readings that never work, from the start on, don't stop traffic either.
func TestScrapesThatNeverWork(t *testing.T) {
	p := NewPool("m")
	p.Apply(PoolConfig{Name: "m", Endpoints: named(2)})
	if p.Ready() {
		t.Error("ready before anyone was asked")
	}
	play(t, p, []step{
		{at: 0, says: "nobody was asked yet: anyone may serve rather than none", want: "e0 e1"},
		{at: .1, says: "e0 was asked and timed out", do: fail(.1, "e0", ScrapeFailed), want: "e0 e1"},
		{at: .2, says: "e1 as well", do: fail(.2, "e1", ScrapeFailed), want: "e0 e1"},
		{at: .3, says: "e1 can be read and is preferred", do: read(.3, "e1", idle(0)), want: "e1"},
	})
	if s := p.Status(sec(1))[0]; s.State != "stale" || strings.Contains(s.Why, "000000") {
		t.Errorf("got state %q because %q, want stale and no made-up age", s.State, s.Why)
	}
	if !p.Ready() {
		t.Error("not ready, though endpoints may serve")
	}
}

// E21: an endpoint that can't be reached is out at once, and comes back with an empty cache.
func TestUnreachableEndpoint(t *testing.T) {
	p := newPool(t, 2)
	q := prompt(1, 25_600)
	waiting := pick(t, p, 0, q)
	streaming := pick(t, p, 0, &Request{Model: "m", PromptBytes: 100, Streamed: true, Tried: []string{other(waiting)}})
	streaming.FirstByte(sec(.1))
	name := strings.TrimSuffix(waiting.Endpoint.Name, ":8000")
	p.ObserveFailure(waiting.Endpoint.Name, Unreachable, "connection refused")
	if !told(waiting) {
		t.Error("a request without a byte stays at an endpoint that can't be reached")
	}
	if told(streaming) {
		t.Error("a request whose answer is on its way was told to move")
	}
	rest := strings.TrimSuffix(other(waiting), ":8000")
	waiting.Done(sec(.2), Outcome{Ending: Moved})
	again := pick(t, p, .2, q)
	if again.Endpoint.Name == waiting.Endpoint.Name {
		t.Error("it moved to where it came from")
	}
	play(t, p, []step{
		{at: .3, says: "one is out", want: rest},
		{at: .4, says: "a timeout on top changes nothing", do: fail(.4, name, ScrapeFailed), want: rest},
		{at: .5, says: "the other one goes too", do: fail(.5, rest, Unreachable), want: ""},
		{at: .6, says: "the first is back", do: read(.6, name, idle(5000)), want: name},
	})
	if s := p.Status(sec(.6)); s[0].PrefixUnits+s[1].PrefixUnits != 0 {
		t.Errorf("prefix blocks of endpoints that went away: %d and %d", s[0].PrefixUnits, s[1].PrefixUnits)
	}
}

// other names the endpoint of e0 and e1 that the lease is not at.
func other(l *Lease) string {
	if l.Endpoint.Name == "e0:8000" {
		return "e1:8000"
	}
	return "e0:8000"
}

// Tick moves what waits for a first byte at an endpoint that nobody can read, but only when there is somewhere to go.
func TestTickMovesOnlyToSomewhereBetter(t *testing.T) {
	p := newPool(t, 2)
	l := pick(t, p, 0, short())
	p.Tick(sec(10))
	if told(l) {
		t.Fatal("everything is stale: told to move to nowhere better")
	}
	p.Observe(sec(10), sec(10), other(l), idle(0), nil)
	if p.Tick(sec(11.9)); !told(l) {
		t.Fatal("stale for 10 s, no byte, another one is fresh: not told to move")
	}
	p.Tick(sec(12)) // twice is harmless
	l.Done(sec(12), Outcome{Ending: Moved})
	empty(t, p)
}

// A draining endpoint, or one out of reach, is nowhere better.
func TestTickCountsOnlyWhatMayServe(t *testing.T) {
	p := newPool(t, 2)
	l := pick(t, p, 0, short())
	eps := named(2)
	for i := range eps {
		eps[i].Drain = eps[i].Name == other(l)
	}
	p.SetEndpoints(eps)
	p.Observe(sec(10), sec(10), other(l), idle(0), nil)
	if p.Tick(sec(10)); told(l) {
		t.Error("told to move to an endpoint that drains")
	}
}

// E24: metrics that starve behind a burst prove nothing while answers flow.
func TestSlowProbeAloneDoesNotMove(t *testing.T) {
	p := newPool(t, 2)
	flowing := pick(t, p, 0, short())
	waiting := pick(t, p, 0, &Request{Model: "m", PromptBytes: 100, Streamed: true, Tried: []string{other(flowing)}})
	flowing.FirstByte(sec(.1))
	for now := 0.5; now < 30; now += .5 {
		flowing.Progress(sec(now))
		p.Observe(sec(now), sec(now), other(flowing), idle(0), nil)
		p.ObserveFailure(flowing.Endpoint.Name, ScrapeFailed, "timeout")
		if p.Tick(sec(now)); told(waiting) || told(flowing) {
			t.Fatalf("at %v s: told to move from an engine whose bytes flow", now)
		}
	}
	for now := 30.; now < 33; now += .5 { // and now it is silent as well
		p.Observe(sec(now), sec(now), other(flowing), idle(0), nil)
		p.Tick(sec(now))
	}
	if !told(waiting) || told(flowing) {
		t.Errorf("silent for 3 s: waiting told %v, flowing told %v, want true and false", told(waiting), told(flowing))
	}
}

// stalledPool has a request at e0 for a minute in which nothing moved there, while everything else of e0 looks well.
func stalledPool(t *testing.T, counters func(*Reading)) (*Pool, *Lease) {
	t.Helper()
	p := newPool(t, 2)
	l := pick(t, p, 0, &Request{Model: "m", PromptBytes: 100, Streamed: true, Tried: []string{"e1:8000"}})
	for now := 1.; now <= 70; now++ {
		r := working(2, 5000)
		counters(&r)
		p.Observe(sec(now), sec(now), "e0:8000", r, nil)
		p.Observe(sec(now), sec(now), "e1:8000", idle(now), nil)
		if now < 60 && told(l) {
			t.Fatalf("at %v s: told to move before the limit", now)
		}
	}
	return p, l
}

// E23: an engine that answers health and metrics and yet makes no token is out, whichever counters it has.
func TestStalledEngineLeavesAndReturns(t *testing.T) {
	for name, counters := range map[string]func(*Reading){
		"all counters": func(*Reading) {},
		"only its work": func(r *Reading) {
			r.CachedTokens, r.PrefillTokens, r.DecodeTokens = math.NaN(), math.NaN(), math.NaN()
		},
	} {
		t.Run(name, func(t *testing.T) {
			p, l := stalledPool(t, counters)
			if !told(l) {
				t.Fatal("a request at an engine that froze a minute ago was not told to move")
			}
			l.Done(sec(70), Outcome{Ending: Moved})
			still := working(2, 5000)
			counters(&still)
			moved := working(2, 5001)
			counters(&moved)
			play(t, p, []step{
				{at: 70, says: "frozen", want: "e1"},
				{at: 71, says: "still frozen, though we have nothing there", do: read(71, "e0", still), want: "e1"},
				{at: 72, says: "it makes tokens for others again", do: both(read(72, "e0", moved), read(72, "e1", idle(72))), want: "e0 e1"},
			})
		})
	}
}

// E16: being stalled ends with whatever shows that it is over.
func TestStallEnds(t *testing.T) {
	for says, event := range map[string]func(*Pool){
		"it has nothing to serve any more": read(71, "e0", idle(5000)),
		"it was restarted":                 read(71, "e0", working(1, 3)),
		"it went away and came back":       both(fail(70.5, "e0", Unreachable), read(71, "e0", working(2, 5000))),
		"it has no metrics any more":       fail(71, "e0", NoMetrics),
	} {
		p, l := stalledPool(t, func(*Reading) {})
		l.Done(sec(70), Outcome{Ending: Moved})
		play(t, p, []step{
			{at: 70, says: "frozen", want: "e1"},
			{at: 71, says: says, do: both(event, read(71, "e1", idle(71))), want: "e0 e1"},
		})
	}
}

// E23: an engine whose counters of tokens move only when an answer ends, and one that counts nothing while it works,
// are not stalled by a long answer that comes whole.
func TestLongAnswerIsNoStall(t *testing.T) {
	for name, progress := range map[string]func(now float64) float64{
		"its work moves": func(now float64) float64 { return now },
		"nothing shows":  func(float64) float64 { return math.NaN() },
	} {
		p := newPool(t, 2)
		l := pick(t, p, 0, &Request{Model: "m", PromptBytes: 100, Tried: []string{"e1:8000"}})
		for now := 1.; now <= 300; now++ {
			r := working(1, 5000)
			r.Progress = progress(now)
			p.Observe(sec(now), sec(now), "e0:8000", r, nil)
			p.Observe(sec(now), sec(now), "e1:8000", idle(now), nil)
		}
		if s := p.Status(sec(300))[0]; told(l) || s.State != "ready" {
			t.Errorf("%s: told to move %v, state %s, want it left to work", name, told(l), s.State)
		}
	}
}

// E23: a stall is a doubt: who has nowhere better to go stays, new requests go there rather than nowhere, and none of
// them makes it look well again.
func TestStallIsSoft(t *testing.T) {
	p := newPool(t, 2)
	p.ObserveFailure("e1:8000", Unreachable, "connection refused")
	l := pick(t, p, 0, short())
	frozen := func(from, to float64) {
		for now := from; now <= to; now++ {
			p.Observe(sec(now), sec(now), "e0:8000", working(2, 5000), nil)
		}
	}
	frozen(1, 70)
	if s := p.Status(sec(70))[0]; told(l) || s.State != "stalled" || s.Why == "" {
		t.Errorf("told to move %v, state %s (%s), want it stalled, and its request to stay", told(l), s.State, s.Why)
	}
	play(t, p, []step{{at: 70, says: "nobody else is left", want: "e0"}})
	l2 := pick(t, p, 70, short())
	p.Observe(sec(71), sec(71), "e1:8000", idle(0), nil)
	play(t, p, []step{{at: 71, says: "e1 is back, e0 still stalled", do: read(71, "e0", working(2, 5000)), want: "e1"}})
	if !told(l) || !told(l2) {
		t.Error("there is somewhere better now, and its requests were not told to move")
	}
}

// An idle engine makes no tokens, and one that has just got its first request has not had the time.
func TestIdleIsNotStalled(t *testing.T) {
	p := newPool(t, 1)
	for now := 1.; now <= 200; now++ {
		p.Observe(sec(now), sec(now), "e0:8000", idle(5000), nil)
	}
	l := pick(t, p, 200, short())
	for now := 201.; now <= 259; now++ {
		p.Observe(sec(now), sec(now), "e0:8000", working(1, 5000), nil)
	}
	if told(l) {
		t.Error("59 s into its first request the engine counts as stalled")
	}
	for now := 260.; now <= 400; now++ {
		l.Progress(sec(now))
		p.Observe(sec(now), sec(now), "e0:8000", working(1, 5000), nil)
	}
	if s := p.Status(sec(400))[0]; s.State != "ready" {
		t.Errorf("counters stand still and bytes flow: got %q (%s), want ready", s.State, s.Why)
	}
}

// E19: a draining endpoint gets nothing new and keeps what it has; taken back, it serves again. Draining hides no other
// fault.
func TestDrain(t *testing.T) {
	p := newPool(t, 2)
	eps := named(2)
	eps[0].Drain = true
	drain := func(p *Pool) { p.SetEndpoints(eps) }
	undrain := func(p *Pool) { p.SetEndpoints(named(2)) }
	play(t, p, []step{
		{at: 0, says: "e0 drains", do: drain, want: "e1"},
		{at: .1, says: "a reading does not end it", do: read(.1, "e0", idle(0)), want: "e1"},
		{at: .1, says: "taken back", do: undrain, want: "e0 e1"},
		{at: .2, says: "it drains, and then can't be reached", do: both(drain, fail(.2, "e0", Unreachable)), want: "e1"},
		{at: .2, says: "taken back out of reach", do: undrain, want: "e1"},
		{at: .3, says: "within reach", do: read(.3, "e0", idle(0)), want: "e0 e1"},
	})
	p = newPool(t, 2)
	kept := pick(t, p, 0, &Request{Model: "m", PromptBytes: 10, Streamed: true, Tried: []string{"e1:8000"}})
	drain(p)
	if told(kept) || p.InFlight() != 1 {
		t.Errorf("draining: told to move %v, in flight %d, want false and 1", told(kept), p.InFlight())
	}
	if s := p.Status(0)[0]; s.State != "draining" || s.InFlight != 1 {
		t.Errorf("got %q with %d in flight, want draining with 1", s.State, s.InFlight)
	}
	kept.Done(0, Outcome{})
	empty(t, p)
}

// E25, E27, D04: who is removed gets nothing more and leaves nothing behind; who comes back under the same name is
// someone else.
func TestRemovedEndpointStartsClean(t *testing.T) {
	p := newPool(t, 2)
	q := prompt(1, 25_600)
	l := pick(t, p, 0, q)
	name := l.Endpoint.Name
	failing := pick(t, p, 0, &Request{Model: "m", PromptBytes: 10, Streamed: true, Tried: []string{other(l)}})
	failing.Done(0, Outcome{Ending: Refused})
	var rest []Endpoint
	for _, e := range named(2) {
		if e.Name != name {
			rest = append(rest, e)
		}
	}
	p.SetEndpoints(rest)
	if !told(l) {
		t.Error("the endpoint is gone, and its request without a byte was not told")
	}
	play(t, p, []step{{at: 0, says: "removed", want: strings.TrimSuffix(rest[0].Name, ":8000")}})
	p.SetEndpoints(named(2))
	audit(t, p)
	p.Observe(0, 0, name, idle(0), nil)
	for _, s := range p.Status(0) {
		if s.Endpoint.Name == name && (s.InFlight != 0 || s.PrefixUnits != 0 || s.State != "ready") {
			t.Errorf("recreated: in flight %d, %d prefix blocks, %s (%s), want a clean start", s.InFlight, s.PrefixUnits, s.State, s.Why)
		}
	}
	l.FirstByte(sec(1)) // the old request ends at the old endpoint
	l.Done(sec(1), Outcome{Ending: Failed, OutputTokens: 9})
	empty(t, p)
	if l2 := pick(t, p, 1, short()); l2 == nil {
		t.Fatal("no endpoint")
	}
}

// Engines without metrics are known by what is counted here, and never stale.
func TestUnmeteredEndpoint(t *testing.T) {
	p := NewPool("m")
	p.Apply(PoolConfig{Name: "m", Endpoints: named(2)})
	play(t, p, []step{
		{at: 0, says: "e0 works and has no metrics", do: fail(0, "e0", NoMetrics), want: "e0"},
		{at: 500, says: "a reading of e1 does not make e0 worse", do: read(500, "e1", idle(0)), want: "e0 e1"},
		{at: 501, says: "e0 down", do: fail(501, "e0", Unreachable), want: "e1"},
		{at: 501.5, says: "e0 up", do: fail(501.5, "e0", NoMetrics), want: "e0 e1"},
	})
	whole := pick(t, p, 502, &Request{Model: "m", PromptBytes: 4000, Tried: []string{"e1:8000"}})
	p.Tick(sec(502.01))
	if s := p.Status(sec(502.01))[0]; s.Prefilling != 1 {
		t.Errorf("a moment later %d requests prefill, want 1", s.Prefilling)
	}
	p.Tick(sec(512))
	if s := p.Status(sec(512))[0]; s.Prefilling != 0 || s.InFlight != 1 {
		t.Errorf("10 s later %d requests prefill of %d in flight, want 0 of 1", s.Prefilling, s.InFlight)
	}
	whole.Done(sec(512), Outcome{})
	empty(t, p)
}

// Z08, Z09: when an engine stops showing metrics, its last reading is forgotten: a queue in it would repel requests for
// ever, and an empty one attract them.
func TestLastReadingEndsWithMetrics(t *testing.T) {
	for _, waiting := range []float64{0, 500} {
		p := newPool(t, 2)
		r := idle(1000)
		r.Waiting, r.KVUse, r.Resident, r.WaitingAdapters = waiting, .99, []string{"a"}, []string{"b"}
		p.Observe(0, 0, "e0:8000", r, nil)
		p.ObserveFailure("e0:8000", NoMetrics, "no metrics: status 404")
		other := idle(1000)
		other.Waiting, other.KVUse = 0, .5
		play(t, p, []step{{at: 1, says: "both are as good", do: read(1, "e1", other), want: "e0 e1"}})
		s := p.Status(sec(1))[0]
		if !math.IsNaN(s.Reading.Waiting) || !math.IsNaN(s.Reading.KVUse) || s.Reading.Resident != nil || !math.IsNaN(s.Age) {
			t.Errorf("after %v waiting: got %+v, %v s old, want nothing known", waiting, s.Reading, s.Age)
		}
		if snap := p.Snapshot(); !math.IsNaN(float64(snap.Waiting[0])) || snap.Waiting[1] != 0 {
			t.Errorf("after %v waiting: the snapshot has %v, want it not known, and 0", waiting, snap.Waiting)
		}
		audit(t, p)
	}
}

// What is read is published without traffic, too.
func TestTickPublishes(t *testing.T) {
	p := newPool(t, 1)
	r := idle(1000)
	r.Waiting = 7
	p.Observe(sec(1), sec(1), "e0:8000", r, nil)
	p.Tick(sec(1.1))
	s := p.Snapshot()
	if s.Waiting[0] != 7 || s.ReadAt[0] != 1 {
		t.Errorf("got %v waiting at %v s, want 7 at 1 s", s.Waiting[0], s.ReadAt[0])
	}
	if p.Tick(sec(1.2)); p.Snapshot() != s {
		t.Error("got a new snapshot without news")
	}
	audit(t, p)
}

// A restarted engine has an empty cache: its counters fall, and what it was believed to hold is forgotten.
func TestEngineRestartClearsPrefix(t *testing.T) {
	p := newPool(t, 1)
	pick(t, p, 0, prompt(1, 25_600)).Done(0, Outcome{})
	held := func() int { return p.Status(0)[0].PrefixUnits }
	if p.Observe(sec(1), sec(1), "e0:8000", idle(9000), nil); held() != 100 {
		t.Fatalf("counters rose: %d blocks, want 100", held())
	}
	if p.Observe(sec(2), sec(2), "e0:8000", UnknownReading(), nil); held() != 100 {
		t.Fatalf("counters not known: %d blocks, want 100", held())
	}
	p.Observe(sec(3), sec(3), "e0:8000", idle(9000), nil)
	if p.Observe(sec(4), sec(4), "e0:8000", idle(10), nil); held() != 0 {
		t.Errorf("counters fell: %d blocks, want none", held())
	}
}

// E39: an endpoint's share of the index follows its own cache size, and impossible sizes (Z08) neither empty nor flood
// it.
func TestIndexFollowsCacheSize(t *testing.T) {
	p := newPool(t, 1)
	size := func(tokens float64) {
		r := idle(1000)
		r.KVTokens = tokens
		p.Observe(0, 0, "e0:8000", r, nil)
	}
	fill := func() int {
		for id := range 30 {
			pick(t, p, 0, prompt(id+1, 25_600)).Done(0, Outcome{})
		}
		return p.Status(0)[0].PrefixUnits
	}
	size(6400) // 64 tokens a block at 4 bytes a token
	if got := fill(); got != 100 {
		t.Errorf("a cache of 6400 tokens: %d blocks, want 100", got)
	}
	inf := math.Inf(1)
	for _, odd := range []float64{-5, 0, UnknownReading().KVTokens, inf} {
		size(12_800)
		size(odd)
		if got := fill(); got < 200 {
			t.Errorf("a cache said to be %v after 12800: %d blocks, want at least 200", odd, got)
		}
	}
}

// Status tells each state with its reason.
func TestStatus(t *testing.T) {
	p := NewPool("m")
	eps := named(6)
	eps[3].Drain = true
	p.Apply(PoolConfig{Name: "m", Endpoints: eps})
	observeAll(p, 0)
	p.SetEndpoints(append(eps, Endpoint{Name: "e6:8000"}))
	for _, name := range []string{"e0:8000", "e1:8000", "e2:8000", "e3:8000", "e5:8000"} {
		p.Observe(sec(5), sec(5), name, idle(0), nil)
	}
	p.ObserveFailure("e1:8000", Unreachable, "connection refused")
	l := pick(t, p, 5, &Request{Model: "m", PromptBytes: 10, Streamed: true, Tried: []string{"e0:8000", "e5:8000"}})
	l.Done(sec(5), Outcome{Ending: Refused})
	got := make(map[string]string)
	for _, s := range p.Status(sec(5.5)) {
		got[s.Endpoint.Name] = s.State + ": " + s.Why
	}
	want := map[string]string{"e0:8000": "ready: ", "e1:8000": "not ready: connection refused", "e2:8000": "ejected: 1 failures in a row; after this pause one request at a time is tried",
		"e3:8000": "draining: taken out of traffic by configuration", "e4:8000": "stale: last reading 5.5 s ago", "e5:8000": "ready: ", "e6:8000": "stale: not asked yet"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if s := p.Snapshot(); s.States[1] != route.NotReady {
		t.Errorf("snapshot: e1 has state %v, want not ready", s.States[1])
	}
}

// A front door that cannot move a request ends it only where waiting is in vain: after as long as an endpoint may be
// without progress, and while another may serve.
func TestStuck(t *testing.T) {
	p := newPool(t, 2)
	names := p.Endpoints()
	r := short()
	r.Unseen, r.Streamed = true, true
	l := pick(t, p, 1, r)
	there, other := l.Endpoint.Name, names[0].Name
	if other == there {
		other = names[1].Name
	}
	at := func(now float64, want bool, why string) {
		t.Helper()
		if got := l.Stuck(sec(now)); got != want {
			t.Errorf("at %v s: got stuck %v, want %v: %s", now, got, want, why)
		}
	}
	observe := func(now float64, name string, reading Reading) { p.Observe(sec(now), sec(now), name, reading, nil) }
	observe(59, other, idle(2000))
	at(59, false, "less than a minute has passed")
	observe(70, other, idle(2000))
	at(70, true, "its endpoint was last heard of a minute and more ago")
	observe(71, there, working(1, 3000))
	at(71, false, "the endpoint lives")
	observe(140, other, idle(2001))
	observe(140, there, working(1, 3000))
	at(140, true, "it answers scrapes, and nothing has moved")
	at(150, false, "nothing was heard of the other, either")
	observe(151, other, idle(2001))
	at(151, true, "the other is back")
	p.SetEndpoints(slices.DeleteFunc(slices.Clone(names), func(e Endpoint) bool { return e.Name == there }))
	observe(300, other, idle(2002))
	at(300, false, "it has left the pool, and serves what it has")
	l.Done(sec(301), Outcome{Ending: Moved})
	at(302, false, "it is over")
}
