package sim

import (
	"math"
	"slices"
	"time"
)

// forecastMatches is how many queued sequences are looked up in the cache afresh; the rest of a longer queue counts as
// it was when it came.
const forecastMatches = 64

// Forecast is the time in milliseconds until the sequence, submitted now, would have its first token, for an observer
// who knows everything but the future: the end of the current step, then the steps that compute what is queued and this
// prompt, and before them those until enough sequences have ended to make room. It changes nothing. Infinite when the
// engine does not serve.
func (e *Engine) Forecast(now time.Duration, s *Seq) float64 {
	if e.Loading(now) || e.frozen {
		return math.Inf(1)
	}
	ms := 0.
	if e.stepping {
		ms = float64(e.endAt-now) / 1e6
	}
	tokens := 0
	for _, p := range e.prefill {
		tokens += p.target - p.computed - p.chunk
	}
	for w, n := e.waiting.head, 0; w != nil && n < forecastMatches; w, n = w.next, n+1 {
		expected := e.uncached(w.Blocks, w.target)
		e.expected += expected - w.expected
		w.expected = expected
	}
	queued := e.expected
	own := e.uncached(s.Blocks, s.Prompt)
	wait := e.stepsToRoom(queued+own, e.waiting.n+1)
	ms += float64(wait) * e.stepMS(0, 0, e.decoding())
	for left := tokens + queued + own; left > 0; {
		chunk := min(left, e.cfg.Budget-e.decoding())
		if chunk < 1 {
			return math.Inf(1) // the sequences that decode take every step whole
		}
		left -= chunk
		pairs := 0. // of what is queued it is not known which belongs to which
		if left == 0 {
			pairs = float64(own) * (float64(s.Prompt-own) + float64(own)/2)
		}
		ms += e.stepMS(chunk, pairs, e.decoding())
	}
	return ms
}

// uncached is how many tokens of a prompt would have to be computed.
func (e *Engine) uncached(prompt []uint64, tokens int) int {
	held, _ := e.cache.match(prompt, (tokens-1)/BlockTokens)
	return tokens - held*BlockTokens
}

// stepMS is how long a step takes with so many prompt tokens beside what decodes.
func (e *Engine) stepMS(prompt int, pairs float64, decodes int) float64 {
	ms := e.cfg.Profile.StepMS(prompt, pairs, decodes, e.context) * e.slow
	if e.cfg.AdapterStep > 0 {
		ms *= 1 + e.cfg.AdapterStep*float64(e.activeRanks())
	}
	return ms
}

// stepsToRoom is how many steps pass until so many tokens and sequences fit, by the ends of what is decoding.
func (e *Engine) stepsToRoom(tokens, seqs int) int64 {
	blocks := blocksOf(tokens) - e.cache.free
	seqs += e.running.n - e.cfg.MaxSeqs
	if blocks <= 0 && seqs <= 0 {
		return 0
	}
	e.scratch = e.scratch[:0]
	for i, s := range e.ends {
		e.scratch = append(e.scratch, (s.end-e.clock)<<16|int64(i))
	}
	slices.Sort(e.scratch)
	steps := int64(0)
	for _, packed := range e.scratch {
		if blocks <= 0 && seqs <= 0 {
			break
		}
		steps = packed >> 16
		seqs--
		blocks -= len(e.ends[packed&0xffff].kv)
	}
	return steps
}
