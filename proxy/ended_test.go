package proxy

import (
	"context"
	"io"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/sluice-gateway/sluice/front"
)

// ends collects what Options.Ended is told.
type ends struct {
	mu  sync.Mutex
	all []front.Ended
	one chan struct{}
}

func newEnds() *ends { return &ends{one: make(chan struct{}, 100)} }

func (e *ends) add(x front.Ended) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all = append(e.all, x)
	e.one <- struct{}{}
}

// only waits for the end of a request and returns it; there must be no other.
func (e *ends) only(t *testing.T) front.Ended {
	t.Helper()
	<-e.one
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.all) != 1 {
		t.Fatalf("got %d ends, want 1: %+v", len(e.all), e.all)
	}
	return e.all[0]
}

// TestEnded is told of each request once, with what became of it.
func TestEnded(t *testing.T) {
	const usage = `data: {"choices":[],"usage":{"prompt_tokens":40,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":32}}}` + "\n\n"
	const delta = `data: {"choices":[{"delta":{"content":"a"}}]}` + "\n\n"
	for name, c := range map[string]struct {
		engine http.HandlerFunc
		body   string
		want   front.Ended // without ID, Endpoint and times
		served bool
		ttft   bool
	}{
		"stream with usage": {events(delta, usage, "data: [DONE]\n\n"), streamBody,
			front.Ended{Pool: "pool", Model: "m", Status: 200, Whole: true, PromptTokens: 40, CachedTokens: 32, OutputTokens: 3}, true, true},
		"stream without usage": {events(delta, delta, "data: [DONE]\n\n"), streamBody,
			front.Ended{Pool: "pool", Model: "m", Status: 200, Whole: true, OutputTokens: 2}, true, true},
		"stream that breaks": {func(w http.ResponseWriter, r *http.Request) {
			events(delta)(w, r)
			panic(http.ErrAbortHandler)
		}, streamBody, front.Ended{Pool: "pool", Model: "m", Status: 200, OutputTokens: 1}, true, true},
		"whole answer": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"usage":{"prompt_tokens":5,"completion_tokens":2}}`)
		}, plainBody, front.Ended{Pool: "pool", Model: "m", Status: 200, Whole: true, PromptTokens: 5, OutputTokens: 2}, true, false},
		"engine's refusal": {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadRequest) }, plainBody,
			front.Ended{Pool: "pool", Model: "m", Status: 400, Whole: true}, true, false},
		"engine that fails": {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, plainBody,
			front.Ended{Pool: "pool", Model: "m", Status: 502}, false, false},
		"unknown model": {says("a"), `{"model":"x","messages":[]}`, front.Ended{Model: "x", Status: 404}, false, false},
		"no JSON":       {says("a"), `{`, front.Ended{Status: 400}, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnds()
			r := newRig(t, Options{Options: front.Options{Ended: e.add}}, c.engine)
			req := r.request(http.MethodPost, chatPath, c.body)
			req.Header.Set("X-Request-Id", "it")
			_ = r.do(req)
			got := e.only(t)
			if diff := cmp.Diff(c.want, got, cmpopts.IgnoreFields(front.Ended{}, "ID", "Endpoint", "TTFT", "Duration")); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			if got.ID != "it" || (got.Endpoint == r.engines[0]) != c.served || (got.TTFT > 0) != c.ttft || got.Duration < got.TTFT || got.Duration <= 0 {
				t.Errorf("got %+v, want the request's ID, an endpoint %v, a TTFT %v within the duration", got, c.served, c.ttft)
			}
		})
	}
}

// TestEndedMoved: a request that moved has ended once, where it was answered.
func TestEndedMoved(t *testing.T) {
	e := newEnds()
	r := newRig(t, Options{Options: front.Options{Ended: e.add}}, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, says("b"))
	r.post(plainBody).want(t, 200, `{"from":"b"}`)
	if got := e.only(t); got.Endpoint != r.engines[1] || !got.Whole {
		t.Errorf("got %+v, want it whole from %s", got, r.engines[1])
	}
}

// TestEndedClientGone: a client that leaves before a byte is told nothing, and the request counts as one that it left.
func TestEndedClientGone(t *testing.T) {
	e := newEnds()
	arrived := make(chan struct{})
	r := newRig(t, Options{Options: front.Options{Ended: e.add}}, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		close(arrived)
		<-r.Context().Done()
	})
	ctx, leave := context.WithCancel(t.Context())
	go func() {
		<-arrived
		leave()
	}()
	_ = r.do(r.request(http.MethodPost, chatPath, streamBody).WithContext(ctx))
	if got := e.only(t); got.Status != 499 || got.Whole || got.TTFT != 0 || got.Endpoint != "" || got.Duration <= time.Duration(0) {
		t.Errorf("got %+v, want 499 and no answer", got)
	}
}

// TestEndedHealth: the gateway's own paths are no requests.
func TestEndedHealth(t *testing.T) {
	e := newEnds()
	r := newRig(t, Options{Options: front.Options{Ended: e.add}}, says("a"))
	_ = r.do(r.request(http.MethodGet, "/healthz", ""))
	_ = r.do(r.request(http.MethodGet, "/readyz", ""))
	r.post(plainBody).want(t, 200, `{"from":"a"}`)
	e.only(t)
}
