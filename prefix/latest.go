package prefix

// Latest lists the blocks that the slot has used last, at most that many, the longest unused first, and how many units
// each has: what Learn takes.
func (x *Index) Latest(slot, most int) (blocks []uint64, units []int32) {
	if slot >= len(x.slots) {
		return nil, nil
	}
	q := &x.slots[slot]
	n := min(len(q.at), most)
	blocks, units = make([]uint64, n), make([]int32, n)
	for p := int32(0); n > 0; n-- {
		p = q.places[p].prev
		e := q.places[p].entry
		blocks[n-1], units[n-1] = x.keys[e], x.sizes[e]
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
