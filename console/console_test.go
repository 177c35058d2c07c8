package console

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gateway/sluice/fleet"
	"github.com/sluice-gateway/sluice/route"
)

// hostile is a model name that must never be anything but text.
const hostile = `"><img src=x onerror=alert(1)></script><script>alert(2)</script>`

// rig is a page over a fleet that a test feeds by hand.
type rig struct {
	t       *testing.T
	at      time.Duration
	pool    *fleet.Pool
	side    Side
	records []*route.Record
	page    http.Handler
}

// newRig makes a pool of n endpoints, all ready, which the page is about.
func newRig(t *testing.T, profile *route.Profile, n int) *rig {
	r := &rig{t: t, at: 10 * time.Second, side: Side{Fleet: new(fleet.Fleet), Series: NewSeries()}}
	var endpoints []fleet.Endpoint
	for i := range n {
		name := fmt.Sprintf("10.0.%d.%d:8000", i/250, i%250)
		endpoints = append(endpoints, fleet.Endpoint{Name: name, Host: name, Labels: map[string]string{fleet.LabelGPU: "H100"}})
	}
	r.side.Fleet.Apply([]fleet.PoolConfig{{Name: "pool", Model: "m", Profile: profile, Endpoints: endpoints}}, "pool")
	r.pool = r.side.Fleet.Pools()[0]
	for i, e := range endpoints {
		reading := fleet.UnknownReading()
		reading.Running, reading.Waiting, reading.KVUse, reading.KVTokens = float64(i%7), 0, .25, 100_000
		r.pool.Observe(r.at, r.at, e.Name, reading, nil)
		r.pool.ObserveModels(e.Name, "vllm", []fleet.Model{{ID: "m"}})
	}
	r.side.Records = func(n int) []*route.Record {
		var out []*route.Record
		for i := len(r.records) - 1; i >= 0 && len(out) < n; i-- {
			out = append(out, r.records[i])
		}
		return out
	}
	r.page = New([]Side{r.side}, func() time.Duration { return r.at })
	return r
}

// decide has a request decided and recorded.
func (r *rig) decide(id, model string, tried ...string) *route.Record {
	r.t.Helper()
	_, choice := r.pool.Pick(r.at, &fleet.Request{Model: model, PromptBytes: 4000, Record: true, Tried: tried, Streamed: true})
	profile := r.pool.Config().Profile
	rec := profile.Record(choice.View, choice.Decision)
	rec.ID, rec.Time, rec.Pool = id, "2026-01-02T03:04:05Z", r.pool.Name()
	r.records = append(r.records, &rec)
	return &rec
}

func (r *rig) get(path string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	r.page.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	return w
}

// read fetches JSON into v.
func (r *rig) read(path string, v any) {
	r.t.Helper()
	w := r.get(path)
	if got := w.Header().Get("Content-Type"); w.Code != http.StatusOK || got != "application/json" || w.Header().Get("Cache-Control") != "no-store" {
		r.t.Fatalf("%s: got %d %s %q, want fresh JSON", path, w.Code, got, w.Body)
	}
	if err := json.Unmarshal(w.Body.Bytes(), v); err != nil {
		r.t.Fatalf("%s: %v in %s", path, err, w.Body)
	}
}

// TestHeaders: every answer, errors included, says that nothing may be loaded from elsewhere.
func TestHeaders(t *testing.T) {
	r := newRig(t, nil, 1)
	for path, status := range map[string]int{"/console": 200, "/console/app.js": 200, "/console/uPlot.iife.min.js": 200, "/console/uPlot.LICENSE": 200,
		"/console/state": 200, "/console/requests": 200, "/console/explain?id=none": 404, "/console/other": 404, "/console/": 301, "/console/page/app.js": 404} {
		w := r.get(path)
		if w.Code != status {
			t.Errorf("%s: got %d, want %d", path, w.Code, status)
		}
		if got := w.Header().Get("Content-Security-Policy"); !strings.HasPrefix(got, "default-src 'self';") || strings.Contains(got, "unsafe") {
			t.Errorf("%s: got policy %q, want default-src 'self' and nothing unsafe", path, got)
		}
		if got := w.Header().Get("X-Content-Type-Options"); got != "nosniff" {
			t.Errorf("%s: got %q, want nosniff", path, got)
		}
	}
	if got := r.get("/console/").Header().Get("Location"); got != "/console" {
		t.Errorf("got a redirect to %q, want /console", got)
	}
	w := httptest.NewRecorder()
	r.page.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/console/state", nil))
	if w.Code != http.StatusMethodNotAllowed {
		t.Errorf("got %d for a POST, want 405: the page changes nothing", w.Code)
	}
}

