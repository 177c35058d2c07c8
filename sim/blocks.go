package sim

import "math/bits"

// BlockTokens is how many tokens a block of the KV cache holds.
const BlockTokens = 16

// blocks is the KV cache: blocks with reference counts, found again by the hash of what they hold. A block that nobody
// refers to keeps its content until it is needed for something else, the longest unused going first.
type blocks struct {
	hash       []uint64 // 0: content cannot be found
	refs       []int32
	prev, next []int32 // the unreferenced, longest unused first, as a ring through the sentinel len(refs)
	free       int

	// The table from hash to block: open addressing with linear probing, at most half full.
	keys []uint64
	vals []int32
	mask uint64

	// changes are what happened to the content since its owner looked last, kept only if it is watched.
	watched bool
	changes []blockChange
}

// blockChange is a block's content that can be found from here on, or no longer; with a hash of 0 all content was
// forgotten.
type blockChange struct {
	hash uint64
	// seq is the sequence that computed the content and index its place there; nil when it was forgotten.
	seq   *Seq
	index int
}

func (b *blocks) note(c blockChange) {
	if b.watched {
		b.changes = append(b.changes, c)
	}
}

func newBlocks(n int) *blocks {
	b := &blocks{hash: make([]uint64, n), refs: make([]int32, n), prev: make([]int32, n+1), next: make([]int32, n+1)}
	size := 1 << bits.Len(uint(2*n))
	b.keys, b.vals, b.mask = make([]uint64, size), make([]int32, size), uint64(size-1)
	b.clear()
	return b
}

// clear forgets all content; every block becomes free.
func (b *blocks) clear() {
	n := int32(len(b.refs))
	clear(b.hash)
	clear(b.refs)
	clear(b.keys)
	for i := range b.prev {
		b.prev[i], b.next[i] = int32(i)-1, int32(i)+1
	}
	b.prev[0], b.next[n] = n, 0
	b.free = int(n)
	b.note(blockChange{})
}

// empty forgets the content of all blocks that nobody refers to.
func (b *blocks) empty() {
	end := int32(len(b.refs))
	for id := b.next[end]; id != end; id = b.next[id] {
		if b.hash[id] != 0 {
			b.forget(b.hash[id])
			b.note(blockChange{hash: b.hash[id]})
			b.hash[id] = 0
		}
	}
}

// find returns the block that holds the content, or -1.
func (b *blocks) find(hash uint64) int32 {
	for i := hash & b.mask; b.keys[i] != 0; i = (i + 1) & b.mask {
		if b.keys[i] == hash {
			return b.vals[i]
		}
	}
	return -1
}

// match counts the leading blocks of a prompt that are held, and how many of those nobody refers to.
func (b *blocks) match(prompt []uint64, limit int) (held, idle int) {
	for _, hash := range prompt[:min(len(prompt), limit)] {
		id := b.find(hash)
		if id < 0 {
			break
		}
		held++
		if b.refs[id] == 0 {
			idle++
		}
	}
	return held, idle
}

// share adds a reference to the block that holds the content, which must be held.
func (b *blocks) share(hash uint64) int32 {
	id := b.find(hash)
	if b.refs[id] == 0 {
		b.unlink(id)
	}
	b.refs[id]++
	return id
}

// take appends n blocks to dst, those that were unused for longest; there must be so many free ones.
func (b *blocks) take(dst []int32, n int) []int32 {
	end := int32(len(b.refs))
	id := b.next[end]
	for range n {
		dst = append(dst, id)
		b.refs[id] = 1
		if b.hash[id] != 0 {
			b.forget(b.hash[id])
			b.note(blockChange{hash: b.hash[id]})
			b.hash[id] = 0
		}
		id = b.next[id]
	}
	b.next[end], b.prev[id] = id, end
	b.free -= n
	return dst
}

// name makes a block's content findable. Where the same content is held already, this copy stays unnamed, and name
// reports false.
func (b *blocks) name(id int32, hash uint64) bool {
	if hash == 0 || b.hash[id] != 0 {
		return false
	}
	i := hash & b.mask
	for ; b.keys[i] != 0; i = (i + 1) & b.mask {
		if b.keys[i] == hash {
			return false
		}
	}
	b.keys[i], b.vals[i], b.hash[id] = hash, id, hash
	return true
}

// release gives up one reference to each; the last block of a prompt is the first to be reused, since it is of no use
// without those before it.
func (b *blocks) release(ids []int32) {
	end := int32(len(b.refs))
	for k := len(ids) - 1; k >= 0; k-- {
		id := ids[k]
		if b.refs[id]--; b.refs[id] > 0 {
			continue
		}
		last := b.prev[end]
		b.next[last], b.prev[id], b.next[id], b.prev[end] = id, last, end, id
		b.free++
	}
}

func (b *blocks) unlink(id int32) {
	b.next[b.prev[id]], b.prev[b.next[id]] = b.next[id], b.prev[id]
	b.free--
}

// forget takes a hash out of the table and closes the gap, so that probing needs no tombstones.
func (b *blocks) forget(hash uint64) {
	i := hash & b.mask
	for b.keys[i] != hash {
		i = (i + 1) & b.mask
	}
	for j := (i + 1) & b.mask; b.keys[j] != 0; j = (j + 1) & b.mask {
		if home := b.keys[j] & b.mask; (j-home)&b.mask >= (j-i)&b.mask {
			b.keys[i], b.vals[i] = b.keys[j], b.vals[j]
			i = j
		}
	}
	b.keys[i] = 0
}
