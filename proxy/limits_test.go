package proxy

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-gateway/sluice/fleet"
	"github.com/sluice-gateway/sluice/front"
	"github.com/sluice-gateway/sluice/route"
)

// pipes is a network in memory, for bubbles of made-up time.
type pipes struct {
	mu        sync.Mutex
	listeners map[string]*pipeListener
}

type pipeListener struct {
	name  string
	conns chan net.Conn
	once  sync.Once
	ended chan struct{}
}

func (p *pipes) listen(name string) *pipeListener {
	l := &pipeListener{name: name, conns: make(chan net.Conn), ended: make(chan struct{})}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listeners == nil {
		p.listeners = make(map[string]*pipeListener)
	}
	p.listeners[name] = l
	return l
}

func (p *pipes) dial(ctx context.Context, _, name string) (net.Conn, error) {
	p.mu.Lock()
	l := p.listeners[name]
	p.mu.Unlock()
	if l == nil {
		<-ctx.Done() // an address that nobody answers at
		return nil, &net.OpError{Op: "dial", Err: ctx.Err()}
	}
	near, far := net.Pipe()
	select {
	case l.conns <- far:
		return near, nil
	case <-ctx.Done():
		return nil, &net.OpError{Op: "dial", Err: ctx.Err()}
	case <-l.ended:
		return nil, &net.OpError{Op: "dial", Err: errors.New("refused")}
	}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.ended:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error {
	l.once.Do(func() { close(l.ended) })
	return nil
}

func (l *pipeListener) Addr() net.Addr { return &net.UnixAddr{Name: l.name, Net: "pipe"} }

// world is a gateway, engines and a client in a bubble.
type world struct {
	*rig
	net    *pipes
	client *http.Transport
	start  time.Time
}

// inWorld runs a test in a bubble. Nothing may run on at its end: the bubble itself checks that.
func inWorld(t *testing.T, o Options, engines []http.HandlerFunc, test func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{rig: &rig{t: t, f: new(fleet.Fleet), reg: prometheus.NewRegistry()}, net: new(pipes), start: time.Now()}
		var eps []fleet.Endpoint
		var servers []*http.Server
		both := new(http.Protocols)
		both.SetHTTP1(true)
		both.SetUnencryptedHTTP2(true)
		serve := func(name string, h http.Handler) {
			s := &http.Server{Handler: h, Protocols: both, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)}
			servers = append(servers, s)
			go func() { _ = s.Serve(w.net.listen(name)) }()
		}
		for i, h := range engines {
			name := "engine-" + string(rune('a'+i)) + ":80"
			eps = append(eps, fleet.Endpoint{Name: name, Host: name})
			w.engines = append(w.engines, name)
			if h != nil {
				serve(name, h)
			}
		}
		w.f.Apply([]fleet.PoolConfig{{Name: "pool", Model: "m", Profile: route.RoundRobin(), Endpoints: eps}}, "")
		w.pool = w.f.Pools()[0]
		for _, e := range eps {
			w.pool.ObserveFailure(e.Name, fleet.NoMetrics, "none in tests")
		}
		o.SelectModel = true
		w.g = New(w.f, o, w.reg, func() time.Duration { return time.Since(w.start) }, slog.New(slog.DiscardHandler))
		w.g.transports.dial = w.net.dial
		serve("front:80", w.g)
		w.client = &http.Transport{DialContext: w.net.dial}
		synctest.Wait()
		test(w)
		w.client.CloseIdleConnections()
		w.g.Close()
		for _, s := range servers {
			_ = s.Close()
		}
		<-time.After(time.Minute) // servers linger on connections they gave up
		if n := w.pool.InFlight(); n != 0 {
			t.Errorf("got %d requests in flight at the end, want 0", n)
		}
		if n := w.bodyBytes(); n != 0 {
			t.Errorf("got %d bytes of bodies held at the end, want 0", n)
		}
	})
}

// timed does a request and says how long it took.
func (w *world) timed(body string) (answer, time.Duration) {
	w.t.Helper()
	req, err := http.NewRequestWithContext(w.t.Context(), http.MethodPost, "http://front:80"+chatPath, strings.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	began := time.Now()
	resp, err := w.client.RoundTrip(req)
	if err != nil {
		return answer{err: err}, time.Since(began)
	}
	defer func() { _ = resp.Body.Close() }()
	data, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Header, resp.Trailer, string(data), err}, time.Since(began)
}

