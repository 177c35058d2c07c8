//go:build cluster && linux

package e2e

import (
	"cmp"
	"fmt"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// TestModelServers: pods with simulated and with real model servers come up and answer at their addresses.
func TestModelServers(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.apply(simulated("simulated", "llama", 2), real(t, "real", "tiny", 2))
	for app, model := range map[string]string{"simulated": "llama", "real": "tiny"} {
		for _, pod := range p.waitReady(app, 2) {
			got, err := ask(t, urlOf(pod.Status.PodIP, enginePort, "/v1/completions"), fmt.Sprintf(`{"model": %q, "prompt": "one two three", "max_tokens": 4}`, model))
			if err != nil || got.status != 200 || !strings.Contains(got.body, `"text_completion"`) {
				t.Errorf("%s: got %d %s and %v, want a completion", pod.Name, got.status, got.body, err)
			}
			if page, err := ask(t, urlOf(pod.Status.PodIP, enginePort, "/metrics"), ""); err != nil || page.status != 200 {
				t.Errorf("%s: got %d %s and %v, want metrics", pod.Name, page.status, page.body, err)
			}
		}
	}
}

// TestEnvoyGateway: the Envoy Gateway that is installed for Sluice runs an Envoy for somebody's own Gateway, which answers
// through their external processor.
func TestEnvoyGateway(t *testing.T) {
	t.Parallel()
	p := withSluice(t)
	p.apply(
		deployment("web", 2, `{name: echo, image: "cluster.test/echo:1"}`, ""), service("web", 80, 8080, ""),
		deployment("processor", 1, `{name: extproc, image: "cluster.test/extproc:1"}`, ""), service("processor", 9002, 9002, "kubernetes.io/h2c"),
		gatewayDocuments)
	address := ""
	until(t, "the Gateway to be programmed", 2*time.Minute, func() string {
		u := p.object("gateway.networking.k8s.io/v1", "Gateway", "theirs")
		if now := amiss(u, "Programmed", "True"); now != "" {
			return now
		}
		address = addressOf(u)
		return ""
	})
	until(t, "an answer through the processor", time.Minute, func() string {
		got, err := ask(t, urlOf(address, "80", "/hello"), "abc")
		if err == nil && got.status == 200 && strings.Contains(got.body, "path=/hello x-probe=from-extproc body=3") {
			return ""
		}
		return fmt.Sprint(got.status, got.body, err)
	})
}

// service is a manifest of a Service for the pods labelled app: name.
func service(name string, port, target int, protocol string) string {
	return fmt.Sprintf("{apiVersion: v1, kind: Service, metadata: {name: %[1]s}, spec: {selector: {app: %[1]s}, ports: [{port: %[2]d, targetPort: %[3]d, appProtocol: %[4]q}]}}",
		name, port, target, cmp.Or(protocol, "http"))
}

// addressOf is the first address that a Gateway has.
func addressOf(gateway *unstructured.Unstructured) string {
	list, _, _ := unstructured.NestedSlice(gateway.Object, "status", "addresses")
	for _, entry := range list {
		if a, ok := entry.(map[string]any); ok {
			return fmt.Sprint(a["value"])
		}
	}
	return ""
}

// envoyDocument says how the Envoys of somebody's own Gateways are run in this cluster.
const envoyDocument = `apiVersion: gateway.envoyproxy.io/v1alpha1
kind: EnvoyProxy
metadata: {name: envoy}
spec:
  provider:
    type: Kubernetes
    kubernetes:
      envoyService: {type: ClusterIP}
      envoyDeployment:
        container: {image: "cluster.test/envoy:1.40.0", resources: {requests: {cpu: 50m, memory: 64Mi}}}
---
`

// gatewayDocuments are a Gateway with an Envoy of its own, a route to web, and a processor of its requests.
const gatewayDocuments = envoyDocument + `apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: eg}
spec: {controllerName: gateway.envoyproxy.io/gatewayclass-controller}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: theirs}
spec:
  gatewayClassName: eg
  infrastructure: {parametersRef: {group: gateway.envoyproxy.io, kind: EnvoyProxy, name: envoy}}
  listeners: [{name: http, protocol: HTTP, port: 80}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: web}
spec:
  parentRefs: [{name: theirs}]
  rules: [{backendRefs: [{name: web, port: 80}]}]
---
apiVersion: gateway.envoyproxy.io/v1alpha1
kind: EnvoyExtensionPolicy
metadata: {name: processor}
spec:
  targetRefs: [{group: gateway.networking.k8s.io, kind: HTTPRoute, name: web}]
  extProc:
  - backendRefs: [{name: processor, port: 9002}]
    processingMode: {request: {}, response: {}}
`
