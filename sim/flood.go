package sim

import (
	"math"
	"math/rand/v2"
	"slices"
	"time"
)

const (
	// floodPrompt is how long the prompts of a flood are.
	floodPrompt = 4000
	// nobody is the tag of sequences that no gateway sent.
	nobody = -1
)

// flood gives an engine so many seconds of prompts to prefill that no gateway sent, and makes it forget what it held
// that nobody was using: caches are thrashed and there is a backlog, whatever the policy.
func (w *world) flood(e *Engine, backlog float64) {
	e.cache.empty()
	each := prefillSeconds(&e.cfg.Profile, floodPrompt, 0) + e.cfg.Profile.PA*floodPrompt/float64(e.cfg.Budget)/1e3
	for n := 0; float64(n)*each < backlog; n++ {
		s := &Seq{Prompt: floodPrompt, Output: 1, Tag: nobody}
		for b := range floodPrompt / BlockTokens {
			s.Blocks = append(s.Blocks, max(mix(w.rng.Uint64()+uint64(b)), 1))
		}
		e.Submit(w.now, s)
	}
	if w.result.shocked == 0 {
		w.result.shocked = w.now
	}
}

const (
	// recoverWindow is over how long times to first token are averaged to see whether they are normal again.
	recoverWindow = 2 * time.Second
	// recoverFactor is how much above the mean of the time before the shock is normal, unless a window then was above
	// it too.
	recoverFactor = 2
)

// window sums up the times to first token of what arrived within recoverWindow.
type window struct{ sum, n float64 }

func (w window) mean() float64 { return w.sum / w.n }

// windows are those before and after the shock, by their number from it on.
type windows struct{ before, after map[int]window }

func newWindows() windows { return windows{make(map[int]window), make(map[int]window)} }

// windows is the requests of a run by when they arrived; empty without a shock.
func (r *Result) windows() windows {
	out := newWindows()
	if r.shocked == 0 {
		return out
	}
	for _, o := range r.counted {
		at := out.after
		if o.arrived < r.shocked {
			at = out.before
		}
		k := int((o.arrived - r.shocked) / recoverWindow)
		at[k] = window{at[k].sum + o.ttft, at[k].n + 1}
	}
	return out
}

// add takes the requests of another run to these.
func (w windows) add(other windows) {
	for k, x := range other.before {
		w.before[k] = window{w.before[k].sum + x.sum, w.before[k].n + x.n}
	}
	for k, x := range other.after {
		w.after[k] = window{w.after[k].sum + x.sum, w.after[k].n + x.n}
	}
}

// recovery is how many seconds after the shock times to first token were normal for good; NaN without a shock or
// without a time before it.
func (w windows) recovery() float64 {
	var all window
	for _, x := range w.before {
		all = window{all.sum + x.sum, all.n + x.n}
	}
	if all.n == 0 {
		return math.NaN()
	}
	normal := recoverFactor * all.mean()
	for _, x := range w.before {
		normal = max(normal, x.mean())
	}
	last := -1
	for k, x := range w.after {
		if x.mean() > normal {
			last = max(last, k)
		}
	}
	return float64(last+1) * recoverWindow.Seconds()
}

// recovery is that of all runs together, window by window. One run has a dozen requests in a window where few come, of
// which two that are slow by chance make it look disturbed, flood or none: so judged, traffic like R2's takes 9 s on
// average to recover from nothing. The interval is Efron's: where 95 % of draws of as many runs, with repetition, lie.
func recovery(runs []figures) Interval {
	const draws = 1000
	of := func(pick func(i int) int) float64 {
		sum := newWindows()
		for i := range runs {
			sum.add(runs[pick(i)].windows)
		}
		return sum.recovery()
	}
	out := Interval{of(func(i int) int { return i }), math.NaN(), math.NaN()}
	if len(runs) < 2 || math.IsNaN(out.Mean) {
		return out
	}
	rng := rand.New(rand.NewPCG(1, uint64(len(runs))))
	var drawn []float64
	for range draws {
		drawn = append(drawn, of(func(int) int { return rng.IntN(len(runs)) }))
	}
	slices.Sort(drawn)
	out.Low, out.High = Quantile(drawn, .025), Quantile(drawn, .975)
	return out
}
