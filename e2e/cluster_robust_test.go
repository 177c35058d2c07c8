//go:build cluster && linux

package e2e

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// controllerName is the Deployment of the controller.
const controllerName = "inference-gateway-controller"

// lasting are pods with a simulated model server each, of which one that is to end serves on for as long as its longest
// answers take: the program itself, as many engines, breaks off what runs when it is told to end.
func lasting(name, model string, replicas int) string {
	args := []string{"sim", "--profile", "l8-h100", "--host", "0.0.0.0", "--port", enginePort, "--model", model, "--speed", loadSpeed}
	text := deployment(name, replicas, fmt.Sprintf(`{name: engine, image: %q, args: %s, %s, lifecycle: {preStop: {sleep: {seconds: 10}}}}`, image("sluice"), list(args), probed), "")
	return strings.Replace(text, "terminationGracePeriodSeconds: 5", "terminationGracePeriodSeconds: 30", 1)
}

// loaded is a gateway called after its namespace that serves two pods of app llama, under load.
func loaded(t *testing.T) (*place, *load) {
	t.Helper()
	p := withSluice(t)
	t.Cleanup(p.retire)
	p.apply(lasting("llama", "llama", 2), gateway(p.name, `  bbr: {enabled: true, replicas: 2}
  schedulers:
  - {name: llama, modelName: llama, modelSelector: {matchLabels: {app: llama}}, replicas: 2}`))
	p.waitServing(p.name)
	p.waitAnswers("llama")
	shared.web.CloseIdleConnections() // an Envoy that ends waits for its connections
	l := startLoad(t, "http://"+p.addressOfGateway(p.name), "llama")
	l.during("nothing is done", func() { pass(t, 5*time.Second) })
	return p, l
}

// retire deletes the gateways of a namespace, and waits until their pods are gone: to look at what was deleted with a
// namespace again, Kubernetes waits half as long as pods may take to end at most, and pickers may take eleven minutes.
func (p *place) retire() {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	for _, args := range [][]string{{"delete", "igwc", "--all"}, {"wait", "pods", "--for=delete", "-l", "app=" + p.name + "-picker", "--timeout", "1m"}} {
		if out, err := shared.kubectl(ctx, "", append(args, "-n", p.name)...); err != nil {
			p.t.Errorf("cannot %s: %v: %s", strings.Join(args, " "), err, out)
		}
	}
}

// waitAnswers waits until a gateway called after its namespace answers for a model.
func (p *place) waitAnswers(model string) {
	p.t.Helper()
	url := urlOf(p.addressOfGateway(p.name), "80", "/v1/chat/completions")
	until(p.t, "an answer of "+model, time.Minute, func() string {
		got, err := ask(p.t, url, chat(model, "hello"))
		if err == nil && got.status == 200 {
			return ""
		}
		return fmt.Sprint(got.status, got.body, err)
	})
}

// pass lets time pass.
func pass(t *testing.T, length time.Duration) {
	ctx, cancel := context.WithTimeout(t.Context(), length)
	defer cancel()
	<-ctx.Done()
}

// rollout waits until a Deployment runs nothing but what it asks for: the new pods are ready, and those before them gone.
func rollout(t *testing.T, namespace, name string, selector ...string) {
	t.Helper()
	if out, err := shared.kubectl(t.Context(), "", "rollout", "status", "deployment/"+name, "-n", namespace, "--timeout", "2m"); err != nil {
		t.Errorf("cannot wait for Deployment %s: %v: %s", name, err, out)
	}
	until(t, "the pods of before to be gone from "+name, 2*time.Minute, func() string {
		var list corev1.PodList
		if err := shared.client.List(t.Context(), &list, client.InNamespace(namespace), podsOf(t, namespace, name)); err != nil {
			return err.Error()
		}
		for _, pod := range list.Items {
			if pod.DeletionTimestamp != nil {
				return pod.Name + " is there"
			}
		}
		return ""
	})
}

