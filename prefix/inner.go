package prefix

import (
	"slices"
)

const (
	// maxPoints is how many engine blocks' ends inside prefix blocks are kept: 24 bytes each.
	maxPoints = 1 << 20
	// innerPoints is how many of one prefix block are, its last ones.
	innerPoints = 256
	// siblings is how many of the prefix blocks that were learned to follow one are tried against one that is not known.
	siblings = 8
	// maxHeads is how often the beginning of that block is hashed for it, of at most 4 KiB: a bisection, and one look at each other.
	maxHeads = 12
)

// point is an engine block that ends inside a prefix block: who begins with the prompt's first offset bytes has its tokens. head is
// the hash of those of them that are in the prefix block.
type point struct {
	key, head uint64
	offset    int32
	entry     int32 // where the key was last found
}

// points are the ends inside of one prefix block, in a ring: what was learned longest ago is overwritten.
type points struct {
	first uint64 // counted from the beginning
	n     int32
}

// ring keeps the ends inside of the prefix blocks learned last.
type ring struct {
	all  []point
	next uint64
}

// of returns the points, none when they have been overwritten.
func (r *ring) of(p points) []point {
	if p.n == 0 || p.first+maxPoints < r.next {
		return nil
	}
	at := int(p.first % maxPoints)
	return r.all[at : at+int(p.n)]
}

// aged says that the points are about to be overwritten.
func (r *ring) aged(p points) bool { return p.first+maxPoints/2 < r.next }

// put takes points in, at most innerPoints.
func (r *ring) put(all []point) points {
	if left := maxPoints - int(r.next%maxPoints); left < len(all) { // a block's are not torn
		r.next += uint64(left)
	}
	at := int(r.next % maxPoints)
	for len(r.all) < at+len(all) && len(r.all) < maxPoints {
		r.all = append(r.all, point{})
	}
	copy(r.all[at:], all)
	p := points{r.next, int32(len(all))}
	r.next += uint64(len(all))
	return p
}

// within is how many points of the prompt's block k are kept for engines with blocks of a size.
func (p *Prompt) within(k, size int) int {
	n := int(p.Ends[k]) / size
	if k > 0 {
		n -= int(p.Ends[k-1]) / size
	}
	return min(n, innerPoints)
}

// inside lists them, into dst.
func (p *Prompt) inside(k, size int, keys []uint64, dst []point) []point {
	dst = dst[:0]
	to := int(p.Ends[k]) / size
	for e := to - p.within(k, size); e < to; e++ {
		q := point{key: keys[e], entry: -1}
		if last := (e+1)*size - 1; p.Head != nil && last < len(p.Certain) {
			q.offset = p.Certain[last]
			q.head = p.Head(int(q.offset))
		}
		dst = append(dst, q)
	}
	return dst
}

// family notes that one prefix block follows another, which keeps the latest of its children: those with its name as their parent.
func (x *Exact) family(parent, child int32) {
	m := &x.mapped[parent]
	if slices.Contains(m.children[:min(m.turn, siblings)], child) && x.mapped[child].parent == m.block {
		return
	}
	x.mapped[child].parent = m.block
	m.children[m.turn%siblings] = child
	m.turn++
}

// request is a prompt of which is asked what a slot holds.
type request struct {
	guess  *Index
	slot   int
	blocks []uint64
	head   func(n int) uint64
	left   int // how often head may be called
}

// assumed says that the slot holds a block whatever its events have said so far.
func (x *Exact) assumed(q *request, block uint64) bool {
	e, ok := q.guess.entries[block]
	if !ok || q.slot>>6 >= q.guess.words {
		return false
	}
	w, bit := q.slot>>6, uint64(1)<<(q.slot&63)
	have := q.guess.fresh[int(e)*q.guess.words+w]
	if x.complete[w]&bit == 0 {
		have |= q.guess.held[int(e)*q.guess.words+w]
	}
	return have&bit != 0
}

// run is how many of the points of a prefix block the slot holds, from the first on.
func (x *Exact) run(q *request, block uint64, all []point) int {
	if len(all) == 0 || x.assumed(q, block) {
		return len(all)
	}
	w, bit := q.slot>>6, uint64(1)<<(q.slot&63)
	for i := range all {
		if row := x.row(all[i].key, &all[i].entry); row == nil || row[w]&bit == 0 {
			return i
		}
	}
	return len(all)
}

// upTo is how many tokens the first i points of a prefix block stand for; of a negative number, none.
func (x *Exact) upTo(m *mapped, i, size int) int {
	return max(int(m.tokens)/size-int(m.points.n)+i, 0) * size
}

// holding is how many tokens the slot holds of a prompt of which it holds the first n blocks: at least so many as are told by
// whole blocks, more where it holds a part of the next one.
func (x *Exact) holding(q *request, n int, class *class) int {
	tokens := 0
	var last *mapped
	if n > 0 {
		last = &x.mapped[x.blocks[q.blocks[n-1]^class.salt]]
		all := x.inner.of(last.points)
		held := x.run(q, q.blocks[n-1], all)
		tokens = int(last.tokens) / class.size * class.size
		if held < len(all) {
			return x.upTo(last, held, class.size)
		}
	}
	if n == len(q.blocks) {
		return tokens
	}
	if at, ok := x.blocks[q.blocks[n]^class.salt]; ok {
		next := &x.mapped[at]
		if held := x.run(q, q.blocks[n], x.inner.of(next.points)); held > 0 {
			tokens = max(tokens, x.upTo(next, held, class.size))
		}
		return tokens
	}
	if last == nil || q.head == nil {
		return tokens
	}
	return max(tokens, x.shared(q, last, class))
}

// shared is how many tokens the slot holds up to where the prompt parts from those learned that begin like it up to the block last,
// as far as that is seen.
func (x *Exact) shared(q *request, last *mapped, class *class) int {
	best, tokens := int32(0), 0
	for i := range min(last.turn, siblings) {
		m := &x.mapped[last.children[(last.turn-1-i)%siblings]]
		if m.parent != last.block {
			continue
		}
		all := x.inner.of(m.points)
		all = all[:x.run(q, m.block^class.salt, all)]
		// Equal up to one point is equal up to all before it; whoever parts before the best one's last point is no better.
		from := 0
		for from < len(all) && all[from].offset <= best {
			from++
		}
		if from == len(all) || !x.begins(q, &all[from]) {
			continue
		}
		for low, high := from+1, len(all); ; {
			if low == high {
				best, tokens = all[low-1].offset, max(tokens, x.upTo(m, low, class.size))
				break
			}
			if mid := (low + high + 1) / 2; x.begins(q, &all[mid-1]) {
				low = mid
			} else {
				high = mid - 1
			}
		}
	}
	return tokens
}

// begins reports whether the prompt has the bytes up to a point.
func (x *Exact) begins(q *request, p *point) bool {
	if q.left == 0 || p.offset == 0 {
		return false
	}
	q.left--
	return q.head(int(p.offset)) == p.head && p.head != 0
}
