package front

import (
	"maps"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-gateway/sluice/fleet"
	"github.com/sluice-gateway/sluice/openai"
)

// metrics is what a front door counts. Every label's values come from the configuration, from what engines list or
// from a table in the code, never from a request.
type metrics struct {
	requests  *prometheus.CounterVec
	duration  *prometheus.HistogramVec
	first     *prometheus.HistogramVec
	decision  *prometheus.HistogramVec
	tokens    *tokens
	moves     *prometheus.CounterVec
	aborts    *prometheus.CounterVec
	broken    *prometheus.CounterVec
	inFlight  *prometheus.GaugeVec
	decisions *decisions

	mu    sync.Mutex
	pools map[string]*poolSeries // those that have series
}

// poolSeries is what is known of a pool that has series. They stay while it has requests in flight, because those would
// bring them back one by one.
type poolSeries struct {
	flying int
	gone   bool // no longer in the fleet
}

// The labels.
const (
	labelPool      = "pool"
	labelOperation = "operation"
	labelCode      = "code"
	labelModel     = "model"
	labelReason    = "reason"
	labelEndpoint  = "endpoint"
)

func newMetrics(reg prometheus.Registerer, d *Desk) *metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "sluice_" + name, Help: help}, labels)
	}
	histogram := func(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "sluice_" + name, Help: help, Buckets: buckets}, labels)
	}
	m := &metrics{
		requests: counter("requests_total", "Requests answered, by pool, operation and status code; 499 is a client that left first.",
			labelPool, labelOperation, labelCode),
		duration: histogram("request_duration_seconds", "Time from a request's headers to the end of its answer.", longBuckets(), labelPool, labelOperation),
		first: histogram("time_to_first_token_seconds", "Time from a streamed request's headers to the first body byte of its answer.",
			longBuckets(), labelPool, labelOperation),
		decision: histogram("decision_seconds", "Time to read a request's fields, hash its prompt and pick an endpoint.",
			prometheus.ExponentialBuckets(10e-6, 2.5, 10), labelPool),
		tokens: &tokens{desk: d, seen: make(map[tokenLabels]bool),
			prompt: counter("prompt_tokens_total", "Prompt tokens that engines reported, cached ones included.", labelPool, labelModel),
			cached: counter("cached_prompt_tokens_total", "Prompt tokens that engines reported as taken from cache.", labelPool, labelModel),
			expected: counter("expected_cached_prompt_tokens_total", "Prompt tokens that were expected to be taken from cache where the requests went of which engines reported tokens.",
				labelPool, labelModel),
			output: counter("output_tokens_total", "Output tokens that engines reported.", labelPool, labelModel)},
		moves:     counter("moves_total", "Requests taken from one endpoint to another before the first body byte, by reason.", labelPool, labelReason),
		aborts:    counter("client_aborts_total", "Requests whose client left before the end of the answer.", labelPool, labelOperation),
		broken:    counter("broken_answers_total", "Answers that ended early after their first body byte, by reason.", labelPool, labelReason),
		inFlight:  prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "sluice_in_flight", Help: "Requests being served, from decision to end."}, []string{labelPool}),
		decisions: &decisions{fleet: d.fleet, counts: make(map[seat]*atomic.Uint64)},
		pools:     make(map[string]*poolSeries),
	}
	bodies := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "sluice_request_body_bytes", Help: "Memory held for request bodies."},
		func() float64 { return float64(d.settings.Load().budget.Used()) })
	reg.MustRegister(m.requests, m.duration, m.first, m.decision, m.tokens, m.moves, m.aborts, m.broken,
		m.inFlight, m.decisions, bodies)
	return m
}

// longBuckets reach from a cached answer of a small model to an hour, since requests of twenty minutes are no
// exception.
func longBuckets() []float64 {
	return []float64{.01, .025, .05, .1, .25, .5, 1, 2, 4, 8, 15, 30, 60, 120, 300, 600, 1200, 2400, 3600}
}

