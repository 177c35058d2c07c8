package openai

import (
	"errors"
	"fmt"
	"io"
	"math/bits"
	"runtime"
	"sync"
	"sync/atomic"
)

const (
	// DefaultBodyLimit is the largest request body in bytes where the configuration names no other limit.
	DefaultBodyLimit = 256 << 20

	minSegment    = 4 << 10  // the smallest pooled buffer
	firstSegment  = 64 << 10 // where a body of unknown length starts
	maxSegment    = 1 << 20  // the largest pooled buffer, and all that a claimed Content-Length gets up front
	segmentSizes  = 9        // powers of two from minSegment to maxSegment
	inlineBodyCap = 4        // segments a Body holds without a further allocation: 3 MiB of known length
)

var (
	// ErrTooLarge says that one body is over its own limit; a client sees 413.
	ErrTooLarge = errors.New("request body is over the limit")
	// ErrBudget says that all bodies together would be over the Budget; a client sees 429 and may try again.
	ErrBudget = errors.New("request bodies together are over the memory budget")
	// ErrClosed is returned by reading from a body's reader after its Close.
	ErrClosed = errors.New("read from a closed request body")
)

// A Budget bounds the memory of all request bodies that share it and recycles their buffers. Safe for any number of
// goroutines. It has only as many bodies decoded at once as there are processors: a decoder's window, up to 16 MiB that a
// body of 45 bytes can ask for, is outside of the budget, and more of them would end no sooner. A nil Budget bounds nothing and recycles nothing.
type Budget struct {
	total    int64
	used     atomic.Int64
	pools    [segmentSizes]sync.Pool
	decoders chan struct{} // filled by those at work
	unzstds  sync.Pool     // *zstd.Decoder
}

// NewBudget makes a Budget of total bytes; zero or less means no bound (buffers are still recycled).
func NewBudget(total int64) *Budget {
	return &Budget{total: total, decoders: make(chan struct{}, runtime.GOMAXPROCS(0))}
}

// Used is the number of bytes reserved at this moment: buffer capacities, which is what the process really holds, not
// the bytes that have arrived.
func (b *Budget) Used() int64 {
	if b == nil {
		return 0
	}
	return b.used.Load()
}

// Reserve counts n bytes that are held elsewhere, or reports ErrBudget.
func (b *Budget) Reserve(n int64) error {
	if b == nil {
		return nil
	}
	if used := b.used.Add(n); b.total > 0 && used > b.total {
		b.used.Add(-n)
		return fmt.Errorf("cannot hold %d bytes of a request body: %w", n, ErrBudget)
	}
	return nil
}

// Release gives back what Reserve counted.
func (b *Budget) Release(n int64) {
	if b != nil {
		b.used.Add(-n)
	}
}

// startDecoding waits until a decoder may work; endDecoding lets the next one.
func (b *Budget) startDecoding() {
	if b != nil {
		b.decoders <- struct{}{}
	}
}

func (b *Budget) endDecoding() {
	if b != nil {
		<-b.decoders
	}
}

type segment struct {
	buf   []byte // full length is the capacity
	class int
}

func (b *Budget) take(size int64) (*segment, error) {
	class := sizeClass(size)
	n := int64(minSegment) << class
	if b == nil {
		return &segment{buf: make([]byte, n), class: class}, nil
	}
	if used := b.used.Add(n); b.total > 0 && used > b.total {
		b.used.Add(-n)
		return nil, ErrBudget
	}
	if s, ok := b.pools[class].Get().(*segment); ok {
		return s, nil
	}
	return &segment{buf: make([]byte, n), class: class}, nil
}

func (b *Budget) put(s *segment) {
	if b == nil {
		return
	}
	b.used.Add(-int64(len(s.buf)))
	b.pools[s.class].Put(s)
}

// sizeClass is the smallest power of two that holds size, as an index from minSegment; sizes over maxSegment get
// maxSegment.
func sizeClass(size int64) int {
	size = min(max(size, minSegment), maxSegment)
	return bits.Len64(uint64(size-1)) - bits.Len64(minSegment-1)
}

// A Body is a request body held in memory in segments. Its bytes never change, so any number of readers can send it to
// any number of endpoints in turn, each getting what the client sent. A body of known length up to 1 MiB is one
// segment; a longer one, or one of unknown length, grows by segments that are never copied together; one that is someone
// else's has that one's.
type Body struct {
	parts  [][]byte // filled bytes, in order; none is empty
	owned  []*segment
	size   int64
	limit  int64
	budget *Budget
	refs   atomic.Int32
	freed  atomic.Bool
	done   func() // gives back memory that is not the budget's; nil where it is
	lent   int64  // bytes of such memory, which the budget counts

	inlineParts [inlineBodyCap][]byte
	inlineOwned [inlineBodyCap]*segment
}

