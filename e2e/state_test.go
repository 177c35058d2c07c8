//go:build (doors || dataplane) && unix

package e2e

import (
	"encoding/json"
	"net/http"
	"testing"
	"time"
)

// state reads a page of the admin listener.
func (g *gateway) state(t *testing.T, page string, into any) {
	t.Helper()
	answer, err := http.Get(g.admin + page)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if err := json.NewDecoder(answer.Body).Decode(into); err != nil {
		t.Fatal(err)
	}
}

// wantNothingCounted waits until the gateway counts no request at any endpoint, which it has to once all have ended, however they did.
func (g *gateway) wantNothingCounted(t *testing.T) {
	t.Helper()
	eventually(t, "nothing to be counted at any endpoint", 10*time.Second, func() bool {
		var pools []struct {
			Endpoints []struct {
				InFlight, Prefilling int
				BacklogTokens        float64
			}
		}
		g.state(t, "/fleet", &pools)
		for _, p := range pools {
			for _, e := range p.Endpoints {
				if e.InFlight != 0 || e.Prefilling != 0 || e.BacklogTokens != 0 {
					return false
				}
			}
		}
		return len(pools) > 0
	})
}
