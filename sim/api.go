package sim

import (
	"bytes"
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/sluice-gateway/sluice/route"
)

// version is the vLLM whose API and metrics page the servers have.
const version = "0.32.0"

func (s *Server) routes() *http.ServeMux {
	mux := http.NewServeMux()
	for pattern, h := range map[string]http.HandlerFunc{
		"POST /v1/chat/completions":    s.chat,
		"POST /v1/completions":         s.completion,
		"POST /v1/responses":           s.response,
		"POST /v1/embeddings":          s.embedding,
		"GET /v1/models":               s.models,
		"POST /tokenize":               s.tokenize,
		"POST /detokenize":             s.detokenize,
		"POST /v1/load_lora_adapter":   s.loadAdapter,
		"POST /v1/unload_lora_adapter": s.unloadAdapter,
		"POST /reset_prefix_cache":     s.resetCache,
		"GET /metrics":                 s.metrics,
		"GET /metrics/{$}":             s.metrics,
		"GET /health":                  func(http.ResponseWriter, *http.Request) {},
		"GET /ping":                    func(http.ResponseWriter, *http.Request) {},
		"POST /ping":                   func(http.ResponseWriter, *http.Request) {},
		"GET /load":                    s.loaded,
		"GET /version": func(w http.ResponseWriter, _ *http.Request) {
			writeJSON(w, http.StatusOK, []byte(`{"version":"`+version+`"}`))
		},
	} {
		mux.HandleFunc(pattern, h)
	}
	return mux
}

// unmetered are the paths whose requests vLLM does not count.
var unmetered = [...]string{"/metrics", "/metrics/", "/health", "/load", "/ping", "/version"}

// responder remembers what was answered.
type responder struct {
	http.ResponseWriter
	status int
}

// WriteHeader is http.ResponseWriter's.
func (r *responder) WriteHeader(status int) {
	r.status = status
	r.ResponseWriter.WriteHeader(status)
}

// Unwrap is for http.ResponseController.
func (r *responder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// ServeHTTP answers as a vLLM server does. Of a server that has crashed it drops the connection.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodPost && r.URL.Path == "/sim/fault" {
		s.faultRequest(w, r) // this is not the server's process but the hand that breaks it
		return
	}
	start := time.Now()
	if !s.admit(w, r) {
		return
	}
	w.Header()["Server"] = []string{"uvicorn"}
	w.Header()["Vary"] = []string{"Origin"}
	handler, path := http.Handler(http.HandlerFunc(notFound)), "none"
	if h, pattern := s.mux.Handler(r); pattern != "" {
		handler, path = h, r.URL.Path
	} else if s.otherMethod(r) {
		handler = http.HandlerFunc(notAllowed)
	}
	if slices.Contains(unmetered[:], path) {
		handler.ServeHTTP(w, r)
		return
	}
	s.load.Add(1)
	defer s.load.Add(-1)
	answer := &responder{ResponseWriter: w, status: http.StatusOK}
	if s.fails(r) {
		handler = http.HandlerFunc(internalError)
	}
	handler.ServeHTTP(answer, r)
	sent, _ := strconv.ParseInt(w.Header().Get("Content-Length"), 10, 64)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.http.note(path, r.Method, answer.status, r.ContentLength, sent, time.Since(start), wall(time.Now()))
}

// otherMethod reports whether the path is there for another method.
func (s *Server) otherMethod(r *http.Request) bool {
	other := *r
	other.Method = http.MethodPost
	if r.Method == http.MethodPost {
		other.Method = http.MethodGet
	}
	_, pattern := s.mux.Handler(&other)
	return pattern != ""
}

func notFound(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusNotFound, []byte(`{"detail":"Not Found"}`))
}

func notAllowed(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusMethodNotAllowed, []byte(`{"detail":"Method Not Allowed"}`))
}

func writeJSON(w http.ResponseWriter, status int, body []byte) {
	w.Header()["Content-Type"] = []string{"application/json"}
	w.Header()["Content-Length"] = []string{strconv.Itoa(len(body))}
	w.WriteHeader(status)
	_, _ = w.Write(body) // a client that has gone needs no answer
}

