package proxy

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-gateway/sluice/fleet"
	"github.com/sluice-gateway/sluice/front"
	"github.com/sluice-gateway/sluice/route"
)

// B22, Q03, Q06: the list of models is the union over pools that can serve, each object as its engine wrote it.
func TestModels(t *testing.T) {
	r := twoPools(t, Options{}, "")
	a, b := r.f.Pools()[0], r.f.Pools()[1]
	a.ObserveModels(r.engines[0], "vllm", []fleet.Model{
		{ID: "a", Raw: json.RawMessage(`{"id":"a","max_model_len":8192,"object":"model"}`)},
		{ID: "org/tuned", Parent: "a", Raw: json.RawMessage(`{"parent":"a","id":"org/tuned"}`)},
	})
	b.ObserveModels(r.engines[1], "llama.cpp", []fleet.Model{{ID: "/models/b.gguf", Raw: json.RawMessage(`{"id":"/models/b.gguf"}`)}})
	const ownB = `{"id":"b","object":"model","owned_by":"sluice"}`
	list := func(parts ...string) string { return `{"object":"list","data":[` + strings.Join(parts, ",") + `]}` }
	whole := list(`{"id":"a","max_model_len":8192,"object":"model"}`, `{"parent":"a","id":"org/tuned"}`, `{"id":"/models/b.gguf"}`, ownB)
	get := func(path string) answer {
		t.Helper()
		return r.do(r.request(http.MethodGet, path, ""))
	}
	get("/v1/models").want(t, 200, whole)
	get("/v1/models/").want(t, 200, whole)
	get("/v1/models/org/tuned").want(t, 200, `{"parent":"a","id":"org/tuned"}`)
	get("/v1/models/b").want(t, 200, ownB)
	get("/v1/models/b/").want(t, 200, ownB)
	get("/v1/models/c").wantError(t, 404, "model_not_found")
	head := r.do(r.request(http.MethodHead, "/v1/models", ""))
	head.want(t, 200, "")
	if head.header.Get("Content-Length") != fmt.Sprint(len(whole)) {
		t.Errorf("got headers %v, want the length of the list", head.header)
	}
	a.SetEndpoints(nil)
	get("/v1/models").want(t, 200, list(`{"id":"/models/b.gguf"}`, ownB))
}

// K03: not ready comes first when the gateway drains; a pool without endpoints doesn't take the others out.
func TestHealth(t *testing.T) {
	r := twoPools(t, Options{}, "")
	get := func(path string) answer {
		t.Helper()
		return r.do(r.request(http.MethodGet, path, ""))
	}
	get("/healthz").want(t, 200, "ok\n")
	get("/readyz").want(t, 200, `{"ready":true,"draining":false,"pools":[{"name":"a","ready":true},{"name":"b","ready":true}]}`+"\n")
	r.f.Pools()[0].SetEndpoints(nil)
	get("/readyz").want(t, 200, `{"ready":true,"draining":false,"pools":[{"name":"a","ready":false},{"name":"b","ready":true}]}`+"\n")
	r.g.Drain()
	get("/readyz").want(t, 503, `{"ready":false,"draining":true,"pools":[{"name":"a","ready":false},{"name":"b","ready":true}]}`+"\n")
	get("/healthz").want(t, 200, "ok\n")
	r.do(r.request(http.MethodPost, chatPath, `{"model":"b"}`)).want(t, 200, `{"from":"b"}`)
	r.f.Apply(nil, "")
	get("/readyz").want(t, 503, `{"ready":false,"draining":true,"pools":[]}`+"\n")
}

