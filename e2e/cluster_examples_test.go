//go:build cluster && linux

package e2e

import (
	"strings"
	"testing"
)

// The hands-on guide of the reference, in its order: what it has its readers apply, and what they are to see.

// TestOneScheduler: without a body-based router every request goes to the one pool; a wrong name is the engine's own 404.
func TestOneScheduler(t *testing.T) {
	t.Parallel()
	p := withSluice(t)
	p.apply(simulated("llama", "llama", 1), gateway(p.name, `  bbr: {enabled: false}
  schedulers:
  - name: llama
    modelName: llama
    modelSelector: {matchLabels: {app: llama}}
`))
	p.waitServing(p.name)
	if got := p.send(p.name, "/v1/chat/completions", chat("llama", "hello"), "x-request-id", "one-1"); got.status != 200 {
		t.Errorf("got %d %s, want an answer", got.status, got.body)
	}
	got := p.send(p.name, "/v1/chat/completions", chat("nobody", "hello"), "x-request-id", "one-2")
	own, err := ask(t, urlOf(p.waitReady("llama", 1)[0].Status.PodIP, enginePort, "/v1/chat/completions"), chat("nobody", "hello"))
	if err != nil {
		t.Fatal(err)
	}
	if got.status != 404 || got.body != own.body {
		t.Errorf("got %d %s, want the engine's own %d %s", got.status, got.body, own.status, own.body)
	}
	log := p.logOf(p.name + "-picker")
	for _, want := range []string{`"x-request-id":"one-1","modelName":"llama"`, `"x-request-id":"one-2","modelName":"nobody"`} {
		if n := strings.Count(log, want); n != 1 {
			t.Errorf("got %s %d times in the picker's log, want once:\n%s", want, n, log)
		}
	}
}
