//go:build (doors || vllm || peers || dataplane) && unix

package e2e

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// instantModel is what instant engines serve.
const instantModel = "m"

// instantEngine answers at once, whatever is asked of it, and with as little work as can be: what is measured before it
// is not its own speed. A stream has as many chunks as tokens are asked for, which come one by one, so that none shares a
// packet with another.
type instantEngine struct {
	requests, tokens atomic.Int64
	running          atomic.Int64
	bodies           sync.Pool
	pause            time.Duration // between two chunks
}

// instantRole is the first argument of a test binary that is to be an instant engine, followed by its port and the pause
// between two chunks of a stream.
const instantRole = "instant-engine"

// beInstant serves until standard input ends.
func beInstant(port, pause string) error {
	between, err := time.ParseDuration(pause)
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", port))
	if err != nil {
		return err
	}
	fmt.Println("engine: ready on", l.Addr())
	go func() { _ = http.Serve(l, newInstant(between)) }()
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// newInstant is an engine that serves everything a gateway asks.
func newInstant(pause time.Duration) http.Handler {
	e := &instantEngine{pause: pause}
	e.bodies.New = func() any { return new(bytes.Buffer) }
	mux := http.NewServeMux()
	mux.HandleFunc("POST /", e.answer)
	mux.HandleFunc("GET /metrics", e.metrics)
	mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"object":"list","data":[{"id":"`+instantModel+`","object":"model","owned_by":"vllm","max_model_len":1000000}]}`)
	})
	mux.HandleFunc("GET /health", func(http.ResponseWriter, *http.Request) {})
	return mux
}

var (
	instantAnswer = []byte(`{"id":"chatcmpl-1","object":"chat.completion","model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"` +
		strings.Repeat("word ", 100) + `"},"finish_reason":"stop"}],"usage":{"prompt_tokens":100,"completion_tokens":100,"total_tokens":200}}`)
	instantChunk = []byte(`data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"content":" word"},"logprobs":null,"finish_reason":null}]}` + "\n\n")
)

func (e *instantEngine) answer(w http.ResponseWriter, r *http.Request) {
	body := e.bodies.Get().(*bytes.Buffer)
	body.Reset()
	_, err := body.ReadFrom(r.Body)
	begin := body.Bytes()[:min(body.Len(), 200)]
	stream, tokens := bytes.Contains(begin, []byte(`"stream":true`)), asked(begin)
	e.bodies.Put(body)
	if err != nil {
		return
	}
	e.requests.Add(1)
	e.running.Add(1)
	defer e.running.Add(-1)
	if !stream {
		e.tokens.Add(tokens)
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Length", strconv.Itoa(len(instantAnswer)))
		_, _ = w.Write(instantAnswer)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	out := http.NewResponseController(w)
	pause := time.NewTicker(e.pause)
	defer pause.Stop()
	for range tokens {
		if _, err := w.Write(instantChunk); err != nil || out.Flush() != nil {
			return
		}
		e.tokens.Add(1)
		select {
		case <-pause.C:
		case <-r.Context().Done():
			return
		}
	}
	_, _ = io.WriteString(w, "data: [DONE]\n\n")
}

// asked reads how many tokens a request wants, which stands at its beginning.
func asked(begin []byte) int64 {
	n := int64(0)
	_, after, _ := bytes.Cut(begin, []byte(`"max_tokens":`))
	for _, c := range after {
		if c < '0' || c > '9' {
			break
		}
		n = 10*n + int64(c-'0')
	}
	return n
}

// metrics is what a vLLM that serves as fast as this would say.
func (e *instantEngine) metrics(w http.ResponseWriter, _ *http.Request) {
	const labels = `{engine="0",model_name="m"}`
	n, tokens := float64(e.requests.Load()), float64(e.tokens.Load())
	for _, m := range []struct {
		name  string
		value float64
	}{
		{"num_requests_waiting", 0}, {"num_requests_running", float64(e.running.Load())}, {"kv_cache_usage_perc", .2},
		{"request_prefill_time_seconds_sum", n * .001}, {"request_prefill_time_seconds_count", n},
		{"request_prefill_kv_computed_tokens_sum", n * 100}, {"request_prefill_kv_computed_tokens_count", n},
		{"request_queue_time_seconds_sum", 0}, {"request_queue_time_seconds_count", n},
		{"time_to_first_token_seconds_sum", n * .001}, {"time_to_first_token_seconds_count", n},
		{"inter_token_latency_seconds_sum", tokens * .0001}, {"inter_token_latency_seconds_count", tokens},
		{"generation_tokens_total", tokens}, {"prompt_tokens_total", n * 100}, {"prompt_tokens_cached_total", 0},
		{"iteration_tokens_total_sum", tokens + n*100}, {"iteration_tokens_total_count", tokens + n},
		{"request_success_total", n},
	} {
		fmt.Fprintf(w, "vllm:%s%s %g\n", m.name, labels, m.value)
	}
	fmt.Fprintf(w, "vllm:prompt_tokens_by_source_total{engine=\"0\",model_name=\"m\",source=\"local_compute\"} %g\n", n*100)
	_, _ = io.WriteString(w, `vllm:cache_config_info{block_size="16",engine="0",kv_cache_size_tokens="400000",num_gpu_blocks="25000"} 1`+"\n")
}