// Q01: a response lives at one endpoint; what is about it or continues it goes there, and is searched for where that is
// not known.
func TestStoredResponses(t *testing.T) {
	engine := func(id string, streamed bool) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			w.Header().Set("Content-Type", "application/json")
			switch {
			case r.Method != http.MethodPost && !strings.Contains(r.URL.Path, id),
				strings.Contains(string(body), "previous") && !strings.Contains(string(body), id):
				w.WriteHeader(http.StatusNotFound)
				_, _ = io.WriteString(w, "not here")
			case r.Method != http.MethodPost || strings.Contains(string(body), "previous"):
				_, _ = io.WriteString(w, "here "+id)
			case streamed:
				w.Header().Set("Content-Type", "text/event-stream")
				_, _ = fmt.Fprintf(w, "event: response.created\ndata: {\"response\":{\"id\":\"%s\"}}\n\n", id)
			default:
				_, _ = fmt.Fprintf(w, `{"id": "%s","output":[{"id":"msg_1"}]}`, id)
			}
		}
	}
	r := newRig(t, Options{}, engine("resp_a", false), engine("resp_b", true), engine("resp_c", false))
	post := func(body string) answer {
		t.Helper()
		return r.do(r.request(http.MethodPost, "/v1/responses", body))
	}
	get := func(method, path string) answer {
		t.Helper()
		return r.do(r.request(method, path, ""))
	}
	// Nobody knows where these are: they are searched for, as is one that a peer had made a moment ago.
	for range 3 {
		get(http.MethodGet, "/v1/responses/resp_c").want(t, 200, "here resp_c")
		post(`{"model":"m","input":"x","previous_response_id":"resp_c"}`).want(t, 200, "here resp_c")
	}
	post(`{"model":"m","input":"x","previous_response_id":"resp_x"}`).want(t, 404, "not here")
	for range 3 {
		post(`{"model":"m","input":"x"}`)
	}
	moves := r.gather()[`sluice_moves_total{pool="pool",reason="status"}`]
	for range 4 {
		for _, id := range []string{"resp_b", "resp_a", "resp_c"} {
			post(`{"model":"m","input":"x","previous_response_id":"`+id+`"}`).want(t, 200, "here "+id)
			get(http.MethodGet, "/v1/responses/"+id+"?stream=false").want(t, 200, "here "+id)
			get(http.MethodDelete, "/v1/responses/"+id).want(t, 200, "here "+id)
		}
	}
	if n := r.gather()[`sluice_moves_total{pool="pool",reason="status"}`]; n != moves {
		t.Errorf("got %v moves for known responses, want none", n-moves)
	}
	get(http.MethodGet, "/v1/responses/resp_x").want(t, 404, "not here")

	r = twoPools(t, Options{}, "")
	get(http.MethodGet, "/v1/responses/resp_x").wantError(t, 400, "invalid_request") // which pool?
	req := r.request(http.MethodGet, "/v1/responses/resp_x", "")
	req.Header.Set(front.HeaderModel, "b")
	r.do(req).want(t, 200, `{"from":"b"}`)
}

