package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/route"
)

// startEngine serves what an engine without metrics serves: a list of models, and answers that say which endpoint gave them.
func startEngine(t *testing.T, model string) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/v1/models":
			fmt.Fprintf(w, `{"object":"list","data":[{"id":%q,"object":"model"}]}`, model)
		case "/v1/chat/completions":
			_, _ = io.Copy(io.Discard, r.Body)
			fmt.Fprintf(w, `{"served":%q,"usage":{"prompt_tokens":4,"completion_tokens":2}}`, r.Host)
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(s.Close)
	return s
}

func addressOf(s *httptest.Server) string { return strings.TrimPrefix(s.URL, "http://") }

// syncBuffer is a log that a test reads while it is written.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// gateway is a running serve.
type gateway struct {
	public, admin, console string
	log                    *syncBuffer
	stop                   func() error
}

// startGateway runs serve with these arguments on free ports, and waits until it says where.
func startGateway(t *testing.T, args ...string) *gateway {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	g := &gateway{log: new(syncBuffer)}
	r, w := io.Pipe()
	cmd := root()
	cmd.SetArgs(append([]string{"serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--reload-interval", "10ms", "--scrape-interval", "20ms"}, args...))
	cmd.SetOut(w)
	cmd.SetErr(g.log)
	ended := make(chan error, 1)
	go func() {
		err := cmd.ExecuteContext(ctx)
		w.CloseWithError(err)
		ended <- err
	}()
	once := sync.OnceValue(func() error { cancel(); return <-ended })
	g.stop = once
	t.Cleanup(func() { _ = once() })
	lines := bufio.NewScanner(r)
	for _, to := range []struct {
		prefix string
		at     *string
	}{{"sluice: serving on ", &g.public}, {"sluice: metrics on ", &g.admin}, {"sluice: console on ", &g.console}} {
		if !lines.Scan() {
			t.Fatalf("serve ended early: %v; log:\n%s", lines.Err(), g.log)
		}
		address, ok := strings.CutPrefix(lines.Text(), to.prefix)
		if !ok {
			t.Fatalf("got line %q, want it to begin with %q", lines.Text(), to.prefix)
		}
		*to.at = address
	}
	return g
}

// eventually waits until f holds.
func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	limit := time.After(20 * time.Second)
	for !f() {
		select {
		case <-tick.C:
		case <-limit:
			t.Fatalf("waited 20 s in vain until %s", what)
		}
	}
}

// get returns the status and the body, or 0 for no answer.
func get(url string) (int, string) {
	resp, err := http.Get(url)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, string(body)
}

