package prefix

import (
	"sync"
	"testing"
)

// tokensOf makes the tokens of blocks of size tokens, each block's from its number.
func tokensOf(size int, blocks ...uint32) []uint32 {
	var out []uint32
	for _, b := range blocks {
		for i := range size {
			out = append(out, b<<8|uint32(i))
		}
	}
	return out
}

// promptOf is a prompt of engine blocks, each of which is a prefix block of one unit.
func promptOf(size int, blocks ...uint32) *Prompt {
	p := &Prompt{Tokens: tokensOf(size, blocks...)}
	chain := uint64(7)
	for i, b := range blocks {
		chain = mix(chain ^ uint64(b))
		p.Blocks, p.Ends = append(p.Blocks, chain), append(p.Ends, int32((i+1)*size))
	}
	return p
}

// storedOf is the event of the prompt's blocks from one on; an engine's hash of a block is that of its number and all before.
func storedOf(size, from int, blocks ...uint32) Event {
	e := Event{Kind: Stored, BlockSize: size, First: from == 0, Tokens: tokensOf(size, blocks[from:]...)}
	hash := uint64(99)
	for i, b := range blocks {
		hash = mix(hash + uint64(b))
		if i == from-1 {
			e.Parent = hash
		}
		if i >= from {
			e.Hashes = append(e.Hashes, hash)
		}
	}
	return e
}

// matchExact is how many units each slot holds of a prompt.
func matchExact(x *Exact, guess *Index, slots int, p *Prompt) []int32 {
	var m Matched
	dst := make([]int32, slots)
	x.Match(guess, p.Blocks, ends(p.Blocks), dst, &m)
	return dst
}

func TestEventsTellWhatIsHeld(t *testing.T) {
	x, guess := new(Exact), new(Index)
	guess.Resize(1, 100)
	a, b := x.Open(0), x.Open(1)
	a.Follow(FollowedFromEmpty)
	a.Apply([]Event{storedOf(16, 0, 1, 2, 3)})
	if !x.Wants(promptOf(16, 1, 2, 3, 4).Blocks) {
		t.Error("tokens of a new prompt are not wanted")
	}
	p := promptOf(16, 1, 2, 3, 4)
	x.Learn(p)
	if x.Wants(p.Blocks) {
		t.Error("tokens that are known are wanted")
	}
	if got := matchExact(x, guess, 2, p); got[0] != 3 || got[1] != 0 {
		t.Errorf("got %v, want 3 and 0", got)
	}
	b.Follow(FollowedFromEmpty)
	b.Apply([]Event{storedOf(16, 0, 1, 2, 3, 4)})
	a.Apply([]Event{{Kind: Removed, Hashes: storedOf(16, 0, 1, 2, 3).Hashes[2:]}})
	if got := matchExact(x, guess, 2, p); got[0] != 2 || got[1] != 4 {
		t.Errorf("got %v, want 2 and 4", got)
	}
	if got := x.Predict(guess, 1, p.Blocks, 4, nil); got != (Prediction{true, 48, true}) {
		t.Errorf("of 64 tokens held, engines compute the last block again: got %v", got)
	}
}

// P03: whatever prompts are learned, the table of prefix blocks stays within its size, and what is in use stays in it.
func TestLearnedPromptsAreBounded(t *testing.T) {
	x := new(Exact)
	l := x.Open(0)
	l.Follow(FollowedFromEmpty)
	l.Apply([]Event{storedOf(16, 0, 1)})
	used := promptOf(16, 1, 2, 3)
	x.Learn(used)
	var m Matched
	dst := make([]int32, 1)
	guess := new(Index)
	for i := range 3 * maxMapped / 1000 {
		blocks := make([]uint32, 1000)
		for k := range blocks {
			blocks[k] = uint32(i*1000 + k + 10)
		}
		p := promptOf(16, blocks...)
		p.EngineBlock, p.EngineHashes = 16, p.Blocks
		x.Learn(p)
		x.Match(guess, used.Blocks, ends(used.Blocks), dst, &m)
	}
	if len(x.mapped) != maxMapped || len(x.blocks) != maxMapped {
		t.Errorf("%d places and %d names for %d prefix blocks", len(x.mapped), len(x.blocks), maxMapped)
	}
	if n := len(x.healed) + len(x.healedBefore); n > 2*(maxHealed+chunk) {
		t.Errorf("%d engine hashes are kept, want at most two generations of %d", n, maxHealed)
	}
	if dst[0] != 1 {
		t.Errorf("a prompt in use was forgotten: got %d units, want 1", dst[0])
	}
}

