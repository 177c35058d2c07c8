package kube

import (
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
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
		{"pod":"mute","state":"not ready","metricsRead":false},
		{"pod":"old","metricsRead":true,"missingMetrics":["vllm:kv_cache_usage_perc"],"models":[]},
		{"pod":"ranks","metricsRead":false}, {"pod":"ranks","metricsRead":true},
		{"pod":"fresh"}, {"pod":"gone","metricsRead":true}, {"name":"10.0.0.9:80","host":"10.0.0.9:80","state":"ready","metricsRead":true},
		{"host":"10.0.0.8:80","state":"not ready","metricsRead":false}, {"metricsRead":true}]}]`)
	if !ask() {
		t.Error("got no news from the first answer")
	}
	yes, no := true, false
	want := map[string]podFacts{
		"fine": {uid: "1", metrics: &yes, models: []string{"llama"}}, "mute": {uid: "2", metrics: &no},
		"old":   {uid: "3", metrics: &yes, missing: []string{"vllm:kv_cache_usage_perc"}, models: []string{}},
		"ranks": {uid: "4", metrics: &no}, "fresh": {uid: "5"},
		"10.0.0.9:80": {ready: true, metrics: &yes}, "10.0.0.8:80": {metrics: &no},
	}
	compare := func() {
		t.Helper()
		if diff := cmp.Diff(want, a.facts(key), cmp.AllowUnexported(podFacts{})); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
	}
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
