package console

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"
)

// last is the newest point of a series at a time.
func last(s *Series, now time.Duration) (p50, p95, tokens, cached, rate, failed float64, never bool) {
	p, _ := s.window(now)
	i := window - 1
	return float64(p.P50[i]), float64(p.P95[i]), float64(p.Tokens[i]), float64(p.Cached[i]), float64(p.Rate[i]), float64(p.Failed[i]), p.Never[i]
}

// naive is the least value that a share q of the sorted values do not exceed.
func naive(sorted []float64, q float64) float64 {
	return sorted[max(int(math.Ceil(q*float64(len(sorted)))), 1)-1]
}

// TestPercentiles compares every point with percentiles of the samples of its five seconds, sorted.
func TestPercentiles(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	s := NewSeries()
	samples := make(map[int][]float64) // by second, milliseconds
	const seconds = 300
	now := time.Duration(0)
	for now < seconds*time.Second {
		ms := math.Exp(rng.NormFloat64()*2 + 5)
		s.Add(now, Sample{TTFT: time.Duration(ms * float64(time.Millisecond)), OK: true})
		samples[int(now/time.Second)] = append(samples[int(now/time.Second)], ms)
		now += time.Duration(rng.ExpFloat64() * float64(40*time.Millisecond))
	}
	now = seconds * time.Second
	p, _ := s.window(now)
	for i := range window {
		end := seconds - window + i // the second that point i ends with
		var all []float64
		for n := end - spread + 1; n <= end; n++ {
			all = append(all, samples[n]...)
		}
		slices.Sort(all)
		for _, c := range []struct {
			q   float64
			got figure
		}{{.5, p.P50[i]}, {.95, p.P95[i]}} {
			want := naive(all, c.q)
			if got := float64(c.got); math.Abs(got/want-1) > .0101 {
				t.Errorf("point %d: got P%.0f %.3f ms, want %.3f within 1 %%", i, 100*c.q, got, want)
			}
		}
		if got, want := float64(p.Rate[i]), float64(len(all))/spread; got != want {
			t.Errorf("point %d: got %g requests a second, want %g", i, got, want)
		}
	}
}

// TestSeriesSteps follows one series through time.
func TestSeriesSteps(t *testing.T) {
	s := NewSeries()
	near := func(got, want float64) bool {
		return math.IsNaN(want) && math.IsNaN(got) || got == want || math.Abs(got/want-1) < .011
	}
	for _, step := range []struct {
		what                   string
		at                     time.Duration
		add                    []Sample
		look                   time.Duration
		p50, p95, tokens, hits float64
		rate, failed           float64
		never                  bool
	}{
		{"nothing has ended", 0, nil, 10 * time.Second, math.NaN(), math.NaN(), 0, math.NaN(), 0, 0, false},
		{"a second that has not ended is not shown", 10 * time.Second, []Sample{{TTFT: 100 * time.Millisecond, Tokens: 50, Prompt: 100, Cached: 25, OK: true}},
			10*time.Second + 900*time.Millisecond, math.NaN(), math.NaN(), 0, math.NaN(), 0, 0, false},
		{"it is when it has", 10 * time.Second, nil, 11 * time.Second, 100, 100, 10, .25, .2, 0, false},
		{"an answer that came whole has no TTFT but tokens", 11 * time.Second, []Sample{{Tokens: 10, OK: true}}, 12 * time.Second, 100, 100, 12, .25, .4, 0, false},
		{"a request that did not finish is worse than all that did", 12 * time.Second, []Sample{{}}, 13 * time.Second, 100, math.Inf(1), 12, .25, .6, .2, true},
		{"one that broke after its first token keeps its TTFT", 13 * time.Second, []Sample{{TTFT: 300 * time.Millisecond}, {TTFT: 300 * time.Millisecond}},
			14 * time.Second, 300, math.Inf(1), 12, .25, 1, .6, true},
		{"the first falls out after five seconds", 0, nil, 16 * time.Second, 300, math.Inf(1), 2, math.NaN(), .8, .6, true},
		{"all do", 0, nil, 20 * time.Second, math.NaN(), math.NaN(), 0, math.NaN(), 0, 0, false},
		{"and are gone after two minutes", 0, nil, 300 * time.Second, math.NaN(), math.NaN(), 0, math.NaN(), 0, 0, false},
	} {
		for _, x := range step.add {
			s.Add(step.at, x)
		}
		p50, p95, tokens, hits, rate, failed, never := last(s, step.look)
		if !near(p50, step.p50) || !near(p95, step.p95) || !near(tokens, step.tokens) || !near(hits, step.hits) || !near(rate, step.rate) ||
			!near(failed, step.failed) || never != step.never {
			t.Errorf("%s: got P50 %g, P95 %g, %g tokens/s, share %g, %g/s, %g unfinished/s, never %v, want %+v", step.what, p50, p95, tokens, hits, rate, failed, never, step)
		}
	}
}

