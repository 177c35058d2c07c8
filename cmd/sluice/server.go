package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/spf13/pflag"

	"github.com/sluice-gateway/sluice/config"
	"github.com/sluice-gateway/sluice/console"
	"github.com/sluice-gateway/sluice/fleet"
	"github.com/sluice-gateway/sluice/front"
	"github.com/sluice-gateway/sluice/kube"
	"github.com/sluice-gateway/sluice/openai"
	"github.com/sluice-gateway/sluice/peer"
	"github.com/sluice-gateway/sluice/scrape"
)

// gatewayOptions are the flags of a gateway, whichever way requests come to it. Their defaults stand in gatewayFlags alone.
type gatewayOptions struct {
	source
	listen, admin  string
	profile        string
	sessionHeader  string
	sessionCookie  string
	scrapeInterval time.Duration
	staleAfter     time.Duration
	stallAfter     time.Duration
	resolveEvery   time.Duration
	reloadEvery    time.Duration
	drainDelay     time.Duration
	drainTimeout   time.Duration
	pods           podOptions
	peer           peerOptions
	front          front.Options
	maxBody        int64
	reveal         bool
	record         string
	recordShare    float64
	logLevel       string
	logFormat      string
	// behind says that Envoy meets the clients, certified that it has a certificate for them.
	behind, certified bool
	// askers are who connects to listen; empty means clients.
	askers string
}

// gatewayFlags adds the flags of a gateway with their defaults.
func gatewayFlags(f *pflag.FlagSet, o *gatewayOptions) {
	f.StringArrayVar(&o.endpoints, "endpoint", nil, "model servers of a model, as `MODEL=HOST:PORT,…` (repeatable; port 8000 if none is given; https://HOST:PORT for TLS)")
	f.StringVarP(&o.file, "file", "f", "", "configuration `FILE`: an InferenceGatewayConfig, Endpoints and what else docs/reference.md lists")
	o.addEventFlags(f)
	f.StringVar(&o.admin, "admin", "127.0.0.1:8081", "`ADDR` for /console, /metrics, /explain, /fleet and /debug/pprof; keep it on loopback")
	f.StringVar(&o.profile, "profile", "", "decide by `NAME` in every pool: latency, weights or round-robin (default: weights where the configuration gives weights, else latency)")
	f.DurationVar(&o.scrapeInterval, "scrape-interval", 200*time.Millisecond, "time between two readings of an endpoint")
	f.DurationVar(&o.staleAfter, "stale-after", fleet.DefaultStaleAfter, "age at which a reading is too old to route by")
	f.DurationVar(&o.stallAfter, "stall-after", fleet.DefaultStallAfter, "how long an endpoint with requests in flight may show no progress")
	f.DurationVar(&o.resolveEvery, "resolve-interval", 10*time.Second, "time between two look-ups of endpoint names")
	f.DurationVar(&o.reloadEvery, "reload-interval", time.Second, "time between two looks at the configuration file")
	f.DurationVar(&o.drainDelay, "drain-delay", 0, "how long to go on taking requests after SIGTERM, while /readyz already says 503 to load balancers")
	f.DurationVar(&o.drainTimeout, "drain-timeout", 5*time.Minute, "how long running requests may go on after SIGTERM")
	f.StringVar(&o.record, "record", "", "append decisions to `FILE`, one JSON object a line, for explain and replay")
	f.Float64Var(&o.recordShare, "record-share", 1, "share of decisions to record, 0 to 1")
	f.StringVar(&o.logLevel, "log-level", "info", "debug, info, warn or error")
	f.StringVar(&o.logFormat, "log-format", "text", "text or json")
	f.Int64Var(&o.front.BodyBudget, "body-memory", front.DefaultBodyBudget, "`BYTES` that all request bodies together may take")
	f.Int64Var(&o.maxBody, "max-body-bytes", 0, "`BYTES` of one request body at most (default: the configuration's, 256 MiB)")
	f.StringArrayVar(&o.front.OpenPaths, "open-path", nil, "`PATH` to open to clients beside the inference paths, such as /v1/load_lora_adapter (repeatable)")
	f.StringVar(&o.sessionHeader, "session-header", "", "request header `NAME` with the id of the client's session, which stays at its endpoint while that is worth it (default: none; a GatewayPolicy's wins)")
	f.StringVar(&o.sessionCookie, "session-cookie", "", "cookie `NAME` with the id of the client's session, set where a request has neither it nor the header of --session-header")
	f.BoolVar(&o.front.TrustHeaders, "trust-client-headers", false, "keep gateway headers that clients send: clients are gateways themselves")
	f.BoolVar(&o.reveal, "reveal-endpoint", true, "name the endpoint and the reason for it in answers' headers")
	podFlags(f, &o.pods)
	peerFlags(f, &o.peer)
}

