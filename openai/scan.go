package openai

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"unicode/utf8"
)

// maxDepth is how deep lists and objects may nest: encoding/json's own limit, so that both accept the same bodies. What
// engines bear is less; they answer for that themselves.
const maxDepth = 10000

// stackWords is the size of a scanner's stack, one bit for each level.
const stackWords = (maxDepth + 64) / 64

// A span is a run of bytes of a body, from start up to end. The zero span means absent: no value starts at byte 0.
type span struct{ start, end int64 }

func (s span) len() int64 { return s.end - s.start }

// scanner walks over one JSON text that lies in parts and checks all of it. Its state is the position and one bit for
// each open level, so a part may end anywhere, in the middle of a number, an escape or a UTF-8 sequence.
//
// Every step returns false once something is wrong; at and what then say where and what. Decoding tokens instead (as
// encoding/json does) costs more than fifteen times as much, see BenchmarkRead and BenchmarkEncodingJSON.
type scanner struct {
	parts  [][]byte
	next   int    // index of the part after p
	p      []byte // the part under the scanner
	i      int    // position in p
	base   int64  // offset of p[0] in the body
	depth  int
	stack  []uint64 // bit set: the level is an object
	levels int      // how deep it may get

	escaped bool  // the last string held an escape
	key     span  // the last key inside a skipped value, quotes left out
	media   int64 // bytes of base64 media seen in strings

	at   int64
	what string
	odd  byte // the byte that was met, for what
}

func (s *scanner) start(parts [][]byte, stack []uint64) {
	*s = scanner{parts: parts, stack: stack, levels: maxDepth}
}

// fill moves to the next part and reports whether there is one.
func (s *scanner) fill() bool {
	if s.next == len(s.parts) {
		return false
	}
	s.base += int64(len(s.p))
	s.p, s.i = s.parts[s.next], 0
	s.next++
	return true
}

func (s *scanner) offset() int64 { return s.base + int64(s.i) }

// more reports whether a byte is left, moving on where a part ends.
func (s *scanner) more() bool { return s.i < len(s.p) || s.fill() }

// fail records the first fault. Text of the body goes no further than one byte.
func (s *scanner) fail(what string) bool {
	if s.what == "" {
		s.at, s.what = s.offset(), what
		if s.i < len(s.p) {
			s.odd = s.p[s.i]
		} else {
			s.what = "it ends early: " + what
		}
	}
	return false
}

func (s *scanner) message() string {
	if s.odd == 0 {
		return fmt.Sprintf("%s, at byte %d", s.what, s.at)
	}
	return fmt.Sprintf("%s, found %q at byte %d", s.what, []byte{s.odd}, s.at)
}

// space skips white space and returns the byte after it without consuming it, 0 at the end. A NUL in the body is not
// legal anywhere outside a string either, so the two need no telling apart.
func (s *scanner) space() byte {
	for {
		for s.i < len(s.p) {
			c := s.p[s.i]
			if c > ' ' || c != ' ' && c != '\n' && c != '\t' && c != '\r' {
				return c
			}
			s.i++
		}
		if !s.fill() {
			return 0
		}
	}
}

func (s *scanner) push(object bool) bool {
	if s.depth == s.levels {
		return s.fail("nested too deep")
	}
	word, bit := s.depth>>6, uint64(1)<<(s.depth&63)
	if object {
		s.stack[word] |= bit
	} else {
		s.stack[word] &^= bit
	}
	s.depth++
	return true
}

func (s *scanner) inObject() bool {
	d := s.depth - 1
	return s.stack[d>>6]>>(d&63)&1 != 0
}

type step int

const (
	failed step = iota
	inside      // the scanner stands before a value
	done        // the scanner stands after a value
)

// object passes over an object, the scanner standing before its brace. member is called after each key and its colon,
// and must pass over the value.
func (s *scanner) object(member func(key span, escaped bool) bool) bool {
	st := s.open()
	for st == inside {
		if !member(s.key, s.escaped) {
			return false
		}
		st = s.after()
	}
	return st == done
}

// skip passes over one value of any kind, the scanner standing before it.
func (s *scanner) skip() bool {
	bottom := s.depth
	for {
		st := s.open()
		for st == done && s.depth > bottom {
			st = s.after()
		}
		switch st {
		case failed:
			return false
		case done:
			return true
		}
	}
}

