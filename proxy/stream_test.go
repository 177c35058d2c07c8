package proxy

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

const (
	eventA = `data: {"choices":[{"delta":{"content":"a"}}]}` + "\n\n"
	eventB = `data: {"choices":[{"delta":{"content":"[DONE]"}}]}` + "\n\n"
	usageE = `data: {"choices":[],"usage":{"prompt_tokens":15,"completion_tokens":4,"prompt_tokens_details":{"cached_tokens":8}}}` + "\n\n"
	doneE  = "data: [DONE]\n\n"
)

// S08, S09, S12: a stream's bytes pass untouched however they are cut, and nothing is added to a whole one.
func TestStreamPassesUntouched(t *testing.T) {
	f := func(pieces ...string) {
		t.Helper()
		r := newRig(t, Options{}, events(pieces...))
		a := r.post(streamBody)
		a.want(t, 200, strings.Join(pieces, ""))
		if got := a.header.Get("Content-Type"); got != "text/event-stream; charset=utf-8" {
			t.Errorf("got content type %q, want the engine's", got)
		}
	}
	f(eventA, eventB, usageE, doneE)
	f(eventA + usageE + doneE)
	f("data:{\"x\":1}\r\n", "\r\n: comment\r\n\r\n", "event: e\rdata: 1\r\r")
	f("data: {\"cho", "ices\":[", "]}\n\ndata: [DO", "NE]\n\n")
	f(eventA, "data: the last line has no end")
	f("data: " + strings.Repeat("x", 20<<10) + "\n\n")
	f("data: "+strings.Repeat("x", 40<<10), strings.Repeat("y", 100<<10)+"\n\n", doneE)
	f("data: " + strings.Repeat("long ", 200<<10) + "\n\n")
}

// S01, S04, S25, O08: usage is read from whichever event holds it, once.
func TestUsageIsCounted(t *testing.T) {
	f := func(want [3]float64, pieces ...string) {
		t.Helper()
		r := newRig(t, Options{}, events(pieces...))
		r.post(streamBody).want(t, 200, strings.Join(pieces, ""))
		got := r.gather()
		for i, name := range []string{"prompt_tokens_total", "cached_prompt_tokens_total", "output_tokens_total"} {
			if v := got[`sluice_`+name+`{model="m",pool="pool"}`]; v != want[i] {
				t.Errorf("%q: got %s %v, want %v", pieces, name, v, want[i])
			}
		}
	}
	f([3]float64{15, 8, 4}, eventA, usageE, doneE)
	f([3]float64{15, 8, 4}, eventA, usageE+doneE)
	f([3]float64{15, 8, 4}, eventA, usageE[:30], usageE[30:]+doneE)
	f([3]float64{7, 0, 2}, "event: response.completed\ndata: {\"response\":{\"usage\":{\"input_tokens\":7,\"output_tokens\":2}}}\n\n")
	f([3]float64{0, 0, 0}, eventA, doneE)
}

// hijack answers by hand on the engine's side: an event stream made of pieces, then the end that is wanted.
func tornStream(t *testing.T, end func(net.Conn), pieces ...string) string {
	return raw(t, func(c net.Conn, _ int, _ *http.Request) {
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
		for _, p := range pieces {
			_, _ = fmt.Fprintf(c, "%x\r\n%s\r\n", len(p), p)
		}
		end(c)
	})
}

func closeConn(c net.Conn) { _ = c.Close() }

