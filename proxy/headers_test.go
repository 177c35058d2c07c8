package proxy

import (
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/front"
)

// A Connection header is taken apart once, and one that names more than a sane number of headers is refused: comparing
// each header with each of 20 000 options costs seconds.
func TestConnectionOptions(t *testing.T) {
	const maxOptions = 64
	many := func(n int) string { return strings.Repeat("x-a, ", n-1) + "X-HOP" }
	var got seen
	r := newRig(t, Options{}, watcher(&got))
	ask := func(connection ...string) answer {
		t.Helper()
		req := r.request(http.MethodPost, chatPath, plainBody)
		req.Header["Connection"] = connection
		req.Header["X-Hop"] = []string{"1"}
		return r.do(req)
	}
	ask(many(20_000)).wantError(t, 400, "invalid_request")
	ask(many(maxOptions+1)).wantError(t, 400, "invalid_request")
	ask(many(maxOptions/2), many(maxOptions/2+1)).wantError(t, 400, "invalid_request")
	for _, connection := range [][]string{{many(maxOptions)}, {"keep-alive", " x-hop"}, {"close, x-hop"}} {
		ask(connection...).want(t, 200, "{}")
		if _, ok := got.header["X-Hop"]; ok {
			t.Errorf("%.40q: got X-Hop at the engine, want it left out", connection)
		}
	}

	answers := func(options string) string {
		return raw(t, func(c net.Conn, _ int, _ *http.Request) {
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-Hop: 1\r\nConnection: "+options+"\r\n\r\n{}")
		})
	}
	r = newRigAt(t, Options{}, answers("keep-alive, x-hop"))
	a := r.post(plainBody)
	a.want(t, 200, "{}")
	if _, ok := a.header["X-Hop"]; ok {
		t.Errorf("got headers %v, want no X-Hop", a.header)
	}
	r = newRigAt(t, Options{}, answers(many(20_000)), startEngine(t, says("other")))
	r.post(plainBody).want(t, 200, `{"from":"other"}`)
}

// Q08: two headers that say different things of the body are refused, since the engine may believe the other one. Twice
// the same type is one type; twice the same coding is two codings, of which only one can be read.
func TestContradictingHeaders(t *testing.T) {
	var got seen
	r := newRig(t, Options{}, watcher(&got))
	ask := func(name string, values ...string) answer {
		t.Helper()
		req := r.request(http.MethodPost, chatPath, plainBody)
		req.Header[name] = values
		return r.do(req)
	}
	ask("Content-Type", "application/json", "multipart/form-data; boundary=x").wantError(t, 400, "invalid_request")
	ask("Content-Encoding", "identity", "gzip").wantError(t, 400, "invalid_request")
	ask("Content-Encoding", "gzip", "gzip").wantError(t, 415, "unsupported_encoding")
	ask("Content-Type", "application/json", "application/json").want(t, 200, "{}")
	if v := got.header["Content-Type"]; len(v) != 1 {
		t.Errorf("got Content-Type %q at the engine, want one", v)
	}
}

// S27: an answer without a type stays without one.
func TestTypeIsNotGuessed(t *testing.T) {
	for _, body := range []string{"<html>", "", "RIFF\x00\x00\x00\x00WAVE"} {
		r := newRig(t, Options{}, func(w http.ResponseWriter, _ *http.Request) {
			w.Header()["Content-Type"] = nil
			_, _ = io.WriteString(w, body)
		})
		a := r.post(plainBody)
		a.want(t, 200, body)
		if v, ok := a.header["Content-Type"]; ok {
			t.Errorf("%q: got Content-Type %q, want none", body, v)
		}
	}
}

// H12, Z14: an engine's trailers in the gateway's name are neither announced nor passed on.
func TestReservedTrailers(t *testing.T) {
	r := newRig(t, Options{}, func(w http.ResponseWriter, _ *http.Request) {
		h := w.Header()
		h["Trailer"] = []string{"X-Gateway-Destination-Endpoint-Served, X-Sum, X-Request-Id"}
		_, _ = io.WriteString(w, "{}")
		_ = http.NewResponseController(w).Flush()
		h.Set("X-Gateway-Destination-Endpoint-Served", "forged")
		h.Set("X-Request-Id", "forged")
		h.Set("X-Sum", "7")
	})
	a := r.post(plainBody)
	a.want(t, 200, "{}")
	if len(a.trailer) != 1 || a.trailer.Get("X-Sum") != "7" {
		t.Errorf("got trailers %v, want X-Sum only", a.trailer)
	}
}

// H18: ids of the usual kinds are kept; anything else gives way to one of the gateway's own.
func TestRequestID(t *testing.T) {
	r := newRig(t, Options{}, says("a"))
	ask := func(ids ...string) string {
		t.Helper()
		req := r.request(http.MethodPost, chatPath, plainBody)
		req.Header[front.HeaderRequestID] = ids
		a := r.do(req)
		a.want(t, 200, `{"from":"a"}`)
		if got := a.header.Values(front.HeaderRequestID); len(got) != 1 {
			t.Errorf("got ids %q, want one", got)
		}
		return a.header.Get(front.HeaderRequestID)
	}
	for _, id := range []string{"550e8400-e29b-41d4-a716-446655440000", "0af7651916cd43dd8448eb211c80319c", "req_011CSHoEeqs5C35K2UUqR7Fy", "chatcmpl-1",
		"Root=1-67891233-abcdef012345678912345678", "a/b:c.d@host", "MTIzNDU2Nzg5MA+/==", "1", strings.Repeat("x", 128)} {
		if got := ask(id); got != id {
			t.Errorf("got %q, want the client's %q", got, id)
		}
	}
	for _, id := range []string{"", " ", "a b", "a\"b", "id\x80", "{id}", "<script>", "a\tb", strings.Repeat("x", 129), strings.Repeat("x", 100_000)} {
		if got := ask(id); got == id || len(got) < 20 || strings.Trim(got, "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567") != "" {
			t.Errorf("got %.140q for %.140q, want a new id", got, id)
		}
	}
}
