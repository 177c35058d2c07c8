package sim

import (
	"time"
)

// costing takes the endpoint that costs least by a rule over what a ledger knows, at random among equals.
type costing struct {
	ledger
	cost func(l *ledger, i int, f *flight) float64
}

func (p *costing) pick(_ time.Duration, f *flight) int {
	return p.count(least(p.rng, f, len(p.engines), func(i int) float64 { return p.cost(&p.ledger, i, f) }), f)
}

// lmetric is LMetric (OSDI'26; also a mode of Dynamo's router and AIBrix's l-metric): the tokens yet to be prefilled,
// this request's included, times the requests there, this one included.
func lmetric() Policy {
	return Policy{"LMetric", "lmetric", func(w *world) gateway {
		return &costing{newLedger(w), func(l *ledger, i int, f *flight) float64 {
			return lmetricCost(l.pending[i], f.seq.Prompt-l.held(i, f), l.open[i])
		}}
	}}
}

func lmetricCost(pending, uncached, open int) float64 {
	return float64(pending+uncached) * float64(open+1)
}

// leastPrefill is LPWL, least prefill work (gahow/agentic-kvc, 2026): the tokens yet to be prefilled, this request's
// included; among equals the fewest requests.
func leastPrefill() Policy {
	return Policy{"least prefill work", "least-prefill", func(w *world) gateway {
		return &costing{newLedger(w), func(l *ledger, i int, f *flight) float64 {
			return leastPrefillCost(l.pending[i], f.seq.Prompt-l.held(i, f), l.open[i])
		}}
	}}
}

func leastPrefillCost(pending, uncached, open int) float64 {
	return float64(pending+max(uncached, 0)) + float64(open)/1e6
}

// dynamo is the KV router of Dynamo (ai-dynamo/dynamo) with its defaults: prefill blocks, those under way and this
// prompt's less what is held there, at a scale of 1, and the blocks that would be active for decoding, each counted
// once however many requests share it. No temperature, no decay of the credit.
func dynamo() Policy {
	return Policy{"Dynamo linear", "dynamo", func(w *world) gateway {
		return &costing{newLedger(w), func(l *ledger, i int, f *flight) float64 {
			added := 0
			for _, h := range f.promptBlocks() {
				if l.active[i][h] == 0 {
					added++
				}
			}
			return dynamoCost(l.pending[i], f.seq.Prompt, l.held(i, f), len(l.active[i])+added)
		}}
	}}
}

const dynamoScale = 1.

// dynamoCost is in blocks, of tokens under way, of the prompt and held, and of blocks active with this request.
func dynamoCost(pending, prompt, held, active int) float64 {
	return dynamoScale*max(float64(pending+prompt-held)/BlockTokens, 0) + float64(active)
}

// preble is E2 of Preble (Srivatsa and others, ICLR'25). A prompt of which more is held somewhere than not goes to the
// least loaded of those that hold most of it, unless its load is above twice that of the least loaded with the prefill
// it would take there, which then takes it (the factor is ours: the paper names none). Any other goes where the sum of
// three costs in seconds is least: the load of the last three minutes there, what is evicted to make room times how
// often it was asked for, and the prefill. Prefill and decode times are known from profiling, as in the original: here
// exactly.
func preble() Policy {
	return Policy{"Preble E2", "preble", func(w *world) gateway {
		return &prebleGateway{guessing: newGuessing(w, BlockTokens, engineTokens), engines: w.engines, loads: make([]prebleLoad, len(w.engines)), output: 200}
	}}
}

const (
	prebleWindow   = 3 * time.Minute
	prebleRedirect = 2
)

type prebleGateway struct {
	guessing
	engines []*Engine
	loads   []prebleLoad
	output  float64 // mean
}

// prebleLoad is the work of the requests that an endpoint was sent within the window.
type prebleLoad struct {
	sent    []prebleWork
	seconds float64
}

type prebleWork struct {
	at      time.Duration
	seconds float64
}

func (l *prebleLoad) add(now time.Duration, s float64) {
	l.sent = append(l.sent, prebleWork{now, s})
	l.seconds += s
}

func (l *prebleLoad) expire(now time.Duration) {
	n := 0
	for n < len(l.sent) && now-l.sent[n].at > prebleWindow {
		l.seconds -= l.sent[n].seconds
		n++
	}
	l.sent = l.sent[n:]
}

// prefillSeconds is how long a prompt's uncached tokens take, after so many of context.
func prefillSeconds(p *Profile, uncached, context int) float64 {
	return (p.PB*float64(uncached) + p.PC*float64(uncached)*(float64(context)+float64(uncached)/2)/1e6) / 1e3
}

// decodeSeconds is how much longer an answer makes the steps it takes part in.
func decodeSeconds(p *Profile, output float64, context int) float64 {
	return output * (p.DB + p.DC*float64(context)/1e3) / 1e3
}

func (p *prebleGateway) pick(now time.Duration, f *flight) int {
	prompt, most := f.seq.Prompt, 0
	held := make([]int, len(p.engines))
	for i := range p.engines {
		p.loads[i].expire(now)
		if untried(f, i) {
			held[i] = p.holds[i].match(f.promptBlocks())
			most = max(most, held[i])
		}
	}
	lightest := least(p.rng, f, len(p.engines), func(i int) float64 { return p.loads[i].seconds })
	chosen := -1
	if most > prompt-most {
		chosen = least(p.rng, f, len(p.engines), func(i int) float64 {
			if held[i] < most {
				return 1e9 + p.loads[i].seconds
			}
			return p.loads[i].seconds
		})
		anew := prefillSeconds(&p.engines[lightest].cfg.Profile, prompt-held[lightest], held[lightest])
		if p.loads[chosen].seconds > prebleRedirect*(p.loads[lightest].seconds+anew) {
			chosen = lightest
		}
	} else {
		chosen = least(p.rng, f, len(p.engines), func(i int) float64 {
			profile := &p.engines[i].cfg.Profile
			return p.loads[i].seconds + p.eviction(i, prompt-held[i]) + prefillSeconds(profile, prompt-held[i], held[i])
		})
	}
	if chosen >= 0 {
		profile := &p.engines[chosen].cfg.Profile
		p.loads[chosen].add(now, prefillSeconds(profile, prompt-held[chosen], held[chosen])+decodeSeconds(profile, p.output, prompt))
	}
	return p.send(chosen, f)
}

// eviction is what it costs to compute again what has to go for so many tokens: each block times the share of the
// endpoint's requests that used it.
func (p *prebleGateway) eviction(i, tokens int) float64 {
	g := p.holds[i]
	need := len(g.at) + tokens/BlockTokens - g.room
	if need <= 0 || len(p.loads[i].sent) == 0 {
		return 0
	}
	blocks := 0.
	for _, u := range g.queue {
		b := g.at[u.hash]
		if b.use != u.use {
			continue
		}
		blocks += float64(b.hits) / float64(len(p.loads[i].sent))
		if need--; need == 0 {
			break
		}
	}
	return blocks * BlockTokens * p.engines[i].cfg.Profile.PB / 1e3
}

func (p *prebleGateway) done(now time.Duration, f *flight, how ending) {
	p.guessing.done(now, f, how)
	p.output += .02 * (float64(f.seq.Output) - p.output)
}
