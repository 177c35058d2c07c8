package main

import (
	"encoding/json"
	"io"
	"math"
	"net/http"
	"net/http/pprof"
	"strconv"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/sluice-gateway/sluice/console"
	"github.com/sluice-gateway/sluice/fleet"
	"github.com/sluice-gateway/sluice/route"
)

// serveAdminPaths says what there is.
func serveAdminPaths(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = io.WriteString(w, `/console         the fleet and where requests went, for a browser
/metrics         for Prometheus
/fleet           what is known of every endpoint
/explain?last=N  the last decisions
/peers           the other replicas
/healthz         200 while the process lives
/readyz          200 while requests may come: pods are known, if there are some, and it does not drain
/debug/pprof/    profiles of the process
`) // an error means that the reader has gone
}

// adminHandler is what the separate listener serves to operators.
func (s *server) adminHandler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(s.registry, promhttp.HandlerOpts{Registry: s.registry}))
	mux.HandleFunc("GET /{$}", serveAdminPaths)
	page := console.New(s.sides, s.now)
	mux.Handle("GET /console", page)
	mux.Handle("GET /console/", page)
	mux.HandleFunc("GET /explain", s.serveExplain)
	mux.HandleFunc("GET /fleet", s.serveFleet)
	mux.HandleFunc("GET /peers", s.servePeers)
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })
	mux.HandleFunc("GET /readyz", s.serveReady)
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	return mux
}

