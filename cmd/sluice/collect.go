package main

import (
	"math"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-gateway/sluice/fleet"
)

// fleetCollector turns the fleet's state into metrics when asked: series of endpoints that are gone vanish by themselves.
type fleetCollector struct {
	fleet *fleet.Fleet
	now   func() time.Duration

	state, waiting, running, kvUse, inFlight, backlog, units, held, age, prefill, decode *prometheus.Desc
	ready, guarded, onsets, slower                                                       *prometheus.Desc
}

func newFleetCollector(f *fleet.Fleet, now func() time.Duration) *fleetCollector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("sluice_"+name, help, append([]string{"pool"}, labels...), nil)
	}
	return &fleetCollector{fleet: f, now: now,
		ready:    desc("pool_ready_endpoints", "Endpoints of the pool that may serve."),
		slower:   desc("endpoint_slower_ratio", "How many times longer prompts take there than at the others of its kind, 1 where that is not much.", "endpoint"),
		guarded:  desc("pool_guarded", "1 while the pool decides by weights because hits have fallen and the backlog has risen."),
		onsets:   desc("pool_guard_onsets_total", "How often the pool began to decide by weights because hits had fallen and the backlog had risen."),
		state:    desc("endpoint_state", "1 for the state that the endpoint is in.", "endpoint", "state"),
		waiting:  desc("endpoint_waiting", "Requests queued in the engine, scraped.", "endpoint"),
		running:  desc("endpoint_running", "Requests being served in the engine, scraped.", "endpoint"),
		kvUse:    desc("endpoint_kv_use_ratio", "Used share of the KV cache, scraped.", "endpoint"),
		inFlight: desc("endpoint_in_flight", "Requests that this gateway sent there and that have not finished.", "endpoint"),
		backlog:  desc("endpoint_backlog_tokens", "Uncached prompt tokens sent there that have not reached a first token.", "endpoint"),
		units:    desc("endpoint_prefix_units", "Prefix, in units of 256 bytes, that the endpoint is believed to hold.", "endpoint"),
		held:     desc("endpoint_held_tokens", "Tokens that the endpoint holds in its KV cache as its KV events say, 0 where they are not followed.", "endpoint"),
		age:      desc("endpoint_reading_age_seconds", "Age of the last good reading.", "endpoint"),
		prefill:  desc("endpoint_prefill_seconds_per_token", "Learned prefill time per uncached token of the endpoint's kind.", "endpoint"),
		decode:   desc("endpoint_decode_seconds_per_token", "Learned time between output tokens of the endpoint's kind.", "endpoint"),
	}
}

// Describe sends every description.
func (c *fleetCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.ready, c.guarded, c.onsets, c.slower, c.state, c.waiting, c.running, c.kvUse, c.inFlight, c.backlog, c.units, c.held, c.age, c.prefill, c.decode} {
		ch <- d
	}
}

// Collect reads the fleet; values that are not known have no series.
func (c *fleetCollector) Collect(ch chan<- prometheus.Metric) {
	for _, p := range c.fleet.Pools() {
		ready := 0
		for _, s := range p.Status(c.now()) {
			if s.State == "ready" || s.State == "in doubt" {
				ready++
			}
			gauge := func(d *prometheus.Desc, value float64, more ...string) {
				if !math.IsNaN(value) {
					ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, append([]string{p.Name(), s.Endpoint.Name}, more...)...)
				}
			}
			gauge(c.state, 1, s.State)
			gauge(c.waiting, s.Reading.Waiting)
			gauge(c.running, s.Reading.Running)
			gauge(c.kvUse, s.Reading.KVUse)
			gauge(c.inFlight, float64(s.InFlight))
			gauge(c.backlog, s.BacklogTokens)
			gauge(c.units, float64(s.PrefixUnits))
			gauge(c.held, float64(s.HeldTokens))
			gauge(c.age, s.Age)
			gauge(c.slower, max(s.Slower, 1))
			gauge(c.prefill, float64(s.Rate.PromptTokenMS())/1000)
			gauge(c.decode, float64(s.Rate.OutputTokenMS())/1000)
		}
		affinity, up := p.Affinity(), 0.
		if affinity.Guarded {
			up = 1
		}
		ch <- prometheus.MustNewConstMetric(c.guarded, prometheus.GaugeValue, up, p.Name())
		ch <- prometheus.MustNewConstMetric(c.onsets, prometheus.CounterValue, float64(affinity.Onsets), p.Name())
		ch <- prometheus.MustNewConstMetric(c.ready, prometheus.GaugeValue, float64(ready), p.Name())
	}
}