// silent takes a request, sends early headers and nothing else.
func silent(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	w.Header().Set("Content-Type", "text/event-stream")
	_ = http.NewResponseController(w).Flush()
	<-r.Context().Done()
}

// after answers when some time has passed.
func after(d time.Duration, h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		select {
		case <-time.After(d):
			h(w, r)
		case <-r.Context().Done():
		}
	}
}

func wantTook(t *testing.T, got, want time.Duration) {
	t.Helper()
	if got != want {
		t.Errorf("got an answer after %v, want after %v", got, want)
	}
}

// R01, R03: an engine that thinks for nine minutes is no failure by default, streamed or not.
func TestPatience(t *testing.T) {
	inWorld(t, Options{}, []http.HandlerFunc{after(9*time.Minute, says("slow")), says("other")}, func(w *world) {
		a, took := w.timed(plainBody)
		a.want(t, 200, `{"from":"slow"}`)
		wantTook(t, took, 9*time.Minute)
	})
	// A stream may go on for hours while its events come.
	var pieces []string
	slow := func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		for range 40 {
			_, _ = io.WriteString(w, eventA)
			_ = http.NewResponseController(w).Flush()
			<-time.After(4 * time.Minute)
		}
	}
	for range 40 {
		pieces = append(pieces, eventA)
	}
	inWorld(t, Options{}, []http.HandlerFunc{slow}, func(w *world) {
		a, took := w.timed(streamBody)
		a.want(t, 200, strings.Join(pieces, ""))
		wantTook(t, took, 160*time.Minute)
	})
}

// R04, R10: the limit on the first byte is configurable, ends the engine's work, and is final; the other endpoint isn't
// asked.
func TestFirstByteTimeout(t *testing.T) {
	for _, body := range []string{plainBody, streamBody} {
		inWorld(t, Options{FirstByteTimeout: 7 * time.Second}, []http.HandlerFunc{silent, says("other")}, func(w *world) {
			a, took := w.timed(body)
			a.wantError(t, 504, "timeout")
			wantTook(t, took, 7*time.Second)
		})
	}
}

// R06: one attempt's limit moves the request, the total is final. With nowhere to go, staying beats giving up.
func TestAttemptTimeout(t *testing.T) {
	inWorld(t, Options{AttemptTimeout: 2 * time.Second, FirstByteTimeout: 5 * time.Second}, []http.HandlerFunc{silent, says("other")}, func(w *world) {
		a, took := w.timed(streamBody)
		a.want(t, 200, `{"from":"other"}`)
		wantTook(t, took, 2*time.Second)
		if n := w.gather()[`sluice_moves_total{pool="pool",reason="attempt_timeout"}`]; n != 1 {
			t.Errorf("got %v moves, want 1", n)
		}
	})
	inWorld(t, Options{AttemptTimeout: 2 * time.Second, FirstByteTimeout: 5 * time.Second}, []http.HandlerFunc{silent, silent, silent}, func(w *world) {
		a, took := w.timed(streamBody)
		a.wantError(t, 504, "timeout")
		wantTook(t, took, 5*time.Second)
	})
	inWorld(t, Options{AttemptTimeout: 2 * time.Second}, []http.HandlerFunc{after(time.Minute, says("only"))}, func(w *world) {
		a, took := w.timed(plainBody)
		a.want(t, 200, `{"from":"only"}`)
		wantTook(t, took, time.Minute)
	})
}

// An address that nobody answers at costs the connect timeout once.
func TestConnectTimeout(t *testing.T) {
	inWorld(t, Options{ConnectTimeout: 3 * time.Second}, []http.HandlerFunc{says("other")}, func(w *world) {
		w.g.transports.dial = func(ctx context.Context, network, name string) (net.Conn, error) {
			if name == "nowhere:80" {
				ctx, cancel := context.WithTimeout(ctx, w.g.settings.Load().ConnectTimeout)
				defer cancel()
				return w.net.dial(ctx, network, name)
			}
			return w.net.dial(ctx, network, name)
		}
		w.applyEndpoints([]fleet.Endpoint{{Name: "nowhere:80"}, {Name: w.engines[0]}})
		a, took := w.timed(plainBody)
		a.want(t, 200, `{"from":"other"}`)
		wantTook(t, took, 3*time.Second)
		a, took = w.timed(plainBody) // it is aside now
		a.want(t, 200, `{"from":"other"}`)
		wantTook(t, took, 0)
	})
}

