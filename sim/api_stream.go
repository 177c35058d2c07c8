package sim

import (
	"net/http"
	"strconv"
)

const fingerprint = "vllm-" + version + "-162d9365"

// wire is how an API writes an answer.
type wire struct {
	// head comes with the first token, tail after the last.
	head, tail func(dst []byte) []byte
	// delta writes the tokens from had to out; last says that it is the last time.
	delta func(dst []byte, had, out int, last bool) []byte
	// whole writes an answer that is no stream.
	whole func(dst []byte) []byte
}

// send writes an answer as it comes, or when it is complete.
func (g *generation) send(w http.ResponseWriter, r *http.Request, x *wire) {
	if !g.stream {
		if g.finish(r) {
			writeJSON(w, http.StatusOK, x.whole(make([]byte, 0, 1024+8*g.seq.Output)))
		}
		return
	}
	w.Header()["Content-Type"] = []string{"text/event-stream; charset=utf-8"}
	w.WriteHeader(http.StatusOK)
	control := http.NewResponseController(w)
	if control.Flush() != nil { // vLLM's headers come before the engine has looked at the request
		return
	}
	buf := make([]byte, 0, 1024)
	for had := 0; ; {
		out, state, err := g.wait(r.Context(), had)
		if err != nil {
			return
		}
		if state == callLost {
			panic(http.ErrAbortHandler)
		}
		buf = buf[:0]
		if had == 0 {
			buf = x.head(buf)
		}
		last := state == callFinished
		buf = x.delta(buf, g.visible(had), g.visible(out), last)
		if last {
			buf = x.tail(buf)
		}
		if _, err := w.Write(buf); err != nil {
			return
		}
		if err := control.Flush(); err != nil || last {
			return
		}
		had = out
	}
}

// limitOf is the first limit that is given.
func limitOf(limits ...*int) *int {
	for _, l := range limits {
		if l != nil {
			return l
		}
	}
	return nil
}

func (s *Server) chat(w http.ResponseWriter, r *http.Request) {
	var body bodyOf
	if !readJSON(w, r, &body) {
		return
	}
	if len(body.Messages) == 0 {
		badRequest(w, "messages", "messages must be given")
		return
	}
	tokens := func(dst []uint32) ([]uint32, error) { return appendChat(dst, body.Messages, body.Tools) }
	g, ok := s.begin(w, r, &body, tokens, limitOf(body.MaxCompletionTokens, body.MaxTokens), true)
	if !ok {
		return
	}
	defer s.release(g.call)
	g.send(w, r, g.chatWire())
}

func (g *generation) chatWire() *wire {
	event := `data: {"id":"chatcmpl-` + g.id + `","object":"chat.completion.chunk","created":` + g.created + `,"model":` + string(quote(g.model)) + `,"choices":[`
	prefix := event + `{"index":0,"delta":{"content":"`
	return &wire{
		head: func(dst []byte) []byte {
			dst = append(append(dst, event...), `{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],`...)
			return append(dst, `"prompt_token_ids":null,"prompt_text":null}`+"\n\n"...)
		},
		delta: func(dst []byte, had, out int, last bool) []byte {
			dst = g.answer.append(append(dst, prefix...), had, out)
			if last {
				return append(append(append(dst, `"},"logprobs":null,"finish_reason":"`...), g.reason()...), `","stop_reason":null,"token_ids":null}]}`+"\n\n"...)
			}
			return append(dst, `"},"logprobs":null,"finish_reason":null,"token_ids":null}]}`+"\n\n"...)
		},
		tail: func(dst []byte) []byte {
			if g.usage {
				dst = g.appendUsage(append(append(dst, event...), `],"usage":`...), false)
				dst = append(dst, `,"system_fingerprint":"`+fingerprint+`"}`+"\n\n"...)
			}
			return append(dst, "data: [DONE]\n\n"...)
		},
		whole: func(dst []byte) []byte {
			dst = append(dst, `{"id":"chatcmpl-`+g.id+`","object":"chat.completion","created":`+g.created+`,"model":`+string(quote(g.model))...)
			dst = append(dst, `,"choices":[{"index":0,"message":{"role":"assistant","content":"`...)
			dst = g.answer.append(dst, 0, g.visible(g.seq.Output))
			dst = append(dst, `","refusal":null,"annotations":null,"audio":null,"function_call":null,"reasoning":null},"logprobs":null,"finish_reason":"`+g.reason()...)
			dst = append(dst, `","stop_reason":null,"token_ids":null,"routed_experts":null}],"service_tier":null,"system_fingerprint":"`+fingerprint+`","usage":`...)
			dst = g.appendUsage(dst, true)
			return append(dst, `,"prompt_logprobs":null,"prompt_token_ids":null,"prompt_text":null,"kv_transfer_params":null,"ec_transfer_params":null,"metrics":null}`...)
		},
	}
}

