//go:build cluster && linux

package e2e

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"maps"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-gateway/sluice/openai"
)

// What the hands-on guide of the reference has its readers apply, in its own form, and what they are to see.

// sentence is what the reference answers when no scheduler has the model.
const sentence = "no matching model: set the model in the request body or the x-gateway-model-name header"

// servedBy is the header in which an answer says where it comes from.
const servedBy = "X-Gateway-Destination-Endpoint-Served"

// TestOneScheduler: without a body-based router every request goes to the one pool; a wrong name is the engine's own 404.
func TestOneScheduler(t *testing.T) {
	t.Parallel()
	p := withSluice(t)
	p.apply(simulated("llama", "llama", 1), gateway(p.name, `  bbr: {enabled: false}
  schedulers:
  - name: llama
    modelName: llama
    modelSelector: {matchLabels: {app: llama}}
`))
	p.waitServing(p.name)
	if got := p.send(p.name, "/v1/chat/completions", chat("llama", "hello"), "x-request-id", "one-1"); got.status != 200 {
		t.Errorf("got %d %s, want an answer", got.status, got.body)
	}
	got := p.send(p.name, "/v1/chat/completions", chat("nobody", "hello"), "x-request-id", "one-2")
	own, err := ask(t, urlOf(p.waitReady("llama", 1)[0].Status.PodIP, enginePort, "/v1/chat/completions"), chat("nobody", "hello"))
	if err != nil {
		t.Fatal(err)
	}
	if got.status != 404 || got.body != own.body || got.header.Get(servedBy) == "" {
		t.Errorf("got %d %s, want the engine's own %d %s", got.status, got.body, own.status, own.body)
	}
	p.wantLines(p.name+"-picker", map[string]string{"one-1": "llama", "one-2": "nobody"})
}

// wantLines sees that the pods with the label app have said each request's id and model, once among them all, in the
// reference's words, and that these are all they have said.
func (p *place) wantLines(app string, want map[string]string) {
	p.t.Helper()
	got := make(map[string]string)
	log := p.logOf(app)
	for _, line := range regexp.MustCompile(`"x-request-id":"([^"]*)","modelName":"([^"]*)"`).FindAllStringSubmatch(log, -1) {
		if _, twice := got[line[1]]; twice {
			p.t.Errorf("%s: got the request %q twice", app, line[1])
		}
		got[line[1]] = line[2]
	}
	if !maps.Equal(got, want) {
		p.t.Errorf("%s: got lines of %v, want %v; its log:\n%s", app, got, want, log)
	}
}

// TestTwoSchedulers: the body's model chooses the pool. Each request is in the log of one picker, a model that nobody has
// is refused before any engine is asked, and when the configuration goes, all that was made for it goes, and the models run
// on. In both topologies that have Envoys.
func TestTwoSchedulers(t *testing.T) {
	t.Parallel()
	for _, topology := range []string{"Fused", "Split"} {
		t.Run(topology, func(t *testing.T) {
			t.Parallel()
			p := withSluice(t)
			p.apply(simulated("llama", "llama", 1), simulated("qwen", "qwen", 1), fmt.Sprintf(`apiVersion: gateway.sluice.dev/v1alpha1
kind: GatewayPolicy
metadata: {name: topology}
spec: {targetRef: {name: %s}, topology: %s}`, p.name, topology), gateway(p.name, `  bbr: {enabled: true}
  schedulers:
  - name: llama
    modelName: llama
    modelSelector: {matchLabels: {app: llama}}
  - name: qwen
    modelName: qwen
    modelSelector: {matchLabels: {app: qwen}}
`))
			p.waitServing(p.name)
			models := p.modelPods("llama", "qwen")
			want := map[string]map[string]string{"llama": {}, "qwen": {}}
			for i := range 6 {
				model := []string{"llama", "qwen"}[i%2]
				id := fmt.Sprintf("%s-%d", model, i)
				want[model][id] = model
				got := p.send(p.name, "/v1/chat/completions", chat(model, "hello"), "x-request-id", id)
				if pod := models[got.header.Get(servedBy)]; got.status != 200 || pod.Labels["app"] != model {
					t.Errorf("%s: got %d %s from %q, want an answer of a pod of %s", id, got.status, got.body, got.header.Get(servedBy), model)
				}
			}
			before := p.asked(models)
			got := p.send(p.name, "/v1/chat/completions", chat("nobody", "hello"), "x-request-id", "nobody-1")
			if got.status != 404 || !strings.Contains(got.body, sentence) {
				t.Errorf("got %d %s, want 404 with %q", got.status, got.body, sentence)
			}
			if after := p.asked(models); after != before || got.header.Get(servedBy) != "" {
				t.Errorf("engines were asked %v times before and %v times after a request for nobody's model", before, after)
			}
			if topology == "Split" {
				p.wantLines("llama-epp", want["llama"])
				p.wantLines("qwen-epp", want["qwen"])
			} else {
				all := map[string]string{"nobody-1": "nobody"}
				maps.Copy(all, want["llama"])
				maps.Copy(all, want["qwen"])
				p.wantLines(p.name+"-picker", all)
			}
			p.deleteAndSeeAllGone(models)
		})
	}
}

