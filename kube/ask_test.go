package kube

import (
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sluice-gateway/sluice/api/v1alpha1"
)

// What a picker says of pods is gone by while it answers, and for a while after; then nothing is known, which is not that
// something is wrong.
func TestAsking(t *testing.T) {
	var answer atomic.Pointer[string]
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text := answer.Load()
		if text == nil || r.URL.Path != "/fleet" {
			http.Error(w, "not now", http.StatusServiceUnavailable)
			return
		}
		_, _ = io.WriteString(w, *text)
	}))
	defer server.Close()
	says := func(text string) { answer.Store(&text) }
	now := time.Unix(1000, 0)
	a := newAsker(func() time.Time { return now }, slog.New(slog.DiscardHandler))
	key := types.NamespacedName{Namespace: "models", Name: "gw"}
	pickers := []witness{{"gw-picker", "gw-picker-0", strings.TrimPrefix(server.URL, "http://")}}
	uids := map[string]types.UID{"fine": "1", "mute": "2", "old": "3", "ranks": "4", "fresh": "5"}
	ask := func() bool { return a.ask(t.Context(), key, pickers, uids, time.Minute) }

	says(`[{"pool":"llama","endpoints":[
		{"pod":"fine","state":"ready","metricsRead":true,"models":["llama"]},
		{"pod":"mute","host":"10.0.0.2:9999","state":"not ready","why":"connection refused","metricsRead":false},
		{"pod":"old","metricsRead":true,"missingMetrics":["vllm:kv_cache_usage_perc"],"models":[]},
		{"pod":"ranks","metricsRead":false}, {"pod":"ranks","metricsRead":true},
		{"pod":"fresh"}, {"pod":"gone","metricsRead":true}, {"name":"10.0.0.9:80","host":"10.0.0.9:80","state":"ready","metricsRead":true},
		{"host":"10.0.0.8:80","state":"not ready","metricsRead":false}, {"metricsRead":true}]}]`)
	if !ask() {
		t.Error("got no news from the first answer")
	}
	yes, no := true, false
	in := func(one tried) map[string]tried { return map[string]tried{"llama": one} }
	want := map[string]podFacts{
		"fine":  {uid: "1", tried: in(tried{metrics: &yes, models: []string{"llama"}})},
		"mute":  {uid: "2", tried: in(tried{port: 9999, metrics: &no, why: "connection refused"})},
		"old":   {uid: "3", tried: in(tried{metrics: &yes, missing: []string{"vllm:kv_cache_usage_perc"}, models: []string{}})},
		"ranks": {uid: "4", tried: in(tried{metrics: &no})}, "fresh": {uid: "5", tried: in(tried{})},
		"10.0.0.9:80": {ready: true, tried: in(tried{metrics: &yes})}, "10.0.0.8:80": {tried: in(tried{metrics: &no, why: "it can't be reached"})},
	}
	compare := func() {
		t.Helper()
		if diff := cmp.Diff(want, a.facts(key), cmp.AllowUnexported(podFacts{}, tried{})); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
	}
	compare()
	if !ask() {
		t.Error("got no news that two can't be reached for long")
	}
	want["mute"].tried["llama"] = tried{port: 9999, metrics: &no, why: "connection refused", lasts: true}
	want["10.0.0.8:80"].tried["llama"] = tried{metrics: &no, why: "it can't be reached", lasts: true}
	compare()
	if ask() {
		t.Error("got news from the same answer")
	}

	// It does not answer: what it said counts for a minute.
	answer.Store(nil)
	now = now.Add(50 * time.Second)
	if ask() {
		t.Error("got news from silence")
	}
	compare()
	now = now.Add(20 * time.Second)
	if !ask() {
		t.Error("got no news that nothing is known any more")
	}
	want = map[string]podFacts{}
	compare()

	// A pod of the same name is another pod.
	says(`[{"pool":"llama","endpoints":[{"pod":"fine","metricsRead":true}]}]`)
	ask()
	uids["fine"] = "9"
	answer.Store(nil)
	ask()
	compare()
}

