package extproc

import (
	"context"
	"log/slog"
	"net/http"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sluice-gateway/sluice/fleet"
	"github.com/sluice-gateway/sluice/front"
	"github.com/sluice-gateway/sluice/openai"
)

// Options is what a Picker goes by. The zero value of each field means its default.
type Options struct {
	front.Options

	// Patience is after how long Envoy is asked for more time for an answer that isn't ready; it has to be less than
	// Envoy's message_timeout. MaxWait is how much is asked for; it must not be more than Envoy's max_message_timeout.
	// Defaults: 2 s and 30 min.
	Patience, MaxWait time.Duration
	// SeeAnswers is the share of requests, 0 to 1, whose answers Envoy is asked to show, for first-token times and token
	// counts in the metrics. Each piece of an answer that is seen costs Envoy and the picker some 40 µs.
	SeeAnswers float64
	// SelectOnly names the model and its base model in headers and picks no endpoint: what is behind does.
	SelectOnly bool
}

// Defaults of Options.
const (
	DefaultPatience = 2 * time.Second
	DefaultMaxWait  = front.DefaultQueueTimeout
)

// Picker is the service. Make one with New; all methods may be called by any goroutine.
type Picker struct {
	fleet    *fleet.Fleet
	desk     *front.Desk
	now      func() time.Duration
	log      *slog.Logger
	settings atomic.Pointer[Options]
	metrics  *metrics
	late     front.Waits[*stream] // for an answer that isn't ready
	stuck    front.Waits[*stream] // for their endpoints' answers
	readers  sync.Pool            // *openai.UsageReader

	draining atomic.Bool
	running  atomic.Int64 // streams whose request has begun
	// warned is when it was last said that Envoy has no route; 0 for never.
	warned atomic.Int64
}

// New makes a picker for the fleet. now is the fleet's own clock: the one that its pools are told the time by. Metrics
// are registered with reg, which must not hold another front door's.
func New(f *fleet.Fleet, o Options, reg prometheus.Registerer, now func() time.Duration, log *slog.Logger) *Picker {
	p := &Picker{fleet: f, desk: front.New(f, o.Options, reg, now, log), now: now, log: log, metrics: newMetrics(reg)}
	p.late.Look, p.stuck.Look = (*stream).late, (*stream).stuck
	p.readers.New = func() any { return openai.NewUsageReader(false) }
	p.take(o)
	return p
}

// Apply takes over new options; requests in flight go on under those they began with. Call it after fleet.Apply when
// both change.
func (p *Picker) Apply(o Options) {
	p.desk.Apply(o.Options)
	p.take(o)
}

func (p *Picker) take(o Options) {
	if o.Patience <= 0 {
		o.Patience = DefaultPatience
	}
	if o.MaxWait <= 0 {
		o.MaxWait = DefaultMaxWait
	}
	p.settings.Store(&o)
}

// Drain makes the health service and /readyz say that no more requests are welcome. Those that come are served.
func (p *Picker) Drain() { p.draining.Store(true) }

// Running is how many requests it has begun with and not ended.
func (p *Picker) Running() int { return int(p.running.Load()) }

// readiness says whether requests are welcome, and as JSON why. Naming a model needs no endpoint.
func (p *Picker) readiness() ([]byte, bool) {
	draining := p.draining.Load()
	body, ok := p.desk.Readiness(draining)
	return body, ok || !draining && p.settings.Load().SelectOnly
}

// serviceName is the service's, as Envoy calls it.
const serviceName = "envoy.service.ext_proc.v3.ExternalProcessor"

// desc describes the service without the generated types.
func (p *Picker) desc() *grpc.ServiceDesc {
	return &grpc.ServiceDesc{ServiceName: serviceName, Metadata: "envoy/service/ext_proc/v3/external_processor.proto",
		Streams: []grpc.StreamDesc{{StreamName: "Process", ServerStreams: true, ClientStreams: true,
			Handler: func(_ any, g grpc.ServerStream) error { return p.process(g) }}}}
}

// process follows one request from its headers to its end.
func (p *Picker) process(g grpc.ServerStream) (err error) {
	s := &stream{p: p, grpc: g, set: p.settings.Load()}
	p.metrics.open.Inc()
	defer p.metrics.open.Dec() // last: what is open is still counted
	defer func() {
		if r := recover(); r != nil {
			p.log.LogAttrs(context.Background(), slog.LevelError, "a request has met a fault of the gateway's own",
				slog.String(front.WireRequestID, s.req.ID), slog.String("stack", string(debug.Stack())))
			s.req.Ended.Status = http.StatusInternalServerError
			err = status.Error(codes.Internal, "the picker has met a fault of its own")
		}
		s.end()
	}()
	for begun := false; ; {
		if err := g.RecvMsg(&s.in); err != nil {
			return err // the request has ended, however it did
		}
		if !begun {
			begun = true
			p.running.Add(1)
			defer p.running.Add(-1)
		}
		on, err := s.take()
		s.in.free()
		if err != nil || !on {
			return err
		}
	}
}
