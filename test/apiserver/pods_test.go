//go:build kube

package apiserver

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// engine is a model server at a loopback address of its own, as a pod has one.
type engine struct {
	address       string
	began, wrong  atomic.Int64
	closed        atomic.Bool // nobody may send it anything
	lastRequestAt atomic.Int64
}

func (e *engine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/v1/models":
		fmt.Fprint(w, `{"object":"list","data":[{"id":"m","object":"model"}]}`)
	case "/v1/chat/completions":
		e.began.Add(1)
		e.lastRequestAt.Store(time.Now().UnixNano())
		if e.closed.Load() {
			e.wrong.Add(1)
		}
		_, _ = io.Copy(io.Discard, r.Body)
		select {
		case <-time.After(5 * time.Millisecond):
		case <-r.Context().Done():
			return
		}
		fmt.Fprint(w, `{"choices":[{"message":{"role":"assistant","content":"x"}}],"usage":{"prompt_tokens":4,"completion_tokens":2}}`)
	default:
		http.NotFound(w, r)
	}
}

// startEngines serves at n addresses, all at one port, which it returns.
func startEngines(t *testing.T, n int) ([]*engine, int) {
	t.Helper()
	var engines []*engine
	port := 0
	for i := range n {
		e := &engine{address: fmt.Sprintf("127.0.1.%d", i+1)}
		l, err := net.Listen("tcp", fmt.Sprintf("%s:%d", e.address, port))
		if err != nil {
			t.Fatal(err)
		}
		port = l.Addr().(*net.TCPAddr).Port
		s := httptest.NewUnstartedServer(e)
		s.Listener.Close()
		s.Listener = l
		s.Start()
		t.Cleanup(s.Close)
		engines = append(engines, e)
	}
	return engines, port
}

// process is a running sluice serve.
type process struct{ public, admin, log string }

// startProcess builds the gateway and runs it until the test ends, which it must do with exit code 0.
func startProcess(t *testing.T, args ...string) *process {
	t.Helper()
	dir := t.TempDir()
	binary := filepath.Join(dir, "sluice")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", binary, "../../cmd/sluice").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	p := &process{log: filepath.Join(dir, "log")}
	log, err := os.Create(p.log)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	c := exec.Command(binary, append([]string{"serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--scrape-interval", "50ms", "--profile", "round-robin"}, args...)...)
	c.Stderr = log
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Process.Signal(syscall.SIGTERM); err != nil {
			t.Error(err)
		}
		if err := c.Wait(); err != nil {
			t.Errorf("the gateway ended with %v; log:\n%s", err, p.said(t))
		}
	})
	lines := bufio.NewScanner(out)
	for _, to := range []struct {
		prefix string
		at     *string
	}{{"sluice: serving on ", &p.public}, {"sluice: metrics on ", &p.admin}} {
		if !lines.Scan() {
			t.Fatalf("the gateway ended early; log:\n%s", p.said(t))
		}
		*to.at = strings.TrimPrefix(lines.Text(), to.prefix)
	}
	go func() { _, _ = io.Copy(io.Discard, out) }()
	return p
}

func (p *process) said(t *testing.T) string {
	text, err := os.ReadFile(p.log)
	if err != nil {
		t.Error(err)
	}
	return string(text)
}

// eventually waits until f holds.
func (p *process) eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	limit := time.After(time.Minute)
	for !f() {
		select {
		case <-tick.C:
		case <-limit:
			t.Fatalf("waited a minute in vain until %s; log:\n%s", what, p.said(t))
		}
	}
}

// chat asks for one answer.
func (p *process) chat(model string) (int, string) {
	resp, err := http.Post(p.public+"/v1/chat/completions", "application/json", strings.NewReader(fmt.Sprintf(`{"model":%q,"messages":[{"role":"user","content":"hello"}]}`, model)))
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err.Error()
	}
	return resp.StatusCode, string(body)
}

func (p *process) get(path string) (int, string) {
	resp, err := http.Get(p.admin + path)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err.Error()
	}
	return resp.StatusCode, string(body)
}

const podDocuments = `apiVersion: inference.sagemaker.aws.amazon.com/v1alpha1
kind: InferenceGatewayConfig
metadata: {name: gateway}
spec:
  bbr: {enabled: true}
  schedulers:
  - {name: m, modelName: %s, targetPort: %d, modelSelector: {matchLabels: {app: m}}}
`

// enter has an API server know a pod whose engine is ready.
func enter(t *testing.T, name, address string) {
	t.Helper()
	u := object(t, fmt.Sprintf(`{apiVersion: v1, kind: Pod, metadata: {name: %s, namespace: living, labels: {app: m}}, spec: {nodeName: nowhere, containers: [{name: engine, image: engine}]}}`, name))
	if err := shared.client.Create(t.Context(), u); err != nil {
		t.Fatal(err)
	}
	u.Object["status"] = map[string]any{"phase": "Running", "podIP": address, "podIPs": []any{map[string]any{"ip": address}},
		"conditions": []any{map[string]any{"type": "Ready", "status": "True"}}}
	if err := shared.client.Status().Update(t.Context(), u); err != nil {
		t.Fatal(err)
	}
}

