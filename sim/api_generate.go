package sim

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// bodyOf is what the servers read of a request that computes something; the rest of a body is ignored.
type bodyOf struct {
	Model         string          `json:"model"`
	Messages      []chatMessage   `json:"messages"`
	Prompt        json.RawMessage `json:"prompt"`
	Input         json.RawMessage `json:"input"`
	Instructions  string          `json:"instructions"`
	Tools         json.RawMessage `json:"tools"`
	Stream        bool            `json:"stream"`
	StreamOptions *struct {
		IncludeUsage bool `json:"include_usage"`
	} `json:"stream_options"`
	MaxTokens           *int   `json:"max_tokens"`
	MaxCompletionTokens *int   `json:"max_completion_tokens"`
	MaxOutputTokens     *int   `json:"max_output_tokens"`
	MinTokens           int    `json:"min_tokens"`
	IgnoreEOS           bool   `json:"ignore_eos"`
	N                   *int   `json:"n"`
	CacheSalt           string `json:"cache_salt"`
	EncodingFormat      string `json:"encoding_format"`
	Dimensions          int    `json:"dimensions"`
}

type chatMessage struct {
	Role      string          `json:"role"`
	Content   json.RawMessage `json:"content"`
	ToolCalls json.RawMessage `json:"tool_calls"`
}

// appendChat appends the tokens of a conversation, as a chat template lays it out.
func appendChat(dst []uint32, messages []chatMessage, tools json.RawMessage) ([]uint32, error) {
	dst = append(dst, markBegin)
	if present(tools) {
		dst = append(appendTokens(append(dst, markSystem), string(tools)), markEnd)
	}
	for i, m := range messages {
		mark := uint32(markUser)
		switch m.Role {
		case "system", "developer":
			mark = markSystem
		case "assistant":
			mark = markAssistant
		case "tool", "function":
			mark = markTool
		}
		dst = append(dst, mark)
		var err error
		if dst, err = appendContent(dst, m.Content); err != nil {
			return nil, fmt.Errorf("messages[%d].content: %w", i, err)
		}
		if present(m.ToolCalls) {
			dst = appendTokens(dst, string(m.ToolCalls))
		}
		dst = append(dst, markEnd)
	}
	return append(dst, markAssistant), nil
}

func present(raw json.RawMessage) bool { return len(raw) > 0 && string(raw) != "null" }

// partTokens is how many tokens something takes that is not text.
const partTokens = 256

// appendContent appends the tokens of a message: text, or a list of parts.
func appendContent(dst []uint32, raw json.RawMessage) ([]uint32, error) {
	if !present(raw) {
		return dst, nil
	}
	if raw[0] == '"' {
		var text string
		if err := json.Unmarshal(raw, &text); err != nil {
			return nil, err
		}
		return appendTokens(dst, text), nil
	}
	var parts []json.RawMessage
	if err := json.Unmarshal(raw, &parts); err != nil {
		return nil, err
	}
	for _, p := range parts {
		var part struct {
			Text *string `json:"text"`
		}
		if err := json.Unmarshal(p, &part); err != nil {
			return nil, err
		}
		if part.Text != nil {
			dst = appendTokens(dst, *part.Text)
			continue
		}
		_, h := hashTokens(nil, 1, appendTokens(nil, string(p)))
		for i := range uint64(partTokens) {
			dst = append(dst, tokenRaw|uint32(mix(h+i)&0xffffff)|3<<24)
		}
	}
	return dst, nil
}

// appendPrompt appends the tokens of a prompt: text, or tokens themselves.
func appendPrompt(dst []uint32, raw json.RawMessage) ([]uint32, error) {
	all, err := readPrompts(raw)
	if err != nil {
		return nil, err
	}
	if len(all) != 1 {
		return nil, fmt.Errorf("got %d prompts: a simulated server takes one at a time", len(all))
	}
	return append(dst, all[0]...), nil
}