// modelPods are the pods of these apps, by their address and port.
func (p *place) modelPods(apps ...string) map[string]corev1.Pod {
	p.t.Helper()
	pods := make(map[string]corev1.Pod)
	for _, app := range apps {
		for _, pod := range p.ready("app", app) {
			pods[pod.Status.PodIP+":"+enginePort] = pod
		}
	}
	return pods
}

// asked is how many requests engines have answered in all, by their own count.
func (p *place) asked(models map[string]corev1.Pod) (n float64) {
	p.t.Helper()
	for _, pod := range models {
		n += p.counter(pod, "vllm:request_success_total")
	}
	return n
}

// counter is the sum of a series of a model server's own metrics.
func (p *place) counter(pod corev1.Pod, name string) (sum float64) {
	p.t.Helper()
	page, err := ask(p.t, urlOf(pod.Status.PodIP, enginePort, "/metrics"), "")
	if err != nil || page.status != 200 {
		p.t.Fatalf("cannot read the metrics of %s: %d %v", pod.Name, page.status, err)
	}
	found := false
	for line := range strings.Lines(page.body) {
		if match := regexp.MustCompile(`^` + regexp.QuoteMeta(name) + `(?:\{.*\})? (\S+)`).FindStringSubmatch(line); match != nil {
			var value float64
			if _, err := fmt.Sscan(match[1], &value); err != nil {
				p.t.Fatalf("%s: %v in %q", pod.Name, err, line)
			}
			sum, found = sum+value, true
		}
	}
	if !found {
		p.t.Fatalf("%s: got no %s in\n%s", pod.Name, name, page.body)
	}
	return sum
}

// deleteAndSeeAllGone deletes the configuration: Gateway, Envoys, routers, pickers, pools and routes go with it, wherever
// they are, and model servers are what they were.
func (p *place) deleteAndSeeAllGone(models map[string]corev1.Pod) {
	p.t.Helper()
	const kinds = "gateways,httproutes,envoyproxies,envoyextensionpolicies,clienttrafficpolicies,backendtrafficpolicies,securitypolicies,httproutefilters,backendtlspolicies,referencegrants," +
		"inferencepools,deployments,services,configmaps,secrets,serviceaccounts,roles,rolebindings,networkpolicies,poddisruptionbudgets,pods"
	made := func() []string {
		out, err := shared.kubectl(p.t.Context(), "", "get", kinds, "-A", "-l", "gateway.sluice.dev/config="+p.name, "--ignore-not-found", "-o", "name")
		if err != nil {
			p.t.Fatalf("cannot list what was made: %v: %s", err, out)
		}
		envoys, err := shared.kubectl(p.t.Context(), "", "get", "pods,services,deployments", "-n", systemNamespace, "-l", owningGateway+"="+p.name, "--ignore-not-found", "-o", "name")
		if err != nil {
			p.t.Fatalf("cannot list Envoys: %v: %s", err, envoys)
		}
		return strings.Fields(out + envoys)
	}
	if n := len(made()); n < 20 {
		p.t.Errorf("got %d objects of the configuration, want all that it needs: %v", n, made())
	}
	if out, err := shared.kubectl(p.t.Context(), "", "delete", "igwc", p.name, "-n", p.name, "--timeout", "60s"); err != nil {
		p.t.Fatalf("cannot delete the configuration: %v: %s", err, out)
	}
	shared.web.CloseIdleConnections() // an Envoy that ends waits for them
	until(p.t, "all that was made to go", 4*time.Minute, func() string { return strings.Join(made(), " ") })
	for address, was := range models {
		is, ok := p.modelPods(was.Labels["app"])[address]
		if !ok || is.UID != was.UID || is.Status.ContainerStatuses[0].RestartCount != 0 {
			p.t.Errorf("%s does not run on", was.Name)
		}
		if got, err := ask(p.t, "http://"+address+"/v1/chat/completions", chat(was.Labels["app"], "hello")); err != nil || got.status != 200 {
			p.t.Errorf("%s: got %d %s, %v, want an answer", was.Name, got.status, got.body, err)
		}
	}
}

