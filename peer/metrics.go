package peer

import "github.com/prometheus/client_golang/prometheus"

// metrics are the room's own.
type metrics struct {
	told, heard, lost, recounts prometheus.Counter
}

// newMetrics registers them, unless there is nowhere to.
func newMetrics(r prometheus.Registerer, p *Peers) *metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "sluice_peer_" + name, Help: help})
	}
	m := &metrics{
		told:     counter("notes_told_total", "Notes of what this replica does that were sent, once for each peer."),
		heard:    counter("notes_heard_total", "Notes of what peers do that were heard."),
		lost:     counter("notes_lost_total", "Notes that a peer was too slow to take; it was then told everything anew."),
		recounts: counter("recounts_total", "How often a peer was told everything that is open: after each connection, and each loss."),
	}
	if r == nil {
		return m
	}
	gauge := func(name, help string, of func(all []Status) float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "sluice_peer_" + name, Help: help}, func() float64 { return of(p.Status()) })
	}
	count := func(which func(s Status) bool) func(all []Status) float64 {
		return func(all []Status) float64 {
			n := 0.
			for _, s := range all {
				if which(s) {
					n++
				}
			}
			return n
		}
	}
	r.MustRegister(m.told, m.heard, m.lost, m.recounts,
		gauge("heard", "Peers that this replica hears.", count(func(s Status) bool { return s.Heard })),
		gauge("told", "Peers that hear this replica.", count(func(s Status) bool { return s.Told })),
		gauge("lag_seconds", "The longest latest time to a peer and back.", func(all []Status) float64 {
			lag := 0.
			for _, s := range all {
				lag = max(lag, s.Lag.Seconds())
			}
			return lag
		}))
	return m
}
