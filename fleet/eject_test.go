package fleet

import (
	"fmt"
	"testing"

	"github.com/sluice-gateway/sluice/route"
)

// weighted is a pool of n endpoints under the default weights, in which failures have no cost: all there is is being put
// aside.
func weighted(t *testing.T, n int) *Pool {
	t.Helper()
	p := newPool(t, n)
	profile, err := route.Weights(route.DefaultWeights())
	if err != nil {
		t.Fatal(err)
	}
	p.Apply(PoolConfig{Name: "m", Model: "m", Profile: profile, Endpoints: named(n)})
	return p
}

// at sends a request to the endpoint of that name, whatever its state.
func at(t *testing.T, p *Pool, now float64, name string, r Request) *Lease {
	t.Helper()
	for _, e := range p.Endpoints() {
		if e.Name != name {
			r.Tried = append(r.Tried, e.Name)
		}
	}
	return pick(t, p, now, &r)
}

// end sends so many requests to name at once and ends them so.
func end(now float64, name string, times int, e Ending) func(*Pool) {
	return func(p *Pool) {
		r := Request{Model: "m", PromptBytes: 10, Streamed: true}
		for _, other := range p.Endpoints() {
			if other.Name != name+":8000" {
				r.Tried = append(r.Tried, other.Name)
			}
		}
		var open []*Lease
		for range times {
			if l, _ := p.Pick(sec(now), &r); l != nil {
				open = append(open, l)
			}
		}
		for _, l := range open {
			l.Done(sec(now), Outcome{Ending: e})
		}
	}
}

func fresh(at float64) func(*Pool) { return func(p *Pool) { observeAll(p, at) } }

// E16: being put aside ends by itself, soon after one fault and later where faults go on, and a success ends it for
// good.
func TestEjectionExpires(t *testing.T) {
	play(t, weighted(t, 2), []step{
		{at: 0, says: "two errors are no proof", do: end(0, "e0", 2, Failed), want: "e0 e1"},
		{at: 0, says: "three in a row are", do: end(0, "e0", 1, Failed), want: "e1"},
		{at: 3.9, says: "aside", do: fresh(3.9), want: "e1"},
		{at: 4, says: "over", want: "e0 e1"},
		{at: 4, says: "one more error and it is out for longer", do: end(4, "e0", 1, Failed), want: "e1"},
		{at: 11.9, says: "aside", do: fresh(11.9), want: "e1"},
		{at: 12, says: "over", want: "e0 e1"},
		{at: 12, says: "a success forgets the past", do: end(12, "e0", 1, Finished), want: "e0 e1"},
		{at: 12, says: "so two errors are no proof again", do: end(12, "e0", 2, Failed), want: "e0 e1"},
		{at: 12, says: "who leaves or moves proves nothing", do: both(end(12, "e0", 5, Aborted), end(12, "e0", 5, Moved)), want: "e0 e1"},
	})
	play(t, weighted(t, 2), []step{
		{at: 0, says: "a refused connection is proof at once", do: end(0, "e0", 1, Refused), want: "e1"},
		{at: 1, says: "for a second", want: "e0 e1"},
		{at: 1, says: "both refuse: not both are put aside", do: both(end(1, "e0", 1, Refused), end(1, "e1", 1, Refused)), want: "e1"},
	})
	play(t, weighted(t, 2), []step{
		{at: 0, says: "one broken connection takes fifty requests with it", do: end(0, "e0", 50, Failed), want: "e1"},
		{at: 4, says: "and is one fault", do: fresh(4), want: "e0 e1"},
	})
}

// E16: an endpoint that says once that it is full is back after a second, whether or not anything happens there.
func TestFullIsNoFault(t *testing.T) {
	for says, e := range map[string]Ending{"full": Full} {
		p := weighted(t, 3)
		play(t, p, []step{
			{at: 0, says: says, do: end(0, "e0", 5, e), want: "e1 e2"},
			{at: .9, says: "for a second", want: "e1 e2"},
			{at: 1, says: "over, without any event", want: "e0 e1 e2"},
			{at: 1, says: "full again is no longer than the first time", do: end(1, "e0", 1, e), want: "e1 e2"},
			{at: 2, says: "over", want: "e0 e1 e2"},
		})
		if p.rows[0].fails != 0 || p.rows[0].errors != 0 {
			t.Errorf("being full counts as %d failures, share %v", p.rows[0].fails, p.rows[0].errors)
		}
	}
}

