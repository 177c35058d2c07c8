package scrape

import (
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// results are the values of the label result.
const (
	resultOK          = "ok"
	resultFailed      = "failed"
	resultUnreachable = "unreachable"
	resultNoMetrics   = "no_metrics"
)

// metrics are the scraper's own. Labels come from configuration, with the addresses its names resolve to, and from the
// columns of a reading.
type metrics struct {
	scrapes *prometheus.CounterVec
	seconds *prometheus.HistogramVec
	bytes   *prometheus.GaugeVec
	missing *prometheus.GaugeVec
	follow  *followMetrics
}

func newMetrics(r prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		scrapes: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "sluice_scrapes_total",
			Help: "Scrapes of endpoints by result: ok, failed (the last reading ages), unreachable (the endpoint can't serve), no_metrics (it serves, without a metrics page)."},
			[]string{"pool", "endpoint", "result"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "sluice_scrape_duration_seconds",
			Help:    "Time from asking an endpoint for its metrics page to the end of the answer, or to giving up.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5}}, []string{"pool"}),
		bytes: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "sluice_scrape_page_bytes",
			Help: "Size of the last metrics page of an endpoint."}, []string{"pool", "endpoint"}),
		missing: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "sluice_scrape_missing_metric",
			Help: "1 for each number that routing could use and the endpoint's metrics don't give, or not one that can be true."},
			[]string{"pool", "endpoint", "metric"}),
		follow: newFollowMetrics(),
	}
	if r == nil {
		return m, nil
	}
	for _, c := range append(m.follow.collectors(), m.scrapes, m.seconds, m.bytes, m.missing) {
		if err := r.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// endpointMetrics are the series of one endpoint in one pool.
type endpointMetrics struct {
	of      *metrics
	labels  prometheus.Labels
	results map[string]prometheus.Counter
	seconds prometheus.Observer
	bytes   prometheus.Gauge
	missing []string
	follow  *followCounts // nil for an endpoint without KV events
}

func (m *metrics) endpoint(pool, name string) *endpointMetrics {
	e := &endpointMetrics{of: m, labels: prometheus.Labels{"pool": pool, "endpoint": name}, results: make(map[string]prometheus.Counter),
		seconds: m.seconds.WithLabelValues(pool), bytes: m.bytes.WithLabelValues(pool, name)}
	for _, r := range []string{resultOK, resultFailed, resultUnreachable, resultNoMetrics} {
		e.results[r] = m.scrapes.WithLabelValues(pool, name, r)
	}
	return e
}

func (e *endpointMetrics) took(d time.Duration) { e.seconds.Observe(d.Seconds()) }

// lacks replaces the list of missing metrics.
func (e *endpointMetrics) lacks(missing []string) {
	for _, m := range e.missing {
		if !slices.Contains(missing, m) {
			e.of.missing.DeleteLabelValues(e.labels["pool"], e.labels["endpoint"], m)
		}
	}
	for _, m := range missing {
		e.of.missing.WithLabelValues(e.labels["pool"], e.labels["endpoint"], m).Set(1)
	}
	e.missing = slices.Clone(missing)
}

// leave removes every series of the endpoint.
func (e *endpointMetrics) leave() {
	e.of.scrapes.DeletePartialMatch(e.labels)
	e.of.bytes.DeletePartialMatch(e.labels)
	e.of.missing.DeletePartialMatch(e.labels)
	e.of.follow.leave(e.labels)
}

// leavePool removes the series of a pool without endpoints.
func (m *metrics) leavePool(pool string) { m.seconds.DeleteLabelValues(pool) }
