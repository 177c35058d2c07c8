package peer

import (
	"slices"
	"sync"

	"github.com/sluice-gateway/sluice/fleet"
)

const (
	// keepNotes and keepBlocks bound what is kept for peers that have not been sent it yet: some 20 MB.
	keepNotes, keepBlocks = 1 << 14, 1 << 20
	// A batch has at most so many notes, and ends after so many blocks.
	batchNotes, batchBlocks = 2048, 1 << 16
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

// add keeps a note and wakes those who tell it. It is called with a pool locked, and takes a fraction of a microsecond.
func (r *record) add(pool string, n *fleet.Note) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.wakes) == 0 {
		return
	}
	for r.next-r.first == keepNotes || r.first < r.next && r.blocks+len(n.Blocks) > keepBlocks {
		oldest := &r.notes[r.first%keepNotes]
		r.blocks -= len(oldest.note.Blocks)
		*oldest = entry{}
		r.first++
	}
	e := &r.notes[r.next%keepNotes]
	*e = entry{pool, *n}
	r.next++
	kept := &e.note
	kept.Blocks, r.spareBlocks = keep(r.spareBlocks, n.Blocks)
	kept.Ends, r.spareEnds = keep(r.spareEnds, n.Ends)
	r.blocks += len(n.Blocks)
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
	blocks := 0
	for ; at < r.next && len(dst) < batchNotes && blocks < batchBlocks; at++ {
		e := &r.notes[at%keepNotes]
		dst = append(dst, *e)
		blocks += len(e.note.Blocks)
	}
	return dst, at, len(dst) == batchNotes || blocks >= batchBlocks, 0
}