// door is the way that requests come in; everything else is the same whichever it is.
type door interface {
	// check reports why a changed plan can't be taken over.
	check(p *plan) error
	// apply takes over a plan. The fleet has it already.
	apply(p *plan)
	// renew is apply for a plan of the same documents, with other pods.
	renew(p *plan)
	// run takes requests from the listener until ctx ends, then drains.
	run(ctx context.Context, l net.Listener) error
}

// server is one running gateway.
type server struct {
	o        *gatewayOptions
	log      *slog.Logger
	start    time.Time
	fleet    *fleet.Fleet
	door     door
	resolver fleet.Resolver
	tls      tlsCache
	recorder *recorder
	series   *console.Series
	// sides are what the console page shows: this gateway, unless someone adds others.
	sides []console.Side
	// alsoEnded is called with each request that has ended, nil for nobody.
	alsoEnded func(front.Ended)
	registry  *prometheus.Registry
	scraper   *scrape.Scraper
	// peers are the other replicas, nil without --peers, hearing their listener.
	peers   *peer.Peers
	hearing net.Listener
	// public is for clients, private for operators; nil until listen.
	public, private net.Listener

	// cluster tells of pods and documents, nil without --pods. known: the fleet has the pods that there are.
	cluster *kube.Reader
	known   atomic.Bool
	// draining is set once no more requests are welcome.
	draining atomic.Bool

	// memory is nil for a gateway that leaves the process alone.
	memory *memory
	plan   *plan
	// text is the configuration file as it was last loaded, seen as it was last looked at.
	text, seen []byte
	// faults are the names that could not be resolved last time, rejected why the last changed file was not used: only changes are
	// logged.
	faults   map[string]error
	rejected string
	reloads  *reloads
	states   map[string]endpointState
}

// newServer makes a gateway that knows its fleet and listens nowhere yet. start is the origin of its clock.
// open makes its door, for a plan that is applied next.
func newServer(ctx context.Context, o *gatewayOptions, log *slog.Logger, start time.Time, open func(*server, *plan) door) (*server, error) {
	s := &server{o: o, log: log, start: start, fleet: new(fleet.Fleet), tls: make(tlsCache), registry: prometheus.NewRegistry(), series: console.NewSeries()}
	if err := s.newCluster(); err != nil {
		return nil, err
	}
	first, text, err := s.load()
	if err != nil {
		return nil, err
	}
	s.reloads = newReloads(s.registry)
	s.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		newFleetCollector(s.fleet, s.now))
	if s.scraper, err = scrape.New(s.fleet, s.scrapeOptions(s.registry)); err != nil {
		return nil, err
	}
	if s.recorder, err = newRecorder(o.record, o.recordShare, log); err != nil {
		return nil, err
	}
	if err := s.newPeers(); err != nil {
		return nil, err
	}
	s.door = open(s, first)
	s.apply(ctx, first, text)
	s.sides = []console.Side{s.side("")}
	return s, nil
}

// side is what the console shows of this gateway, under a name if there are several.
func (s *server) side(name string) console.Side {
	return console.Side{Name: name, Fleet: s.fleet, Series: s.series, Records: s.recorder.last, Events: s.events, Peers: s.peersNow}
}