// podsOf selects the pods of a Deployment.
func podsOf(t *testing.T, namespace, name string) client.ListOption {
	t.Helper()
	p := place{t: t, name: namespace}
	u := p.object("apps/v1", "Deployment", name)
	if u == nil {
		t.Fatalf("there is no Deployment %s in %s", name, namespace)
	}
	labels := make(client.MatchingLabels)
	spec := u.Object["spec"].(map[string]any)["selector"].(map[string]any)["matchLabels"].(map[string]any)
	for key, value := range spec {
		labels[key] = fmt.Sprint(value)
	}
	return labels
}

// envoysOf is the name of the Deployment of a gateway's Envoys.
func envoysOf(t *testing.T, gateway string) string {
	t.Helper()
	out, err := shared.kubectl(t.Context(), "", "get", "deployments", "-n", systemNamespace, "-l", owningGateway+"="+gateway, "-o", "jsonpath={.items[*].metadata.name}")
	if err != nil || out == "" || strings.Contains(out, " ") {
		t.Fatalf("got the Deployments %q of Envoys, and %v, want one", out, err)
	}
	return out
}

// TestRestartsUnderLoad: while requests come at a steady rate, everything is rolled out anew, part after part, and Sluice is
// upgraded and rolled back. No request is lost, and no stream is broken.
func TestRestartsUnderLoad(t *testing.T) {
	next := nextImage(t)
	p, l := loaded(t)
	for _, part := range []struct{ what, namespace, deployment string }{
		{"the controller", systemNamespace, controllerName},
		{"the pickers", p.name, p.name + "-picker"},
		{"Envoy Gateway", systemNamespace, "envoy-gateway"},
		{"the Envoys", systemNamespace, envoysOf(t, p.name)},
		{"the model servers", p.name, "llama"},
	} {
		l.during("restart of "+part.what, func() {
			if out, err := shared.kubectl(t.Context(), "", "rollout", "restart", "deployment/"+part.deployment, "-n", part.namespace); err != nil {
				t.Fatalf("cannot restart %s: %v: %s", part.what, err, out)
			}
			rollout(t, part.namespace, part.deployment)
		})
	}
	l.during("upgrade", func() {
		helm(t, "upgrade", "sluice", "../deploy/chart", "--reset-then-reuse-values", "--set", "image.tag="+next+",envoy.replicas=2", "--wait", "--timeout", "3m")
		p.waitVersion(next, 2)
	})
	l.during("rollback", func() {
		helm(t, "rollback", "sluice", "--wait", "--timeout", "3m")
		p.waitVersion(os.Getenv(tagVariable), 1)
	})
	l.halt()
}

// helm runs Helm for the release in the system namespace.
func helm(t *testing.T, args ...string) {
	t.Helper()
	if out, err := shared.run(t.Context(), "", "helm", append(args, "-n", systemNamespace)...); err != nil {
		t.Fatalf("cannot %s: %v: %s", args[0], err, out)
	}
}

// nextImage gives the cluster the gateway under another tag, as a version that comes after, and returns the tag.
func nextImage(t *testing.T) string {
	t.Helper()
	tag := os.Getenv(tagVariable) + "-next"
	made := script("images.sh", "sluice")
	made.Env = append(os.Environ(), tagVariable+"="+tag)
	archive, err := made.Output()
	if err != nil {
		t.Fatalf("cannot make the next image: %v", err)
	}
	if out, err := script("load.sh", strings.TrimSpace(string(archive))).CombinedOutput(); err != nil {
		t.Fatalf("cannot give the cluster the next image: %v: %s", err, out)
	}
	return tag
}

