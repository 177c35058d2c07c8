package openai

import (
	"bytes"
	"encoding/json"
	"strconv"

	"github.com/cespare/xxhash/v2"
)

// Texts are the texts of a prompt, for whoever knows its tokens to find out how many of those each prefix block covers.
type Texts struct {
	// Pieces are the texts in the order of the prompt, as a chat template gets them; Before says how many bytes of the
	// prompt in the body lie between the end of the piece before and the beginning of each.
	Pieces []string
	Before []int
	// Ends says for each block up to which byte of the prompt, as it is hashed, it reaches.
	Ends []int
	// At is the byte of the prompt, as it is hashed, after which so many bytes of a piece are there; with one more than the
	// piece has, its closing quote is, too. Asked in growing order it takes one pass over the prompt.
	At func(piece, bytes int) int
	// Head is Scratch.Head of the same prompt.
	Head func(n int) uint64
	// Tokens is a prompt that is given as tokens, and there are no pieces; Certain is the byte after which each is there and
	// can't go on.
	Tokens  []uint32
	Certain []int
	// Salt is the cache_salt.
	Salt string
	// Whole says that the blocks reach up to the prompt's end.
	Whole bool
}

// TextsOf takes a JSON body of /v1/completions or /v1/chat/completions apart, for which it is given the number of its
// blocks. It reports false for one whose tokens depend on more than its texts and tools: images and other media,
// several prompts, documents, settings of reasoning or truncation. It takes as long as decoding the body does.
func TextsOf(body []byte, blocks int) (Texts, bool) {
	b, err := ReadBody(bytes.NewReader(body), int64(len(body)), int64(len(body)), nil)
	if err != nil {
		return Texts{}, false
	}
	defer b.Free()
	var s Scratch
	defer s.Reset()
	if _, err := Read("application/json", "", b, &s); err != nil {
		return Texts{}, false
	}
	var t cutter
	for f := firstSeed; f < fieldCount; f++ {
		if sp := s.fields[f]; sp.len() > 0 && !t.field(f, appendSpan(nil, s.source.parts, sp, int(sp.len()))) {
			return Texts{}, false
		}
	}
	end := 0
	for k := range blocks {
		end += unitsOf(k) * UnitBytes
		t.out.Whole = end >= len(t.stream)
		t.out.Ends = append(t.out.Ends, min(end, len(t.stream)))
	}
	t.out.At, t.out.Head = t.at, t.head
	return t.out, !t.empty()
}

// cutter is TextsOf under way.
type cutter struct {
	out    Texts
	stream []byte // the prompt as it is hashed, up to the present field
	// raw is each piece as it stands in the body, from is where.
	raw  [][]byte
	from []int
	// What was asked for last: a letter of a piece from before to plain, and where it ends in the raw piece.
	piece, before, plain, passed int
}

// field takes a field's value; false for one that the tokens depend on in ways of its own.
func (t *cutter) field(f field, raw []byte) bool {
	null := string(raw) == "null"
	switch {
	case f == fCacheSalt && raw[0] == '"':
		salt, ok := unquote(nil, raw[1:len(raw)-1])
		t.out.Salt = string(salt)
		return ok
	case f == fChatTemplate, f == fChatTemplateKwargs:
		return true
	case f < firstPrompt:
		return null
	}
	t.stream = append(t.stream, byte(f))
	ok := f == fTools || null
	if !ok && t.empty() {
		switch {
		case f == fPrompt && raw[0] == '"':
			ok = t.add(raw, 0)
		case f == fPrompt && raw[0] == '[':
			ok = t.tokens(raw)
		case f == fMessages:
			ok = t.messages(raw)
		}
	}
	t.stream = append(t.stream, raw...)
	return ok
}

func (t *cutter) empty() bool { return len(t.raw) == 0 && len(t.out.Tokens) == 0 }

// add takes a string in quotes that begins at raw[from].
func (t *cutter) add(raw []byte, from int) bool {
	inside := raw[from+1 : len(raw)-1]
	text, ok := unquote(nil, inside)
	if !ok {
		return false
	}
	start, before := len(t.stream)+from+1, 0
	if n := len(t.raw); n > 0 {
		before = t.from[n-1] + len(t.raw[n-1])
	}
	t.raw, t.from = append(t.raw, inside), append(t.from, start)
	t.out.Pieces, t.out.Before = append(t.out.Pieces, string(text)), append(t.out.Before, start-before)
	return true
}

