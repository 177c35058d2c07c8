package scrape

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/sluice-gateway/sluice/fleet"
)

// wires is a network in memory: what isn't there refuses.
type wires struct {
	mu     sync.Mutex
	hosts  map[string]func(net.Conn)
	dialed map[string]int
}

func newWires() *wires {
	return &wires{hosts: make(map[string]func(net.Conn)), dialed: make(map[string]int)}
}

func (n *wires) dial(ctx context.Context, _, address string) (net.Conn, error) {
	n.mu.Lock()
	accept, ok := n.hosts[address]
	n.dialed[address]++
	n.mu.Unlock()
	if !ok {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	}
	if accept == nil { // a node that is off
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(2 * time.Second):
			return nil, &net.OpError{Op: "dial", Net: "tcp", Err: os.ErrDeadlineExceeded}
		}
	}
	near, far := net.Pipe()
	accept(far)
	return near, nil
}

func (n *wires) set(address string, accept func(net.Conn)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.hosts[address] = accept
}

func (n *wires) remove(address string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.hosts, address)
}

func (n *wires) dials(address string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.dialed[address]
}

// pipes is a net.Listener for the far ends.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
	close  func()
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) take(c net.Conn) {
	select {
	case p.conns <- c:
	case <-p.closed:
		c.Close()
	}
}

func (p *pipes) Close() error   { p.close(); return nil }
func (p *pipes) Addr() net.Addr { return &net.TCPAddr{} }

// serve puts an HTTP server on the network.
func (n *wires) serve(t *testing.T, address string, h http.Handler) (kill func()) {
	l := &pipes{conns: make(chan net.Conn), closed: make(chan struct{})}
	l.close = sync.OnceFunc(func() { close(l.closed) })
	s := &http.Server{Handler: h}
	go s.Serve(l)
	n.set(address, l.take)
	kill = sync.OnceFunc(func() {
		n.remove(address)
		s.Close()
	})
	t.Cleanup(kill)
	return kill
}

// engine is a model server whose page and models can be changed.
type engine struct {
	page, models atomic.Pointer[string]
	status       atomic.Int32
	scrapes      atomic.Int32
	asks         atomic.Int32
	last         atomic.Pointer[http.Request]
}

func newEngine(page, models string) *engine {
	e := &engine{}
	e.page.Store(&page)
	e.models.Store(&models)
	e.status.Store(200)
	return e
}

func (e *engine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	e.last.Store(r)
	switch r.URL.Path {
	case "/metrics":
		e.scrapes.Add(1)
		w.WriteHeader(int(e.status.Load()))
		io.WriteString(w, *e.page.Load())
	case modelsPath:
		e.asks.Add(1)
		io.WriteString(w, *e.models.Load())
	default:
		http.NotFound(w, r)
	}
}

const (
	vllmPage   = "vllm:num_requests_waiting{model_name=\"m\"} 2\nvllm:num_requests_running{model_name=\"m\"} 3\nvllm:kv_cache_usage_perc{model_name=\"m\"} 0.5\n"
	vllmModels = `{"object":"list","data":[{"id":"m","owned_by":"vllm","parent":null,"max_model_len":2048}]}`
)

// world is a fleet with one pool, scraped in a bubble.
type world struct {
	*wires
	fleet    *fleet.Fleet
	now      func() time.Duration
	log      strings.Builder
	registry *prometheus.Registry
	stop     func()
}

func run(t *testing.T, eps []fleet.Endpoint, change func(*world, *Options)) *world {
	t.Helper()
	start := time.Now()
	w := &world{wires: newWires(), fleet: &fleet.Fleet{}, registry: prometheus.NewRegistry(), now: func() time.Duration { return time.Since(start) }}
	o := Options{Now: w.now, Registerer: w.registry, DialContext: w.dial, Log: slog.New(slog.NewTextHandler(&w.log, &slog.HandlerOptions{
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		}}))}
	change(w, &o)
	w.apply(eps...)
	p, err := New(w.fleet, o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- p.Run(ctx) }()
	w.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("got %v from Run, want nil", err)
		}
	})
	t.Cleanup(w.stop)
	return w
}

func (w *world) apply(eps ...fleet.Endpoint) {
	w.fleet.Apply([]fleet.PoolConfig{{Name: "p", Model: "m", Endpoints: eps}}, "")
}

