//go:build kube

package kube

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	poolv1 "sigs.k8s.io/gateway-api-inference-extension/api/v1"

	"github.com/sluice-gateway/sluice/translate"
)

// The messages here have the numbers and types of Envoy Gateway's own, and the service its names.
func TestExtensionMessages(t *testing.T) {
	folder := filepath.Join(moduleFolder(t, "envoy-gateway", "github.com/envoyproxy/gateway"), "proto/extension")
	var text strings.Builder
	for _, file := range []string{"service.proto", "context.proto"} {
		b, err := os.ReadFile(filepath.Join(folder, file))
		must(t, err)
		text.Write(b)
	}
	def := text.String()
	if !strings.Contains(def, "package envoygateway.extension;") || !strings.Contains(def, "service EnvoyGatewayExtension {") {
		t.Errorf("the service is not %s", extensionService)
	}
	for _, method := range []string{"PostRouteModify (PostRouteModifyRequest) returns (PostRouteModifyResponse)", "PostTranslateModify(PostTranslateModifyRequest) returns (PostTranslateModifyResponse)"} {
		if !strings.Contains(def, "rpc "+method) {
			t.Errorf("there is no method %s", method)
		}
	}
	for name, m := range map[string]any{"PostRouteModifyRequest": routeRequest{}, "PostRouteModifyResponse": routeAnswer{}, "PostRouteExtensionContext": routeContext{},
		"PostTranslateModifyRequest": translateRequest{}, "PostTranslateModifyResponse": translateAnswer{}, "ExtensionResource": extensionResource{}} {
		body := regexp.MustCompile(`(?s)message ` + name + ` \{(.*?)\n\}`).FindStringSubmatch(def)
		if body == nil {
			t.Errorf("there is no message %s", name)
			continue
		}
		for i := range reflect.TypeOf(m).NumField() {
			f := reflect.TypeOf(m).Field(i)
			tag := strings.Split(f.Tag.Get("protobuf"), ",")
			kind := `[\w.]+`
			if f.Type.Kind() == reflect.Slice && f.Type.Elem().Kind() == reflect.Uint8 {
				kind = "bytes"
			} else {
				inner := f.Type
				for inner.Kind() == reflect.Slice || inner.Kind() == reflect.Pointer {
					inner = inner.Elem()
				}
				if strings.Contains(inner.PkgPath(), "go-control-plane") {
					kind = `envoy[\w.]+\.` + inner.Name()
				}
			}
			if tag[2] == "rep" {
				kind = "repeated " + kind
			}
			line := regexp.MustCompile(`(?m)^\s*` + kind + ` ` + strings.TrimPrefix(tag[3], "name=") + ` = ` + tag[1] + `;`)
			if !line.MatchString(body[1]) {
				t.Errorf("message %s has no field as %s", name, f.Tag)
			}
		}
	}
}

const gatewayDocs = `
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: gw, namespace: models}
spec:
  gatewayClassName: eg
  listeners: [{name: http, protocol: HTTP, port: 8888, allowedRoutes: {namespaces: {from: All}}}]
`

// routeTo is an HTTPRoute of a path to backends, as YAML in one line.
func routeTo(namespace, name, backends string) string {
	return fmt.Sprintf(`
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: %s, namespace: %s}
spec:
  parentRefs: [{name: gw, namespace: models}]
  rules: [{matches: [{path: {value: /%s}}], filters: [{type: URLRewrite, urlRewrite: {path: {type: ReplacePrefixMatch, replacePrefixMatch: /}}}], backendRefs: [%s]}]
`, name, namespace, name, backends)
}

// pool is an InferencePool of the pods of an app.
func poolDoc(name, app, picker, rest string) string {
	return fmt.Sprintf(`
apiVersion: inference.networking.k8s.io/v1
kind: InferencePool
metadata: {name: %s, namespace: models}
spec:
  selector: {matchLabels: {app: %s}}
  endpointPickerRef: {name: %s, port: {number: 9002}%s
`, name, app, picker, rest)
}

func backend(name, more string) string {
	return "{group: inference.networking.k8s.io, kind: InferencePool, name: " + name + more + "}"
}

