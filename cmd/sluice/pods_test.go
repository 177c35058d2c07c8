package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/sluice-gateway/sluice/api/v1alpha1"
	"github.com/sluice-gateway/sluice/config"
	"github.com/sluice-gateway/sluice/openai"
	"github.com/sluice-gateway/sluice/translate"
)

// podsFile is a configuration whose endpoints are pods at a port.
const podsFile = `apiVersion: inference.sagemaker.aws.amazon.com/v1alpha1
kind: InferenceGatewayConfig
metadata: {name: gateway}
spec:
  bbr: {enabled: true}
  schedulers:
  - {name: m, modelName: m, targetPort: %d, modelSelector: {matchLabels: {app: m}}}
`

// fakePod is a model server at a loopback address of its own, as a pod has one.
type fakePod struct {
	config.Pod
	began  atomic.Int64
	closed atomic.Bool // nobody may send it anything
	wrong  atomic.Int64
}

// startPods serves what n pods would, all at one port, which it returns.
func startPods(t *testing.T, n int) ([]*fakePod, int) {
	t.Helper()
	var pods []*fakePod
	port := 0
	for i := range n {
		p := &fakePod{Pod: config.Pod{Name: fmt.Sprint("m-", i), UID: fmt.Sprint("uid-", i), Address: fmt.Sprintf("127.0.0.%d", i+2), Labels: map[string]string{"app": "m"}}}
		l, err := net.Listen("tcp", fmt.Sprintf("%s:%d", p.Address, port))
		if err != nil {
			t.Fatal(err)
		}
		port = l.Addr().(*net.TCPAddr).Port
		s := httptest.NewUnstartedServer(p)
		s.Listener.Close()
		s.Listener = l
		s.Start()
		t.Cleanup(s.Close)
		pods = append(pods, p)
	}
	return pods, port
}

func (p *fakePod) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/v1/models":
		fmt.Fprint(w, `{"object":"list","data":[{"id":"m","object":"model"}]}`)
	case "/metrics":
		fmt.Fprint(w, "vllm:num_requests_running 0\nvllm:num_requests_waiting 0\nvllm:gpu_cache_usage_perc 0\n")
	case "/v1/chat/completions":
		p.began.Add(1)
		if p.closed.Load() {
			p.wrong.Add(1)
		}
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		for range 4 {
			fmt.Fprint(w, "data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\n")
			w.(http.Flusher).Flush()
			select {
			case <-time.After(2 * time.Millisecond):
			case <-r.Context().Done():
				return
			}
		}
		fmt.Fprint(w, "data: [DONE]\n\n")
	default:
		http.NotFound(w, r)
	}
}

// podGateway is a gateway that a test tells of pods, as its own goroutine would on news.
func podGateway(t testing.TB, port int, args ...string) *server {
	t.Helper()
	file := filepath.Join(t.TempDir(), "gateway.yaml")
	text := fmt.Sprintf(podsFile, port)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	o, f := new(serveOptions), pflag.NewFlagSet("serve", pflag.ContinueOnError)
	serveFlags(f, o)
	if err := f.Parse(append([]string{"-f", file, "--scrape-interval", "20ms"}, args...)); err != nil {
		t.Fatal(err)
	}
	s, err := newServer(t.Context(), &o.gatewayOptions, slog.New(slog.DiscardHandler), time.Now(), o.open)
	if err != nil {
		t.Fatal(err)
	}
	if s.plan.docs, err = config.Read([]byte(text), file); err != nil {
		t.Fatal(err)
	}
	return s
}

func someOfPods(pods []*fakePod, change func(i int, p *config.Pod) bool) config.Pods {
	out := config.Pods{Namespace: "models", List: []config.Pod{}}
	for i, p := range pods {
		if one := p.Pod; change(i, &one) {
			out.List = append(out.List, one)
		}
	}
	return out
}