// writeError answers in vLLM's form; an empty param is null.
func writeError(w http.ResponseWriter, status int, kind, param, message string) {
	b := append([]byte(`{"error":{"message":`), quote(message)...)
	b = append(append(b, `,"type":"`...), kind...)
	b = append(b, `","param":`...)
	if param == "" {
		b = append(b, "null"...)
	} else {
		b = append(b, quote(param)...)
	}
	writeJSON(w, status, append(strconv.AppendInt(append(b, `,"code":`...), int64(status), 10), "}}"...))
}

func badRequest(w http.ResponseWriter, param, message string) {
	writeError(w, http.StatusBadRequest, "BadRequestError", param, message)
}

func quote(s string) []byte {
	b, _ := json.Marshal(s) // a string always can be
	return b
}

// readJSON decodes a request's body, and answers if it can't.
func readJSON(w http.ResponseWriter, r *http.Request, into any) bool {
	const most = 64 << 20
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, most)).Decode(into); err != nil {
		badRequest(w, "", "the body is not the JSON object that this path takes: "+err.Error())
		return false
	}
	return true
}

func (s *Server) loaded(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, append(strconv.AppendInt([]byte(`{"server_load":`), s.load.Load(), 10), '}'))
}

// models lists the base model and the adapters as vLLM does.
func (s *Server) models(w http.ResponseWriter, _ *http.Request) {
	now := time.Now().Unix()
	b := append([]byte(`{"object":"list","data":[`), s.modelObject(s.o.Model, s.o.Model, "", now)...)
	s.mu.Lock()
	adapters := slices.Clone(s.adapters)
	s.mu.Unlock()
	for _, a := range adapters {
		b = append(append(b, ','), s.modelObject(a.name, a.path, s.o.Model, now)...)
	}
	writeJSON(w, http.StatusOK, append(b, "]}"...))
}

func (s *Server) modelObject(id, path, parent string, created int64) []byte {
	of, context, time := "null", strconv.Itoa(s.o.MaxModelLen), strconv.FormatInt(created, 10)
	if parent != "" {
		of, context = string(quote(parent)), "null"
	}
	b := append(append([]byte(`{"id":`), quote(id)...), `,"object":"model","created":`+time+`,"owned_by":"vllm","root":`...)
	b = append(append(b, quote(path)...), `,"parent":`+of+`,"max_model_len":`+context+`,"permission":[{"id":"modelperm-`...)
	b = appendHex(b, mix(s.o.Seed^uint64(created)+route.HashName(id)))
	return append(b, `","object":"model_permission","created":`+time+`,"allow_create_engine":false,"allow_sampling":true,"allow_logprobs":true,`+
		`"allow_search_indices":false,"allow_view":true,"allow_fine_tuning":false,"organization":"*","group":null,"is_blocking":false}]}`...)
}

func appendHex(dst []byte, x uint64) []byte {
	const digits = "0123456789abcdef"
	for shift := 60; shift >= 0; shift -= 4 {
		dst = append(dst, digits[x>>shift&15])
	}
	return dst
}

// metrics renders the page.
func (s *Server) metrics(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.advance(s.now())
	if s.engine.blind {
		s.mu.Unlock()
		notFound(w, r)
		return
	}
	s.buffer = s.appendMetrics(s.buffer[:0])
	var body []byte
	if names := r.URL.Query()["name[]"]; r.URL.Path == "/metrics/" && names != nil {
		body = chosen(s.buffer, names)
	} else {
		body = slices.Clone(s.buffer)
	}
	s.mu.Unlock()
	w.Header()["Content-Type"] = []string{"text/plain; version=0.0.4; charset=utf-8"}
	w.Header()["Content-Length"] = []string{strconv.Itoa(len(body))}
	_, _ = w.Write(body) // whoever scrapes will ask again
}

// chosen is what a page has of the samples with these names, under their families' comments, as Python's prometheus_client
// answers at /metrics/; FastAPI's own route, without the slash, ignores them.
func chosen(page []byte, names []string) []byte {
	var out, comments []byte
	for line := range bytes.Lines(page) {
		if line[0] == '#' {
			if bytes.HasPrefix(line, []byte("# HELP ")) {
				comments = comments[:0]
			}
			comments = append(comments, line...)
			continue
		}
		end := bytes.IndexAny(line, "{ ")
		if end >= 0 && slices.Contains(names, string(line[:end])) {
			out = append(append(out, comments...), line...)
			comments = comments[:0]
		}
	}
	return out
}