// What makes no sense changes nothing, and nothing panics.
func TestNonsenseChangesNothing(t *testing.T) {
	x := new(Exact)
	l := x.Open(0)
	l.Follow(FollowedFromEmpty)
	good := storedOf(16, 0, 1, 2)
	short, size, orphan, extra := good, good, storedOf(16, 2, 1, 2, 3), good
	short.Tokens = short.Tokens[:20]
	size.BlockSize = 0
	orphan.Parent++
	extra.Extra = []string{"one"}
	small := Event{Kind: Stored, BlockSize: 1, First: true, Tokens: []uint32{1, 2}, Hashes: []uint64{1, 2}}
	l.Apply([]Event{short, size, extra, small, {Kind: Stored, Hashes: []uint64{5}}, {Kind: Removed, Hashes: []uint64{6}}, {Kind: 77}})
	if got, ok := l.Tokens(); ok || got != 0 {
		t.Errorf("got %d tokens held, %v", got, ok)
	}
	l.Apply([]Event{good, orphan})
	if got, ok := l.Tokens(); !ok || got != 32 {
		t.Errorf("got %d tokens held, want 32", got)
	}
	for _, ends := range [][]int32{nil, {-1}, {99}, {16, 8}} {
		x.Learn(&Prompt{Blocks: []uint64{1, 2, 3}, Ends: ends, Tokens: tokensOf(16, 1, 2)})
	}
	if len(x.mapped) != 1 {
		t.Errorf("%d prefix blocks were learned, want the one that makes sense", len(x.mapped))
	}
	l.Close()
	l.Close()
	l.Apply([]Event{good})
	l.Follow(FollowedFromNow)
	if len(x.entries) != 0 || x.following != 0 {
		t.Errorf("closed, it holds %d keys", len(x.entries))
	}
}

// Ledgers are fed, doubted, resized and closed by several goroutines while others look up; what is left is sound.
func TestLedgersFromManyGoroutines(t *testing.T) {
	x := new(Exact)
	ledgers := []*Ledger{x.Open(0), x.Open(1)}
	for _, l := range ledgers {
		l.Follow(FollowedFromEmpty)
	}
	var all sync.WaitGroup
	for g := range 6 {
		all.Go(func() {
			guess, p := new(Index), conversation(uint32(g%3), 4000)
			guess.Resize(1, 100)
			for i := range 40 {
				l := ledgers[(g+i)%2]
				switch (g + i) % 7 {
				case 0:
					l.Follow(Following(i % 3))
				case 1:
					l.Doubt()
				case 2:
					l.Resize(2000 * (i % 4))
				case 3:
					x.Learn(p)
				case 4:
					e := eventOf(p, 16)
					l.Apply([]Event{{Kind: Removed, Hashes: e.Hashes[50:]}})
				default:
					l.Apply([]Event{eventOf(p, 16)})
				}
				matchExact(x, guess, 2, p)
			}
		})
	}
	all.Wait()
	h := life{t: t, x: x}
	h.sound()
	for _, l := range ledgers {
		l.Close()
	}
	if len(x.entries) != 0 || x.following != 0 {
		t.Errorf("all closed: %d keys are held, %d are followed", len(x.entries), x.following)
	}
}

// An engine whose removals are lost never holds more than its cache does, on the GPU and in the host's memory, and what it stored last is held.
func TestLedgerIsBounded(t *testing.T) {
	const size, room = 16, 1000
	for _, medium := range []Medium{GPU, Host} {
		x := new(Exact)
		l := x.Open(0)
		l.Follow(FollowedFromEmpty)
		l.Resize(room * size)
		l.Apply([]Event{eventOf(conversation(99, 1<<10), size)}) // the host's blocks say nothing of their size
		for id := range uint32(30) {
			e := eventOf(conversation(id, room*size/2), size)
			e.Medium = medium
			l.Apply([]Event{e})
			for i, hash := range e.Hashes {
				if s := l.stored[hash]; !s.held() {
					t.Fatalf("medium %d: block %d of prompt %d is forgotten just after it was stored", medium, i, id)
				}
			}
		}
		if limit := l.limit(); l.onGPU > limit || len(l.stored) > hostShare*limit || limit > 2*room {
			t.Errorf("medium %d: got %d copies on the GPU and %d blocks, want at most %d and %d", medium, l.onGPU, len(l.stored), limit, hostShare*limit)
		}
		l.Resize(room / 2 * size) // a smaller cache than was said
		if limit := l.limit(); l.onGPU > limit || len(l.stored) > hostShare*limit {
			t.Errorf("medium %d: got %d copies and %d blocks after the resize, want at most %d and %d", medium, l.onGPU, len(l.stored), limit, hostShare*limit)
		}
	}
}

// A pool follows engines of a few sizes of blocks; those of other sizes are guessed.
func TestBlockSizesAreFew(t *testing.T) {
	x := new(Exact)
	for i := range maxClasses + 2 {
		l := x.Open(i)
		l.Follow(FollowedFromEmpty)
		l.Apply([]Event{eventOf(conversation(1, 4000), minBlock+i)})
		if tokens, ok := l.Tokens(); ok != (i < maxClasses) || ok != (tokens > 0) {
			t.Errorf("size %d: got %d tokens held, known %v", minBlock+i, tokens, ok)
		}
	}
	if len(x.classes) != maxClasses {
		t.Errorf("got %d sizes, want %d", len(x.classes), maxClasses)
	}
}
