//go:build cluster && linux

package e2e

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// until waits until nothing is amiss, and fails the test with what is when that takes too long. The limit is there to end
// a hang; nothing depends on how long a thing took.
func until(t *testing.T, what string, within time.Duration, amiss func() string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		now := amiss()
		if now == "" {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("got no end of waiting after %v, want %s: %s", within, what, now)
		}
	}
}

// place is a namespace of a test's own.
type place struct {
	t    *testing.T
	name string
}

// newPlace makes a namespace. When the test has failed, what one needs to see why is written down first.
func newPlace(t *testing.T) *place {
	t.Helper()
	name := strings.Trim(regexp.MustCompile(`[^a-z0-9]+`).ReplaceAllString(strings.ToLower(strings.TrimPrefix(t.Name(), "Test")), "-"), "-")
	p := &place{t: t, name: name}
	p.apply(fmt.Sprintf("{apiVersion: v1, kind: Namespace, metadata: {name: %s}}", name))
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		if t.Failed() {
			dump(ctx, t, name)
		}
		// Kubernetes takes the pods of a namespace first, and looks again only after half the time that they may take to end:
		// minutes where they let requests end. So what makes pods goes before.
		for _, kind := range []string{"igwc", "deployments"} {
			if out, err := shared.kubectl(ctx, "", "delete", kind, "--all", "-n", name, "--timeout", "60s"); err != nil && !strings.Contains(out, "have a resource type") {
				t.Errorf("cannot delete %s: %v: %s", kind, err, out)
			}
		}
		if out, err := shared.kubectl(ctx, "", "wait", "--for", "delete", "pods", "--all", "-n", name, "--timeout", "90s"); err != nil {
			t.Logf("pods stay: %v: %s", err, out) // one that is told to end while it starts does not hear it
		}
		if out, err := shared.kubectl(ctx, "", "delete", "namespace", name, "--wait=false"); err != nil {
			t.Errorf("cannot delete the namespace: %v: %s", err, out)
		}
	})
	return p
}

// dump writes down what is in a namespace and in those of the system: objects, events, descriptions, logs.
func dump(ctx context.Context, t *testing.T, namespace string) {
	folder := filepath.Join(cmp.Or(os.Getenv("SLUICE_E2E_DUMPS"), filepath.Join(shared.state, "failed")), namespace)
	write := func(name string, args ...string) {
		out, err := shared.kubectl(ctx, "", args...)
		if err != nil {
			out += err.Error()
		}
		if err := os.WriteFile(filepath.Join(folder, name), []byte(out), 0o644); err != nil {
			t.Log(err)
		}
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		t.Log(err)
		return
	}
	namespaces := []string{namespace, "kube-system", "envoy-gateway-system", "hyperpod-inference-system"}
	write("dump.log", "cluster-info", "dump", "--namespaces", strings.Join(namespaces, ","), "--output-directory", folder, "-o", "yaml")
	write("pods.txt", "get", "pods", "-A", "-o", "wide")
	write("events.txt", "events", "-A")
	write("described.txt", "describe", "pods,deployments,services", "-n", namespace)
	kinds, err := shared.kubectl(ctx, "", "api-resources", "--namespaced", "--verbs", "list", "-o", "name")
	if err != nil {
		t.Log(err)
	}
	own := slices.DeleteFunc(strings.Fields(kinds), func(kind string) bool {
		return !strings.Contains(kind, "gateway") && !strings.Contains(kind, "inference") && !strings.Contains(kind, "sluice")
	})
	if len(own) > 0 {
		write("gateways.yaml", "get", strings.Join(own, ","), "-A", "-o", "yaml")
	}
	pods, _ := os.ReadFile(filepath.Join(folder, "pods.txt"))
	t.Logf("what there is to see of the cluster is in %s; the pods:\n%s", folder, pods)
}

// apply applies documents as a user does; namespaced ones that name no other are in this namespace.
func (p *place) apply(documents ...string) {
	p.t.Helper()
	args := []string{"apply", "-f", "-"}
	if p.name != "" {
		args = append(args, "--namespace", p.name)
	}
	if out, err := shared.kubectl(p.t.Context(), strings.Join(documents, "\n---\n"), args...); err != nil {
		p.t.Fatalf("cannot apply: %v: %s", err, out)
	}
}

// object reads an object; nil when there is none.
func (p *place) object(apiVersion, kind, name string) *unstructured.Unstructured {
	p.t.Helper()
	u := new(unstructured.Unstructured)
	u.SetGroupVersionKind(schema.FromAPIVersionAndKind(apiVersion, kind))
	err := shared.client.Get(p.t.Context(), client.ObjectKey{Namespace: p.name, Name: name}, u)
	if client.IgnoreNotFound(err) != nil {
		p.t.Fatal(err)
	}
	if err != nil {
		return nil
	}
	return u
}

// amiss is what a condition of an object lacks to be of the status; empty when it has it, for the generation that is there.
func amiss(u *unstructured.Unstructured, condition string, want metav1.ConditionStatus) string {
	if u == nil {
		return "there is no such object"
	}
	c := conditionOf(u, condition)
	if c == nil {
		return fmt.Sprintf("no condition %s in %v", condition, u.Object["status"])
	}
	if generation, ok := c["observedGeneration"].(int64); c["status"] != string(want) || ok && generation < u.GetGeneration() {
		return fmt.Sprintf("%s is %v, %v: %v", condition, c["status"], c["reason"], c["message"])
	}
	return ""
}

// conditionOf is a condition of an object; nil when it has none of the type.
func conditionOf(u *unstructured.Unstructured, condition string) map[string]any {
	list, _, _ := unstructured.NestedSlice(u.Object, "status", "conditions")
	for _, entry := range list {
		if c, _ := entry.(map[string]any); c["type"] == condition {
			return c
		}
	}
	return nil
}

// ready are the pods with a label that are ready, by name.
func (p *place) ready(label, value string) []corev1.Pod {
	p.t.Helper()
	var list corev1.PodList
	if err := shared.client.List(p.t.Context(), &list, client.InNamespace(p.name), client.MatchingLabels{label: value}); err != nil {
		p.t.Fatal(err)
	}
	return slices.DeleteFunc(list.Items, func(pod corev1.Pod) bool {
		return pod.DeletionTimestamp != nil || !slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
		})
	})
}

// waitReady waits for n ready pods with the label app and returns them.
func (p *place) waitReady(app string, n int) []corev1.Pod {
	p.t.Helper()
	var pods []corev1.Pod
	until(p.t, fmt.Sprintf("%d pods of %s", n, app), 2*time.Minute, func() string {
		if pods = p.ready("app", app); len(pods) == n {
			return ""
		}
		return fmt.Sprintf("%d are ready", len(pods))
	})
	return pods
}

// answer is what came back for a request.
type answer struct {
	status int
	header http.Header
	body   string
}

// ask sends a request from inside the cluster's network; a body makes it a POST of JSON.
func ask(t *testing.T, url, body string, headers ...string) (answer, error) {
	t.Helper()
	method := http.MethodGet
	if body != "" {
		method = http.MethodPost
	}
	request, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("content-type", "application/json")
	for i := 0; i+1 < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
	}
	response, err := shared.web.Do(request)
	if err != nil {
		return answer{}, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return answer{response.StatusCode, response.Header, string(text)}, err
}

// urlOf is the URL of a path at a pod's or a service's address.
func urlOf(address, port, path string) string {
	return "http://" + net.JoinHostPort(address, port) + path
}