// Requests under load outlive every change among pods: those that come, that are about to end, that are gone, and that are
// replaced under their name and at their address. Whoever is about to end gets nothing more, and whoever stays is known as before.
func TestRequestsOutliveChangesOfPods(t *testing.T) {
	pods, port := startPods(t, 4)
	s := podGateway(t, port)
	ctx, stop := context.WithCancel(t.Context())
	scraped := make(chan struct{})
	go func() { defer close(scraped); _ = s.scraper.Run(ctx) }()
	door := httptest.NewServer(s.door.(*embedded).gateway)
	pool := s.fleet.Pools()[0]
	all := func(int, *config.Pod) bool { return true }
	s.renew(someOfPods(pods, all))
	metered := func() (n int) {
		for _, e := range pool.Status(s.now()) {
			if e.Metered {
				n++
			}
		}
		return n
	}
	eventually(t, "all pods were read", func() bool { return metered() == len(pods) })

	var clients sync.WaitGroup
	var served atomic.Int64
	for range 8 {
		clients.Go(func() {
			for ctx.Err() == nil {
				resp, err := http.Post(door.URL+"/v1/chat/completions", "application/json", strings.NewReader(`{"model":"m","stream":true,"messages":[{"role":"user","content":"hello"}]}`))
				if err != nil {
					t.Error(err)
					return
				}
				body, err := io.ReadAll(resp.Body)
				resp.Body.Close()
				if err != nil || resp.StatusCode != 200 || !strings.HasSuffix(string(body), "data: [DONE]\n\n") {
					t.Errorf("got %d, %v and %q, want a whole answer", resp.StatusCode, err, body)
					return
				}
				served.Add(1)
			}
		})
	}
	for round := range 40 {
		at := round % len(pods)
		leaver := pods[at]
		s.renew(someOfPods(pods, func(i int, p *config.Pod) bool { p.Ending = i == at; return true }))
		eventually(t, "what runs at the pod that is ending has ended", func() bool {
			for _, e := range pool.Status(s.now()) {
				if e.Endpoint.Pod == leaver.Name && e.InFlight > 0 {
					return false
				}
			}
			return true
		})
		leaver.closed.Store(true)
		if n := metered(); n < len(pods)-1 {
			t.Errorf("round %d: %d pods are known, want the others to stay so", round, n)
		}
		if round%2 == 0 { // it is gone for a while; otherwise another has its place at once
			s.renew(someOfPods(pods, func(i int, _ *config.Pod) bool { return i != at }))
		}
		before := served.Load()
		eventually(t, "requests are served without it", func() bool { return served.Load() >= before+8 })
		leaver.closed.Store(false)
		leaver.UID = fmt.Sprint("uid-", at, "-", round)
		s.renew(someOfPods(pods, all))
		before = leaver.began.Load()
		eventually(t, "the pod that came gets requests", func() bool { return leaver.began.Load() > before })
		eventually(t, "all pods were read", func() bool { return metered() == len(pods) })
	}
	stop()
	clients.Wait()
	<-scraped
	door.Close()
	for _, p := range pods {
		if n := p.wrong.Load(); n > 0 {
			t.Errorf("%s got %d requests while it was about to end", p.Name, n)
		}
	}
	t.Logf("%d requests", served.Load())
}

// What a controller reads of pods: their names, whether their metrics were read, and what they list. The console's state, which
// kubectl sluice top shows, has the names, too.
func TestFleetNamesPods(t *testing.T) {
	pods, port := startPods(t, 1)
	s := podGateway(t, port)
	gone := config.Pod{Name: "m-gone", UID: "x", Address: "127.0.0.99", Labels: map[string]string{"app": "m"}}
	list := someOfPods(pods, func(int, *config.Pod) bool { return true })
	list.List = append(list.List, gone)
	s.renew(list)
	admin := httptest.NewServer(s.adminHandler())
	defer admin.Close()
	type endpoint struct {
		Pod            string
		MetricsRead    *bool
		Models         []string
		MissingMetrics []string
	}
	read := func() map[string]endpoint {
		_, text := get(admin.URL + "/fleet")
		var out []struct{ Endpoints []endpoint }
		if err := json.Unmarshal([]byte(text), &out); err != nil || len(out) != 1 {
			t.Fatalf("got %s, %v", text, err)
		}
		by := make(map[string]endpoint)
		for _, e := range out[0].Endpoints {
			by[e.Pod] = e
		}
		return by
	}
	if e, there := read()["m-0"]; !there || e.MetricsRead != nil || e.Models != nil {
		t.Errorf("got %+v (%t), want a pod that nobody has asked", e, there)
	}
	go func() { _ = s.scraper.Run(t.Context()) }()
	eventually(t, "both were asked", func() bool {
		by := read()
		e, lost := by["m-0"], by["m-gone"]
		return e.MetricsRead != nil && *e.MetricsRead && len(e.Models) == 1 && e.Models[0] == "m" && len(e.MissingMetrics) > 0 &&
			lost.MetricsRead != nil && !*lost.MetricsRead && lost.Models == nil
	})
	_, text := get(admin.URL + "/console/state")
	var state struct{ Sides []struct{ Pools []poolRows } }
	if err := json.Unmarshal([]byte(text), &state); err != nil {
		t.Fatalf("got %s, %v", text, err)
	}
	var names []string
	for _, e := range state.Sides[0].Pools[0].Endpoints {
		names = append(names, e.Pod)
	}
	if diff := cmp.Diff([]string{"m-0", "m-gone"}, names); diff != "" {
		t.Errorf("the console: -want +got:\n%s", diff)
	}
}