// prune deletes the series of pools that the fleet no longer holds, and touches those of its own so that they begin at
// 0.
func (m *metrics) prune(f *fleet.Fleet) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, p := range m.pools {
		p.gone = true
	}
	for _, p := range f.Pools() {
		m.series(p.Name()).gone = false
		m.inFlight.WithLabelValues(p.Name())
	}
	for pool := range m.pools {
		m.forget(pool)
	}
}

func (m *metrics) series(pool string) *poolSeries {
	p := m.pools[pool]
	if p == nil {
		p = new(poolSeries)
		m.pools[pool] = p
	}
	return p
}

// forget deletes the series of a pool that is gone and has nothing in flight.
func (m *metrics) forget(pool string) {
	if p := m.pools[pool]; !p.gone || p.flying > 0 {
		return
	}
	delete(m.pools, pool)
	match := prometheus.Labels{labelPool: pool}
	for _, v := range []*prometheus.CounterVec{m.requests, m.moves, m.aborts, m.broken} {
		v.DeletePartialMatch(match)
	}
	for _, v := range []*prometheus.HistogramVec{m.duration, m.first, m.decision} {
		v.DeletePartialMatch(match)
	}
	m.inFlight.DeletePartialMatch(match)
}

// enter counts a request in flight; nothing may be counted under the pool's name before it.
func (m *metrics) enter(pool string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.series(pool)
	p.flying++
	m.inFlight.WithLabelValues(pool).Set(float64(p.flying))
}

// leave is the counterpart of enter; nothing may be counted under the pool's name after it.
func (m *metrics) leave(pool string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.series(pool)
	p.flying--
	m.inFlight.WithLabelValues(pool).Set(float64(p.flying))
	m.forget(pool)
}

// tokens counts what engines report, by the name that was asked for. It is a collector of its own because adapters are
// loaded and unloaded without the front door being told: a scrape forgets names that the fleet no longer knows.
type tokens struct {
	desk                             *Desk
	prompt, cached, expected, output *prometheus.CounterVec

	mu   sync.Mutex
	seen map[tokenLabels]bool // those that have series
}

type tokenLabels struct{ pool, model string }

func (t *tokens) add(pool, model string, u openai.Usage, expected int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.seen[tokenLabels{pool, model}] = true
	t.prompt.WithLabelValues(pool, model).Add(float64(u.PromptTokens))
	t.cached.WithLabelValues(pool, model).Add(float64(u.CachedTokens))
	t.expected.WithLabelValues(pool, model).Add(float64(expected))
	t.output.WithLabelValues(pool, model).Add(float64(u.OutputTokens))
}

// Describe is part of prometheus.Collector.
func (t *tokens) Describe(out chan<- *prometheus.Desc) {
	t.prompt.Describe(out)
	t.cached.Describe(out)
	t.expected.Describe(out)
	t.output.Describe(out)
}