// open passes over a scalar, or enters a list or an object up to its first value.
func (s *scanner) open() step {
	c := s.space()
	switch {
	case c == '"':
		return asStep(s.text())
	case c == '{':
		if !s.push(true) {
			return failed
		}
		s.i++
		if s.space() == '}' {
			return s.pop()
		}
		return s.member()
	case c == '[':
		if !s.push(false) {
			return failed
		}
		s.i++
		if s.space() == ']' {
			return s.pop()
		}
		return inside
	case c == '-' || c >= '0' && c <= '9':
		return asStep(s.number())
	case c == 't':
		return asStep(s.literal("true"))
	case c == 'f':
		return asStep(s.literal("false"))
	case c == 'n':
		return asStep(s.literal("null"))
	}
	s.fail("a value is missing")
	return failed
}

func asStep(ok bool) step {
	if ok {
		return done
	}
	return failed
}

func (s *scanner) pop() step {
	s.i++
	s.depth--
	return done
}

// member passes over a key and its colon.
func (s *scanner) member() step {
	if s.space() != '"' {
		s.fail("a key in quotes is missing")
		return failed
	}
	s.i++
	s.key.start = s.offset()
	if !s.str() {
		return failed
	}
	s.key.end = s.offset() - 1
	if s.space() != ':' {
		s.fail("a colon after a key is missing")
		return failed
	}
	s.i++
	return inside
}

// after stands behind a value inside a list or an object: it leaves the level, or goes on to the next value.
func (s *scanner) after() step {
	c := s.space()
	object := s.inObject()
	switch {
	case c == ',' && object:
		s.i++
		return s.member()
	case c == ',':
		s.i++
		return inside
	case c == '}' && object, c == ']' && !object:
		return s.pop()
	}
	if object {
		s.fail("a comma or a closing brace is missing")
	} else {
		s.fail("a comma or a closing bracket is missing")
	}
	return failed
}

func (s *scanner) literal(word string) bool {
	for k := range len(word) {
		if !s.more() || s.p[s.i] != word[k] {
			return s.fail("true, false or null is misspelt")
		}
		s.i++
	}
	return true
}

// number follows the grammar of JSON; its size is of no interest, since it is the engine that reads it. Whole numbers
// without a sign, which is what lists of token ids hold, are passed over in one short loop.
func (s *scanner) number() bool {
	i := wholeNumber(s.p, s.i)
	if i < 0 {
		return s.anyNumber()
	}
	if s.depth > 0 && !s.inObject() {
		i = moreNumbers(s.p, i)
	}
	s.i = i
	return true
}

// wholeNumber returns the index after a whole number above 0 at p[i], or -1 where there is another kind of number, or
// none, or where p ends with it and it may go on.
func wholeNumber(p []byte, i int) int {
	if i >= len(p) || p[i]-'1' >= 9 {
		return -1
	}
	for i < len(p) && p[i]-'0' <= 9 {
		i++
	}
	if i == len(p) || p[i] == '.' || p[i]|0x20 == 'e' {
		return -1
	}
	return i
}

// moreNumbers passes over the whole numbers that follow one in a list.
func moreNumbers(p []byte, i int) int {
	for i+1 < len(p) && p[i] == ',' {
		next := i + 1
		if p[next] == ' ' {
			next++
		}
		if next = wholeNumber(p, next); next < 0 {
			break
		}
		i = next
	}
	return i
}

func (s *scanner) anyNumber() bool {
	if s.p[s.i] == '-' {
		s.i++
	}
	if !s.more() {
		return s.fail("a digit is missing")
	}
	if s.p[s.i] == '0' {
		s.i++
	} else if !s.digits() {
		return false
	}
	if s.more() && s.p[s.i] == '.' {
		s.i++
		if !s.digits() {
			return false
		}
	}
	if s.more() && s.p[s.i]|0x20 == 'e' {
		s.i++
		if s.more() && (s.p[s.i] == '+' || s.p[s.i] == '-') {
			s.i++
		}
		return s.digits()
	}
	return true
}

func (s *scanner) digits() bool {
	n := 0
	for s.more() {
		p, i := s.p, s.i
		for i < len(p) && p[i]-'0' <= 9 {
			i++
		}
		n += i - s.i
		if s.i = i; i < len(p) {
			break
		}
	}
	return n > 0 || s.fail("a digit is missing")
}

// longText is the length from which a string is looked at for base64 media. Shorter ones can't carry an image.
const longText = 1024

// text passes over a string value, the scanner standing before its quote, and counts it as media where it is some.
func (s *scanner) text() bool {
	s.i++
	start := s.offset()
	if !s.str() {
		return false
	}
	if n := s.offset() - 1 - start; n >= longText {
		s.countMedia(start, n)
	}
	return true
}