// TestUnchangedAsset: a page that has not changed is not sent again.
func TestUnchangedAsset(t *testing.T) {
	r := newRig(t, nil, 1)
	again := httptest.NewRequest(http.MethodGet, "/console/app.js", nil)
	again.Header.Set("If-None-Match", r.get("/console/app.js").Header().Get("ETag"))
	w := httptest.NewRecorder()
	r.page.ServeHTTP(w, again)
	if w.Code != http.StatusNotModified || w.Body.Len() > 0 {
		t.Errorf("got %d and %d bytes, want 304 and none", w.Code, w.Body.Len())
	}
}

// TestPageIsStrict: the page has no inline script, style or handler, which the policy would refuse, names no other
// host, and its script makes no markup.
func TestPageIsStrict(t *testing.T) {
	r := newRig(t, nil, 1)
	html := r.get("/console").Body.String()
	if m := regexp.MustCompile(`(?i)<script>|<style|\sstyle=|\son\w+=|https?:`).FindString(html); m != "" {
		t.Errorf("got %q in the page, want none", m)
	}
	for _, name := range []string{"app.js", "style.css"} {
		if m := regexp.MustCompile(`innerHTML|outerHTML|insertAdjacent|document\.write|\beval\(|https?:|//[a-z]+\.`).FindString(r.get("/console/" + name).Body.String()); m != "" {
			t.Errorf("got %q in %s, want none", m, name)
		}
	}
}

// TestState is the shape of /console/state.
func TestState(t *testing.T) {
	r := newRig(t, nil, 3)
	r.pool.ObserveFailure("10.0.0.2:8000", fleet.Unreachable, "connection refused")
	r.side.Series.Add(r.at, Sample{Endpoint: "10.0.0.0:8000", TTFT: 100 * time.Millisecond, Tokens: 50, Prompt: 100, Cached: 40, OK: true})
	r.at += time.Second
	var s struct {
		Window int
		Sides  []struct {
			Name   string
			Series map[string][]any
			Pools  []struct {
				Name, Model, Profile string
				TypicalTokens        float64
				Measured             bool
				Omitted              int
				Kinds                []map[string]any
				Endpoints            []map[string]any
			}
		}
	}
	r.read("/console/state", &s)
	if len(s.Sides) != 1 || len(s.Sides[0].Pools) != 1 || s.Window != window {
		t.Fatalf("got %+v, want one side with one pool", s)
	}
	for _, name := range []string{"p50", "p95", "tokens", "cached", "expected", "rate", "failed", "never"} {
		if got := len(s.Sides[0].Series[name]); got != window {
			t.Errorf("got %d points of %s, want %d", got, name, window)
		}
	}
	if got := s.Sides[0].Series["p50"]; got[0] != nil || math.Abs(got[window-1].(float64)-100) > 1 {
		t.Errorf("got P50 from %v to %v, want none to 100", got[0], got[window-1])
	}
	p := s.Sides[0].Pools[0]
	if p.Name != "pool" || p.Model != "m" || p.Profile != "latency" || p.TypicalTokens != typicalTokens || p.Measured || p.Omitted != 0 {
		t.Errorf("got %+v, want the pool and a prediction that is not measured", p)
	}
	ready := map[string]any{"name": "10.0.0.0:8000", "host": "10.0.0.0:8000", "engine": "vllm", "kind": "vllm H100", "state": "ready", "why": "", "running": 0.,
		"pod": "", "waiting": 0., "inFlight": 0., "kvUse": .25, "cached": .4, "errors": 0., "slower": 0., "events": nil, "resident": []any{}, "waitingForSlot": []any{}, "loading": 0.}
	delete(p.Endpoints[0], "ttft")
	if diff := cmp.Diff(ready, p.Endpoints[0]); diff != "" {
		t.Errorf("the ready endpoint: (-want +got)\n%s", diff)
	}
	if len(p.Kinds) != 1 || p.Kinds[0]["name"] != "vllm H100" || p.Kinds[0]["endpoints"] != 3. || p.Kinds[0]["prefill"] != 1. {
		t.Errorf("got kinds %v, want one of three endpoints that has learned nothing yet", p.Kinds)
	}
	down := p.Endpoints[2]
	if down["state"] != "not ready" || down["why"] != "connection refused" || down["ttft"] != nil || down["cached"] != nil {
		t.Errorf("got %v, want it not ready, why, and nothing predicted", down)
	}
}

