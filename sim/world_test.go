package sim

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"
)

// summary is all figures of a result, to compare.
func summary(r *Result) string {
	return fmt.Sprint(r.Counted(), r.Mean(), r.Quantile(.5), r.Quantile(.95), r.MeanTPOT(), r.HitRate(), r.Unfinished, r.Failed, r.Moved, r.Preemptions, r.Steps, r.Served)
}

// The same options give the same result to the last digit, with every policy, several replicas and faults; another seed gives another.
func TestWorldsRepeat(t *testing.T) {
	requests := Mix{Rate: Steady(30), CV: 2, Prompt: Length{600, .8}, Output: Length{100, .8}, Prefixes: 5, PrefixTokens: 500, Adapters: []string{"a", "b", "c"}}.Generate(1, 12*time.Second)
	fleet := append(engines("l8-h100", 2), engines("l8-a10g", 2)...)
	for i := range fleet {
		fleet[i].AdapterSlots, fleet[i].AdapterLoad = 2, 30*time.Millisecond
	}
	for _, p := range Policies() {
		run := func(seed uint64) string {
			return summary(Run(Options{Engines: fleet, Requests: requests, Policy: p, Replicas: 2, Share: seed%2 == 1, Seed: seed, End: time.Minute, Wire: time.Millisecond,
				Faults: []Fault{{5 * time.Second, 0, Crashed, 2}, {6 * time.Second, 1, Slow, 4}, {8 * time.Second, 1, Slow, 1}}}))
		}
		first := run(1)
		if again := run(1); again != first {
			t.Errorf("%s: got %s, then %s", p.Name, first, again)
		}
		if other := run(2); other == first {
			t.Errorf("%s: two seeds give the same: %s", p.Name, first)
		}
	}
}

// Every request is counted, whatever becomes of it, and what one follows comes after it.
func TestEveryRequestIsCounted(t *testing.T) {
	chats := Chat(Steady(2)).Generate(1, 20*time.Second)
	for _, p := range Policies() {
		r := Run(Options{Engines: engines("q32-h100x2", 2), Requests: chats, Policy: p})
		if r.Counted() != len(chats) || r.Unfinished != 0 || r.Failed != 0 {
			t.Errorf("%s: %d of %d counted, %d unfinished, %d failed; want all and none", p.Name, r.Counted(), len(chats), r.Unfinished, r.Failed)
		}
	}
	within := 0
	r := Run(Options{Engines: engines("q32-h100x2", 2), Requests: chats, Policy: RoundRobin(), Warm: 5 * time.Second, Until: 15 * time.Second})
	for _, c := range chats {
		if c.Follows < 0 && c.At >= 5*time.Second && c.At < 15*time.Second {
			within++
		}
	}
	if r.Counted() < within || r.Counted() > len(chats)/2 {
		t.Errorf("from 5 to 15 s: got %d of %d requests counted, want the %d that follow none, and few that do", r.Counted(), len(chats), within)
	}
	// One engine of the slowest kind under far too much: what has no first token counts as infinite.
	r = Run(Options{Engines: engines("q32-a10gx4", 1), Requests: Mix{Rate: Steady(20), Prompt: Length{2000, .5}, Output: Length{200, .5}}.Generate(1, 30*time.Second),
		Policy: RoundRobin(), Warm: 10 * time.Second, End: 40 * time.Second})
	if r.Unfinished == 0 || !math.IsInf(r.Quantile(.99), 1) || math.IsInf(r.Mean(), 1) || r.Good(2, .05) > .5 {
		t.Errorf("overload: %d unfinished, P99 %v, mean %v, good %v", r.Unfinished, r.Quantile(.99), r.Mean(), r.Good(2, .05))
	}
}