// waitVersion waits until the controller and the pickers are of a version alone, and so many Envoys run.
func (p *place) waitVersion(tag string, envoys int) {
	p.t.Helper()
	for _, part := range []struct{ namespace, deployment string }{{systemNamespace, controllerName}, {p.name, p.name + "-picker"}} {
		until(p.t, part.deployment+" to be of "+tag, 2*time.Minute, func() string {
			var list corev1.PodList
			if err := shared.client.List(p.t.Context(), &list, client.InNamespace(part.namespace), podsOf(p.t, part.namespace, part.deployment)); err != nil {
				return err.Error()
			}
			for _, pod := range list.Items {
				if got := pod.Spec.Containers[0].Image; got != "cluster.test/sluice:"+tag {
					return pod.Name + " is of " + got
				}
			}
			if len(list.Items) != 2 {
				return fmt.Sprintf("%d pods", len(list.Items))
			}
			return ""
		})
		rollout(p.t, part.namespace, part.deployment)
	}
	name := envoysOf(p.t, p.name)
	until(p.t, fmt.Sprintf("%d Envoys", envoys), 2*time.Minute, func() string {
		var list corev1.PodList
		if err := shared.client.List(p.t.Context(), &list, client.InNamespace(systemNamespace), podsOf(p.t, systemNamespace, name)); err != nil {
			return err.Error()
		}
		if len(list.Items) != envoys {
			return fmt.Sprintf("%d pods", len(list.Items))
		}
		return ""
	})
	rollout(p.t, systemNamespace, name)
	p.waitServing(p.name)
}

// TestAPIServerAwayUnderLoad: the API server ends without a word and is started anew, then answers nobody for a minute. No
// request is lost, then and when it is back, and a model server that comes after is found.
func TestAPIServerAwayUnderLoad(t *testing.T) {
	p, l := loaded(t)
	control := func(verb string) {
		if out, err := script("control.sh", verb).CombinedOutput(); err != nil {
			t.Errorf("cannot %s the API server: %v: %s", verb, err, out)
		}
	}
	l.during("the API server is killed", func() {
		control("kill")
		until(t, "an API server", time.Minute, func() string {
			out, err := shared.kubectl(t.Context(), "", "get", "--raw", "/readyz")
			if err != nil {
				return out
			}
			return ""
		})
		pass(t, 5*time.Second)
	})
	l.during("a minute without an API server", func() {
		control("pause")
		t.Cleanup(func() { control("continue") }) // however this ends
		pass(t, time.Minute)
		control("continue")
	})
	l.during("a model server comes after", func() {
		known := slices.Collect(maps.Keys(l.from()))
		began := time.Now()
		until(t, "three model servers to be asked for", time.Minute, func() string {
			out, err := shared.kubectl(t.Context(), "", "scale", "deployment/llama", "-n", p.name, "--replicas", "3")
			if err != nil {
				return out
			}
			return ""
		})
		until(t, "a new endpoint to serve", time.Minute, func() string {
			for endpoint := range l.from() {
				if endpoint != "" && !slices.Contains(known, endpoint) {
					return ""
				}
			}
			return fmt.Sprint("nobody but ", l.from())
		})
		t.Logf("the API server is back: a model server that comes serves after %.1f s", time.Since(began).Seconds())
		pass(t, 10*time.Second)
	})
	l.halt()
}

// TestNodeRestarts: kubelet, containerd and kube-proxy end and start again, while pods run on, and no request is lost. Then
// the node goes down as by its switch, with everything that runs on it, and is back: the gateway serves again by itself.
func TestNodeRestarts(t *testing.T) {
	p, l := loaded(t)
	node := func(verb string) {
		if out, err := script("node.sh", verb).CombinedOutput(); err != nil {
			t.Fatalf("cannot %s the node: %v: %s", verb, err, out)
		}
	}
	l.during("restart of kubelet and containerd", func() {
		node("restart")
		pass(t, 10*time.Second)
	})
	l.halt()
	node("reboot")
	began := time.Now()
	p.waitAnswers("llama")
	t.Logf("after a reboot of the only node there is an answer after %.1f s", time.Since(began).Seconds())
	p.waitServing(p.name)
	again := startLoad(t, l.url, "llama")
	again.during("after the reboot", func() { pass(t, 5*time.Second) })
	again.halt()
	if reason, message := p.waitFor(p.name, "Ready", metav1.ConditionTrue); reason == "" {
		t.Errorf("got Ready with %q, want a reason", message)
	}
}
