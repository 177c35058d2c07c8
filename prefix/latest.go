package prefix

// Latest lists the blocks that the slot was last given, at most that many, the oldest first, and how many units each
// has: what Learn takes.
func (x *Index) Latest(slot, most int) (blocks []uint64, units []int32) {
	if slot >= len(x.slots) {
		return nil, nil
	}
	q := &x.slots[slot]
	first := max(q.n-most, 0)
	blocks, units = make([]uint64, 0, q.n-first), make([]int32, 0, q.n-first)
	for i := first; i < q.n; i++ {
		e := q.ring[(q.first+i)%len(q.ring)]
		blocks, units = append(blocks, x.keys[e]), append(units, x.sizes[e])
	}
	return blocks, units
}

// Learn notes that the slot holds blocks of so many units each, in the order that Latest gave them. Blocks of no size, or of
// more than the slot may hold, are left out.
func (x *Index) Learn(slot int, blocks []uint64, units []int32) {
	x.grow(slot)
	var none Matched
	one, end := make([]uint64, 1), make([]int32, 1)
	for i, block := range blocks {
		if units[i] > 0 {
			one[0], end[0] = block, units[i]
			x.Add(slot, one, end, &none)
		}
	}
}