// preamble is some 700 tokens of the tiny model, the same for the same n.
func preamble(t *testing.T, n int) string {
	t.Helper()
	text, err := os.ReadFile("testdata/words.txt")
	if err != nil {
		t.Fatal(err)
	}
	words := strings.Fields(string(text))
	var b strings.Builder
	for i := range 640 {
		b.WriteString(words[(i*(n*2+1)+n*97+i*i%7)%len(words)])
		b.WriteByte(' ')
	}
	return b.String()
}

// TestReplicas: two real engines. Requests with one preamble go to the one that has it in its cache, those with a preamble
// each to both, and so do those with one preamble where weights leave caches out. The engines' own counters say what was in
// a cache. An adapter that a ConfigMap lists goes to the pool of its base model.
func TestReplicas(t *testing.T) {
	t.Parallel()
	p := withSluice(t)
	document := func(weights string) string {
		return gateway(p.name, `  bbr: {enabled: true}
  schedulers:
  - name: tiny
    modelName: tiny
    modelSelector: {matchLabels: {app: tiny}}
`+weights)
	}
	p.apply(real(t, "tiny", "tiny", 2), document(""))
	p.waitServing(p.name)
	models := p.modelPods("tiny")
	if len(models) != 2 {
		p.waitReady("tiny", 2)
		models = p.modelPods("tiny")
	}
	serial := func(what string, preamble func(i int) string) (served map[string]int, cached float64) {
		t.Helper()
		served = make(map[string]int)
		before := p.sum(models, "llamacpp:prompt_tokens_cached_total")
		var tokens float64
		for i := range 12 {
			body, err := json.Marshal(map[string]any{"model": "tiny", "max_tokens": 4, "prompt": fmt.Sprintf("%sQuestion %d: what is it about?", preamble(i), i)})
			if err != nil {
				t.Fatal(err)
			}
			got := p.send(p.name, "/v1/completions", string(body))
			var answer struct {
				Usage struct {
					Prompt float64 `json:"prompt_tokens"`
				}
			}
			if err := json.Unmarshal([]byte(got.body), &answer); err != nil || got.status != 200 {
				t.Fatalf("%s: got %d %s, %v", what, got.status, got.body, err)
			}
			tokens += answer.Usage.Prompt
			served[models[got.header.Get(servedBy)].Name]++
		}
		cached = (p.sum(models, "llamacpp:prompt_tokens_cached_total") - before) / tokens
		t.Logf("%s: %v, %.0f prompt tokens, %.1f %% of them from cache by the engines' counters", what, served, tokens, 100*cached)
		return served, cached
	}
	if served, cached := serial("one preamble", func(int) string { return preamble(t, 0) }); len(served) != 1 || cached < .85 {
		t.Errorf("one preamble: got %v and %.2f from cache, want one pod and .85", served, cached)
	}
	if served, _ := serial("a preamble each", func(i int) string { return preamble(t, i+1) }); len(served) != 2 {
		t.Errorf("a preamble each: got %v, want both pods", served)
	}

	if got := p.send(p.name, "/v1/chat/completions", chat("ski-resorts", "hello")); got.status != 404 || !strings.Contains(got.body, sentence) {
		t.Errorf("an adapter that nobody lists: got %d %s, want 404", got.status, got.body)
	}
	p.apply(`apiVersion: v1
kind: ConfigMap
metadata: {name: adapters, labels: {inference.networking.k8s.io/bbr-managed: "true"}}
data:
  baseModel: tiny
  adapters: |
    - ski-resorts
`)
	until(t, "the adapter to be known", time.Minute, func() string {
		got := p.send(p.name, "/v1/chat/completions", chat("ski-resorts", "hello"))
		if _, ok := models[got.header.Get(servedBy)]; ok && got.status == 200 {
			return ""
		}
		return fmt.Sprint(got.status, got.body)
	})

	p.apply(document("    weights: {prefix: 0, queue: 3, kvCache: 2}\n"))
	until(t, "the weights to count", time.Minute, func() string {
		reason := p.send(p.name, "/v1/chat/completions", chat("tiny", "hello")).header.Get("X-Gateway-Routing-Reason")
		if strings.HasPrefix(reason, "latency") || reason == "" {
			return reason
		}
		t.Logf("by weights: %s", reason)
		return ""
	})
	if served, _ := serial("one preamble, weights without prefix", func(int) string { return preamble(t, 20) }); len(served) != 2 {
		t.Errorf("weights without prefix: got %v, want both pods", served)
	}
}

