package sim

import (
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/sluice-gateway/sluice/fleet"
)

// deaf hears nothing of what becomes of requests.
type deaf struct{}

func (deaf) progress(time.Duration, int)                     {}
func (deaf) first(time.Duration, *flight)                    {}
func (deaf) done(time.Duration, *flight, ending)             {}
func (deaf) observe(time.Duration, int, fleet.Reading, bool) {}
func (deaf) tick(time.Duration)                              {}
func (deaf) lost(*flight) bool                               { return false }
func untried(f *flight, i int) bool                          { return len(f.tried) == 0 || !slices.Contains(f.tried, i) }

// RoundRobin takes the endpoints in turn.
func RoundRobin() Policy {
	return Policy{"round robin", "round-robin", func(w *world) gateway { return &roundRobin{n: len(w.engines)} }}
}

type roundRobin struct {
	deaf
	n, turn int
}

func (p *roundRobin) pick(_ time.Duration, f *flight) int {
	for range p.n {
		i := p.turn % p.n
		p.turn++
		if untried(f, i) {
			return i
		}
	}
	return -1
}

// open counts this gateway's requests that have not ended, by endpoint.
type open struct {
	deaf
	open []int
	rng  *rand.Rand
}

func newOpen(w *world) open {
	return open{open: make([]int, len(w.engines)), rng: rand.New(rand.NewPCG(w.rng.Uint64(), 5))}
}

func (p *open) done(_ time.Duration, f *flight, _ ending) { p.open[f.endpoint]-- }

// take counts a request at the endpoint, unless that is -1.
func (p *open) take(i int) int {
	if i >= 0 {
		p.open[i]++
	}
	return i
}

// LeastRequests takes the endpoint with the fewest of this gateway's requests, at random among equals.
func LeastRequests() Policy {
	return Policy{"least requests", "least-requests", func(w *world) gateway { return &leastRequests{newOpen(w)} }}
}

type leastRequests struct{ open }

func (p *leastRequests) pick(_ time.Duration, f *flight) int {
	return p.take(least(p.rng, f, len(p.open.open), func(i int) float64 { return float64(p.open.open[i]) }))
}

// random takes any endpoint.
func random() Policy {
	return Policy{"random", "random", func(w *world) gateway { return &anyone{newOpen(w)} }}
}

type anyone struct{ open }

func (p *anyone) pick(_ time.Duration, f *flight) int {
	return p.take(least(p.rng, f, len(p.open.open), func(int) float64 { return 0 }))
}

// powerOfTwo draws two endpoints and takes the one with fewer of this gateway's requests (Mitzenmacher, 2001; SMG's
// power_of_two).
func powerOfTwo() Policy {
	return Policy{"power of two", "power-of-two", func(w *world) gateway { return &twoChoices{newOpen(w)} }}
}

type twoChoices struct{ open }

func (p *twoChoices) pick(_ time.Duration, f *flight) int {
	nothing := func(int) float64 { return 0 }
	a := least(p.rng, f, len(p.open.open), nothing)
	b := least(p.rng, f, len(p.open.open), func(i int) float64 {
		if i == a {
			return 1
		}
		return 0
	})
	if a >= 0 && p.open.open[a] < p.open.open[b] {
		b = a
	}
	return p.take(b)
}

// least is the endpoint not tried that costs least, at random among equals; -1 when none is left.
func least(rng *rand.Rand, f *flight, n int, cost func(int) float64) int {
	best, lowest, equals := -1, math.Inf(1), 0
	for i := range n {
		if !untried(f, i) {
			continue
		}
		switch c := cost(i); {
		case best < 0 || c < lowest:
			best, lowest, equals = i, c, 1
		case c == lowest:
			if equals++; rng.IntN(equals) == 0 {
				best = i
			}
		}
	}
	return best
}
