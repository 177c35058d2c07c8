package kube

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	poolv1 "sigs.k8s.io/gateway-api-inference-extension/api/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
	gatewayv1beta1 "sigs.k8s.io/gateway-api/apis/v1beta1"
	"sigs.k8s.io/yaml"

	"github.com/sluice-gateway/sluice/translate"
)

// read makes an object of YAML.
func read[T any](t *testing.T, text string) *T {
	t.Helper()
	o := new(T)
	if err := yaml.UnmarshalStrict([]byte(text), o); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	return o
}

// worldOf has what most cases start from: a pool with two pods and a picker, and a route to it by a Gateway of ours.
func worldOf(t *testing.T) *world {
	t.Helper()
	w := &world{
		pools: []*poolv1.InferencePool{read[poolv1.InferencePool](t, `{metadata: {name: llama, namespace: models, generation: 3}, spec: {selector: {matchLabels: {app: llama}},
			targetPorts: [{number: 8000}, {number: 8001}], endpointPickerRef: {name: epp, port: {number: 9002}}}}`)},
		pods: map[string][]*corev1.Pod{"models": {
			modelPod(t, "one", "10.0.0.1", "llama"), modelPod(t, "two", "fd00::2", "llama"), modelPod(t, "other", "10.0.0.3", "qwen")}},
		services: map[types.NamespacedName]*corev1.Service{{Namespace: "models", Name: "epp"}: read[corev1.Service](t, `{metadata: {name: epp, namespace: models}, spec: {ports: [{name: grpc, port: 9002}, {name: other, port: 9003}]}}`)},
		slices: map[types.NamespacedName][]*discoveryv1.EndpointSlice{{Namespace: "models", Name: "epp"}: {read[discoveryv1.EndpointSlice](t,
			`{metadata: {name: epp-1}, addressType: IPv4, ports: [{name: other, port: 1}, {name: grpc, port: 19002}], endpoints: [{addresses: [10.0.1.1]}, {addresses: [10.0.1.2], conditions: {ready: false}}]}`)}},
		routes: []*gatewayv1.HTTPRoute{read[gatewayv1.HTTPRoute](t, `{metadata: {name: llama, namespace: models, generation: 2}, spec: {parentRefs: [{name: gw}],
			rules: [{backendRefs: [{group: inference.networking.k8s.io, kind: InferencePool, name: llama}]}]},
			status: {parents: [{controllerName: ours, parentRef: {group: gateway.networking.k8s.io, kind: Gateway, name: gw}, conditions: [{type: Accepted, status: "True", reason: Accepted, observedGeneration: 2}]}]}}`)},
		gateways: map[types.NamespacedName]*gatewayv1.Gateway{}, classes: map[string]*gatewayv1.GatewayClass{
			"ours": read[gatewayv1.GatewayClass](t, `{spec: {controllerName: ours}}`), "theirs": read[gatewayv1.GatewayClass](t, `{spec: {controllerName: theirs}}`)},
	}
	for name, class := range map[string]string{"gw": "ours", "second": "ours", "istio": "theirs", "lost": "nobody"} {
		w.gateways[types.NamespacedName{Namespace: "models", Name: name}] = read[gatewayv1.Gateway](t, fmt.Sprintf("{spec: {gatewayClassName: %s}}", class))
	}
	return w
}

func modelPod(t *testing.T, name, address, app string) *corev1.Pod {
	t.Helper()
	return read[corev1.Pod](t, fmt.Sprintf(`{metadata: {name: %s, namespace: models, labels: {app: %s}}, status: {phase: Running, podIP: %q, conditions: [{type: Ready, status: "True"}]}}`, name, app, address))
}