// sum is that of a counter over pods.
func (p *place) sum(pods map[string]corev1.Pod, counter string) (all float64) {
	p.t.Helper()
	for _, pod := range pods {
		all += p.counter(pod, counter)
	}
	return all
}

// TestDryRun: what someone reads who tries a document out.
func TestDryRun(t *testing.T) {
	t.Parallel()
	p := withSluice(t)
	f := func(spec, want string) {
		t.Helper()
		got, err := shared.kubectl(t.Context(), gateway(p.name, spec), "apply", "--dry-run=server", "-n", p.name, "-f", "-")
		if err == nil || !strings.Contains(got, want) {
			t.Errorf("got %v, %s, want %q in it", err, got, want)
		}
	}
	const one = "  - {name: llama, modelName: llama, modelSelector: {matchLabels: {app: llama}}}\n"
	f("  bbr: {enabled: false}\n  banana: 1\n  schedulers:\n"+one, `strict decoding error: unknown field "spec.banana"`)
	f("  bbr: {enabled: false}\n  schedulers:\n"+one+strings.ReplaceAll(one, "llama", "qwen"), "bbr must be enabled when more than one scheduler is defined")
}

// TestSelectorMatchesNothing: the gateway is ready, as the reference's is; that nobody serves is said where one looks, with
// what to do, and by an Event.
func TestSelectorMatchesNothing(t *testing.T) {
	t.Parallel()
	p := withSluice(t)
	p.apply(gateway(p.name, `  bbr: {enabled: false}
  schedulers:
  - name: llama
    modelName: llama
    modelSelector: {matchLabels: {app: lama}}
`))
	p.waitFor(p.name, "Ready", metav1.ConditionTrue)
	reason, message := p.waitFor(p.name, "Serving", metav1.ConditionFalse)
	if reason != "NotServing" || !strings.Contains(message, "modelSelector matches no pod") || !strings.Contains(message, "kubectl get pods -n "+p.name+" --show-labels") {
		t.Errorf("got %s: %s, want what is wrong and how to see it", reason, message)
	}
	until(t, "an Event", 30*time.Second, func() string {
		out, err := shared.kubectl(t.Context(), "", "events", "-n", p.name, "--for", "igwc/"+p.name)
		if err == nil && regexp.MustCompile(`Warning +SelectorMatchesNothing +\S+ .*modelSelector matches no pod`).MatchString(out) {
			return ""
		}
		return fmt.Sprint(out, err)
	})
	if got := p.send(p.name, "/v1/chat/completions", chat("llama", "hello")); got.status != 503 || !strings.Contains(got.body, "no_endpoint") || got.header.Get("Retry-After") == "" {
		t.Errorf("got %d %s, want 503 no_endpoint with Retry-After", got.status, got.body)
	}
	// The labels are mended: it serves without anything else being done.
	p.apply(simulated("lama", "llama", 1))
	p.waitServing(p.name)
	until(t, "an answer", time.Minute, func() string {
		if got := p.send(p.name, "/v1/chat/completions", chat("llama", "hello")); got.status != 200 {
			return fmt.Sprint(got.status, got.body)
		}
		return ""
	})
}

