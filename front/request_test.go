package front

import (
	"context"
	"log/slog"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-gateway/sluice/fleet"
	"github.com/sluice-gateway/sluice/openai"
	"github.com/sluice-gateway/sluice/route"
)

// newDesk makes a desk for a pool of ready endpoints that serve the model "m".
func newDesk(t testing.TB, o Options, endpoints ...fleet.Endpoint) *Desk {
	t.Helper()
	f := new(fleet.Fleet)
	f.Apply([]fleet.PoolConfig{{Name: "pool", Model: "m", Profile: route.RoundRobin(), Endpoints: endpoints}}, "")
	for _, e := range endpoints {
		f.Pools()[0].ObserveFailure(e.Name, fleet.NoMetrics, "none in tests")
	}
	o.SelectModel = true
	return New(f, o, prometheus.NewRegistry(), func() time.Duration { return time.Second }, slog.New(slog.DiscardHandler))
}

// A door that has nothing of net/http but a header map gets a request through, and its memory back.
func TestRequestWithoutAServer(t *testing.T) {
	var ended []Ended
	d := newDesk(t, Options{MaxBodyBytes: 100, Ended: func(e Ended) { ended = append(ended, e) }},
		fleet.Endpoint{Name: "a", Host: "a:1", APIKey: "secret", Ranks: 2, Rank: 1}, fleet.Endpoint{Name: "b", Host: "b:1"})
	var r Request
	d.Begin(&r, http.MethodPost, "/v1/chat/completions", http.Header{"Content-Type": {"application/json"}, "X-Request-Id": {"it"},
		"Connection": {"x-hop"}})
	if e := r.Admit(); e != nil {
		t.Fatal(e)
	}
	if e := r.CheckHeader(); e != nil {
		t.Fatal(e)
	}
	done := 0
	if e := r.HoldBody([][]byte{make([]byte, 60), make([]byte, 60)}, func() { done++ }); e == nil || e.Case != openai.TooLarge || done != 1 {
		t.Errorf("got %v, %d given back; want 413 and the memory back", e, done)
	}
	if e := r.HoldBody([][]byte{[]byte(`{"mod`), []byte(`el":"m"}`)}, func() { done++ }); e != nil {
		t.Fatal(e)
	}
	lease, e := r.Decide()
	if e != nil {
		t.Fatal(e)
	}
	if r.Pool.Name() != "pool" || r.Model != "m" || lease.Endpoint.Name != "a" {
		t.Errorf("got %q in pool %q at %s", r.Model, r.Pool.Name(), lease.Endpoint.Name)
	}
	want := []Header{{HeaderModel, "m"}, {HeaderRequestID, "it"}, {HeaderRank, "1"}, {"Authorization", "Bearer secret"}}
	if got := r.EngineHeaders(&lease.Endpoint, nil); !slices.Equal(got, want) {
		t.Errorf("got %v for the engine, want %v", got, want)
	}
	for name, drops := range map[string]bool{"X-Hop": true, "Te": true, "X-Gateway-Inference-Objective": true, HeaderModel: true, "Accept-Encoding": true,
		"Accept": false, "Traceparent": false} {
		if r.Drops(name) != drops {
			t.Errorf("%s: got dropped %v, want %v", name, !drops, drops)
		}
	}
	want = []Header{{HeaderRequestID, "it"}, {HeaderServed, "a"}, {HeaderReason, lease.Reason}}
	if got := r.AnswerHeaders(lease, nil); !slices.Equal(got, want) {
		t.Errorf("got %v for the client, want %v", got, want)
	}
	r.Want.Tried = append(r.Want.Tried, "a")
	other := r.Pick(true)
	if other == nil || other.Endpoint.Name != "b" {
		t.Fatalf("got %v, want a place at b", other)
	}
	lease.Done(time.Second, fleet.Outcome{Ending: fleet.Moved})
	other.Done(time.Second, fleet.Outcome{})
	r.Ended.Status, r.Ended.Endpoint = 200, "b"
	r.End(context.Background())
	r.End(context.Background())
	if done != 2 || len(ended) != 1 || ended[0] != (Ended{ID: "it", Pool: "pool", Model: "m", Endpoint: "b", Status: 200}) {
		t.Errorf("got the memory back %d times and the ends %+v, want 2 and one", done, ended)
	}
}

