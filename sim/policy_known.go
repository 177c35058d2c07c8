package sim

import (
	"math/rand/v2"
	"time"
)

// ledger is what a gateway knows that keeps count of its own requests and reads the engines' KV events: exactly what
// each cache holds, without delay, and the prompts on their way there. It is more than some of the originals have.
type ledger struct {
	deaf
	engines []*Engine
	rng     *rand.Rand
	// open are requests in flight, pending the uncached prompt tokens of those before their first token.
	open, pending []int
	// active are the prompt blocks of the requests in flight and how many have them.
	active []map[uint64]int
}

func newLedger(w *world) ledger {
	l := ledger{engines: w.engines, rng: rand.New(rand.NewPCG(w.rng.Uint64(), 8)), open: make([]int, len(w.engines)), pending: make([]int, len(w.engines))}
	for range w.engines {
		l.active = append(l.active, make(map[uint64]int))
	}
	return l
}

// held is how many leading tokens of the prompt the endpoint has, or is about to have; at least one is always computed.
func (l *ledger) held(i int, f *flight) int {
	limit := (f.seq.Prompt - 1) / BlockTokens
	held, _ := l.engines[i].cache.match(f.hashes, limit)
	for held < limit && l.active[i][f.hashes[held]] > 0 {
		held++
	}
	return held * BlockTokens
}

// count notes a request at an endpoint, unless that is -1.
func (l *ledger) count(i int, f *flight) int {
	if i < 0 {
		return i
	}
	f.owed = f.seq.Prompt - l.held(i, f)
	l.open[i]++
	l.pending[i] += f.owed
	for _, h := range f.promptBlocks() {
		l.active[i][h]++
	}
	return i
}

func (l *ledger) first(_ time.Duration, f *flight) {
	l.pending[f.endpoint] -= f.owed
	f.owed = 0
}

func (l *ledger) done(_ time.Duration, f *flight, _ ending) {
	i := f.endpoint
	l.open[i]--
	l.pending[i] -= f.owed
	f.owed = 0
	for _, h := range f.promptBlocks() {
		if l.active[i][h]--; l.active[i][h] == 0 {
			delete(l.active[i], h)
		}
	}
}

// promptBlocks are the hashes of the full blocks of the prompt.
func (f *flight) promptBlocks() []uint64 { return f.hashes[:f.seq.Prompt/BlockTokens] }

// guess is what a gateway believes an endpoint to hold that only knows what it sent there: the blocks used last.
type guess struct {
	stride, room int // BlockTokens a block has, and blocks there are at most
	at           map[uint64]guessed
	queue        []guessUse // each use, oldest first; all but a block's last are void
	uses         int
}

type guessed struct {
	use  int // its last
	hits int // how often it was used
}

type guessUse struct {
	hash uint64
	use  int
}

// newGuess has room for so many tokens in blocks of so many tokens.
func newGuess(block, tokens int) *guess {
	return &guess{stride: block / BlockTokens, room: max(tokens/block, 1), at: make(map[uint64]guessed)}
}

// match is how many leading tokens of the prompt it holds, of its whole blocks.
func (g *guess) match(prompt []uint64) int {
	n := 0
	for k := g.stride - 1; k < len(prompt); k += g.stride {
		if _, ok := g.at[prompt[k]]; !ok {
			break
		}
		n += g.stride * BlockTokens
	}
	return n
}

// add notes that a prompt was sent, the last block first, so that the longest unused go first and of a prompt the end.
func (g *guess) add(prompt []uint64) {
	for k := len(prompt)/g.stride*g.stride - 1; k >= 0; k -= g.stride {
		g.uses++
		g.at[prompt[k]] = guessed{g.uses, g.at[prompt[k]].hits + 1}
		g.queue = append(g.queue, guessUse{prompt[k], g.uses})
	}
	for len(g.at) > g.room {
		oldest := g.queue[0]
		g.queue = g.queue[1:]
		if g.at[oldest.hash].use == oldest.use {
			delete(g.at, oldest.hash)
		}
	}
	if len(g.queue) > 4*len(g.at)+1024 {
		kept := make([]guessUse, 0, 2*len(g.at))
		for _, u := range g.queue {
			if g.at[u.hash].use == u.use {
				kept = append(kept, u)
			}
		}
		g.queue = kept
	}
}