// Routes to InferencePools, through a real Envoy Gateway and a real Envoy.
func TestExtension(t *testing.T) {
	if !ownNetwork(t) {
		return
	}
	r := newGatewayRig(t)
	r.model("a1", "a", "127.0.0.11", 8000, 8001)
	r.model("a2", "a", "127.0.0.12", 8000, 8001)
	r.model("b1", "b", "127.0.0.21", 8000)
	r.model("c1", "h2c", "127.0.0.31", 8000)
	stopSecond := r.picker(&testPicker{name: "second"}, 9502, nil)
	r.picker(&testPicker{name: "first"}, 9501, selfSigned())
	one, two := ", failureMode: FailClose}\n  targetPorts: [{number: 8000}]", "}\n  targetPorts: [{number: 8000}, {number: 8001}]"
	r.apply(gatewayDocs)
	for _, doc := range []string{
		poolDoc("a", "a", "first", two), routeTo("models", "a", backend("a", "")),
		poolDoc("b", "b", "second", one), routeTo("models", "b", backend("b", "")),
		poolDoc("open", "b", "second", ", failureMode: FailOpen}\n  targetPorts: [{number: 8000}]"), routeTo("models", "open", backend("open", "")),
		poolDoc("c", "h2c", "first", one+"\n  appProtocol: kubernetes.io/h2c"), routeTo("models", "c", backend("c", "")),
		poolDoc("lost", "a", "nobody", one), routeTo("models", "lost", backend("lost", "")),
		poolDoc("alone", "b", "nobody", ", failureMode: FailOpen}\n  targetPorts: [{number: 8000}]"), routeTo("models", "alone", backend("alone", "")),
		routeTo("models", "both", backend("a", ", weight: 70")+","+backend("b", ", weight: 30")),
		routeTo("models", "half", backend("a", "")+","+backend("missing", "")),
		routeTo("other", "stolen", backend("a", ", namespace: models")),
	} {
		r.apply(doc)
	}

	t.Run("the picker's word", func(t *testing.T) {
		for _, want := range []string{"127.0.0.11:8000", "127.0.0.12:8000", "127.0.0.12:8001", "127.0.0.11:8001"} {
			a := r.until(t, by(want), "/a/x", "x-want", want)
			if a.header.Get("x-served") != want || a.header.Get("x-picked-by") != "first" || a.Body != `{"model":"m"}` {
				t.Errorf("got %v, want it served and said to be by %s", a, want)
			}
		}
	})
	t.Run("an address outside the pool is not reached", func(t *testing.T) {
		for range 20 {
			a, err := r.ask("/a/x", "x-want", "127.0.0.21:8000")
			must(t, err)
			if a.status != 200 || strings.HasPrefix(a.By, "127.0.0.21") {
				t.Errorf("got %v", a)
			}
		}
		a, err := r.ask("/a/x", "x-want", "127.0.0.99:8000,127.0.0.12:8001", "x-gateway-destination-endpoint", "127.0.0.21:8000")
		must(t, err)
		if a.By != "127.0.0.12:8001" {
			t.Errorf("got %v, want the list's member", a)
		}
	})
	t.Run("two pools by weight", func(t *testing.T) {
		r.until(t, by("127.0.0.21:8000"), "/both/x", "x-want", "127.0.0.12:8000,127.0.0.21:8000")
		count := make(map[string]int)
		for range 200 {
			a, err := r.ask("/both/x", "x-want", "127.0.0.12:8000,127.0.0.21:8000")
			must(t, err)
			count[a.By+" "+a.header.Get("x-picked-by")]++
		}
		if n := count["127.0.0.12:8000 first"]; n < 110 || n > 170 || n+count["127.0.0.21:8000 second"] != 200 {
			t.Errorf("got %v, want 140 and 60", count)
		}
	})
	t.Run("half of what is there", func(t *testing.T) {
		r.until(t, by("127.0.0.12:8000"), "/half/x", "x-want", "127.0.0.12:8000")
		count := make(map[int]int)
		for range 100 {
			a, err := r.ask("/half/x", "x-want", "127.0.0.12:8000")
			must(t, err)
			count[a.status]++
		}
		if count[200] < 25 || count[500] < 25 || count[200]+count[500] != 100 {
			t.Errorf("got %v, want half of them 500", count)
		}
	})
	t.Run("HTTP/2", func(t *testing.T) {
		if a := r.until(t, by("127.0.0.31:8000"), "/c/x", "x-want", "127.0.0.31:8000"); a.Protocol != "HTTP/2.0" {
			t.Errorf("got %v", a)
		}
	})
	t.Run("nobody to ask", func(t *testing.T) {
		r.until(t, replies(500), "/lost/x", "x-want", "127.0.0.11:8000")
		r.until(t, by("127.0.0.21:8000"), "/alone/x")
		r.condition(t, "lost", poolv1.InferencePoolConditionResolvedRefs, "False", string(poolv1.InferencePoolReasonInvalidExtensionRef))
		r.condition(t, "lost", poolv1.InferencePoolConditionAccepted, "True", string(poolv1.InferencePoolReasonAccepted))
		r.condition(t, "a", poolv1.InferencePoolConditionResolvedRefs, "True", string(poolv1.InferencePoolReasonResolvedRefs))
	})
	t.Run("without a grant", func(t *testing.T) { // K09, K10, K11
		r.until(t, replies(500), "/stolen/x", "x-want", "127.0.0.11:8000")
		r.apply(`
apiVersion: gateway.networking.k8s.io/v1beta1
kind: ReferenceGrant
metadata: {name: other, namespace: models}
spec:
  from: [{group: gateway.networking.k8s.io, kind: HTTPRoute, namespace: other}]
  to: [{group: inference.networking.k8s.io, kind: InferencePool}]
`)
		r.until(t, by("127.0.0.11:8000"), "/stolen/x", "x-want", "127.0.0.11:8000")
	})
	t.Run("rules, ports, hosts and Gateways", func(t *testing.T) { // of a Gateway and a route that are made together (K21)
		r.apply(strings.NewReplacer("name: gw", "name: second", "8888", "8889").Replace(gatewayDocs))
		r.apply(`
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: many, namespace: models}
spec:
  parentRefs: [{name: gw}, {name: second}]
  hostnames: [many.example.com]
  rules:
  - {matches: [{path: {value: /one}}, {headers: [{name: x-rule, value: one}]}], backendRefs: [` + backend("a", ", port: 80") + `]}
  - {matches: [{path: {value: /two}}], backendRefs: [` + backend("b", ", port: 8000") + `]}
`)
		for _, at := range []string{"127.0.0.1:8888", "127.0.0.1:8889"} {
			r.until(t, by("127.0.0.11:8000"), at+"/one", "Host", "many.example.com", "x-want", "127.0.0.11:8000")
			r.until(t, by("127.0.0.12:8000"), at+"/else", "Host", "many.example.com", "x-want", "127.0.0.12:8000", "x-rule", "one")
			r.until(t, by("127.0.0.21:8000"), at+"/two", "Host", "many.example.com", "x-want", "127.0.0.21:8000")
		}
		r.eventually(t, "both Gateways are parents of b", func() bool {
			pool := new(poolv1.InferencePool)
			must(t, r.client.Get(t.Context(), inModels("b"), pool))
			return len(pool.Status.Parents) == 2
		})
	})
	t.Run("a pool of ours", func(t *testing.T) { r.ownPool(t) })
	t.Run("long answers and long waits", func(t *testing.T) {
		for _, path := range []string{"/a/slow/32", "/b/slow/32"} {
			t.Run(path[1:2], func(t *testing.T) {
				t.Parallel()
				a, err := r.ask(path, "x-want", "127.0.0.11:8000,127.0.0.21:8000")
				if err != nil || a.status != 200 || !strings.HasSuffix(a.text, "data: [DONE]\n") {
					t.Errorf("got %v, %v", a, err)
				}
			})
		}
		t.Run("wait", func(t *testing.T) {
			t.Parallel()
			begin := time.Now()
			a, err := r.ask("/a/x", "x-want", "127.0.0.12:8000", "x-wait", "22s")
			if err != nil || a.By != "127.0.0.12:8000" || time.Since(begin) < 20*time.Second {
				t.Errorf("got %v, %v after %s", a, err, time.Since(begin))
			}
		})
	})
	t.Run("pods come and go", func(t *testing.T) {
		r.model("a3", "a", "127.0.0.13", 8000, 8001)
		r.until(t, by("127.0.0.13:8001"), "/a/x", "x-want", "127.0.0.13:8001")
		pod := r.get(t, "a3")
		must(t, r.client.Delete(t.Context(), pod))
		r.until(t, by("127.0.0.11:8000"), "/a/x", "x-want", "127.0.0.13:8001,127.0.0.11:8000")
	})
	t.Run("the extension is away, and back", func(t *testing.T) {
		r.stopExtension()
		for range 20 {
			a, err := r.ask("/a/x", "x-want", "127.0.0.12:8000")
			must(t, err)
			if a.By != "127.0.0.12:8000" {
				t.Fatalf("got %v", a)
			}
		}
		r.pod("a4", "a", "127.0.0.12") // the same server by another name changes nothing
		r.model("a5", "a", "127.0.0.15", 8000, 8001)
		r.startExtension()
		begin := time.Now()
		r.until(t, by("127.0.0.15:8000"), "/a/x", "x-want", "127.0.0.15:8000")
		t.Logf("heard of a new pod %s after the extension was back", time.Since(begin))
	})
	t.Run("keys are renewed", func(t *testing.T) {
		read := func(name, entry string) string {
			s := new(corev1.Secret)
			must(t, r.client.Get(t.Context(), types.NamespacedName{Namespace: "envoy-gateway-system", Name: name}, s))
			return string(s.Data[entry])
		}
		all := func() []string {
			return []string{read(extensionName, "tls.crt"), read(extensionClient, "tls.crt"), read(extensionCA, "tls.crt")}
		}
		r.stopExtension()
		for _, name := range []string{extensionName, extensionClient} {
			s := new(corev1.Secret)
			must(t, r.client.Get(t.Context(), types.NamespacedName{Namespace: "envoy-gateway-system", Name: name}, s))
			delete(s.Data, "tls.crt")
			must(t, r.client.Update(t.Context(), s))
		}
		old := &extensionKeys{api: r.client, namespace: "envoy-gateway-system", now: func() time.Time { return time.Now().Add(-leafLife * 3 / 4) }}
		must(t, old.look(t.Context(), true))
		before := all()
		r.startExtension()
		r.eventually(t, "certificates are new, and the authority is as it was", func() bool {
			after := all()
			return before[0] != after[0] && before[1] != after[1] && before[2] == after[2]
		})
		r.model("a6", "a", "127.0.0.16", 8000, 8001)
		r.until(t, by("127.0.0.16:8000"), "/a/x", "x-want", "127.0.0.16:8000")
		r.apply(routeTo("models", "new", backend("a", "")))
		r.until(t, by("127.0.0.16:8000"), "/new/x", "x-want", "127.0.0.16:8000")
	})
	t.Run("the picker is away", func(t *testing.T) {
		r.until(t, by("127.0.0.21:8000"), "/open/x", "x-want", "127.0.0.21:8000")
		stopSecond()
		r.until(t, replies(500), "/b/x", "x-want", "127.0.0.21:8000")
		r.until(t, by("127.0.0.21:8000"), "/open/x")
		for range 50 { // each of them, once Envoy knows
			if a, err := r.ask("/open/x"); err != nil || a.status != 200 {
				t.Errorf("got %v, %v", a, err)
			}
		}
		a := r.until(t, by("127.0.0.21:8000"), "/open/x")
		if a.Body != `{"model":"m"}` {
			t.Errorf("got %v", a)
		}
	})
	t.Run("a pool that nobody uses says so", func(t *testing.T) {
		r.remove(routeTo("models", "c", backend("c", "")))
		r.eventually(t, "the status of c is empty", func() bool {
			pool := new(poolv1.InferencePool)
			must(t, r.client.Get(t.Context(), inModels("c"), pool))
			return len(pool.Status.Parents) == 0
		})
		r.until(t, replies(404), "/c/x")
		r.remove(poolDoc("a", "a", "first", two))
		r.until(t, replies(500), "/a/x")
	})
}