// after lets time pass and reports the state of every endpoint.
func (w *world) after(d time.Duration) map[string]fleet.Status {
	<-time.After(d)
	synctest.Wait()
	out := make(map[string]fleet.Status)
	for _, s := range w.fleet.Pools()[0].Status(w.now()) {
		out[s.Endpoint.Name] = s
	}
	return out
}

func ep(name string) fleet.Endpoint { return fleet.Endpoint{Name: name, Host: name} }

func TestPollerReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEngine(vllmPage, vllmModels)
		w := run(t, []fleet.Endpoint{ep("10.0.0.1:80")}, func(w *world, o *Options) { w.serve(t, "10.0.0.1:80", e) })
		s := w.after(1100 * time.Millisecond)["10.0.0.1:80"]
		if s.State != "ready" || s.Engine != "vllm" || s.Reading.Waiting != 2 || s.Reading.KVUse != .5 || !(s.Age < .2) || !slices.Equal(s.Models, []string{"m"}) {
			t.Errorf("got %+v, want a fresh vllm with 2 waiting", s)
		}
		if n := e.scrapes.Load(); n < 5 || n > 6 {
			t.Errorf("got %d scrapes in 1.1 s, want one each 200 ms", n)
		}
		if n := e.asks.Load(); n != 1 {
			t.Errorf("got %d questions for models, want 1 in 5 s", n)
		}
		if n := w.dials("10.0.0.1:80"); n > 2 {
			t.Errorf("got %d connections, want them kept", n)
		}
	})
}

// What is sent, and what is told of it.
func TestPollerTells(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEngine(vllmPage, vllmModels)
		w := run(t, []fleet.Endpoint{{Name: "10.0.0.1:80", Host: "engine.example:80", APIKey: "secret"}}, func(w *world, o *Options) {
			w.serve(t, "10.0.0.1:80", e)
		})
		s := w.after(1100 * time.Millisecond)["10.0.0.1:80"]
		r := e.last.Load()
		if got := fmt.Sprint(r.Host, r.Header.Get("Authorization"), r.Header.Get("Accept")); got != "engine.example:80Bearer secrettext/plain" {
			t.Errorf("got host, key and accept %q", got)
		}
		if !slices.Contains(s.MissingMetrics, "output tokens (vllm:generation_tokens_total)") {
			t.Errorf("got missing %q, want what the page lacks by name", s.MissingMetrics)
		}
		n, err := testutil.GatherAndCount(w.registry, "sluice_scrape_missing_metric")
		if err != nil || n != len(s.MissingMetrics) {
			t.Errorf("got %d missing metrics as metrics, %v, want %d", n, err, len(s.MissingMetrics))
		}
		w.stop()
		if got := w.log.String(); strings.Count(got, "endpoint found") != 1 || strings.Count(got, "engine lacks") != 1 || strings.Contains(got, "secret") {
			t.Errorf("got log %s, want what was found and what is missing once, and no key", got)
		}
	})
}

// What an engine lacks is said once for a pool, not for each of its endpoints, and labels of the metric are columns.
func TestLackIsSaidOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		names := []string{"e:1", "e:2", "e:3"}
		w := run(t, []fleet.Endpoint{ep(names[0]), ep(names[1]), ep(names[2])}, func(w *world, o *Options) {
			for _, name := range names {
				w.serve(t, name, newEngine(string(readPage(t, "llamacpp-b11434-load.txt")), vllmModels))
			}
		})
		s := w.after(2 * time.Second)["e:1"]
		if want := []string{"KV use (llamacpp:kv_cache_usage_ratio)", "KV cache size"}; !slices.Equal(s.MissingMetrics, want) {
			t.Errorf("got missing %q, want %q", s.MissingMetrics, want)
		}
		want := strings.NewReader(`# HELP sluice_scrape_missing_metric 1 for each number that routing could use and the endpoint's metrics don't give, or not one that can be true.
# TYPE sluice_scrape_missing_metric gauge
sluice_scrape_missing_metric{endpoint="e:1",metric="kv_tokens",pool="p"} 1
sluice_scrape_missing_metric{endpoint="e:1",metric="kv_use",pool="p"} 1
sluice_scrape_missing_metric{endpoint="e:2",metric="kv_tokens",pool="p"} 1
sluice_scrape_missing_metric{endpoint="e:2",metric="kv_use",pool="p"} 1
sluice_scrape_missing_metric{endpoint="e:3",metric="kv_tokens",pool="p"} 1
sluice_scrape_missing_metric{endpoint="e:3",metric="kv_use",pool="p"} 1
`)
		if err := testutil.GatherAndCompare(w.registry, want, "sluice_scrape_missing_metric"); err != nil {
			t.Error(err)
		}
		w.stop()
		line := `level=INFO msg="engine lacks what routing could use" pool=p engine=llamacpp missing="KV use (llamacpp:kv_cache_usage_ratio), KV cache size"`
		if log := w.log.String(); strings.Count(log, "engine lacks") != 1 || !strings.Contains(log, line) {
			t.Errorf("got log %s, want one line for three endpoints: %s", log, line)
		}
	})
}