// An engine that falls silent in a stream is not waited for without end: the stream says so.
func TestIdleTimeout(t *testing.T) {
	begins := func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, eventA+"data: {")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}
	inWorld(t, Options{IdleTimeout: 90 * time.Second}, []http.HandlerFunc{begins}, func(w *world) {
		a, took := w.timed(streamBody)
		if !strings.HasPrefix(a.body, eventA+"\nevent: error\n") || !strings.Contains(a.body, `"code":"timeout"`) || a.err != nil {
			t.Errorf("got %q and error %v, want the event and an error event", a.body, a.err)
		}
		wantTook(t, took, 90*time.Second)
		if n := w.gather()[`sluice_broken_answers_total{pool="pool",reason="idle_timeout"}`]; n != 1 {
			t.Errorf("got %v broken answers, want 1", n)
		}
		_, _ = w.timed(streamBody) // the client's connection has no deadline left on it
	})
	// So is one in an answer of which nothing was passed on yet.
	inWorld(t, Options{IdleTimeout: 90 * time.Second}, []http.HandlerFunc{stuckJSON, says("other")}, func(w *world) {
		a, took := w.timed(plainBody)
		a.wantError(t, 504, "timeout")
		wantTook(t, took, 90*time.Second)
	})
}

// stuckJSON begins an answer and says no more.
func stuckJSON(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	w.Header().Set("Content-Type", "application/json")
	_, _ = io.WriteString(w, `{"a":`)
	_ = http.NewResponseController(w).Flush()
	<-r.Context().Done()
}

// An answer that says to try elsewhere is kept, for want of a better one, for as long as the others take: its idle
// limit begins when it is passed on.
func TestHeldAnswerOutlivesItsIdleLimit(t *testing.T) {
	body := strings.Repeat("busy ", 50_000)
	full := func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = io.WriteString(w, body)
	}
	breaks := func(w http.ResponseWriter, _ *http.Request) { panic(http.ErrAbortHandler) }
	inWorld(t, Options{IdleTimeout: 30 * time.Second}, []http.HandlerFunc{after(time.Second, full), after(5*time.Minute, breaks)}, func(w *world) {
		a, took := w.timed(plainBody)
		if a.status != 503 || a.body != body || a.err != nil {
			t.Errorf("got %d, %d bytes and error %v, want the whole 503", a.status, len(a.body), a.err)
		}
		wantTook(t, took, 5*time.Minute+time.Second)
	})
	// Once it is passed on, it has the limit again.
	stuck := func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = io.WriteString(w, body)
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}
	inWorld(t, Options{IdleTimeout: 30 * time.Second}, []http.HandlerFunc{after(time.Second, stuck), after(5*time.Minute, breaks)}, func(w *world) {
		a, took := w.timed(plainBody)
		if a.status != 503 || a.body != body || a.err == nil {
			t.Errorf("got %d, %d bytes and error %v, want the part of the 503 that came, broken off", a.status, len(a.body), a.err)
		}
		wantTook(t, took, 5*time.Minute+31*time.Second)
	})
	// The request's own limit and the gateway's end hold all the while.
	o := Options{Options: front.Options{RouteTimeouts: map[string]time.Duration{"pool": 2 * time.Minute}}, IdleTimeout: 30 * time.Second}
	inWorld(t, o, []http.HandlerFunc{after(time.Second, full), silent}, func(w *world) {
		a, took := w.timed(plainBody)
		a.wantError(t, 504, "timeout")
		wantTook(t, took, 2*time.Minute)
	})
	inWorld(t, Options{IdleTimeout: 30 * time.Second}, []http.HandlerFunc{after(time.Second, full), silent}, func(w *world) {
		time.AfterFunc(time.Minute, w.g.Cut)
		a, took := w.timed(plainBody)
		a.wantError(t, 503, "shutting_down")
		wantTook(t, took, time.Minute)
	})
}

// R03, R04: a pool's own limit bounds the whole request.
func TestRouteTimeout(t *testing.T) {
	o := Options{Options: front.Options{RouteTimeouts: map[string]time.Duration{"pool": 3 * time.Second}}}
	inWorld(t, o, []http.HandlerFunc{silent}, func(w *world) {
		a, took := w.timed(plainBody)
		a.wantError(t, 504, "timeout")
		wantTook(t, took, 3*time.Second)
	})
	drips := func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		for r.Context().Err() == nil {
			_, _ = io.WriteString(w, eventA)
			_ = http.NewResponseController(w).Flush()
			select {
			case <-time.After(2 * time.Second):
			case <-r.Context().Done():
			}
		}
	}
	inWorld(t, o, []http.HandlerFunc{drips}, func(w *world) {
		a, took := w.timed(streamBody)
		if !strings.HasPrefix(a.body, eventA+eventA+"\nevent: error\n") || !strings.Contains(a.body, `"code":"timeout"`) {
			t.Errorf("got %q, want two events and an error event", a.body)
		}
		wantTook(t, took, 3*time.Second)
	})
}

