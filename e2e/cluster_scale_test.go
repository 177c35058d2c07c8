//go:build cluster && linux

package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestHundredSchedulers: a gateway with a hundred models is programmed within a minute. The first, the fiftieth and the last
// have model servers of their own, which answer; the others share one, of which they are adapters.
func TestHundredSchedulers(t *testing.T) {
	const n, within = 100, time.Minute
	p := withSluice(t)
	t.Cleanup(p.retire)
	own := []int{1, 50, n}
	var models, apps []string
	spec := "  bbr: {enabled: true}\n  schedulers:\n"
	for i := 1; i <= n; i++ {
		app, model := "shared", fmt.Sprintf("model-%03d", i)
		if slices.Contains(own, i) {
			app = model
			apps = append(apps, simulated(app, model, 1))
		} else {
			models = append(models, model)
		}
		spec += fmt.Sprintf("  - {name: s-%03d, modelName: %s, modelSelector: {matchLabels: {app: %s}}}\n", i, model, app)
	}
	p.apply(append(apps, simulated("shared", "base", 1, "--adapters", strings.Join(models, ",")))...)
	p.waitReady("shared", 1)
	began := time.Now()
	p.apply(gateway(p.name, spec))
	p.waitServing(p.name)
	programmed := time.Since(began)
	for _, i := range own {
		model := fmt.Sprintf("model-%03d", i)
		p.waitAnswers(model)
		got := p.send(p.name, "/v1/chat/completions", chat(model, "hello"))
		want := p.waitReady(model, 1)[0].Status.PodIP + ":" + enginePort
		if endpoint := got.header.Get("X-Gateway-Destination-Endpoint-Served"); got.status != 200 || endpoint != want {
			t.Errorf("%s: got %d from %q, want 200 from %s: %s", model, got.status, endpoint, want, got.body)
		}
	}
	t.Logf("%d schedulers are serving after %.1f s, and the first, the fiftieth and the last have answered after %.1f s", n, programmed.Seconds(), time.Since(began).Seconds())
	if took := time.Since(began); took > within {
		t.Errorf("got answers after %v, want them within %v", took, within)
	}
}