// listen opens both listeners.
func (s *server) listen() (err error) {
	if s.public, err = net.Listen("tcp", s.o.listen); err != nil {
		return fmt.Errorf("cannot listen for %s (choose another address with --listen): %w", cmp.Or(s.o.askers, "clients"), err)
	}
	if s.private, err = net.Listen("tcp", s.o.admin); err != nil {
		return errors.Join(fmt.Errorf("cannot listen for metrics (choose another address with --admin): %w", err), s.public.Close())
	}
	if err := s.listenPeers(); err != nil {
		return errors.Join(err, s.public.Close(), s.private.Close())
	}
	if !s.private.Addr().(*net.TCPAddr).IP.IsLoopback() {
		s.log.Warn("the admin address is reachable from other machines; it shows the fleet and profiles without asking who wants to know",
			"address", s.private.Addr().String())
	}
	return nil
}

// run serves on all listeners until ctx ends, then drains.
func (s *server) run(ctx context.Context) error {
	work, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	context.AfterFunc(ctx, func() { s.draining.Store(true) })
	if s.cluster != nil {
		go s.cluster.Run(work)
	}
	go s.watch(work)
	go func() {
		if err := s.scraper.Run(work); err != nil && work.Err() == nil {
			s.log.Error("scraping ended", "error", err)
		}
	}()
	if s.peers != nil {
		talking, stopTalking := context.WithCancel(work)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			if err := s.peers.Run(talking, s.hearing); err != nil {
				s.log.Error("peers are not heard any more", "error", err)
			}
		}()
		defer func() { stopTalking(); <-ended }() // once the last request has ended, which they are told
	}
	admin := &http.Server{Handler: s.adminHandler(), ReadHeaderTimeout: 10 * time.Second}
	closed, ended := make(chan error, 1), make(chan error, 1)
	go func() { closed <- admin.Serve(s.private) }()
	go func() { ended <- s.door.run(ctx, s.public) }()
	select {
	case err := <-closed:
		return fmt.Errorf("cannot go on serving: %w", err)
	case err := <-ended:
		return errors.Join(err, admin.Close())
	}
}

// linger lets load balancers see that the gateway is draining before it stops taking requests, unless ended says that
// it has.
func (s *server) linger(ended <-chan error) error {
	if s.o.drainDelay > 0 {
		s.log.Info("draining: /readyz says 503, requests are still taken", "for", s.o.drainDelay)
		select {
		case err := <-ended:
			return fmt.Errorf("cannot go on serving: %w", err)
		case <-time.After(s.o.drainDelay):
		}
	}
	s.log.Info("draining: no new connections, running requests may end", "limit", s.o.drainTimeout)
	return nil
}

// now is the process's monotonic clock, which every time in the fleet is on.
func (s *server) now() time.Duration { return time.Since(s.start) }

func (s *server) scrapeOptions(registry *prometheus.Registry) scrape.Options {
	return scrape.Options{Interval: s.o.scrapeInterval, Now: s.now, Log: s.log, Registerer: registry}
}

// frontOptions are the flags, with what the configuration says.
func (s *server) frontOptions(p *plan) front.Options {
	o := s.o.front
	o.SelectModel = p.config.SelectModel
	o.MaxBodyBytes = p.config.MaxBodyBytes
	if s.o.maxBody > 0 {
		o.MaxBodyBytes = min(s.o.maxBody, o.MaxBodyBytes)
	}
	o.HideEndpoint = !s.o.reveal
	o.InCluster = s.cluster != nil
	o.RouteTimeouts = p.timeouts
	o.Sessions = p.sessions
	o.Rewrites = p.rewrites
	o.Objectives = p.objectives
	o.Sample = func(id string) bool { return s.recorder.wants(id, time.Now()) }
	o.Record = s.recorder.add
	o.Ended = s.ended
	o.Prompt = s.prompt
	return o
}

// ended counts a request for the console. A request that its client got wrong says nothing of the fleet.
func (s *server) ended(e front.Ended) {
	s.memory.ended()
	if s.alsoEnded != nil {
		s.alsoEnded(e)
	}
	const clientGone = 499
	if e.Pool == "" || e.Status >= 400 && e.Status < 500 && e.Status != http.StatusTooManyRequests && e.Status != clientGone {
		return
	}
	s.series.Add(s.now(), console.Sample{ID: e.ID, Endpoint: e.Endpoint, TTFT: e.TTFT, Tokens: e.OutputTokens, Prompt: e.PromptTokens,
		Cached: e.CachedTokens, Expected: e.ExpectedTokens, OK: e.Whole && e.Status < 400})
}