// eventually waits until something holds.
func (r *gatewayRig) eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	look, end := time.NewTicker(50*time.Millisecond), time.After(time.Minute)
	defer look.Stop()
	for !holds() {
		select {
		case <-look.C:
		case <-end:
			t.Fatalf("waited a minute in vain: %s", what)
		}
	}
}

// condition waits for a pool's.
func (r *gatewayRig) condition(t *testing.T, name string, kind poolv1.InferencePoolConditionType, want, reason string) {
	t.Helper()
	r.eventually(t, fmt.Sprintf("%s of %s is %s, %s", kind, name, want, reason), func() bool {
		pool := new(poolv1.InferencePool)
		must(t, r.client.Get(t.Context(), inModels(name), pool))
		if len(pool.Status.Parents) != 1 || pool.Status.Parents[0].ControllerName != "gateway.envoyproxy.io/gatewayclass-controller" || pool.Status.Parents[0].ParentRef.Name != "gw" {
			return false
		}
		c := meta.FindStatusCondition(pool.Status.Parents[0].Conditions, string(kind))
		return c != nil && string(c.Status) == want && c.Reason == reason && c.ObservedGeneration == pool.Generation
	})
}

func (r *gatewayRig) get(t *testing.T, pod string) client.Object {
	t.Helper()
	o := new(corev1.Pod)
	must(t, r.client.Get(t.Context(), inModels(pod), o))
	return o
}

