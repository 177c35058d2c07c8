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
	notes  []entry
	first  uint64 // the number of notes[0]
	blocks int    // in notes
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
	if len(r.notes) >= keepNotes || r.blocks+len(n.Blocks) > keepBlocks {
		r.drop(max(len(r.notes)/4, 1))
	}
	r.notes = append(r.notes, entry{pool, *n})
	kept := &r.notes[len(r.notes)-1].note
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

// drop forgets the oldest n notes.
func (r *record) drop(n int) {
	n = min(n, len(r.notes))
	for i := range r.notes[:n] {
		r.blocks -= len(r.notes[i].note.Blocks)
	}
	r.notes = slices.Delete(r.notes, 0, n)
	r.first += uint64(n)
}

// join makes the record wake a teller, and returns the number of the next note.
func (r *record) join(wake chan struct{}) uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.wakes = append(r.wakes, wake)
	return r.first + uint64(len(r.notes))
}

// leave ends what join began. With the last teller the notes go.
func (r *record) leave(wake chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.wakes = slices.DeleteFunc(r.wakes, func(w chan struct{}) bool { return w == wake })
	if len(r.wakes) == 0 {
		r.drop(len(r.notes))
	}
}

// end is the number of the next note.
func (r *record) end() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.first + uint64(len(r.notes))
}

// read appends the notes from number at on, as many as make a batch, and returns the number of the next. lost is how many
// are not kept any more.
func (r *record) read(at uint64, dst []entry) (out []entry, next uint64, lost int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if at < r.first {
		return dst, r.first, int(r.first - at)
	}
	blocks := 0
	for _, e := range r.notes[at-r.first:] {
		if len(dst) >= batchNotes || blocks >= batchBlocks {
			break
		}
		dst = append(dst, e)
		blocks += len(e.note.Blocks)
		at++
	}
	return dst, at, 0
}