// TestWrongPort: where nobody listens at targetPort, conditions and doctor say so, and so does the answer; a gateway whose only
// scheduler is then refused answers 404, from pickers that go on and from those that start. Both mend by the document alone, and the
// gateway goes when it is deleted though it was applied with its finalizer, as it was read.
func TestWrongPort(t *testing.T) {
	t.Parallel()
	p := withSluice(t)
	document := func(more string) string {
		return gateway(p.name, `  bbr: {enabled: true}
  schedulers:
  - name: llama
    modelName: llama
    modelSelector: {matchLabels: {app: llama}}
`+more)
	}
	p.apply(simulated("llama", "llama", 1), document("    targetPort: 9999\n"))
	p.waitFor(p.name, "Ready", metav1.ConditionTrue)
	reason, message := "", ""
	until(t, "that no picker reaches the pod", 2*time.Minute, func() string {
		reason, message = p.waitFor(p.name, "Serving", metav1.ConditionFalse)
		if strings.Contains(message, "no picker reaches any of 1 ready pods at port 9999") {
			return ""
		}
		return reason + ": " + message
	})
	if _, message := p.waitFor(p.name, "MetricsRead", metav1.ConditionFalse); strings.Contains(message, "routed to") {
		t.Errorf("got %q, want nothing of requests that are routed", message)
	}
	if out := p.shell("go run ./cmd/sluice kubectl doctor 2>&1 || echo it fails"); !strings.Contains(out, "reaches no endpoint of llama") || !strings.Contains(out, "it fails") {
		t.Errorf("got %s, want that it fails for want of an endpoint", out)
	}
	if got := p.send(p.name, "/v1/chat/completions", chat("llama", "hello")); got.status != 503 || !strings.Contains(got.body, "kubectl sluice top") {
		t.Errorf("got %d %s, want 503 and where to look", got.status, got.body)
	}
	answers := func(status int, words string) {
		t.Helper()
		until(t, fmt.Sprint("an answer with status ", status), time.Minute, func() string {
			if got := p.send(p.name, "/v1/chat/completions", chat("llama", "hello")); got.status != status || !strings.Contains(got.body, words) {
				return fmt.Sprint(got.status, got.body)
			}
			return ""
		})
	}
	p.apply(document("    targetPort: 8000\n"))
	answers(200, "")
	p.waitServing(p.name)

	p.apply(document("    targetPort: 9998\n    configMapRef: {name: plugins}\n"))
	answers(404, openai.NoSchedulerMessage)
	p.shell("kubectl rollout restart deployment/" + p.name + "-picker && kubectl rollout status --timeout=2m deployment/" + p.name + "-picker")
	answers(404, openai.NoSchedulerMessage)
	if _, message := p.waitFor(p.name, "Serving", metav1.ConditionFalse); !strings.Contains(message, "its model is answered 404") {
		t.Errorf("got %q, want what becomes of requests", message)
	}
	p.apply(document("    targetPort: 8000\n"))
	answers(200, "")
	p.waitServing(p.name)

	file := filepath.Join(t.TempDir(), "igwc.yaml")
	p.shell("kubectl get igwc " + p.name + " -o yaml >" + file + "; kubectl delete igwc " + p.name + " --timeout=1m; grep -q gateway.sluice.dev/cleanup " + file + "; kubectl apply -f " + file)
	p.waitServing(p.name)
	p.shell("kubectl delete -f " + file + " --timeout=1m")
}