// outcome is a state, and how its reason begins.
type outcome struct{ state, why string }

func (o outcome) check(t *testing.T, s fleet.Status) {
	t.Helper()
	if s.State != o.state || !strings.HasPrefix(s.Why, o.why) {
		t.Errorf("got %s: %q, want %s: %q", s.State, s.Why, o.state, o.why)
	}
}

// failure is something a server does, and what the fleet is told: at first contact, and after good readings once the
// last is stale.
type failure struct {
	name         string
	handler      http.Handler
	first, later outcome
}

// status answers everything but the list of models with one status.
func status(code int) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == modelsPath {
			io.WriteString(w, vllmModels)
			return
		}
		w.WriteHeader(code)
	}
}

func endlessChunks(w http.ResponseWriter, r *http.Request) {
	for r.Context().Err() == nil {
		io.WriteString(w, "# more\n")
		w.(http.Flusher).Flush()
		select {
		case <-r.Context().Done():
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func endlessPage(w http.ResponseWriter, r *http.Request) {
	for range maxPage>>16 + 1 {
		if _, err := w.Write(make([]byte, 1<<16)); err != nil {
			return
		}
	}
}

func announces(length, page string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", length)
		io.WriteString(w, page)
	}
}

func failures() []failure {
	ready, stale := outcome{"ready", ""}, outcome{"stale", "last reading"}
	down := func(why string) outcome { return outcome{"not ready", why} }
	never := func(why string) outcome { return outcome{"stale", "no reading yet: " + why} }
	const (
		loading = "/metrics says that it is not ready (status 503)"
		nothing = "/metrics answers with status 404; and /v1/models answers with status 404, so it is no model server that serves"
		wanted  = "/v1/models wants a key (status 401) and none is configured"
	)
	return []failure{
		// Z10
		{"redirect", http.RedirectHandler("http://10.9.9.9:80/metrics", http.StatusFound),
			never("/metrics redirects to \"http://10.9.9.9:80/metrics\", which is not followed"), stale},
		{"HTML", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "<!doctype html>\n<html>\n") }),
			never("/metrics is HTML, not a metrics page of a known engine"), stale},
		{"endless chunks", http.HandlerFunc(endlessChunks), never("no answer within 1s"), stale},
		// Z09
		{"too large", http.HandlerFunc(endlessPage), never("the answer is too large: more than 8388608 bytes"), stale},
		{"announced too large", announces("50000000", vllmPage), never("the answer is too large: 50000000 bytes, 8388608 are read"), stale},
		{"truncated", announces("5000", vllmPage), never("the answer broke off: unexpected EOF"), stale},
		{"loading", status(503), down(loading), down(loading)},
		{"error", status(500), never("/metrics answers with status 500"), stale},
		// M19
		{"no metrics", status(404), ready, ready},
		{"metrics off", status(501), ready, ready},
		{"metrics want a key", status(401), ready, ready},
		{"nothing there", http.NotFoundHandler(), down(nothing), down(nothing)},
		{"key wanted everywhere", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(401) }), down(wanted), down(wanted)},
	}
}

func TestPollerFailures(t *testing.T) {
	for _, c := range failures() {
		t.Run(c.name+"/first", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := run(t, []fleet.Endpoint{ep("e:1")}, func(w *world, o *Options) { w.serve(t, "e:1", c.handler) })
				c.first.check(t, w.after(3 * time.Second)["e:1"])
			})
		})
		t.Run(c.name+"/later", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var broken atomic.Bool
				good := newEngine(vllmPage, vllmModels)
				w := run(t, []fleet.Endpoint{ep("e:1")}, func(w *world, o *Options) {
					w.serve(t, "e:1", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						if broken.Load() {
							c.handler.ServeHTTP(w, r)
						} else {
							good.ServeHTTP(w, r)
						}
					}))
				})
				outcome{"ready", ""}.check(t, w.after(time.Second)["e:1"])
				broken.Store(true)
				c.later.check(t, w.after(4 * time.Second)["e:1"])
				broken.Store(false)
				s := w.after(6 * time.Second)["e:1"]
				outcome{"ready", ""}.check(t, s)
				if s.Reading.Waiting != 2 || !(s.Age < .25) {
					t.Errorf("got %v waiting %v s ago, want a fresh reading again", s.Reading.Waiting, s.Age)
				}
			})
		})
	}
}