const nowhere = `apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "http://127.0.0.1:1"}}]
users: [{name: u, user: {token: t}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
`

// Without an API server a gateway starts from its file, lives, says why it is not ready, and says it once.
func TestPodsWithoutAnAPIServer(t *testing.T) {
	dir := t.TempDir()
	kubeconfig, file := filepath.Join(dir, "kubeconfig"), filepath.Join(dir, "gateway.yaml")
	for path, text := range map[string]string{kubeconfig: nowhere, file: fmt.Sprintf(podsFile, 8000)} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	g := startGateway(t, "-f", file, "--pods", "models", "--config-map", "models/gateway", "--kubeconfig", kubeconfig)
	eventually(t, "it says what is wrong", func() bool {
		status, body := get(g.admin + "/readyz")
		return status == 503 && strings.Contains(body, `the pods of namespace \"models\" are not known yet`) &&
			strings.Contains(body, `pods in namespace \"models\": Get`) && strings.Contains(body, `ConfigMap \"gateway\" in namespace \"models\": Get`)
	})
	if status, _ := get(g.admin + "/healthz"); status != 200 {
		t.Errorf("got %d, want that it lives", status)
	}
	if _, page := get(g.admin + "/metrics"); !strings.Contains(page, "\nsluice_pods_followed 0\n") {
		t.Error("the metrics don't say that pods are not followed")
	}
	if status, body := g.chat(t, "m"); status != 503 || !strings.Contains(body, "no_endpoint") || !strings.Contains(body, "`kubectl sluice top`") {
		t.Errorf("got %d %s, want that there is no endpoint, and where to look in a cluster", status, body)
	}
	if n := strings.Count(g.log.String(), "the API server does not answer"); n != 2 {
		t.Errorf("said %d times that the API server does not answer, want once for pods and once for the ConfigMap; log:\n%s", n, g.log)
	}
	if strings.Contains(g.log.String(), "selects no endpoint") {
		t.Error("warned that there are no pods, which nobody knows")
	}
	if err := g.stop(); err != nil {
		t.Error(err)
	}
}

// Envoy says of a request for no model what the picker says.
func TestNoMatch(t *testing.T) {
	plan := planned(t, "name: llama, modelName: m, modelSelector: {}")
	envoySays(t, plan, openai.NoModelMessage)
}

// planned is what a controller plans for a gateway with one scheduler.
func planned(t *testing.T, scheduler string) *translate.Plan {
	t.Helper()
	c := new(v1alpha1.InferenceGatewayConfig)
	if err := yaml.Unmarshal([]byte("metadata: {name: gw, namespace: models}\nspec: {bbr: {enabled: true}, schedulers: [{"+scheduler+"}]}"), c); err != nil {
		t.Fatal(err)
	}
	plan, err := translate.Build(c, &translate.Context{Definitions: []string{filterKind}})
	if err != nil {
		t.Fatal(err)
	}
	return plan
}

// filterKind is the kind by which Envoy answers by itself.
const filterKind = "HTTPRouteFilter.gateway.envoyproxy.io/v1alpha1"

// envoySays holds what Envoy answers in a plan, where no scheduler takes a request, to a message of the picker's.
func envoySays(t *testing.T, plan *translate.Plan, message string) {
	t.Helper()
	i := slices.IndexFunc(plan.Objects, func(o *unstructured.Unstructured) bool { return o.GetKind() == "HTTPRouteFilter" })
	if i < 0 {
		t.Fatal("got no HTTPRouteFilter")
	}
	body, _, _ := unstructured.NestedString(plan.Objects[i].Object, "spec", "directResponse", "body", "inline")
	var said struct {
		Error struct{ Message, Code, Param string }
	}
	if err := json.Unmarshal([]byte(body), &said); err != nil || said.Error.Message != message || said.Error.Code != "model_not_found" || said.Error.Param != "model" {
		t.Errorf("Envoy says %s where the picker says %q", body, message)
	}
}

