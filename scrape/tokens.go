package scrape

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/sluice-gateway/sluice/prefix"
)

// Prompt is a prompt that was sent to an endpoint and whose tokens are not known.
type Prompt struct {
	// Pool and Endpoint are where it went, Adapter is the one it names.
	Pool, Endpoint, Adapter string
	// Blocks are its prefix blocks.
	Blocks []uint64
	// Body is the request's body, JSON without a coding. It is closed when it is no longer needed.
	Body io.ReadCloser
	// Texts takes a body with so many blocks apart; false for one whose tokens depend on more than its texts.
	Texts func(body []byte, blocks int) (Texts, bool)
}

// Texts are what a prompt is made of; see openai.Texts.
type Texts struct {
	Pieces  []string
	Before  []int
	Ends    []int
	At      func(piece, bytes int) int
	Head    func(n int) uint64
	Tokens  []uint32
	Certain []int
	Salt    string
	Whole   bool
}

// Bounds of asking for tokens.
const (
	tokenizePath = "/tokenize"
	// waitingPrompts is how many prompts may wait for one endpoint; more are dropped: those like them come again.
	waitingPrompts  = 8
	tokenizeTimeout = 5 * time.Second
	// tokenizePause is how long an engine that can't tell is not asked.
	tokenizePause = time.Minute
	// An answer may have so many bytes, and so many for each byte of the prompt's request: a token for each, its number and its name
	// with every character escaped are half of that.
	tokenizedLeast, tokenizedByte = 1 << 20, 64
)

// LearnTokens has the tokens of a prompt found out and told to its pool: one prompt at a time for each endpoint, by
// asking its engine. It never waits; a prompt that can't be taken at once is dropped.
func (p *Scraper) LearnTokens(q *Prompt) {
	p.mu.Lock()
	c := p.followed[[2]string{q.Pool, q.Endpoint}]
	p.mu.Unlock()
	if c == nil || !c.queue(q) {
		_ = q.Body.Close()
	}
}

// queue takes a prompt in, unless too many wait or the endpoint is gone.
func (c *followCounts) queue(q *Prompt) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.left {
		return false
	}
	select {
	case c.prompts <- q:
		return true
	default:
		return false
	}
}

// leave ends the queue.
func (c *followCounts) leave() {
	c.mu.Lock()
	c.left = true
	c.mu.Unlock()
	for {
		select {
		case q := <-c.prompts:
			_ = q.Body.Close()
		default:
			return
		}
	}
}

// tokenize learns the tokens of prompts until ctx ends.
func (w *worker) tokenize(ctx context.Context) {
	c := w.metrics.follow
	if c == nil {
		return
	}
	defer c.leave()
	said, pausedUntil := false, time.Duration(0)
	for {
		select {
		case <-ctx.Done():
			return
		case q := <-c.prompts:
			body, err := io.ReadAll(q.Body)
			_ = q.Body.Close()
			if err != nil || !w.pool.WantsTokens(q.Blocks) { // one like it was before it
				continue
			}
			if err := w.learnTokens(ctx, q, body, w.now() < pausedUntil); err != nil && ctx.Err() == nil {
				pausedUntil = w.now() + tokenizePause
				if !said {
					said = true
					w.log.Warn("prompts can't be compared with KV events: the engine doesn't tell their tokens", "why", err)
				}
			}
		}
	}
}

var errPrompt = errors.New(tokenizePath + " refuses the prompt")

// learnTokens finds out the tokens of one prompt and tells the pool. It reports an error if the engine can't tell.
func (w *worker) learnTokens(ctx context.Context, q *Prompt, body []byte, paused bool) error {
	texts, ok := q.Texts(body, len(q.Blocks))
	if !ok {
		return nil
	}
	p := &prefix.Prompt{Blocks: q.Blocks, Adapter: q.Adapter, Salt: texts.Salt, Tokens: texts.Tokens, Head: texts.Head}
	if len(texts.Tokens) > 0 {
		p.Certain = whole32(texts.Certain)
		p.Ends = endsOf(&texts, p.Certain, len(texts.Tokens), math.MaxInt)
	} else {
		if paused {
			return nil
		}
		tokens, words, err := w.askTokens(ctx, body)
		switch {
		case errors.Is(err, errPrompt) && w.tokenizes:
			return nil // or whoever sends what engines refuse would keep others' prompts from being known
		case err != nil:
			return err
		}
		w.tokenizes = true
		p.Tokens = tokens
		p.Certain, p.Ends = align(&texts, words)
	}
	if root, size := w.metrics.follow.names(); size > 0 && q.Adapter == "" {
		p.EngineBlock, p.EngineHashes = size, engineHashes(&root, p.Tokens, size, texts.Salt)
	}
	w.metrics.follow.learned.add(1)
	w.pool.LearnPrompt(p)
	return nil
}

