package proxy

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/sluice-gateway/sluice/fleet"
	"github.com/sluice-gateway/sluice/front"
)

// R09, S21: whatever goes wrong before the first body byte moves the request to the next endpoint, and the client sees
// none of it.
func TestMovesBeforeTheFirstByte(t *testing.T) {
	status := func(code int) func(*testing.T) string {
		return func(t *testing.T) string {
			return startEngine(t, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Retry-After", "7")
				w.WriteHeader(code)
				_, _ = io.WriteString(w, `{"busy":true}`)
			})
		}
	}
	writes := func(head string, end func(net.Conn)) func(*testing.T) string {
		return func(t *testing.T) string {
			return raw(t, func(c net.Conn, _ int, _ *http.Request) {
				_, _ = io.WriteString(c, head)
				end(c)
			})
		}
	}
	quit := func(c net.Conn) { _ = c.Close() }
	cases := []struct {
		name   string
		engine func(*testing.T) string
		reason string
	}{
		{"refused", closedPort, "connect"},
		{"closed without an answer", writes("", quit), "broken"},
		{"reset without an answer", writes("", reset), "broken"},
		{"no HTTP", writes("SSH-2.0-nonsense\r\n\r\n", quit), "broken"},
		{"headers and then the end", writes("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n", quit), "broken"},
		{"headers and then a reset", writes("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n", reset), "broken"},
		{"part of the headers", writes("HTTP/1.1 200 OK\r\nContent-Le", quit), "broken"},
		{"huge headers", writes("HTTP/1.1 200 OK\r\nX: "+strings.Repeat("x", 2<<20)+"\r\n\r\n", quit), "broken"},
		{"another protocol", writes("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n", quit), "broken"},
		{"no status", writes("HTTP/1.1 000 Nothing\r\nContent-Length: 1\r\n\r\nx", quit), "broken"},
		{"429", status(429), "status"},
		{"502", status(502), "status"},
		{"503", status(503), "status"},
		{"504", status(504), "status"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			var got string
			good := startEngine(t, func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				got = string(body)
				_, _ = io.WriteString(w, "fine")
			})
			r := newRigAt(t, Options{}, c.engine(t), good)
			big := `{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat("x", 3<<20) + `"}]}`
			a := r.post(big)
			a.want(t, 200, "fine")
			if got != big {
				t.Errorf("got a body of %d bytes at the second endpoint, want the %d that were sent", len(got), len(big)) // B05, B09
			}
			if s := a.header.Get(front.HeaderServed); s != good {
				t.Errorf("got %s as the endpoint that served, want %s", s, good) // E33
			}
			if n := r.gather()[fmt.Sprintf(`sluice_moves_total{pool="pool",reason=%q}`, c.reason)]; n != 1 {
				t.Errorf("got %v moves for %s, want 1", n, c.reason)
			}
		})
	}
}

// R09: when nobody could take it, the engine's own answer says more than ours would; without one it is 502.
func TestNobodyTakesIt(t *testing.T) {
	full := func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Retry-After", "7")
		w.WriteHeader(429)
		_, _ = io.WriteString(w, `{"busy":true}`)
	}
	r := newRigAt(t, Options{}, startEngine(t, full), closedPort(t))
	a := r.post(plainBody)
	a.want(t, 429, `{"busy":true}`)
	if a.header.Get("Retry-After") != "7" {
		t.Errorf("got headers %v, want the engine's Retry-After", a.header)
	}

	r = newRigAt(t, Options{}, closedPort(t), closedPort(t))
	r.post(plainBody).wantError(t, 502, "upstream_error")

	r = newRigAt(t, Options{}, startEngine(t, full), startEngine(t, full))
	r.post(plainBody).want(t, 429, `{"busy":true}`)

	r = newRigAt(t, Options{})
	a = r.post(plainBody)
	a.wantError(t, 503, "no_endpoint") // F02
	if a.header.Get("Retry-After") == "" {
		t.Errorf("got headers %v, want a Retry-After", a.header)
	}
}