// After the pause one request at a time goes to an endpoint that failed, until one is served: it opens for all with the
// first byte, and stays closed for longer with another failure.
func TestHalfOpen(t *testing.T) {
	among := func(p *Pool, now float64) int {
		n := 0
		for range 64 {
			l := pick(t, p, now, short())
			if l.Endpoint.Name == "e0:8000" {
				n++
			}
			defer l.Done(sec(now), Outcome{Ending: Aborted})
		}
		return n
	}
	p := weighted(t, 4)
	end(0, "e0", 3, Failed)(p)
	observeAll(p, 4)
	probe := at(t, p, 4, "e0:8000", *short())
	if n := among(p, 4.1); n != 0 {
		t.Errorf("%d requests joined the one that is to show whether it serves", n)
	}
	probe.Done(sec(4.2), Outcome{Ending: Failed})
	observeAll(p, 12.1)
	if n := among(p, 12.1); n != 0 {
		t.Errorf("%d requests before the longer pause is over", n)
	}
	observeAll(p, 12.3)
	probe = at(t, p, 12.3, "e0:8000", *short())
	if n := among(p, 12.4); n != 0 {
		t.Errorf("%d requests joined the second one", n)
	}
	probe.FirstByte(sec(12.5))
	if n := among(p, 12.6); n < 8 {
		t.Errorf("it serves again, and got %d of 64", n)
	}
	// What it was sent before it failed proves nothing.
	old := at(t, p, 13, "e1:8000", *short())
	end(13.1, "e1", 3, Failed)(p)
	old.Done(sec(13.2), Outcome{OutputTokens: 5})
	if n := p.rows[1].ejectedUntil; n <= 13.2 {
		t.Error("the end of a request from before the failures took it back")
	}
	probe.Done(sec(14), Outcome{})
	empty(t, p)
}

// E21: however many endpoints fail, half of them go on: what fails everywhere may be the requests or the network.
func TestNotAllAreEjected(t *testing.T) {
	for n, want := range map[int]int{1: 0, 2: 1, 3: 1, 5: 2, 8: 4} {
		for _, how := range []Ending{Failed, Refused, Full} {
			p := weighted(t, n)
			for i := range n {
				end(0, fmt.Sprintf("e%d", i), 3, how)(p)
			}
			aside := 0
			for _, s := range p.Status(0) {
				if s.State == "ejected" {
					aside++
				}
			}
			if aside != want {
				t.Errorf("%d endpoints all fail (%v): %d are put aside, want %d", n, how, aside, want)
			}
			for _, e := range p.Endpoints() {
				p.Observe(sec(60), sec(60), e.Name, UnknownReading(), nil)
			}
			for _, s := range p.Status(sec(60)) {
				if s.State == "in doubt" {
					aside--
				}
			}
			if aside != 0 {
				t.Errorf("%d endpoints all fail (%v): after a minute %d of those put aside are not said to be in doubt", n, how, aside)
			}
		}
	}
}

// A request that makes every endpoint fail that serves it ejects none but the first.
func TestOneRequestEjectsOneEndpoint(t *testing.T) {
	p := weighted(t, 8)
	for range 20 {
		r := Request{Model: "m", PromptBytes: 10, Streamed: true}
		for range 5 {
			l := pick(t, p, 0, &r)
			r.Tried, r.Suspect = append(r.Tried, l.Endpoint.Name), true
			l.Done(0, Outcome{Ending: Failed})
		}
	}
	aside := 0
	for i, ep := range p.rows {
		if ep.ejectedUntil > 0 {
			aside++
		}
		if ep.fails > 0 && ep.ejectedUntil == 0 && ep.fails > 60 {
			t.Errorf("endpoint %d: %d failures", i, ep.fails)
		}
	}
	if aside > 4 {
		t.Errorf("twenty such requests put %d of 8 endpoints aside, want at most half", aside)
	}
	p = weighted(t, 8)
	first := pick(t, p, 0, short())
	first.Done(0, Outcome{Ending: Failed})
	for range 50 {
		at(t, p, 0, other(first), Request{Model: "m", PromptBytes: 10, Suspect: true}).Done(0, Outcome{Ending: Failed})
	}
	for _, ep := range p.rows {
		if ep.Name == other(first) && (ep.fails > 0 || ep.errors > 0) {
			t.Errorf("second failures of requests count against %s: %d, share %v", ep.Name, ep.fails, ep.errors)
		}
	}
}

func TestEjectionIsBounded(t *testing.T) {
	for fails, want := range map[int]float64{0: 1, 1: 1, 2: 2, 3: 4, 5: 16, 6: 30, 1000: 30, 1 << 40: 30} {
		if got := ejection(fails); got != want {
			t.Errorf("ejection(%d): got %v s, want %v", fails, got, want)
		}
	}
}

// E13: an endpoint that fails at once, always or every other time, looks idle for ever; it must not draw everyone's
// requests, and gets its share again when it is well.
func TestFastFailingEndpointIsNoSink(t *testing.T) {
	for every, most := range map[int]int{1: 12, 2: 60} {
		p := newPool(t, 4)
		failed, there, late, open := 0, 0, 0, []*Lease{}
		for i := range 8000 {
			now := float64(i) / 100
			observeAll(p, now)
			for _, l := range open {
				l.Progress(sec(now))
			}
			l := pick(t, p, now, short())
			if l.Endpoint.Name == "e2:8000" {
				if there++; i < 2000 && there%every == 0 {
					l.Done(sec(now), Outcome{Ending: Failed})
					failed++
					continue
				}
				if i >= 7000 {
					late++
				}
			}
			l.FirstByte(sec(now))
			if open = append(open, l); len(open) > 20 {
				open[0].Done(sec(now), Outcome{OutputTokens: 50})
				open = open[1:]
			}
		}
		if failed > most {
			t.Errorf("fails one of %d: in 20 s and 2000 requests it failed %d, want at most %d", every, failed, most)
		}
		if late < 150 {
			t.Errorf("fails one of %d: a minute after it is well it got %d of 1000 requests, want about 250", every, late)
		}
	}
}