// chat asks for one answer and returns the status and the body.
func (g *gateway) chat(t *testing.T, model string) (int, string) {
	t.Helper()
	resp, err := http.Post(g.public+"/v1/chat/completions", "application/json",
		strings.NewReader(fmt.Sprintf(`{"model":%q,"messages":[{"role":"user","content":"hello"}]}`, model)))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

func (g *gateway) ready(t *testing.T) {
	t.Helper()
	eventually(t, "the gateway is ready", func() bool { status, _ := get(g.public + "/readyz"); return status == 200 })
}

// TestExplainWithoutDecisions: where requests were answered before anything was decided, that is said, and a pool without endpoints
// has no tables.
func TestExplainWithoutDecisions(t *testing.T) {
	g := startGateway(t, "--endpoint", "m="+addressOf(startEngine(t, "m")))
	g.ready(t)
	f := func(want string) {
		t.Helper()
		if out := run(t, "explain", "--admin", g.admin); out != want {
			t.Errorf("got %q, want %q", out, want)
		}
	}
	f("No decision has been recorded yet: send a request first.\n")
	if status, body := g.chat(t, "other"); status != 404 {
		t.Fatalf("got %d %s, want 404", status, body)
	}
	f("No decision has been recorded yet: 1 request was answered without one, 1 with 404 (nobody serves their model, or their path).\n")
	g.chat(t, "other")
	if status, body := g.chat(t, ""); status != 400 {
		t.Fatalf("got %d %s, want 400", status, body)
	}
	f("No decision has been recorded yet: 3 requests were answered without one, 1 with 400, 2 with 404 (nobody serves their model, or their path).\n")

	empty := route.Latency().Record(&route.View{Snapshot: new(route.Snapshot)}, route.Decision{Endpoint: -1})
	for i := range empty.Decision.Fallbacks {
		empty.Decision.Fallbacks[i] = -1
	}
	empty.ID, empty.Time, empty.Pool = "r", "now", "m"
	line, err := json.Marshal(empty)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := explain(&out, bytes.NewReader(line), 1, "", nil); err != nil || out.String() != "request r at now, pool m\nThe pool had no endpoint, so that there was nothing to choose from.\n\n" {
		t.Errorf("got %v, %s", err, out.String())
	}
}

func TestServeRecordExplainReplay(t *testing.T) {
	a, b := startEngine(t, "m"), startEngine(t, "m")
	record := filepath.Join(t.TempDir(), "decisions.jsonl")
	g := startGateway(t, "--endpoint", "m="+addressOf(a)+","+addressOf(b), "--record", record)
	g.ready(t)
	if status, body := g.chat(t, "m"); status != 200 || !strings.Contains(body, "served") {
		t.Fatalf("got %d %s, want the engine's answer", status, body)
	}
	if status, body := g.chat(t, "other"); status != 404 ||
		!strings.Contains(body, "no matching model: set the model in the request body or the x-gateway-model-name header") {
		t.Fatalf("got %d %s, want 404 with the reference's sentence", status, body)
	}
	if out := run(t, "explain", "--admin", g.admin); !strings.Contains(out, "chosen") || !strings.Contains(out, addressOf(a)) {
		t.Errorf("got explanation %q, want the chosen endpoint marked and both named", out)
	}
	eventually(t, "the metrics page says that the endpoint is ready", func() bool {
		_, page := get(g.admin + "/metrics")
		return strings.Contains(page, `sluice_endpoint_state{endpoint="`+addressOf(a)+`",pool="m",state="ready"} 1`)
	})
	_, text := get(g.admin + "/fleet")
	var status []fleetStatus
	if err := json.Unmarshal([]byte(text), &status); err != nil || len(status) != 1 || len(status[0].Endpoints) != 2 {
		t.Errorf("got fleet %s (%v), want one pool of two endpoints", text, err)
	}
	if err := g.stop(); err != nil {
		t.Fatalf("got %v, want a clean end", err)
	}
	if out := run(t, "replay", record); !strings.Contains(out, "1 records decided again under their own profiles: 0 differ") {
		t.Errorf("got replay %q, want one record and no difference", out)
	}
	line, err := os.ReadFile(record)
	if err != nil {
		t.Fatal(err)
	}
	const nothing = `"expected":[0,0],"known":[0,0]`
	for said, want := range map[string]string{`"expected":[64,64],"known":[0,0]`: "it should find about 64 of the prompt's tokens in its cache: a guess.\n",
		`"expected":[0,0],"known":[2,2]`: "Its KV events say that it should find 0 of the prompt's tokens in its cache.\n"} {
		file := filepath.Join(t.TempDir(), "one.jsonl")
		if err := os.WriteFile(file, []byte(strings.Replace(string(line), nothing, said, 1)), 0o600); err != nil {
			t.Fatal(err)
		}
		if out := run(t, "explain", file); !strings.Contains(out, want) {
			t.Errorf("got explanation %q of a record with %s, want %q in it", out, said, want)
		}
	}
	torn, err := os.OpenFile(record, os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := torn.WriteString(`{"id":"torn","view":{`); err != nil {
		t.Fatal(err)
	}
	torn.Close()
	out := run(t, "explain", record, "--profile", "weights")
	for _, want := range []string{"kvCache", "queue", "chosen", "1 lines could not be used", "line 2"} {
		if !strings.Contains(out, want) {
			t.Errorf("got %q, want an explanation under the weights profile with %q", out, want)
		}
	}
}

// run executes a command and returns what it prints.
func run(t *testing.T, args ...string) string {
	t.Helper()
	out, err := try(args...)
	if err != nil {
		t.Fatalf("sluice %s: %v", strings.Join(args, " "), err)
	}
	return out
}

func try(args ...string) (string, error) {
	var out bytes.Buffer
	cmd := root()
	cmd.SetArgs(args)
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	err := cmd.ExecuteContext(context.Background())
	return out.String(), err
}

const gatewayFile = `apiVersion: inference.sagemaker.aws.amazon.com/v1alpha1
kind: InferenceGatewayConfig
metadata: {name: gateway}
spec:
  bbr: {enabled: true}
  schedulers:
  - name: m
    modelName: m
    modelSelector: {matchLabels: {app: m}}
---
apiVersion: gateway.sluice.dev/v1alpha1
kind: Endpoints
metadata: {name: lab}
spec:
  endpoints:
  - {address: "%s", labels: {app: m}, drain: %t}
  - {address: "%s", labels: {app: m}, drain: %t}
`

func TestReloadWithoutDropping(t *testing.T) {
	a, b := startEngine(t, "m"), startEngine(t, "m")
	file := filepath.Join(t.TempDir(), "gateway.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(fmt.Sprintf(gatewayFile, addressOf(a), false, addressOf(b), true))
	g := startGateway(t, "-f", file)
	g.ready(t)
	only := func(want string) bool {
		status, body := g.chat(t, "m")
		if status != 200 {
			t.Fatalf("got %d %s while the configuration changes, want no request dropped", status, body)
		}
		return strings.Contains(body, want)
	}
	if !only(addressOf(a)) {
		t.Fatal("a draining endpoint was used")
	}
	write(fmt.Sprintf(gatewayFile, addressOf(a), true, addressOf(b), false))
	eventually(t, "traffic moves to the other endpoint", func() bool { return only(addressOf(b)) })

	write("kind: Nonsense")
	eventually(t, "the log says why the file is not used", func() bool { return strings.Contains(g.log.String(), "Nonsense") })
	if !only(addressOf(b)) {
		t.Error("a faulty file changed the routing")
	}
	write(fmt.Sprintf(gatewayFile, addressOf(a), false, addressOf(b), true))
	eventually(t, "a good file after a faulty one is taken over", func() bool { return only(addressOf(a)) })
	write("kind: Nonsense")
	eventually(t, "the same fault is told again after a good file", func() bool { return strings.Count(g.log.String(), "is not used") == 2 })

	key := filepath.Join(t.TempDir(), "key")
	drained := fmt.Sprintf(gatewayFile, addressOf(a), true, addressOf(b), false)
	write(strings.Replace(drained, "drain: false", `apiKey: {file: "`+key+`"}`, 1))
	eventually(t, "the log names the missing key file", func() bool { return strings.Contains(g.log.String(), key) })
	if err := os.WriteFile(key, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the file is taken over when what it lacked is there", func() bool { return only(addressOf(b)) })
}

func TestServeRefuses(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "auth.yaml")
	text := strings.Replace(fmt.Sprintf(gatewayFile, "127.0.0.1:1", false, "127.0.0.1:2", false), "  bbr:",
		"  auth: {jwt: {provider: {name: p, issuer: \"https://i.example\", remoteJWKS: {uri: \"https://i.example/keys\"}, audiences: [a]}}}\n  bbr:", 1)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	f := func(want string, args ...string) {
		t.Helper()
		out, err := try(args...)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("sluice %s: got %v (%s), want an error with %q", strings.Join(args, " "), err, out, want)
		}
	}
	f("--endpoint MODEL=HOST:PORT", "serve")
	f("not both", "serve", "-f", file, "--endpoint", "m=127.0.0.1:1")
	f("spec.auth", "serve", "-f", file)
	f("serve --data-plane envoy", "serve", "-f", file)
	f("spec.auth", "check", "-f", file)
	f("no such file", "serve", "-f", filepath.Join(dir, "none.yaml"))
	f("nonsense", "serve", "--endpoint", "m=127.0.0.1:1", "--profile", "nonsense")
	f("--reload-interval 0s", "serve", "--endpoint", "m=127.0.0.1:1", "--reload-interval", "0")
	f("--scrape-interval -1s", "serve", "--endpoint", "m=127.0.0.1:1", "--scrape-interval", "-1s", "--resolve-interval", "0")
	f("--resolve-interval 0s", "serve", "--endpoint", "m=127.0.0.1:1", "--scrape-interval", "-1s", "--resolve-interval", "0")
	f("--record-share 7", "serve", "--endpoint", "m=127.0.0.1:1", "--record-share", "7")
	f("stale", "serve", "--endpoint", "m=127.0.0.1:1", "--stale-after", "300ms")
	f("log-level", "serve", "--endpoint", "m=127.0.0.1:1", "--log-level", "loud")
	f("--last", "explain", "--last", "0")
	f("sluice serve", "explain", "--admin", "127.0.0.1:1")
	f("no line is a record", "explain", file)
}

func TestKeysAndCertificates(t *testing.T) {
	dir := t.TempDir()
	key := filepath.Join(dir, "key")
	config := filepath.Join(dir, "gateway.yaml")
	text := strings.Replace(fmt.Sprintf(gatewayFile, "127.0.0.1:1", false, "127.0.0.1:2", false), "drain: false}\n  - ",
		"apiKey: {file: \""+key+"\"}}\n  - ", 1)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s := source{file: config}
	c, _, err := s.parse()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := prepare(c, &gatewayOptions{}, make(tlsCache)); err == nil || !strings.Contains(err.Error(), key) {
		t.Errorf("got %v, want an error that names the missing key file", err)
	}
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(key, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("  one\n")
	p, err := prepare(c, &gatewayOptions{}, make(tlsCache))
	if err != nil {
		t.Fatal(err)
	}
	if got := p.pools[0].Endpoints[0].APIKey; got != "one" {
		t.Errorf("got key %q, want it without the blanks around it", got)
	}
	if p.outdated() {
		t.Error("a plan whose files have not changed is outdated")
	}
	write("two") // T02: a rotated secret is taken over
	if !p.outdated() {
		t.Error("a plan whose key file changed is not outdated")
	}
}

func TestRecorderKeepsAShare(t *testing.T) {
	path := filepath.Join(t.TempDir(), "decisions.jsonl")
	r, err := newRecorder(path, .25, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	copied, now := 0, time.Unix(1000, 0)
	for i := range 4000 {
		id := fmt.Sprint("request-", i)
		if r.wants(id, now) {
			copied++
			r.add(&route.Record{ID: id, View: route.View{Snapshot: &route.Snapshot{}}})
			r.add(&route.Record{ID: id, View: route.View{Snapshot: &route.Snapshot{}}}) // it moved
		}
	}
	r.close()
	r.add(&route.Record{ID: "request-1"}) // a request that was cut decides once more
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Count(string(text), "\n")
	if missed := r.missed; lines+missed < 1900 || lines+missed > 2100 || lines%2+missed%2 == 1 {
		t.Errorf("got %d records of 8000 decisions in the file (%d left out), want about a quarter, each request's both", lines, missed)
	}
	if most := (lines+r.missed)/2 + ringRate; copied > most {
		t.Errorf("got %d requests copied, want no more than the file's share and %d a second for explanations: %d", copied, ringRate, most)
	}
	if got := len(r.last(1000)); got != ringSize {
		t.Errorf("got %d records to look back on, want %d", got, ringSize)
	}
}

// TestConsole: the page is where serve says it is, and knows what was served.
func TestConsole(t *testing.T) {
	engine := startEngine(t, "m")
	g := startGateway(t, "--endpoint", "m="+addressOf(engine))
	g.ready(t)
	if status, body := get(g.console); status != 200 || !strings.Contains(body, "<title>Sluice console</title>") {
		t.Errorf("got %d %.200s at %s, want the page", status, body, g.console)
	}
	if status, _ := g.chat(t, "m"); status != 200 {
		t.Fatalf("got %d, want 200", status)
	}
	if status, _ := g.chat(t, "unknown"); status != 404 {
		t.Fatalf("got %d for an unknown model, want 404", status)
	}
	eventually(t, "the console shows how the request ended, and no other", func() bool {
		status, body := get(g.console + "/requests")
		var lines []struct {
			Model, Endpoint string
			Outcome         *struct {
				OK       bool
				Endpoint string
			}
		}
		if err := json.Unmarshal([]byte(body), &lines); err != nil || status != 200 {
			t.Fatalf("got %d %s, want a list", status, body)
		}
		if len(lines) != 1 || lines[0].Model != "m" || lines[0].Endpoint != addressOf(engine) {
			t.Fatalf("got %s, want the one request", body)
		}
		o := lines[0].Outcome
		return o != nil && o.OK && o.Endpoint == addressOf(engine)
	})
	// An unknown model says nothing of the fleet: one request has ended, and it is whole.
	eventually(t, "the console counts one request", func() bool {
		_, body := get(g.console + "/state")
		var s struct {
			Sides []struct {
				Series struct{ Rate, Failed []float64 }
			}
		}
		if err := json.Unmarshal([]byte(body), &s); err != nil {
			t.Fatalf("got %s: %v", body, err)
		}
		series := s.Sides[0].Series
		last := len(series.Rate) - 1
		if series.Rate[last] > .2 || series.Failed[last] > 0 {
			t.Fatalf("got %g requests a second and %g that did not finish, want .2 and none", series.Rate[last], series.Failed[last])
		}
		return series.Rate[last] == .2
	})
}