// TestPrediction: a tile's TTFT is what the latency rule says of a request as the pool has them, so what waits at an
// endpoint raises it.
func TestPrediction(t *testing.T) {
	r := newRig(t, nil, 2)
	ttft := func() (out [2]float64) {
		s := r.side.state(r.at)
		for i, e := range s.Pools[0].Endpoints {
			out[i] = float64(e.TTFT)
		}
		return out
	}
	idle := ttft()
	rate := r.pool.Status(r.at)[0].Rate
	alone := func(endpoint int32, tokens float32) float64 {
		ms, running := float32(0), float32(r.pool.Status(r.at)[endpoint].Reading.Running)
		if running > 0 {
			ms = rate.Decode * rate.Token(running, 0) / 2 // half of the step under way
		}
		work := rate.Compute(tokens, 0)
		return float64(ms + rate.Prefill*(work+rate.Launch(work, running, 0)))
	}
	for i, got := range idle {
		if want := alone(int32(i), typicalTokens); math.Abs(got-want) > 1e-3*want {
			t.Errorf("endpoint %d: got %v ms, want %g: a prompt of %d tokens", i, got, want, typicalTokens)
		}
	}
	rec := r.decide("a", "m")
	tokens := rec.View.MeanUncached
	backlog := r.pool.Status(r.at)[rec.Decision.Endpoint].BacklogTokens
	busy := ttft()
	chosen := rec.Decision.Endpoint
	if want := alone(chosen, tokens) + alone(chosen, float32(backlog)); busy[chosen] < .8*want || busy[chosen] > 1.02*want {
		t.Errorf("got %g ms with %g tokens waiting, want %g", busy[chosen], backlog, want)
	}
	if want := alone(1-chosen, tokens); math.Abs(busy[1-chosen]-want) > 1e-3*want {
		t.Errorf("got %g ms at the idle one, want %g", busy[1-chosen], want)
	}
}

// TestManyEndpoints: the page is bounded, and shows those in trouble first.
func TestManyEndpoints(t *testing.T) {
	r := newRig(t, nil, maxTiles+50)
	name := r.pool.Endpoints()[maxTiles+20].Name
	r.pool.ObserveFailure(name, fleet.Unreachable, "connection refused")
	p := r.side.state(r.at).Pools[0]
	if len(p.Endpoints) != maxTiles || p.Omitted != 50 || p.Endpoints[0].Name != name {
		t.Errorf("got %d endpoints from %q and %d left out, want %d from %q and 50", len(p.Endpoints), p.Endpoints[0].Name, p.Omitted, maxTiles, name)
	}
	rec := r.decide("a", "m")
	d, err := explain(rec)
	if err != nil || len(d.Bars) != maxBars || d.Omitted != maxTiles+50-maxBars {
		t.Errorf("got %d bars, %d left out and error %v, want %d", len(d.Bars), d.Omitted, err, maxBars)
	}
}

