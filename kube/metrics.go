package kube

import "github.com/prometheus/client_golang/prometheus"

// controlMetrics are a Controller's.
type controlMetrics struct {
	leads, missing, refused prometheus.Gauge
	writes                  *prometheus.CounterVec
	seconds                 prometheus.Histogram
}

// The verbs of controlMetrics.writes.
const (
	writeApply  = "apply"
	writeDelete = "delete"
	writeStatus = "status"
)

func newControlMetrics(r prometheus.Registerer) *controlMetrics {
	m := &controlMetrics{
		leads:   prometheus.NewGauge(prometheus.GaugeOpts{Name: "sluice_control_leads", Help: "1 while this replica is the one that writes to the API server."}),
		missing: prometheus.NewGauge(prometheus.GaugeOpts{Name: "sluice_control_missing_rights", Help: "Rights that the controller lacks; the log names each."}),
		refused: prometheus.NewGauge(prometheus.GaugeOpts{Name: "sluice_control_refused_objects", Help: "Objects that the API server would not take, of all gateways."}),
		writes:  prometheus.NewCounterVec(prometheus.CounterOpts{Name: "sluice_control_writes_total", Help: "Writes to the API server: objects applied, objects deleted, statuses."}, []string{"verb"}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "sluice_control_reconcile_seconds", Help: "How long it took to bring one gateway's objects to what they should be.",
			Buckets: []float64{.005, .02, .1, .5, 2, 10, 60}}),
	}
	for _, verb := range []string{writeApply, writeDelete, writeStatus} {
		m.writes.WithLabelValues(verb)
	}
	r.MustRegister(m.leads, m.missing, m.refused, m.writes, m.seconds)
	return m
}