// A crashed engine's requests without a byte move and are served elsewhere, those with one fail; production then leaves the engine alone until it is back.
func TestCrash(t *testing.T) {
	requests := Mix{Rate: Steady(26), Prompt: Length{3000, .3}, Output: Length{100, .3}}.Generate(1, 30*time.Second)
	for _, p := range []Policy{Latency(), Weights()} {
		r := Run(Options{Engines: engines("l8-a100", 4), Requests: requests, Policy: p, End: 2 * time.Minute, Scrape: 200 * time.Millisecond,
			Faults: []Fault{{10 * time.Second, 2, Crashed, 5}}})
		if r.Moved == 0 || r.Failed == 0 || r.Failed > 60 || r.Unfinished != 0 {
			t.Errorf("%s: %d moved, %d failed, %d unfinished; want some moved, a few failed, none unfinished", p.Name, r.Moved, r.Failed, r.Unfinished)
		}
	}
}

// An engine that goes on answering scrapes and does nothing holds only what it had.
func TestFrozenEngineIsLeft(t *testing.T) {
	requests := Mix{Rate: Steady(20), Prompt: Length{600, .3}, Output: Length{100, .3}}.Generate(1, 40*time.Second)
	r := Run(Options{Engines: engines("l8-h100", 4), Requests: requests, Policy: Latency(), End: 3 * time.Minute,
		Faults: []Fault{{10 * time.Second, 1, Frozen, 0}, {2 * time.Minute, 1, Thawed, 0}}})
	if late := 1 - r.Good(1, math.Inf(1)); late > .02 || r.Failed > 0 || r.Unfinished > 0 {
		t.Errorf("%.1f %% of requests waited over a second, %d failed, %d unfinished; want under 2 %%, none, none", 100*late, r.Failed, r.Unfinished)
	}
}

// ear is a gateway that writes down when it hears what.
type ear struct {
	deaf
	heard []string
	at    []time.Duration
}

func (e *ear) note(now time.Duration, what string) {
	e.heard, e.at = append(e.heard, what), append(e.at, now)
}

func (e *ear) pick(time.Duration, *flight) int             { return 0 }
func (e *ear) first(now time.Duration, _ *flight)          { e.note(now, "first") }
func (e *ear) progress(now time.Duration, _ int)           { e.note(now, "step") }
func (e *ear) done(now time.Duration, _ *flight, _ ending) { e.note(now, "done") }

// A gateway hears of what happens late, and never before it has happened; of one request in order. What happened does not depend on when it is heard.
func TestNewsComesLate(t *testing.T) {
	run := func(wire time.Duration, streams int) (*ear, *Result) {
		e := &ear{}
		requests := slices.Repeat([]Request{{Follows: -1, Prompt: []Segment{{1, 500}}, Output: 400}}, streams)
		requests = append(requests, Request{At: 30 * time.Second, Follows: -1, Prompt: []Segment{{2, 5}}, Output: 1})
		return e, Run(Options{Engines: engines("l8-h100", 1), Requests: requests, Wire: wire, Policy: Policy{Name: "ear", make: func(*world) gateway { return e }}})
	}
	at := func(e *ear, what string) time.Duration { return e.at[slices.Index(e.heard, what)] }
	now, there := run(0, 1)
	late, here := run(2*time.Millisecond, 1)
	if there.Mean() != here.Mean() || there.MeanTPOT() != here.MeanTPOT() || there.Steps != here.Steps {
		t.Errorf("heard at once %v, late %v: want the same", summary(there), summary(here))
	}
	if !slices.IsSorted(late.at) || at(late, "first") <= at(now, "first") || at(late, "done") <= at(now, "done") || at(late, "done") < at(late, "first") {
		t.Errorf("first token at %v heard at %v, end at %v heard at %v", at(now, "first"), at(late, "first"), at(now, "done"), at(late, "done"))
	}
	// Of a step it hears by the first of its streams' tokens.
	for streams, steps := range map[int]time.Duration{1: 399, 4: 400} { // the first of four is a step ahead of the others
		sum := func(e *ear) (sum, n time.Duration) {
			for i, what := range e.heard {
				if what == "step" && e.at[i] < 20*time.Second {
					sum, n = sum+e.at[i], n+1
				}
			}
			return sum, n
		}
		now, _ := run(0, streams)
		late, _ := run(2*time.Millisecond, streams)
		was, n := sum(now)
		is, m := sum(late)
		want := 2 * time.Millisecond / time.Duration(streams)
		if n != steps || m != n || (is-was)/n < want*85/100 || (is-was)/n > want*115/100 {
			t.Errorf("%d streams: %d and %d of %d steps, heard %v late in the mean, want %v", streams, n, m, steps, (is-was)/max(n, 1), want)
		}
	}
}

