// Package proxy is the embedded front door: an http.Handler that reads a request, has an endpoint picked for it and
// streams the answer through.
//
// It promises that an accepted request is not dropped while any endpoint could take it: an engine's headers are held
// until its first body byte, and until then every failure moves the request to the next best endpoint, unless it has
// broken two engines already and may be what breaks them. After that byte
// a stream that breaks ends with an error event and any other answer with a broken connection, never with an end that
// looks whole; a small answer of JSON is held until it is whole, so that one that breaks becomes an error. A client that
// leaves cancels its work at the engine, and every counter that a request raised comes down again.
//
// It refuses to change the bytes of a request or an answer, to follow redirects, and to send anything to an
// address that is not an endpoint of a pool, whatever a header says. Listening, TLS and tokens are its caller's.
package proxy

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-gateway/sluice/fleet"
	"github.com/sluice-gateway/sluice/openai"
	"github.com/sluice-gateway/sluice/route"
)

// Options is what a Gateway goes by. The zero value of each field means its default.
type Options struct {
	// SelectModel chooses the pool by the model in the body. Without it everything goes to the fleet's first pool and
	// unknown models are the engine's to refuse.
	SelectModel bool
	// MaxBodyBytes bounds one request body (413 beyond), BodyBudget all of them together (429 beyond). Defaults: 256
	// MiB and 1 GiB.
	MaxBodyBytes, BodyBudget int64

	// ConnectTimeout bounds dialling an endpoint, and its TLS handshake. Default 2 s.
	ConnectTimeout time.Duration
	// FirstByteTimeout bounds the time from a request's last byte to the first body byte of its answer, over all
	// attempts; 504 beyond. Default 10 min, negative for none.
	FirstByteTimeout time.Duration
	// AttemptTimeout is how long one endpoint may keep a request without a body byte while another could take it.
	// Default: no limit, because a long prompt in a long queue is no fault; a frozen endpoint is found by its lack of
	// progress.
	AttemptTimeout time.Duration
	// IdleTimeout bounds the time between two body bytes in either direction. Default 5 min, negative for none.
	IdleTimeout time.Duration
	// RouteTimeouts bound whole requests by the name of the pool; none for pools that are missing or have 0.
	RouteTimeouts map[string]time.Duration
	// Sessions says where sessions are told, by the name of the pool; none for pools that are missing.
	Sessions map[string]SessionSource
	// MaxAttempts bounds how many endpoints a request is sent to. Default 5.
	MaxAttempts int

	// OpenPaths are paths opened to clients beside those of the OpenAI API, each matched whole.
	OpenPaths []string
	// TrustHeaders keeps gateway headers that clients send, for clients that are gateways themselves.
	TrustHeaders bool
	// HideEndpoint leaves out the answer's headers that name the endpoint and the reason for it.
	HideEndpoint bool

	// Record gets the decisions of the requests for which Sample says true, several at a time and while the request
	// waits; nil for none. Sample is asked once for each request, with its x-request-id; a record costs a copy of
	// everything the decision was made from.
	Record func(*route.Record)
	Sample func(id string) bool

	// Prompt is given prompts that were just sent and whose tokens their pool wants to know; nil for none. It must not
	// take long, and what comes of it concerns later requests only.
	Prompt func(Prompt)

	// Ended is told of each request at its end, once, by the goroutine that served it; nil for none. It must not take
	// long, and is not told of requests for the gateway's own health.
	Ended func(Ended)
}

// Ended is how a request ended.
type Ended struct {
	// ID is the x-request-id. Pool is empty where the request was refused before one was found, Endpoint where no
	// endpoint's answer was passed on. Model is what the client asked for, in its own words.
	ID, Pool, Model, Endpoint string
	// Status is what the client was told, 499 for one that left before it was.
	Status int
	// Whole says that an endpoint's answer was passed on to its end. Only then is the Status the whole story: a stream
	// that breaks has begun with 200.
	Whole bool
	// TTFT is the time to the first body byte of a streamed answer, 0 where there was none.
	TTFT, Duration time.Duration
	// PromptTokens, CachedTokens and OutputTokens are the engine's report; without one, OutputTokens is the number of
	// events with output and the others are 0.
	PromptTokens, CachedTokens, OutputTokens int
	// ExpectedTokens is how many prompt tokens the endpoint was expected to find in its cache, 0 without the engine's report.
	ExpectedTokens int
}

