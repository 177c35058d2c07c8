//go:build cluster && linux

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// TestHundredSchedulers: a gateway with a hundred models is programmed within a minute. The first, the fiftieth and the last
// have model servers of their own, which answer; the others share one, of which they are adapters.
func TestHundredSchedulers(t *testing.T) {
	const n, within = 100, time.Minute
	p := withSluice(t)
	t.Cleanup(p.retire)
	own := []int{1, 50, n}
	var models, apps []string
	spec := "  bbr: {enabled: true}\n  schedulers:\n"
	for i := 1; i <= n; i++ {
		app, model := "shared", fmt.Sprintf("model-%03d", i)
		if slices.Contains(own, i) {
			app = model
			apps = append(apps, simulated(app, model, 1))
		} else {
			models = append(models, model)
		}
		spec += fmt.Sprintf("  - {name: s-%03d, modelName: %s, modelSelector: {matchLabels: {app: %s}}}\n", i, model, app)
	}
	p.apply(append(apps, simulated("shared", "base", 1, "--adapters", strings.Join(models, ",")))...)
	p.waitReady("shared", 1)
	began := time.Now()
	p.apply(gateway(p.name, spec))
	p.waitServing(p.name)
	programmed := time.Since(began)
	for _, i := range own {
		model := fmt.Sprintf("model-%03d", i)
		p.waitAnswers(model)
		got := p.send(p.name, "/v1/chat/completions", chat(model, "hello"))
		want := p.waitReady(model, 1)[0].Status.PodIP + ":" + enginePort
		if endpoint := got.header.Get("X-Gateway-Destination-Endpoint-Served"); got.status != 200 || endpoint != want {
			t.Errorf("%s: got %d from %q, want 200 from %s: %s", model, got.status, endpoint, want, got.body)
		}
	}
	t.Logf("%d schedulers are serving after %.1f s, and the first, the fiftieth and the last have answered after %.1f s", n, programmed.Seconds(), time.Since(began).Seconds())
	if took := time.Since(began); took > within {
		t.Errorf("got answers after %v, want them within %v", took, within)
	}
}

// TestThousandEndpoints: of a thousand pods that come a picker soon knows each as an endpoint that can serve, and of five
// hundred that go that they have. The pods are objects without containers, bound to a node that is none; all of their
// addresses lead to one server, which says what an idle vLLM does.
func TestThousandEndpoints(t *testing.T) {
	const n, goes = 1000, 500
	p := withSluice(t)
	t.Cleanup(p.retire)
	served := serveThousand(t)
	standInNode(t, "stand-in")
	p.apply(gateway(p.name, `  bbr: {enabled: true, replicas: 1}
  schedulers:
  - {name: many, modelName: llama, modelSelector: {matchLabels: {app: many}}, replicas: 1}`))
	p.waitFor(p.name, "Ready", metav1.ConditionTrue)
	picker := p.pickerPod()
	began := time.Now()
	p.standIns(n)
	made := time.Since(began)
	p.waitEndpoints(picker, n, 3*time.Minute)
	t.Logf("%d pods were made in %.1f s, and all are ready endpoints of the picker %.1f s after", n, made.Seconds(), (time.Since(began) - made).Seconds())
	before, cpu := served.Load(), p.picked(picker, "process_cpu_seconds_total")
	from := time.Now()
	pass(t, 10*time.Second)
	length := time.Since(from).Seconds()
	t.Logf("%d endpoints: the picker has %.0f MB of memory, and takes %.2f cores to read %.0f pages of metrics a second", n, p.picked(picker, "process_resident_memory_bytes")/1e6,
		(p.picked(picker, "process_cpu_seconds_total")-cpu)/length, float64(served.Load()-before)/length)
	p.waitAnswers("llama")
	began = time.Now()
	p.deletePods(t.Context(), "half=second")
	deleted := time.Since(began)
	p.waitEndpoints(picker, n-goes, time.Minute)
	t.Logf("%d of them were deleted in %.1f s, and are no endpoints any more %.1f s after", goes, deleted.Seconds(), (time.Since(began) - deleted).Seconds())
	if late := time.Since(began) - deleted; late > 5*time.Second {
		t.Errorf("got the last endpoint gone %v after its pod, want within 5 s", late)
	}
	p.waitAnswers("llama")
}

