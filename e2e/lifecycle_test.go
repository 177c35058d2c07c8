//go:build doors && unix

package e2e

import (
	"bytes"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"text/template"
	"time"
)

// TestDrain asks the gateway to stop while a stream runs: new connections are
// refused, the stream ends whole, and then the process with code 0. A07, K03.
func TestDrain(t *testing.T) { throughBoth(t, drain) }

func drain(t *testing.T, d door) {
	t.Parallel()
	_, g := neighbours(t, d, 4)
	client := startClient(t, "stream", g.url, "--tokens", "1000")
	client.begins(30 * time.Second)
	g.signal(syscall.SIGTERM)

	address := strings.TrimPrefix(g.url, "http://")
	eventually(t, "new connections to be refused", 3*time.Second, func() bool {
		connection, err := net.DialTimeout("tcp", address, time.Second)
		if err == nil {
			connection.Close()
		}
		return err != nil
	})
	if got := tally(client.events()); got != (counts{}) {
		t.Fatalf("got a stream that had ended (%+v) when connections were refused, want one that runs on", got)
	}
	all := client.finish(time.Minute)
	wantNoneLost(t, all)
	if end := all[len(all)-1]; end.Outcome != "ok" || end.Tokens != 1000 {
		t.Errorf("got a stream that ended %q after %d tokens (%s), want ok after 1000", end.Outcome, end.Tokens, end.Message)
	}
	if code := g.exitCode(t, 20*time.Second); code != 0 {
		t.Errorf("got exit code %d, want 0", code)
	}
}

var configuration = template.Must(template.New("gateway.yaml").Parse(tinyEndpoints + `{{- range .Engines}}
  - address: {{.}}
    labels:
      app: tiny
    drain: {{eq . $.Drained}}
{{- end}}
{{- if .Fault}}
  {{.Fault}}: true
{{- end}}
`))

// fleetFile is what a test varies in the configuration.
type fleetFile struct {
	Engines []string
	Drained string // address, or none
	Fault   string // a field that doesn't exist, or none
}

// write replaces the file in one step, as a careful editor does.
func (f fleetFile) write(t *testing.T, path string) {
	t.Helper()
	var text bytes.Buffer
	if err := configuration.Execute(&text, f); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path+".new", text.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

// TestConfigurationChanges changes the file under load: an endpoint is drained, a
// broken file changes nothing, and the endpoint comes back. Nothing is lost.
func TestConfigurationChanges(t *testing.T) { throughBoth(t, configurationChanges) }

func configurationChanges(t *testing.T, d door) {
	engines := startEngines(t, 3, 4, "--alias", chatModel)
	file := fleetFile{Engines: strings.Split(addresses(engines), ",")}
	path := filepath.Join(t.TempDir(), "gateway.yaml")
	file.write(t, path)
	g := d.start(t, []string{chatModel}, "-f", path)
	client := startClient(t, "load", g.url, "--concurrency", "9")
	client.waitEnds(nil, 30, time.Minute)
	drained := engines[1]

	// quiet waits for a time in which many requests end and none is the engine's.
	quiet := func(what string) {
		t.Helper()
		eventually(t, what, time.Minute, func() bool {
			before := drained.mustRead(t)
			client.waitEnds(client.events(), 30, time.Minute)
			return drained.mustRead(t).prompts() == before.prompts() && before["requests_processing"] == 0
		})
	}
	if drained.mustRead(t).prompts() == 0 {
		t.Fatalf("got no request on %s before it was drained, want some", drained.name)
	}
	file.Drained = drained.address
	file.write(t, path)
	quiet("no request to go to the drained endpoint")

	told := len(g.stderr.since(0))
	broken := file
	broken.Drained, broken.Fault = "", "noSuchField"
	broken.write(t, path)
	eventually(t, "the log to name the field that doesn't exist", 30*time.Second, func() bool { return g.stderr.holding(told, "noSuchField") })
	quiet("a broken file to change nothing")

	base := drained.mustRead(t).prompts()
	file.Drained = ""
	file.write(t, path)
	eventually(t, "the endpoint to get requests again", time.Minute, func() bool { return drained.mustRead(t).prompts() > base })

	all := client.finish(time.Minute)
	wantNoneLost(t, all)
	if got := tally(all); got.Broken != 0 {
		t.Errorf("got %+v, want no broken stream", got)
	}
	t.Logf("%+v over three changes of the file", tally(all))
}