func TestMaxAttempts(t *testing.T) {
	r := newRigAt(t, Options{MaxAttempts: 2}, closedPort(t), closedPort(t), closedPort(t))
	a := r.post(plainBody)
	a.wantError(t, 502, "upstream_error")
	if !strings.Contains(a.body, "(2 tried)") {
		t.Errorf("got %q, want 2 tried", a.body)
	}
}

// Other statuses are the engine's to give. S16: a stream that was asked for and refused is a plain answer.
func TestEngineStatusPasses(t *testing.T) {
	for _, status := range []int{400, 404, 422, 500} {
		r := newRig(t, Options{}, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(status)
			_, _ = io.WriteString(w, `{"error":{"message":"no"}}`)
		}, says("other"))
		a := r.post(streamBody)
		a.want(t, status, `{"error":{"message":"no"}}`)
		if a.header.Get("Content-Length") != "26" {
			t.Errorf("got headers %v, want the engine's content length", a.header)
		}
	}
}

// An engine that closes kept connections between requests is no failure: the request goes to the same engine again.
func TestKeptConnectionClosed(t *testing.T) {
	engine := raw(t, func(c net.Conn, n int, _ *http.Request) {
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n"+string(rune('0'+n)))
	})
	r := newRigAt(t, Options{}, engine)
	for want := range 5 {
		r.post(plainBody).want(t, 200, string(rune('1'+want)))
	}
}

// E23, R05: a request without a byte leaves an endpoint that is no longer one to wait at. With nowhere to go it stays.
func TestMovesWhenLost(t *testing.T) {
	arrived, gone := make(chan string, 4), make(chan struct{})
	mute := func(name string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			_ = http.NewResponseController(w).Flush() // early headers
			arrived <- name
			<-r.Context().Done()
			gone <- struct{}{}
		}
	}
	r := newRig(t, Options{}, mute("first"), says("second"))
	done := make(chan answer)
	go func() { done <- r.post(streamBody) }()
	<-arrived
	r.pool.ObserveFailure(r.engines[0], fleet.Unreachable, "frozen")
	(<-done).want(t, 200, `{"from":"second"}`)
	<-gone // the abandoned attempt was cancelled at the engine
	if n := r.gather()[`sluice_moves_total{pool="pool",reason="lost"}`]; n != 1 {
		t.Errorf("got %v moves, want 1", n)
	}

	answers := make(chan struct{})
	r = newRig(t, Options{}, func(w http.ResponseWriter, req *http.Request) {
		_, _ = io.Copy(io.Discard, req.Body)
		arrived <- "only"
		<-answers
		_, _ = io.WriteString(w, "late")
	})
	go func() { done <- r.post(plainBody) }()
	<-arrived
	r.pool.SetEndpoints(nil)
	close(answers)
	(<-done).want(t, 200, "late")
}

// E31, E33: among engines that fail in every way, with clients at once, nothing is lost while one engine is well, and
// every count comes down.
func TestNothingIsLostAmongFailures(t *testing.T) {
	breaks := raw(t, func(c net.Conn, n int, _ *http.Request) {
		switch n % 4 {
		case 0:
			reset(c)
		case 1:
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
			reset(c)
		case 2:
			_, _ = io.WriteString(c, "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 4\r\n\r\nbusy")
		case 3:
			_, _ = io.WriteString(c, "HTTP/1.1 429 Too Many Requests\r\nTransfer-Encoding: chunked\r\n\r\n")
		}
	})
	good := startEngine(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = fmt.Fprintf(w, "data: %s\n\n", body)
	})
	r := newRigAt(t, Options{}, breaks, closedPort(t), good, breaks)
	const clients, each = 8, 25
	bad := make(chan string, clients*each)
	done := make(chan struct{})
	for k := range clients {
		go func() {
			for i := range each {
				body := fmt.Sprintf(`{"model":"m","stream":true,"user":"%d-%d"}`, k, i)
				if a := r.post(body); a.err != nil || a.status != 200 || a.body != "data: "+body+"\n\n" || a.header.Get(front.HeaderServed) != good {
					bad <- fmt.Sprintf("got %d %q and error %v, want the events of %s", a.status, a.body, a.err, body)
				}
			}
			done <- struct{}{}
		}()
	}
	for range clients {
		<-done
	}
	close(bad)
	for text := range bad {
		t.Error(text)
	}
}