// Q01: a response that this gateway had made tells its pool, too: what is about it names no model.
func TestStoredResponsesOfTwoPools(t *testing.T) {
	r := twoPools(t, Options{}, "")
	engine := startEngine(t, func(w http.ResponseWriter, req *http.Request) {
		_, _ = io.Copy(io.Discard, req.Body)
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"id":"resp_1","method":"`+req.Method+`"}`)
	})
	b := r.f.Pools()[1]
	b.SetEndpoints([]fleet.Endpoint{{Name: engine}})
	b.ObserveFailure(engine, fleet.NoMetrics, "none in tests")
	r.do(r.request(http.MethodPost, "/v1/responses", `{"model":"b","input":"x"}`)).want(t, 200, `{"id":"resp_1","method":"POST"}`)
	for _, method := range []string{http.MethodGet, http.MethodDelete} {
		r.do(r.request(method, "/v1/responses/resp_1", "")).want(t, 200, `{"id":"resp_1","method":"`+method+`"}`)
		req := r.request(method, "/v1/responses/resp_1", "")
		req.Header.Set(front.HeaderModel, "a") // the response knows better where it is
		r.do(req).want(t, 200, `{"id":"resp_1","method":"`+method+`"}`)
	}
	r.do(r.request(http.MethodPost, "/v1/responses/resp_1/cancel", "")).want(t, 200, `{"id":"resp_1","method":"POST"}`)
	// To continue a response under a model of another pool is that pool's to refuse.
	r.do(r.request(http.MethodPost, "/v1/responses", `{"model":"a","previous_response_id":"resp_1"}`)).want(t, 200, `{"from":"a"}`)
	r.f.Apply([]fleet.PoolConfig{r.f.Pools()[0].Config(), {Name: "c", Model: "c"}}, "")
	r.do(r.request(http.MethodGet, "/v1/responses/resp_1", "")).wantError(t, 400, "invalid_request") // its pool is gone
}

// Engines are spoken to as they are configured: HTTP/2 without TLS, and TLS for the name they are configured under.
// H19.
func TestWaysToEndpoints(t *testing.T) {
	var got seen
	protocol := ""
	engine := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		protocol = r.Proto
		watcher(&got)(w, r)
	}))
	engine.Config.Protocols = new(http.Protocols)
	engine.Config.Protocols.SetHTTP1(true)
	engine.Config.Protocols.SetUnencryptedHTTP2(true)
	engine.Start()
	t.Cleanup(engine.Close)
	r := newRigAt(t, Options{}, engine.Listener.Addr().String())
	r.applyEndpoints([]fleet.Endpoint{{Name: r.engines[0], Host: "x", H2C: true}})
	big := `{"model":"m","prompt":"` + strings.Repeat("x", 3<<20) + `"}`
	r.post(big).want(t, 200, "{}")
	if protocol != "HTTP/2.0" || got.body != big {
		t.Errorf("got %s with %d bytes, want HTTP/2.0 with %d", protocol, len(got.body), len(big))
	}

	secure := httptest.NewUnstartedServer(watcher(&got))
	secure.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	secure.StartTLS()
	t.Cleanup(secure.Close)
	roots := x509.NewCertPool()
	roots.AddCert(secure.Certificate())
	r = newRigAt(t, Options{}, secure.Listener.Addr().String())
	r.applyEndpoints([]fleet.Endpoint{{Name: r.engines[0], Host: "example.com:8443", TLS: &tls.Config{RootCAs: roots}}})
	r.post(big).want(t, 200, "{}")
	if got.body != big || got.host != "example.com:8443" {
		t.Errorf("got %d bytes at host %q, want %d at example.com:8443", len(got.body), got.host, len(big))
	}
	// A certificate for another name is refused, and the request doesn't leave.
	r.applyEndpoints([]fleet.Endpoint{{Name: r.engines[0], Host: "other.example:8443", TLS: &tls.Config{RootCAs: roots}}})
	r.g.Apply(Options{Options: front.Options{SelectModel: true}})
	r.post(plainBody).wantError(t, 502, "upstream_error")
	if n := len(r.g.transports.by); n != 1 {
		t.Errorf("got %d transports kept, want those of the present settings only", n)
	}
}

// O08: every metric moves. O15, M17: the registry can be read at any time, with fixed label sets.
func TestEveryMetricMoves(t *testing.T) {
	full := func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) }
	r := newRig(t, Options{}, full, events(usageE, doneE))
	r.post(streamBody).want(t, 200, usageE+doneE)
	r.post("no JSON").wantError(t, 400, "invalid_request")
	r.do(r.request(http.MethodGet, "/wp-admin/setup.php", "")).wantError(t, 404, "not_found") // O03
	r.front.Close()
	got := r.gather()
	for key := range got {
		if strings.Contains(key, "decision_seconds") && got[key] == 0 {
			t.Errorf("got 0 for %s", key)
		}
	}
	const pool, both = `pool="pool"`, `operation="chat_completions",pool="pool"`
	want := map[string]float64{
		`sluice_requests_total{code="200",` + both + `}`:                          1,
		`sluice_requests_total{code="400",operation="chat_completions",pool=""}`:  1,
		`sluice_requests_total{code="404",operation="closed",pool=""}`:            1,
		`sluice_request_duration_seconds{` + both + `}`:                           1,
		`sluice_request_duration_seconds{operation="chat_completions",pool=""}`:   1,
		`sluice_request_duration_seconds{operation="closed",pool=""}`:             1,
		`sluice_time_to_first_token_seconds{` + both + `}`:                        1,
		`sluice_decision_seconds{` + pool + `}`:                                   1,
		`sluice_prompt_tokens_total{model="m",` + pool + `}`:                      15,
		`sluice_cached_prompt_tokens_total{model="m",` + pool + `}`:               8,
		`sluice_expected_cached_prompt_tokens_total{model="m",` + pool + `}`:      0,
		`sluice_output_tokens_total{model="m",` + pool + `}`:                      4,
		`sluice_moves_total{` + pool + `,reason="status"}`:                        1,
		`sluice_in_flight{` + pool + `}`:                                          0,
		`sluice_request_body_bytes`:                                               0,
		fmt.Sprintf(`sluice_decisions_total{endpoint=%q,%s}`, r.engines[0], pool): 1,
		fmt.Sprintf(`sluice_decisions_total{endpoint=%q,%s}`, r.engines[1], pool): 1,
	}
	delete(got, "sluice_request_body_bytes") // returned a moment after the answer; see the end of newRig
	delete(want, "sluice_request_body_bytes")
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("metrics (-want +got):\n%s", diff)
	}
	// client_aborts_total and broken_answers_total: see TestClientLeaves and TestBrokenStreamEndsWithAnErrorEvent.
}

// While a request is served, the gauges show it. L06: tokens are counted under the name that was asked for.
func TestGaugesAndLabels(t *testing.T) {
	arrived, goOn := make(chan struct{}), make(chan struct{})
	r := newRig(t, Options{}, func(w http.ResponseWriter, req *http.Request) {
		arrived <- struct{}{}
		<-goOn
		_, _ = io.Copy(io.Discard, req.Body)
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"usage":{"prompt_tokens":3,"completion_tokens":2}}`)
	})
	eps := []fleet.Endpoint{{Name: r.engines[0]}}
	r.f.Apply([]fleet.PoolConfig{{Name: "pool", Model: "m", Adapters: []string{"tuned"}, Profile: route.RoundRobin(), Endpoints: eps}}, "pool")
	big := `{"model":"tuned","prompt":"` + strings.Repeat("x", 1<<20) + `"}`
	done := make(chan answer)
	go func() { done <- r.post(big) }()
	<-arrived
	got := r.gather()
	if got[`sluice_in_flight{pool="pool"}`] != 1 || got[`sluice_request_body_bytes`] < 1<<20 {
		t.Errorf("got %v in flight and %v bytes held, want 1 and at least 1 MiB", got[`sluice_in_flight{pool="pool"}`], got[`sluice_request_body_bytes`])
	}
	goOn <- struct{}{}
	if a := <-done; a.status != 200 {
		t.Errorf("got %d, want 200", a.status)
	}
	go func() { done <- r.post(`{"model":"never heard of"}`) }() // O02: the default pool's, and no label of its own
	<-arrived
	goOn <- struct{}{}
	<-done
	got = r.gather()
	if a, b := got[`sluice_output_tokens_total{model="tuned",pool="pool"}`], got[`sluice_output_tokens_total{model="",pool="pool"}`]; a != 2 || b != 2 {
		t.Errorf("got %v tokens of the adapter and %v of unknown models, want 2 and 2", a, b)
	}
	// Its log line is what users grep; it holds nothing of the body. X08.
	r.front.Close()
	if log := r.log.String(); !strings.Contains(log, "modelName=tuned") || !strings.Contains(log, "x-request-id=") || strings.Contains(log, "xxxx") {
		t.Errorf("got log\n%s\nwant a line with x-request-id and modelName", log)
	}
}