// serveExplain writes the latest decisions, oldest first, one record a line: ?last=N, 1 by default.
func (s *server) serveExplain(w http.ResponseWriter, r *http.Request) {
	n := 1
	if text := r.URL.Query().Get("last"); text != "" {
		var err error
		if n, err = strconv.Atoi(text); err != nil || n < 1 {
			http.Error(w, "last is a number of decisions, 1 or more", http.StatusBadRequest)
			return
		}
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	records := s.recorder.last(n)
	enc := json.NewEncoder(w)
	for i := len(records) - 1; i >= 0; i-- {
		if err := enc.Encode(records[i]); err != nil {
			return // the reader has gone
		}
	}
}

// fleetStatus is the JSON of /fleet.
type fleetStatus struct {
	Pool    string `json:"pool"`
	Model   string `json:"model"`
	Profile string `json:"profile"`
	// Guarded says that the pool decides by weights, since hits have fallen while the backlog rose.
	Guarded   bool             `json:"guarded,omitempty"`
	Endpoints []endpointStatus `json:"endpoints"`
}

type endpointStatus struct {
	Name string `json:"name"`
	Host string `json:"host"`
	// Pod is the pod's name; absent where it is no pod.
	Pod    string            `json:"pod,omitempty"`
	State  string            `json:"state"`
	Why    string            `json:"why,omitempty"`
	Engine string            `json:"engine,omitempty"`
	Kind   string            `json:"kind"`
	Labels map[string]string `json:"labels,omitempty"`
	// Models is absent before it was asked.
	Models         []string        `json:"models,omitzero"`
	Waiting        *float64        `json:"waiting,omitempty"`
	Running        *float64        `json:"running,omitempty"`
	KVUse          *float64        `json:"kvUse,omitempty"`
	KVTokens       *float64        `json:"kvTokens,omitempty"`
	AgeSeconds     *float64        `json:"ageSeconds,omitempty"`
	InFlight       int             `json:"inFlight"`
	Prefilling     int             `json:"prefilling"`
	BacklogTokens  float64         `json:"backlogTokens"`
	PrefixUnits    int             `json:"prefixUnits"`
	Errors         float64         `json:"errors"`
	Resident       []string        `json:"resident,omitempty"`
	WaitingForSlot []string        `json:"waitingForSlot,omitempty"`
	LoadingSeconds float64         `json:"loadingSeconds,omitempty"`
	KVEvents       *console.Events `json:"kvEvents,omitempty"`
	Rate           route.Rate      `json:"rate"`
	// Slower is how many times slower than the others of its kind the endpoint is, absent where that is not much.
	Slower float64 `json:"slower,omitempty"`
	// MetricsRead is absent before they were asked for. Where it is true MissingMetrics are the names that its page lacks and
	// routing would go by; where it is false, why there is no page.
	MetricsRead    *bool    `json:"metricsRead,omitempty"`
	MissingMetrics []string `json:"missingMetrics,omitempty"`
}

// events describes how an endpoint's KV events are followed, nil where it publishes none.
func (s *server) events(pool string, e *fleet.Status) *console.Events {
	f, ok := s.scraper.Followed(pool, e.Endpoint.Name)
	if !ok {
		return nil
	}
	words := [...]string{"guessed", "exact from then on", "exact"}
	return &console.Events{Prefixes: words[f.Following], Why: f.Why, SinceSeconds: (s.now() - f.Since).Seconds(), HeldTokens: e.HeldTokens,
		Events: f.Events, PerSecond: f.PerSecond, Gaps: f.Gaps, LostMessages: f.Lost, Restarts: f.Restarts}
}

// serveFleet writes what is known of every endpoint, as a list of pools:
//
//	[{"pool": "llama", "model": "meta-llama/Llama-3.1-8B-Instruct", "endpoints": [
//	  {"name": "10.0.0.1:8000", "pod": "llama-0", "state": "ready", "metricsRead": true, "models": ["meta-llama/Llama-3.1-8B-Instruct"]},
//	  {"name": "10.0.0.2:8000", "pod": "llama-1", "state": "ready", "metricsRead": true, "missingMetrics": ["..."], "models": []},
//	  {"name": "10.0.0.3:8000", "pod": "llama-2", "state": "not ready", "why": "...", "metricsRead": false}]}]
//
// and more in each, which endpointStatus has. A controller goes by these: pod is the pod's name; metricsRead is absent while
// nobody has tried, true where a page was read, and then missingMetrics are the names that it lacks and routing would go by;
// models is absent while it has not answered what it lists.
func (s *server) serveFleet(w http.ResponseWriter, _ *http.Request) {
	var out []fleetStatus
	for _, p := range s.fleet.Pools() {
		c := p.Config()
		f := fleetStatus{Pool: p.Name(), Model: c.Model, Profile: c.Profile.Name, Guarded: p.Affinity().Guarded}
		for _, e := range p.Status(s.now()) {
			status := statusOf(&e)
			status.KVEvents = s.events(p.Name(), &e)
			a := p.Adapters(s.now(), e.Endpoint.Name)
			status.Resident, status.WaitingForSlot, status.LoadingSeconds = a.Resident, a.Waiting, a.Loading.Seconds()
			f.Endpoints = append(f.Endpoints, status)
		}
		out = append(out, f)
	}
	w.Header().Set("Content-Type", "application/json")
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	_ = enc.Encode(out) // an error means that the reader has gone
}

func statusOf(e *fleet.Status) endpointStatus {
	known := func(x float64) *float64 {
		if math.IsNaN(x) || math.IsInf(x, 0) {
			return nil
		}
		return &x
	}
	var read *bool
	if e.Asked {
		read = &e.Metered
	}
	return endpointStatus{Name: e.Endpoint.Name, Host: e.Endpoint.Host, Pod: e.Endpoint.Pod, MetricsRead: read, State: e.State, Why: e.Why, Engine: e.Engine, Kind: e.Kind,
		Labels: e.Endpoint.Labels, Models: e.Models, Waiting: known(e.Reading.Waiting), Running: known(e.Reading.Running),
		KVUse: known(e.Reading.KVUse), KVTokens: known(e.Reading.KVTokens), AgeSeconds: known(e.Age), InFlight: e.InFlight,
		Prefilling: e.Prefilling, BacklogTokens: e.BacklogTokens, PrefixUnits: e.PrefixUnits, Errors: e.Errors, Rate: e.Rate,
		MissingMetrics: e.MissingMetrics}
}
