// Package prefix remembers which endpoint holds which prefix blocks: chained hashes of fixed runs of prompt, so that
// holding block k means holding everything before it. A block covers one or more units, runs of prompt of one size;
// sizes and limits are in units.
//
// What it holds is a guess made from what was sent: each endpoint's share is bounded by the size of its own KV cache
// and forgotten in about the order in which the engine forgets. It promises bounded memory, and that removing an
// endpoint leaves nothing of it behind. It does not lock: its owner, a fleet pool, does.
package prefix

import "math/bits"

// MaxUnits bounds what one endpoint may hold, whatever its cache size is said to be.
const MaxUnits = 1 << 16

// Index says which slot (a small number that its owner gives to each endpoint) holds which blocks. The zero Index is
// empty and ready. It must not be used by two goroutines at once.
//
// Every block known is an entry with one bit per slot, which is all that matching reads. Each slot has a list of its
// entries in the order of use, and forgets the one that was not used for longest, as the engine does: where caches
// hardly hold what is in use, an order that is only near that one gives up conversations that go on.
type Index struct {
	entries map[uint64]int32
	keys    []uint64
	sizes   []int32  // units per entry
	held    []uint64 // words bits per entry: slots that hold it
	fresh   []uint64 // words bits per entry: slots that were sent it and may not have computed it yet
	free    []int32
	words   int
	slots   []queue
	alive   []uint64
}

// queue is a slot's entries, the longest unused first: a ring of places through place 0, which is no entry's, so that the
// first is what comes after 0 and the last what comes before. Places that are free hold entry -1, one leading to the
// next. units is the sum of the entries' sizes, at most limit.
type queue struct {
	places []place
	at     map[int32]int32 // entry to place
	free   int32           // 0 for none
	units  int
	limit  int
}

type place struct{ entry, prev, next int32 }

// Matched is what Match found, kept for the Add that follows it: which entry each of the blocks is.
type Matched struct{ at []int32 }

// Resize says how many units of prompt the slot may hold, clamped to 0..MaxUnits; it forgets the oldest beyond that. A
// slot begins with none.
func (x *Index) Resize(slot, units int) {
	x.grow(slot)
	q := &x.slots[slot]
	q.limit = min(max(units, 0), MaxUnits)
	for q.units > q.limit {
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
	x.held, x.fresh = widen(x.held, x.words, words), widen(x.fresh, x.words, words)
	x.words, x.alive = words, make([]uint64, words)
}

// widen gives rows of so many words more of them.
func widen(bits []uint64, from, to int) []uint64 {
	if from == 0 {
		return nil
	}
	out := make([]uint64, len(bits)/from*to)
	for i := range len(bits) / from {
		copy(out[i*to:], bits[i*from:(i+1)*from])
	}
	return out
}

// Match counts, for every slot, how many units of prompt it holds of the leading blocks, into dst (one value per slot,
// as many as there are slots at most; slots beyond it are ignored). ends says for each block how many units the prompt
// has up to its end, growing. m is scratch space to reuse.
func (x *Index) Match(blocks []uint64, ends, dst []int32, m *Matched) {
	m.at = m.at[:0]
	clear(dst)
	if x.words == 0 {
		return
	}
	for w := range x.alive {
		x.alive[w] = ^uint64(0)
	}
	last, units := int32(-1), int32(0)
	for k, block := range blocks {
		e, ok := x.find(block, last)
		if !ok {
			break
		}
		m.at = append(m.at, e)
		if !x.step(dst, e, units) {
			return
		}
		last, units = e, ends[k]
	}
	x.settle(dst, units)
}

// find looks a block up. The entries of a chain were mostly made one after the other, so the neighbours of the last one
// are tried first: they lie in the same cache lines, where the map costs a miss or two for each block.
func (x *Index) find(block uint64, last int32) (int32, bool) {
	if last >= 0 && block != 0 {
		if e := last - 1; e >= 0 && x.keys[e] == block {
			return e, true
		}
		if e := last + 1; int(e) < len(x.keys) && x.keys[e] == block {
			return e, true
		}
	}
	e, ok := x.entries[block]
	return e, ok
}

// step drops the slots that do not hold entry e, which therefore hold the units before it, and reports whether any is
// left.
func (x *Index) step(dst []int32, e, units int32) bool {
	any := uint64(0)
	held := x.held[int(e)*x.words : (int(e)+1)*x.words]
	for w, have := range held {
		lost := x.alive[w] &^ have
		x.alive[w] &= have
		any |= x.alive[w]
		for ; lost != 0 && units > 0; lost &= lost - 1 {
			if s := w<<6 + bits.TrailingZeros64(lost); s < len(dst) {
				dst[s] = units
			}
		}
	}
	return any != 0
}

// settle gives units to every slot that is still alive.
func (x *Index) settle(dst []int32, units int32) {
	if units == 0 {
		return
	}
	for w, alive := range x.alive {
		for ; alive != 0; alive &= alive - 1 {
			s := w<<6 + bits.TrailingZeros64(alive)
			if s >= len(dst) {
				return
			}
			dst[s] = units
		}
	}
}

// Add notes that the slot was sent the blocks, and so will hold them; ends and m are those of the Match before. Of more
// than the slot may hold, the leading blocks count.
func (x *Index) Add(slot int, blocks []uint64, ends []int32, m *Matched) {
	x.grow(slot)
	q := &x.slots[slot]
	for len(blocks) > 0 && int(ends[len(blocks)-1]) > q.limit {
		blocks = blocks[:len(blocks)-1]
	}
	w, bit := slot>>6, uint64(1)<<(slot&63)
	// Deepest first: the queue evicts from its front, and a chain must lose its tail before its head.
	last := int32(0)
	for k := len(blocks) - 1; k >= 0; k-- {
		size := ends[k]
		if k > 0 {
			size -= ends[k-1]
		}
		e := x.entry(blocks[k], k, size, m)
		i := int(e)*x.words + w
		if x.held[i]&bit != 0 {
			last = q.use(e, last)
			continue
		}
		x.held[i] |= bit // before the eviction, which would free an entry that nobody holds
		for len(q.at) > 0 && q.units+int(x.sizes[e]) > q.limit {
			x.evict(slot)
		}
		q.units += int(x.sizes[e])
		last = q.push(e)
	}
}

// Expect notes that the slot was sent the blocks just now and will hold them, whatever its events have said so far; it
// follows the Add. Blocks that the slot has no room for are passed over.
func (x *Index) Expect(slot int, blocks []uint64) { x.mark(slot, blocks, true) }

// Settle ends what Expect began: the blocks were computed, or will not be, and events tell.
func (x *Index) Settle(slot int, blocks []uint64) { x.mark(slot, blocks, false) }

func (x *Index) mark(slot int, blocks []uint64, fresh bool) {
	w, bit, last := slot>>6, uint64(1)<<(slot&63), int32(-1)
	for _, block := range blocks {
		e, ok := x.find(block, last)
		if !ok {
			continue
		}
		last = e
		if i := int(e)*x.words + w; !fresh {
			x.fresh[i] &^= bit
		} else if x.held[i]&bit != 0 {
			x.fresh[i] |= bit
		}
	}
}

// entry finds or makes the entry of a block; what Match found is right unless an eviction has freed or reused it since.
// A freed entry has key 0, which is also a hash that a prompt can be made to have.
func (x *Index) entry(block uint64, k int, size int32, m *Matched) int32 {
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
		x.keys, x.sizes = append(x.keys, 0), append(x.sizes, 0)
		for range x.words {
			x.held, x.fresh = append(x.held, 0), append(x.fresh, 0)
		}
	}
	x.keys[e], x.sizes[e] = block, size
	x.entries[block] = e
	return e
}