// countMedia knows two forms, both exact: a data URL (image_url, file_data), and the field named data (input_audio, and
// the source of an image or document in the messages API), which holds bare base64.
func (s *scanner) countMedia(start, n int64) {
	var head [64]byte
	if s.depth > 0 && s.inObject() && s.key.len() == 4 && string(appendSpan(head[:0], s.parts, s.key, 4)) == "data" {
		s.media += n
		return
	}
	p := appendSpan(head[:0], s.parts, span{start, start + int64(len(head))}, len(head))
	if len(p) < 5 || string(p[:5]) != "data:" {
		return
	}
	for k := 5; k+8 <= len(p); k++ {
		if string(p[k:k+8]) == ";base64," {
			s.media += n - int64(k+8)
			return
		}
	}
}

// str passes over a string, the scanner standing after its opening quote.
func (s *scanner) str() bool {
	s.escaped = false
	for {
		p, i := s.p, plain(s.p, s.i)
		for i+1 < len(p) && p[i] == '\\' && simpleEscape(p[i+1]) {
			s.escaped = true
			if i += 2; i < len(p) && p[i] != '\\' {
				i = plain(p, i)
			}
		}
		if s.i = i; i == len(p) {
			if !s.fill() {
				return s.fail("a string is not closed")
			}
			continue
		}
		switch c := p[i]; {
		case c == '"':
			s.i++
			return true
		case c == '\\':
			s.escaped = true
			if !s.escape() {
				return false
			}
		case c < ' ':
			return s.fail("a control character in a string must be escaped")
		default:
			if !s.runes() {
				return false
			}
		}
	}
}

// escape passes over a backslash and what it stands for. Lone surrogates are let through here: where text is only
// forwarded, the engine decides.
func (s *scanner) escape() bool {
	s.i++
	if !s.more() {
		return s.fail("an escape is not finished")
	}
	if simpleEscape(s.p[s.i]) {
		s.i++
		return true
	}
	if s.p[s.i] != 'u' {
		return s.fail("an unknown escape in a string")
	}
	s.i++
	for range 4 {
		if !s.more() || hexDigit(s.p[s.i]) < 0 {
			return s.fail(`four hex digits after \u are missing`)
		}
		s.i++
	}
	return true
}

// simpleEscape tells whether c may follow a backslash on its own: one of "/\bfnrt, as bits from '"' on.
func simpleEscape(c byte) bool {
	const low = 1 | 1<<('/'-'"') | 1<<('\\'-'"')
	const high = 1 | 1<<('f'-'b') | 1<<('n'-'b') | 1<<('r'-'b') | 1<<('t'-'b')
	if c >= 'b' {
		return high>>(c-'b')&1 != 0
	}
	return uint64(low)>>(c-'"')&1 != 0
}

func hexDigit(c byte) int {
	switch {
	case c >= '0' && c <= '9':
		return int(c - '0')
	case c|0x20 >= 'a' && c|0x20 <= 'f':
		return int(c|0x20-'a') + 10
	}
	return -1
}

const (
	ones  = 0x0101010101010101
	highs = 0x8080808080808080
)

// special marks, in the high bit of each byte of x, those that are not plain: quotes, backslashes, control characters
// and all above ASCII; the other bits mean nothing. Only its lowest mark is sure to be right, because a borrow can
// spoil those above it. Flipping the bit of 2 puts the quote next to the control characters, so that one subtraction
// finds both.
func special(x uint64) uint64 {
	return ((x ^ 2*ones) - 0x21*ones) | ((x ^ '\\'*ones) - ones) | x
}

// plain returns the index of the first byte of p, from i on, that is not plain text, or len(p). It looks at 32 bytes at
// a time; bytes.IndexByte for the quote and again for each other kind reads everything four times. The first eight come
// first on their own: where there are escapes there are many.
func plain(p []byte, i int) int {
	if i+8 <= len(p) {
		if a := special(binary.LittleEndian.Uint64(p[i:])) & highs; a != 0 {
			return i + bits.TrailingZeros64(a)>>3
		}
		i += 8
	}
	for ; i+32 <= len(p); i += 32 {
		q := p[i : i+32 : i+32]
		a := special(binary.LittleEndian.Uint64(q))
		b := special(binary.LittleEndian.Uint64(q[8:]))
		c := special(binary.LittleEndian.Uint64(q[16:]))
		d := special(binary.LittleEndian.Uint64(q[24:]))
		if (a|b|c|d)&highs == 0 {
			continue
		}
		switch {
		case a&highs != 0:
			return i + bits.TrailingZeros64(a&highs)>>3
		case b&highs != 0:
			return i + 8 + bits.TrailingZeros64(b&highs)>>3
		case c&highs != 0:
			return i + 16 + bits.TrailingZeros64(c&highs)>>3
		}
		return i + 24 + bits.TrailingZeros64(d&highs)>>3
	}
	for ; i+8 <= len(p); i += 8 {
		if a := special(binary.LittleEndian.Uint64(p[i:])) & highs; a != 0 {
			return i + bits.TrailingZeros64(a)>>3
		}
	}
	for ; i < len(p); i++ {
		if c := p[i]; c < ' ' || c == '"' || c == '\\' || c >= utf8.RuneSelf {
			break
		}
	}
	return i
}