// sglang is a server with the metrics of SGLang, which does not start without a GPU. It says how often they are read.
const sglang = `
import http.server, json, sys, time
waiting, use, reads, began = float(sys.argv[1]), float(sys.argv[2]), 0, None
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def answer(self, text, kind="application/json"):
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())
    def do_GET(self):
        global reads, began
        if self.path == "/metrics":
            reads, began = reads + 1, began or time.monotonic()
            labels = 'engine_type="unified",model_name="qwen",pp_rank="0",tp_rank="0"'
            values = {"num_running_reqs": 0, "num_queue_reqs": waiting, "token_usage": use, "max_total_num_tokens": 100000,
                'realtime_tokens_total{mode="prefill_compute"': 1, 'realtime_tokens_total{mode="decode"': 1, 'forward_execution_seconds_total{category="extend"': 1,
                "inter_token_latency_seconds_sum": 1, "prompt_tokens_total": 1, "cached_tokens_total": 1, "time_to_first_token_seconds_count": 1, "time_to_first_token_seconds_sum": 1,
                "num_requests_total": 1, "generation_tokens_total": 1}
            self.answer("".join(f"sglang:{name}{',' if '{' in name else '{'}{labels}}} {value}\n" for name, value in values.items()), "text/plain")
        elif self.path == "/reads":
            self.answer(json.dumps({"reads": reads, "seconds": time.monotonic() - (began or time.monotonic())}))
        elif self.path == "/v1/models":
            self.answer(json.dumps({"object": "list", "data": [{"id": "qwen", "object": "model", "owned_by": "sglang"}]}))
        else:
            self.answer("{}")
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.answer(json.dumps({"object": "chat.completion", "choices": []}))
    def log_message(self, *args): pass
http.server.ThreadingHTTPServer(("0.0.0.0", ` + enginePort + `), Handler).serve_forever()
`

// TestSGLang: weights go by the metrics of SGLang where the document says that it is the engine, and pickers read them
// less than half as often as the reference's.
func TestSGLang(t *testing.T) {
	t.Parallel()
	p := withSluice(t)
	label := func(doc string) string {
		return strings.Replace(doc, "labels: {app: ", "labels: {engine: qwen, app: ", 1)
	}
	p.apply(label(python(t, "busy", 1, probed, "-c", sglang, "9", ".9")), label(python(t, "idle", 1, probed, "-c", sglang, "0", ".1")),
		gateway(p.name, `  bbr: {enabled: true}
  schedulers:
  - name: qwen
    modelName: qwen
    modelSelector: {matchLabels: {engine: qwen}}
    engineType: sglang
    weights: {prefix: 0, queue: 3, kvCache: 2}
`))
	p.waitReady("busy", 1)
	idle := p.waitReady("idle", 1)[0]
	p.waitServing(p.name)
	p.waitFor(p.name, "MetricsRead", metav1.ConditionTrue)
	for i := range 8 {
		got := p.send(p.name, "/v1/chat/completions", chat("qwen", "hello"))
		if got.status != 200 || got.header.Get(servedBy) != idle.Status.PodIP+":"+enginePort {
			t.Errorf("%d: got %d from %s for %q, want the idle pod", i, got.status, got.header.Get(servedBy), got.header.Get("X-Gateway-Routing-Reason"))
		}
	}
	var all struct{ Reads, Seconds float64 }
	until(t, "ten seconds of reads", time.Minute, func() string {
		got, err := ask(t, urlOf(idle.Status.PodIP, enginePort, "/reads"), "")
		if err != nil || json.Unmarshal([]byte(got.body), &all) != nil {
			t.Fatal(got.body, err)
		}
		if all.Seconds < 10 {
			return got.body
		}
		return ""
	})
	t.Logf("%.1f reads of the metrics a second", all.Reads/all.Seconds)
	if all.Reads/all.Seconds > 20 {
		t.Errorf("got %.0f reads in %.0f s, want at most 20 a second", all.Reads, all.Seconds)
	}
}

// keysServer gives an issuer's keys away, by TLS.
const keysServer = `
import http.server, pathlib, ssl, sys
for name, text in zip(("cert", "key"), sys.argv[2:]):
    pathlib.Path("/dev/shm", name).write_text(text)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(sys.argv[1].encode())
    def log_message(self, *args): pass
server = http.server.ThreadingHTTPServer(("0.0.0.0", ` + enginePort + `), Handler)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain("/dev/shm/cert", "/dev/shm/key")
server.socket = context.wrap_socket(server.socket, server_side=True)
server.serve_forever()
`

