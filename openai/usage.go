package openai

import (
	"bytes"
	"encoding/binary"
	"math/bits"
)

const (
	maxLine  = 1 << 20  // a longer line of a stream is passed over
	maxUsage = 64 << 10 // a longer usage object of a plain reply is passed over
	maxCount = 1 << 40  // a larger count of tokens is a mistake
)

// Usage is what an engine says a request cost, in tokens. PromptTokens holds the cached ones too, whatever the API's
// own convention. Seen is false when no usage was reported; the counts are 0 then.
type Usage struct {
	PromptTokens, CachedTokens, OutputTokens int
	Seen                                     bool
}

// A UsageReader reads usage out of a reply whose bytes pass by in pieces of any size. It never changes or keeps the
// bytes it is given, never fails, and holds at most one line of a stream (up to 1 MiB) or one usage object. Make one
// with NewUsageReader or Reset; not for use by several goroutines at once.
type UsageReader struct {
	sse    bool
	held   []byte // an incomplete line, or the usage object under way
	over   bool   // held would have grown too large: passing over it
	events int
	counts [counterCount]int
	seen   bool
	plain  plainState
	scan   scanner
	stack  [16]uint64
	parts  [1][]byte
}

// counter is one number in a usage object; each keeps its largest value, because engines repeat usage and some count up
// in every event.
type counter int

const (
	noCounter   counter = iota
	cInput              // prompt_tokens, input_tokens
	cOutput             // completion_tokens, output_tokens
	cCached             // cached_tokens in the details, part of the input
	cCacheRead          // the messages API counts cached input beside input_tokens
	cCacheWrite         // likewise
	counterCount
)

// NewUsageReader makes a reader for an event stream (sse) or for a plain JSON reply; go by the reply's Content-Type,
// not by what the request asked for: an error comes as plain JSON where a stream was asked for.
func NewUsageReader(sse bool) *UsageReader {
	return &UsageReader{sse: sse}
}

// Reset makes u ready for another reply; its buffer is kept.
func (u *UsageReader) Reset(sse bool) {
	*u = UsageReader{sse: sse, held: u.held[:0]}
}

// Write takes the next bytes of the reply. It always reports len(p) and no error, so that a reader can stand in an
// io.MultiWriter.
func (u *UsageReader) Write(p []byte) (int, error) {
	if u.sse {
		u.lines(p)
	} else {
		u.json(p)
	}
	return len(p), nil
}

// Close reads a last line that has no end. Write must not follow. The error is always nil.
func (u *UsageReader) Close() error {
	if u.sse && len(u.held) > 0 {
		u.endLine(nil)
	}
	return nil
}

// Usage is what has been seen so far. Of repeated counts the largest stands, they are never added: engines repeat them.
func (u *UsageReader) Usage() Usage {
	c := &u.counts
	return Usage{
		PromptTokens: c[cInput] + c[cCacheRead] + c[cCacheWrite],
		CachedTokens: max(c[cCached], c[cCacheRead]),
		OutputTokens: c[cOutput],
		Seen:         u.seen,
	}
}

// Events is how many data events of a stream have passed, the end marker left out: close to the number of output tokens
// where an engine reports no usage.
func (u *UsageReader) Events() int { return u.events }

// CompleteLines is the length of p up to and with its last line end, 0 when no line ends in p. A proxy that forwards
// only complete lines of a stream can append an error event at any moment.
func CompleteLines(p []byte) int {
	return max(bytes.LastIndexByte(p, '\n'), bytes.LastIndexByte(p, '\r')) + 1
}

// lines cuts p at CR and LF. CRLF makes an empty line too many, which means nothing here. The next LF is remembered, so
// that a piece is searched once however its lines end.
func (u *UsageReader) lines(p []byte) {
	start, lf := 0, -1
	for start < len(p) {
		if lf < start {
			if n := bytes.IndexByte(p[start:], '\n'); n >= 0 {
				lf = start + n
			} else {
				lf = len(p)
			}
		}
		end := lf
		if n := bytes.IndexByte(p[start:lf], '\r'); n >= 0 {
			end = start + n
		}
		if end == len(p) {
			u.hold(p[start:], maxLine)
			return
		}
		u.endLine(p[start:end])
		start = end + 1
	}
}

func (u *UsageReader) hold(p []byte, limit int) {
	if u.over || len(u.held)+len(p) > limit {
		u.over, u.held = true, u.held[:0]
		return
	}
	u.held = append(u.held, p...)
}

func (u *UsageReader) endLine(p []byte) {
	if len(u.held) > 0 || u.over {
		u.hold(p, maxLine)
		if !u.over {
			u.line(u.held)
		}
		u.held, u.over = u.held[:0], false
		return
	}
	u.line(p)
}

func (u *UsageReader) line(p []byte) {
	data, ok := bytes.CutPrefix(p, []byte("data:"))
	if !ok {
		return
	}
	data = bytes.TrimPrefix(data, []byte(" "))
	if len(data) == 0 || string(data) == "[DONE]" {
		return
	}
	u.events++
	// Nearly all events of a stream hold no usage; this look costs a twentieth of a scan.
	if bytes.Contains(data, []byte(`"usage"`)) {
		u.event(data)
	}
}

// event reads usage at the top of an event, or one level down: in response (the responses API) or in message (the
// messages API).
func (u *UsageReader) event(p []byte) {
	c := u.begin(p)
	_ = c.object(func(key span, _ bool) bool {
		switch string(u.text(key)) {
		case "usage":
			return u.usage()
		case "response", "message":
			return u.inner()
		}
		return c.skip()
	})
	u.end()
}