// Who can't be reached once may be the next time, and who lately could not is nothing else for a picker that has not tried: so a
// picker that begins, or a model server that is a moment late, changes nothing. One rank that is reached, or one scheduler's
// right port, does.
func TestAskingAgain(t *testing.T) {
	var answer atomic.Pointer[string]
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, *answer.Load()) }))
	defer server.Close()
	a := newAsker(time.Now, slog.New(slog.DiscardHandler))
	key := types.NamespacedName{Namespace: "models", Name: "gw"}
	ask := func(text string, want podFacts) {
		t.Helper()
		answer.Store(&text)
		a.ask(t.Context(), key, []witness{{"gw-picker", "gw-picker-0", strings.TrimPrefix(server.URL, "http://")}}, map[string]types.UID{"m-0": "1"}, time.Minute)
		if diff := cmp.Diff(want, a.facts(key)["m-0"], cmp.AllowUnexported(podFacts{}, tried{})); diff != "" {
			t.Errorf("%s: -want +got:\n%s", text, diff)
		}
	}
	yes, no := true, false
	in := func(one tried) map[string]tried { return map[string]tried{"m": one} }
	refused := `{"pod":"m-0","host":"10.0.0.1:81","state":"not ready","why":"refused","metricsRead":false}`
	pool := func(endpoints string) string { return `[{"pool":"m","endpoints":[` + endpoints + `]}]` }
	reached := `{"pod":"m-0","host":"10.0.0.1:81","state":"ready","metricsRead":true,"models":["m"]}`
	ask(pool(reached), podFacts{uid: "1", tried: in(tried{port: 81, metrics: &yes, models: []string{"m"}})})
	ask(pool(refused), podFacts{uid: "1", tried: in(tried{port: 81, metrics: &no, why: "refused"})})
	ask(pool(reached), podFacts{uid: "1", tried: in(tried{port: 81, metrics: &yes, models: []string{"m"}})})
	ask(pool(refused), podFacts{uid: "1", tried: in(tried{port: 81, metrics: &no, why: "refused"})})
	ask(pool(refused), podFacts{uid: "1", tried: in(tried{port: 81, metrics: &no, why: "refused", lasts: true})})
	ask(pool(`{"pod":"m-0","host":"10.0.0.1:81","state":"stale","why":"not asked yet"}`), podFacts{uid: "1", tried: in(tried{port: 81, metrics: &no, why: "refused", lasts: true})})
	ask(pool(refused+","+reached), podFacts{uid: "1", tried: in(tried{port: 81, metrics: &no, models: []string{"m"}})})
	// A rank that nobody has tried says nothing of the other one, which comes before it or after.
	a.forget(key)
	fresh := `{"pod":"m-0","host":"10.0.0.1:81","state":"stale","why":"not asked yet"}`
	ask(pool(refused+","+fresh), podFacts{uid: "1", tried: in(tried{port: 81, metrics: &no, why: "refused"})})
	a.forget(key)
	ask(pool(fresh+","+refused), podFacts{uid: "1", tried: in(tried{port: 81, metrics: &no, why: "refused"})})

	// What is found at one pool's port says nothing of another's.
	two := map[string]tried{"m": {port: 81, metrics: &no, why: "refused"}, "n": {port: 80, metrics: &yes, models: []string{"n"}}, "o": {port: 82}}
	a.forget(key)
	ask(`[{"pool":"m","endpoints":[`+refused+`]},{"pool":"n","endpoints":[{"pod":"m-0","host":"10.0.0.1:80","state":"ready","metricsRead":true,"models":["n"]}]},
		{"pool":"o","endpoints":[{"pod":"m-0","host":"10.0.0.1:82","state":"stale"}]}]`, podFacts{uid: "1", tried: two})
}

// While one of two pickers is silent, what it said of a pod that both know stays beside what the other says now.
func TestAskingOneOfTwo(t *testing.T) {
	yes, no := true, false
	before := map[string]podFacts{"m-0": {uid: "1", tried: map[string]tried{"m": {port: 81, metrics: &no, why: "refused"}, "n": {port: 80, metrics: &yes}}}}
	pods := maps.Clone(before)
	take(pods, before, []fleetPool{{Pool: "m", Endpoints: []fleetEndpoint{{Pod: "m-0", Host: "10.0.0.1:81", State: stateReady, MetricsRead: &yes}}}}, map[string]types.UID{"m-0": "1"}, make(map[spoken]bool))
	want := map[string]podFacts{"m-0": {uid: "1", tried: map[string]tried{"m": {port: 81, metrics: &yes}, "n": {port: 80, metrics: &yes}}}}
	if diff := cmp.Diff(want, pods, cmp.AllowUnexported(podFacts{}, tried{})); diff != "" || before["m-0"].tried["m"].why == "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// A configuration has changed lately when it has just come, and when it has another generation; and no more once that is long ago.
func TestChanged(t *testing.T) {
	now := time.Unix(0, 0)
	a := newAsker(func() time.Time { return now }, slog.New(slog.DiscardHandler))
	config := new(v1alpha1.InferenceGatewayConfig)
	f := func(after time.Duration, generation int64, want bool) {
		t.Helper()
		now, config.Generation = now.Add(after), generation
		if got := a.changed(config); got != want {
			t.Errorf("got %t, want %t", got, want)
		}
	}
	f(0, 1, true)
	f(askSoonFor-1, 1, true)
	f(1, 1, false)
	f(time.Hour, 2, true)
	f(askSoonFor, 2, false)
	a.forget(types.NamespacedName{})
	f(0, 2, true)
}