// appendMetrics renders the page as of the last step.
func (s *Server) appendMetrics(dst []byte) []byte {
	e, m := s.engine, &s.meter
	m.running, m.waiting = float64(e.running.n), float64(e.waiting.n)
	m.deferred = 0
	if s.o.Engine.AdapterSlots > 0 {
		for q := e.waiting.head; q != nil; q = q.next {
			if slot, _ := e.slot(q.Adapter); q.Adapter != "" && slot < 0 {
				m.deferred++
			}
		}
	}
	m.capacity = m.waiting - m.deferred
	blocks := len(e.cache.refs)
	m.kvUse = float64(blocks-e.cache.free) / float64(blocks)
	m.preemptions = float64(e.counters.preemptions)
	m.openFDs = float64(40 + s.load.Load())
	dst = s.page.appendTo(dst, &s.series)
	return s.http.appendTo(dst, wall(s.born))
}

type tokenizeRequest struct {
	bodyOf
	AddSpecialTokens *bool `json:"add_special_tokens"`
	ReturnTexts      bool  `json:"return_token_strs"`
}

func (s *Server) tokenize(w http.ResponseWriter, r *http.Request) {
	var body tokenizeRequest
	if !readJSON(w, r, &body) {
		return
	}
	var tokens []uint32
	var err error
	if body.Messages != nil {
		tokens, err = appendChat(nil, body.Messages, body.Tools)
	} else {
		tokens, err = appendPrompt(nil, body.Prompt)
	}
	if err != nil {
		badRequest(w, "prompt", err.Error())
		return
	}
	b := strconv.AppendInt([]byte(`{"count":`), int64(len(tokens)), 10)
	b = append(strconv.AppendInt(append(b, `,"max_model_len":`...), int64(s.o.MaxModelLen), 10), `,"tokens":[`...)
	for i, t := range tokens {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendUint(b, uint64(t), 10)
	}
	b = append(b, `],"token_strs":`...)
	if !body.ReturnTexts {
		writeJSON(w, http.StatusOK, append(b, `null}`...))
		return
	}
	b = append(b, '[')
	for i, t := range tokens {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, quote(tokenName(t))...)
	}
	writeJSON(w, http.StatusOK, append(b, `]}`...))
}

// tokenName writes a token as tokenizers of bytes name theirs: bytes that can't be seen are letters from U+0100 on.
func tokenName(token uint32) string {
	var name []rune
	hidden := rune(0x100)
	var alphabet [256]rune
	for b := range alphabet {
		if b >= '!' && b <= '~' || b >= 0xa1 && b <= 0xac || b >= 0xae {
			alphabet[b] = rune(b)
		} else {
			alphabet[b] = hidden
			hidden++
		}
	}
	for _, b := range appendText(nil, token) {
		name = append(name, alphabet[b])
	}
	return string(name)
}

func (s *Server) detokenize(w http.ResponseWriter, r *http.Request) {
	var body struct {
		Tokens []uint32 `json:"tokens"`
	}
	if !readJSON(w, r, &body) {
		return
	}
	var text []byte
	for _, t := range body.Tokens {
		text = appendText(text, t)
	}
	writeJSON(w, http.StatusOK, append(append([]byte(`{"prompt":`), quote(string(text))...), '}'))
}

// resetCache forgets what nobody uses. vLLM refuses while anything is in use.
func (s *Server) resetCache(w http.ResponseWriter, _ *http.Request) {
	s.mu.Lock()
	s.advance(s.now())
	idle := s.engine.cache.free == len(s.engine.cache.refs)
	if idle {
		s.engine.cache.clear() // its event comes with those of the next step, as vLLM's does
	}
	s.mu.Unlock()
	writeJSON(w, http.StatusOK, append(strconv.AppendBool([]byte(`{"success":`), idle), '}'))
}

type adapterRequest struct {
	Name string `json:"lora_name"`
	Path string `json:"lora_path"`
}