// readPrompts reads a text, a list of texts, a list of tokens, or a list of such lists.
func readPrompts(raw json.RawMessage) ([][]uint32, error) {
	if !present(raw) {
		return nil, errors.New("a prompt must be given")
	}
	lists, err := decodePrompts(raw)
	if err != nil {
		return nil, err
	}
	for _, l := range lists {
		if len(l) == 0 {
			return nil, errors.New("a prompt must not be empty")
		}
	}
	return lists, nil
}

func decodePrompts(raw json.RawMessage) (lists [][]uint32, err error) {
	if raw[0] == '"' {
		var text string
		err := json.Unmarshal(raw, &text)
		return [][]uint32{appendTokens(nil, text)}, err
	}
	var texts []string
	if json.Unmarshal(raw, &texts) == nil {
		for _, text := range texts {
			lists = append(lists, appendTokens(nil, text))
		}
		return lists, nil
	}
	var tokens []uint32
	if json.Unmarshal(raw, &tokens) == nil {
		return [][]uint32{tokens}, nil
	}
	if err := json.Unmarshal(raw, &lists); err != nil {
		return nil, errors.New("a prompt is a text, a list of texts, a list of tokens, or a list of lists of tokens")
	}
	return lists, nil
}

// appendInput appends the tokens of what the responses API takes: a text, or messages.
func appendInput(dst []uint32, body *bodyOf) ([]uint32, error) {
	var messages []chatMessage
	if body.Instructions != "" {
		messages = append(messages, chatMessage{Role: "system", Content: quote(body.Instructions)})
	}
	if present(body.Input) && body.Input[0] == '"' {
		messages = append(messages, chatMessage{Role: "user", Content: body.Input})
		return appendChat(dst, messages, body.Tools)
	}
	var input []chatMessage
	if err := json.Unmarshal(body.Input, &input); err != nil {
		return nil, fmt.Errorf("input is a text or a list of messages: %w", err)
	}
	return appendChat(dst, append(messages, input...), body.Tools)
}

// generation is a request on its way through the engine.
type generation struct {
	*call
	answer  answer
	id      string // without the prefix of its API
	model   string
	created string
	stream  bool
	usage   bool // of a stream
}

func (g *generation) reason() string {
	if g.limited {
		return "length"
	}
	return "stop"
}

// visible is how many of out tokens are text: the one that ends an answer is not.
func (g *generation) visible(out int) int {
	if !g.limited && out == g.seq.Output {
		return out - 1
	}
	return out
}

// begin prepares a call for a body and its tokens, and submits it. It reports false when it has answered itself. The call must be released if it is true.
func (s *Server) begin(w http.ResponseWriter, r *http.Request, body *bodyOf, tokens func(dst []uint32) ([]uint32, error), limit *int, bare bool) (*generation, bool) {
	adapter, ok := s.adapterFor(body.Model)
	if !ok {
		writeError(w, http.StatusNotFound, "NotFoundError", "model", "The model `"+body.Model+"` does not exist.")
		return nil, false
	}
	c := s.newCall()
	var err error
	if c.tokens, err = tokens(c.tokens[:0]); err != nil {
		s.release(c)
		badRequest(w, "", err.Error())
		return nil, false
	}
	g := &generation{call: c, id: s.requestID(r), model: body.Model, created: strconv.FormatInt(time.Now().Unix(), 10), stream: body.Stream,
		usage: body.StreamOptions != nil && body.StreamOptions.IncludeUsage}
	if g.model == "" {
		g.model = s.o.Model
	}
	c.seq.Adapter, c.seq.Prompt = adapter, len(c.tokens)
	if problem := s.measure(g, body, limit, bare); problem != "" {
		s.release(c)
		badRequest(w, "", problem)
		return nil, false
	}
	if !s.submit(c) {
		s.release(c)
		if s.admit(w, r) {
			badRequest(w, "", "the prompt does not fit into the engine's KV cache")
		}
		return nil, false
	}
	return g, true
}