// ownPool shows a pool of a plan: its picker asks for a certificate. By a route of someone's, whose listener holds little of a
// body, and behind a body-based router that a policy asks, in a listener that holds all of it.
func (r *gatewayRig) ownPool(t *testing.T) {
	t.Helper()
	root, err := newSigner(time.Now(), time.Hour)
	must(t, err)
	server, err := root.issue([]string{"own-epp.models.svc"}, "picker", time.Now())
	must(t, err)
	shown, err := root.issue(nil, "envoy", time.Now())
	must(t, err)
	bundle := authority{[]signer{root}}.bundle()
	must(t, r.client.Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "envoy-gateway-system", Name: translate.EnvoySecret("plan")},
		Data: map[string][]byte{"tls.crt": shown.certPEM, "tls.key": shown.keyPEM, entryCA: bundle}}))
	pair, err := tls.X509KeyPair(server.certPEM, server.keyPEM)
	must(t, err)
	clients := x509.NewCertPool()
	clients.AppendCertsFromPEM(bundle)
	r.picker(&testPicker{name: "own-epp"}, 9503, &tls.Config{Certificates: []tls.Certificate{pair}, ClientCAs: clients, ClientAuth: tls.RequireAndVerifyClientCert, NextProtos: []string{"h2"}, MinVersion: tls.VersionTLS12})
	r.picker(&testPicker{name: "router", selects: true}, 9504, nil)
	r.apply(strings.Replace(poolDoc("own", "a", "own-epp", "}\n  targetPorts: [{number: 8000}]"), "namespace: models", "namespace: models, labels: {app.kubernetes.io/managed-by: sluice, gateway.sluice.dev/scheduler: own}, annotations: {gateway.sluice.dev/owner: models/plan}", 1))
	r.apply(routeTo("models", "own", backend("own", "")))
	r.until(t, by("127.0.0.12:8000"), "/own/x", "x-want", "127.0.0.12:8000")
	// An address that is no pod is reached while the pool has it, and not any longer.
	has := func(addresses string) {
		t.Helper()
		pool := new(poolv1.InferencePool)
		must(t, r.client.Get(t.Context(), inModels("own"), pool))
		pool.Annotations[translate.AnnotationAddresses] = addresses
		must(t, r.client.Update(t.Context(), pool))
	}
	has("127.0.0.21:8000")
	r.until(t, by("127.0.0.21:8000"), "/own/x", "x-want", "127.0.0.21:8000")
	has("")
	r.until(t, func(a *reply) bool { return a.status == 200 && a.By != "127.0.0.21:8000" }, "/own/x", "x-want", "127.0.0.21:8000")

	r.apply(strings.NewReplacer("name: gw", "name: third", "8888", "8890").Replace(gatewayDocs) + `
---
apiVersion: gateway.envoyproxy.io/v1alpha1
kind: ClientTrafficPolicy
metadata: {name: third, namespace: models}
spec: {targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: third}], connection: {bufferLimit: 64Mi}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: select, namespace: models}
spec:
  parentRefs: [{name: third}]
  rules: [{matches: [{path: {value: /}}], backendRefs: [{name: nobody, port: 80}]}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: selected, namespace: models}
spec:
  parentRefs: [{name: third}]
  rules: [{matches: [{path: {value: /}, headers: [{name: x-model, value: own}]}], backendRefs: [` + backend("own", "") + `]}]
---
apiVersion: gateway.envoyproxy.io/v1alpha1
kind: EnvoyExtensionPolicy
metadata: {name: select, namespace: models}
spec:
  targetRefs: [{group: gateway.networking.k8s.io, kind: HTTPRoute, name: select}]
  extProc:
  - backendRefs: [{kind: Service, name: router, port: 9002}]
    messageTimeout: 5s
    processingMode: {request: {body: Buffered}, response: {}}
    metadata: {writableNamespaces: [envoy.lb]}
`)
	a := r.until(t, by("127.0.0.11:8000"), "127.0.0.1:8890/x", "x-ask", "own", "x-want", "127.0.0.11:8000")
	if a.header.Get("x-picked-by") != "router" || a.Headers.Get("x-model") != "own" { // on the way out the router is the last to write
		t.Errorf("got %v", a)
	}
	big := strings.Repeat("x", 4<<20)
	a, err = r.send("127.0.0.1:8890/x", big, "x-ask", "own", "x-want", "127.0.0.12:8000")
	if err != nil || a.By != "127.0.0.12:8000" || a.Body != big {
		t.Errorf("got %d, %v by %s with %d bytes", a.status, err, a.By, len(a.Body))
	}
	begin := time.Now()
	a, err = r.ask("127.0.0.1:8890/x", "x-ask", "own", "x-want", "127.0.0.12:8000", "x-wait", "4s")
	if err != nil || a.By != "127.0.0.12:8000" || time.Since(begin) < 4*time.Second {
		t.Errorf("got %v, %v", a, err)
	}
	r.until(t, replies(500), "127.0.0.1:8890/x", "x-ask", "another") // the first route's own, which leads nowhere
}
