package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A configuration's rules and lists of adapters are in force: an alias reaches the engine under its other name, and an adapter that
// only a ConfigMap names is served, by which check and the list of models tell them.
func TestServeRewritesAndAdapters(t *testing.T) {
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/v1/models":
			fmt.Fprint(w, `{"object":"list","data":[{"id":"llama","object":"model"}]}`)
		case "/v1/chat/completions":
			_, _ = io.Copy(w, r.Body)
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(engine.Close)
	file := filepath.Join(t.TempDir(), "gateway.yaml")
	text := `apiVersion: inference.sagemaker.aws.amazon.com/v1alpha1
kind: InferenceGatewayConfig
metadata: {name: lab}
spec:
  bbr: {enabled: true}
  schedulers:
  - {name: llama, modelName: llama, modelSelector: {}}
---
apiVersion: gateway.sluice.dev/v1alpha1
kind: Endpoints
metadata: {name: rack}
spec: {endpoints: [{address: "` + addressOf(engine) + `"}]}
---
apiVersion: llm-d.ai/v1alpha2
kind: InferenceModelRewrite
metadata: {name: canary}
spec:
  poolRef: {name: llama}
  rules: [{matches: [{model: {value: ski}}], targets: [{modelRewrite: ski-v2}]}]
---
apiVersion: v1
kind: ConfigMap
metadata: {name: adapters, labels: {inference.networking.k8s.io/bbr-managed: "true"}}
data: {baseModel: llama, adapters: "[ski-v2, sql]"}
`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	g := startGateway(t, "-f", file)
	g.ready(t)
	for asked, got := range map[string]string{"ski": "ski-v2", "sql": "sql", "llama": "llama"} {
		if status, body := g.chat(t, asked); status != 200 || !strings.Contains(body, `"model":"`+got+`"`) {
			t.Errorf("%s: got %d %s, want it to go on as %s", asked, status, body, got)
		}
	}
	if status, body := g.chat(t, "other"); status != 404 {
		t.Errorf("got %d %s for a model of nobody's", status, body)
	}
	if _, body := get(g.public + "/v1/models"); !strings.Contains(body, `"id":"ski"`) {
		t.Errorf("got the models %s, want the alias among them", body)
	}
	if out := run(t, "check", "-f", file); !strings.Contains(out, "ski goes on as ski-v2") || !strings.Contains(out, "ski-v2, sql") {
		t.Errorf("got\n%s\nwant the rule and the adapters", out)
	}
}

// Objectives are in force at the front door: the explanation of a trusted client's request has the priority of the one that it
// names, and clients that aren't trusted have none, whatever they send.
func TestServeObjectives(t *testing.T) {
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(w, r.Body)
	}))
	t.Cleanup(engine.Close)
	file := filepath.Join(t.TempDir(), "gateway.yaml")
	text := `apiVersion: inference.sagemaker.aws.amazon.com/v1alpha1
kind: InferenceGatewayConfig
metadata: {name: lab}
spec:
  bbr: {enabled: true}
  schedulers:
  - {name: llama, modelName: llama, modelSelector: {}}
---
apiVersion: gateway.sluice.dev/v1alpha1
kind: Endpoints
metadata: {name: rack}
spec: {endpoints: [{address: "` + addressOf(engine) + `", engine: generic}]}
---
apiVersion: inference.networking.x-k8s.io/v1alpha2
kind: InferenceObjective
metadata: {name: batch}
spec: {priority: -10, poolRef: {name: llama}}
`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, trust := range []bool{true, false} {
		g := startGateway(t, "-f", file, fmt.Sprintf("--trust-client-headers=%t", trust))
		g.ready(t)
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, g.public+"/v1/completions", strings.NewReader(`{"model":"llama","prompt":"p"}`))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("X-Llm-D-Inference-Objective", "batch")
		answer, err := http.DefaultClient.Do(r)
		if err != nil || answer.StatusCode != 200 {
			t.Fatal(answer, err)
		}
		answer.Body.Close()
		if said := strings.Contains(run(t, "explain", "--admin", strings.TrimPrefix(g.admin, "http://")), ", objective batch, priority -10\n"); said != trust {
			t.Errorf("trusted %v: the explanation has the objective: %v", trust, said)
		}
		if err := g.stop(); err != nil {
			t.Error(err)
		}
	}
	if out := run(t, "check", "-f", file); !strings.Contains(out, "objectives  batch -10") || !strings.Contains(out, "there are no queues") {
		t.Errorf("got\n%s\nwant the objective, and that it orders nothing", out)
	}
}