// Collect is part of prometheus.Collector.
func (t *tokens) Collect(out chan<- prometheus.Metric) {
	known := map[string]bool{"": true} // under no name is counted what unknown models take
	for _, name := range t.desk.fleet.Names() {
		known[name] = true
	}
	for name := range t.desk.settings.Load().rewrites.aliases {
		known[name] = true
	}
	pools := make(map[string]bool)
	for _, p := range t.desk.fleet.Pools() {
		pools[p.Name()] = true
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for l := range t.seen {
		if known[l.model] && pools[l.pool] {
			continue
		}
		delete(t.seen, l)
		for _, v := range []*prometheus.CounterVec{t.prompt, t.cached, t.expected, t.output} {
			v.DeleteLabelValues(l.pool, l.model)
		}
	}
	t.prompt.Collect(out)
	t.cached.Collect(out)
	t.expected.Collect(out)
	t.output.Collect(out)
}

// seat is an endpoint in a pool.
type seat struct{ pool, endpoint string }

// decisions counts decisions by endpoint. It is a collector of its own because endpoints come and go without the front
// door being told: a scrape shows those that are in the fleet, and forgets the rest.
type decisions struct {
	fleet  *fleet.Fleet
	mu     sync.RWMutex
	counts map[seat]*atomic.Uint64
}

func (d *decisions) add(pool, endpoint string) {
	s := seat{pool, endpoint}
	d.mu.RLock()
	n := d.counts[s]
	d.mu.RUnlock()
	if n == nil {
		d.mu.Lock()
		if n = d.counts[s]; n == nil {
			n = new(atomic.Uint64)
			d.counts[s] = n
		}
		d.mu.Unlock()
	}
	n.Add(1)
}

func (d *decisions) desc() *prometheus.Desc {
	return prometheus.NewDesc("sluice_decisions_total", "Decisions, by the endpoint they chose.", []string{labelPool, labelEndpoint}, nil)
}

// Describe is part of prometheus.Collector.
func (d *decisions) Describe(out chan<- *prometheus.Desc) { out <- d.desc() }

// Collect is part of prometheus.Collector.
func (d *decisions) Collect(out chan<- prometheus.Metric) {
	current := make(map[seat]bool)
	for _, p := range d.fleet.Pools() {
		for _, name := range p.Snapshot().Names {
			current[seat{p.Name(), name}] = true
		}
	}
	d.mu.Lock()
	maps.DeleteFunc(d.counts, func(s seat, _ *atomic.Uint64) bool { return !current[s] })
	counts := maps.Clone(d.counts)
	d.mu.Unlock()
	desc := d.desc()
	for s := range current {
		value := 0.0
		if n := counts[s]; n != nil {
			value = float64(n.Load())
		}
		out <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, value, s.pool, s.endpoint)
	}
}

// codeLabel is the status as a label; engines may send any three digits, of which only real statuses are kept apart.
func codeLabel(status int) string {
	switch status {
	case 200:
		return "200"
	case 499:
		return "499"
	}
	if status < 100 || status > 599 {
		return "other"
	}
	return strconv.Itoa(status)
}

// FirstByte counts the first body byte of a streamed answer.
func (r *Request) FirstByte() {
	r.Ended.TTFT = r.desk.now() - r.Start
	r.desk.metrics.first.WithLabelValues(r.Pool.Name(), r.Path.Operation).Observe(r.Ended.TTFT.Seconds())
}

// Moved counts that the request went on to another endpoint. Reasons are from a table in the code.
func (r *Request) Moved(reason string) {
	r.desk.metrics.moves.WithLabelValues(r.Pool.Name(), reason).Inc()
}

// Broke counts an answer that ended early. Reasons are from a table in the code.
func (r *Request) Broke(reason string) {
	r.desk.metrics.broken.WithLabelValues(r.Pool.Name(), reason).Inc()
}

// Aborted counts that the client left.
func (r *Request) Aborted() {
	r.desk.metrics.aborts.WithLabelValues(r.Pool.Name(), r.Path.Operation).Inc()
}

// BookUsage counts the tokens that the engine reported, and beside those from its cache how many the endpoint was
// expected to have; and puts them down for the lease's end.
func (r *Request) BookUsage(u *openai.UsageReader, o *fleet.Outcome, expected int) {
	usage := u.Usage()
	o.PromptTokens, o.OutputTokens = usage.PromptTokens, usage.OutputTokens
	e := &r.Ended
	if !usage.Seen {
		o.OutputTokens = u.Events()
		e.OutputTokens = o.OutputTokens
		return
	}
	e.PromptTokens, e.CachedTokens, e.OutputTokens = usage.PromptTokens, usage.CachedTokens, usage.OutputTokens
	e.ExpectedTokens = expected
	r.desk.metrics.tokens.add(r.Pool.Name(), r.Label, usage, expected)
}
