//go:build (doors || vllm || dataplane) && unix

package e2e

import (
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// gateway is one running `sluice serve`.
type gateway struct {
	*process
	url   string // of the front door
	admin string // of metrics and health
}

// served matches the two lines in which the command says where it listens.
var served = regexp.MustCompile(`\b(serving|metrics) on (https?://[^\s"]+)`)

// startGateway starts the gateway with further arguments and waits until it lists
// the models. At the end of the test it is asked to stop, has to stop with code 0,
// and may not have reported a data race.
func startGateway(t *testing.T, models []string, args ...string) *gateway {
	t.Helper()
	g := &gateway{process: start(t, "gateway", os.Getenv(binaryVariable), serveArgs(t, args...)...)}
	t.Cleanup(func() { g.stop(t) })
	eventually(t, "the gateway to say where it listens", 30*time.Second, func() bool {
		if !g.running() {
			t.Fatalf("the gateway ended at its start:\n%s", g.tail(30))
		}
		g.findAddresses()
		return g.url != "" && g.admin != ""
	})
	eventually(t, "the gateway to list the models", 30*time.Second, func() bool { return g.lists(models) })
	return g
}

// freeAddress is an address of the loopback that nobody listens on.
func freeAddress(t *testing.T) string {
	t.Helper()
	return loopback(freePorts(t, 1)[0])
}

// serveArgs are the arguments of a gateway that listens on free ports of the loopback. An Envoy takes the port for clients a while after it was
// found: no other process may be given it meanwhile.
func serveArgs(t *testing.T, more ...string) []string {
	return append([]string{"serve", "--listen", freeAddress(t), "--admin", "127.0.0.1:0"}, more...)
}

func (g *gateway) findAddresses() {
	for _, line := range append(g.stdout.since(0), g.stderr.since(0)...) {
		match := served.FindStringSubmatch(line)
		switch {
		case match == nil:
		case match[1] == "serving":
			g.url = match[2]
		default:
			g.admin = match[2]
		}
	}
}

// lists tells whether GET /v1/models names every one of the models.
func (g *gateway) lists(models []string) bool {
	client := http.Client{Timeout: 5 * time.Second}
	defer client.CloseIdleConnections()
	answer, err := client.Get(g.url + "/v1/models")
	if err != nil {
		return false
	}
	defer answer.Body.Close()
	var list struct {
		Data []struct {
			ID string `json:"id"`
		} `json:"data"`
	}
	if json.NewDecoder(answer.Body).Decode(&list) != nil {
		return false
	}
	for _, model := range models {
		if !slices.ContainsFunc(list.Data, func(m struct {
			ID string `json:"id"`
		}) bool {
			return m.ID == model
		}) {
			return false
		}
	}
	return true
}

// stop asks the gateway to end and checks how it did.
func (g *gateway) stop(t *testing.T) {
	if g.running() {
		g.signal(syscall.SIGTERM)
		tick := time.NewTimer(20 * time.Second)
		defer tick.Stop()
		select {
		case <-g.exited:
		case <-tick.C:
			t.Errorf("got a gateway that runs on 20 s after SIGTERM with no request in flight, want its end")
			g.signal(syscall.SIGKILL)
			<-g.exited
		}
	}
	if code := g.cmd.ProcessState.ExitCode(); code != 0 {
		t.Errorf("got exit code %d of the gateway, want 0", code)
	}
	if g.stderr.holding(0, "DATA RACE") {
		t.Errorf("got a data race in the gateway, want none")
	}
	if t.Failed() {
		t.Logf("the gateway's last lines:\n%s", g.tail(60))
	}
}

// holding tells whether one line after the first n contains every part, whatever
// the case of its letters.
func (l *lines) holding(n int, parts ...string) bool {
	for _, line := range l.since(n) {
		found := 0
		for _, part := range parts {
			if strings.Contains(strings.ToLower(line), strings.ToLower(part)) {
				found++
			}
		}
		if found == len(parts) {
			return true
		}
	}
	return false
}

// exitCode waits for the end and returns the code, or -1 when a signal ended it.
func (p *process) exitCode(t *testing.T, within time.Duration) int {
	t.Helper()
	eventually(t, p.name+" to exit", within, func() bool { return !p.running() })
	var exit *exec.ExitError
	if errors.As(p.err, &exit) {
		return exit.ExitCode()
	}
	if p.err != nil {
		t.Fatalf("cannot wait for %s: %v", p.name, p.err)
	}
	return 0
}

// tinyEndpoints is a configuration of one scheduler for the tiny model, up to the list of its endpoints, which are
// labelled app: tiny.
const tinyEndpoints = `apiVersion: inference.sagemaker.aws.amazon.com/v1alpha1
kind: InferenceGatewayConfig
metadata:
  name: local
spec:
  bbr:
    enabled: true
  schedulers:
  - name: tiny
    modelName: tiny
    modelSelector:
      matchLabels:
        app: tiny
---
apiVersion: gateway.sluice.dev/v1alpha1
kind: Endpoints
metadata:
  name: local
spec:
  endpoints:
`
