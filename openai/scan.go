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
// encoding/json does) costs about twenty times as much, see BenchmarkRead.
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

// space skips white space and returns the byte after it without consuming it, 0 at the end. A NUL in the body is not legal
// anywhere outside a string either, so the two need no telling apart.
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

// object passes over an object, the scanner standing before its brace. member is called after each key and its colon, and
// must pass over the value.
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

// number follows the grammar of JSON; its size is of no interest (Z04).
func (s *scanner) number() bool {
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
		for s.i < len(s.p) && s.p[s.i]-'0' <= 9 {
			s.i++
			n++
		}
		if s.i < len(s.p) {
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
	start, part := s.offset(), s.next
	if !s.str() {
		return false
	}
	if n := s.offset() - 1 - start; n >= longText {
		s.countMedia(start, n, part)
	}
	return true
}

// countMedia knows two forms, both exact: a data URL (image_url, file_data), and the field named data (input_audio, and
// the source of an image or document in the messages API), which holds bare base64.
func (s *scanner) countMedia(start, n int64, part int) {
	if s.key.len() == 4 && string(appendSpan(nil, s.parts, s.key, 4)) == "data" {
		s.media += n
		return
	}
	var head [64]byte
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
		s.i = plain(s.p, s.i)
		if s.i == len(s.p) {
			if !s.fill() {
				return s.fail("a string is not closed")
			}
			continue
		}
		switch c := s.p[s.i]; {
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
	switch s.p[s.i] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		s.i++
		return true
	case 'u':
		s.i++
		for range 4 {
			if !s.more() || hexDigit(s.p[s.i]) < 0 {
				return s.fail(`four hex digits after \u are missing`)
			}
			s.i++
		}
		return true
	}
	return s.fail("an unknown escape in a string")
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

// special marks the bytes of x that are not plain: quotes, backslashes, control characters and all above ASCII. Only
// its lowest mark is sure to be right, because a borrow can spoil those above it.
func special(x uint64) uint64 {
	return ((x - 0x20*ones) | ((x ^ '"'*ones) - ones) | ((x ^ '\\'*ones) - ones) | x) & highs
}

// plain returns the index of the first byte of p, from i on, that is not plain text, or len(p). It looks at 32 bytes at a
// time; bytes.IndexByte for the quote and again for each other kind reads everything four times.
func plain(p []byte, i int) int {
	for ; i+32 <= len(p); i += 32 {
		q := p[i : i+32 : i+32]
		a := special(binary.LittleEndian.Uint64(q))
		b := special(binary.LittleEndian.Uint64(q[8:]))
		c := special(binary.LittleEndian.Uint64(q[16:]))
		d := special(binary.LittleEndian.Uint64(q[24:]))
		if a|b|c|d == 0 {
			continue
		}
		switch {
		case a != 0:
			return i + bits.TrailingZeros64(a)>>3
		case b != 0:
			return i + 8 + bits.TrailingZeros64(b)>>3
		case c != 0:
			return i + 16 + bits.TrailingZeros64(c)>>3
		}
		return i + 24 + bits.TrailingZeros64(d)>>3
	}
	for ; i+8 <= len(p); i += 8 {
		if a := special(binary.LittleEndian.Uint64(p[i:])); a != 0 {
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

// runes passes over a run of characters above ASCII and checks their UTF-8. The common case of most scripts, three bytes
// whose second needs no closer look, is one comparison.
func (s *scanner) runes() bool {
	p, i := s.p, s.i
	for i < len(p) && p[i] >= utf8.RuneSelf {
		if i+4 <= len(p) && p[i] != 0xe0 && p[i] != 0xed && binary.LittleEndian.Uint32(p[i:])&0xc0c0f0 == 0x8080e0 {
			i += 3
			continue
		}
		if !utf8.FullRune(p[i:]) {
			s.i = i
			return s.splitRune()
		}
		_, n := utf8.DecodeRune(p[i:])
		if n == 1 {
			s.i = i
			return s.fail("invalid UTF-8")
		}
		i += n
	}
	s.i = i
	return true
}

// splitRune passes over one character that goes on in the next part.
func (s *scanner) splitRune() bool {
	var c [utf8.UTFMax]byte
	n := 0
	for !utf8.FullRune(c[:n]) {
		if !s.more() {
			return s.fail("invalid UTF-8")
		}
		c[n] = s.p[s.i]
		n++
		if r, m := utf8.DecodeRune(c[:n]); utf8.FullRune(c[:n]) && r == utf8.RuneError && m == 1 {
			return s.fail("invalid UTF-8")
		}
		s.i++
	}
	return true
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