// runes passes over a run of characters above ASCII and checks their UTF-8.
func (s *scanner) runes() bool {
	p, i := s.p, threeBytes(s.p, s.i)
	for i < len(p) && p[i] >= utf8.RuneSelf {
		if !utf8.FullRune(p[i:]) {
			s.i = i
			return s.splitRune()
		}
		_, n := utf8.DecodeRune(p[i:])
		if n == 1 {
			s.i = i
			return s.fail("invalid UTF-8")
		}
		i = threeBytes(p, i+n)
	}
	s.i = i
	return true
}

// threeBytes passes over characters of three bytes, which most scripts outside Europe use, two at a time. Those that
// start with 0xe0 or 0xed need a closer look at their second byte and are left to utf8.DecodeRune.
func threeBytes(p []byte, i int) int {
	const mask, want = 0xc0c0f0, 0x8080e0
	for ; i+8 <= len(p); i += 6 {
		x := binary.LittleEndian.Uint64(p[i:])
		a, b := byte(x), byte(x>>24)
		if x&(mask|mask<<24) != want|want<<24 || a == 0xe0 || a == 0xed || b == 0xe0 || b == 0xed {
			break
		}
	}
	return i
}

// splitRune passes over one character that goes on in the next part. A fault is reported at its first byte.
func (s *scanner) splitRune() bool {
	var c [utf8.UTFMax]byte
	start, first := s.offset(), s.p[s.i]
	for n := 0; !utf8.FullRune(c[:n]); n++ {
		if !s.more() {
			break
		}
		c[n] = s.p[s.i]
		s.i++
	}
	_, size := utf8.DecodeRune(c[:])
	if size > 1 {
		return true
	}
	s.at, s.what, s.odd = start, "invalid UTF-8", first
	return false
}

// appendSpan appends up to limit bytes of a span to dst.
func appendSpan(dst []byte, parts [][]byte, sp span, limit int) []byte {
	end := min(sp.end, sp.start+int64(limit))
	var base int64
	for _, p := range parts {
		if base >= end {
			break
		}
		if next := base + int64(len(p)); next > sp.start {
			dst = append(dst, p[max(sp.start-base, 0):min(end-base, int64(len(p)))]...)
		}
		base += int64(len(p))
	}
	return dst
}

// unquote appends what the inside of a JSON string that has been checked stands for. It reports false for a lone
// surrogate, which readers replace, refuse or drop, each as it likes.
func unquote(dst, p []byte) ([]byte, bool) {
	for i := 0; i < len(p); i++ {
		if p[i] != '\\' {
			dst = append(dst, p[i])
			continue
		}
		i++
		if p[i] != 'u' {
			dst = append(dst, unescaped(p[i]))
			continue
		}
		r := hex4(p[i+1:])
		i += 4
		if r >= 0xd800 && r < 0xe000 {
			low := rune(0)
			if i+6 < len(p) && p[i+1] == '\\' && p[i+2] == 'u' {
				low = hex4(p[i+3:])
			}
			if r >= 0xdc00 || low < 0xdc00 || low >= 0xe000 {
				return dst, false
			}
			r = 0x10000 + (r-0xd800)<<10 + (low - 0xdc00)
			i += 6
		}
		dst = utf8.AppendRune(dst, r)
	}
	return dst, true
}

func hex4(p []byte) rune {
	r := rune(0)
	for k := range 4 {
		r = r<<4 | rune(hexDigit(p[k]))
	}
	return r
}

func unescaped(c byte) byte {
	switch c {
	case 'b':
		return '\b'
	case 'f':
		return '\f'
	case 'n':
		return '\n'
	case 'r':
		return '\r'
	case 't':
		return '\t'
	}
	return c
}