// A refused connection counts at once, and the endpoint is asked anew when it is back.
func TestPollerRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEngine(vllmPage, vllmModels)
		var kill func()
		w := run(t, []fleet.Endpoint{ep("e:1")}, func(w *world, o *Options) { kill = w.serve(t, "e:1", e) })
		w.after(time.Second)
		kill()
		if s := w.after(400 * time.Millisecond)["e:1"]; s.State != "not ready" || s.Why != "connection refused: no process listens there" {
			t.Errorf("got %s: %q, want not ready after a refused connection", s.State, s.Why)
		}
		again := newEngine(vllmPage, `{"data":[{"id":"m"},{"id":"n"}]}`)
		w.serve(t, "e:1", again)
		s := w.after(450 * time.Millisecond)["e:1"]
		if s.State != "ready" || !slices.Equal(s.Models, []string{"m", "n"}) {
			t.Errorf("got %s with %q, want it ready and its models read at once", s.State, s.Models)
		}
		w.stop()
		log := w.log.String()
		if strings.Count(log, "endpoint is unreachable") != 1 || strings.Count(log, "gives readings again") != 1 {
			t.Errorf("got log %s, want one line for each change", log)
		}
	})
}

// Who speaks another version of HTTP than the configured one serves no request, and the reason says so; he is asked anew as he is
// configured anew. So it is with one that always closes the connection.
func TestPollerProtocol(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := ep("e:1")
		e.H2C = true
		w := run(t, []fleet.Endpoint{e, ep("shut:1"), ep("half:1")}, func(w *world, o *Options) {
			w.set("e:1", func(c net.Conn) {
				go io.Copy(io.Discard, c)
				go io.WriteString(c, "HTTP/1.1 400 Bad Request\r\nconnection: close\r\n\r\n")
			})
			closes := func(w http.ResponseWriter, r *http.Request) { panic(http.ErrAbortHandler) }
			w.serve(t, "shut:1", http.HandlerFunc(closes))
			mux := http.NewServeMux()
			mux.HandleFunc("/metrics", closes)
			mux.HandleFunc(modelsPath, func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, vllmModels) })
			w.serve(t, "half:1", mux)
		})
		states := w.after(time.Second)
		outcome{"not ready", "it does not speak HTTP/2 without TLS: set appProtocol to http"}.check(t, states["e:1"])
		outcome{"stale", "no reading yet: it closes the connection"}.check(t, states["shut:1"])
		e.H2C = false
		w.serve(t, "e:1", newEngine(vllmPage, vllmModels))
		w.apply(e, ep("shut:1"), ep("half:1"))
		states = w.after(4 * time.Second)
		outcome{"ready", ""}.check(t, states["e:1"])
		outcome{"not ready", "it closes the connection"}.check(t, states["shut:1"])
		outcome{"ready", ""}.check(t, states["half:1"])
	})
}

// M13: ten endpoints that are off and ten that accept and never answer don't delay the others.
func TestPollerIsolation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		good := newEngine(vllmPage, vllmModels)
		var eps []fleet.Endpoint
		w := run(t, nil, func(w *world, o *Options) {
			for i := range 30 {
				name := fmt.Sprintf("10.0.0.%d:80", i)
				eps = append(eps, ep(name))
				switch {
				case i < 10:
					w.set(name, nil)
				case i < 20:
					frozen(t, w.wires, name)
				case i == 20:
					w.serve(t, name, good)
				default:
					w.serve(t, name, newEngine(vllmPage, vllmModels))
				}
			}
		})
		w.apply(eps...)
		w.after(2 * time.Second)
		before := good.scrapes.Load()
		states := w.after(10 * time.Second)
		if n := good.scrapes.Load() - before; n != 50 {
			t.Errorf("got %d scrapes of a good endpoint in 10 s, want 50", n)
		}
		for i := range 30 {
			s := states[fmt.Sprintf("10.0.0.%d:80", i)]
			if want := i >= 20; (s.State == "ready" && s.Age < .25) != want {
				t.Errorf("got endpoint %d %s, age %v, want it fresh: %v", i, s.State, s.Age, want)
			}
		}
		// An endpoint that never answers has no two scrapes under way: one connection for it, and dials only when the
		// last one gave up.
		if n := w.dials("10.0.0.15:80"); n > 13 {
			t.Errorf("got %d connections to an endpoint that never answers in 12 s, want one a time-out", n)
		}
	})
}