// A request that an engine will never take fails, and the engine is no worse for it.
func TestTooLongAPromptFails(t *testing.T) {
	requests := []Request{{Follows: -1, Prompt: []Segment{{1, 1 << 20}}, Output: 5}}
	for i := range 20 {
		requests = append(requests, Request{At: time.Duration(i+1) * time.Millisecond, Follows: -1, Prompt: []Segment{{uint64(i) + 2, 100}}, Output: 5})
	}
	for _, p := range []Policy{Latency(), RoundRobin()} {
		r := Run(Options{Engines: engines("l8-h100", 1), Requests: requests, Policy: p, Wire: 2 * time.Millisecond})
		if r.Failed != 1 || r.Counted() != 21 || r.Unfinished != 0 {
			t.Errorf("%s: %d of %d failed, %d unfinished; want 1 of 21, 0", p.Name, r.Failed, r.Counted(), r.Unfinished)
		}
	}
}

// Requests that do not finish count with what they had: tokens come at the engine's speed, whether their requests end in time or not.
func TestUnfinishedRequestsCount(t *testing.T) {
	requests := []Request{{Follows: -1, Prompt: []Segment{{1, 100}}, Output: 100000}, {Follows: -1, Prompt: []Segment{{2, 100}}, Output: 100000}}
	r := Run(Options{Engines: engines("l8-h100", 1), Requests: requests, Policy: RoundRobin(), End: time.Minute})
	if tpot := 1000 * r.MeanTPOT(); r.Unfinished != 2 || tpot < 6 || tpot > 8 || math.Abs(r.TokensPerSecond()*r.MeanTPOT()-2) > .02 {
		t.Errorf("got %d unfinished, %.2f ms a token and %.0f tokens/s, want 2, about 7, and 2 every so long", r.Unfinished, tpot, r.TokensPerSecond())
	}
}

// What cannot be found again need not be remembered: the results are the same as if it were.
func TestSharingChangesNothing(t *testing.T) {
	all := func(requests []Request) sharing {
		s := newSharing(requests)
		for id := range s {
			s[id] = true
		}
		return s
	}
	for name, requests := range map[string][]Request{
		"sessions": Agents(Steady(2)).Generate(1, 20*time.Second),
		"prefixes": Mix{Rate: Steady(20), Prompt: Length{600, .8}, Output: Length{50, .5}, Prefixes: 5, PrefixTokens: 500, Adapters: []string{"a", "b"}}.Generate(1, 20*time.Second),
		"nothing":  Mix{Rate: Steady(20), Prompt: Length{600, .8}, Output: Length{50, .5}}.Generate(1, 20*time.Second),
	} {
		for _, p := range []Policy{Latency(), Greedy()} {
			fleet := engines("l8-a100", 2)
			for i := range fleet {
				fleet[i].KVTokens, fleet[i].AdapterSlots = 60000, 2
			}
			o := Options{Engines: fleet, Requests: requests, Policy: p, Wire: 2 * time.Millisecond, Scrape: 200 * time.Millisecond}
			got := summary(Run(o))
			w := newWorld(&o)
			w.shared = all(requests)
			if want := summary(w.run()); got != want {
				t.Errorf("%s, %s: got %s, want %s", name, p.Name, got, want)
			}
		}
	}
}

// BenchmarkWorld is ten minutes of 64 busy endpoints.
func BenchmarkWorld(b *testing.B) {
	row := Row{Engines: append(engines("l8-h100", 32), engines("l8-a10g", 32)...), Requests: mixed(880)}
	requests := row.Requests(1, 10*time.Minute)
	for _, p := range []Policy{LeastRequests(), Latency(), Greedy()} {
		b.Run(p.Name, func(b *testing.B) {
			for b.Loop() {
				Run(Options{Engines: row.Engines, Requests: requests, Policy: p, End: 11 * time.Minute, Scrape: 200 * time.Millisecond})
			}
		})
	}
}