func newBody(limit int64, budget *Budget) *Body {
	b := &Body{limit: limit, budget: budget}
	b.parts, b.owned = b.inlineParts[:0], b.inlineOwned[:0]
	b.refs.Store(1)
	return b
}

func (b *Body) add(p []byte) {
	if len(p) > 0 {
		b.parts = append(b.parts, p)
		b.size += int64(len(p))
	}
}

// lentBody is a body over memory that is someone else's, neither bounded nor counted; Budget.Hold says what that means.
func lentBody(parts [][]byte, done func()) *Body {
	b := newBody(DefaultBodyLimit, nil)
	b.done = done
	for _, p := range parts {
		b.add(p)
	}
	return b
}

// Hold makes a body over memory that is someone else's, which must not change before done is called: once, when the body has
// been freed and all of its readers are closed. done may be nil. Nothing is copied. The body is bounded by limit in bytes,
// zero or less for DefaultBodyLimit, and counted within the budget, and so is what decoding it takes. Errors wrap ErrTooLarge
// or ErrBudget; done has been called then.
func (b *Budget) Hold(parts [][]byte, limit int64, done func()) (*Body, error) {
	if limit <= 0 {
		limit = DefaultBodyLimit
	}
	body := lentBody(parts, done)
	body.limit, body.budget = limit, b
	if body.size > limit {
		defer body.Free()
		return nil, fmt.Errorf("%w: %d bytes sent, %d allowed", ErrTooLarge, body.size, limit)
	}
	if err := b.Reserve(body.size); err != nil {
		defer body.Free()
		return nil, err
	}
	body.lent = body.size
	return body, nil
}

// ReadBody reads a whole body from r. contentLength is the announced length, or negative when it is not known; r is
// read to exactly that length, or to its end. limit is in bytes, zero or less means DefaultBodyLimit. A claimed length
// reserves at most 1 MiB before its bytes arrive, so that claims cost a client what they cost us. Errors wrap
// ErrTooLarge, ErrBudget, io.ErrUnexpectedEOF or what r returned; nothing stays reserved then.
func ReadBody(r io.Reader, contentLength, limit int64, budget *Budget) (*Body, error) {
	if limit <= 0 {
		limit = DefaultBodyLimit
	}
	if contentLength > limit {
		return nil, fmt.Errorf("%w: %d bytes announced, %d allowed", ErrTooLarge, contentLength, limit)
	}
	b := newBody(limit, budget)
	var err error
	if contentLength >= 0 {
		err = b.readKnown(r, contentLength)
	} else {
		err = b.readUnknown(r)
	}
	if err != nil {
		b.Free()
		return nil, err
	}
	return b, nil
}

func (b *Body) readKnown(r io.Reader, length int64) error {
	for b.size < length {
		buf, err := b.grow(length - b.size)
		if err != nil {
			return err
		}
		want := buf[:min(int64(len(buf)), length-b.size)]
		n, err := io.ReadFull(r, want)
		b.add(want[:n])
		if err != nil {
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return fmt.Errorf("cannot read request body after %d of %d bytes: %w", b.size, length, err)
		}
	}
	return nil
}

func (b *Body) readUnknown(r io.Reader) error {
	for next := int64(firstSegment); ; next = min(2*next, maxSegment) {
		buf, err := b.grow(next)
		if err != nil {
			return err
		}
		n, err := fill(r, buf)
		b.add(buf[:n])
		if b.size > b.limit {
			return fmt.Errorf("%w: more than the %d bytes allowed", ErrTooLarge, b.limit)
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("cannot read request body after %d bytes: %w", b.size, err)
		}
	}
}

// fill is io.ReadFull that reports a plain io.EOF after a short read, so that a broken body (io.ErrUnexpectedEOF from
// below) is not taken for a finished one.
func fill(r io.Reader, buf []byte) (n int, err error) {
	for n < len(buf) && err == nil {
		var m int
		m, err = r.Read(buf[n:])
		n += m
	}
	return n, err
}

func (b *Body) grow(size int64) ([]byte, error) {
	s, err := b.budget.take(size)
	if err != nil {
		return nil, fmt.Errorf("cannot hold request body after %d bytes: %w", b.size, err)
	}
	b.owned = append(b.owned, s)
	return s.buf, nil
}