func (s *Server) completion(w http.ResponseWriter, r *http.Request) {
	var body bodyOf
	if !readJSON(w, r, &body) {
		return
	}
	tokens := func(dst []uint32) ([]uint32, error) { return appendPrompt(dst, body.Prompt) }
	sixteen := 16 // the API's default
	g, ok := s.begin(w, r, &body, tokens, limitOf(body.MaxTokens, &sixteen), false)
	if !ok {
		return
	}
	defer s.release(g.call)
	g.send(w, r, g.completionWire())
}

func (g *generation) completionWire() *wire {
	object := `{"id":"cmpl-` + g.id + `","object":"text_completion","created":` + g.created + `,"model":` + string(quote(g.model)) + `,"choices":[`
	prefix := "data: " + object + `{"index":0,"text":"`
	return &wire{
		head: func(dst []byte) []byte { return dst },
		delta: func(dst []byte, had, out int, last bool) []byte {
			dst = g.answer.append(append(dst, prefix...), had, out)
			if last {
				return append(append(append(dst, `","logprobs":null,"finish_reason":"`...), g.reason()...), `","stop_reason":null,"token_ids":null}],"usage":null}`+"\n\n"...)
			}
			return append(dst, `","logprobs":null,"finish_reason":null,"stop_reason":null,"token_ids":null}],"usage":null}`+"\n\n"...)
		},
		tail: func(dst []byte) []byte {
			if g.usage {
				dst = g.appendUsage(append(append(append(dst, "data: "...), object...), `],"usage":`...), false)
				dst = append(dst, `,"system_fingerprint":"`+fingerprint+`"}`+"\n\n"...)
			}
			return append(dst, "data: [DONE]\n\n"...)
		},
		whole: func(dst []byte) []byte {
			dst = append(append(dst, object...), `{"index":0,"text":"`...)
			dst = g.answer.append(dst, 0, g.visible(g.seq.Output))
			dst = append(append(append(dst, `","logprobs":null,"finish_reason":"`...), g.reason()...),
				`","stop_reason":null,"token_ids":null,"prompt_logprobs":null,"prompt_token_ids":null}],"service_tier":null,"system_fingerprint":"`+fingerprint+`","usage":`...)
			return append(g.appendUsage(dst, true), `,"kv_transfer_params":null}`...)
		},
	}
}

func (s *Server) response(w http.ResponseWriter, r *http.Request) {
	var body bodyOf
	if !readJSON(w, r, &body) {
		return
	}
	tokens := func(dst []uint32) ([]uint32, error) { return appendInput(dst, &body) }
	g, ok := s.begin(w, r, &body, tokens, body.MaxOutputTokens, true)
	if !ok {
		return
	}
	defer s.release(g.call)
	g.send(w, r, g.responseWire())
}

// appendResponse writes a response object; one that is not done has neither output nor usage.
func (g *generation) appendResponse(dst []byte, done bool) []byte {
	status, details := "in_progress", "null"
	if done {
		status = "completed"
		if g.limited {
			status, details = "incomplete", `{"reason":"max_output_tokens"}`
		}
	}
	dst = append(dst, `{"id":"resp_`+g.id+`","created_at":`+g.created+`,"incomplete_details":`+details+`,"instructions":null,"metadata":null,"model":`+string(quote(g.model))...)
	dst = append(dst, `,"object":"response","output":[`...)
	if done {
		dst = append(dst, `{"id":"msg_`+g.id+`","content":[`...)
		dst = append(g.appendPart(dst), `],"role":"assistant","status":"completed","type":"message","phase":null}`...)
	}
	dst = append(dst, `],"parallel_tool_calls":true,"temperature":1.0,"tool_choice":"none","tools":[],"top_p":1.0,"background":false,"max_output_tokens":`...)
	dst = strconv.AppendInt(dst, int64(g.most), 10)
	dst = append(dst, `,"max_tool_calls":null,"previous_response_id":null,"prompt":null,"reasoning":null,"service_tier":"auto","status":"`+status...)
	dst = append(dst, `","text":null,"top_logprobs":null,"truncation":"disabled","usage":`...)
	if done {
		dst = g.appendResponseUsage(dst)
	} else {
		dst = append(dst, "null"...)
	}
	return append(dst, `,"user":null,"presence_penalty":0.0,"frequency_penalty":0.0,"kv_transfer_params":null,"ec_transfer_params":null,"input_messages":null,"output_messages":null}`...)
}