// O06: series of endpoints and pools that have left are gone.
func TestSeriesLeaveWithTheirEndpoint(t *testing.T) {
	r := twoPools(t, Options{}, "")
	r.g.Apply(Options{Options: front.Options{SelectModel: true}})
	for _, m := range []string{"a", "b"} {
		r.do(r.request(http.MethodPost, chatPath, `{"model":"`+m+`"}`)).want(t, 200, `{"from":"`+m+`"}`)
	}
	r.f.Pools()[1].SetEndpoints(nil)
	for key := range r.gather() {
		if strings.Contains(key, r.engines[1]) {
			t.Errorf("got %s after the endpoint left", key)
		}
	}
	r.f.Apply([]fleet.PoolConfig{{Name: "a", Model: "a"}}, "")
	r.g.Apply(Options{Options: front.Options{SelectModel: true}})
	r.front.Close()
	for key := range r.gather() {
		if strings.Contains(key, `pool="b"`) {
			t.Errorf("got %s after the pool left", key)
		}
	}
}

// A pool that leaves while requests are in flight keeps its gauge until the last of them ends, and nothing of it comes
// back then. One that returns meanwhile goes on counting.
func TestPoolLeavesWithRequestsInFlight(t *testing.T) {
	arrived, goOn := make(chan struct{}), make(chan struct{})
	r := newRig(t, Options{}, func(w http.ResponseWriter, req *http.Request) {
		_, _ = io.Copy(io.Discard, req.Body)
		arrived <- struct{}{}
		<-goOn
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"usage":{"prompt_tokens":3,"completion_tokens":2}}`)
	})
	const gauge = `sluice_in_flight{pool="pool"}`
	apply := func(configs ...fleet.PoolConfig) {
		r.f.Apply(configs, "")
		r.g.Apply(Options{Options: front.Options{SelectModel: true}})
	}
	want := func(step string, inFlight float64, there bool) {
		t.Helper()
		got := r.gather()
		if n, ok := got[gauge]; n != inFlight || ok != there {
			t.Errorf("%s: got %v in flight (series there: %v), want %v (%v)", step, n, ok, inFlight, there)
		}
		for key := range got {
			if !there && strings.Contains(key, `pool="pool"`) {
				t.Errorf("%s: got %s", step, key)
			}
		}
	}
	done := make(chan answer, 2)
	begin := func() {
		go func() { done <- r.post(plainBody) }()
		<-arrived
	}
	end := func() {
		t.Helper()
		goOn <- struct{}{}
		if a := <-done; a.status != 200 {
			t.Errorf("got %d, want 200", a.status)
		}
	}
	pool := fleet.PoolConfig{Name: "pool", Model: "m", Profile: route.RoundRobin(), Endpoints: []fleet.Endpoint{{Name: r.engines[0]}}}
	begin()
	apply()
	want("gone, one in flight", 1, true)
	apply(pool)
	r.pool = r.f.Pools()[0]
	r.pool.ObserveFailure(r.engines[0], fleet.NoMetrics, "none in tests")
	begin()
	want("back, one old and one new", 2, true)
	end()
	end()
	begin()
	apply()
	end()
	r.front.Close() // waits for the end of requests
	want("gone, none in flight", 0, false)
}

// L06: an adapter that was unloaded everywhere leaves no series.
func TestSeriesLeaveWithTheirAdapter(t *testing.T) {
	r := newRig(t, Options{}, func(w http.ResponseWriter, req *http.Request) {
		_, _ = io.Copy(io.Discard, req.Body)
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"usage":{"prompt_tokens":3,"completion_tokens":2}}`)
	})
	r.pool.ObserveModels(r.engines[0], "vllm", []fleet.Model{{ID: "m"}, {ID: "tuned", Parent: "m"}})
	for _, model := range []string{"tuned", "m"} {
		if a := r.post(`{"model":"` + model + `"}`); a.status != 200 {
			t.Errorf("%s: got %d, want 200", model, a.status)
		}
	}
	if n := r.gather()[`sluice_output_tokens_total{model="tuned",pool="pool"}`]; n != 2 {
		t.Errorf("got %v tokens of the adapter, want 2", n)
	}
	r.pool.ObserveModels(r.engines[0], "vllm", []fleet.Model{{ID: "m"}})
	got := r.gather()
	for key := range got {
		if strings.Contains(key, "tuned") {
			t.Errorf("got %s after the adapter left", key)
		}
	}
	if n := got[`sluice_output_tokens_total{model="m",pool="pool"}`]; n != 2 {
		t.Errorf("got %v tokens of the base model, want 2", n)
	}
}

