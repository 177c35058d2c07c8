package proxy

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-gateway/sluice/fleet"
	"github.com/sluice-gateway/sluice/route"
)

// rig is a gateway between a client and engines on loopback. Engines are asked in the order given: the pool's profile
// is round robin and every test is the first to ask it.
type rig struct {
	t       *testing.T
	g       *Gateway
	f       *fleet.Fleet
	pool    *fleet.Pool
	reg     *prometheus.Registry
	front   *httptest.Server
	log     *bytes.Buffer
	engines []string
}

const chatPath = "/v1/chat/completions"

// newRig starts a gateway before a pool of engines that serve the model "m". At the end of the test no request may be
// counted and no body be held.
func newRig(t *testing.T, o Options, engines ...http.HandlerFunc) *rig {
	t.Helper()
	var addresses []string
	for _, e := range engines {
		addresses = append(addresses, startEngine(t, e))
	}
	return newRigAt(t, o, addresses...)
}

func startEngine(t *testing.T, h http.HandlerFunc) string {
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

func newRigAt(t *testing.T, o Options, addresses ...string) *rig {
	t.Helper()
	r := &rig{t: t, f: new(fleet.Fleet), reg: prometheus.NewRegistry(), log: new(bytes.Buffer), engines: addresses}
	r.apply(addresses)
	o.SelectModel = true
	start := time.Now()
	r.g = New(r.f, o, r.reg, func() time.Duration { return time.Since(start) },
		slog.New(slog.NewTextHandler(r.log, &slog.HandlerOptions{Level: slog.LevelDebug})))
	r.front = httptest.NewServer(r.g)
	t.Cleanup(func() {
		r.front.Close()
		r.g.Close()
		// Handlers of HTTP/2 requests may still be ending, and the transport may still be letting go of bodies.
		if !eventually(func() bool { return r.pool.InFlight() == 0 }) {
			t.Errorf("got %d requests in flight at the end, want 0", r.pool.InFlight()) // E31, R14
		}
		if held := r.bodyBytes; !eventually(func() bool { return held() == 0 }) {
			t.Errorf("got %d bytes of bodies held at the end, want 0", held())
		}
	})
	return r
}

// eventually waits for what is to come true by itself, and reports whether it has within far more time than it takes on a busy machine.
func eventually(holds func() bool) bool {
	for end := time.Now().Add(20 * time.Second); !holds(); runtime.Gosched() {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}

// apply gives the pool endpoints at the addresses, all ready.
func (r *rig) apply(addresses []string) {
	var eps []fleet.Endpoint
	for _, a := range addresses {
		eps = append(eps, fleet.Endpoint{Name: a, Host: a})
	}
	r.applyEndpoints(eps)
}

func (r *rig) applyEndpoints(eps []fleet.Endpoint) {
	r.f.Apply([]fleet.PoolConfig{{Name: "pool", Model: "m", Profile: route.RoundRobin(), Endpoints: eps}}, "")
	r.pool = r.f.Pools()[0]
	for _, e := range eps {
		r.pool.ObserveFailure(e.Name, fleet.NoMetrics, "none in tests")
	}
}

// answer is what a client got, read to its end.
type answer struct {
	status  int
	header  http.Header
	trailer http.Header
	body    string
	err     error // of reading the body
}

func (r *rig) do(req *http.Request) answer {
	r.t.Helper()
	resp, err := r.front.Client().Transport.RoundTrip(req)
	if err != nil {
		return answer{err: err}
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Header, resp.Trailer, string(body), err}
}

func (r *rig) request(method, path, body string) *http.Request {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.t.Context(), method, r.front.URL+path, strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	return req
}

func (r *rig) post(body string) answer {
	r.t.Helper()
	return r.do(r.request(http.MethodPost, chatPath, body))
}

const (
	plainBody  = `{"model":"m","messages":[{"role":"user","content":"hi"}]}`
	streamBody = `{"model":"m","stream":true,"messages":[{"role":"user","content":"hi"}]}`
)

// want checks status and body.
func (a answer) want(t *testing.T, status int, body string) {
	t.Helper()
	if a.err != nil || a.status != status || a.body != body {
		t.Errorf("got %d %q and error %v, want %d %q", a.status, a.body, a.err, status, body)
	}
}

// wantError checks that the answer is an error of the gateway's own.
func (a answer) wantError(t *testing.T, status int, code string) {
	t.Helper()
	var body struct {
		Error struct{ Message, Type, Code string }
	}
	err := json.Unmarshal([]byte(a.body), &body)
	if a.err != nil || err != nil || a.status != status || body.Error.Code != code || body.Error.Message == "" || body.Error.Type == "" {
		t.Errorf("got %d %q and error %v, want %d with code %s", a.status, a.body, a.err, status, code)
	}
	if a.header.Get("Content-Type") != "application/json" || a.header.Get("X-Request-Id") == "" {
		t.Errorf("got headers %v, want JSON and an x-request-id", a.header)
	}
}

// raw is an engine that speaks whatever bytes the test wants. serve gets the connection after the request was read.
func raw(t *testing.T, serve func(c net.Conn, n int, req *http.Request)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for n := 1; ; n++ {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = c.Close() }()
				req, err := http.ReadRequest(bufio.NewReader(c))
				if err != nil {
					return
				}
				body, _ := io.ReadAll(req.Body)
				req.Body = io.NopCloser(bytes.NewReader(body))
				serve(c, n, req)
			}()
		}
	}()
	return l.Addr().String()
}

// reset closes a connection so that the other side sees it broken rather than ended.
func reset(c net.Conn) {
	if tcp, ok := c.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = c.Close()
}

// closedPort is an address that refuses connections.
func closedPort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
	return l.Addr().String()
}

// says answers 200 with a JSON body that names the engine.
func says(name string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, `{"from":%q}`, name)
	}
}

// events answers with an event stream made of these pieces, each flushed.
func events(pieces ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
		for _, p := range pieces {
			_, _ = io.WriteString(w, p)
			_ = http.NewResponseController(w).Flush()
		}
	}
}

// gather reads the registry: "name{label="value",…}" to value; histograms by their count.
func (r *rig) gather() map[string]float64 {
	r.t.Helper()
	families, err := r.reg.Gather()
	if err != nil {
		r.t.Fatal(err)
	}
	out := make(map[string]float64)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
			}
			key := f.GetName()
			if len(labels) > 0 {
				key += "{" + strings.Join(labels, ",") + "}"
			}
			out[key] = m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return out
}

// bodyBytes is how much memory is held for bodies.
func (r *rig) bodyBytes() int { return int(r.gather()["sluice_request_body_bytes"]) }

// dial opens a bare connection to the front door.
func (r *rig) dial() net.Conn {
	r.t.Helper()
	u, err := url.Parse(r.front.URL)
	if err != nil {
		r.t.Fatal(err)
	}
	c, err := new(net.Dialer).DialContext(context.Background(), "tcp", u.Host)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = c.Close() })
	return c
}

// clock is a clock that starts now.
func clock() func() time.Duration {
	start := time.Now()
	return func() time.Duration { return time.Since(start) }
}

func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }
