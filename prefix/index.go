// Package prefix remembers which endpoint holds which prefix blocks: chained hashes of fixed runs of prompt, so that
// holding block k means holding everything before it.
//
// What it holds is a guess made from what was sent: each endpoint's share is bounded by the size of its own KV
// cache and forgotten in about the order in which the engine forgets. It promises bounded memory, and that removing an
// endpoint leaves nothing of it behind. It does not lock: its owner, a fleet pool, does.
package prefix

import "math/bits"

// MaxBlocks bounds what one endpoint may hold, whatever its cache size is said to be.
const MaxBlocks = 1 << 16

// Index says which slot (a small number that its owner gives to each endpoint) holds which blocks. The zero Index is
// empty and ready. It must not be used by two goroutines at once.
//
// Every block known is an entry with one bit per slot. Each slot has a queue of its entries in the order of
// insertion; eviction is by second chance (the clock algorithm, Corbató 1968), which needs one bit where a list per slot would need
// two pointers, and no write that moves memory when a block is used again.
type Index struct {
	entries map[uint64]int32
	keys    []uint64
	held    []uint64 // words bits per entry: slots that hold it
	used    []uint64 // words bits per entry: slots that used it since their queue last passed it
	free    []int32
	words   int
	slots   []queue
	alive   []uint64
}

// queue is a slot's entries, oldest first, in a ring that grows up to limit.
type queue struct {
	ring  []int32
	first int
	n     int
	limit int
}

// Matched is what Match found, kept for the Add that follows it: which entry each of the blocks is.
type Matched struct{ at []int32 }

// Resize says how many blocks the slot may hold, clamped to 0..MaxBlocks; it forgets the oldest beyond that. A slot begins with none.
func (x *Index) Resize(slot, blocks int) {
	x.grow(slot)
	q := &x.slots[slot]
	q.limit = min(max(blocks, 0), MaxBlocks)
	for q.n > q.limit {
		x.evict(slot)
	}
}

// grow makes room for the slot's bit in every entry.
func (x *Index) grow(slot int) {
	if x.entries == nil {
		x.entries = make(map[uint64]int32)
	}
	for len(x.slots) <= slot {
		x.slots = append(x.slots, queue{})
	}
	words := (len(x.slots) + 63) / 64
	if words <= x.words {
		return
	}
	held, used := make([]uint64, len(x.keys)*words), make([]uint64, len(x.keys)*words)
	for e := range x.keys {
		copy(held[e*words:], x.held[e*x.words:(e+1)*x.words])
		copy(used[e*words:], x.used[e*x.words:(e+1)*x.words])
	}
	x.held, x.used, x.words = held, used, words
	x.alive = make([]uint64, words)
}

// Match counts, for every slot, how many of the leading blocks it holds, into dst (one value per slot, as many as there are
// slots at most; slots beyond it are ignored). m is scratch space to reuse.
func (x *Index) Match(blocks []uint64, dst []int32, m *Matched) {
	m.at = m.at[:0]
	clear(dst)
	if x.words == 0 {
		return
	}
	for w := range x.alive {
		x.alive[w] = ^uint64(0)
	}
	for k, block := range blocks {
		e, ok := x.entries[block]
		if !ok {
			x.settle(dst, k)
			return
		}
		m.at = append(m.at, e)
		if !x.step(dst, e, k) {
			return
		}
	}
	x.settle(dst, len(blocks))
}

// step drops the slots that do not hold entry e, block number k, and reports whether any is left.
func (x *Index) step(dst []int32, e int32, k int) bool {
	any := uint64(0)
	held := x.held[int(e)*x.words : (int(e)+1)*x.words]
	for w, have := range held {
		lost := x.alive[w] &^ have
		x.alive[w] &= have
		any |= x.alive[w]
		for ; lost != 0 && k > 0; lost &= lost - 1 {
			if s := w<<6 + bits.TrailingZeros64(lost); s < len(dst) {
				dst[s] = int32(k)
			}
		}
	}
	return any != 0
}