// TestTokens: who has no token of the issuer, for this audience and with the claims, is refused before a model is asked;
// health routes stay open. Envoys fetch the keys by TLS from an issuer that they trust.
func TestTokens(t *testing.T) {
	t.Parallel()
	p := withSluice(t)
	good, bad := newIssuer(t), newIssuer(t)
	cert, key := signed(t, "keys."+p.name+".svc")
	secure := strings.Replace(probed, "httpGet: {", "httpGet: {scheme: HTTPS, ", 1)
	p.apply(simulated("llama", "llama", 1), python(t, "keys", 1, secure, "-c", keysServer, string(good.keys), cert, key), service("keys", 443, 8000, "https"),
		gateway(p.name, fmt.Sprintf(`  bbr: {enabled: false}
  auth:
    jwt:
      provider:
        name: corp
        issuer: https://login.example.com/
        remoteJWKS: {uri: "https://keys.%s.svc/keys"}
        audiences: [inference]
        requiredClaims:
        - {name: groups, valueType: StringArray, values: [research, search]}
  schedulers:
  - name: llama
    modelName: llama
    modelSelector: {matchLabels: {app: llama}}
`, p.name)))
	p.waitReady("keys", 1)
	p.waitServing(p.name)
	claims := func(change func(map[string]any)) map[string]any {
		m := map[string]any{"iss": "https://login.example.com/", "aud": "inference", "exp": time.Now().Add(time.Hour).Unix(), "groups": []string{"search"}}
		change(m)
		return m
	}
	whole := claims(func(map[string]any) {})
	send := func(i *issuer, claims map[string]any) answer {
		return p.send(p.name, "/v1/chat/completions", chat("llama", "hello"), "authorization", "Bearer "+i.token(t, claims))
	}
	until(t, "a token to be taken", 90*time.Second, func() string {
		if got := send(good, whole); got.status != 200 {
			return fmt.Sprint(got.status, got.body)
		}
		return ""
	})
	f := func(what string, got answer, want int) {
		t.Helper()
		if got.status != want || got.header.Get(servedBy) != "" {
			t.Errorf("%s: got %d %s, want %d", what, got.status, got.body, want)
		}
	}
	f("no token", p.send(p.name, "/v1/chat/completions", chat("llama", "hello")), 401)
	f("another's signature", send(bad, whole), 401)
	f("an expired token", send(good, claims(func(m map[string]any) { m["exp"] = time.Now().Add(-time.Hour).Unix() })), 401)
	f("another audience", send(good, claims(func(m map[string]any) { m["aud"] = "other" })), 403)
	f("another group", send(good, claims(func(m map[string]any) { m["groups"] = []string{"sales"} })), 403)
	f("no group", send(good, claims(func(m map[string]any) { delete(m, "groups") })), 403)
	f("models without a token", p.send(p.name, "/v1/models", ""), 401)
	for _, path := range []string{"/healthz", "/readyz"} {
		f(path+" without a token", p.send(p.name, path, ""), 200)
	}
}

// signed is a certificate for a host by the authority that Envoys trust, and its key.
func signed(t *testing.T, host string) (cert, key string) {
	t.Helper()
	folder := filepath.Join(filepath.Dir(shared.bin), "authority")
	authority, err := tls.LoadX509KeyPair(filepath.Join(folder, "ca.crt"), filepath.Join(folder, "ca.key"))
	if err != nil {
		t.Fatal(err)
	}
	own, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), DNSNames: []string{host}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour)},
		authority.Leaf, own.Public(), authority.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(own)
	if err != nil {
		t.Fatal(err)
	}
	text := func(kind string, der []byte) string {
		return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
	}
	return text("CERTIFICATE", der), text("PRIVATE KEY", private)
}

// quickstart is the section of docs/kubernetes.md whose commands are run.
const quickstart = "## From an empty cluster to a streamed answer\n"

