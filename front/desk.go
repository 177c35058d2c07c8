// Package front is what the front doors have in common: what they make of a request before it goes anywhere, and what
// they count of it until its end.
//
// A door brings a request's method, path, headers and body, however it came by them; a Desk tells whether the path is
// open, which pool serves it and at which endpoint, what is told to the engine beside what the client sent, and what
// the client is told where nothing can be done. How bytes travel, how often and where to they are sent again is the
// doors' own.
//
// It promises that a request is admitted, read, routed, counted and reported in the same way whichever door it came
// through.
package front

import (
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-gateway/sluice/fleet"
	"github.com/sluice-gateway/sluice/openai"
	"github.com/sluice-gateway/sluice/route"
)

// Options is what a Desk goes by. The zero value of each field means its default.
type Options struct {
	// SelectModel chooses the pool by the model in the body. Without it everything goes to the fleet's first pool and
	// unknown models are the engine's to refuse.
	SelectModel bool
	// MaxBodyBytes bounds one request body (413 beyond), BodyBudget all of them together (429 beyond). Defaults: 256
	// MiB and 1 GiB.
	MaxBodyBytes, BodyBudget int64

	// RouteTimeouts bound whole requests by the name of the pool; none for pools that are missing or have 0. The doors
	// keep them.
	RouteTimeouts map[string]time.Duration
	// Sessions says where sessions are told, by the name of the pool; none for pools that are missing.
	Sessions map[string]SessionSource

	// Rewrites are the rules by which requests go on under the name of another model, those that come first before
	// those that follow.
	Rewrites []Rewrite

	// Objectives are the priorities that requests may name, of one name and pool the last.
	Objectives []Objective

	// OpenPaths are paths opened to clients beside those of the OpenAI API, each matched whole.
	OpenPaths []string
	// TrustHeaders keeps gateway headers that clients send, for clients that are gateways themselves.
	TrustHeaders bool
	// HideEndpoint leaves out the answer's headers that name the endpoint and the reason for it.
	HideEndpoint bool

	// InCluster says that endpoints are a Kubernetes cluster's pods, so that `kubectl sluice` tells of them.
	InCluster bool

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
	// ExpectedTokens is how many prompt tokens the endpoint was expected to find in its cache, 0 without the engine's
	// report.
	ExpectedTokens int
}

// What the doors bound alike where nobody says otherwise: connecting to an endpoint, how many endpoints a request is sent
// to, and how long it may wait in a queue behind Envoy.
const (
	DefaultConnectTimeout = 2 * time.Second
	DefaultMaxAttempts    = 5
	DefaultQueueTimeout   = 30 * time.Minute
)

// DefaultBodyBudget is the BodyBudget where Options has none, in bytes.
const DefaultBodyBudget = 1 << 30

// settings is Options with defaults filled in, and what is derived from them. It never changes once made.
type settings struct {
	Options
	open       map[string]bool
	budget     *openai.Budget
	rewrites   rewrites
	objectives map[poolObjective]int64
}

// Desk is where the requests of one or more doors are taken in. Make one with New; all methods may be called by any
// goroutine.
type Desk struct {
	fleet     *fleet.Fleet
	now       func() time.Duration
	log       *slog.Logger
	metrics   *metrics
	settings  atomic.Pointer[settings]
	said      throttle
	scratches sync.Pool // *openai.Scratch
}

// New makes a desk for the fleet. now is the fleet's own clock: the one that its pools are told the time by. Metrics
// are registered with reg, which must not hold another Desk's.
func New(f *fleet.Fleet, o Options, reg prometheus.Registerer, now func() time.Duration, log *slog.Logger) *Desk {
	d := &Desk{fleet: f, now: now, log: log}
	d.scratches.New = func() any { return new(openai.Scratch) }
	d.Apply(o)
	d.metrics = newMetrics(reg, d)
	d.metrics.prune(f)
	return d
}

// Apply takes over new options; requests in flight go on under those they began with. Call it after fleet.Apply when
// both change: metrics of pools that are gone are let go.
func (d *Desk) Apply(o Options) {
	s := &settings{Options: o, open: make(map[string]bool), rewrites: newRewrites(o.Rewrites), objectives: objectivesOf(o.Objectives)}
	for _, p := range o.OpenPaths {
		s.open[p] = true
	}
	if s.MaxBodyBytes == 0 {
		s.MaxBodyBytes = openai.DefaultBodyLimit
	}
	if s.BodyBudget == 0 {
		s.BodyBudget = DefaultBodyBudget
	}
	if old := d.settings.Load(); old != nil && old.BodyBudget == s.BodyBudget {
		s.budget = old.budget
	} else {
		s.budget = openai.NewBudget(s.BodyBudget)
	}
	d.settings.Store(s)
	pools := make(map[string]bool)
	for _, p := range d.fleet.Pools() {
		pools[p.Name()] = true
	}
	d.said.prune(pools)
	if d.metrics != nil {
		d.metrics.prune(d.fleet)
	}
}