// frozen answers nothing, ever.
func frozen(t *testing.T, n *wires, address string) {
	n.set(address, func(c net.Conn) {
		t.Cleanup(func() { c.Close() })
		go io.Copy(io.Discard, c)
	})
}

// E24: an endpoint that answers late grows stale and is not called dead; E21: one that is off is.
func TestPollerSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		late, off := newEngine(vllmPage, vllmModels), newEngine(vllmPage, vllmModels)
		var kill []func()
		w := run(t, []fleet.Endpoint{ep("late:1"), ep("off:1")}, func(w *world, o *Options) {
			kill = append(kill, w.serve(t, "late:1", late), w.serve(t, "off:1", off))
		})
		w.after(time.Second)
		for _, k := range kill {
			k()
		}
		frozen(t, w.wires, "late:1")
		w.set("off:1", nil)
		states := w.after(6 * time.Second)
		if s := states["late:1"]; s.State != "stale" {
			t.Errorf("got %s: %s for one that answers late, want stale", s.State, s.Why)
		}
		if s := states["off:1"]; s.State != "not ready" || s.Why != "no connection within 1s" {
			t.Errorf("got %s: %s for one that is off, want not ready", s.State, s.Why)
		}
	})
}

// Metrics on a port of their own may be gone while the engine serves.
func TestPollerMetricsPort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEngine(vllmPage, vllmModels)
		m := newEngine(vllmPage, "")
		var kill func()
		w := run(t, []fleet.Endpoint{{Name: "[fd00::1]:80", MetricsPort: 8002, MetricsPath: "/metrics"}}, func(w *world, o *Options) {
			w.serve(t, "[fd00::1]:80", e)
			kill = w.serve(t, "[fd00::1]:8002", m)
		})
		if s := w.after(time.Second)["[fd00::1]:80"]; s.State != "ready" || s.Reading.Waiting != 2 || e.scrapes.Load() != 0 {
			t.Errorf("got %+v, want a reading from the metrics port", s)
		}
		kill()
		s := w.after(4 * time.Second)["[fd00::1]:80"]
		if s.State != "ready" || len(s.MissingMetrics) != 1 || s.MissingMetrics[0] != "no metrics: connection refused: no process listens there" {
			t.Errorf("got %s, missing %q, want it to serve without metrics", s.State, s.MissingMetrics)
		}
	})
}

// TensorRT-LLM writes JSON at /metrics and metrics elsewhere.
func TestPollerOtherPath(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := run(t, []fleet.Endpoint{ep("e:1")}, func(w *world, o *Options) {
			mux := http.NewServeMux()
			mux.HandleFunc("/metrics", func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "[]") })
			mux.HandleFunc("/prometheus/metrics", func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "trtllm_num_requests_waiting 4\n") })
			w.serve(t, "e:1", mux)
		})
		if s := w.after(time.Second)["e:1"]; s.State != "ready" || s.Engine != "trtllm" || s.Reading.Waiting != 4 {
			t.Errorf("got %+v, want a reading of trtllm", s)
		}
	})
}

// llama.cpp tells the size of its cache under /props alone.
func TestPollerLlamaCpp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		props, err := os.ReadFile("testdata/props-llamacpp.json")
		if err != nil {
			t.Fatal(err)
		}
		w := run(t, []fleet.Endpoint{ep("e:1")}, func(w *world, o *Options) {
			mux := http.NewServeMux()
			mux.HandleFunc("/metrics", func(w http.ResponseWriter, r *http.Request) { w.Write(readPage(t, "llamacpp-b11434-load.txt")) })
			mux.HandleFunc("/props", func(w http.ResponseWriter, r *http.Request) { w.Write(props) })
			mux.HandleFunc(modelsPath, func(w http.ResponseWriter, r *http.Request) {
				io.WriteString(w, `{"data":[{"id":"m","owned_by":"llamacpp","meta":{"n_ctx":1024,"n_ctx_train":8192}}]}`)
			})
			w.serve(t, "e:1", mux)
		})
		if s := w.after(time.Second)["e:1"]; s.Engine != "llamacpp" || s.Reading.KVTokens != 4096 {
			t.Errorf("got %v with %v tokens of KV cache, want llamacpp with 4096", s.Engine, s.Reading.KVTokens)
		}
	})
}