// TestRequests lists requests, newest first, one line each however often they were decided.
func TestRequests(t *testing.T) {
	r := newRig(t, nil, 3)
	first := r.decide("one", hostile)
	r.decide("two", "m")
	r.decide("two", "m", "10.0.0.0:8000")
	r.side.Series.Add(r.at, Sample{ID: "one", Endpoint: "10.0.0.1:8000", TTFT: 250 * time.Millisecond, Tokens: 7, Prompt: 100, Cached: 50, OK: true})
	var lines []map[string]any
	r.read("/console/requests?last=10", &lines)
	if len(lines) != 2 || lines[0]["id"] != "two" || lines[0]["decisions"] != 2. || lines[0]["outcome"] != nil {
		t.Fatalf("got %v, want two with two decisions before one", lines)
	}
	want := map[string]any{"id": "one", "time": first.Time, "pool": "pool", "model": hostile, "endpoint": first.View.Snapshot.Names[first.Decision.Endpoint],
		"prompt": float64(first.View.Request.PromptTokens), "matched": 0., "known": "guessed", "near": float64(first.Decision.Near), "of": 3., "blind": false, "decisions": 1.,
		"outcome": map[string]any{"ok": true, "endpoint": "10.0.0.1:8000", "ttft": 250., "tokens": 7., "prompt": 100., "cached": 50.}}
	if diff := cmp.Diff(want, lines[1]); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	// What comes from a request can't end the JSON or become markup, even if something took it for a page.
	if body := r.get("/console/requests").Body.String(); strings.ContainsAny(body, "<>") {
		t.Errorf("got %s, want no angle bracket", body)
	}
	for i := range 300 {
		r.decide(fmt.Sprint(i), "m")
	}
	r.read("/console/requests?last=1000000", &lines)
	if len(lines) != maxRequests {
		t.Errorf("got %d lines, want %d", len(lines), maxRequests)
	}
	r.read("/console/requests", &lines)
	if len(lines) != 50 || lines[0]["id"] != "299" {
		t.Errorf("got %d lines from %v, want 50 from 299", len(lines), lines[0]["id"])
	}
	for _, last := range []string{"0", "-1", "x", "1e3"} {
		if w := r.get("/console/requests?last=" + last); w.Code != http.StatusBadRequest {
			t.Errorf("last=%s: got %d, want 400", last, w.Code)
		}
	}
}

// explanation is /console/explain as a page reads it.
type explanation struct {
	ID        string
	Outcome   *map[string]any
	Decisions []struct {
		Profile, Unit, Text string
		Cost                bool
		Expected            *float64
		Sentences           []string
		Terms               []struct {
			Name   string
			Weight float64
		}
		Bars []struct {
			Name, Kind, LeftOut string
			Marks               []string
			Parts               []*float64
			Guessed             []bool
			Total               *float64
		}
		Omitted int
	}
}

