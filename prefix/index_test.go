package prefix

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
)

// naive is the index as one would write it without caring for cost: per slot a list of blocks in the order of use.
type naive struct {
	limit []int
	order [][]uint64
	fresh []map[uint64]bool
}

func newNaive(slots int) *naive {
	n := &naive{limit: make([]int, slots), order: make([][]uint64, slots), fresh: make([]map[uint64]bool, slots)}
	for s := range slots {
		n.fresh[s] = make(map[uint64]bool)
	}
	return n
}

// sizeOf gives a block of a random history one to three units.
func sizeOf(block uint64) int { return 1 + int(block%3) }

// sized is the ends of blocks of such sizes; ends those of blocks of one unit each.
func sized(blocks []uint64) []int32 {
	var out []int32
	total := 0
	for _, b := range blocks {
		total += sizeOf(b)
		out = append(out, int32(total))
	}
	return out
}

func ends(blocks []uint64) []int32 { return oneEach()[:len(blocks)] }

// oneEach is the ends of as many blocks of one unit as any test needs.
func oneEach() []int32 {
	out := make([]int32, 1<<11)
	for i := range out {
		out[i] = int32(i + 1)
	}
	return out
}

func (n *naive) held(slot int) int {
	total := 0
	for _, b := range n.order[slot] {
		total += sizeOf(b)
	}
	return total
}

func (n *naive) resize(slot, units int) {
	n.limit[slot] = min(max(units, 0), MaxUnits)
	for n.held(slot) > n.limit[slot] {
		n.evict(slot)
	}
}

func (n *naive) evict(slot int) {
	delete(n.fresh[slot], n.order[slot][0])
	n.order[slot] = n.order[slot][1:]
}

func (n *naive) add(slot int, blocks []uint64) {
	for _, end := range slices.Backward(sized(blocks)) {
		if int(end) > n.limit[slot] {
			blocks = blocks[:len(blocks)-1]
		}
	}
	for _, block := range slices.Backward(blocks) {
		if k := slices.Index(n.order[slot], block); k >= 0 {
			n.order[slot] = append(slices.Delete(n.order[slot], k, k+1), block)
			continue
		}
		for len(n.order[slot]) > 0 && n.held(slot)+sizeOf(block) > n.limit[slot] {
			n.evict(slot)
		}
		n.order[slot] = append(n.order[slot], block)
	}
}

func (n *naive) match(slot int, blocks []uint64) int32 {
	units := int32(0)
	for _, block := range blocks {
		if !slices.Contains(n.order[slot], block) {
			break
		}
		units += int32(sizeOf(block))
	}
	return units
}

func (n *naive) clear(slot int) {
	n.order[slot] = nil
	clear(n.fresh[slot])
}

// check compares everything that the index says with the naive one, and its insides with each other.
func check(t *testing.T, x *Index, n *naive) {
	t.Helper()
	different := make(map[uint64]bool)
	for s := range n.limit {
		if got, want := x.Held(s), n.held(s); got != want {
			t.Fatalf("slot %d holds %d units, want %d", s, got, want)
		}
		for _, block := range n.order[s] {
			different[block] = true
		}
		if blocks, _ := x.Latest(s, MaxUnits); !slices.Equal(blocks, n.order[s]) {
			t.Fatalf("slot %d holds %x in the order of use, want %x", s, blocks, n.order[s])
		}
	}
	if len(x.entries) != len(different) {
		t.Fatalf("the index knows %d blocks, want %d", len(x.entries), len(different))
	}
	sound(t, x)
}

