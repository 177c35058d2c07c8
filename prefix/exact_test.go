package prefix

import (
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
	if got := x.Predict(1, p.Blocks, 4); got != (Prediction{true, true, 48}) {
		t.Errorf("of 64 tokens held, engines compute the last block again: got %v", got)
	}
}