// A07: what a drain can't wait for is cut with an error event.
func TestCut(t *testing.T) {
	inWorld(t, Options{}, []http.HandlerFunc{func(w http.ResponseWriter, r *http.Request) {
		events(eventA)(w, r)
		<-r.Context().Done()
	}}, func(w *world) {
		time.AfterFunc(time.Minute, w.g.Cut)
		a, took := w.timed(streamBody)
		if !strings.HasPrefix(a.body, eventA+"\nevent: error\n") || !strings.Contains(a.body, `"code":"shutting_down"`) {
			t.Errorf("got %q and error %v, want an event and an error event", a.body, a.err)
		}
		wantTook(t, took, time.Minute)
	})
	inWorld(t, Options{}, []http.HandlerFunc{stuckJSON, says("other")}, func(w *world) {
		time.AfterFunc(time.Minute, w.g.Cut)
		a, took := w.timed(plainBody)
		a.wantError(t, 503, "shutting_down")
		wantTook(t, took, time.Minute)
	})
}

// A client that stops sending its body holds memory for what it sent, and neither that nor its connection for ever,
// whatever size it announced.
func TestSlowBody(t *testing.T) {
	f := func(head string, took time.Duration, status int, text string) {
		t.Helper()
		inWorld(t, Options{Options: front.Options{MaxBodyBytes: 1 << 30, OpenPaths: []string{"/open"}}, IdleTimeout: 30 * time.Second}, []http.HandlerFunc{says("a")}, func(w *world) {
			c, err := w.net.dial(w.t.Context(), "", "front:80")
			if err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			go func() { _, _ = io.WriteString(c, head+"\r\n\r\n{\"model\"") }()
			synctest.Wait()
			if n := w.bodyBytes(); n > 1<<20 {
				t.Errorf("%s: got %d bytes held for 8 that came, want at most 1 MiB", head, n)
			}
			in := bufio.NewReader(c)
			resp, err := http.ReadResponse(in, nil)
			if err != nil {
				t.Fatal(err)
			}
			body, _ := io.ReadAll(resp.Body)
			if resp.StatusCode != status || !strings.Contains(string(body), text) {
				t.Errorf("%s: got %d %q, want %d that says %s", head, resp.StatusCode, body, status, text)
			}
			wantTook(t, time.Since(began), took)
			if _, err := in.ReadByte(); err == nil { // until the gateway hangs up
				t.Errorf("%s: got more than one answer", head)
			}
			if late := time.Since(began) - took; late > 10*time.Second {
				t.Errorf("%s: the connection stayed for %v after the answer", head, late)
			}
			_ = c.Close()
		})
	}
	for _, length := range []int{9, 1000, 200_000, 200_000_000} {
		f(fmt.Sprintf("POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d", chatPath, length), 30*time.Second, 400, "30s")
	}
	f("POST /open HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n20", 30*time.Second, 400, "30s")
	const announced = " HTTP/1.1\r\nHost: x\r\nContent-Length: 1000"
	f("POST /closed"+announced, 2*time.Second, 404, "closed")
	f("PUT "+chatPath+announced, 2*time.Second, 405, "POST")
	f("POST /healthz"+announced, 2*time.Second, 200, "ok")
	f("GET /v1/models"+announced, 2*time.Second, 200, "list")
	f("POST /closed HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 1000", 0, 404, "closed")
	f("POST "+chatPath+" HTTP/1.1\r\nHost: x\r\nContent-Length: 2000000000", 0, 413, "")
}