func (g *generation) appendPart(dst []byte) []byte {
	dst = g.answer.append(append(dst, `{"annotations":[],"text":"`...), 0, g.visible(g.seq.Output))
	return append(dst, `","type":"output_text","logprobs":null}`...)
}

func (g *generation) appendResponseUsage(dst []byte) []byte {
	p, n := int64(g.seq.Prompt), int64(g.seq.Output)
	dst = strconv.AppendInt(append(dst, `{"input_tokens":`...), p, 10)
	dst = strconv.AppendInt(append(dst, `,"input_tokens_details":{"cached_tokens":`...), int64(g.seq.cached), 10)
	dst = strconv.AppendInt(append(dst, `,"cache_write_tokens":0,"input_tokens_per_turn":[],"cached_tokens_per_turn":[]},"output_tokens":`...), n, 10)
	dst = append(dst, `,"output_tokens_details":{"reasoning_tokens":0,"tool_output_tokens":0,"output_tokens_per_turn":[],"tool_output_tokens_per_turn":[]},"total_tokens":`...)
	return append(strconv.AppendInt(dst, p+n, 10), '}')
}

func (g *generation) responseWire() *wire {
	sequence := int64(0)
	number := func(dst []byte) []byte {
		sequence++
		return strconv.AppendInt(append(dst, `,"sequence_number":`...), sequence-1, 10)
	}
	begin := func(dst []byte, kind string) []byte {
		return append(append(append(append(append(dst, "event: "...), kind...), "\ndata: {\"type\":\""...), kind...), '"')
	}
	where := `,"item_id":"msg_` + g.id + `","output_index":0,"content_index":0`
	item := `"id":"msg_` + g.id + `","role":"assistant","type":"message"`
	return &wire{
		head: func(dst []byte) []byte {
			for _, kind := range []string{"response.created", "response.in_progress"} {
				dst = append(number(begin(dst, kind)), `,"response":`...)
				dst = append(g.appendResponse(dst, false), "}\n\n"...)
			}
			dst = append(number(begin(dst, "response.output_item.added")), `,"output_index":0,"item":{`+item+`,"status":"in_progress","content":[]}}`+"\n\n"...)
			return append(number(begin(dst, "response.content_part.added")), where+`,"part":{"annotations":[],"text":"","type":"output_text","logprobs":[]}}`+"\n\n"...)
		},
		delta: func(dst []byte, had, out int, _ bool) []byte {
			if had == out {
				return dst
			}
			dst = append(append(number(begin(dst, "response.output_text.delta")), where...), `,"logprobs":[],"delta":"`...)
			return append(g.answer.append(dst, had, out), `"}`+"\n\n"...)
		},
		tail: func(dst []byte) []byte {
			dst = append(append(number(begin(dst, "response.output_text.done")), where...), `,"logprobs":[],"text":"`...)
			dst = append(g.answer.append(dst, 0, g.visible(g.seq.Output)), `"}`+"\n\n"...)
			dst = append(append(number(begin(dst, "response.content_part.done")), where...), `,"part":`...)
			dst = append(g.appendPart(dst), "}\n\n"...)
			dst = append(number(begin(dst, "response.output_item.done")), `,"output_index":0,"item":{`+item+`,"status":"completed","content":[`...)
			dst = append(g.appendPart(dst), "]}}\n\n"...)
			kind := "response.completed"
			if g.limited {
				kind = "response.incomplete"
			}
			dst = append(number(begin(dst, kind)), `,"response":`...)
			return append(g.appendResponse(dst, true), "}\n\n"...)
		},
		whole: func(dst []byte) []byte { return g.appendResponse(dst, true) },
	}
}
