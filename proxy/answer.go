package proxy

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/sluice-gateway/sluice/openai"
)

// Sizes of the buffers that answers pass through. A stream's grows from lineSize to maxHeldLine as its lines ask; most
// need no more than the first, and ten thousand streams hold ten thousand of them.
const (
	pieceSize   = 32 << 10
	lineSize    = 8 << 10
	maxHeldLine = 64 << 10
)

func newBuffer(size int) *[]byte {
	b := make([]byte, size)
	return &b
}

func (a *attempt) takeBuffer() {
	pool := &a.c.g.pieces
	if a.sse {
		pool = &a.c.g.lines
	}
	a.buf, _ = pool.Get().(*[]byte)
}

func (a *attempt) giveBuffer() {
	if a.buf == nil {
		return
	}
	switch len(*a.buf) {
	case pieceSize:
		a.c.g.pieces.Put(a.buf)
	case lineSize:
		a.c.g.lines.Put(a.buf)
	}
	a.buf = nil
}

// copier is the state of copying one answer.
type copier struct {
	a     *attempt
	w     http.ResponseWriter
	flush func() error // nil when the answer's length is known
	usage *openai.UsageReader
	held  int  // bytes of an incomplete line at the start of the buffer
	torn  bool // part of a line has been passed on
	cr    bool // what was passed on ends in CR, which an LF would only complete
	gone  bool // the client has
}

// deliver passes the answer on. From here on the request stays with this endpoint.
func (c *call) deliver(a *attempt) {
	c.current, c.trouble = a, trouble{endpoint: a.lease.Endpoint.Name}
	c.req.Free()
	now, ok := c.g.now(), a.resp.StatusCode < 300
	a.mu.Lock()
	if a.phase == held { // its idle limit begins here
		a.phase = begun
		a.lastByte.Store(int64(now))
	}
	a.mu.Unlock()
	if ok && (a.sse || !c.req.Want.Streamed) {
		a.lease.FirstByte(now) // the prefill is over and no longer counts as backlog; an error comes fast and says nothing of speed
	}
	if a.sse {
		c.req.FirstByte()
	}
	if c.waits(a) && !a.complete() {
		c.breakEarly(a)
		return
	}
	a.tell()
	c.answerHeader(a)
	c.req.Ended.Status, c.req.Ended.Endpoint = a.resp.StatusCode, a.lease.Endpoint.Name
	c.w.WriteHeader(a.resp.StatusCode)
	if ok && readable(a.resp.Header) {
		c.req.Store((*a.buf)[:a.n], a.lease)
	}
	cp := c.copier(a)
	err := cp.run()
	c.conclude(cp, err)
}

func (c *call) copier(a *attempt) *copier {
	p := &copier{a: a, w: c.w}
	if a.resp.ContentLength < 0 {
		p.flush = http.NewResponseController(c.w).Flush
	}
	if a.resp.StatusCode < 300 && readable(a.resp.Header) && (a.sse || isJSON(a.resp.Header)) {
		p.usage, _ = c.g.readers.Get().(*openai.UsageReader)
		p.usage.Reset(a.sse)
	}
	return p
}

// tell marks that the client is being told the answer, which a client that takes nothing must not make endless, even if
// the attempt was given up a moment ago.
func (a *attempt) tell() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.told = true
	if a.phase == over {
		a.boundWrites()
	}
}

// waits reports whether nothing of an answer is passed on until it is whole or the buffer is full: no client can use a
// part of an object of JSON, and one that breaks can still become an error. White space at the start is an engine's sign
// of life, which must not wait.
func (c *call) waits(a *attempt) bool {
	return !c.req.Want.Streamed && !c.req.Open && isJSON(a.resp.Header) && len(bytes.TrimLeft((*a.buf)[:a.n], " \t\r\n")) > 0
}

func isJSON(h http.Header) bool { return strings.HasPrefix(h.Get("Content-Type"), "application/json") }

// complete reads on until the answer is whole or the buffer is full, and reports false if it broke before.
func (a *attempt) complete() bool {
	for a.err == nil && a.n < len(*a.buf) {
		var n int
		n, a.err = a.resp.Body.Read((*a.buf)[a.n:])
		a.n += n
		a.progress()
	}
	return a.err == nil || a.err == io.EOF
}

// progress notes that bytes came.
func (a *attempt) progress() {
	now := a.c.g.now()
	a.lastByte.Store(int64(now))
	a.lease.Progress(now)
}

// breakEarly answers for an endpoint whose answer broke before anything of it was passed on. It stays with that
// endpoint all the same: what it generated may have been half an hour's work, which nobody asks for twice unasked.
func (c *call) breakEarly(a *attempt) {
	a.mu.Lock()
	a.phase = over
	why := a.why
	a.mu.Unlock()
	switch {
	case c.r.Context().Err() != nil:
		why = causeClient
	case why == causeNone:
		why, c.trouble.said = causeBroken, inWords(a.err)
	}
	c.countBreak(why)
	a.end(why.outcome())
	c.fail(c.breakError(why, "its answer"))
}

