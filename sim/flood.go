package sim

import (
	"math"
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

// recovery is how many seconds after the shock times to first token were normal for good; NaN without a shock or
// without a time before it.
func (r *Result) recovery() float64 {
	if r.shocked == 0 {
		return math.NaN()
	}
	type window struct{ sum, n float64 }
	before, after := make(map[int]window), make(map[int]window)
	var all window
	for _, o := range r.counted {
		into := after
		if o.arrived < r.shocked {
			into = before
			all.sum, all.n = all.sum+o.ttft, all.n+1
		}
		k := int((o.arrived - r.shocked) / recoverWindow)
		x := into[k]
		into[k] = window{x.sum + o.ttft, x.n + 1}
	}
	if all.n == 0 {
		return math.NaN()
	}
	normal := recoverFactor * all.sum / all.n
	for _, x := range before {
		normal = max(normal, x.sum/x.n)
	}
	last := -1
	for k, x := range after {
		if x.sum/x.n > normal {
			last = max(last, k)
		}
	}
	return float64(last+1) * recoverWindow.Seconds()
}
