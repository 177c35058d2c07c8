package main

import (
	"cmp"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// stateEvery is how often the states of endpoints are looked at for the log.
const stateEvery = time.Second

// endpointState is what was last seen of an endpoint, and what was last logged: empty while it is new.
type endpointState struct{ seen, said string }

// logStates logs every endpoint whose state has changed since the last look: from what to what, and why.
func (s *server) logStates() {
	states := make(map[string]endpointState)
	for _, p := range s.fleet.Pools() {
		for _, e := range p.Status(s.now()) {
			key := p.Name() + " " + e.Endpoint.Name
			last, known := s.states[key]
			was := cmp.Or(last.said, "new")
			states[key] = endpointState{e.State, e.State}
			switch {
			case !known && e.State != "ready" && e.State != "draining", last.seen == e.State:
				// Nothing is known yet, or nothing has changed.
				states[key] = endpointState{e.State, last.said}
			case e.State == "ready" || e.State == "draining" || e.State == "in doubt":
				s.log.Info("endpoint is "+e.State, "pool", p.Name(), "endpoint", e.Endpoint.Name, "was", was)
			default:
				s.log.Warn("endpoint is "+e.State, "pool", p.Name(), "endpoint", e.Endpoint.Name, "was", was, "why", e.Why)
			}
		}
	}
	s.states = states
}

// reloads are the metrics of the configuration file.
type reloads struct {
	success prometheus.Gauge
	at      prometheus.Gauge
}

func newReloads(reg prometheus.Registerer) *reloads {
	r := &reloads{
		success: prometheus.NewGauge(prometheus.GaugeOpts{Name: "sluice_config_last_reload_success",
			Help: "1 if the configuration file as it was last seen is the running one, 0 if it was refused."}),
		at: prometheus.NewGauge(prometheus.GaugeOpts{Name: "sluice_config_last_reload_success_timestamp_seconds",
			Help: "When a configuration was last taken over, in seconds since 1970."}),
	}
	reg.MustRegister(r.success, r.at)
	r.succeeded()
	return r
}

func (r *reloads) succeeded() {
	r.success.Set(1)
	r.at.SetToCurrentTime()
}

func (r *reloads) failed() { r.success.Set(0) }