// O13: every second decision is recorded, whole, and can be decided again.
func TestRecords(t *testing.T) {
	var records []*route.Record
	odd := false
	r := newRig(t, Options{Options: front.Options{Record: func(r *route.Record) { records = append(records, r) }, Sample: func(string) bool { odd = !odd; return !odd }}}, says("a"), says("b"))
	for i := range 4 {
		req := r.request(http.MethodPost, chatPath, plainBody)
		req.Header.Set("X-Request-Id", fmt.Sprint("id-", i))
		r.do(req)
	}
	r.front.Close()
	var ids []string
	for _, rec := range records {
		ids = append(ids, rec.ID)
		if d := route.RoundRobin().Decide(&rec.View); d.Endpoint != rec.Decision.Endpoint || rec.Pool != "pool" || rec.Profile != "round-robin" {
			t.Errorf("got %+v decided again from the record, want %+v", d, rec.Decision)
		}
	}
	if diff := cmp.Diff([]string{"id-1", "id-3"}, ids); diff != "" {
		t.Errorf("records (-want +got):\n%s", diff)
	}
}

// O13: that no endpoint may serve is recorded with the reason.
func TestRefusalIsRecorded(t *testing.T) {
	var records []*route.Record
	r := newRig(t, Options{Options: front.Options{Record: func(r *route.Record) { records = append(records, r) }, Sample: func(string) bool { return true }}}, says("a"))
	r.pool.ObserveFailure(r.engines[0], fleet.Unreachable, "connection refused")
	a := r.post(plainBody)
	r.front.Close()
	if a.status != http.StatusServiceUnavailable || len(records) != 1 {
		t.Fatalf("got status %d and %d records, want 503 and one", a.status, len(records))
	}
	if rec := records[0]; rec.Decision.Verdict != route.NoEndpoint || rec.View.Snapshot.Why[0] != "connection refused" {
		t.Errorf("got %+v because %q, want no endpoint and why", rec.Decision, rec.View.Snapshot.Why)
	}
}

