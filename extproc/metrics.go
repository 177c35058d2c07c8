package extproc

import "github.com/prometheus/client_golang/prometheus"

// metrics are what this door counts beside what all do.
type metrics struct {
	open    prometheus.Gauge
	streams *prometheus.CounterVec
	asked   prometheus.Counter
	seen    prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		open: prometheus.NewGauge(prometheus.GaugeOpts{Name: "sluice_extproc_streams", Help: "Requests that Envoy has open with the picker."}),
		streams: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "sluice_extproc_streams_total",
			Help: "Requests that Envoy has brought, by the mode that it sends their bodies in."}, []string{"mode"}),
		asked: prometheus.NewCounter(prometheus.CounterOpts{Name: "sluice_extproc_time_asked_total",
			Help: "How often Envoy was asked for more time because an answer wasn't ready."}),
		seen: prometheus.NewCounter(prometheus.CounterOpts{Name: "sluice_extproc_answers_seen_total", Help: "Answers whose bodies Envoy has shown."}),
	}
	for _, mode := range []bodyMode{modeNone, modeStreamed, modeBuffered, modePartial, modeDuplex} {
		m.streams.WithLabelValues(mode.String())
	}
	reg.MustRegister(m.open, m.streams, m.asked, m.seen)
	return m
}
