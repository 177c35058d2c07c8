//go:build (doors || dataplane) && unix

package e2e

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"sigs.k8s.io/yaml"
)

// plane is a picker and an Envoy that asks it, each started by itself as an operator would.
type plane struct {
	*gateway          // the picker; url is the front door, which is Envoy's
	envoy    *process // nil before startEnvoy
	stats    string   // URL of Envoy's own administration

	binary     string // Envoy's
	listen     int    // port of the picker
	pickArgs   []string
	configured string // Envoy's configuration
}

// planeOptions say how a plane differs from the usual one.
type planeOptions struct {
	binary    string   // of Envoy; the newer release by default
	endpoints []string // --endpoint or -f, for both
	pick      []string // more arguments of sluice pick
	envoy     []string // more arguments of sluice envoy
	// patch changes Envoy's configuration.
	patch func(bootstrap object)
}

// newPlane writes Envoy's configuration and starts nothing.
func newPlane(t *testing.T, o planeOptions) *plane {
	t.Helper()
	if o.binary == "" {
		o.binary = os.Getenv(envoyVariable)
	}
	ports := freePorts(t, 3)
	p := &plane{binary: o.binary, listen: ports[0], configured: filepath.Join(t.TempDir(), "envoy.yaml"), stats: "http://" + loopback(ports[2])}
	p.gateway = &gateway{url: "http://" + loopback(ports[1])}
	args := append([]string{"envoy", "--picker", loopback(p.listen), "--listen", loopback(ports[1]), "--admin", loopback(ports[2]), "--access-log", "",
		"--out", p.configured}, o.endpoints...)
	writer := start(t, "sluice envoy", os.Getenv(binaryVariable), append(args, o.envoy...)...)
	if code := writer.exitCode(t, time.Minute); code != 0 {
		t.Fatalf("got exit code %d of sluice envoy, want 0:\n%s", code, writer.tail(20))
	}
	if o.patch != nil {
		patchFile(t, p.configured, o.patch)
	}
	p.pickArgs = append(append([]string{"pick", "--listen", loopback(p.listen), "--admin", "127.0.0.1:0"}, o.endpoints...), o.pick...)
	return p
}

// startPlane starts both and waits until a model is listed.
func startPlane(t *testing.T, model string, o planeOptions) *plane {
	t.Helper()
	p := newPlane(t, o)
	p.startPicker(t)
	p.startEnvoy(t)
	p.waitFor(t, model)
	return p
}

func (p *plane) waitFor(t *testing.T, model string) {
	t.Helper()
	eventually(t, "Envoy to list the model", 30*time.Second, func() bool { return p.lists([]string{model}) })
}

func (p *plane) startPicker(t *testing.T) {
	t.Helper()
	p.process, p.admin = start(t, "picker", os.Getenv(binaryVariable), p.pickArgs...), ""
	eventually(t, "the picker to say where its metrics are", 30*time.Second, func() bool {
		if !p.running() {
			t.Fatalf("the picker ended at its start:\n%s", p.tail(30))
		}
		for _, line := range append(p.stdout.since(0), p.stderr.since(0)...) {
			if match := served.FindStringSubmatch(line); match != nil && match[1] == "metrics" {
				p.admin = match[2]
			}
		}
		return p.admin != ""
	})
}

// stopPicker asks the picker to end, or kills it.
func (p *plane) stopPicker(t *testing.T, s syscall.Signal) {
	t.Helper()
	if p.stderr.holding(0, "DATA RACE") {
		t.Errorf("got a data race in the picker, want none:\n%s", p.tail(60))
	}
	p.signal(s)
	code := p.exitCode(t, time.Minute)
	if s == syscall.SIGTERM && code != 0 {
		t.Errorf("got exit code %d of the picker, want 0:\n%s", code, p.tail(30))
	}
}

func (p *plane) startEnvoy(t *testing.T) {
	t.Helper()
	p.envoy = runEnvoy(t, "Envoy", p.binary, p.configured)
}

// runEnvoy starts an Envoy with a bootstrap and waits until it serves.
func runEnvoy(t *testing.T, name, binary, bootstrap string) *process {
	t.Helper()
	p := start(t, name, binary, "-c", bootstrap, "--concurrency", "1", "--use-dynamic-base-id", "--disable-hot-restart")
	eventually(t, name+" to start", time.Minute, func() bool {
		if !p.running() {
			t.Fatalf("%s ended:\n%s", name, p.tail(20))
		}
		return p.stderr.holding(0, "all dependencies initialized. starting workers")
	})
	return p
}

// stat reads one of Envoy's own counters, summed over all names that contain the parts.
func (p *plane) stat(t *testing.T, parts ...string) int {
	t.Helper()
	answer, err := http.Get(p.stats + "/stats?format=json")
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	var all struct {
		Stats []struct {
			Name  string
			Value json.RawMessage
		}
	}
	if err := json.NewDecoder(answer.Body).Decode(&all); err != nil {
		t.Fatal(err)
	}
	sum := 0
	for _, s := range all.Stats {
		found := 0
		for _, part := range parts {
			if strings.Contains(s.Name, part) {
				found++
			}
		}
		if n, err := strconv.Atoi(string(s.Value)); err == nil && found == len(parts) {
			sum += n
		}
	}
	return sum
}

// wantNothingOpen waits until neither the picker nor Envoy counts a request.
func (p *plane) wantNothingOpen(t *testing.T) {
	t.Helper()
	p.wantNothingCounted(t)
	eventually(t, "Envoy to have no request open", 30*time.Second, func() bool {
		return p.stat(t, "http.sluice.downstream_rq_active") == 0 && p.stat(t, "cluster.pool/", ".upstream_rq_active") == 0
	})
}

// object is a part of a configuration as it stands in JSON.
type object = map[string]any

// patchFile changes a YAML file.
func patchFile(t *testing.T, path string, patch func(object)) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var whole object
	if err := yaml.Unmarshal(text, &whole); err != nil {
		t.Fatal(err)
	}
	patch(whole)
	if text, err = json.Marshal(whole); err != nil { // which is YAML, too
		t.Fatal(err)
	}
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
}