// engineHashes are vLLM's names of the whole blocks of a prompt.
func engineHashes(root *prefix.VLLMHash, tokens []uint32, size int, salt string) []uint64 {
	var hasher prefix.VLLMHasher
	var out []uint64
	at := *root
	for ; len(tokens) >= size; tokens = tokens[size:] {
		at = hasher.Next(&at, tokens[:size], prefix.VLLMKeys{Salt: salt})
		out, salt = append(out, at.Short()), ""
	}
	return out
}

// askTokens asks the engine for the tokens of a request's prompt, and for the text of each. The engine gets the request
// as it was: it reads of it what the prompt is made of, and no more.
func (w *worker) askTokens(ctx context.Context, body []byte) ([]uint32, [][]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, tokenizeTimeout)
	defer cancel()
	r, err := w.client.request(w.endpoint.Address(), tokenizePath, "application/json")
	if err != nil {
		return nil, nil, err
	}
	_, rest, _ := bytes.Cut(body, []byte{'{'})
	r.Method, r.ContentLength = http.MethodPost, int64(len(rest)+len(tokenizeHead))
	r.Header.Set("Content-Type", "application/json")
	r.Body = io.NopCloser(io.MultiReader(strings.NewReader(tokenizeHead), bytes.NewReader(rest)))
	a, err := w.client.get(ctx, r, tokenizedLeast+tokenizedByte*len(body), nil)
	switch {
	case err != nil:
		return nil, nil, err
	case a.status == http.StatusBadRequest, a.status == http.StatusRequestEntityTooLarge, a.status == http.StatusUnprocessableEntity:
		return nil, nil, fmt.Errorf("%w with status %d", errPrompt, a.status)
	case a.status != http.StatusOK:
		return nil, nil, fmt.Errorf("%s answers with status %d", tokenizePath, a.status)
	}
	var answer struct {
		Tokens []uint32 `json:"tokens"`
		Texts  []string `json:"token_strs"`
	}
	if err := json.Unmarshal(a.body, &answer); err != nil || len(answer.Tokens) == 0 {
		return nil, nil, fmt.Errorf("%s lists no tokens", tokenizePath)
	}
	if len(answer.Texts) != len(answer.Tokens) {
		return nil, nil, fmt.Errorf("%s lists no texts of tokens", tokenizePath)
	}
	return answer.Tokens, tokenTexts(answer.Texts), nil
}

// tokenizeHead goes in front of a body less its brace.
const tokenizeHead = `{"return_token_strs":true,`

// tokenTexts turns the names that tokenizers give to their tokens into what they stand for. There are two families:
// of bytes (GPT-2's, in which a space is Ġ), and SentencePiece's (in which it is ▁, and other bytes are like <0x0A>).
func tokenTexts(names []string) [][]byte {
	out := make([][]byte, len(names))
	ofBytes, pieces := false, false
	for _, n := range names {
		pieces = pieces || strings.Contains(n, "▁")
		ofBytes = ofBytes || strings.ContainsAny(n, "ĠĊ")
	}
	for i, n := range names {
		switch {
		case pieces:
			var b byte
			if _, err := fmt.Sscanf(n, "<0x%02X>", &b); err == nil && len(n) == len("<0x0A>") {
				out[i] = []byte{b}
			} else {
				out[i] = []byte(strings.ReplaceAll(n, "▁", " "))
			}
		case ofBytes:
			for _, r := range n {
				out[i] = appendByteOf(out[i], r)
			}
		default:
			out[i] = []byte(n)
		}
	}
	return out
}

// appendByteOf undoes GPT-2's writing of bytes as visible characters: those that are visible stand for themselves, the
// others, in order, are from U+0100 on.
func appendByteOf(dst []byte, r rune) []byte {
	switch {
	case r >= '!' && r <= '~', r >= 0xa1 && r <= 0xac, r >= 0xae && r <= 0xff:
		return append(dst, byte(r))
	case r >= 0x100 && r <= 0x120:
		return append(dst, byte(r-0x100))
	case r >= 0x121 && r <= 0x142:
		return append(dst, byte(r-0x121+0x7f))
	case r == 0x143:
		return append(dst, 0xad)
	}
	return utf8.AppendRune(dst, r)
}