// TestQuickstart: what docs/kubernetes.md has a newcomer type ends in a streamed answer. The commands are taken from the
// page; what is installed was installed by those of its first steps, with the values of a cluster without load balancers.
func TestQuickstart(t *testing.T) {
	t.Parallel()
	p := withSluice(t)
	installed, err := installSluice()
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	page, err := os.ReadFile("../docs/kubernetes.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(page), quickstart)
	section, _, _ = strings.Cut(section, "\n## ")
	blocks := regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(section, -1)
	if len(blocks) != 5 {
		t.Fatalf("got %d blocks of commands in %q, want 5", len(blocks), strings.TrimSpace(quickstart))
	}
	for i, want := range []string{"helm install sluice deploy/chart -n " + systemNamespace + " --create-namespace --wait \\\n     --set image.registry=", "-n " + systemNamespace + " -f deploy/envoy-gateway/values.yaml --wait\n"} {
		if !strings.Contains(blocks[i][1], want) {
			t.Errorf("step %d is not what installSluice does: %s", i+1, blocks[i][1])
		}
	}
	// The image is written into the file as the nodes fetch it.
	models, err := os.ReadFile("../deploy/quickstart/models.yaml")
	if err != nil {
		t.Fatal(err)
	}
	p.apply(strings.Replace(string(models), "sluice-gateway/sluice:0.1.0", image("sluice"), 1))
	out := p.shell(blocks[3][1])
	if !regexp.MustCompile(`(?m)^gateway +True +`).MatchString(out) {
		t.Errorf("got %s, want a gateway that is ready", out)
	}
	p.waitServing("gateway")
	if out, err := shared.kubectl(t.Context(), "", "get", "service", "-n", systemNamespace, "-l", owningGateway+"=gateway", "-o", "name"); err != nil || out != "service/gateway\n" {
		t.Errorf("got %q and %v, want the Service that the page names", out, err)
	}
	// Someone who types does not type before the port is open, and ends what they have started.
	out = p.shell(strings.Replace(blocks[4][1], "&\n", "&\ntrap \"kill $!\" EXIT; until curl -s -o /dev/null http://127.0.0.1:8080/healthz; do sleep .1; done\n", 1))
	if n := strings.Count(out, `chat.completion.chunk`); n < 3 || !strings.Contains(out, "data: [DONE]") {
		t.Errorf("got %s, want a streamed answer", out)
	}
	t.Logf("from an empty cluster to a streamed answer: %.0f s, of which the installation took %.0f s", (installed + time.Since(began)).Seconds(), installed.Seconds())
	// The same with the client that most use.
	out = p.shell(os.Getenv(pythonVariable) + ` -c '
import openai, sys
client = openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key="none", max_retries=0)
for chunk in client.chat.completions.create(model="meta-llama/Llama-3.1-8B-Instruct", messages=[{"role": "user", "content": "Hello"}], max_tokens=8, stream=True):
    print("chunk", chunk.choices[0].delta.content)
' ` + urlOf(p.addressOfGateway("gateway"), "80", ""))
	if n := strings.Count(out, "chunk"); n < 8 {
		t.Errorf("got %s, want a streamed answer", out)
	}
}

// shell runs commands as someone does who stands at the root of the checkout, inside the cluster's network, with the
// programs on the path and the test's namespace as their own.
func (p *place) shell(commands string) string {
	p.t.Helper()
	config, err := os.ReadFile(shared.kubeconfig())
	if err != nil {
		p.t.Fatal(err)
	}
	file := filepath.Join(p.t.TempDir(), "kubeconfig")
	if err := os.WriteFile(file, []byte(strings.Replace(string(config), "context: {", "context: {namespace: "+p.name+", ", 1)), 0o600); err != nil {
		p.t.Fatal(err)
	}
	c := exec.CommandContext(p.t.Context(), "nsenter", "--net=/proc/"+shared.holder()+"/ns/net", "sh", "-ec", commands)
	c.Dir = ".."
	c.Env = append(os.Environ(), "KUBECONFIG="+file, "PATH="+shared.bin+":"+os.Getenv("PATH"))
	out, err := c.CombinedOutput()
	if err != nil {
		p.t.Fatalf("%s: %v: %s", commands, err, out)
	}
	return string(out)
}
