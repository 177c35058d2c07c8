package openai

import (
	"mime"
	"strconv"
	"strings"

	"github.com/cespare/xxhash/v2"
)

const (
	// MaxModelBytes is the longest model name that is read; no registry allows one near it.
	MaxModelBytes = 1 << 10

	maxKeyBytes = 256 // the longest key, as written, that can be one of ours even if every character of it is escaped
	maxModels   = 4   // how often a body may repeat the same model
	maxNumber   = 1 << 31
)

// A Request is what routing needs to know of a request body. It is a value and stays good when the Body is freed.
type Request struct {
	// Model is the name in the body, unescaped; empty when the body has none (a model that is there and unusable is an
	// error of Read).
	Model string
	// Stream is what the body asks for; null and absent are false, as engines take them.
	Stream bool
	// OutputLimit is the largest number of output tokens asked for, -1 when the body sets none. Of several names the
	// one that engines prefer counts: max_completion_tokens, then max_tokens, then max_output_tokens.
	OutputLimit int
	// PreviousResponseID names the stored response that this request continues; only the endpoint that holds it can.
	PreviousResponseID string
	// PromptBytes counts the bytes of all fields that reach the prompt, as they stand in the body. MediaBytes is the
	// part of it that is base64 media or an uploaded file, whose tokens don't grow with its bytes: estimate text from
	// the rest.
	PromptBytes, MediaBytes int64
	// Form is true for a multipart body.
	Form bool

	count int // how often the model is given
}

// A Scratch holds the working memory of Read and Blocks between requests. The zero Scratch is ready; one request at a
// time may use it. Keep it for the life of a request and Reset it before it goes back into a pool.
type Scratch struct {
	scan   scanner
	stack  [stackWords]uint64
	fields [fieldCount]span
	raw    []byte
	text   []byte
	model  string // the last model name, so that a repeated one needs no allocation
	source *Body  // what the spans point into: the request's body, or what it decoded to
	models []span // each model in it, with its quotes
	form   formShape
	seed   xxhash.Digest
	blocks []uint64
	ends   []int32
	tail   [largeUnits * UnitBytes]byte
	head   func(int) uint64 // hashHead, made once
}

// Reset forgets the request and frees what was decoded for it. Blocks returned before are overwritten by the next use.
func (s *Scratch) Reset() {
	if s.source != nil {
		s.source.release()
		s.source = nil
	}
	s.scan = scanner{}
	s.fields = [fieldCount]span{}
	s.models = s.models[:0]
	s.form = formShape{}
}

// field is a top-level field that is read. The order of those from firstPrompt on is the order in which they are
// hashed.
type field int

const (
	noField field = iota
	fModel
	fStream
	fMaxTokens
	fMaxCompletionTokens
	fMaxOutputTokens

	// These change the prompt as a whole, so they go into the seed of the chain.
	fPreviousResponseID
	fCacheSalt
	fChatTemplate
	fChatTemplateKwargs
	fReasoningEffort
	fReasoning
	fProcessorKwargs
	fTruncatePromptTokens

	// These are the prompt.
	fTools
	fFunctions
	fSystem
	fInstructions
	fDocuments
	fPrompt
	fMessages
	fInput
	fQuery
	fTexts
	fText1
	fText2
	fSuffix

	fieldCount
	firstSeed   = fPreviousResponseID
	firstPrompt = fTools
)

func fieldOf(key []byte) field {
	switch string(key) {
	case "model":
		return fModel
	case "stream":
		return fStream
	case "max_tokens":
		return fMaxTokens
	case "max_completion_tokens":
		return fMaxCompletionTokens
	case "max_output_tokens":
		return fMaxOutputTokens
	case "messages":
		return fMessages
	case "prompt":
		return fPrompt
	case "input":
		return fInput
	case "tools":
		return fTools
	}
	return rareField(key)
}

func rareField(key []byte) field {
	switch string(key) {
	case "system":
		return fSystem
	case "instructions":
		return fInstructions
	case "functions":
		return fFunctions
	case "documents":
		return fDocuments
	case "query":
		return fQuery
	case "suffix":
		return fSuffix
	case "previous_response_id":
		return fPreviousResponseID
	case "cache_salt":
		return fCacheSalt
	case "chat_template":
		return fChatTemplate
	case "chat_template_kwargs":
		return fChatTemplateKwargs
	}
	return rarestField(key)
}