// align finds for each token, as far as it goes, from which byte of the prompt on it is certain, whatever comes after that, and so
// how many are certain by the end of each block.
//
// The tokens' texts together are the prompt as the chat template wrote it. The pieces are in it, one after the other and
// as they are, but for space around them. A piece that isn't found soon after the one before ends it: a template that changes
// texts changes tokens, and about the blocks from there on nothing is said. Of a template's own text, and of tools, which are
// written in ways of their own, what ends with the piece before is certain once the next one begins.
func align(t *Texts, words [][]byte) (certain, ends []int32) {
	text := slices.Concat(words...)
	starts, leads := findPieces(t, text)
	if len(starts) == 0 {
		return nil, endsOf(t, nil, len(words), t.At(0, 0))
	}
	a := aligned{t: t, text: text, starts: starts, leads: leads, boundary: make([]bool, len(text)+1)}
	at := 0
	for _, w := range words {
		at += len(w)
		a.boundary[at] = true
	}
	at = 0
	for _, w := range words {
		at += len(w)
		n, ok := a.certain(at)
		if !ok {
			break
		}
		certain = append(certain, int32(n))
	}
	return certain, endsOf(t, certain, len(words), next(t, len(starts)))
}

// aligned is a prompt's text with its pieces found in it.
type aligned struct {
	t             *Texts
	text          []byte
	starts, leads []int
	boundary      []bool // where tokens end
	piece         int    // how many begin before the token asked for
}

// certain is from which byte of the prompt on the token that ends at p is certain; ask in order.
func (a *aligned) certain(p int) (int, bool) {
	for a.piece < len(a.starts) && a.starts[a.piece] < p {
		a.piece++
	}
	j := a.piece - 1
	for ; j >= 0 && p <= a.end(j); j++ {
		end := a.end(j)
		if n := settled(a.text[:end], p); n <= end {
			return a.t.At(j, n-a.starts[j]+a.leads[j]), true
		}
		if j+1 < len(a.starts) && a.starts[j+1] == end {
			continue // two parts that are one text
		}
		if a.boundary[end] { // the template's mark ends the text, and with it the last word
			return a.t.At(j, len(a.t.Pieces[j])+1), true
		}
		break
	}
	if j+1 < len(a.starts) {
		return a.t.At(j+1, 0), true
	}
	return 0, false
}

// end is where a piece ends in the text.
func (a *aligned) end(j int) int { return a.starts[j] + len(strings.TrimSpace(a.t.Pieces[j])) }

// next is where a piece begins in the prompt, and nowhere if there is none.
func next(t *Texts, piece int) int {
	if piece < len(t.Pieces) {
		return t.At(piece, 0)
	}
	return math.MaxInt
}

// endsOf says for each block that ends before limit how many tokens are certain by its end, which are all at the end of the prompt.
func endsOf(t *Texts, certain []int32, tokens, limit int) []int32 {
	out, n := make([]int32, 0, len(t.Ends)), 0
	for k, end := range t.Ends {
		if end >= limit {
			return out
		}
		for n < len(certain) && int(certain[n]) <= end {
			n++
		}
		if k == len(t.Ends)-1 && t.Whole && limit == math.MaxInt {
			n = tokens
		}
		out = append(out, int32(n))
	}
	return out
}

func whole32(all []int) []int32 {
	out := make([]int32, len(all))
	for i, n := range all {
		out[i] = int32(n)
	}
	return out
}

// findPieces says where each piece begins in the text, less the space before it, whose length is the lead. It ends with
// the first piece that isn't there.
func findPieces(t *Texts, text []byte) (starts, leads []int) {
	// What a template may write between two pieces: its marks, and what the body has there in other words, of which tools
	// may also come later than in the body.
	const marks, wordier = 4 << 10, 3
	from, slack := 0, marks
	for i, piece := range t.Pieces {
		slack += wordier * t.Before[i]
		trimmed := strings.TrimSpace(piece)
		at := bytes.Index(text[from:min(from+slack+len(trimmed), len(text))], []byte(trimmed))
		if at < 0 {
			break
		}
		starts, leads = append(starts, from+at), append(leads, len(piece)-len(strings.TrimLeftFunc(piece, unicode.IsSpace)))
		from += at + len(trimmed)
	}
	return starts, leads
}

// settled is how much of a text must be there for a token that ends at p to be certain, more than there is where it isn't:
// tokenizers cut texts into words, each with the space before it, and a word that may go on may be cut otherwise. In a
// run without any space the tokens are taken to be certain some way before its end.
func settled(text []byte, p int) int {
	const furthest = 64
	space := func(i int) bool { return text[i] == ' ' || text[i] >= '\t' && text[i] <= '\r' }
	for n := p + 1; n < min(p+furthest, len(text)+1); n++ {
		if space(n-1) && !space(n-2) {
			return n
		}
	}
	return p + furthest
}