// TGI lists its model and the size of its cache under /info.
func TestPollerTGI(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := run(t, []fleet.Endpoint{ep("e:1")}, func(w *world, o *Options) {
			mux := http.NewServeMux()
			mux.HandleFunc("/metrics", func(w http.ResponseWriter, r *http.Request) { w.Write(readPage(t, "tgi-3.txt")) })
			mux.HandleFunc("/info", func(w http.ResponseWriter, r *http.Request) {
				io.WriteString(w, `{"model_id":"org/m","max_batch_total_tokens":40960,"router":"text-generation-router"}`)
			})
			w.serve(t, "e:1", mux)
		})
		s := w.after(time.Second)["e:1"]
		if s.Engine != "tgi" || s.Reading.KVUse != .5 || !slices.Equal(s.Models, []string{"org/m"}) {
			t.Errorf("got %+v, want tgi with its model and half of its cache in use", s)
		}
	})
}

// An adapter that appears in the metrics is asked for at once; when nothing is new, every few seconds.
func TestPollerNewAdapter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEngine(vllmPage, vllmModels)
		w := run(t, []fleet.Endpoint{ep("e:1")}, func(w *world, o *Options) { w.serve(t, "e:1", e) })
		w.after(time.Second)
		page := vllmPage + "vllm:lora_requests_info{max_lora=\"2\",running_lora_adapters=\"a\",waiting_lora_adapters=\"\"} 1.7e9\n"
		models := `{"data":[{"id":"m"},{"id":"a","parent":"m"},{"id":7},{"id":""},"x",{"id":"m"}]}`
		e.models.Store(&models)
		e.page.Store(&page)
		s := w.after(300 * time.Millisecond)["e:1"]
		if !slices.Equal(s.Models, []string{"m", "a"}) || !slices.Equal(s.Reading.Resident, []string{"a"}) {
			t.Errorf("got models %q and resident %q, want both to have a", s.Models, s.Reading.Resident)
		}
		target, ok := w.fleet.Lookup("a")
		if !ok || target.Adapter != "a" {
			t.Errorf("got %+v, %v, want the adapter to be known", target, ok)
		}
		w.after(10 * time.Second)
		if n := e.asks.Load(); n < 3 || n > 5 {
			t.Errorf("got %d questions in 11 s, want one each 5 s and one for the adapter", n)
		}
	})
}

// O06, E25, E28: goroutines and series follow the fleet.
func TestPollerMembership(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := newEngine(vllmPage, vllmModels), newEngine(vllmPage, vllmModels)
		w := run(t, []fleet.Endpoint{ep("a:1"), ep("b:1")}, func(w *world, o *Options) {
			w.serve(t, "a:1", a)
			w.serve(t, "b:1", b)
		})
		w.after(time.Second)
		w.apply(ep("b:1"))
		w.after(400 * time.Millisecond)
		n := a.scrapes.Load()
		w.after(time.Second)
		if a.scrapes.Load() != n {
			t.Error("got scrapes of an endpoint that left, want none")
		}
		families, err := w.registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			if strings.Contains(f.String(), "a:1") {
				t.Errorf("got %v, want no series of an endpoint that left", f)
			}
		}
		// A flap faster than the scraper looks.
		w.apply()
		w.apply(ep("b:1"))
		if s := w.after(400 * time.Millisecond)["b:1"]; s.State != "ready" {
			t.Errorf("got %s, want ready after a flap", s.State)
		}
		// Another key is another way to reach it.
		changed := ep("b:1")
		changed.APIKey = "k2"
		w.apply(changed)
		w.after(time.Second)
		if got := b.last.Load().Header.Get("Authorization"); got != "Bearer k2" {
			t.Errorf("got %q, want the new key", got)
		}
		w.apply()
		w.after(time.Second)
		if n := testutil.CollectAndCount(w.registry); n != 0 {
			t.Errorf("got %d series without endpoints, want none", n)
		}
	})
}