func rarestField(key []byte) field {
	switch string(key) {
	case "reasoning_effort":
		return fReasoningEffort
	case "reasoning":
		return fReasoning
	case "mm_processor_kwargs":
		return fProcessorKwargs
	case "truncate_prompt_tokens":
		return fTruncatePromptTokens
	case "texts":
		return fTexts
	case "text_1":
		return fText1
	case "text_2":
		return fText2
	}
	return noField
}

// Read finds the fields of a request in its body. The body must stay until s is Reset: Blocks reads it again. Errors
// are *Error with status 400, 413, 415 or 429 (see AsError) and name the byte where reading stopped.
//
// A JSON body is accepted exactly when encoding/json accepts it as one object, with white space around it, except where
// readers differ and so the gateway could route what the engine reads otherwise. All of these are 400:
//   - a byte-order mark, NaN and Infinity, text or a second object after the object;
//   - invalid UTF-8, which some readers replace and some refuse;
//   - model given more than once with different values, or more than four times at all. Of any other repeated field the
//     last one counts, as it does in every engine;
//   - a model that is not a string, is empty, is over MaxModelBytes, or holds a lone surrogate or a control character;
//     a lone surrogate in a top-level key.
//
// Names of fields are matched exactly, in case too, after unescaping. A missing model is not an error: the caller knows
// whether a header can stand in. Nothing but these fields is judged; the rest is the engine's to refuse. Nesting is
// bounded at encoding/json's 10 000 levels, numbers have no bound.
//
// multipart/form-data is read for its model and stream parts. A body with one Content-Encoding of gzip, deflate, br or
// zstd is decoded to be read, under the same limit and budget as the body itself.
func Read(contentType, contentEncoding string, b *Body, s *Scratch) (Request, error) {
	s.Reset()
	r := Request{OutputLimit: -1}
	source, err := decoded(contentEncoding, b)
	if err != nil {
		return Request{}, err
	}
	s.source = source
	kind := contentType
	if k, _, ok := strings.Cut(kind, ";"); ok {
		kind = k
	}
	if strings.EqualFold(strings.TrimSpace(kind), "multipart/form-data") {
		_, params, err := mime.ParseMediaType(contentType)
		if err != nil || params["boundary"] == "" {
			return Request{}, InvalidRequest.Errorf("the Content-Type names no usable multipart boundary")
		}
		r.Form = true
		s.form.boundary = params["boundary"]
		if err := r.readForm(source, &s.form); err != nil {
			return Request{}, err
		}
		return r, nil
	}
	if err := r.readJSON(s); err != nil {
		return Request{}, err
	}
	return r, nil
}

func (r *Request) readJSON(s *Scratch) error {
	c := &s.scan
	c.start(s.source.parts, s.stack[:])
	switch first := c.space(); {
	case first == 0 && c.offset() == s.source.size:
		return InvalidRequest.Errorf("the request body is empty; send one JSON object")
	case first == 0xef:
		return InvalidRequest.Errorf("the request body must not start with a byte-order mark")
	case first != '{':
		return InvalidRequest.Errorf("the request body must be one JSON object, found %q at byte %d", []byte{first}, c.offset())
	}
	if err := r.scanObject(s); err != nil {
		return err
	}
	if c.space(); c.more() {
		return InvalidRequest.Errorf("the request body goes on after its JSON object, at byte %d", c.offset())
	}
	return r.settle(s)
}

// scanObject walks over the top-level object and keeps the span of each field that is read.
func (r *Request) scanObject(s *Scratch) error {
	c := &s.scan
	var fault error
	ok := c.object(func(key span, escaped bool) bool {
		f, ok := s.fieldAt(key, escaped)
		if !ok {
			fault = InvalidRequest.Errorf("a lone surrogate in the key at byte %d", key.start)
			return false
		}
		first := c.space()
		value, media := span{start: c.offset()}, c.media
		if !c.skip() {
			return false
		}
		value.end = c.offset()
		s.fields[f] = value
		if f < firstPrompt {
			c.media = media
		}
		if f == fModel {
			fault = r.readModel(s, value, first)
		}
		return fault == nil
	})
	if !ok && fault == nil {
		fault = InvalidRequest.Errorf("the request body is not valid JSON: %s", c.message())
	}
	return fault
}