// run copies until the answer ends, breaks or has nobody to read it. io.EOF means that it ended whole.
func (p *copier) run() error {
	a := p.a
	n, err := a.n, a.err
	for {
		if !p.pass(n, err == io.EOF) {
			p.gone = true
			return nil
		}
		if err != nil {
			return err
		}
		n, err = a.resp.Body.Read((*a.buf)[p.held:])
		a.progress()
	}
}

// pass takes n more bytes in the buffer and writes what may be written: everything, but of a stream that goes on only
// whole lines, so that an error event can follow at any time. It reports whether the client is there to take it.
func (p *copier) pass(n int, last bool) bool {
	a := p.a
	end := p.held + n
	fresh := (*a.buf)[p.held:end]
	if p.usage != nil && n > 0 {
		_, _ = p.usage.Write(fresh)
	}
	out := end
	switch {
	case !a.sse || last:
	case n > 0 && fresh[n-1] == '\n': // as nearly every piece of a stream ends
		p.torn = false
	default:
		if whole := openai.CompleteLines(fresh); whole > 0 {
			out, p.torn = p.held+whole, false
		} else {
			out = p.hold(end)
		}
	}
	if out == 0 {
		p.held = end
		return true
	}
	if _, err := p.w.Write((*a.buf)[:out]); err != nil {
		return false
	}
	p.cr = (*a.buf)[out-1] == '\r'
	if p.flush != nil && p.flush() != nil {
		return false
	}
	p.held = copy(*a.buf, (*a.buf)[out:end])
	return true
}

// hold makes room for the rest of a line, or gives up on holding it back. It returns how much to write.
func (p *copier) hold(end int) int {
	size := len(*p.a.buf)
	if end < size {
		return 0
	}
	if size >= maxHeldLine {
		p.torn = true
		return end
	}
	bigger := newBuffer(min(4*size, maxHeldLine))
	copy(*bigger, (*p.a.buf)[:end])
	p.a.giveBuffer()
	p.a.buf = bigger
	return 0
}

// conclude ends the answer as well as it can be ended, and books it.
func (c *call) conclude(p *copier, err error) {
	a := p.a
	a.mu.Lock()
	a.phase, a.told = over, false // the watcher no longer touches the client's connection
	why := a.why
	a.mu.Unlock()
	gaveUp := why != causeNone
	switch {
	case p.gone && why == causeNone, err != io.EOF && c.r.Context().Err() != nil:
		why = causeClient
	case err == io.EOF:
		why = causeNone
	case why == causeNone:
		why, c.trouble.said = causeBroken, inWords(err)
	}
	o := why.outcome()
	if why == causeNone {
		c.trailers(a)
		o.Ending, c.req.Ended.Whole = statusEnding(a.resp.StatusCode), true
	} else {
		c.breakOff(p, why)
	}
	if gaveUp && !c.broken { // what giveUpLocked set must meet neither the rest of this answer nor the next request
		_ = http.NewResponseController(c.w).SetWriteDeadline(time.Time{})
	}
	if p.usage != nil {
		_ = p.usage.Close()
		c.req.BookUsage(p.usage, &o, a.lease.Cached)
		c.g.readers.Put(p.usage)
	}
	a.end(o)
}

// breakOff tells the client that the answer is not whole: in a stream by an error event, else by breaking the
// connection.
func (c *call) breakOff(p *copier, why cause) {
	c.countBreak(why)
	c.broken = true
	if why == causeClient {
		return
	}
	c.complain("answer broke off", c.trouble.said, c.req.Ended.Status)
	if !p.a.sse || p.flush == nil || p.gone {
		return
	}
	event := openai.SSEError(c.breakError(why, "the stream"))
	if p.torn {
		event = append([]byte("\n"), event...) // ends the event that the torn line is part of
	}
	if p.cr {
		event = append([]byte("\n"), event...) // CR LF is one line end
	}
	if _, err := c.w.Write(event); err == nil && p.flush() == nil {
		c.broken = false // it has been said; the stream ends in good order
	}
}

// countBreak counts an answer that ended early, and puts the cause in words.
func (c *call) countBreak(why cause) {
	c.countAbort(why)
	c.trouble.said = why.words(c.trouble.said)
	if why != causeClient {
		c.req.Broke(string(why))
	}
}

// breakError is what a client is told of an answer, or a stream, that ended early.
func (c *call) breakError(why cause, what string) *openai.Error {
	switch why {
	case causeIdle:
		return openai.TimedOut.Errorf("the endpoint sent nothing for %v", c.set.IdleTimeout)
	case causeRoute, causeCut, causeClient:
		return why.error(c)
	}
	return openai.UpstreamFailed.Errorf("the endpoint broke %s off: %s", what, c.trouble.said)
}