// mortal is a connection that dies unnoticed once it has carried an answer: its next write fails, as after a reset, and
// with it all reading.
type mortal struct {
	net.Conn
	used atomic.Bool
}

func (m *mortal) Read(p []byte) (int, error) {
	n, err := m.Conn.Read(p)
	if n > 0 {
		m.used.Store(true)
	}
	return n, err
}

func (m *mortal) Write(p []byte) (int, error) {
	if m.used.Load() {
		_ = m.Conn.Close()
		return 0, &net.OpError{Op: "write", Err: syscall.EPIPE}
	}
	return m.Conn.Write(p)
}

// A kept connection that turns out to be dead at the first write is no failure of the engine: nothing has left, so a
// fresh connection carries the request, however large its body is and whatever its framing.
func TestKeptConnectionDiesAtTheWrite(t *testing.T) {
	f := func(size int, cookie string, trailer http.Header) {
		t.Helper()
		var got seen
		r := newRig(t, Options{}, watcher(&got))
		var dialled atomic.Int32
		r.g.transports.dial = func(ctx context.Context, network, address string) (net.Conn, error) {
			dialled.Add(1)
			c, err := new(net.Dialer).DialContext(ctx, network, address)
			return &mortal{Conn: c}, err
		}
		body := `{"model":"m","prompt":"` + strings.Repeat("x", size) + `"}`
		for range 3 {
			req := r.request(http.MethodPost, chatPath, body)
			req.Header.Set("Cookie", cookie)
			if req.Trailer = trailer; trailer != nil {
				req.ContentLength = -1
			}
			a := r.do(req)
			if a.want(t, 200, "{}"); got.body != body {
				t.Errorf("%d bytes with trailer %v: got %d at the engine", len(body), trailer, len(got.body))
			}
		}
		if n := dialled.Load(); n != 3 {
			t.Errorf("%d bytes with trailer %v: dialled %d times, want 3", len(body), trailer, n)
		}
	}
	for _, size := range []int{0, 5 << 10, 3 << 20} {
		f(size, "a=1", nil)
		f(size, "a=1", http.Header{"X-Sum": {"42"}})
	}
	f(3<<10, "a="+strings.Repeat("x", 6<<10), nil) // head and body are more than the write buffer takes
}

// What is small leaves in one write, since a write costs more than a copy; what is large leaves where it lies, a
// segment a write.
func TestWritesOfARequest(t *testing.T) {
	for size, most := range map[int]int{0: 1, 3 << 10: 1, 400 << 10: 2} {
		r := newRig(t, Options{}, says("a"))
		c := new(counted)
		r.g.transports.dial = func(ctx context.Context, network, address string) (_ net.Conn, err error) {
			c.Conn, err = new(net.Dialer).DialContext(ctx, network, address)
			return c, err
		}
		r.post(`{"model":"m","prompt":"`+strings.Repeat("x", size)+`"}`).want(t, 200, `{"from":"a"}`)
		if n := int(c.writes.Load()); n != most {
			t.Errorf("%d bytes: got %d writes, want %d", size, n, most)
		}
	}
}

// counted counts writes.
type counted struct {
	net.Conn
	writes atomic.Int32
}

func (c *counted) Write(p []byte) (int, error) {
	c.writes.Add(1)
	return c.Conn.Write(p)
}