// sound checks what must hold of the insides: bits and queues say the same, and an entry that nobody holds is free.
func sound(t *testing.T, x *Index) {
	t.Helper()
	bits := make(map[[2]int]bool) // entry, slot
	for s := range x.slots {
		q := &x.slots[s]
		if q.units > q.limit {
			t.Fatalf("slot %d holds %d units, more than its limit %d", s, q.units, q.limit)
		}
		units := 0
		order := q.order()
		for _, entry := range order {
			e := int(entry)
			if bits[[2]int{e, s}] {
				t.Fatalf("entry %d is twice in the queue of slot %d", e, s)
			}
			bits[[2]int{e, s}] = true
			units += int(x.sizes[e])
			if p, ok := q.at[entry]; !ok || q.places[p].entry != entry {
				t.Fatalf("entry %d is in the queue of slot %d and can't be found there", e, s)
			}
		}
		free := 0
		for p := q.free; p != 0; p = q.places[p].next {
			free++
		}
		if len(order) != len(q.at) || q.places != nil && 1+len(order)+free != len(q.places) {
			t.Fatalf("slot %d: %d entries in the queue, %d can be found, %d places are free, of %d", s, len(order), len(q.at), free, len(q.places))
		}
		if units != q.units {
			t.Fatalf("slot %d counts %d units, holds %d", s, q.units, units)
		}
	}
	held := 0
	for e := range x.keys {
		nobody := true
		for s := range x.words * 64 {
			i, bit := e*x.words+s/64, uint64(1)<<(s%64)
			have := x.held[i]&bit != 0
			if have != bits[[2]int{e, s}] {
				t.Fatalf("entry %d: held by slot %d is %v, its queue says %v", e, s, have, !have)
			}
			if x.fresh[i]&bit != 0 && !have {
				t.Fatalf("entry %d is fresh at slot %d, which does not hold it", e, s)
			}
			nobody = nobody && !have
		}
		if at, ok := x.entries[x.keys[e]]; !nobody && (!ok || int(at) != e) {
			t.Fatalf("entry %d with key %x is held and can't be found", e, x.keys[e])
		}
		if !nobody {
			held++
		}
	}
	if held != len(x.entries) || held+len(x.free) != len(x.keys) {
		t.Fatalf("%d entries are held, %d can be found, %d are free, of %d", held, len(x.entries), len(x.free), len(x.keys))
	}
	free := slices.Clone(x.free)
	slices.Sort(free)
	if n := len(free); n != len(slices.Compact(free)) {
		t.Fatalf("an entry is freed twice: %v", x.free)
	}
}

// order lists a queue's entries, the longest unused first.
func (q *queue) order() []int32 {
	var out []int32
	if q.places == nil {
		return nil
	}
	for p := q.places[0].next; p != 0 && len(out) <= len(q.at); p = q.places[p].next {
		out = append(out, q.places[p].entry)
	}
	return out
}

// script turns bytes into operations on the index and on the naive one, comparing them all the way.
func script(t *testing.T, slots int, ops []byte) {
	x, n := new(Index), newNaive(slots)
	var m Matched
	dst := make([]int32, slots)
	next := func() int {
		if len(ops) == 0 {
			return 0
		}
		b := ops[0]
		ops = ops[1:]
		return int(b)
	}
	for len(ops) > 0 {
		op, slot := next(), (next()<<8|next())%slots
		switch op % 16 {
		case 0:
			x.Clear(slot)
			n.clear(slot)
		case 1, 2:
			limit := next() % 24
			x.Resize(slot, limit)
			n.resize(slot, limit)
		default:
			blocks := chain(next()%12, next()%16, next()%16)
			x.Match(blocks, sized(blocks), dst, &m)
			for s, got := range dst {
				if want := n.match(s, blocks); got != want {
					t.Fatalf("slot %d matches %d units of %x, want %d", s, got, blocks, want)
				}
			}
			if op%16 == 3 { // the endpoint loses its cache between the two
				x.Clear(slot)
				n.clear(slot)
			}
			if op%16 != 4 {
				x.Add(slot, blocks, sized(blocks), &m)
				n.add(slot, blocks)
			}
		}
	}
	check(t, x, n)
}

// chain makes the blocks of a conversation: the first shared of them are those of every conversation of its group.
func chain(group, shared, length int) []uint64 {
	var blocks []uint64
	for k := range length {
		id := uint64(group%3)<<32 | uint64(k)
		if k >= shared {
			id = uint64(group)<<48 | uint64(shared)<<40 | uint64(k)
		}
		blocks = append(blocks, id) // the very first is 0, which is a hash like any other
	}
	return blocks
}