// measure hashes the prompt and decides what is answered and how much of it. What is wrong with that, if anything, is for the client to read.
func (s *Server) measure(g *generation, body *bodyOf, limit *int, bare bool) string {
	c, room := g.call, s.o.MaxModelLen-g.seq.Prompt
	if body.N != nil && *body.N != 1 {
		return "n must be 1 with a simulated server"
	}
	if room < 1 {
		return fmt.Sprintf("the prompt has %d tokens, and the model's longest context is %d tokens with the answer: send less", g.seq.Prompt, s.o.MaxModelLen)
	}
	c.most = room
	if limit != nil {
		c.most = *limit
	}
	if c.most < 1 || c.most > room {
		return fmt.Sprintf("%d tokens can't be answered: the model's longest context is %d tokens, of which the prompt has %d", c.most, s.o.MaxModelLen, g.seq.Prompt)
	}
	if body.MinTokens > c.most {
		return fmt.Sprintf("min_tokens is %d, more than the limit of %d", body.MinTokens, c.most)
	}
	var whole uint64
	c.salt = body.CacheSalt
	h := root(c.seq.Adapter, c.salt)
	c.seq.Blocks, whole = hashTokens(c.seq.Blocks[:0], h, c.tokens)
	g.answer = answer{words: s.words, seed: mix(whole ^ s.o.Seed), bare: bare}
	length := max(g.answer.length(s.o.Output), body.MinTokens)
	if body.IgnoreEOS {
		length = c.most
	}
	c.seq.Output, c.limited = min(length, c.most), body.IgnoreEOS || length > c.most
	c.tokens = g.answer.appendTokens(c.tokens, c.seq.Output)
	c.seq.Blocks, _ = hashTokens(c.seq.Blocks[:0], h, c.tokens)
	return ""
}

// adapterFor is the adapter that a model's name stands for, empty for the base model; false for a name that is not served.
func (s *Server) adapterFor(model string) (adapter string, ok bool) {
	if model == s.o.Model || model == "" {
		return "", true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return model, s.adapterIndex(model) >= 0
}

// requestID is the client's if it is of harmless characters, else one of the server's.
func (s *Server) requestID(r *http.Request) string {
	id := r.Header.Get("X-Request-Id")
	harmless := func(c rune) bool {
		return c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '-' || c == '_' || c == '.'
	}
	if id != "" && len(id) <= 128 && strings.TrimFunc(id, harmless) == "" && !strings.ContainsFunc(id, func(c rune) bool { return !harmless(c) }) {
		return id
	}
	return string(appendHex(nil, mix(s.o.Seed^mix(s.served.Add(1)))))
}

// finish waits for the whole answer; false when the client has gone.
func (g *generation) finish(r *http.Request) bool {
	for had := 0; ; {
		out, state, err := g.wait(r.Context(), had)
		switch {
		case err != nil:
			return false
		case state == callLost:
			panic(http.ErrAbortHandler)
		case state == callFinished:
			return true
		}
		had = out
	}
}

// appendUsage appends a usage object, of which what is null can be left out.
func (g *generation) appendUsage(dst []byte, nulls bool) []byte {
	p, n := int64(g.seq.Prompt), int64(g.seq.Output)
	dst = strconv.AppendInt(append(dst, `{"prompt_tokens":`...), p, 10)
	dst = strconv.AppendInt(append(dst, `,"total_tokens":`...), p+n, 10)
	dst = strconv.AppendInt(append(dst, `,"completion_tokens":`...), n, 10)
	switch {
	case g.seq.cached > 0:
		dst = append(strconv.AppendInt(append(dst, `,"prompt_tokens_details":{"cached_tokens":`...), int64(g.seq.cached), 10), '}')
	case nulls:
		dst = append(dst, `,"prompt_tokens_details":null`...)
	}
	if nulls {
		dst = append(dst, `,"completion_tokens_details":null`...)
	}
	return append(dst, '}')
}