// deletePods deletes pods that nobody runs, and of which nobody would say that they have ended.
func (p *place) deletePods(ctx context.Context, selector string) {
	p.t.Helper()
	if out, err := shared.kubectl(ctx, "", "delete", "pods", "-n", p.name, "-l", selector, "--grace-period", "0", "--force", "--wait=false"); err != nil {
		p.t.Errorf("cannot delete pods: %v: %s", err, out)
	}
}

// standIns makes pods with addresses of their own that are ready by their status alone.
func (p *place) standIns(n int) {
	p.t.Helper()
	p.t.Cleanup(func() { p.deletePods(context.Background(), "app=many") })
	var all sync.WaitGroup
	next := atomic.Int64{}
	for range 8 {
		all.Go(func() {
			for i := int(next.Add(1)) - 1; i < n && !p.t.Failed(); i = int(next.Add(1)) - 1 {
				if err := p.standIn(i, []string{"first", "second"}[i%2]); err != nil {
					p.t.Errorf("cannot make pod %d: %v", i, err)
				}
			}
		})
	}
	all.Wait()
	if p.t.Failed() {
		p.t.FailNow()
	}
}

func (p *place) standIn(i int, half string) error {
	no := false
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: p.name, Name: fmt.Sprintf("many-%d", i), Labels: map[string]string{"app": "many", "half": half}},
		Spec: corev1.PodSpec{NodeName: "stand-in", AutomountServiceAccountToken: &no, Containers: []corev1.Container{{Name: "engine", Image: "cluster.test/none:1"}}}}
	if err := shared.client.Create(p.t.Context(), pod); err != nil {
		return err
	}
	address := fmt.Sprintf("10.250.%d.%d", i/250, 1+i%250)
	pod.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: address, PodIPs: []corev1.PodIP{{IP: address}},
		Conditions:        []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
		ContainerStatuses: []corev1.ContainerStatus{{Name: "engine", Ready: true}}}
	return shared.client.Status().Update(p.t.Context(), pod)
}

// standInNode makes a node that nobody runs, and sees to it that it is taken for alive until the test ends.
func standInNode(t *testing.T, name string) {
	t.Helper()
	now := metav1.NewMicroTime(time.Now())
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{Unschedulable: true},
		Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.Now()}}}}
	status := node.Status
	if err := shared.client.Create(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	made := node.DeepCopy()
	node.Status = status
	if err := shared.client.Status().Patch(t.Context(), node, client.MergeFrom(made)); err != nil { // controllers write to nodes, too
		t.Fatal(err)
	}
	length := int32(40)
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-node-lease", Name: name},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: &name, LeaseDurationSeconds: &length, RenewTime: &now}}
	if err := shared.client.Create(t.Context(), lease); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var renewing sync.WaitGroup
	renewing.Go(func() {
		tick := time.NewTicker(5 * time.Second)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			now := metav1.NewMicroTime(time.Now())
			lease.Spec.RenewTime = &now
			if err := shared.client.Update(ctx, lease); err != nil && ctx.Err() == nil {
				t.Errorf("cannot renew the node's lease: %v", err)
			}
		}
	})
	t.Cleanup(func() {
		cancel()
		renewing.Wait()
		for _, o := range []client.Object{lease, node} {
			if err := shared.client.Delete(context.Background(), o); err != nil {
				t.Errorf("cannot delete %s: %v", o.GetName(), err)
			}
		}
	})
}