func (s *Server) loadAdapter(w http.ResponseWriter, r *http.Request) {
	var body adapterRequest
	if !readJSON(w, r, &body) {
		return
	}
	if body.Name == "" || body.Path == "" {
		badRequest(w, "", "both 'lora_name' and 'lora_path' must be given")
		return
	}
	s.mu.Lock()
	has := s.adapterIndex(body.Name) >= 0
	if !has && s.o.Engine.AdapterSlots > 0 {
		s.adapters = append(s.adapters, loadedAdapter{body.Name, body.Path, time.Now().Unix()})
	}
	s.mu.Unlock()
	switch {
	case has:
		badRequest(w, "", "the adapter '"+body.Name+"' is loaded already")
	case s.o.Engine.AdapterSlots == 0:
		notFound(w, r) // without slots vLLM has no such path
	default:
		writeText(w, "Success: LoRA adapter '"+body.Name+"' added successfully.")
	}
}

func (s *Server) unloadAdapter(w http.ResponseWriter, r *http.Request) {
	var body adapterRequest
	if !readJSON(w, r, &body) {
		return
	}
	s.mu.Lock()
	i := s.adapterIndex(body.Name)
	if i >= 0 {
		s.adapters = slices.Delete(s.adapters, i, i+1)
	}
	s.mu.Unlock()
	if i < 0 {
		writeError(w, http.StatusNotFound, "NotFoundError", "", "the adapter '"+body.Name+"' is not loaded")
		return
	}
	writeText(w, "Success: LoRA adapter '"+body.Name+"' removed successfully.")
}

func writeText(w http.ResponseWriter, text string) {
	w.Header()["Content-Type"] = []string{"text/plain; charset=utf-8"}
	w.Header()["Content-Length"] = []string{strconv.Itoa(len(text))}
	_, _ = w.Write([]byte(text)) // a client that has gone needs no answer
}

func (s *Server) adapterIndex(name string) int {
	return slices.IndexFunc(s.adapters, func(a loadedAdapter) bool { return a.name == name })
}

// faultRequest sets a fault from outside: {"fault": "slow", "value": 3}.
func (s *Server) faultRequest(w http.ResponseWriter, r *http.Request) {
	var body struct {
		Fault string  `json:"fault"`
		Value float64 `json:"value"`
	}
	if !readJSON(w, r, &body) {
		return
	}
	on := body.Value != 0
	switch body.Fault {
	case "slow":
		if body.Value <= 0 {
			badRequest(w, "value", "slow needs a factor above 0; 1 is normal")
			return
		}
		s.SetSlow(body.Value)
	case "stalled":
		s.Stall(on)
	case "frozen":
		s.Freeze(on)
	case "blind":
		s.Blind(on)
	case "failing":
		if !(body.Value >= 0 && body.Value <= 1) {
			badRequest(w, "value", "failing needs a share of the requests, 0 to 1")
			return
		}
		s.setFailing(body.Value)
	case "crashed":
		defer s.afterAnswer(w, func() { s.crashFor(body.Value) })
	case "loading":
		defer s.afterAnswer(w, func() { _ = s.Restart(seconds(body.Value)) }) // the page was laid out before, so it can be again
	default:
		badRequest(w, "fault", "known faults are slow, stalled, frozen, blind, failing, crashed and loading")
		return
	}
	writeJSON(w, http.StatusOK, []byte(`{"success":true}`))
}

// afterAnswer does what breaks every connection once the answer to the one who wanted it has gone out.
func (s *Server) afterAnswer(w http.ResponseWriter, do func()) {
	_ = http.NewResponseController(w).Flush() // a connection that can't be flushed has no one waiting
	s.ended.Go(func() {
		timer := time.NewTimer(50 * time.Millisecond)
		defer timer.Stop()
		select {
		case <-timer.C:
			do()
		case <-s.closed:
		}
	})
}

// crashFor crashes the server and, if down is above 0, restarts it after so many seconds.
func (s *Server) crashFor(down float64) {
	s.Crash()
	if down <= 0 {
		return
	}
	s.ended.Go(func() {
		timer := time.NewTimer(seconds(down))
		defer timer.Stop()
		select {
		case <-timer.C:
			_ = s.Restart(0) // the page was laid out before, so it can be again
		case <-s.closed:
		}
	})
}
