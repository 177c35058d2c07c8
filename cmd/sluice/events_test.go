package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/sim"
)

// Before two servers that publish KV events, a gateway that has seen nothing itself finds out which of them holds a
// conversation: M20, D08. Its prediction of cached tokens is what the engine then reports.
func TestServeFollowsEvents(t *testing.T) {
	var entries []string
	var addresses []string
	for range 2 {
		farm, err := sim.StartFarm(sim.Listen, nil, sim.ServerOptions{Engine: sim.EngineConfig{Profile: sim.Profiles()[0]}, Model: "m", Seed: 1,
			KVEvents: "tcp://127.0.0.1:0", Replay: "tcp://127.0.0.1:0", Speed: 20})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(farm.Close)
		events, replay := farm.Members[0].Server.KVEvents()
		port := func(a string) string { return a[strings.LastIndexByte(a, ':')+1:] }
		entries = append(entries, fmt.Sprintf("  - {address: %s, kvEvents: {port: %s, replayPort: %s}}\n", farm.Members[0].Address, port(events), port(replay)))
		addresses = append(addresses, farm.Members[0].Address)
	}
	file := filepath.Join(t.TempDir(), "gateway.yaml")
	text := "apiVersion: inference.sagemaker.aws.amazon.com/v1alpha1\nkind: InferenceGatewayConfig\nmetadata: {name: g}\n" +
		"spec:\n  bbr: {enabled: true}\n  schedulers:\n  - {name: p, modelName: m, modelSelector: {}}\n---\n" +
		"apiVersion: gateway.sluice.dev/v1alpha1\nkind: Endpoints\nmetadata: {name: e}\nspec:\n  endpoints:\n" + strings.Join(entries, "")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	// What both will be asked about is computed by one of them, for others.
	long := strings.Repeat("Some words that one server has seen before. ", 200)
	ask := func(address, more string) (cached int, served string) {
		t.Helper()
		body, err := json.Marshal(map[string]any{"model": "m", "max_tokens": 2,
			"messages": []any{map[string]any{"role": "system", "content": long}, map[string]any{"role": "user", "content": more}}})
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.Post(address+"/v1/chat/completions", "application/json", strings.NewReader(string(body)))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		var answer struct {
			Usage struct {
				Details struct {
					Cached int `json:"cached_tokens"`
				} `json:"prompt_tokens_details"`
			} `json:"usage"`
		}
		if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("got status %d, %v", resp.StatusCode, err)
		}
		return answer.Usage.Details.Cached, resp.Header.Get("X-Gateway-Destination-Endpoint-Served")
	}
	ask("http://"+addresses[1], "for others")
	g := startGateway(t, "-f", file)
	g.ready(t)
	metric := func(name string) float64 {
		_, page := get(g.admin + "/metrics")
		sum := 0.0
		for line := range strings.Lines(page) {
			var v float64
			if i := strings.LastIndexByte(line, ' '); strings.HasPrefix(line, name+"{") && i > 0 {
				if _, err := fmt.Sscan(line[i+1:], &v); err == nil {
					sum += v
				}
			}
		}
		return sum
	}
	eventually(t, "both are followed", func() bool { return metric("sluice_kv_following") == 4 && metric("sluice_endpoint_held_tokens") > 1000 })
	ask(g.public, "first") // its tokens are not known yet, so that it may go anywhere
	eventually(t, "the prompt's tokens are known", func() bool { return metric("sluice_kv_prompts_tokenized_total") == 1 })
	const expectedName, cachedName = "sluice_expected_cached_prompt_tokens_total", "sluice_cached_prompt_tokens_total"
	expected, cached := metric(expectedName), metric(cachedName)
	holder := ""
	for i := range 4 {
		before := metric(`sluice_kv_prompts_tokenized_total`)
		cached, served := ask(g.public, fmt.Sprintf("question %d", i))
		if cached < 1000 {
			t.Errorf("question %d: got %d cached tokens at %s, want it to go where the beginning is held", i, cached, served)
		}
		holder = served
		eventually(t, "its tokens are known", func() bool { return metric(`sluice_kv_prompts_tokenized_total`) > before })
	}
	if expected, cached = metric(expectedName)-expected, metric(cachedName)-cached; expected < .9*cached || expected > cached {
		t.Errorf("got %v tokens expected in caches and %v found there, want nearly as many and no more", expected, cached)
	}
	if _, fleet := get(g.admin + "/fleet"); !strings.Contains(fleet, `"prefixes": "exact"`) || !strings.Contains(fleet, holder) {
		t.Errorf("got the fleet page %s, want prefixes that are exact", fleet)
	}
}