// S21: a stream that breaks ends with an error event after its last whole line, and in good order.
func TestBrokenStreamEndsWithAnErrorEvent(t *testing.T) {
	const event = "\nevent: error\ndata: {\"error\":{\"message\":\"the endpoint broke the stream off: connection closed before the end of the answer\",\"type\":\"server_error\",\"param\":null,\"code\":\"upstream_error\"}}\n\n"
	f := func(want string, pieces ...string) {
		t.Helper()
		r := newRigAt(t, Options{}, tornStream(t, closeConn, pieces...))
		r.post(streamBody).want(t, 200, want+event)
		got := r.gather()
		if n := got[`sluice_broken_answers_total{pool="pool",reason="broken"}`]; n != 1 {
			t.Errorf("got %v broken answers, want 1", n)
		}
		// The connection to the client is as good as before: the next request goes over it.
		r.post(streamBody).want(t, 200, want+event)
	}
	f(eventA, eventA)
	f(eventA, eventA, `data: {"choices":[{"del`)
	f(eventA+"data: x\n", eventA+"data: x\n")
	// CR is a line end too, which the first LF of what follows would only complete.
	f(eventA+"data: x\r\n\r\n", eventA+"data: x\r\n\r\n")
	f(eventA+"data: x\r\n\r\n", eventA+"data: x\r\n\r", "\n", "data: y")
	f(eventA+"data: x\r\n\r\n", eventA+"data: x\r\n\r")
	f(eventA+"data: x\r\n", eventA+"data: x\r", "\ndata: y")
	f(eventA+"data: x\r\n", eventA+"data: x\r", "\n")
	f(eventA+"data: x\r\n", eventA+"data: x\r")
	f(eventA+"data: x\r\r\n", eventA+"data: x\r\r")
	// A line that was too long to hold back is ended, and its event with it.
	long := "data: " + strings.Repeat("x", 2*maxHeldLine)
	r := newRigAt(t, Options{}, tornStream(t, closeConn, long))
	a := r.post(streamBody)
	if text, ok := strings.CutSuffix(a.body, "\n"+event); !ok || !strings.HasPrefix(long, text) || len(text) < maxHeldLine {
		t.Errorf("got %d bytes that end in %q, want part of the long line and the error event", len(a.body), a.body[max(len(a.body)-300, 0):])
	}
}

// An answer that is no event stream can't hold an error: once a part of it has been passed on, its connection breaks, so
// that nobody takes the part for the whole.
func TestBrokenPlainAnswerBreaksTheConnection(t *testing.T) {
	f := func(head string) {
		t.Helper()
		engine := raw(t, func(c net.Conn, _ int, _ *http.Request) {
			_, _ = io.WriteString(c, head+"{\"a\":")
			reset(c)
		})
		r := newRigAt(t, Options{}, engine)
		if a := r.post(plainBody); a.err == nil {
			t.Errorf("got %d %q without an error, want a broken connection", a.status, a.body)
		}
	}
	f("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 100\r\n\r\n")
	f("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n")
	f("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 100\r\n\r\n")
	f("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n" + strings.Repeat(" ", pieceSize))
}

// R09: an answer of JSON that breaks before anything of it was passed on becomes an error, and is not asked for again.
func TestBrokenJSONBecomesAnError(t *testing.T) {
	f := func(head, body, piece string, end func(net.Conn), said string) {
		t.Helper()
		engine := raw(t, func(c net.Conn, _ int, _ *http.Request) {
			_, _ = io.WriteString(c, "HTTP/1.1 "+head+"\r\nContent-Type: application/json\r\n"+body+"\r\n"+piece)
			end(c)
		})
		r := newRigAt(t, Options{}, engine, startEngine(t, says("nobody should ask")))
		a := r.post(plainBody)
		a.wantError(t, 502, "upstream_error")
		if !strings.Contains(a.body, said) {
			t.Errorf("got %q, want %q in it", a.body, said)
		}
		r.front.Close()
		if n := r.gather()[`sluice_broken_answers_total{pool="pool",reason="broken"}`]; n != 1 {
			t.Errorf("got %v broken answers, want 1", n)
		}
	}
	const sized, chunked, closed = "Content-Length: 100\r\n", "Transfer-Encoding: chunked\r\n", "connection closed"
	f("200 OK", sized, `{"a":`, closeConn, closed)
	f("200 OK", chunked, "5\r\n{\"a\":", closeConn, closed)
	f("200 OK", chunked, "5\r\n{\"a\":\r\n", closeConn, closed)
	f("200 OK", chunked, "5\r\n{\"a\":\r\nzz\r\n", closeConn, "no valid HTTP answer")
	f("400 Bad Request", sized, `{"error":`, closeConn, closed)
}

// What an engine sends to show that it is alive isn't held back with its answer.
func TestSignsOfLifeAreNotHeldBack(t *testing.T) {
	goOn := make(chan struct{})
	r := newRig(t, Options{}, func(w http.ResponseWriter, req *http.Request) {
		_, _ = io.Copy(io.Discard, req.Body)
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, "\n ")
		_ = http.NewResponseController(w).Flush()
		<-goOn
		_, _ = io.WriteString(w, "{}")
	})
	resp, err := r.front.Client().Transport.RoundTrip(r.request(http.MethodPost, chatPath, plainBody))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	got := make([]byte, 2)
	if _, err := io.ReadFull(resp.Body, got); err != nil || string(got) != "\n " {
		t.Errorf("got %q and error %v, want the white space", got, err)
	}
	close(goOn)
	if rest, err := io.ReadAll(resp.Body); err != nil || string(rest) != "{}" {
		t.Errorf("got %q and error %v, want the object", rest, err)
	}
}

