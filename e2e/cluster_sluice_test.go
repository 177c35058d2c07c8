//go:build cluster && linux

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// systemNamespace is where the controller, Envoy Gateway and every gateway's Envoys are.
	systemNamespace = "hyperpod-inference-system"
	configVersion   = "inference.sagemaker.aws.amazon.com/v1alpha1"
	configKind      = "InferenceGatewayConfig"
	// owningGateway is the label of a gateway's Envoys and their Service.
	owningGateway = "gateway.envoyproxy.io/owning-gateway-name"
)

// sluiceValues are the chart's that a cluster without load balancers, and with images of its own, asks for. One Envoy a
// gateway is enough for what is shown of it.
func sluiceValues() []string {
	return []string{"--set", "image.registry=cluster.test,image.repository=sluice,image.tag=" + os.Getenv(tagVariable),
		"--set", "envoy.image=cluster.test/envoy:1.40.0,envoy.replicas=1,envoy.service.type=ClusterIP"}
}

// installSluice installs Sluice and then Envoy Gateway, as docs/kubernetes.md has it, and says how long that took. In a
// cluster that was left running it upgrades them.
var installSluice = sync.OnceValues(func() (took time.Duration, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	began := time.Now()
	if out, err := script("envoy-gateway.sh", "pools").CombinedOutput(); err != nil {
		return 0, fmt.Errorf("cannot add the kind InferencePool: %w: %s", err, out)
	}
	helm := append([]string{"upgrade", "--install", "sluice", "../deploy/chart", "-n", systemNamespace, "--create-namespace", "--wait", "--timeout", "3m"}, sluiceValues()...)
	if out, err := shared.run(ctx, "", "helm", helm...); err != nil {
		return 0, fmt.Errorf("cannot install Sluice: %w: %s", err, out)
	}
	values, err := filepath.Abs("../deploy/envoy-gateway/values.yaml") // helm runs inside, in no folder of ours
	if err != nil {
		return 0, err
	}
	if out, err := script("envoy-gateway.sh", "install", systemNamespace, "-f", values).CombinedOutput(); err != nil {
		return 0, fmt.Errorf("cannot install Envoy Gateway: %w: %s", err, out)
	}
	return time.Since(began), nil
})

// withSluice makes a namespace in a cluster with Sluice, which is installed on the first demand and serves all tests.
func withSluice(t *testing.T) *place {
	t.Helper()
	p := newPlace(t)
	if _, err := installSluice(); err != nil {
		t.Fatal(err)
	}
	return p
}

// gateway is a manifest of a gateway called name. Its name is that of a Gateway in the system namespace, too, so that tests
// call theirs after their namespace.
func gateway(name, spec string) string {
	return fmt.Sprintf("apiVersion: %s\nkind: %s\nmetadata: {name: %s}\nspec:\n%s", configVersion, configKind, name, spec)
}

// waitFor waits until a gateway's condition has the status, and returns its reason and message.
func (p *place) waitFor(name, condition string, want metav1.ConditionStatus) (reason, message string) {
	p.t.Helper()
	until(p.t, fmt.Sprintf("%s of %s to be %s", condition, name, want), 3*time.Minute, func() string {
		return amiss(p.object(configVersion, configKind, name), condition, want)
	})
	c := conditionOf(p.object(configVersion, configKind, name), condition)
	return fmt.Sprint(c["reason"]), fmt.Sprint(c["message"])
}

// waitServing waits until a gateway is ready and each of its models has an endpoint.
func (p *place) waitServing(name string) {
	p.t.Helper()
	p.waitFor(name, "Ready", metav1.ConditionTrue)
	p.waitFor(name, "Serving", metav1.ConditionTrue)
}

// addressOfGateway is where a gateway's clients reach it, at port 80: its Envoys' Service.
func (p *place) addressOfGateway(name string) string {
	p.t.Helper()
	var list corev1.ServiceList
	if err := shared.client.List(p.t.Context(), &list, client.InNamespace(systemNamespace), client.MatchingLabels{owningGateway: name}); err != nil {
		p.t.Fatal(err)
	}
	if len(list.Items) != 1 {
		p.t.Fatalf("got %d Services of the gateway %q, want 1", len(list.Items), name)
	}
	return list.Items[0].Spec.ClusterIP
}

// send sends a request to a gateway; a body makes it a POST of JSON.
func (p *place) send(name, path, body string, headers ...string) answer {
	p.t.Helper()
	got, err := ask(p.t, urlOf(p.addressOfGateway(name), "80", path), body, headers...)
	if err != nil {
		p.t.Fatalf("cannot send to the gateway %q: %v", name, err)
	}
	return got
}

// chat is the body of a request for a short answer.
func chat(model, text string) string {
	return fmt.Sprintf(`{"model": %q, "max_tokens": 4, "messages": [{"role": "user", "content": %q}]}`, model, text)
}

// logOf is everything that the pods with the label app have said, of all their containers that run.
func (p *place) logOf(app string) string {
	p.t.Helper()
	out, err := shared.kubectl(p.t.Context(), "", "logs", "-n", p.name, "-l", "app="+app, "--tail", "-1", "--max-log-requests", "20")
	if err != nil {
		p.t.Fatalf("cannot read the log of %s: %v: %s", app, err, out)
	}
	return out
}