// prompt has the tokens of a prompt found out, so that KV events tell who holds it.
func (s *server) prompt(p front.Prompt) {
	s.scraper.LearnTokens(&scrape.Prompt{Pool: p.Pool, Endpoint: p.Endpoint, Adapter: p.Adapter, Blocks: p.Blocks, Body: p.Body,
		Texts: func(body []byte, blocks int) (scrape.Texts, bool) {
			t, ok := openai.TextsOf(body, blocks)
			return scrape.Texts(t), ok
		}})
}

// load reads, validates and prepares the configuration. Nothing is applied.
func (s *server) load() (*plan, []byte, error) {
	if s.cluster == nil {
		c, text, err := s.o.parse()
		if err != nil {
			return nil, text, err
		}
		p, err := s.ready(c)
		return p, text, err
	}
	text, _, err := s.documents()
	if err != nil {
		return nil, nil, fmt.Errorf("cannot read configuration: %w", err)
	}
	docs, err := config.Read(text, s.o.file)
	if err != nil {
		return nil, text, err
	}
	pods := s.cluster.Pods()
	p, err := s.ready(docs.With(pods))
	if err != nil {
		return nil, text, err
	}
	p.docs, p.podsKnown = docs, pods.List != nil
	return p, text, nil
}

// ready prepares a configuration that may be served.
func (s *server) ready(c *config.Config) (*plan, error) {
	if s.o.behind {
		c = c.BehindEnvoy(s.o.certified)
	}
	if err := c.Refusal(); err != nil {
		return nil, err
	}
	return prepare(c, s.o, s.tls)
}

// apply makes a plan the running one.
func (s *server) apply(ctx context.Context, p *plan, text []byte) {
	s.notices(p)
	s.plan, s.text, s.rejected = p, text, ""
	pools := slices.Clone(p.pools)
	for i, endpoints := range s.resolve(ctx, p) {
		pools[i].Endpoints = endpoints
	}
	s.fleet.Apply(pools, p.fallback)
	s.door.apply(p)
	if p.podsKnown {
		s.known.Store(true)
	}
}

// notices logs what a plan's configuration does not mean, or probably not, and that of the running plan didn't.
func (s *server) notices(p *plan) {
	var old config.Config
	if s.plan != nil {
		old = *s.plan.config
	}
	for _, n := range p.config.NotHonoured {
		if !slices.Contains(old.NotHonoured, n) {
			s.log.Warn("not honoured", "what", n.String())
		}
	}
	for _, n := range p.config.Warnings {
		if !slices.Contains(old.Warnings, n) {
			s.log.Warn("probably not meant", "what", n.String())
		}
	}
}

// resolveLimit bounds one round of look-ups, so that a dead name server holds up nothing else for long.
const resolveLimit = 5 * time.Second

// resolve looks all names of a plan up, pool by pool, and logs the names that cannot be any longer, and those that can be again.
func (s *server) resolve(ctx context.Context, p *plan) [][]fleet.Endpoint {
	ctx, cancel := context.WithTimeout(ctx, resolveLimit)
	defer cancel()
	found, faults := make([][]fleet.Endpoint, len(p.pools)), make(map[string]error)
	for i, pool := range p.pools {
		var failed map[string]error
		found[i], failed = s.resolver.Resolve(ctx, pool.Endpoints)
		maps.Copy(faults, failed)
	}
	for host, err := range faults {
		if s.faults[host] == nil {
			s.log.Warn("endpoint left out, or kept at its last addresses", "endpoint", host, "error", err)
		}
	}
	for host := range s.faults {
		if faults[host] == nil {
			s.log.Info("endpoint can be resolved again, or is gone", "endpoint", host)
		}
	}
	s.faults = faults
	return found
}