// Every event is sent on as it comes, and S22: the time to the first token is taken at the first.
func TestEventsAreNotHeldBack(t *testing.T) {
	next := make(chan string)
	r := newRig(t, Options{}, func(w http.ResponseWriter, req *http.Request) {
		_, _ = io.Copy(io.Discard, req.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		for p := range next {
			_, _ = io.WriteString(w, p)
			_ = http.NewResponseController(w).Flush()
		}
	})
	go func() { next <- eventA }()
	resp, err := r.front.Client().Transport.RoundTrip(r.request(http.MethodPost, chatPath, streamBody))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	in := bufio.NewReader(resp.Body)
	expect := func(want string) {
		t.Helper()
		got := make([]byte, len(want))
		if _, err := io.ReadFull(in, got); err != nil || string(got) != want {
			t.Fatalf("got %q and error %v, want %q", got, err, want)
		}
	}
	expect(eventA)
	if n := r.gather()[`sluice_time_to_first_token_seconds{operation="chat_completions",pool="pool"}`]; n != 1 {
		t.Errorf("got %v first tokens before the stream's end, want 1", n)
	}
	// E41: past its first token, the request no longer counts as prefilling.
	if s := r.pool.Status(0)[0]; s.Prefilling != 0 || s.InFlight != 1 {
		t.Errorf("got %d prefilling of %d in flight, want 0 of 1", s.Prefilling, s.InFlight)
	}
	for range 3 {
		next <- eventB
		expect(eventB)
	}
	close(next)
	if rest, err := io.ReadAll(in); err != nil || len(rest) > 0 {
		t.Errorf("got %q and error %v at the end, want nothing", rest, err)
	}
}

// S18, S19, R14: a client that leaves cancels the engine's work at once, whatever the request is waiting for.
func TestClientLeaves(t *testing.T) {
	f := func(name, body string, begin func(w http.ResponseWriter)) {
		t.Helper()
		arrived, cancelled := make(chan struct{}), make(chan struct{})
		r := newRig(t, Options{}, func(w http.ResponseWriter, req *http.Request) {
			_, _ = io.Copy(io.Discard, req.Body)
			begin(w)
			_ = http.NewResponseController(w).Flush()
			arrived <- struct{}{}
			<-req.Context().Done()
			close(cancelled)
		}, says("nobody should ask"))
		c := r.dial()
		_, _ = fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", chatPath, len(body), body)
		<-arrived
		reset(c)
		<-cancelled
		r.front.Close() // waits for the request's end
		got := r.gather()
		if n := got[`sluice_client_aborts_total{operation="chat_completions",pool="pool"}`]; n != 1 {
			t.Errorf("%s: got %v client aborts, want 1", name, n)
		}
		if n := got[`sluice_in_flight{pool="pool"}`]; n != 0 {
			t.Errorf("%s: got %v in flight, want 0", name, n)
		}
		if n := got[fmt.Sprintf(`sluice_decisions_total{endpoint=%q,pool="pool"}`, r.engines[1])]; n != 0 {
			t.Errorf("%s: got %v decisions for the other endpoint, want none", name, n)
		}
	}
	f("before headers", plainBody, func(http.ResponseWriter) {})
	f("after early headers", streamBody, func(w http.ResponseWriter) { w.WriteHeader(200) })
	f("in a stream", streamBody, func(w http.ResponseWriter) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, eventA)
	})
	f("in a plain answer", plainBody, func(w http.ResponseWriter) { _, _ = io.WriteString(w, "{") })
}

// R14 at length: nothing is left of many clients that leave.
func TestManyClientsLeave(t *testing.T) {
	const n = 200
	arrived := make(chan struct{}, n)
	r := newRig(t, Options{}, func(w http.ResponseWriter, req *http.Request) {
		_, _ = io.Copy(io.Discard, req.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, eventA)
		_ = http.NewResponseController(w).Flush()
		arrived <- struct{}{}
		<-req.Context().Done()
	})
	var conns []net.Conn
	for range n {
		c := r.dial()
		_, _ = fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", chatPath, len(streamBody), streamBody)
		conns = append(conns, c)
	}
	for range n {
		<-arrived
	}
	if got := r.pool.InFlight(); got != n {
		t.Errorf("got %d in flight, want %d", got, n)
	}
	for _, c := range conns {
		reset(c)
	}
	r.front.Close()
	if got := r.gather()[`sluice_in_flight{pool="pool"}`]; got != 0 {
		t.Errorf("got %v in flight, want 0", got)
	}
}

