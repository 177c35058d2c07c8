package prefix

import (
	"slices"
	"testing"
)

// written is a prompt of tokens of four bytes each, cut into prefix blocks of 64 bytes, in which each token is certain once there is one byte
// of the next.
func written(tokens []uint32) *Prompt {
	p := &Prompt{Tokens: tokens}
	chain := uint64(7)
	for from := 0; from < len(tokens); from += 16 {
		to := min(from+16, len(tokens))
		chain = nextKey(chain, hashBlock(tokens[from:to], ""))
		whole := to == len(tokens)
		if whole {
			chain++ // it ends here, which others don't
		}
		p.Blocks, p.Ends = append(p.Blocks, chain), append(p.Ends, int32(to))
		if !whole {
			p.Ends[len(p.Ends)-1]--
		}
	}
	for i := range tokens[:len(tokens)-1] {
		p.Certain = append(p.Certain, int32(4*i+5))
	}
	p.Head = func(n int) uint64 {
		if n < 1 || n > 4*len(tokens) {
			return 0
		}
		return hashBlock(tokens[(n-1)/64*16:(n+3)/4], "")
	}
	return p
}

// runOf makes so many tokens, different for each id.
func runOf(id uint32, n int) []uint32 {
	out := make([]uint32, n)
	for i := range out {
		out[i] = id<<16 | uint32(i)
	}
	return out
}

// storedAll is the event of a prompt's whole blocks, by an engine whose hashes are our keys.
func storedAll(p *Prompt, size int) Event {
	hashes := keysOf(p, size, len(p.Tokens))
	return Event{Kind: Stored, BlockSize: size, First: true, Tokens: p.Tokens[:len(hashes)*size], Hashes: hashes}
}

// predict is what a slot is said to hold of a prompt.
func predict(x *Exact, guess *Index, slot int, p *Prompt) Prediction {
	var m Matched
	dst := make([]int32, slot+1)
	x.Match(guess, p.Blocks, ends(p.Blocks), dst, &m)
	return x.Predict(guess, slot, p.Blocks, int(dst[slot]), p.Head)
}

// What is evicted and kept of the engine blocks that end inside one prefix block is seen.
func TestPartsOfABlockAreHeld(t *testing.T) {
	x, guess := new(Exact), new(Index)
	l := x.Open(0)
	l.Follow(FollowedFromEmpty)
	p := written(runOf(1, 160)) // ten prefix blocks, twenty engine blocks
	e := storedAll(p, 8)
	l.Apply([]Event{e})
	x.Learn(p)
	for kept := len(e.Hashes); kept >= 0; kept-- {
		want := min(8*kept, 152)
		if got := predict(x, guess, 0, p); got != (Prediction{true, want, true}) {
			t.Errorf("%d engine blocks of 8 are held: got %+v, want %d", kept, got, want)
		}
		if kept > 0 {
			l.Apply([]Event{{Kind: Removed, Hashes: e.Hashes[kept-1 : kept]}})
		}
	}
	l.Apply([]Event{e, {Kind: Removed, Hashes: e.Hashes[6:7]}}) // a hole: its neighbour, which ends the same prefix block, is held
	if got := predict(x, guess, 0, p); got.Tokens != 48 {
		t.Errorf("the seventh engine block is missing: got %+v, want 48", got)
	}
}

// Where prompts part inside a prefix block, what they share to there counts, short of a token that may go on, and only what is held.
func TestPromptsPartInsideABlock(t *testing.T) {
	common := runOf(1, 60)
	for at := range 60 {
		x, guess := new(Exact), new(Index)
		l, other := x.Open(0), x.Open(1)
		l.Follow(FollowedFromEmpty)
		other.Follow(FollowedFromEmpty)
		other.Apply([]Event{storedAll(written(runOf(9, 8)), 8)})
		for i := range uint32(4) { // they part from each other further on, and before
			p := written(slices.Concat(common[:max(at-int(5*i), 17)], runOf(10+i, 80)))
			x.Learn(p)
			l.Apply([]Event{storedAll(p, 8)})
		}
		q := written(slices.Concat(common[:at], runOf(99, 80)))
		want := 0
		if at >= 16 { // before, no prefix block is shared
			want = (at - 1) / 8 * 8 // the engine block that ends where they part has a token at its end that may go on
		}
		if got := predict(x, guess, 0, q).Tokens; got != want {
			t.Errorf("they part at token %d: got %d, want %d", at, got, want)
		}
		if got := predict(x, guess, 1, q).Tokens; got != 0 {
			t.Errorf("an endpoint that holds nothing of it: got %d", got)
		}
		if got := x.Predict(guess, 0, q.Blocks, at/16, nil).Tokens; at > 16 && got > at/16*16 {
			t.Errorf("without bytes to compare, parting at %d: got %d", at, got)
		}
		if n := testing.AllocsPerRun(5, func() { x.Predict(guess, 0, q.Blocks, at/16, q.Head) }); n != 0 {
			t.Errorf("got %v allocations, want none", n)
		}
	}
}

// P03: what ends inside prefix blocks stays within its bounds, what is learned last is kept, and what was overwritten is told from it.
func TestPointsAreBounded(t *testing.T) {
	var r ring
	var old points
	all := make([]point, innerPoints)
	for i := range 3 * maxPoints / 200 {
		n := 1 + i%innerPoints
		for k := range all[:n] {
			all[k].key = uint64(i)
		}
		p := r.put(all[:n])
		got := r.of(p)
		if len(got) != n || got[0].key != uint64(i) || got[n-1].key != uint64(i) {
			t.Fatalf("got %d points of %d", len(got), n)
		}
		if before := r.of(old); before != nil && (before[0].key != 0 || before[len(before)-1].key != 0) {
			t.Fatal("points were overwritten and are still given")
		}
		if i == 0 {
			old = p
		}
	}
	if r.of(old) != nil || len(r.all) > maxPoints {
		t.Errorf("the first is still there, or %d points are kept, want at most %d", len(r.all), maxPoints)
	}
}