// TestBeforeTheOrigin: seconds before the clock began were not counted, which is not 0.
func TestBeforeTheOrigin(t *testing.T) {
	p, _ := NewSeries().window(10 * time.Second)
	if got := float64(p.Tokens[window-11]); !math.IsNaN(got) {
		t.Errorf("got %g tokens/s before the origin, want none known", got)
	}
	if got := float64(p.Tokens[window-10]); got != 0 {
		t.Errorf("got %g tokens/s in the first second, want 0", got)
	}
}

// TestShares: an endpoint's cached share is over the whole window.
func TestShares(t *testing.T) {
	s := NewSeries()
	s.Add(1*time.Second, Sample{Endpoint: "a", Prompt: 100, Cached: 100, OK: true})
	s.Add(60*time.Second, Sample{Endpoint: "a", Prompt: 300, OK: true})
	s.Add(60*time.Second, Sample{Endpoint: "b", Prompt: 10, Cached: 5, OK: true})
	_, shares := s.window(61 * time.Second)
	if shares["a"] != .25 || shares["b"] != .5 || len(shares) != 2 {
		t.Errorf("got %v, want a .25 and b .5", shares)
	}
	if _, shares = s.window(150 * time.Second); shares["a"] != 0 {
		t.Errorf("got %v, want the first request of a to be forgotten", shares)
	}
}

// TestExtremes: times beyond the bins are counted in the outermost, and a clock that stands still or goes back does no
// harm.
func TestExtremes(t *testing.T) {
	s := NewSeries()
	s.Add(5*time.Second, Sample{TTFT: 1, OK: true})
	s.Add(-time.Second, Sample{TTFT: math.MaxInt64, OK: true})
	p50, p95, _, _, rate, _, _ := last(s, 6*time.Second)
	if p50 > .1 || p95 < 1e6 || math.IsInf(p95, 0) || rate != .4 {
		t.Errorf("got P50 %g and P95 %g of %g/s, want the first and the last bin of .4", p50, p95, rate)
	}
}

// TestOutcomes: the latest outcomes are kept by ID, and no more of them than there is room for.
func TestOutcomes(t *testing.T) {
	s := NewSeries()
	for i := range 2*outcomes + 7 {
		s.Add(0, Sample{ID: fmt.Sprint(i % (outcomes + 3)), Tokens: i, OK: true})
	}
	if len(s.byID) > outcomes {
		t.Errorf("got %d outcomes, want at most %d", len(s.byID), outcomes)
	}
	newest := 2*outcomes + 6
	if x, ok := s.outcome(fmt.Sprint(newest % (outcomes + 3))); !ok || x.Tokens != newest {
		t.Errorf("got %+v, %v of the newest, want %d tokens", x, ok, newest)
	}
	if _, ok := s.outcome(fmt.Sprint((newest + 1) % (outcomes + 3))); ok {
		t.Error("got an outcome of the one that has been forgotten, want none")
	}
}

// TestSeats: one second tells only so many endpoints apart, whatever it is given.
func TestSeats(t *testing.T) {
	s := NewSeries()
	for i := range 2 * seats {
		s.Add(0, Sample{Endpoint: fmt.Sprint(i), Prompt: 1, OK: true})
	}
	if _, shares := s.window(time.Second); len(shares) != seats {
		t.Errorf("got %d endpoints, want %d", len(shares), seats)
	}
}

// TestSeriesTogether is for the race detector.
func TestSeriesTogether(t *testing.T) {
	s := NewSeries()
	var all sync.WaitGroup
	for g := range 4 {
		all.Go(func() {
			for i := range 500 {
				now := time.Duration(i) * 10 * time.Millisecond
				s.Add(now, Sample{ID: fmt.Sprint(g, i), TTFT: time.Millisecond, OK: true})
				if i%50 == 0 {
					s.window(now)
					s.outcome(fmt.Sprint(g, i))
				}
			}
		})
	}
	all.Wait()
	p, _ := s.window(6 * time.Second)
	if got := int(math.Round(float64(p.Rate[window-2]) * spread)); got != 2000 {
		t.Errorf("got %d requests in the first five seconds, want 2000", got)
	}
}

func BenchmarkAdd(b *testing.B) {
	s := NewSeries()
	for i := range b.N {
		s.Add(time.Duration(i)*time.Millisecond, Sample{ID: "x", Endpoint: "e", TTFT: 100 * time.Millisecond, Prompt: 10, OK: true})
	}
}

func BenchmarkWindow(b *testing.B) {
	s := NewSeries()
	for i := range 120_000 {
		s.Add(time.Duration(i)*time.Millisecond, Sample{Endpoint: "e", TTFT: time.Duration(i) * time.Microsecond, Prompt: 10, OK: true})
	}
	for range b.N {
		s.window(120 * time.Second)
	}
}