// What is closed, and what a path doesn't take, is told as values.
func TestAdmit(t *testing.T) {
	d := newDesk(t, Options{})
	for _, c := range []struct {
		method, path string
		want         openai.Case
		allow        string
	}{{"GET", "/metrics", openai.PathNotFound, ""}, {"GET", "/v1/completions", openai.MethodNotAllowed, "POST"},
		{"POST", "/v1/models", openai.MethodNotAllowed, "GET, HEAD"}, {"POST", "/v1/responses/resp_1", openai.MethodNotAllowed, "GET, HEAD, DELETE"}} {
		var r Request
		d.Begin(&r, c.method, c.path, nil)
		if e := r.Admit(); e == nil || e.Case != c.want || e.Allow != c.allow || e.Header().Get("Allow") != c.allow {
			t.Errorf("%s %s: got %v, want status %d and Allow %q", c.method, c.path, e, c.want.Status(), c.allow)
		}
	}
	var r Request
	d.Begin(&r, "GET", "/v1/models", nil)
	if e := r.Admit(); e != nil || r.ID == "" {
		t.Errorf("got %v and id %q", e, r.ID)
	}
}

// Nothing that holds no body stands in for one, and no endpoint is an error that says when to come again.
func TestDecideRefuses(t *testing.T) {
	d := newDesk(t, Options{})
	ask := func(body string) *openai.Error {
		var r Request
		d.Begin(&r, "POST", "/v1/completions", nil)
		if body != "" {
			if e := r.HoldBody([][]byte{[]byte(body)}, nil); e != nil {
				t.Fatal(e)
			}
		}
		_ = r.Admit()
		_, e := r.Decide()
		r.End(context.Background())
		return e
	}
	if e := ask(""); e == nil || e.Case != openai.InvalidRequest {
		t.Errorf("got %v without a body", e)
	}
	if e := ask(`{"model":"m"}`); e == nil || e.Case != openai.NoEndpoint || e.RetryAfter != RetryAfter {
		t.Errorf("got %v without an endpoint", e)
	}
}

// Two types are refused as two lines and as the one that Envoy makes of them; a comma in a parameter is none of it.
func TestCheckHeaderTakesOneType(t *testing.T) {
	d := newDesk(t, Options{})
	for values, want := range map[[2]string]bool{
		{"application/json", "application/json"}:                                       true,
		{"application/json", "text/plain"}:                                             false,
		{"application/json,text/plain", "application/json,text/plain"}:                 false,
		{`multipart/form-data; boundary="a,b"`, `multipart/form-data; boundary="a,b"`}: true,
	} {
		var r Request
		d.Begin(&r, http.MethodPost, "/v1/completions", http.Header{"Content-Type": values[:]})
		if e := r.CheckHeader(); (e == nil) != want {
			t.Errorf("%q: got %v, want it taken %t", values, e, want)
		}
	}
}

// BenchmarkRequest is everything that a door has done before a request is sent, and after, without what carries bytes.
func BenchmarkRequest(b *testing.B) {
	d := newDesk(b, Options{}, fleet.Endpoint{Name: "a", Host: "a:1"}, fleet.Endpoint{Name: "b", Host: "b:1"})
	header := http.Header{"Content-Type": {"application/json"}}
	text := append(append([]byte(`{"model":"m","prompt":"`), slices.Repeat([]byte("words of a prompt "), 12_000)...), `"}`...)
	parts := [][]byte{text}
	room := make([]Header, 0, 8)
	b.ReportAllocs()
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		var r Request
		d.Begin(&r, http.MethodPost, "/v1/completions", header)
		_ = r.Admit()
		_ = r.CheckHeader()
		_ = r.HoldBody(parts, nil)
		lease, e := r.Decide()
		if e != nil {
			b.Fatal(e)
		}
		_ = r.EngineHeaders(&lease.Endpoint, room)
		lease.Done(time.Second, fleet.Outcome{})
		r.Ended.Status = 200
		r.End(context.Background())
	}
}