// TestExplain: the bars are the explanation's own terms, the words its own last sentences.
func TestExplain(t *testing.T) {
	weights, err := route.Named("weights", nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, profile := range []*route.Profile{route.Latency(), weights, route.RoundRobin()} {
		t.Run(profile.Name, func(t *testing.T) {
			r := newRig(t, profile, 5)
			r.pool.ObserveFailure("10.0.0.4:8000", fleet.Unreachable, "connection refused")
			id := "a&b=<c> " + hostile
			rec := r.decide(id, hostile)
			var x explanation
			r.read("/console/explain?id="+url.QueryEscape(id), &x)
			if x.ID != id || len(x.Decisions) != 1 || x.Outcome != nil {
				t.Fatalf("got %+v, want one decision of a request that runs", x)
			}
			d := x.Decisions[0]
			if d.Profile != profile.Name || d.Cost != profile.Cost || len(d.Terms) != len(profile.Terms) || len(d.Bars) != 5 {
				t.Fatalf("got %+v, want the profile's terms for five endpoints", d)
			}
			v := rec.View.Clone()
			e := profile.Explain(&v)
			var text strings.Builder
			if err := e.WriteText(&text, &v); err != nil || d.Text != text.String() {
				t.Errorf("got the text %q and error %v, want the command's", d.Text, err)
			}
			chosen := v.Snapshot.Names[rec.Decision.Endpoint]
			if !strings.HasPrefix(d.Sentences[0], chosen+" is chosen") || !slices.Contains(d.Sentences, "Left out: 10.0.0.4:8000, not ready: connection refused.") {
				t.Errorf("got sentences %q, want the choice first and who was left out", d.Sentences)
			}
			if d.Bars[0].Name != chosen || !slices.Contains(d.Bars[0].Marks, "chosen") {
				t.Errorf("got %+v first, want the chosen %s", d.Bars[0], chosen)
			}
			out := d.Bars[4]
			if out.LeftOut != "not ready: connection refused" || out.Total != nil || out.Parts[0] != nil || len(out.Marks) != 0 {
				t.Errorf("got %+v last, want the one left out, with the filter's words and no values", out)
			}
			for _, b := range d.Bars[:4] {
				i := slices.Index(v.Snapshot.Names, b.Name)
				sum := 0.0
				for _, part := range b.Parts {
					sum += *part
				}
				if want := float64(e.Totals[i]); math.Abs(sum-want) > 1e-3*max(1, want) || math.Abs(*b.Total-want) > 1e-3*max(1, want) {
					t.Errorf("%s: got parts of %g and a total of %g, want %g", b.Name, sum, *b.Total, want)
				}
			}
			if (d.Expected != nil) != profile.Cost {
				t.Errorf("got an expected TTFT of %v, want one only where the profile counts time", d.Expected)
			}
			// Marks are those of the text.
			for _, b := range d.Bars {
				for _, m := range b.Marks {
					if !regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(b.Name) + ` .*\b` + m).MatchString(text.String()) {
						t.Errorf("%s is marked %q, want what the text says:\n%s", b.Name, m, text.String())
					}
				}
			}
		})
	}
}

// TestExplainNone: where no endpoint may serve, each is left out with its reason, and none is chosen.
func TestExplainNone(t *testing.T) {
	r := newRig(t, nil, 2)
	for _, e := range r.pool.Endpoints() {
		r.pool.ObserveFailure(e.Name, fleet.Unreachable, "connection refused")
	}
	r.decide("a", "m")
	var lines []requestLine
	for _, rec := range r.records {
		lines = append(lines, lineOf(&r.side, rec))
	}
	if len(lines) != 1 || lines[0].Endpoint != "" || lines[0].Of != 2 {
		t.Errorf("got %+v, want a line without an endpoint", lines)
	}
	var x explanation
	r.read("/console/explain?id=a", &x)
	if len(x.Decisions) != 1 || x.Decisions[0].Expected != nil || len(x.Decisions[0].Bars) != 2 {
		t.Fatalf("got %+v, want a decision with two endpoints and nothing expected", x)
	}
	for _, b := range x.Decisions[0].Bars {
		if b.LeftOut != "not ready: connection refused" || b.Total != nil || len(b.Marks) > 0 {
			t.Errorf("got %+v, want it left out and why", b)
		}
	}
}

// TestExplainMoved: a request that moved has its decisions in order; unknown ones are an error that says so.
func TestExplainMoved(t *testing.T) {
	r := newRig(t, nil, 3)
	tried := ""
	for range maxDecisions + 3 {
		rec := r.decide("a", "m", tried)
		tried = rec.View.Snapshot.Names[rec.Decision.Endpoint]
	}
	var x explanation
	r.read("/console/explain?id=a", &x)
	if len(x.Decisions) != maxDecisions {
		t.Fatalf("got %d decisions, want the last %d", len(x.Decisions), maxDecisions)
	}
	for i, d := range x.Decisions {
		if i > 0 && d.Bars[0].Name == x.Decisions[i-1].Bars[0].Name {
			t.Errorf("decision %d went to %s again, want them in the order they were made", i, d.Bars[0].Name)
		}
	}
	for path, status := range map[string]int{"/console/explain?id=b": 404, "/console/explain": 400, "/console/explain?id=a&side=x": 400, "/console/requests?side=x": 404} {
		if w := r.get(path); w.Code != status {
			t.Errorf("%s: got %d, want %d", path, w.Code, status)
		}
	}
}

