package sim

import (
	"math/rand/v2"
	"strings"
)

// A token of the servers' tokenizer is 31 bits that say what it stands for, so that no vocabulary is needed and text comes back as it was: a
// word, or the beginning of one, of up to four ASCII characters, with the space before it; up to three other bytes; or a mark of the chat template. English
// has about four bytes a token.
const (
	tokenRaw     = 1 << 28 // bytes in bits 0 to 23, how many in bits 24 and 25
	tokenSpecial = 2 << 28
	tokenKind    = 3 << 28
	tokenSpace   = 1 << 30
)

// The marks of the chat template.
const (
	markBegin = tokenSpecial + iota
	markSystem
	markUser
	markAssistant
	markTool
	markEnd
)

var markNames = [...]string{"<|begin|>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>", "<|end|>"}

// appendTokens appends the tokens of a text. A text that begins where another ended may be cut differently from both in one.
func appendTokens(dst []uint32, text string) []uint32 {
	for i := 0; i < len(text); {
		token := uint32(0)
		if text[i] == ' ' && i+1 < len(text) && inWord(text[i+1]) {
			token, i = tokenSpace, i+1
		}
		size := pieceSize(text[i:])
		if size == 0 {
			token, size = rawToken(text[i:])
		} else {
			for k := range size {
				token |= uint32(text[i+k]) << (7 * k)
			}
		}
		dst = append(dst, token)
		i += size
	}
	return dst
}

func inWord(c byte) bool { return c != ' ' && c != 0 && c < 0x80 }

// pieceSize is how many of the leading bytes are one token: up to four of a word, or up to four spaces of a run, whose last one is left to the word after it.
func pieceSize(text string) int {
	size := 0
	if text[0] != ' ' {
		for size < min(len(text), 4) && inWord(text[size]) {
			size++
		}
		return size
	}
	for size < min(len(text), 4) && text[size] == ' ' {
		size++
	}
	if size > 1 && size < len(text) && inWord(text[size]) {
		size--
	}
	return size
}

// rawToken makes a token of the leading bytes that are not ASCII, or of one NUL.
func rawToken(text string) (token uint32, size int) {
	if text[0] == 0 {
		return tokenRaw | 1<<24, 1
	}
	for size < 3 && size < len(text) && text[size] >= 0x80 {
		token |= uint32(text[size]) << (8 * size)
		size++
	}
	return tokenRaw | token | uint32(size)<<24, size
}

// appendText appends what a token stands for; a number that no text has as a token stands for nothing.
func appendText(dst []byte, token uint32) []byte {
	switch token & tokenKind {
	case tokenRaw:
		for i := range min(token>>24&3, 3) {
			dst = append(dst, byte(token>>(8*i)))
		}
		return dst
	case tokenSpecial:
		if i := token & 0xff; int(i) < len(markNames) {
			return append(dst, markNames[i]...)
		}
		return dst
	}
	if token&tokenSpace != 0 {
		dst = append(dst, ' ')
	}
	for ; token&(1<<28-1) != 0; token = token >> 7 & (1<<21 - 1) {
		dst = append(dst, byte(token&0x7f))
	}
	return dst
}

// hashTokens chains the blocks of tokens onto a hash, and appends one hash for each full block. It returns the hash of everything.
func hashTokens(dst []uint64, h uint64, tokens []uint32) ([]uint64, uint64) {
	for len(tokens) >= BlockTokens {
		for i := 0; i < BlockTokens; i += 2 {
			h = (h ^ (uint64(tokens[i])<<32 | uint64(tokens[i+1]))) * 0x9e3779b97f4a7c15
			h ^= h >> 29
		}
		h = mix(h)
		dst = append(dst, max(h, 1))
		tokens = tokens[BlockTokens:]
	}
	end := h
	for _, t := range tokens {
		end = (end ^ uint64(t)) * 0x9e3779b97f4a7c15
		end ^= end >> 29
	}
	return dst, mix(end + uint64(len(tokens)))
}

// words are what answers are made of: each is one token with the space before it, and stays so when a later prompt repeats the answer.
type words struct {
	text  [64]string
	token [64]uint32
}

func newWords() *words {
	const list = `time the of and to in is that it for as with on be at by this had not are but from or have an they one you were all
her she we can more if no man out so said what up its than into them only some when who will two then do any like over such our new may day way`
	w := &words{}
	for i, s := range strings.Fields(list)[:len(w.text)] {
		w.text[i] = " " + s
		w.token[i] = appendTokens(nil, w.text[i])[0]
	}
	return w
}

// Text is as many short English words as the segment has tokens, the same for the same ID: each one token to the servers' tokenizer, and to most real ones.
func (s Segment) Text() string {
	w, dst := newWords(), make([]byte, 0, 5*s.Tokens)
	for i := range s.Tokens {
		dst = append(dst, w.text[mix(s.ID+uint64(i)*0x9e3779b97f4a7c15)&63]...)
	}
	return string(dst)
}

// answer is the output of a sequence: decided by the hash of its prompt and the server's seed, and never kept.
type answer struct {
	words *words
	seed  uint64
	// bare says that the first word has no space before it.
	bare bool
}

func (a *answer) at(i int) int {
	return int(mix(a.seed+uint64(i)*0x9e3779b97f4a7c15) & 63)
}

// append appends the text of tokens from to to.
func (a *answer) append(dst []byte, from, to int) []byte {
	for i := from; i < to; i++ {
		text := a.words.text[a.at(i)]
		if i == 0 && a.bare {
			text = text[1:]
		}
		dst = append(dst, text...)
	}
	return dst
}

func (a *answer) appendTokens(dst []uint32, n int) []uint32 {
	for i := range n {
		token := a.words.token[a.at(i)]
		if i == 0 && a.bare {
			token &^= tokenSpace
		}
		dst = append(dst, token)
	}
	return dst
}

// length draws how long the answer would be by itself.
func (a *answer) length(l Length) int {
	return l.draw(rand.New(rand.NewPCG(a.seed, 7)))
}