// serveThousand has the node take a thousand addresses for its own, and serves at all of them: metrics, models, and answers. It
// counts how often metrics were read.
func serveThousand(t *testing.T) *atomic.Int64 {
	t.Helper()
	route := func(verb string) {
		if out, err := script("inside.sh", "ip", "route", verb, "local", "10.250.0.0/16", "dev", "lo").CombinedOutput(); err != nil {
			t.Errorf("cannot %s the addresses: %v: %s", verb, err, out)
		}
	}
	route("add")
	t.Cleanup(func() { route("del") })
	l, err := shared.listen(":" + enginePort)
	if err != nil {
		t.Fatal(err)
	}
	var reads atomic.Int64
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
		reads.Add(1)
		w.Header().Set("Content-Type", "text/plain; version=0.0.4")
		fmt.Fprint(w, "vllm:num_requests_running{model_name=\"llama\"} 0\nvllm:num_requests_waiting{model_name=\"llama\"} 0\nvllm:kv_cache_usage_perc{model_name=\"llama\"} 0\n")
	})
	mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"object":"list","data":[{"id":"llama","object":"model"}]}`)
	})
	mux.HandleFunc("POST /v1/chat/completions", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"object":"chat.completion","choices":[{"index":0,"finish_reason":"stop","message":{"role":"assistant","content":"hello"}}]}`)
	})
	server := &http.Server{Handler: mux}
	go func() { _ = server.Serve(l) }() // it ends with the test
	t.Cleanup(func() { server.Close() })
	return &reads
}

// listen listens inside the cluster's network, on all addresses of the node.
func (c *cluster) listen(address string) (net.Listener, error) {
	type result struct {
		l   net.Listener
		err error
	}
	done := make(chan result, 1)
	go func() {
		runtime.LockOSThread() // as dial does
		if err := unix.Setns(c.network, unix.CLONE_NEWNET); err != nil {
			done <- result{nil, fmt.Errorf("cannot enter the cluster's network: %w", err)}
			return
		}
		l, err := net.Listen("tcp", address)
		done <- result{l, err}
	}()
	r := <-done
	return r.l, r.err
}

// pickerPod is the one picker of a gateway called after its namespace.
func (p *place) pickerPod() corev1.Pod {
	p.t.Helper()
	var picker corev1.Pod
	until(p.t, "one picker", time.Minute, func() string {
		pods := p.ready("app", p.name+"-picker")
		if len(pods) != 1 {
			return fmt.Sprintf("%d are ready", len(pods))
		}
		picker = pods[0]
		return ""
	})
	return picker
}

// look asks a picker's admin port by way of the API server, as people do.
func (p *place) look(picker corev1.Pod, path string) (string, error) {
	return shared.kubectl(p.t.Context(), "", "get", "--raw", fmt.Sprintf("/api/v1/namespaces/%s/pods/%s:9090/proxy%s", picker.Namespace, picker.Name, path))
}

// picked is a metric of the picker's process.
func (p *place) picked(picker corev1.Pod, name string) (value float64) {
	p.t.Helper()
	page, err := p.look(picker, "/metrics")
	for line := range strings.Lines(page) {
		if n, _ := fmt.Sscanf(line, name+" %g\n", &value); n == 1 {
			return value
		}
	}
	p.t.Fatalf("got no %s, and %v", name, err)
	return 0
}

// waitEndpoints waits until the picker has so many endpoints, all of them with metrics that were read.
func (p *place) waitEndpoints(picker corev1.Pod, n int, within time.Duration) {
	p.t.Helper()
	until(p.t, fmt.Sprintf("%d endpoints", n), within, func() string {
		page, err := p.look(picker, "/fleet")
		if err != nil {
			return err.Error() + ": " + page
		}
		var pools []struct {
			Endpoints []struct {
				State       string
				MetricsRead bool
			}
		}
		if err := json.Unmarshal([]byte(page), &pools); err != nil {
			return err.Error()
		}
		there, read := 0, 0
		for _, pool := range pools {
			for _, e := range pool.Endpoints {
				there++
				if e.State == "ready" && e.MetricsRead {
					read++
				}
			}
		}
		if there == n && read == n {
			return ""
		}
		return fmt.Sprintf("%d are there, of which %d are ready with metrics", there, read)
	})
}
