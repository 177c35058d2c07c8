package peer

import (
	"slices"
	"sync"

	"github.com/sluice-gateway/sluice/fleet"
)

const (
	// keepNotes and keepBlocks bound what is kept for peers that have not been sent it yet: some 20 MB.
	keepNotes, keepBlocks = 1 << 14, 1 << 20
	// A batch has at most so many notes, and ends with the one that makes it so large, in bytes: that fits into maxMessage, since
	// no note has more than noteBlocks, the first ones of its prompt, which are 8 MB of it.
	batchNotes, batchBytes, noteBlocks = 2048, 1 << 19, 1 << 15
	// slab is how many blocks memory is taken for at a time.
	slab = 1 << 12
)

// record is the latest notes of all pools, numbered. Each teller reads on from where it is; one that falls behind what is kept
// has lost notes, and has to recount.
type record struct {
	mu     sync.Mutex
	notes  []entry // a ring of keepNotes, nil with nobody to tell; note n is at n modulo its length
	first  uint64  // the number of the oldest note
	next   uint64  // the number of the note to come
	blocks int     // of all notes
	wakes  []chan struct{}

	spareBlocks []uint64
	spareEnds   []int32
}

// entry is a note of a pool, with slices of its own.
type entry struct {
	pool string
	note fleet.Note
}

// size is the most bytes that the note takes in a message.
func (e *entry) size() int {
	const numbers, block, end = 192, 8, 5
	n := &e.note
	return numbers + block*len(n.Blocks) + end*len(n.Ends) + len(e.pool) + len(n.Endpoint) + len(n.Adapter) + len(n.Response)
}

// add keeps a note and wakes those who tell it. It is called with a pool locked, and takes a fraction of a microsecond.
func (r *record) add(pool string, n *fleet.Note) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.wakes) == 0 {
		return
	}
	blocks, ends := n.Blocks[:min(len(n.Blocks), noteBlocks)], n.Ends[:min(len(n.Ends), noteBlocks)]
	for r.next-r.first == keepNotes || r.first < r.next && r.blocks+len(blocks) > keepBlocks {
		oldest := &r.notes[r.first%keepNotes]
		r.blocks -= len(oldest.note.Blocks)
		*oldest = entry{}
		r.first++
	}
	e := &r.notes[r.next%keepNotes]
	*e = entry{pool, *n}
	r.next++
	kept := &e.note
	kept.Blocks, r.spareBlocks = keep(r.spareBlocks, blocks)
	kept.Ends, r.spareEnds = keep(r.spareEnds, ends)
	r.blocks += len(blocks)
	for _, wake := range r.wakes {
		select {
		case wake <- struct{}{}:
		default:
		}
	}
}

// keep copies values into spare memory, and returns the copy and what is left.
func keep[T any](spare, values []T) (kept, left []T) {
	if len(values) == 0 {
		return nil, spare
	}
	if len(values) > len(spare) {
		spare = make([]T, max(slab, len(values)))
	}
	n := copy(spare, values)
	return spare[:n:n], spare[n:]
}

// join makes the record wake a teller, and returns the number of the next note.
func (r *record) join(wake chan struct{}) uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.wakes = append(r.wakes, wake)
	if r.notes == nil {
		r.notes = make([]entry, keepNotes)
	}
	return r.next
}

// leave ends what join began. With the last teller the notes go.
func (r *record) leave(wake chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.wakes = slices.DeleteFunc(r.wakes, func(w chan struct{}) bool { return w == wake })
	if len(r.wakes) == 0 {
		r.notes, r.first, r.blocks = nil, r.next, 0
	}
}

// end is the number of the next note.
func (r *record) end() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.next
}

// read appends the notes from number at on, as many as make a batch, and returns the number of the next, and whether the
// batch is full. lost is how many are not kept any more.
func (r *record) read(at uint64, dst []entry) (out []entry, next uint64, full bool, lost int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if at < r.first {
		return dst, r.first, false, int(r.first - at)
	}
	size := 0
	for ; at < r.next && len(dst) < batchNotes && size < batchBytes; at++ {
		e := &r.notes[at%keepNotes]
		dst = append(dst, *e)
		size += e.size()
	}
	return dst, at, len(dst) == batchNotes || size >= batchBytes, 0
}

// cut is how many of the entries make a batch.
func cut(entries []entry) int {
	n := 0
	for size := 0; n < min(len(entries), batchNotes) && size < batchBytes; n++ {
		size += entries[n].size()
	}
	return n
}
