//go:build doors && unix

package e2e

import (
	"testing"
	"time"
)

// TestSharedPrefixes holds conversations over six long preambles and lets the
// engines count the prompt tokens they found in their caches: once with the
// default profile through each front door, once with round robin, on engines that start empty again. The
// three engines have three slots each, so all preambles fit in the fleet and half of
// them in any one engine. Two requests at a time: with more, machines differ in how long a request waits where its
// beginning is held, and with that in how often it is worth its while to go elsewhere.
func TestSharedPrefixes(t *testing.T) {
	measure := func(t *testing.T, d door, args ...string) (cached, prompts float64) {
		engines, g := neighbours(t, d, 3, args...)
		all := startClient(t, "prefix", g.url, "--words", "1280", "--tokens", "8", "--concurrency", "2",
			"--preambles", "6", "--conversations", "2", "--turns", "3").finish(3 * time.Minute)
		wantNoneLost(t, all)
		first, ended := 0.0, 0
		for _, e := range all {
			if e.Event == "end" {
				first, ended = first+e.Seconds, ended+1
			}
		}
		if ended != 36 {
			t.Errorf("got %d requests, want 36", ended)
		}
		for _, e := range engines {
			r := e.mustRead(t)
			t.Logf("%s %v: %s: %.0f prompt tokens, %.0f of them cached", d.name, args, e.name, r.prompts(), r["prompt_tokens_cached_total"])
			cached, prompts = cached+r["prompt_tokens_cached_total"], prompts+r.prompts()
			e.signal(9)
		}
		g.stop(t)
		t.Logf("%s %v: %.0f of %.0f prompt tokens cached (%.0f %%), %.2f s a request", d.name, args, cached, prompts, 100*cached/prompts, first/float64(ended))
		return cached, prompts
	}
	plain, _ := measure(t, embeddedDoor(), "--profile", "round-robin") // at which no front door has a part
	throughBoth(t, func(t *testing.T, d door) {
		chosen, all := measure(t, d)
		t.Logf("cached prompt tokens of %.0f: %.0f by default, %.0f with round robin: %.2f times as many", all, chosen, plain, chosen/plain)
		// Round robin meets its own traces by luck: 27 % to 51 %. What has to be computed at least once leaves some 84 % to find, of which the
		// default finds 79 % of all where few requests wait for each other.
		if chosen < 1.3*plain || chosen < 0.7*all {
			t.Errorf("got %.0f of %.0f prompt tokens cached by default and %.0f with round robin, want at least 70 %% and 1.3 times as many", chosen, all, plain)
		}
	})
}