func (u *UsageReader) inner() bool {
	c := &u.scan
	if c.space() != '{' {
		return c.skip()
	}
	return c.object(func(key span, _ bool) bool {
		if string(u.text(key)) == "usage" {
			return u.usage()
		}
		return c.skip()
	})
}

func (u *UsageReader) begin(p []byte) *scanner {
	u.parts[0] = p
	u.scan.start(u.parts[:], u.stack[:])
	u.scan.levels = 64 * len(u.stack)
	return &u.scan
}

// end lets go of the bytes that were read: they belong to the caller of Write.
func (u *UsageReader) end() {
	u.parts[0], u.scan.p = nil, nil
}

func (u *UsageReader) text(sp span) []byte { return u.parts[0][sp.start:sp.end] }

// usage reads a usage object, the scanner standing before it. Anything else in its place is passed over: what an engine
// writes must never break a stream.
func (u *UsageReader) usage() bool {
	c := &u.scan
	if c.space() != '{' {
		return c.skip()
	}
	return c.object(func(key span, _ bool) bool {
		switch string(u.text(key)) {
		case "prompt_tokens", "input_tokens":
			return u.count(cInput)
		case "completion_tokens", "output_tokens":
			return u.count(cOutput)
		case "cache_read_input_tokens":
			return u.count(cCacheRead)
		case "cache_creation_input_tokens":
			return u.count(cCacheWrite)
		case "prompt_tokens_details", "input_tokens_details":
			return u.details()
		}
		return c.skip()
	})
}

func (u *UsageReader) details() bool {
	c := &u.scan
	if c.space() != '{' {
		return c.skip()
	}
	return c.object(func(key span, _ bool) bool {
		if string(u.text(key)) == "cached_tokens" {
			return u.count(cCached)
		}
		return c.skip()
	})
}

// count takes a whole number; any other value is passed over.
func (u *UsageReader) count(which counter) bool {
	c := &u.scan
	c.space()
	start := c.offset()
	if !c.skip() {
		return false
	}
	n := 0
	for _, b := range u.text(span{start, c.offset()}) {
		if b < '0' || b > '9' || n > maxCount {
			return true
		}
		n = 10*n + int(b-'0')
	}
	if n <= maxCount {
		u.seen = true
		u.counts[which] = max(u.counts[which], n)
	}
	return true
}

// plainState is where the reading of a plain reply stands. It follows strings and levels only, so that a reply of any
// size passes without being held; what is no JSON finds no usage, or a wrong one of its own making.
type plainState struct {
	depth   int
	inText  bool
	escape  bool
	name    [8]byte // the last string at level 1, cut off
	named   int     // its length
	capture bool    // inside the value of usage
}

// json looks for a top-level usage in a plain reply.
func (u *UsageReader) json(p []byte) {
	s := &u.plain
	from := 0 // start of what belongs to the capture
	for i := 0; i < len(p); i++ {
		if s.inText {
			i = s.text(p, i)
			continue
		}
		if s.depth > 1 {
			if i = structure(p, i); i == len(p) {
				break
			}
		}
		switch p[i] {
		case '"':
			s.inText, s.named = true, 0
		case '{', '[':
			s.depth++
		case ':':
			if s.atUsage() {
				s.capture, from = true, i+1
				u.held, u.over = u.held[:0], false
			}
		case '}', ']':
			u.endCapture(p[from:i])
			s.depth--
		case ',':
			u.endCapture(p[from:i])
		}
	}
	if s.capture {
		u.hold(p[min(from, len(p)):], maxUsage)
	}
}

// atUsage reports whether a colon here follows the top-level key usage.
func (s *plainState) atUsage() bool {
	return s.depth == 1 && !s.capture && s.named == len("usage") && string(s.name[:s.named]) == "usage"
}

// structure returns the index of the first byte of p, from i on, that may open or close a string, a list or an object,
// or len(p). It passes over the numbers of embeddings eight bytes at a time.
func structure(p []byte, i int) int {
	for ; i+8 <= len(p); i += 8 {
		x := binary.LittleEndian.Uint64(p[i:])
		if m := ((x + (0x80-'[')*ones) | ((x ^ '"'*ones) - ones) | x) & highs; m != 0 {
			return i + bits.TrailingZeros64(m)>>3
		}
	}
	for i < len(p) && p[i] < '[' && p[i] != '"' {
		i++
	}
	return i
}

// endCapture reads the usage that was captured, with its last bytes, where the end of a member is that of usage.
func (u *UsageReader) endCapture(p []byte) {
	if !u.plain.capture || u.plain.depth != 1 {
		return
	}
	u.plain.capture = false
	u.hold(p, maxUsage)
	if !u.over {
		u.begin(u.held)
		_ = u.usage()
		u.end()
	}
	u.held, u.over = u.held[:0], false
}

// text passes over the inside of a string from p[i] and returns the index of the last byte it took.
func (s *plainState) text(p []byte, i int) int {
	if s.escape {
		s.escape = false
		s.take(p[i : i+1])
		return i
	}
	end := i
	for end < len(p) && p[end] != '"' && p[end] != '\\' {
		if end = plain(p, end); end < len(p) && (p[end] >= 0x80 || p[end] < ' ') {
			end++
		}
	}
	s.take(p[i:end])
	if end == len(p) {
		return end - 1
	}
	if p[end] == '"' {
		s.inText = false
	} else {
		s.escape = true
		s.take(p[end : end+1])
	}
	return end
}

func (s *plainState) take(p []byte) {
	if s.depth == 1 && s.named < len(s.name) {
		copy(s.name[s.named:], p)
		s.named += len(p)
	}
}