// watch takes over changed files and changed addresses until ctx ends.
func (s *server) watch(ctx context.Context) {
	reload, resolve, look := time.NewTicker(s.o.reloadEvery), time.NewTicker(s.o.resolveEvery), time.NewTicker(stateEvery)
	defer reload.Stop()
	defer look.Stop()
	defer resolve.Stop()
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP)
	defer signal.Stop(hangup)
	news := s.news()
	for {
		select {
		case <-ctx.Done():
			return
		case <-hangup:
			s.reload(ctx, true)
		case <-news:
			s.take(ctx)
		case <-reload.C:
			s.reload(ctx, false)
		case <-look.C:
			s.logStates()
			s.memory.look()
		case <-resolve.C:
			found := s.resolve(ctx, s.plan)
			for i, p := range s.fleet.Pools() {
				p.SetEndpoints(found[i])
			}
		}
	}
}

// reload takes over the file if it has changed; a faulty one changes nothing and is reported once. Unless it is wanted now, a changed file is left alone until
// it has looked the same twice.
func (s *server) reload(ctx context.Context, now bool) {
	if s.o.file == "" {
		return
	}
	text, whole, err := s.documents()
	// A file that was refused is read again each time: what it lacked, such as a key file, may be there now.
	if err == nil && string(text) == string(s.text) && s.rejected == "" && !s.plan.outdated() {
		return
	}
	if err != nil {
		s.complain(err)
		return
	}
	if seen := s.seen; !now && !whole && string(text) != string(seen) {
		s.seen = text // it may be half written: it has to look the same twice
		return
	}
	p, text, err := s.load()
	if err == nil {
		err = s.door.check(p)
	}
	if err != nil {
		s.text = text
		s.complain(err)
		return
	}
	s.apply(ctx, p, text)
	s.reloads.succeeded()
	s.log.Info("configuration taken over", "file", s.o.file, "pools", len(p.pools))
}

// complain logs why the running configuration stays, once until it changes.
func (s *server) complain(err error) {
	if text := err.Error(); text != s.rejected {
		s.rejected = text
		s.reloads.failed()
		s.log.Error("the changed configuration is not used, the running one stays", "file", s.o.file)
		for line := range strings.Lines(text) {
			s.log.Error("configuration fault", "fault", strings.TrimSpace(line))
		}
	}
}

// check reports every flag that cannot be used, all at once.
func (o *gatewayOptions) check() error {
	var faults []error
	for _, d := range []struct {
		flag  string
		value time.Duration
	}{{"scrape-interval", o.scrapeInterval}, {"stale-after", o.staleAfter}, {"stall-after", o.stallAfter}, {"resolve-interval", o.resolveEvery},
		{"reload-interval", o.reloadEvery}, {"drain-timeout", o.drainTimeout}} {
		if d.value <= 0 {
			faults = append(faults, fmt.Errorf("cannot use --%s %s: it must be more than 0", d.flag, d.value))
		}
	}
	if o.drainDelay < 0 {
		faults = append(faults, fmt.Errorf("cannot use --drain-delay %s: it must not be negative", o.drainDelay))
	}
	if !(o.recordShare >= 0 && o.recordShare <= 1) {
		faults = append(faults, fmt.Errorf("cannot use --record-share %v: it is a share, 0 to 1", o.recordShare))
	}
	for _, n := range []struct{ flag, name string }{{"session-header", o.sessionHeader}, {"session-cookie", o.sessionCookie}} {
		if err := config.CheckSessionName(n.name); n.name != "" && err != nil {
			faults = append(faults, fmt.Errorf("cannot use --%s %q: it %w", n.flag, n.name, err))
		}
	}
	if o.front.BodyBudget < 1 || o.maxBody < 0 {
		faults = append(faults, errors.New("cannot use --body-memory or --max-body-bytes: numbers of bytes are positive"))
	}
	faults = append(faults, o.pods.check(o.file), o.peer.check())
	if errors.Join(faults...) == nil {
		faults = append(faults, scrape.CheckIntervals(o.scrapeInterval, o.staleAfter))
	}
	return errors.Join(faults...)
}

func newLogger(w io.Writer, level, format string) (*slog.Logger, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, fmt.Errorf("cannot use --log-level %q: use debug, info, warn or error", level)
	}
	switch format {
	case "text":
		return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: l})), nil
	case "json":
		return slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: l})), nil
	}
	return nil, fmt.Errorf("cannot use --log-format %q: use text or json", format)
}
