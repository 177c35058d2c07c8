package openai

import (
	"bytes"
	"encoding/json"
	"strconv"
)

// Texts are the texts of a prompt, for whoever knows its tokens to find out how many of those each prefix block covers.
type Texts struct {
	// Pieces are the texts in the order of the prompt, as a chat template gets them; Before says how many bytes of the
	// prompt in the body lie between the end of the piece before and the beginning of each.
	Pieces []string
	Before []int
	// EndPieces and EndBytes say for each block in which piece it ends, -1 before the first, and after how many bytes of it.
	EndPieces, EndBytes []int
	// Tokens is a prompt that is given as tokens. EndBytes then count those, and there are no pieces.
	Tokens []uint32
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
	t.blocks(blocks)
	return t.out, !t.empty()
}

// cutter is TextsOf under way.
type cutter struct {
	out Texts
	at  int // bytes of the prompt before the present field, as they are hashed
	// raw is each piece as it stands in the body, from is where.
	raw   [][]byte
	from  []int
	token []int // where each token of a prompt of tokens ends
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
	t.at++ // the byte that tells fields apart
	ok := f == fTools || null
	if !ok && t.empty() {
		switch {
		case f == fPrompt && raw[0] == '"':
			ok = t.piece(raw, 0)
		case f == fPrompt && raw[0] == '[':
			ok = t.tokens(raw)
		case f == fMessages:
			ok = t.messages(raw)
		}
	}
	t.at += len(raw)
	return ok
}

func (t *cutter) empty() bool { return len(t.raw) == 0 && len(t.token) == 0 }

// piece takes a string in quotes that begins at raw[from].
func (t *cutter) piece(raw []byte, from int) bool {
	inside := raw[from+1 : len(raw)-1]
	text, ok := unquote(nil, inside)
	if !ok {
		return false
	}
	start, before := t.at+from+1, 0
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
		t.out.Tokens, t.token = append(t.out.Tokens, uint32(id)), append(t.token, t.at+end)
		i = end
	}
	return len(t.token) > 0
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
		return t.piece(raw[:d.InputOffset()], int(before)+bytes.IndexByte(raw[before:], '"'))
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

// blocks finds where each block ends.
func (t *cutter) blocks(n int) {
	end, i := 0, -1
	for k := range n {
		end += unitsOf(k) * UnitBytes
		if t.out.Whole = end >= t.at; t.out.Whole {
			end = t.at
		}
		if len(t.token) > 0 {
			for i+1 < len(t.token) && t.token[i+1] < end {
				i++ // a number at the very end may go on
			}
			t.out.EndPieces, t.out.EndBytes = append(t.out.EndPieces, 0), append(t.out.EndBytes, i+1)
			continue
		}
		for i+1 < len(t.from) && t.from[i+1] <= end {
			i++
		}
		bytes := 0
		if i >= 0 {
			bytes = plainLen(t.raw[i][:min(end-t.from[i], len(t.raw[i]))])
		}
		t.out.EndPieces, t.out.EndBytes = append(t.out.EndPieces, i), append(t.out.EndBytes, bytes)
	}
}

// plainLen is how many bytes the beginning of the inside of a JSON string stands for. An escape that is cut off, or half
// of a pair of surrogates, doesn't count.
func plainLen(p []byte) int {
	n := 0
	for i := 0; i < len(p); {
		switch {
		case p[i] != '\\':
			n++
			i++
			continue
		case i+1 >= len(p):
			return n
		case p[i+1] != 'u':
			n++
			i += 2
			continue
		case i+6 > len(p):
			return n
		}
		size := 6
		if p[i+2]|0x20 == 'd' && p[i+3] >= '8' { // a surrogate
			size = 12
		}
		if i+size > len(p) {
			return n
		}
		r, _ := unquote(nil, p[i:i+size])
		n += len(r)
		i += size
	}
	return n
}