// What a controller writes down where it refuses every scheduler starts a gateway, too, which answers 404 and does not tell clients to
// set the model that they have set. A file that says nothing of schedulers is a fault still.
func TestNoSchedulerLeft(t *testing.T) {
	plan := planned(t, "name: llama, modelName: m, modelSelector: {}, configMapRef: {name: plugins}")
	envoySays(t, plan, openai.NoSchedulerMessage)
	text := ""
	for _, o := range plan.Objects {
		if o.GetKind() == "ConfigMap" && o.GetName() == "gw-picker" {
			text, _, _ = unstructured.NestedString(o.Object, "data", "gateway.yaml")
		}
	}
	dir := t.TempDir()
	kubeconfig, file := filepath.Join(dir, "kubeconfig"), filepath.Join(dir, "gateway.yaml")
	for path, text := range map[string]string{kubeconfig: nowhere, file: text} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	g := startGateway(t, "-f", file, "--pods", "models", "--kubeconfig", kubeconfig)
	if status, body := g.chat(t, "m"); status != 404 || !strings.Contains(body, `"code":"model_not_found"`) || !strings.Contains(body, openai.NoSchedulerMessage) || strings.Contains(body, "set the model") {
		t.Errorf("got %d %s, want that no scheduler is at work", status, body)
	}
	if !strings.Contains(g.log.String(), "spec.schedulers: is empty, so that every request is answered 404") {
		t.Errorf("the log says nothing of it:\n%s", g.log)
	}
	if err := g.stop(); err != nil {
		t.Error(err)
	}
	for _, text := range []string{strings.Replace(text, "schedulers: []", "", 1), strings.Replace(text, "schedulers: []", "schedulers: null", 1)} {
		if _, err := config.Read([]byte(text), file); err == nil {
			t.Errorf("got no fault of\n%s", text)
		}
	}
	if _, err := config.Parse([]byte(text), file); err == nil {
		t.Error("got no fault where there are no pods")
	}
}

func TestPodFlags(t *testing.T) {
	file := filepath.Join(t.TempDir(), "gateway.yaml")
	if err := os.WriteFile(file, []byte(fmt.Sprintf(podsFile, 8000)), 0o600); err != nil {
		t.Fatal(err)
	}
	f := func(want string, args ...string) {
		t.Helper()
		for _, command := range []string{"serve", "pick"} {
			if _, err := try(append([]string{command}, args...)...); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s %s: got %v, want %q in it", command, strings.Join(args, " "), err, want)
			}
		}
	}
	f("cannot use --pods without --file", "--pods", "models", "--endpoint", "m=127.0.0.1:1")
	f("cannot use --config-map or --kubeconfig without --pods", "-f", file, "--config-map", "models/gateway")
	f("cannot use --config-map or --kubeconfig without --pods", "-f", file, "--kubeconfig", "x")
	for _, wrong := range []string{"gateway", "/gateway", "models/", "a/b/c"} {
		f(fmt.Sprintf("cannot use --config-map %q: it is NAMESPACE/NAME", wrong), "-f", file, "--pods", "models", "--config-map", wrong)
	}
	f("cannot use --pods: cannot find an API server", "-f", file, "--pods", "models", "--kubeconfig", filepath.Join(t.TempDir(), "none"))
}

// K01: whether requests may come does not hang on any endpoint.
func TestReadyBeforeAnyEndpointIs(t *testing.T) {
	s := podGateway(t, 8000)
	admin := httptest.NewServer(s.adminHandler())
	defer admin.Close()
	if status, body := get(admin.URL + "/readyz"); status != 200 || !strings.Contains(body, `"ready":true`) {
		t.Errorf("got %d %s, want it ready", status, body)
	}
	s.draining.Store(true)
	if status, body := get(admin.URL + "/readyz"); status != 503 || !strings.Contains(body, `"draining":true`) {
		t.Errorf("got %d %s, want that it drains", status, body)
	}
}

// BenchmarkRenew is what a change of one pod costs.
func BenchmarkRenew(b *testing.B) {
	for _, n := range []int{100, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			s := podGateway(b, 8000)
			var lists [2]config.Pods
			for i := range n + 1 {
				one := config.Pod{Name: fmt.Sprint("m-", i), UID: fmt.Sprint(i), Address: fmt.Sprintf("10.0.%d.%d", i/250, i%250), GPU: "H100",
					Labels: map[string]string{"app": "m", "pod-template-hash": "abc", "apps.kubernetes.io/pod-index": fmt.Sprint(i)}}
				if i < n {
					lists[0].List = append(lists[0].List, one)
				}
				if i > 0 {
					lists[1].List = append(lists[1].List, one)
				}
			}
			s.renew(lists[0])
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				i++
				s.renew(lists[i%2])
			}
		})
	}
}