// fieldAt tells which field a key names. It reports false for a key that holds a lone surrogate.
func (s *Scratch) fieldAt(key span, escaped bool) (field, bool) {
	if key.len() > maxKeyBytes {
		return noField, true
	}
	p := s.bytes(key)
	if !escaped {
		return fieldOf(p), true
	}
	text, ok := unquote(s.text[:0], p)
	s.text = text
	return fieldOf(text), ok
}

// bytes returns a span in one piece, copied only where a part ends within it. Good until the next call.
func (s *Scratch) bytes(sp span) []byte {
	c := &s.scan
	if sp.start >= c.base && sp.end <= c.base+int64(len(c.p)) {
		return c.p[sp.start-c.base : sp.end-c.base]
	}
	s.raw = appendSpan(s.raw[:0], s.source.parts, sp, int(sp.len()))
	return s.raw
}

func modelError(format string, args ...any) *Error {
	e := InvalidRequest.Errorf(format, args...)
	e.Param = "model"
	return e
}

func (r *Request) readModel(s *Scratch, value span, first byte) error {
	switch {
	case first != '"':
		return modelError("model must be a string, at byte %d", value.start)
	case value.len() > 6*MaxModelBytes+2:
		return modelError("model must be at most %d bytes long, at byte %d", MaxModelBytes, value.start)
	}
	name, ok := unquote(s.text[:0], s.bytes(span{value.start + 1, value.end - 1}))
	s.text = name
	switch {
	case !ok:
		return modelError("model holds a lone surrogate, at byte %d", value.start)
	case len(name) == 0:
		return modelError("model must not be empty, at byte %d", value.start)
	case len(name) > MaxModelBytes:
		return modelError("model must be at most %d bytes long, at byte %d", MaxModelBytes, value.start)
	case hasControl(name):
		return modelError("model holds a control character, at byte %d", value.start)
	case r.count > 0 && string(name) != r.Model:
		return modelError("model is given twice with different values, again at byte %d", value.start)
	case r.count == maxModels:
		return modelError("model is given more than %d times, again at byte %d", maxModels, value.start)
	}
	if s.model != string(name) {
		s.model = string(name)
	}
	r.Model = s.model
	r.count++
	s.models = append(s.models, value)
	return nil
}

func hasControl(p []byte) bool {
	for _, c := range p {
		if c < ' ' || c == 0x7f {
			return true
		}
	}
	return false
}

// settle reads the values of the fields that were found, the last of each.
func (r *Request) settle(s *Scratch) error {
	r.Stream = s.isTrue(fStream)
	for _, f := range [...]field{fMaxCompletionTokens, fMaxTokens, fMaxOutputTokens} {
		if n, ok := s.number(f); ok && r.OutputLimit < 0 {
			r.OutputLimit = n
		}
	}
	if sp := s.fields[fPreviousResponseID]; sp.len() > 2 && sp.len() <= maxKeyBytes {
		if p := s.bytes(sp); p[0] == '"' {
			if text, ok := unquote(s.text[:0], p[1:len(p)-1]); ok {
				s.text = text
				r.PreviousResponseID = string(text)
			}
		}
	}
	for _, sp := range s.fields[firstPrompt:] {
		r.PromptBytes += sp.len()
	}
	r.MediaBytes = min(s.scan.media, r.PromptBytes)
	return nil
}

func (s *Scratch) isTrue(f field) bool {
	sp := s.fields[f]
	return sp.len() == 4 && string(s.bytes(sp)) == "true"
}

// number reads a whole number that is not negative, however written (8, 8.0, 8e0), clamped to 2^31. Anything else is as
// if absent.
func (s *Scratch) number(f field) (int, bool) {
	sp := s.fields[f]
	if sp.len() == 0 || sp.len() > maxKeyBytes {
		return 0, false
	}
	p := s.bytes(sp)
	if p[0] < '0' || p[0] > '9' {
		return 0, false
	}
	v, err := strconv.ParseFloat(string(p), 64)
	if err != nil && v == 0 {
		return 0, false
	}
	if v >= maxNumber {
		return maxNumber, true
	}
	n := int(v)
	return n, float64(n) == v
}