// S13, S14: an id that many requests share is no key to anything.
func TestSharedRequestID(t *testing.T) {
	r := newRig(t, Options{}, says("a"), says("b"))
	results := make(chan answer)
	for range 20 {
		go func() {
			req := r.request(http.MethodPost, chatPath, plainBody)
			req.Header.Set("X-Request-Id", "same")
			results <- r.do(req)
		}()
	}
	for range 20 {
		if a := <-results; a.status != 200 || a.header.Get("X-Request-Id") != "same" {
			t.Errorf("got %d with id %q, want 200 with the id", a.status, a.header.Get("X-Request-Id"))
		}
	}
}

// Nothing that the gateway started runs on after it.
func TestNoGoroutineIsLeft(t *testing.T) {
	before := runtime.NumGoroutine()
	func() {
		f := new(fleet.Fleet)
		engine := httptest.NewServer(events(eventA, doneE))
		defer engine.Close()
		f.Apply([]fleet.PoolConfig{{Name: "pool", Model: "m", Endpoints: []fleet.Endpoint{{Name: engine.Listener.Addr().String()}}}}, "")
		f.Pools()[0].ObserveFailure(engine.Listener.Addr().String(), fleet.NoMetrics, "none")
		r := &rig{t: t, f: f, reg: prometheus.NewRegistry()}
		r.g = New(f, Options{Options: front.Options{SelectModel: true}}, r.reg, clock(), discard())
		r.front = httptest.NewServer(r.g)
		for range 20 {
			r.post(streamBody).want(t, 200, eventA+doneE)
		}
		r.front.Close()
		r.g.Close()
	}()
	if !eventually(func() bool { return runtime.NumGoroutine() <= before }) { // connections' goroutines end a moment after their connection
		t.Fatalf("got %d goroutines, want the %d from before", runtime.NumGoroutine(), before)
	}
}
