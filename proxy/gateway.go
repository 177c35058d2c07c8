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
// It refuses to change the bytes of an answer, or of a request but for its model where a rule gives it another, to follow
// redirects, and to send anything to an address that is not an endpoint of a pool, whatever a header says. Listening, TLS and
// tokens are its caller's.
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
	"github.com/sluice-gateway/sluice/front"
	"github.com/sluice-gateway/sluice/openai"
)

// Options is what a Gateway goes by. The zero value of each field means its default.
type Options struct {
	front.Options

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
	// MaxAttempts bounds how many endpoints a request is sent to. Default 5.
	MaxAttempts int
}

// Defaults of Options.
const (
	DefaultConnectTimeout   = front.DefaultConnectTimeout
	DefaultFirstByteTimeout = 10 * time.Minute
	DefaultIdleTimeout      = 5 * time.Minute
	DefaultMaxAttempts      = front.DefaultMaxAttempts
)

// Gateway is the front door. Make one with New; all methods may be called by any goroutine.
type Gateway struct {
	fleet      *fleet.Fleet
	desk       *front.Desk
	now        func() time.Duration
	settings   atomic.Pointer[Options]
	transports transports
	late       front.Waits[waiter]

	draining atomic.Bool
	cut      context.Context
	cutOff   context.CancelFunc

	readers sync.Pool // *openai.UsageReader
	pieces  sync.Pool // *[]byte of pieceSize
	lines   sync.Pool // *[]byte of lineSize
}

// New makes a gateway to the fleet. now is the fleet's own clock: the one that its pools are told the time by. Metrics
// are registered with reg, which must not hold another Gateway's.
func New(f *fleet.Fleet, o Options, reg prometheus.Registerer, now func() time.Duration, log *slog.Logger) *Gateway {
	g := &Gateway{fleet: f, desk: front.New(f, o.Options, reg, now, log), now: now}
	g.late.Look = func(w waiter) bool { w.late(); return false }
	g.readers.New = func() any { return openai.NewUsageReader(false) }
	g.pieces.New = func() any { return newBuffer(pieceSize) }
	g.lines.New = func() any { return newBuffer(lineSize) }
	g.cut, g.cutOff = context.WithCancel(context.Background())
	g.take(o)
	return g
}

// Apply takes over new options; requests in flight go on under those they began with. Call it after fleet.Apply when
// both change: connections and metrics of pools that are gone are let go.
func (g *Gateway) Apply(o Options) {
	g.desk.Apply(o.Options)
	g.take(o)
}

// take takes over what concerns this door alone.
func (g *Gateway) take(o Options) {
	setDefault(&o.ConnectTimeout, DefaultConnectTimeout)
	setDefault(&o.FirstByteTimeout, DefaultFirstByteTimeout)
	setDefault(&o.IdleTimeout, DefaultIdleTimeout)
	setDefault(&o.MaxAttempts, DefaultMaxAttempts)
	g.settings.Store(&o)
	used := make(map[*tls.Config]bool)
	for _, p := range g.fleet.Pools() {
		for _, e := range p.Endpoints() {
			used[e.TLS] = true
		}
	}
	g.transports.prune(used, o.ConnectTimeout)
}

func setDefault[T int | time.Duration](field *T, value T) {
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
	c := &call{g: g, w: w, r: r, set: g.settings.Load(), unread: r.Body != nil && r.Body != http.NoBody}
	g.desk.Begin(&c.req, r.Method, r.URL.Path, r.Header)
	c.req.Secure = r.TLS != nil
	w.Header()[front.HeaderRequestID] = []string{c.req.ID}
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