// A pool's endpoints are the ports of its pods that are ready and stay.
func TestMembersOf(t *testing.T) {
	f := func(change func(w *world), want ...string) {
		t.Helper()
		w := worldOf(t)
		change(w)
		got, err := membersOf(w.pools[0], w.pods["models"])
		if err != nil {
			got = []string{err.Error()}
		}
		if !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	all := []string{"10.0.0.1:8000", "10.0.0.1:8001", "[fd00::2]:8000", "[fd00::2]:8001"}
	f(func(*world) {}, all...)
	f(func(w *world) { w.pods["models"][1].Status.Conditions[0].Status = "False" }, all[:2]...)
	f(func(w *world) { now := metav1.Now(); w.pods["models"][1].DeletionTimestamp = &now }, all[:2]...)
	f(func(w *world) { w.pods["models"][1].Status.PodIP = "" }, all[:2]...)
	f(func(w *world) { w.pools[0].Spec.Selector.MatchLabels = nil })
	f(func(w *world) { w.pools[0].Spec.TargetPorts = w.pools[0].Spec.TargetPorts[1:] }, all[1], all[3])
	annotate := func(text string) func(*world) {
		return func(w *world) {
			w.pools[0].Annotations = map[string]string{translate.AnnotationSelector: text}
			w.pools[0].Spec.Selector.MatchLabels = map[poolv1.LabelKey]poolv1.LabelValue{translate.LabelNobody: "true"}
		}
	}
	f(annotate("app in (llama,qwen),app!=llama"), "10.0.0.3:8000", "10.0.0.3:8001")
	// Entries of Endpoints documents, of our own plans alone.
	list := func(made bool) func(*world) {
		return func(w *world) {
			w.pools[0].Annotations = map[string]string{translate.AnnotationAddresses: "10.0.0.1:8000 10.9.0.1:80 [fd00::9]:8000"}
			if made {
				w.pools[0].Labels = map[string]string{translate.LabelManagedBy: translate.ManagedBy}
			}
		}
	}
	f(list(true), "10.0.0.1:8000", "10.0.0.1:8001", "10.9.0.1:80", "[fd00::2]:8000", "[fd00::2]:8001", "[fd00::9]:8000")
	f(list(false), all...)
	f(annotate("a=b,c in (d"), `cannot use the annotation gateway.sluice.dev/selector of InferencePool models/llama: unable to parse requirement: found '', expected: ',' or ')'`)
}

// A pool's pickers are those of the Service's port that are ready; why there is none is said (K15).
func TestPickersOf(t *testing.T) {
	f := func(change func(w *world), want string) {
		t.Helper()
		w := worldOf(t)
		change(w)
		p, err := pickersOf(w.pools[0], w)
		got := "none"
		if err != nil {
			got = err.Error()
		} else if p != nil {
			got = fmt.Sprint(p.addresses, p.plain)
		}
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	epp := types.NamespacedName{Namespace: "models", Name: "epp"}
	f(func(*world) {}, "[10.0.1.1:19002] false")
	f(func(w *world) { text := plainText; w.services[epp].Spec.Ports[0].AppProtocol = &text }, "[10.0.1.1:19002] true")
	f(func(w *world) { text := "http2"; w.services[epp].Spec.Ports[0].AppProtocol = &text }, "[10.0.1.1:19002] false")
	f(func(w *world) { w.pools[0].Spec.EndpointPickerRef.Port = nil }, "[10.0.1.1:19002] false")
	f(func(w *world) { w.pools[0].Spec.EndpointPickerRef.Port.Number = 9003 }, "[10.0.1.1:1] false")
	f(func(w *world) { w.slices = nil }, "[] false")
	f(func(w *world) { w.pools[0].Spec.EndpointPickerRef = nil }, "none")
	f(func(w *world) { w.pools[0].Spec.EndpointPickerRef.Name = "x" }, `spec.endpointPickerRef: there is no Service "x" in namespace "models": create it, or name another`)
	f(func(w *world) { w.pools[0].Spec.EndpointPickerRef.Port.Number = 1 }, `spec.endpointPickerRef: Service "epp" has no port 1`)
	f(func(w *world) { w.pools[0].Spec.EndpointPickerRef.Kind = "Pod" }, `spec.endpointPickerRef: a picker is a Service, and Pod is none`)
	f(func(w *world) { w.services[epp].Spec.Type = corev1.ServiceTypeExternalName }, `spec.endpointPickerRef: Service "epp" is an ExternalName, which may lead anywhere: name one with endpoints of this cluster`)
}

// Envoys are told of what has changed, and of that alone.
func TestEndpointsArePublished(t *testing.T) {
	e := newEndpoints(slog.New(slog.DiscardHandler))
	w := worldOf(t)
	if err := e.publish(w); err != nil {
		t.Fatal(err)
	}
	list := func(name string) (out []string) {
		for _, m := range e.told[name].Endpoints[0].LbEndpoints {
			a := m.GetEndpoint().Address.GetSocketAddress()
			out = append(out, fmt.Sprintf("%s %d", a.Address, a.GetPortValue()))
		}
		return out
	}
	want := []string{"10.0.0.1 8000", "10.0.0.1 8001", "fd00::2 8000", "fd00::2 8001"}
	if got := list("pool/models/llama"); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if got := list("picker/models/llama"); !slices.Equal(got, []string{"10.0.1.1 19002"}) {
		t.Errorf("got %v", got)
	}
	was := map[string]*endpointv3.ClusterLoadAssignment{"pool": e.told["pool/models/llama"], "picker": e.told["picker/models/llama"]}
	versions := e.cache.GetResources()
	w.pods["models"] = w.pods["models"][1:]
	if err := e.publish(w); err != nil {
		t.Fatal(err)
	}
	now := e.cache.GetResources()
	if now["picker/models/llama"] != versions["picker/models/llama"] || now["pool/models/llama"] == versions["pool/models/llama"] {
		t.Errorf("got %v after %v, want the pool anew and the picker as it was", now, was)
	}
	w.pools = nil
	if err := e.publish(w); err != nil || len(e.cache.GetResources()) != 0 {
		t.Errorf("got %v, %v after the pool has gone", e.cache.GetResources(), err)
	}
}

// Pools say, to each Gateway of ours that sends to them, what holds; all else in their status stays. What holds is not written again
// (K18); nothing is said to a Gateway that isn't there (K17), and nothing of routes from other namespaces without a grant (K09, K10).
func TestParents(t *testing.T) {
	route := func(w *world) *gatewayv1.HTTPRoute { return w.routes[0] }
	f := func(name string, change func(w *world), want ...string) {
		t.Helper()
		w := worldOf(t)
		change(w)
		list := parents(w.pools[0], w, map[string]bool{"ours": true})
		var got []string
		for _, p := range list {
			text := fmt.Sprintf("%s %s", p.ControllerName, p.ParentRef.Name)
			for _, c := range p.Conditions {
				text += fmt.Sprintf(" %s=%s %s", c.Type, c.Status, c.Reason)
				if c.Status == metav1.ConditionFalse && c.Message == "" {
					t.Errorf("%s: %s says nothing", name, c.Type)
				}
			}
			got = append(got, text)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: -want +got:\n%s", name, diff)
		}
		// What is right is not written again.
		w.pools[0].Status.Parents = list
		if diff := cmp.Diff(list, parents(w.pools[0], w, map[string]bool{"ours": true})); diff != "" {
			t.Errorf("%s: it goes on changing: %s", name, diff)
		}
	}
	good := "ours gw Accepted=True Accepted ResolvedRefs=True ResolvedRefs"
	theirs := poolv1.ParentStatus{ControllerName: "theirs", ParentRef: poolv1.ParentReference{Kind: "Gateway", Name: "istio"}, Conditions: []metav1.Condition{{Type: "Accepted", Status: "True", Reason: "x"}}}
	f("accepted", func(*world) {}, good)
	f("not seen yet", func(w *world) { route(w).Generation++ }, "ours gw Accepted=Unknown Pending ResolvedRefs=True ResolvedRefs")
	f("nobody has spoken", func(w *world) { route(w).Status.Parents = nil }, "ours gw Accepted=Unknown Pending ResolvedRefs=True ResolvedRefs")
	f("refused", func(w *world) { route(w).Status.Parents[0].Conditions[0].Status = "False" }, "ours gw Accepted=False HTTPRouteNotAccepted ResolvedRefs=True ResolvedRefs")
	f("without a picker", func(w *world) { w.services = nil }, "ours gw Accepted=True Accepted ResolvedRefs=False InvalidExtensionRef")
	f("picker not named", func(w *world) { w.pools[0].Spec.EndpointPickerRef = nil }, good)
	f("a selector that is none", func(w *world) { w.pools[0].Annotations = map[string]string{translate.AnnotationSelector: "("} }, "ours gw Accepted=True Accepted ResolvedRefs=False InvalidSelector")
	f("a Gateway that isn't there", func(w *world) { route(w).Spec.ParentRefs[0].Name = "x" })
	f("a Gateway of nobody", func(w *world) { route(w).Spec.ParentRefs[0].Name = "lost" })
	f("a Gateway of others", func(w *world) { route(w).Spec.ParentRefs[0].Name = "istio" })
	f("a weight of 0", func(w *world) { zero := int32(0); route(w).Spec.Rules[0].BackendRefs[0].Weight = &zero })
	f("others' words stay, in their places", func(w *world) {
		w.pools[0].Status.Parents = []poolv1.ParentStatus{theirs}
	}, "theirs istio Accepted=True x", good)
	f("ours goes, theirs stays", func(w *world) {
		w.pools[0].Status.Parents = []poolv1.ParentStatus{{ControllerName: "ours", ParentRef: poolv1.ParentReference{Kind: "Gateway", Name: "gw"}}, theirs}
		w.routes = nil
	}, "theirs istio Accepted=True x")
	f("ours by an older definition", func(w *world) {
		w.pools[0].Status.Parents = []poolv1.ParentStatus{{ParentRef: poolv1.ParentReference{Kind: "Gateway", Name: "gw"}}, {ParentRef: poolv1.ParentReference{Kind: "Status", Name: "default"}}}
	}, " gw Accepted=True Accepted ResolvedRefs=True ResolvedRefs", " default")
	f("two Gateways", func(w *world) {
		second := route(w).DeepCopy()
		second.Name, second.Spec.ParentRefs[0].Name, second.Status.Parents = "second", "second", nil
		w.routes = append(w.routes, second)
	}, good, "ours second Accepted=Unknown Pending ResolvedRefs=True ResolvedRefs")
	f("two routes, one refused", func(w *world) {
		second := route(w).DeepCopy()
		second.Name, second.Status.Parents[0].Conditions[0].Status = "second", "False"
		w.routes = append(w.routes, second)
	}, good)
	far := func(w *world) {
		ns := gatewayv1.Namespace("models")
		route(w).Namespace = "far"
		route(w).Spec.ParentRefs[0].Namespace, route(w).Status.Parents[0].ParentRef.Namespace = &ns, &ns
		route(w).Spec.Rules[0].BackendRefs[0].Namespace = &ns
	}
	f("from another namespace", far)
	f("from another namespace, granted", func(w *world) {
		far(w)
		w.grants = []*gatewayv1beta1.ReferenceGrant{read[gatewayv1beta1.ReferenceGrant](t, `{metadata: {namespace: models}, spec: {from: [{group: gateway.networking.k8s.io, kind: HTTPRoute, namespace: far}], to: [{group: inference.networking.k8s.io, kind: InferencePool, name: llama}]}}`)}
	}, good)
	f("granted to another", func(w *world) {
		far(w)
		w.grants = []*gatewayv1beta1.ReferenceGrant{read[gatewayv1beta1.ReferenceGrant](t, `{metadata: {namespace: models}, spec: {from: [{group: gateway.networking.k8s.io, kind: HTTPRoute, namespace: far}], to: [{group: inference.networking.k8s.io, kind: InferencePool, name: qwen}]}}`)}
	})
}

// A condition's time is that of its last turn, and messages fit (K20).
func TestParentTimes(t *testing.T) {
	w := worldOf(t)
	long := metav1.NewTime(metav1.Now().AddDate(-1, 0, 0))
	w.pools[0].Status.Parents = parents(w.pools[0], w, map[string]bool{"ours": true})
	for i := range w.pools[0].Status.Parents[0].Conditions {
		w.pools[0].Status.Parents[0].Conditions[i].LastTransitionTime = long
	}
	w.routes[0].Status.Parents[0].Conditions[0].Status = "False"
	w.routes[0].Status.Parents[0].Conditions[0].Message = strings.Repeat("ö", maxMessage)
	got := parents(w.pools[0], w, map[string]bool{"ours": true})[0].Conditions
	accepted, resolved := meta.FindStatusCondition(got, "Accepted"), meta.FindStatusCondition(got, "ResolvedRefs")
	if accepted.LastTransitionTime == long || resolved.LastTransitionTime != long {
		t.Errorf("got %v and %v, want only the first one's time anew", accepted.LastTransitionTime, resolved.LastTransitionTime)
	}
	if len(accepted.Message) > maxMessage || !strings.HasSuffix(accepted.Message, "ö") {
		t.Errorf("got a message of %d bytes", len(accepted.Message))
	}
	if was := w.pools[0].Status.Parents[0].Conditions[0].Status; was != metav1.ConditionTrue {
		t.Error("what was read has been written to")
	}
}