// P03: whatever happens, the index is what a naive one would be, holds no more than it may, and frees what nobody
// holds.
func TestRandomHistories(t *testing.T) {
	for _, slots := range []int{1, 2, 64, 65, 200} {
		t.Run(fmt.Sprintf("slots=%d", slots), func(t *testing.T) {
			for seed := range uint64(30) {
				r := rand.New(rand.NewPCG(seed, uint64(slots)))
				ops := make([]byte, 4000)
				for i := range ops {
					ops[i] = byte(r.Uint32())
				}
				script(t, slots, ops)
			}
		})
	}
}

func FuzzIndex(f *testing.F) {
	f.Add(uint8(1), []byte{1, 0, 0, 3, 5, 0, 0, 1, 2, 9, 5, 0, 0, 1, 0, 9})
	f.Add(uint8(65), []byte{1, 0, 64, 20, 5, 0, 64, 0, 4, 9, 1, 0, 0, 20, 3, 0, 0, 0, 4, 9, 0, 0, 64})
	f.Add(uint8(200), []byte{2, 0, 199, 7, 9, 0, 199, 2, 1, 15, 2, 0, 199, 1})
	f.Fuzz(func(t *testing.T, slots uint8, ops []byte) { script(t, max(int(slots), 1), ops[:min(len(ops), 2000)]) })
}

// add is Match and Add for one slot, and returns what matched.
func add(x *Index, slot int, blocks []uint64) int {
	var m Matched
	dst := make([]int32, slot+1)
	x.Match(blocks, ends(blocks), dst, &m)
	x.Add(slot, blocks, ends(blocks), &m)
	return int(dst[slot])
}

func match(x *Index, slot int, blocks []uint64) int {
	var m Matched
	dst := make([]int32, slot+1)
	x.Match(blocks, ends(blocks), dst, &m)
	return int(dst[slot])
}

// run makes n blocks that no other run shares.
func run(id, n int) []uint64 {
	blocks := make([]uint64, n)
	for k := range blocks {
		blocks[k] = uint64(id+1)<<32 | uint64(k)
	}
	return blocks
}

// E39: the size that was set is the size that is used, and more blocks than that keep the leading ones.
func TestCapacityIsHonoured(t *testing.T) {
	x := new(Index)
	x.Resize(0, 10)
	add(x, 0, run(0, 25))
	if got := match(x, 0, run(0, 25)); got != 10 || x.Held(0) != 10 || len(x.entries) != 10 {
		t.Errorf("got match %d, held %d, known %d, want 10 each", got, x.Held(0), len(x.entries))
	}
	for i := range 100 {
		add(x, 0, run(i, 3))
		if x.Held(0) > 10 {
			t.Fatalf("holds %d blocks, may hold 10", x.Held(0))
		}
	}
	x.Resize(0, 4)
	if x.Held(0) != 4 {
		t.Errorf("after shrinking to 4 it holds %d", x.Held(0))
	}
	x.Resize(0, MaxUnits+1)
	if got := x.slots[0].limit; got != MaxUnits {
		t.Errorf("a limit beyond MaxUnits became %d", got)
	}
	x.Resize(0, -1)
	if add(x, 0, run(0, 3)); x.Held(0) != 0 || len(x.entries) != 0 {
		t.Errorf("a slot that may hold nothing holds %d", x.Held(0))
	}
}

func TestSlotBeginsWithNothing(t *testing.T) {
	x := new(Index)
	if add(x, 3, run(0, 5)); x.Held(3) != 0 || x.Held(99) != 0 || len(x.entries) != 0 {
		t.Errorf("a slot without a size holds %d", x.Held(3))
	}
}

// A chain loses its end first: what is left of it is a beginning, which still saves work.
func TestTailIsEvictedBeforeHead(t *testing.T) {
	x := new(Index)
	x.Resize(0, 20)
	old := run(0, 20)
	add(x, 0, old)
	for i := range 20 {
		add(x, 0, run(1+i, 1))
		if got, want := match(x, 0, old), 19-i; got != want {
			t.Fatalf("after %d blocks of others, got match %d, want %d", i+1, got, want)
		}
	}
}

