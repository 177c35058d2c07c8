package proxy

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
)

// H17: bytes above ASCII in header values pass as they are.
func TestRawHeaderBytes(t *testing.T) {
	const value = "Bearer \xe4\xb8\xad\xff"
	got := make(chan string, 1)
	r := newRig(t, Options{}, func(w http.ResponseWriter, req *http.Request) {
		got <- req.Header.Get("Authorization")
		says("a")(w, req)
	})
	req := r.request(http.MethodPost, chatPath, plainBody)
	req.Header["Authorization"] = []string{value}
	r.do(req).want(t, 200, `{"from":"a"}`)
	if v := <-got; v != value {
		t.Errorf("the engine got %q, want %q", v, value)
	}
}

// H02: an engine that answers a streamed request with a length is passed on with just that length and all of its bytes.
func TestStreamWithALength(t *testing.T) {
	body := "data: {\"x\":1}\n\ndata: [DONE]\n\n"
	r := newRig(t, Options{}, func(w http.ResponseWriter, req *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		w.Header().Set("Content-Length", fmt.Sprint(len(body)))
		io.WriteString(w, body)
	})
	a := r.post(streamBody)
	a.want(t, 200, body)
	if got := a.header.Get("Content-Length"); got != fmt.Sprint(len(body)) {
		t.Errorf("got length %q, want the engine's", got)
	}
}

// B36: an answer of the gateway's own keeps its text and is counted once.
func TestOwnAnswersAreCountedOnce(t *testing.T) {
	r := newRig(t, Options{}, says("a"))
	r.post(`{"model":`).wantError(t, 400, "invalid_request")
	r.front.Close()
	count := 0.0
	for key, n := range r.gather() {
		if strings.HasPrefix(key, "sluice_requests_total{") {
			count += n
		}
	}
	if count != 1 {
		t.Errorf("counted %v requests, want 1", count)
	}
}