// TestSides: two sides keep their requests apart.
func TestSides(t *testing.T) {
	a, b := newRig(t, nil, 2), newRig(t, route.RoundRobin(), 2)
	a.side.Name, b.side.Name = "sluice", "round robin"
	a.page = New([]Side{a.side, b.side}, func() time.Duration { return a.at })
	a.decide("x", "m")
	b.decide("y", "m")
	for query, want := range map[string]string{"": "x", "?side=sluice": "x", "?side=round+robin": "y"} {
		var lines []requestLineID
		a.read("/console/requests"+query, &lines)
		if len(lines) != 1 || lines[0].ID != want {
			t.Errorf("%q: got %v, want %s", query, lines, want)
		}
	}
	var s struct{ Sides []struct{ Name string } }
	a.read("/console/state", &s)
	if len(s.Sides) != 2 || s.Sides[1].Name != "round robin" {
		t.Errorf("got %v, want both sides in order", s.Sides)
	}
}

type requestLineID struct{ ID string }

// TestBareSide: a side without a Series, records or endpoints is shown as such.
func TestBareSide(t *testing.T) {
	r := &rig{t: t, page: New([]Side{{Fleet: new(fleet.Fleet)}}, func() time.Duration { return 0 })}
	if got := strings.TrimSpace(r.get("/console/state").Body.String()); got != `{"window":120,"spread":5,"sides":[{"name":"","series":null,"peers":[],"pools":[]}]}` {
		t.Errorf("got %s, want an empty side", got)
	}
	if got := strings.TrimSpace(r.get("/console/requests").Body.String()); got != "[]" {
		t.Errorf("got %s, want no requests", got)
	}
}

// TestEventsAndPeers: the page has what its gateway says of KV events and of other replicas, and of a request what was told
// by events and what was guessed.
func TestEventsAndPeers(t *testing.T) {
	r := newRig(t, nil, 2)
	r.side.Events = func(pool string, e *fleet.Status) *Events {
		if pool != "pool" || e.Endpoint.Name != "10.0.0.1:8000" {
			return nil
		}
		return &Events{Prefixes: "exact", HeldTokens: 1600, Gaps: 2}
	}
	r.side.Peers = func() []Peer { return []Peer{{Name: "b", Heard: true}} }
	s := r.side.state(r.at)
	if e := s.Pools[0].Endpoints; e[0].Events != nil || e[1].Events == nil || e[1].Events.HeldTokens != 1600 || len(s.Peers) != 1 || !s.Peers[0].Heard {
		t.Errorf("got events %v and %v and peers %v, want those of the second endpoint, and b", e[0].Events, e[1].Events, s.Peers)
	}
	rec := r.decide("a", "m")
	rec.View.Expected, rec.View.Known = route.Column{512, 96}, []route.Known{route.Exact, route.AtLeast}
	d, err := explain(rec)
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range d.Bars {
		if first := b.Name == "10.0.0.0:8000"; first && (b.Known != "exact" || b.Matched != 512) || !first && (b.Known != "at least" || b.Matched != 96) {
			t.Errorf("%s: got %v tokens, %s; want 512 exactly and 96 at least", b.Name, b.Matched, b.Known)
		}
	}
	if words := strings.Join(d.Sentences, " "); !strings.Contains(words, "of the prompt's tokens in its cache") {
		t.Errorf("got %q, want what the chosen one should find", words)
	}
}