// A configured engine wins over what the page speaks, and the mismatch is said once.
func TestPollerMismatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEngine(vllmPage, vllmModels)
		w := run(t, []fleet.Endpoint{{Name: "e:1", Engine: "sglang"}}, func(w *world, o *Options) { w.serve(t, "e:1", e) })
		s := w.after(2 * time.Second)["e:1"]
		if s.State != "ready" || s.Engine != "sglang" || !math.IsNaN(s.Reading.Waiting) || !slices.Contains(s.MissingMetrics, "waiting requests (sglang:num_queue_reqs)") {
			t.Errorf("got %+v, want an sglang that says nothing", s)
		}
		w.stop()
		if log := w.log.String(); strings.Count(log, "not the configured one") != 1 {
			t.Errorf("got log %s, want the mismatch once", log)
		}
	})
}

// However an endpoint flaps, it writes few lines.
func TestPollerLogThrottle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEngine(vllmPage, vllmModels)
		w := run(t, []fleet.Endpoint{ep("e:1")}, func(w *world, o *Options) { w.serve(t, "e:1", e) })
		for i := range 100 {
			e.status.Store([]int32{200, 503}[i%2])
			w.after(300 * time.Millisecond)
		}
		w.stop()
		if n := strings.Count(w.log.String(), "\n"); n > 8 {
			t.Errorf("got %d lines for 100 changes in 30 s, want no more than 4 and one in 10 s", n)
		}
	})
}

// M15: intervals that can't work are refused at the start.
func TestIntervals(t *testing.T) {
	f := &fleet.Fleet{}
	f.Apply([]fleet.PoolConfig{{Name: "p", StaleAfter: 200 * time.Millisecond}}, "")
	_, err := New(f, Options{Interval: 15 * time.Second})
	if !errors.Is(err, errIntervals) || !strings.Contains(err.Error(), "15s") || !strings.Contains(err.Error(), "200ms") || !strings.Contains(err.Error(), "45s") {
		t.Errorf("got %v, want an error that names both and what to set", err)
	}
	if _, err := New(f, Options{Interval: 50 * time.Millisecond}); err != nil {
		t.Errorf("got %v, want none", err)
	}
}

// Turns are spread by name, the same every time, and never more than an interval away.
func TestTurns(t *testing.T) {
	const interval = 200 * time.Millisecond
	buckets := make(map[time.Duration]int)
	for i := range 100 {
		name := fmt.Sprintf("10.0.0.%d:8000", i)
		first := untilNext(name, 0, interval)
		if first <= 0 || first > interval {
			t.Fatalf("got %v", first)
		}
		if again := untilNext(name, first, interval); again != interval {
			t.Errorf("got %v to the turn after, want %v", again, interval)
		}
		buckets[first/(20*time.Millisecond)]++
	}
	for b, n := range buckets {
		if n > 25 {
			t.Errorf("got %d of 100 endpoints in tenth %d of the interval, want them spread", n, b)
		}
	}
}

func TestProbe(t *testing.T) {
	s := httptest.NewServer(newEngine(vllmPage, vllmModels))
	e := ep(s.Listener.Addr().String())
	found, err := Probe(t.Context(), e)
	if err != nil || found.Engine != "vllm" || found.MetricsPath != "/metrics" || found.Reading.Running != 3 || len(found.Models) != 1 || len(found.Missing) == 0 {
		t.Errorf("got %+v, %v", found, err)
	}
	if want := `{"id":"m","owned_by":"vllm","parent":null,"max_model_len":2048}`; string(found.Models[0].Raw) != want {
		t.Errorf("got %s, want the object as it is", found.Models[0].Raw)
	}
	s.Close()
	if _, err := Probe(t.Context(), e); err == nil || !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("got %v, want a refused connection", err)
	}
	s = httptest.NewServer(http.NotFoundHandler())
	defer s.Close()
	if _, err := Probe(t.Context(), ep(s.Listener.Addr().String())); err == nil || !strings.Contains(err.Error(), "neither lists models") {
		t.Errorf("got %v, want an error that says what was tried", err)
	} else if strings.ContainsAny(err.Error(), "[]") {
		t.Errorf("got %v, want a sentence", err)
	}
}