// A conversation in use outlives any amount of traffic that is seen once, as it does in the engine's cache.
func TestHotChainSurvives(t *testing.T) {
	x := new(Index)
	x.Resize(0, 100)
	hot := run(0, 30)
	add(x, 0, hot)
	for i := range 1000 {
		add(x, 0, run(1+i, 10))
		if got := add(x, 0, hot); got != 30 {
			t.Fatalf("after %d cold chains, %d of 30 hot blocks are left", i+1, got)
		}
	}
	for i := range 7 {
		add(x, 0, run(2000+i, 10))
	}
	if got := match(x, 0, hot); got != 30 {
		t.Errorf("after as many other blocks as fit beside them, %d of 30 are left", got)
	}
	for i := range 10 {
		add(x, 0, run(3000+i, 10))
	}
	if got := match(x, 0, hot); got != 0 {
		t.Errorf("unused while the whole cache was refilled, still %d blocks are held", got)
	}
}

// What was used often and then no more goes before what was used once since, as in the engine.
func TestLongestUnusedGoesFirst(t *testing.T) {
	x := new(Index)
	x.Resize(0, 100)
	ended, going := run(0, 50), run(1, 50)
	add(x, 0, going)
	for range 10 {
		add(x, 0, ended)
	}
	add(x, 0, going)
	add(x, 0, run(2, 50))
	if a, b := match(x, 0, ended), match(x, 0, going); a != 0 || b != 50 {
		t.Errorf("of the chain unused for longest %d blocks are left, of the other %d, want 0 and 50", a, b)
	}
}

// E27: an endpoint that is gone leaves nothing behind, neither for itself nor for who gets its slot, and others keep
// theirs.
func TestClearLeavesNothing(t *testing.T) {
	x := new(Index)
	for slot := range 3 {
		x.Resize(slot, 50)
		add(x, slot, run(0, 10))
		add(x, slot, run(1+slot, 10))
	}
	x.Clear(1)
	for slot, want := range []int{10, 0, 10} {
		if got := match(x, slot, run(0, 10)); got != want || x.Held(slot) != 2*want {
			t.Errorf("slot %d: got match %d, held %d, want %d and %d", slot, got, x.Held(slot), want, 2*want)
		}
	}
	if len(x.entries) != 30 {
		t.Errorf("the index knows %d blocks, want the 30 of the others", len(x.entries))
	}
	x.Clear(0)
	x.Clear(2)
	x.Clear(77)
	if len(x.entries) != 0 || len(x.free) != len(x.keys) {
		t.Errorf("everything cleared: %d blocks known, %d of %d entries free", len(x.entries), len(x.free), len(x.keys))
	}
	add(x, 1, run(5, 50))
	if len(x.keys) != 50 && len(x.keys) != 40 {
		t.Errorf("freed entries are not used again: %d entries for 50 blocks", len(x.keys))
	}
	sound(t, x)
}

// Entries widen by a word when the 65th slot comes, and nothing is lost by it.
func TestEntriesWiden(t *testing.T) {
	x := new(Index)
	for slot := range 200 {
		x.Resize(slot, 8)
		add(x, slot, run(slot/2, 8))
		for earlier := range slot + 1 {
			if got := match(x, earlier, run(earlier/2, 8)); got != 8 {
				t.Fatalf("with %d slots, slot %d matches %d of 8", slot+1, earlier, got)
			}
		}
	}
	if len(x.entries) != 800 {
		t.Errorf("the index knows %d blocks, want 800", len(x.entries))
	}
	sound(t, x)
}

// What Match found may be gone by the time of Add; the hash 0 must not be taken for an entry that was freed.
func TestMatchedGoesStale(t *testing.T) {
	for _, blocks := range [][]uint64{{0, 1, 2}, {7, 0, 9}, run(0, 3)} {
		x := new(Index)
		x.Resize(0, 10)
		x.Resize(1, 10)
		add(x, 0, blocks)
		var m Matched
		dst := make([]int32, 2)
		x.Match(blocks, ends(blocks), dst, &m)
		x.Clear(0)
		add(x, 1, run(3, 2))
		x.Add(0, blocks, ends(blocks), &m)
		if got := match(x, 0, blocks); got != len(blocks) {
			t.Errorf("%x: got match %d, want all", blocks, got)
		}
		sound(t, x)
	}
}

