//go:build (peers || dataplane) && linux

package e2e

import (
	"os"
	"strings"
	"testing"
	"time"
)

// chatName is the model that all engines serve.
const chatName = "tiny"

// startSimulated starts a fleet of simulated servers that are alike wherever it is called with the same profiles; it returns the addresses of all n.
func startSimulated(t *testing.T, profiles []string, n int, more ...string) (*process, []string) {
	t.Helper()
	args := append([]string{"sim", "--model", chatName}, more...)
	for _, p := range profiles {
		args = append(args, "--profile", p)
	}
	p := start(t, "simulated servers", os.Getenv(binaryVariable), args...)
	var engines []string
	eventually(t, "the simulated servers to say where they are", 30*time.Second, func() bool {
		engines = nil
		for _, line := range p.stdout.since(0) {
			if _, address, found := strings.Cut(line, " on http://"); found {
				engines = append(engines, address)
			}
		}
		return len(engines) == n
	})
	return p, engines
}