// evict makes the slot forget the block that it has not used for longest.
func (x *Index) evict(slot int) {
	q := &x.slots[slot]
	if len(q.at) == 0 {
		return
	}
	e := q.pop()
	q.units -= int(x.sizes[e])
	x.release(e, slot>>6, uint64(1)<<(slot&63))
}

// release takes the slot's bit off an entry, and frees the entry with its last bit.
func (x *Index) release(e int32, w int, bit uint64) {
	base := int(e) * x.words
	x.held[base+w] &^= bit
	x.fresh[base+w] &^= bit
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
	for len(q.at) > 0 {
		x.release(q.pop(), w, bit)
	}
	*q = queue{limit: q.limit}
}

// Held is how many units of prompt the slot holds.
func (x *Index) Held(slot int) int {
	if slot >= len(x.slots) {
		return 0
	}
	return x.slots[slot].units
}

// push puts an entry last and returns its place.
func (q *queue) push(e int32) int32 {
	if q.at == nil {
		q.at, q.places = make(map[int32]int32), []place{{entry: -1}}
	}
	p := q.free
	if p != 0 {
		q.free = q.places[p].next
	} else {
		p = int32(len(q.places))
		q.places = append(q.places, place{})
	}
	q.places[p].entry, q.at[e] = e, p
	q.link(p)
	return p
}

// use makes an entry of the queue the last and returns its place. The entries of a chain were mostly pushed one after
// the other, so the one after where the last one was is tried first.
func (q *queue) use(e, last int32) int32 {
	p := last + 1
	if int(p) >= len(q.places) || q.places[p].entry != e {
		p = q.at[e]
	}
	q.unlink(p)
	q.link(p)
	return p
}

// pop takes the first entry out, of at least one.
func (q *queue) pop() int32 {
	p := q.places[0].next
	e := q.places[p].entry
	q.unlink(p)
	delete(q.at, e)
	q.places[p], q.free = place{entry: -1, next: q.free}, p
	return e
}

// link puts a place last in the ring, unlink takes it out.
func (q *queue) link(p int32) {
	last := q.places[0].prev
	q.places[p].prev, q.places[p].next = last, 0
	q.places[last].next, q.places[0].prev = p, p
}

func (q *queue) unlink(p int32) {
	prev, next := q.places[p].prev, q.places[p].next
	q.places[prev].next, q.places[next].prev = next, prev
}
