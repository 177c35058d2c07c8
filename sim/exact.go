package sim

import (
	"slices"
	"time"

	"github.com/sluice-gateway/sluice/prefix"
	"github.com/sluice-gateway/sluice/route"
)

const (
	// eventDelay is how long after the end of a step its KV events reach a gateway, learnDelay how long after a prompt
	// its tokens are known there.
	eventDelay = 20 * time.Millisecond
	learnDelay = 20 * time.Millisecond
)

// ExactLatency is Latency, with the endpoints' KV events in place of guesses of what they hold.
func ExactLatency() Policy {
	return Policy{"latency, KV events", "latency-events", func(w *world) gateway {
		p := newProduction(w, route.Latency())
		p.exact = &exactPrefixes{w: w}
		for i, name := range p.names {
			w.engines[i].cache.watched = true
			p.pool.FollowEvents(name, prefix.FollowedFromEmpty)
		}
		return p
	}}
}

// exactPrefixes gives a gateway the tokens of prompts. A block's tokens are made of its hash.
type exactPrefixes struct{ w *world }

// learn lets the gateway know the flight's tokens after a while, if it cares.
func (x *exactPrefixes) learn(p *production, f *flight) {
	if !p.pool.WantsTokens(p.prefix) {
		return
	}
	prompt := &prefix.Prompt{Blocks: slices.Clone(p.prefix)}
	for _, end := range p.ends {
		prompt.Ends = append(prompt.Ends, end*unitBlocks*BlockTokens)
	}
	whole := int(p.ends[len(p.ends)-1]) * unitBlocks
	prompt.Tokens = make([]uint32, 0, whole*BlockTokens)
	for _, hash := range f.hashes[:whole] {
		prompt.Tokens = blockTokens(prompt.Tokens, hash)
	}
	x.w.later(x.w.now+learnDelay, func() { p.pool.LearnPrompt(prompt) })
}

// blockTokens appends a block's tokens.
func blockTokens(dst []uint32, hash uint64) []uint32 {
	dst = append(dst, uint32(hash), uint32(hash>>32))
	for range BlockTokens - 2 {
		dst = append(dst, 0)
	}
	return dst
}

// later does something at a time.
func (w *world) later(at time.Duration, do func()) {
	if w.todo == nil {
		w.todo = make(map[int]func())
	}
	n := int(w.timers.order) // unlike that of any other timer
	w.todo[n] = do
	w.timers.push(timer{at: at, kind: timerDo, index: n})
}

// publish lets the gateways that follow events know what happened in an engine's cache, when its step has ended.
func (w *world) publish(i int) {
	cache := w.engines[i].cache
	if len(cache.changes) == 0 {
		return
	}
	events := blockEvents(cache.changes)
	clear(cache.changes)
	cache.changes = cache.changes[:0]
	at, ok := w.engines[i].Next()
	if !ok {
		at = w.now
	}
	w.later(at+eventDelay, func() {
		for _, g := range w.gateways {
			if p, ok := g.(interface{ stored(int, []prefix.Event) }); ok {
				p.stored(i, events)
			}
		}
	})
}

// stored takes the events of an engine, where they are followed.
func (p *production) stored(i int, events []prefix.Event) {
	if p.exact != nil {
		p.pool.ObserveBlocks(p.names[i], events)
	}
}

// blockEvents is the changes of a cache as an engine publishes them.
func blockEvents(changes []blockChange) []prefix.Event {
	var out []prefix.Event
	for len(changes) > 0 {
		n := eventLength(changes)
		first := changes[0]
		e := prefix.Event{BlockSize: BlockTokens}
		switch {
		case first.hash == 0:
			e.Kind = prefix.Cleared
		case first.seq == nil:
			e.Kind = prefix.Removed
		case first.index == 0:
			e.First = true
		default:
			e.Parent = first.seq.Blocks[first.index-1]
		}
		e.Hashes = make([]uint64, 0, n)
		if first.seq != nil {
			e.Tokens = make([]uint32, 0, n*BlockTokens)
		}
		for _, c := range changes[:n] {
			e.Hashes = append(e.Hashes, c.hash)
			if c.seq != nil {
				e.Tokens = blockTokens(e.Tokens, c.hash)
			}
		}
		out = append(out, e)
		changes = changes[n:]
	}
	return out
}