// Defaults of Options.
const (
	DefaultBodyBudget       = 1 << 30
	DefaultConnectTimeout   = 2 * time.Second
	DefaultFirstByteTimeout = 10 * time.Minute
	DefaultIdleTimeout      = 5 * time.Minute
	DefaultMaxAttempts      = 5
)

// settings is Options with defaults filled in, and what is derived from them. It never changes once made.
type settings struct {
	Options
	open   map[string]bool
	budget *openai.Budget
}

// Gateway is the front door. Make one with New; all methods may be called by any goroutine.
type Gateway struct {
	fleet      *fleet.Fleet
	now        func() time.Duration
	log        *slog.Logger
	metrics    *metrics
	settings   atomic.Pointer[settings]
	transports transports
	late       lateList
	said       throttle

	draining atomic.Bool
	cut      context.Context
	cutOff   context.CancelFunc

	scratches sync.Pool // *openai.Scratch
	readers   sync.Pool // *openai.UsageReader
	pieces    sync.Pool // *[]byte of pieceSize
	lines     sync.Pool // *[]byte of lineSize
}

// New makes a gateway to the fleet. now is the fleet's own clock: the one that its pools are told the time by. Metrics
// are registered with reg, which must not hold another Gateway's.
func New(f *fleet.Fleet, o Options, reg prometheus.Registerer, now func() time.Duration, log *slog.Logger) *Gateway {
	g := &Gateway{fleet: f, now: now, log: log}
	g.scratches.New = func() any { return new(openai.Scratch) }
	g.readers.New = func() any { return openai.NewUsageReader(false) }
	g.pieces.New = func() any { return newBuffer(pieceSize) }
	g.lines.New = func() any { return newBuffer(lineSize) }
	g.cut, g.cutOff = context.WithCancel(context.Background())
	g.Apply(o)
	g.metrics = newMetrics(reg, g)
	g.metrics.prune(f)
	return g
}

// Apply takes over new options; requests in flight go on under those they began with. Call it after fleet.Apply when
// both change: connections and metrics of pools that are gone are let go.
func (g *Gateway) Apply(o Options) {
	s := &settings{Options: o, open: make(map[string]bool)}
	for _, p := range o.OpenPaths {
		s.open[p] = true
	}
	setDefault(&s.MaxBodyBytes, openai.DefaultBodyLimit)
	setDefault(&s.BodyBudget, DefaultBodyBudget)
	setDefault(&s.ConnectTimeout, DefaultConnectTimeout)
	setDefault(&s.FirstByteTimeout, DefaultFirstByteTimeout)
	setDefault(&s.IdleTimeout, DefaultIdleTimeout)
	setDefault(&s.MaxAttempts, DefaultMaxAttempts)
	if old := g.settings.Load(); old != nil && old.BodyBudget == s.BodyBudget {
		s.budget = old.budget
	} else {
		s.budget = openai.NewBudget(s.BodyBudget)
	}
	g.settings.Store(s)
	used, pools := make(map[*tls.Config]bool), make(map[string]bool)
	for _, p := range g.fleet.Pools() {
		pools[p.Name()] = true
		for _, e := range p.Endpoints() {
			used[e.TLS] = true
		}
	}
	g.transports.prune(used, s.ConnectTimeout)
	g.said.prune(pools)
	if g.metrics != nil {
		g.metrics.prune(g.fleet)
	}
}

func setDefault[T int | int64 | time.Duration](field *T, value T) {
	if *field == 0 {
		*field = value
	}
}

// Drain makes /readyz say 503 from now on, so that load balancers send no more. Requests are served as before.
func (g *Gateway) Drain() { g.draining.Store(true) }

// Cut ends every request in flight, streams with an error event. It is for the end of a drain that took too long; there
// is no way back.
func (g *Gateway) Cut() { g.cutOff() }

// Close lets go of idle connections to endpoints.
func (g *Gateway) Close() { g.transports.closeIdle() }

// ServeHTTP serves one request.
func (g *Gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c := &call{g: g, w: w, r: r, set: g.settings.Load(), start: g.now(), unread: r.Body != nil && r.Body != http.NoBody}
	c.takeID()
	if g.local(c) {
		return
	}
	defer c.finish()
	c.serve()
	if c.broken {
		c.finish()
		panic(http.ErrAbortHandler) // the one way to tell a client that an answer under way is not whole
	}
}