// settle gives k to every slot that is still alive.
func (x *Index) settle(dst []int32, k int) {
	if k == 0 {
		return
	}
	for w, alive := range x.alive {
		for ; alive != 0; alive &= alive - 1 {
			s := w<<6 + bits.TrailingZeros64(alive)
			if s >= len(dst) {
				return
			}
			dst[s] = int32(k)
		}
	}
}

// Add notes that the slot was sent the blocks, and so will hold them; m is what Match found for the same blocks. Of more blocks than the
// slot may hold, the leading ones count.
func (x *Index) Add(slot int, blocks []uint64, m *Matched) {
	x.grow(slot)
	q := &x.slots[slot]
	if len(blocks) > q.limit {
		blocks = blocks[:q.limit]
	}
	w, bit := slot>>6, uint64(1)<<(slot&63)
	// Deepest first: the queue evicts from its front, and a chain must lose its tail before its head.
	for k := len(blocks) - 1; k >= 0; k-- {
		e := x.entry(blocks[k], k, m)
		i := int(e)*x.words + w
		if x.held[i]&bit != 0 {
			x.used[i] |= bit
			continue
		}
		x.held[i] |= bit // before the eviction, which would free an entry that nobody holds
		if q.n == q.limit {
			x.evict(slot)
		}
		q.push(e)
	}
}

// entry finds or makes the entry of a block; what Match found is right unless an eviction has freed or reused it since. A freed
// entry has key 0, which is also a hash that a prompt can be made to have.
func (x *Index) entry(block uint64, k int, m *Matched) int32 {
	if k < len(m.at) && x.keys[m.at[k]] == block && block != 0 {
		return m.at[k]
	}
	if e, ok := x.entries[block]; ok {
		return e
	}
	var e int32
	if n := len(x.free); n > 0 {
		e, x.free = x.free[n-1], x.free[:n-1]
	} else {
		e = int32(len(x.keys))
		x.keys = append(x.keys, 0)
		for range x.words {
			x.held, x.used = append(x.held, 0), append(x.used, 0)
		}
	}
	x.keys[e] = block
	x.entries[block] = e
	return e
}

// evict makes the slot forget the oldest of its blocks that it has not used since the queue last passed it.
func (x *Index) evict(slot int) {
	q := &x.slots[slot]
	w, bit := slot>>6, uint64(1)<<(slot&63)
	for q.n > 0 {
		e := q.pop()
		i := int(e)*x.words + w
		if x.used[i]&bit != 0 {
			x.used[i] &^= bit
			q.push(e)
			continue
		}
		x.release(e, w, bit)
		return
	}
}

// release takes the slot's bit off an entry, and frees the entry with its last bit.
func (x *Index) release(e int32, w int, bit uint64) {
	base := int(e) * x.words
	x.held[base+w] &^= bit
	x.used[base+w] &^= bit
	for _, have := range x.held[base : base+x.words] {
		if have != 0 {
			return
		}
	}
	delete(x.entries, x.keys[e])
	x.keys[e] = 0
	x.free = append(x.free, e)
}

// Clear forgets everything the slot holds: its endpoint is gone, or has restarted with an empty cache.
func (x *Index) Clear(slot int) {
	if slot >= len(x.slots) {
		return
	}
	q := &x.slots[slot]
	w, bit := slot>>6, uint64(1)<<(slot&63)
	for q.n > 0 {
		x.release(q.pop(), w, bit)
	}
	q.ring, q.first = nil, 0
}

// Held is how many blocks the slot holds.
func (x *Index) Held(slot int) int {
	if slot >= len(x.slots) {
		return 0
	}
	return x.slots[slot].n
}

// Len is how many different blocks are known.
func (x *Index) Len() int { return len(x.entries) }

func (q *queue) push(e int32) {
	if q.n == len(q.ring) {
		ring := make([]int32, min(max(2*len(q.ring), 64), max(q.limit, q.n+1)))
		for i := range q.n {
			ring[i] = q.ring[(q.first+i)%len(q.ring)]
		}
		q.ring, q.first = ring, 0
	}
	q.ring[(q.first+q.n)%len(q.ring)] = e
	q.n++
}

func (q *queue) pop() int32 {
	e := q.ring[q.first]
	q.first = (q.first + 1) % len(q.ring)
	q.n--
	return e
}
