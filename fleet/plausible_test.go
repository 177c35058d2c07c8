package fleet

import (
	"math"
	"testing"
)

// stream sends one plain request: 1000 tokens of prompt in 20 ms, 100 tokens at 10 ms each.
func stream(t *testing.T, p *Pool, now float64, o Outcome, seconds float64) float64 {
	t.Helper()
	l := pick(t, p, now, &Request{Model: "m", PromptBytes: 4000, UnitBytes: unitBytes, Streamed: true})
	l.FirstByte(sec(now + .02))
	now += .02 + seconds
	l.Done(sec(now), o)
	observeAll(p, now)
	return now
}

// learned is what matters of what a pool has learned.
func learned(p *Pool) [5]float64 {
	r := p.view.Rates[0]
	return [5]float64{float64(r.Prefill), float64(r.Decode), p.means.uncached(), p.means.output(), p.means.bytesPerToken()}
}

// One absurd outcome, of an engine's own words or a peer's, changes what was learned of many plain ones by half at most,
// and a hundred plain ones bring it back.
func TestOneAbsurdOutcomeDoesNotDecide(t *testing.T) {
	plain := Outcome{PromptTokens: 1000, OutputTokens: 100}
	hear := func(p *Pool, now float64, n Note, o Outcome) {
		n.Kind, n.ID, n.Endpoint, n.At, n.Streamed = NoteSent, 1, "e0:8000", sec(now), true
		p.Hear("peer", []Note{n, {Kind: NoteBegun, ID: 1, At: sec(now)}, {Kind: NoteEnded, ID: 1, At: sec(now), Outcome: o}})
	}
	for name, absurd := range map[string]func(p *Pool, now float64) float64{
		"an engine's usage of 2^31 tokens": func(p *Pool, now float64) float64 {
			return stream(t, p, now, Outcome{PromptTokens: math.MaxInt32, OutputTokens: math.MaxInt32}, 1)
		},
		"an engine's usage of 200000 tokens in a second": func(p *Pool, now float64) float64 {
			return stream(t, p, now, Outcome{OutputTokens: 200_000}, 1)
		},
		"an engine's usage of 100000 tokens in three seconds": func(p *Pool, now float64) float64 {
			return stream(t, p, now, Outcome{OutputTokens: 100_000}, 3)
		},
		"negative counts": func(p *Pool, now float64) float64 {
			return stream(t, p, now, Outcome{PromptTokens: math.MinInt32, OutputTokens: math.MinInt32}, 1)
		},
		"a peer's note of 2^31 tokens": func(p *Pool, now float64) float64 {
			hear(p, now, Note{PromptBytes: 4000, Uncached: 1000}, Outcome{Ending: Finished, PromptTokens: math.MaxInt32, OutputTokens: math.MaxInt32})
			return now
		},
		"a peer's prompt of 2^31 tokens in no time": func(p *Pool, now float64) float64 {
			hear(p, now, Note{PromptBytes: math.MaxInt32, Uncached: math.MaxInt32, Held: math.MaxInt32}, plain)
			return now
		},
		"a peer's prompt of more tokens than bytes": func(p *Pool, now float64) float64 {
			hear(p, now, Note{PromptBytes: 100, Uncached: math.MaxInt32}, plain)
			return now
		},
	} {
		t.Run(name, func(t *testing.T) {
			p, now := newPool(t, 1), 1.
			for range 300 {
				now = stream(t, p, now, plain, 1)
			}
			before := learned(p)
			now = absurd(p, now)
			for i, got := range learned(p) {
				if i != 2 && !(got > before[i]/2.1 && got < before[i]*30) {
					t.Errorf("number %d: got %v right after, was %v", i, got, before[i])
				}
			}
			for range 200 {
				now = stream(t, p, now, plain, 1)
			}
			for i, got := range learned(p) {
				if math.Abs(got/before[i]-1) > 1 {
					t.Errorf("number %d: got %v after 200 plain requests, was %v", i, got, before[i])
				}
			}
			audit(t, p)
		})
	}
}