// Each way to be reached, and what is said when it is the wrong one.
func TestProbeTransports(t *testing.T) {
	plain := httptest.NewServer(newEngine(vllmPage, vllmModels))
	defer plain.Close()
	secure := httptest.NewTLSServer(newEngine(vllmPage, vllmModels))
	secure.Config.ErrorLog = log.New(io.Discard, "", 0)
	defer secure.Close()
	h2c := httptest.NewUnstartedServer(newEngine(vllmPage, vllmModels))
	h2c.Config.Protocols = new(http.Protocols)
	h2c.Config.Protocols.SetUnencryptedHTTP2(true)
	h2c.Start()
	defer h2c.Close()
	roots := x509.NewCertPool()
	roots.AddCert(secure.Certificate())
	for _, c := range []struct {
		name string
		e    fleet.Endpoint
		want string // part of the error, empty for none
	}{
		{"TLS", fleet.Endpoint{Name: secure.Listener.Addr().String(), Host: "example.com:443", TLS: &tls.Config{RootCAs: roots, ServerName: "example.com"}}, ""},
		{"h2c", fleet.Endpoint{Name: h2c.Listener.Addr().String(), H2C: true}, ""},
		{"unknown authority", fleet.Endpoint{Name: secure.Listener.Addr().String(), Host: "example.com", TLS: &tls.Config{ServerName: "example.com"}}, "tls: its certificate is not trusted"},
		{"another name", fleet.Endpoint{Name: secure.Listener.Addr().String(), Host: "engine.invalid", TLS: &tls.Config{RootCAs: roots, ServerName: "engine.invalid"}}, "tls: its certificate is for another name"},
		{"TLS to plain", fleet.Endpoint{Name: plain.Listener.Addr().String(), TLS: &tls.Config{RootCAs: roots, ServerName: "example.com"}}, "tls: the port speaks without TLS"},
		{"plain to TLS", fleet.Endpoint{Name: secure.Listener.Addr().String()}, "tls: the port may want TLS"},
		{"h2c to TLS", fleet.Endpoint{Name: secure.Listener.Addr().String(), H2C: true}, "configured without it; or it does not speak HTTP/2"},
		{"h2c to HTTP/1", fleet.Endpoint{Name: plain.Listener.Addr().String(), H2C: true}, "it does not speak HTTP/2 without TLS: set appProtocol to http"},
		{"HTTP/1 to h2c", fleet.Endpoint{Name: h2c.Listener.Addr().String()}, "or it speaks HTTP/2 alone: then set appProtocol to kubernetes.io/h2c"},
	} {
		found, err := Probe(t.Context(), c.e)
		switch {
		case c.want == "" && (err != nil || found.Engine != "vllm"):
			t.Errorf("%s: got %+v, %v, want it found", c.name, found, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: got %v, want %q", c.name, err, c.want)
		}
	}
}

// What servers that don't speak HTTP do to a client: another protocol, a TLS alert, and nothing.
func TestClassify(t *testing.T) {
	const settings, goAway = "\x00\x00\x0c\x04\x00\x00\x00\x00\x00\x00\x03\x00\x00\x00\x80\x00\x04\x00\x01\x00\x00", "\x00\x00\x08\x07\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01"
	for _, c := range []struct {
		answer string
		h2c    bool
		far    reach
		want   string
	}{
		{"SSH-2.0-x\r\n\r\n", false, broken, "malformed"},
		{"\x15\x03\x03\x00\x02\x02\x46\r\n\r\n", false, shut, plainToTLS},
		{"", false, shut, plainToTLS},
		{"HTTP/1.1 505 HTTP Version Not Supported\r\n\r\n", true, refused, "it does not speak HTTP/2 without TLS: set appProtocol to http"},
		{settings, false, refused, "it speaks HTTP/2 without TLS: set appProtocol to kubernetes.io/h2c"},
		{goAway, false, refused, "it speaks HTTP/2 without TLS: set appProtocol to kubernetes.io/h2c"},
		{settings + goAway, false, refused, "it speaks HTTP/2 without TLS: set appProtocol to kubernetes.io/h2c"},
		{"\x00\x00\x0c\x09", false, broken, "malformed"},
	} {
		n := newWires()
		n.set("junk:1", func(far net.Conn) {
			go func() {
				r := bufio.NewReader(far)
				_, _ = r.ReadString('\n')
				io.WriteString(far, c.answer)
				if c.h2c {
					io.Copy(io.Discard, r) // what is still written, as a kernel takes it
				}
				far.Close()
			}()
		})
		e := ep("junk:1")
		e.H2C = c.h2c
		client := newClient(e, n.dial, time.Second)
		_, err := client.fetch(t.Context(), "/metrics")
		if far, why := client.classify(err, time.Second); far != c.far || !strings.Contains(why, c.want) {
			t.Errorf("%q: got %d: %s, want %d and %q", c.answer, far, why, c.far, c.want)
		}
		client.close()
	}
}
