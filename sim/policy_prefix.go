package sim

import (
	"math"
	"slices"
	"time"

	"github.com/sluice-gateway/sluice/fleet"
)

// guessing counts its own requests, and guesses what endpoints hold by what it sent there.
type guessing struct {
	open
	holds []*guess
}

func newGuessing(w *world, block int, tokens func(e *Engine) int) guessing {
	g := guessing{open: newOpen(w)}
	for _, e := range w.engines {
		g.holds = append(g.holds, newGuess(block, tokens(e)))
	}
	return g
}

// send counts the request at the endpoint and notes that its prompt went there.
func (g *guessing) send(i int, f *flight) int {
	if i >= 0 {
		g.holds[i].add(f.promptBlocks())
	}
	return g.take(i)
}

func (g *guessing) fewest(f *flight) int {
	return least(g.rng, f, len(g.open.open), func(i int) float64 { return float64(g.open.open[i]) })
}

func engineTokens(e *Engine) int { return e.Config().KVTokens }

// smg is the cache_aware policy of SMG (lightseekorg/smg, before that SGLang's router) with its command's defaults:
// while the greatest and the least load differ by more than 64 and 1.5 times, the least loaded; else the endpoint of
// the longest match if that is above 0.3 of the prompt, else the least loaded. What an endpoint holds is guessed from
// what was sent there; that it is bounded by the endpoint's own cache is more than its text tree has.
func smg() Policy { return smgWith("SMG cache-aware", "smg", smgThresholds{64, 1.5, .3}) }

// smgLibrary is smg with the defaults of its library: 32, 1.1 and 0.5.
func smgLibrary() Policy { return smgWith("SMG, library's", "smg-library", smgThresholds{32, 1.1, .5}) }

func smgWith(name, short string, t smgThresholds) Policy {
	return Policy{name, short, func(w *world) gateway { return &smgGateway{newGuessing(w, BlockTokens, engineTokens), t} }}
}

type smgThresholds struct{ absolute, relative, match float64 }

type smgGateway struct {
	guessing
	thresholds smgThresholds
}

func (t *smgThresholds) imbalanced(most, fewest int) bool {
	return float64(most-fewest) > t.absolute && float64(most) > t.relative*float64(fewest)
}

func (p *smgGateway) pick(_ time.Duration, f *flight) int {
	if p.thresholds.imbalanced(slices.Max(p.open.open), slices.Min(p.open.open)) {
		return p.send(p.fewest(f), f)
	}
	// The longest match, and of several the least loaded.
	best := least(p.rng, f, len(p.holds), func(i int) float64 {
		return -float64(p.holds[i].match(f.promptBlocks())) + float64(p.open.open[i])/1e6
	})
	if best >= 0 && float64(p.holds[best].match(f.promptBlocks())) <= p.thresholds.match*float64(f.seq.Prompt) {
		best = p.fewest(f)
	}
	return p.send(best, f)
}

// aibrix is the prefix-cache policy of AIBrix (vllm-project/aibrix) with its defaults: when the most and the fewest
// requests in flight differ by more than 16, the fewest; else of those that match, in order of the match in whole per
// cent and then of requests, the first with at most the mean and two standard deviations; else the fewest. Blocks are
// of 128 characters, 200,000 of them.
func aibrix() Policy {
	return Policy{"AIBrix prefix-cache", "aibrix", func(w *world) gateway {
		return &aibrixGateway{newGuessing(w, aibrixBlock, func(*Engine) int { return aibrixBlocks * aibrixBlock })}
	}}
}

const (
	aibrixBlock     = 128 / bytesPerToken
	aibrixBlocks    = 200000
	aibrixImbalance = 16
	aibrixDeviation = 2
)

type aibrixGateway struct{ guessing }

func (p *aibrixGateway) pick(_ time.Duration, f *flight) int {
	if slices.Max(p.open.open)-slices.Min(p.open.open) > aibrixImbalance {
		return p.send(p.fewest(f), f)
	}
	limit := aibrixLimit(p.open.open)
	best := least(p.rng, f, len(p.holds), func(i int) float64 {
		percent := 100 * p.holds[i].match(f.promptBlocks()) / f.seq.Prompt
		if percent == 0 || float64(p.open.open[i]) > limit {
			return 1
		}
		return -float64(percent) + float64(p.open.open[i])/1e6
	})
	if best >= 0 && (p.holds[best].match(f.promptBlocks()) == 0 || float64(p.open.open[best]) > limit) {
		best = p.fewest(f)
	}
	return p.send(best, f)
}

// aibrixLimit is how many requests an endpoint with a match may have at most: the mean and two standard deviations.
func aibrixLimit(open []int) float64 {
	mean, squares := 0., 0.
	for _, n := range open {
		mean += float64(n) / float64(len(open))
	}
	for _, n := range open {
		squares += (float64(n) - mean) * (float64(n) - mean) / float64(len(open))
	}
	return mean + aibrixDeviation*math.Sqrt(squares)
}

// llmd is the default configuration of llm-d's endpoint picker (llm-d/llm-d-router; the same weights as the Gateway API
// Inference Extension's): 2·queue, min–max over the candidates, + 2·(1 − KV use) + 3·share of the prompt's blocks that
// match; the greatest sum, at random among equals. Queue and KV use are as scraped. What endpoints hold is guessed from
// what was sent there, in blocks of 64 tokens, as many as the endpoint's cache has.
func llmd() Policy {
	return Policy{"llm-d 2/2/3", "llm-d", func(w *world) gateway { return newLLMD(w, false) }}
}

// llmdPrecise is llmd with the precise prefix cache: what endpoints hold is known from their KV events, without delay.
// Its speculative index, off by default, is off.
func llmdPrecise() Policy {
	return Policy{"llm-d precise", "llm-d-precise", func(w *world) gateway { return newLLMD(w, true) }}
}

const llmdBlock = 64

type llmdGateway struct {
	guessing
	engines       []*Engine
	precise       bool
	waiting, used []float64
}

func newLLMD(w *world, precise bool) *llmdGateway {
	n := len(w.engines)
	return &llmdGateway{newGuessing(w, llmdBlock, engineTokens), w.engines, precise, make([]float64, n), make([]float64, n)}
}

func (p *llmdGateway) observe(_ time.Duration, i int, r fleet.Reading, ok bool) {
	if ok {
		p.waiting[i], p.used[i] = r.Waiting, r.KVUse
	}
}

func (p *llmdGateway) pick(_ time.Duration, f *flight) int {
	fewest, most := slices.Min(p.waiting), slices.Max(p.waiting)
	return p.send(least(p.rng, f, len(p.holds), func(i int) float64 {
		return -llmdScore(p.waiting[i], fewest, most, p.used[i], p.share(i, f))
	}), f)
}

// share is how much of the prompt's blocks the endpoint holds.
func (p *llmdGateway) share(i int, f *flight) float64 {
	block := llmdBlock
	held := p.holds[i].match(f.promptBlocks())
	if p.precise {
		block = BlockTokens
		n, _ := p.engines[i].cache.match(f.promptBlocks(), len(f.hashes))
		held = n * BlockTokens
	}
	if all := f.seq.Prompt / block * block; all > 0 {
		return float64(held) / float64(all)
	}
	return 0
}

func llmdScore(waiting, fewest, most, used, share float64) float64 {
	queue := 1.
	if most > fewest {
		queue = (most - waiting) / (most - fewest)
	}
	return 2*queue + 2*(1-used) + 3*share
}