// S27, H09, H05, H06: an answer's type, encoding and bytes are the engine's, empty ones too.
func TestAnswersPassAsTheyAre(t *testing.T) {
	zipped := "\x1f\x8b\x08\x00not read by anybody"
	f := func(status int, contentType, encoding, body string) {
		t.Helper()
		r := newRig(t, Options{}, func(w http.ResponseWriter, req *http.Request) {
			if e := req.Header.Get("Accept-Encoding"); e != "" {
				t.Errorf("got Accept-Encoding %q at the engine, want none", e) // H11
			}
			w.Header().Set("Content-Type", contentType)
			if encoding != "" {
				w.Header().Set("Content-Encoding", encoding)
			}
			w.WriteHeader(status)
			_, _ = io.WriteString(w, body)
		})
		req := r.request(http.MethodPost, chatPath, streamBody)
		req.Header.Set("Accept-Encoding", "gzip")
		a := r.do(req)
		a.want(t, status, body)
		if a.header.Get("Content-Type") != contentType || a.header.Get("Content-Encoding") != encoding {
			t.Errorf("got headers %v, want type %s and encoding %q", a.header, contentType, encoding)
		}
		if got := a.header.Get("Content-Length"); got != fmt.Sprint(len(body)) {
			t.Errorf("got content length %q, want %d", got, len(body))
		}
	}
	f(200, "audio/wav", "", "RIFF\x00\x00\xff")
	f(200, "application/json", "gzip", zipped)
	f(200, "text/event-stream", "gzip", zipped)
	f(200, "application/json", "gzip", "")
	f(400, "application/json", "gzip", zipped)
	f(200, "application/json", "", "")
}

// B30: the model's name in an answer is the engine's; nothing is replaced.
func TestAnswerIsNotRewritten(t *testing.T) {
	body := `{"model":"internal-name","nested":{"model":"m"}}`
	r := newRig(t, Options{}, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, body)
	})
	r.post(plainBody).want(t, 200, body)
}

// An answer far larger than any buffer, of unknown length.
func TestLargeAnswer(t *testing.T) {
	big := bytes.Repeat([]byte("0123456789abcdef"), 1<<18)
	r := newRig(t, Options{}, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/octet-stream")
		for p := big; len(p) > 0; p = p[min(len(p), 70_000):] {
			_, _ = w.Write(p[:min(len(p), 70_000)])
		}
	})
	if a := r.post(plainBody); a.err != nil || a.body != string(big) {
		t.Errorf("got %d bytes and error %v, want %d as sent", len(a.body), a.err, len(big))
	}
}

// The front door over HTTP/2: streams, their broken ends, and clients that leave, as over HTTP/1.1.
func TestHTTP2Clients(t *testing.T) {
	arrived, cancelled := make(chan struct{}), make(chan struct{})
	hangs := startEngine(t, func(w http.ResponseWriter, req *http.Request) {
		_, _ = io.Copy(io.Discard, req.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, eventA)
		_ = http.NewResponseController(w).Flush()
		arrived <- struct{}{}
		<-req.Context().Done()
		close(cancelled)
	})
	torn := tornStream(t, closeConn, eventA, "data: {")
	plain := raw(t, func(c net.Conn, _ int, _ *http.Request) {
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")
		reset(c)
	})
	r := newRigAt(t, Options{}, hangs, torn, plain)
	r.front.Close()
	r.front = httptest.NewUnstartedServer(r.g)
	r.front.EnableHTTP2 = true
	r.front.StartTLS()

	ctx, leave := context.WithCancel(t.Context())
	resp, err := r.front.Client().Do(r.request(http.MethodPost, chatPath, streamBody).WithContext(ctx))
	if err != nil || resp.ProtoMajor != 2 {
		t.Fatalf("got %v and error %v, want an answer over HTTP/2", resp, err)
	}
	<-arrived
	leave()
	<-cancelled
	_ = resp.Body.Close()

	a := r.post(streamBody)
	if !strings.HasPrefix(a.body, eventA+"\nevent: error\n") || a.err != nil {
		t.Errorf("got %q and error %v, want the event and an error event", a.body, a.err)
	}
	if a := r.post(plainBody); a.err == nil {
		t.Errorf("got %d %q without an error, want a broken stream", a.status, a.body)
	}
}