// Len is the number of bytes in the body as it arrived.
func (b *Body) Len() int64 { return b.size }

// Free gives up the caller's hold on the body. The memory goes back once every reader is closed as well, because
// net/http may still be writing a body when RoundTrip has returned. Calling it again does nothing.
func (b *Body) Free() {
	if b.freed.CompareAndSwap(false, true) {
		b.release()
	}
}

// hold takes a further reference, unless the memory is already gone.
func (b *Body) hold() bool {
	for {
		n := b.refs.Load()
		if n <= 0 {
			return false
		}
		if b.refs.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

func (b *Body) release() {
	if b.refs.Add(-1) != 0 {
		return
	}
	for i, s := range b.owned {
		b.budget.put(s)
		b.owned[i] = nil
	}
	clear(b.parts)
	b.parts, b.owned = nil, nil
	b.budget.Release(b.lent)
	if b.done != nil {
		b.done()
	}
}

// Reader returns a new reader from the first byte. Each one must be closed, or the memory is never returned. Reading
// and closing may happen on different goroutines at the same time; two goroutines must not read from one reader. After
// the body is gone (freed, all readers closed) it returns a reader that is already closed.
func (b *Body) Reader() io.ReadCloser {
	r := &bodyReader{body: b}
	if !b.hold() {
		r.closed.Store(true)
		return r
	}
	r.refs.Store(1)
	return r
}

// bodyReader counts the operations under way beside its own hold on the body, so that Close never waits for a Read or
// WriteTo that is stuck in a slow connection, and the memory still outlives it. A mutex would make Close wait.
type bodyReader struct {
	body   *Body
	part   int
	off    int
	pos    int64
	refs   atomic.Int32
	closed atomic.Bool
}

func (r *bodyReader) enter() bool {
	for {
		n := r.refs.Load()
		if n <= 0 || r.closed.Load() {
			return false
		}
		if r.refs.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

func (r *bodyReader) leave() {
	if r.refs.Add(-1) == 0 {
		r.body.release()
	}
}

func (r *bodyReader) Read(p []byte) (int, error) {
	if !r.enter() {
		return 0, ErrClosed
	}
	defer r.leave()
	n := 0
	for n < len(p) && r.part < len(r.body.parts) {
		m := copy(p[n:], r.body.parts[r.part][r.off:])
		n += m
		r.advance(m)
	}
	if n == 0 && len(p) > 0 {
		return 0, io.EOF
	}
	return n, nil
}

func (r *bodyReader) advance(n int) {
	r.pos += int64(n)
	if r.off += n; r.off == len(r.body.parts[r.part]) {
		r.part, r.off = r.part+1, 0
	}
}

// WriteTo writes each segment in one call, so that a connection sees large writes. net/http doesn't find it where a
// length is known: see CopyBody.
func (r *bodyReader) WriteTo(w io.Writer) (int64, error) {
	if !r.enter() {
		return 0, ErrClosed
	}
	defer r.leave()
	var total int64
	for r.part < len(r.body.parts) {
		if r.closed.Load() {
			return total, ErrClosed
		}
		rest := r.body.parts[r.part][r.off:]
		n, err := w.Write(rest)
		total += int64(n)
		r.advance(n)
		if err == nil && n < len(rest) {
			err = io.ErrShortWrite
		}
		if err != nil {
			return total, err
		}
	}
	return total, nil
}

func (r *bodyReader) Close() error {
	if r.closed.CompareAndSwap(false, true) {
		r.leave()
	}
	return nil
}

// CopyBody writes what is left of a body's reader to dst, segment by segment. It is for the ReadFrom of a connection
// that a Transport's DialContext returns: net/http hands it the reader inside an io.LimitedReader, which hides the
// WriterTo and makes 400 KB thirteen writes through a fresh buffer; so the request costs 118 instead of 171 µs of CPU
// on both ends together. It reports false, with nothing done, for any other reader: read from that as usual.
func CopyBody(dst io.Writer, src io.Reader) (n int64, ok bool, err error) {
	limited, ok := src.(*io.LimitedReader)
	if !ok {
		return 0, false, nil
	}
	r, ok := limited.R.(*bodyReader)
	if !ok || r.body.size-r.pos > limited.N {
		return 0, false, nil
	}
	n, err = r.WriteTo(dst)
	limited.N -= n
	return n, true, err
}