func remove(t *testing.T, name string, grace int64) {
	t.Helper()
	u := new(unstructured.Unstructured)
	u.SetAPIVersion("v1")
	u.SetKind("Pod")
	u.SetNamespace("living")
	u.SetName(name)
	if err := shared.client.Delete(t.Context(), u, client.GracePeriodSeconds(grace)); err != nil {
		t.Fatal(err)
	}
}

// A gateway with an API server takes requests once it knows its pods, follows them and its ConfigMap, and drops nothing
// while they change. K02: before that it is not ready, and never is for want of an endpoint.
func TestAGatewayFollowsPods(t *testing.T) {
	engines, port := startEngines(t, 3)
	file := filepath.Join(t.TempDir(), "gateway.yaml")
	if err := os.WriteFile(file, []byte(fmt.Sprintf(podDocuments, "before", port)), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, doc := range []string{`{apiVersion: v1, kind: Namespace, metadata: {name: living}}`,
		fmt.Sprintf("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: gateway, namespace: living}\ndata:\n  gateway.yaml: |\n    %s", strings.ReplaceAll(fmt.Sprintf(podDocuments, "m", port), "\n", "\n    "))} {
		u := object(t, doc)
		if u.GetKind() == "Namespace" {
			u.SetNamespace("")
		}
		if err := shared.client.Create(t.Context(), u); err != nil {
			t.Fatal(err)
		}
	}
	p := startProcess(t, "-f", file, "--pods", "living", "--config-map", "living/gateway", "--kubeconfig", shared.kubeconfig)
	p.eventually(t, "it is ready without any endpoint", func() bool { status, _ := p.get("/readyz"); return status == 200 })
	p.eventually(t, "the ConfigMap counts, and not the file that is older", func() bool {
		before, _ := p.chat("before")
		now, body := p.chat("m")
		return before == 404 && now == 503 && strings.Contains(body, "no_endpoint")
	})
	for i, e := range engines {
		enter(t, fmt.Sprint("m-", i), e.address)
	}
	p.eventually(t, "all pods get requests", func() bool { // several at once: one at a time may well go to the same each time
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() { p.chat("m") })
		}
		all.Wait()
		return engines[0].began.Load() > 0 && engines[1].began.Load() > 0 && engines[2].began.Load() > 0
	})

	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var clients sync.WaitGroup
	var served atomic.Int64
	for range 4 {
		clients.Go(func() {
			for ctx.Err() == nil {
				if status, body := p.chat("m"); status != 200 {
					t.Errorf("got %d %s while pods change, want no request dropped", status, body)
					return
				}
				served.Add(1)
			}
		})
	}
	for round := range 6 {
		at := round % len(engines)
		name, e := fmt.Sprint("m-", at), engines[at]
		remove(t, name, 30)
		told := time.Now()
		p.eventually(t, "the pod that is to end drains", func() bool {
			_, text := p.get("/fleet")
			_, after, _ := strings.Cut(text, fmt.Sprintf(`"pod": %q`, name))
			return strings.Contains(after, `"state"`) && strings.HasPrefix(strings.SplitN(after, `"state": `, 2)[1], `"draining"`)
		})
		last := time.Unix(0, e.lastRequestAt.Load()).Sub(told)
		if last > time.Second {
			t.Errorf("%s got a request %s after it was told to end", name, last)
		}
		before := served.Load()
		p.eventually(t, "requests in flight have ended", func() bool { return served.Load() >= before+8 })
		e.closed.Store(true)
		t.Logf("%s got its last request %s after it was told to end", name, last.Round(time.Millisecond))
		remove(t, name, 0)
		before = served.Load()
		p.eventually(t, "requests are served without it", func() bool { return served.Load() >= before+20 })
		e.closed.Store(false)
		enter(t, name, e.address)
		began := e.began.Load()
		p.eventually(t, "the pod that has its place gets requests", func() bool { return e.began.Load() > began })
	}
	u := object(t, fmt.Sprintf("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: gateway, namespace: living}\ndata:\n  gateway.yaml: |\n    %s", strings.ReplaceAll(strings.Replace(fmt.Sprintf(podDocuments, "m", port), "modelName: m,", "modelName: m, loraAdapters: [sql],", 1), "\n", "\n    ")))
	if err := apply(t.Context(), u, "tester", client.ForceOwnership); err != nil {
		t.Fatal(err)
	}
	p.eventually(t, "an adapter that the ConfigMap names now is served", func() bool { status, _ := p.chat("sql"); return status != 404 })
	stop()
	clients.Wait()
	for i, e := range engines {
		if n := e.wrong.Load(); n > 0 {
			t.Errorf("m-%d got %d requests after it was told to end", i, n)
		}
	}
	t.Logf("%d requests", served.Load())
}