// A client that sends its whole body before it reads gets its answer though nobody wanted the body, and may go on with
// its connection.
func TestUnreadBody(t *testing.T) {
	inWorld(t, Options{}, []http.HandlerFunc{says("a")}, func(w *world) {
		c, err := w.net.dial(w.t.Context(), "", "front:80")
		if err != nil {
			t.Fatal(err)
		}
		in := bufio.NewReader(c)
		ask := func(path, body string, status int) {
			t.Helper()
			_, _ = fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n", path, len(body))
			_, _ = io.WriteString(c, body)
			resp, err := http.ReadResponse(in, nil)
			if err != nil {
				t.Fatal(err)
			}
			_, _ = io.Copy(io.Discard, resp.Body)
			if resp.StatusCode != status {
				t.Errorf("%s: got %d, want %d", path, resp.StatusCode, status)
			}
		}
		ask("/closed", strings.Repeat("x", 100_000), 404)
		<-time.After(time.Minute) // no deadline is left on the connection
		ask(chatPath, plainBody, 200)
		_ = c.Close()
	})
}

// A client that takes nothing of its stream is let go, and with it the engine's work.
func TestClientTakesNothing(t *testing.T) {
	ended := make(chan struct{})
	floods := func(w http.ResponseWriter, r *http.Request) {
		defer close(ended)
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		for r.Context().Err() == nil {
			if _, err := io.WriteString(w, eventA); err != nil {
				return
			}
			_ = http.NewResponseController(w).Flush()
		}
	}
	inWorld(t, Options{IdleTimeout: time.Minute}, []http.HandlerFunc{floods}, func(w *world) {
		ended = make(chan struct{})
		c, err := w.net.dial(w.t.Context(), "", "front:80")
		if err != nil {
			t.Fatal(err)
		}
		_, _ = fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", chatPath, len(streamBody), streamBody)
		<-ended
		_ = c.Close()
	})
}

// deadlines is a client's side that notes write deadlines. written is called with each write.
type deadlines struct {
	*httptest.ResponseRecorder
	last    time.Time
	set     bool
	written func()
}

func (d *deadlines) SetWriteDeadline(t time.Time) error {
	d.last, d.set = t, true
	return nil
}

func (d *deadlines) Write(p []byte) (int, error) {
	d.written()
	return d.ResponseRecorder.Write(p)
}

// An answer that is given up during its last write has ended whole all the same, and leaves no deadline on the client's
// connection.
func TestGivenUpInTheLastWrite(t *testing.T) {
	inWorld(t, Options{}, []http.HandlerFunc{after(time.Second, says("a"))}, func(w *world) {
		d := &deadlines{ResponseRecorder: httptest.NewRecorder(), written: func() {
			w.g.Cut()
			synctest.Wait()
		}}
		w.g.ServeHTTP(d, httptest.NewRequest(http.MethodPost, chatPath, strings.NewReader(plainBody)))
		if got := d.Body.String(); got != `{"from":"a"}` || !d.set || !d.last.IsZero() {
			t.Errorf("got %q and deadline %v (set: %v), want the whole answer and the deadline set and taken back", got, d.last, d.set)
		}
	})
}

// unplugged is a connection whose cable can be pulled: nothing arrives any longer, and nobody says so.
type unplugged struct {
	net.Conn
	pulled *atomic.Bool
}

func (u unplugged) Write(p []byte) (int, error) {
	if u.pulled.Load() {
		return len(p), nil
	}
	return u.Conn.Write(p)
}

// An HTTP/2 connection that died in silence is found by pings, and the next request gets a fresh one; an engine that
// only thinks answers them.
func TestDeadHTTP2Connection(t *testing.T) {
	thinks := time.Duration(0)
	inWorld(t, Options{}, []http.HandlerFunc{func(w http.ResponseWriter, r *http.Request) { after(thinks, says("a"))(w, r) }, says("b")}, func(w *world) {
		pulled := new(atomic.Bool)
		w.g.transports.dial = func(ctx context.Context, network, name string) (net.Conn, error) {
			c, err := w.net.dial(ctx, network, name)
			return unplugged{c, pulled}, err
		}
		w.applyEndpoints([]fleet.Endpoint{{Name: w.engines[0], H2C: true}})
		thinks = 9*time.Minute + time.Second // no ping is due at its end, which would be lost or not by chance
		a, took := w.timed(plainBody)
		a.want(t, 200, `{"from":"a"}`)
		wantTook(t, took, thinks)
		thinks = 0
		pulled.Store(true)
		a, took = w.timed(plainBody)
		a.wantError(t, 502, "upstream_error")
		wantTook(t, took, pingAfter+pingTimeout)
		pulled = new(atomic.Bool)
		a, took = w.timed(plainBody)
		a.want(t, 200, `{"from":"a"}`)
		wantTook(t, took, 0)
	})
}