// P03: the index stays within what its slots may hold, however many different prompts go by.
func TestMemoryIsBounded(t *testing.T) {
	x := new(Index)
	for slot := range 4 {
		x.Resize(slot, 100)
	}
	for i := range 20_000 {
		add(x, i%4, run(i, 1+i%40))
	}
	if len(x.keys) > 4*100+1 {
		t.Errorf("%d entries for four slots of 100 blocks", len(x.keys))
	}
	for s := range x.slots {
		if got := len(x.slots[s].places); got > 101 {
			t.Errorf("slot %d: %d places for 100 blocks", s, got)
		}
	}
}

func TestMatchAndAddOfKnownBlocksDoNotAllocate(t *testing.T) {
	x, blocks := filled(100, 1000)
	each := oneEach()
	var m Matched
	dst := make([]int32, 100)
	i := 0
	if n := testing.AllocsPerRun(200, func() {
		x.Match(blocks[i%len(blocks)], each, dst, &m)
		x.Add(i%100, blocks[i%len(blocks)], each, &m)
		i += 7
	}); n != 0 {
		t.Errorf("got %v allocations, want none", n)
	}
}

// filled makes an index of so many slots, each full, and the chains it holds: conversations of 200 blocks, of which the
// first 20 are shared by ten, each held by two slots.
func filled(slots, each int) (*Index, [][]uint64) {
	x := new(Index)
	var chains [][]uint64
	for slot := range slots {
		x.Resize(slot, each)
	}
	for i := 0; i < slots*each/200; i++ {
		blocks := slices.Concat(run(1_000_000+i/10, 20), run(i, 180))
		add(x, i%slots, blocks)
		add(x, (i*7+1)%slots, blocks)
		chains = append(chains, blocks)
	}
	for slot := range slots {
		for i := 0; x.Held(slot) < each; i++ {
			blocks := run(2_000_000+slot*1000+i, 200)
			add(x, slot, blocks)
		}
	}
	return x, chains
}

func BenchmarkMatchAdd(b *testing.B) {
	const blockBytes, room = 256, 6250 // a cache of 400 000 tokens, 64 in a block
	for _, slots := range []int{5, 100} {
		for _, kb := range []int{2, 220} {
			for _, known := range []bool{true, false} {
				b.Run(fmt.Sprintf("slots=%d/KB=%d/known=%v", slots, kb, known), func(b *testing.B) {
					x, _ := filled(slots, room)
					each := oneEach()
					var m Matched
					dst, length := make([]int32, slots), kb<<10/blockBytes
					chains := make([][]uint64, 64)
					for i := range chains {
						chains[i] = run(9_000_000+i, length)
						add(x, i%slots, chains[i])
					}
					b.ReportAllocs()
					i := 0
					for b.Loop() {
						c := chains[i%len(chains)]
						if !known {
							for k := range c {
								c[k] += 1 << 50
							}
						}
						x.Match(c, each, dst, &m)
						x.Add(i%len(chains)%slots, c, each, &m)
						i++
					}
				})
			}
		}
	}
}

// BenchmarkMemory reports what a block costs: bytes for each that a slot holds, each block being held by one slot.
func BenchmarkMemory(b *testing.B) {
	for _, slots := range []int{5, 100} {
		b.Run(fmt.Sprintf("slots=%d", slots), func(b *testing.B) {
			const each = 6250
			for b.Loop() {
				var before, after runtime.MemStats
				runtime.GC()
				runtime.ReadMemStats(&before)
				x := new(Index)
				for slot := range slots {
					x.Resize(slot, each)
				}
				for slot := range slots {
					for i := range each / 50 {
						add(x, slot, run(slot*1000+i, 50))
					}
				}
				runtime.GC()
				runtime.ReadMemStats(&after)
				b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/float64(len(x.entries)), "B/block")
			}
		})
	}
}