// tokens takes a list of token ids.
func (t *cutter) tokens(raw []byte) bool {
	for i := 1; i < len(raw)-1; {
		if raw[i]-'0' > 9 {
			if c := raw[i]; c != ',' && c > ' ' {
				return false // texts, or several prompts
			}
			i++
			continue
		}
		end := i
		for raw[end]-'0' <= 9 {
			end++
		}
		id, err := strconv.ParseUint(string(raw[i:end]), 10, 32)
		if c := raw[end]; err != nil || c != ',' && c != ']' && c > ' ' {
			return false
		}
		t.out.Tokens, t.out.Certain = append(t.out.Tokens, uint32(id)), append(t.out.Certain, len(t.stream)+end+1)
		i = end
	}
	return len(t.out.Tokens) > 0
}

// messages takes the texts out of a chat.
func (t *cutter) messages(raw []byte) bool {
	d := json.NewDecoder(bytes.NewReader(raw))
	if tok, err := d.Token(); err != nil || tok != json.Delim('[') {
		return false
	}
	for d.More() {
		ok := t.object(d, func(key string) bool {
			if key != "content" {
				return skip(d)
			}
			return t.content(d, raw)
		})
		if !ok {
			return false
		}
	}
	return len(t.raw) > 0
}

// object goes over the members of an object; member passes over the value.
func (t *cutter) object(d *json.Decoder, member func(key string) bool) bool {
	if tok, err := d.Token(); err != nil || tok != json.Delim('{') {
		return false
	}
	for d.More() {
		key, err := d.Token()
		if err != nil || !member(key.(string)) {
			return false
		}
	}
	_, err := d.Token()
	return err == nil
}

func skip(d *json.Decoder) bool {
	var v json.RawMessage
	return d.Decode(&v) == nil
}

// content takes a message's content: a text, nothing, or parts that are texts.
func (t *cutter) content(d *json.Decoder, raw []byte) bool {
	before := d.InputOffset()
	switch tok, err := d.Token(); v := tok.(type) {
	case nil:
		return err == nil
	case string:
		return t.add(raw[:d.InputOffset()], int(before)+bytes.IndexByte(raw[before:], '"'))
	case json.Delim:
		if v != '[' {
			return false
		}
	default:
		return false
	}
	for d.More() {
		kind := ""
		ok := t.object(d, func(key string) bool {
			switch key {
			case "type":
				return d.Decode(&kind) == nil
			case "text":
				return t.content(d, raw)
			}
			return skip(d)
		})
		if !ok || kind != "text" {
			return false
		}
	}
	_, err := d.Token()
	return err == nil
}

// head is Texts.Head.
func (t *cutter) head(n int) uint64 {
	if from, ok := startOf(n); ok && n <= len(t.stream) {
		return xxhash.Sum64(t.stream[from:n])
	}
	return 0
}

// at is Texts.At.
func (t *cutter) at(piece, bytes int) int {
	if piece != t.piece || bytes <= t.before {
		t.piece, t.before, t.plain, t.passed = piece, -1, 0, 0
	}
	raw := t.raw[piece]
	for t.plain < bytes && t.passed < len(raw) {
		n, size := letter(raw[t.passed:])
		t.before, t.plain, t.passed = t.plain, t.plain+n, t.passed+size
	}
	if t.plain < bytes {
		return t.from[piece] + len(raw) + 1
	}
	return t.from[piece] + t.passed
}

// letter is how many bytes the beginning of the inside of a JSON string stands for, and how many of the inside that is.
func letter(p []byte) (n, size int) {
	switch {
	case p[0] != '\\':
		return 1, 1
	case len(p) < 2 || p[1] != 'u':
		return 1, min(2, len(p))
	}
	size = 6
	if len(p) > 3 && p[2]|0x20 == 'd' && p[3] >= '8' { // a surrogate
		size = 12
	}
	size = min(size, len(p))
	r, _ := unquote(nil, p[:size])
	return len(r), size
}
