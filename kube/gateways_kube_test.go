//go:build kube

package kube

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/sluice-gateway/sluice/api/v1alpha1"
	"github.com/sluice-gateway/sluice/translate"
)

// What a Controller does, before a real API server. Each part has namespaces and a Controller of its own, one after the
// other, since every Controller looks after the whole cluster.
func TestController(t *testing.T) {
	s := startServer(t)
	for _, part := range []struct {
		name string
		run  func(*stage)
	}{
		{"made", (*stage).isMade}, {"drift", (*stage).isCorrected}, {"strangers", (*stage).leavesOthersAlone}, {"policies", (*stage).saysOfPolicies},
		{"refused", (*stage).goesOnWithoutWhatIsRefused}, {"orphans", (*stage).findsOrphans}, {"kinds", (*stage).seesKindsComeAndGo}, {"hundred", (*stage).isQuick},
		{"killed", (*stage).isKilledInTheMiddle}, {"unread", (*stage).takesNothingForAbsent}, {"two", (*stage).sharesItsTurn}, {"gone", (*stage).outlastsTheAPIServer}, {"topology", (*stage).handsOver},
		{"rights", (*stage).needsNoMoreRights}, {"fewer", (*stage).worksWithFewerRights}, {"keys", (*stage).renewsKeys}, {"documents", (*stage).leavesOutBadDocuments},
		{"writers", (*stage).keepsOutOfDocuments}, {"pods", (*stage).countsAThousandPods}, {"issued", (*stage).saysWhenACertificateWasIssued}, {"migrate", (*stage).movesToNewerVersions},
		{"classes", (*stage).keepsAClass}, {"addresses", (*stage).followsAddresses}, {"objectives", (*stage).followsObjectives},
		{"finalizers", (*stage).letsGo}, {"reach", (*stage).saysWhoIsReached}, {"backend", (*stage).saysOfTheDefaultBackend}, {"annotations", (*stage).saysWhatPodsSayWrongly}, {"undefined", (*stage).isNotDefined}, {"soon", (*stage).knowsSoonWhatAChangeDid},
	} {
		t.Run(part.name, func(t *testing.T) { part.run(s.newStage(t, part.name)) })
	}
}

// Everything is made, and its status is the truth: of what the data plane says, of pods and of what pickers know of them.
// When nothing is different nothing is written (K18). A configuration that is deleted takes all of it along and leaves models
// alone.
func (g *stage) isMade() {
	model := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: g.models, Name: "llama"}, Spec: appsv1.DeploymentSpec{
		Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "llama"}},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "llama"}}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}}}
	need(g.t, g.server.client.Create(g.t.Context(), model))
	g.play(script{})
	g.gateway("gw", "", "llama", "qwen")
	g.says("gw", v1alpha1.ConditionGatewayProgrammed, metav1.ConditionFalse, "NotProgrammed", "nobody has taken it")
	g.says("gw", v1alpha1.ConditionServing, metav1.ConditionFalse, "NotServing", "modelSelector matches no pod")
	g.says("gw", v1alpha1.ConditionReady, metav1.ConditionFalse, "NotReady", `Deployment "gw-picker"`)

	g.becomes("gw")
	g.says("gw", v1alpha1.ConditionReady, metav1.ConditionTrue, "Ready", "")
	g.says("gw", v1alpha1.ConditionBBRReady, metav1.ConditionTrue, "Available", "2 of 2 copies")
	g.pod("llama-0", "10.1.0.1", 8000, map[string]string{"app": "llama"})
	g.pod("qwen-0", "10.1.0.2", 8000, map[string]string{"app": "qwen"})
	g.says("gw", v1alpha1.ConditionServing, metav1.ConditionTrue, "Serving", "")
	g.says("gw", v1alpha1.ConditionMetricsRead, metav1.ConditionUnknown, "NotTried", "no picker has read")

	says := g.picker("gw")
	says(`[{"pool":"llama","endpoints":[{"pod":"llama-0","metricsRead":true,"models":["model/llama"]}]},{"pool":"qwen","endpoints":[{"pod":"qwen-0","metricsRead":false,"models":[]}]}]`)
	g.says("gw", v1alpha1.ConditionMetricsRead, metav1.ConditionFalse, "Unread", `scheduler "qwen": 1 of 1 ready pods give no metrics at port 8000 (qwen-0)`)
	g.says("gw", v1alpha1.ConditionServing, metav1.ConditionFalse, "NotServing", `scheduler "qwen": no pod serves "model/qwen"`)
	says(`[{"pool":"llama","endpoints":[{"pod":"llama-0","metricsRead":true,"models":["model/llama"]}]},{"pool":"qwen","endpoints":[{"pod":"qwen-0","metricsRead":true,"missingMetrics":["vllm:kv_cache_usage_perc"],"models":["model/qwen"]}]}]`)
	g.says("gw", v1alpha1.ConditionMetricsRead, metav1.ConditionFalse, "Unread", `scheduler "qwen": vllm:kv_cache_usage_perc not among the metrics of qwen-0`)
	says(`[{"pool":"llama","endpoints":[{"pod":"llama-0","metricsRead":true,"models":["model/llama"]}]},{"pool":"qwen","endpoints":[{"pod":"qwen-0","metricsRead":true,"models":["model/qwen"]}]}]`)
	g.says("gw", v1alpha1.ConditionMetricsRead, metav1.ConditionTrue, "Read", "")
	g.says("gw", v1alpha1.ConditionServing, metav1.ConditionTrue, "Serving", "")
	g.says("gw", v1alpha1.ConditionAdmissionBlocked, metav1.ConditionFalse, "NotBlocked", "")
	g.says("gw", v1alpha1.ConditionHonoured, metav1.ConditionTrue, "Honoured", "")

	g.hasEverything("gw")
	g.isStill("gw")
	g.hasEvents("gw")

	g.removed("gw")
	need(g.t, g.server.client.Get(g.t.Context(), client.ObjectKeyFromObject(model), model))
}

// picker is one of a configuration's that answers with what it is told to.
func (g *stage) picker(name string) (says func(string)) {
	g.t.Helper()
	var answer atomic.Pointer[string]
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		g.times.Add(1)
		if text := answer.Load(); text != nil {
			_, _ = io.WriteString(w, *text)
		}
	}))
	g.t.Cleanup(s.Close)
	_, port, err := net.SplitHostPort(s.Listener.Addr().String())
	need(g.t, err)
	n, err := strconv.Atoi(port)
	need(g.t, err)
	g.pod(name+"-picker-0", "127.0.0.1", int32(n), map[string]string{"app": name + "-picker", translate.LabelManagedBy: translate.ManagedBy, translate.LabelConfig: name})
	return func(text string) { answer.Store(&text) }
}

// hasEverything compares what there is with what a plan has, keys included.
func (g *stage) hasEverything(name string) {
	g.t.Helper()
	c, err := g.stored(name)
	need(g.t, err)
	if !slices.Contains(c.Finalizers, finalizer) {
		g.t.Errorf("got the finalizers %v, want %s among them", c.Finalizers, finalizer)
	}
	definitions := &definitions{ask: g.Controller.found.ServerResourcesForGroupVersionWithContext}
	_, err = definitions.refresh(g.t.Context())
	need(g.t, err)
	plan, err := translate.Build(c, &translate.Context{Settings: g.Controller.options.Settings, Definitions: definitions.names()})
	need(g.t, err)
	want := make(map[objectKey]bool)
	for _, u := range plan.Objects {
		want[keyOf(u)] = true
	}
	for _, cert := range plan.Certificates {
		want[objectKey{kindSecret, cert.Namespace, cert.Secret}] = true
		if cert.ConfigMap != "" {
			want[objectKey{kindConfigMap, cert.Namespace, cert.ConfigMap}] = true
		}
	}
	want[objectKey{kindSecret, g.system, translate.AuthorityOf(c)}] = true
	got := make(map[objectKey]bool)
	for key := range g.made(name) {
		got[key] = true
	}
	if diff := cmp.Diff(want, got); diff != "" {
		g.t.Errorf("-want +got:\n%s", diff)
	}
}

// isStill sees that nothing is written where nothing is different, though there is something to look at.
func (g *stage) isStill(name string) {
	g.t.Helper()
	g.settled()
	before, c, writes := g.made(name), *needed(g.stored(name))(g.t), g.calls.writes.Load()
	for i := range 5 {
		p := new(corev1.Pod)
		g.patch(objectKey{kindPod, g.models, "llama-0"}, p, func() { p.Status.Message = fmt.Sprint("for the ", i) })
		need(g.t, g.server.client.Get(g.t.Context(), types.NamespacedName{Namespace: g.models, Name: "llama-0"}, p))
		p.Labels["turn"] = strconv.Itoa(i)
		need(g.t, g.server.client.Update(g.t.Context(), p))
	}
	g.settled()
	if n := g.calls.writes.Load() - writes; n > 0 {
		g.t.Errorf("got %d writes where nothing is different; log:\n%s", n, g.log)
	}
	if diff := cmp.Diff(before, g.made(name)); diff != "" {
		g.t.Errorf("-before +after:\n%s", diff)
	}
	if after := *needed(g.stored(name))(g.t); after.ResourceVersion != c.ResourceVersion {
		g.t.Errorf("the configuration was written; -before +after:\n%s", cmp.Diff(c, after))
	}
}

// needed is need for a value with an error.
func needed[T any](v T, err error) func(t *testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		need(t, err)
		return v
	}
}

// hasEvents looks at the Events of a configuration: of its right types, and few.
func (g *stage) hasEvents(name string) {
	g.t.Helper()
	g.eventually("Events are there", func() error {
		var list eventsv1.EventList
		if err := g.server.client.List(g.t.Context(), &list, client.InNamespace(g.models)); err != nil {
			return err
		}
		got := make(map[string]int)
		for _, e := range list.Items {
			if e.Regarding.Name == name {
				got[e.Type+" "+e.Reason]++
			}
		}
		for _, want := range []string{"Warning NotReady", "Normal Ready", "Normal Programmed", "Warning SelectorMatchesNothing", "Normal Serving", "Warning NoMetrics", "Warning MetricUnknown"} {
			if got[want] == 0 {
				return fmt.Errorf("there is no %q among %v", want, got)
			}
		}
		if len(list.Items) > 40 {
			g.t.Errorf("got %d Events: %v", len(list.Items), got)
		}
		return nil
	})
}

// What someone else changes or deletes is put right, and what they add stays.
func (g *stage) isCorrected() {
	g.play(script{})
	g.gateway("gw", "", "llama")
	g.eventually("the route is made", func() error { return g.there(new(gatewayv1.HTTPRoute), g.models, "llama") })
	route := new(gatewayv1.HTTPRoute)
	need(g.t, g.server.client.Get(g.t.Context(), types.NamespacedName{Namespace: g.models, Name: "llama"}, route))
	want := route.DeepCopy()
	route.Spec.Rules[0].BackendRefs[0].Name = "elsewhere"
	route.Labels[translate.LabelScheduler] = "other"
	route.Labels["team"] = "a"
	need(g.t, g.server.client.Update(g.t.Context(), route))
	g.eventually("the route is put right", func() error {
		if err := g.there(route, g.models, "llama"); err != nil {
			return err
		}
		if diff := cmp.Diff(want.Spec, route.Spec); diff != "" || route.Labels[translate.LabelScheduler] != "llama" || route.Labels["team"] != "a" {
			return fmt.Errorf("it is %v, %s", route.Labels, diff)
		}
		return nil
	})
	for _, o := range []client.Object{new(corev1.Service), new(gatewayv1.Gateway), new(corev1.Secret), new(corev1.ConfigMap), new(appsv1.Deployment)} {
		ns, name := g.models, "gw-picker"
		switch o.(type) {
		case *gatewayv1.Gateway:
			ns, name = g.system, "gw"
		case *corev1.Secret:
			ns, name = g.system, "gw-envoy-tls"
		case *corev1.ConfigMap:
			name = "gw-picker-ca"
		}
		g.eventually(fmt.Sprintf("there is %T %s", o, name), func() error { return g.there(o, ns, name) })
		need(g.t, g.server.client.Delete(g.t.Context(), o))
		uid := o.GetUID()
		g.eventually(fmt.Sprintf("%T %s is made anew", o, name), func() error {
			if err := g.there(o, ns, name); err != nil {
				return err
			}
			if o.GetUID() == uid {
				return errors.New("it is the old one")
			}
			return nil
		})
	}
	// A scheduler that goes takes its own along, and nothing else.
	g.edit("gw", func(c *v1alpha1.InferenceGatewayConfig) {
		c.Spec.BBR.Enabled = new(true)
		c.Spec.Schedulers = append(c.Spec.Schedulers, v1alpha1.Scheduler{Name: "qwen", ModelName: "qwen", ModelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "qwen"}}})
	})
	g.eventually("the second route is made", func() error { return g.there(route, g.models, "qwen") })
	g.edit("gw", func(c *v1alpha1.InferenceGatewayConfig) { c.Spec.Schedulers = c.Spec.Schedulers[1:] })
	g.eventually("the first route is gone", func() error {
		if err := g.there(route, g.models, "llama"); !apierrors.IsNotFound(err) {
			return fmt.Errorf("it is there, %v", err)
		}
		return g.there(route, g.models, "qwen")
	})
	g.settled()
	g.hasEverything("gw")
	g.removed("gw")
}

// there reads an object.
func (g *stage) there(o client.Object, namespace, name string) error {
	return g.server.client.Get(g.t.Context(), types.NamespacedName{Namespace: namespace, Name: name}, o)
}

// What is someone else's is not written to, and not built upon; a condition says so. When it goes away, what was asked for
// is made.
func (g *stage) leavesOthersAlone() {
	g.document("apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {name: taken, namespace: " + g.system + "}\nspec: {gatewayClassName: other, listeners: [{name: http, port: 80, protocol: HTTP}]}")
	g.document("apiVersion: inference.networking.k8s.io/v1\nkind: InferencePool\nmetadata: {name: llama}\nspec: {selector: {matchLabels: {a: b}}, targetPorts: [{number: 8000}], endpointPickerRef: {name: theirs, port: {number: 9002}}}")
	g.document("apiVersion: v1\nkind: Secret\nmetadata: {name: gw-picker-tls}\ndata: {a: Yg==}")
	versions := func() []string {
		gateway, pool, secret := new(gatewayv1.Gateway), new(unstructured.Unstructured), new(corev1.Secret)
		pool.SetAPIVersion("inference.networking.k8s.io/v1")
		pool.SetKind("InferencePool")
		need(g.t, g.there(gateway, g.system, "taken"))
		need(g.t, g.there(pool, g.models, "llama"))
		need(g.t, g.there(secret, g.models, "gw-picker-tls"))
		return []string{gateway.ResourceVersion, pool.GetResourceVersion(), secret.ResourceVersion}
	}
	before := versions()
	g.play(script{})
	g.gateway("taken", "", "mistral")
	g.gateway("gw", "", "llama", "qwen")
	g.says("taken", v1alpha1.ConditionGatewayProgrammed, metav1.ConditionFalse, "NotOurs", "belongs to someone else")
	g.says("taken", v1alpha1.ConditionServing, metav1.ConditionFalse, "NotAccepted", "Gateway "+g.system+"/taken is there and belongs to someone else")
	g.says("gw", v1alpha1.ConditionAccepted, metav1.ConditionFalse, "NotAccepted", `scheduler "llama": InferencePool `+g.models+`/llama is there and belongs to someone else`)
	g.says("gw", v1alpha1.ConditionAdmissionBlocked, metav1.ConditionTrue, "AdmissionDenied", "Secret "+g.models+"/gw-picker-tls: is there and belongs to someone else")
	need(g.t, g.there(new(gatewayv1.HTTPRoute), g.models, "qwen"))
	g.settled()
	if diff := cmp.Diff(before, versions()); diff != "" {
		g.t.Errorf("someone else's objects were written to:\n%s", diff)
	}
	// Two configurations of the same name, in two namespaces: the second one is told whose the Gateway is.
	other := g.parse("apiVersion: inference.sagemaker.aws.amazon.com/v1alpha1\nkind: InferenceGatewayConfig\nmetadata: {name: gw, namespace: " + g.system + "}\nspec: {bbr: {enabled: false}, schedulers: [{name: s, modelName: m, modelSelector: {}}]}")
	need(g.t, g.server.client.Create(g.t.Context(), other))
	g.eventually("the second one says whose it is", func() error {
		c := new(v1alpha1.InferenceGatewayConfig)
		if err := g.there(c, g.system, "gw"); err != nil {
			return err
		}
		if text := fmt.Sprint(c.Status.Conditions); !strings.Contains(text, "belongs to "+g.models+"/gw") {
			return errors.New(text)
		}
		return nil
	})
	need(g.t, g.server.client.Delete(g.t.Context(), other))
	need(g.t, g.server.client.Delete(g.t.Context(), g.parse("apiVersion: inference.networking.k8s.io/v1\nkind: InferencePool\nmetadata: {name: llama}")))
	need(g.t, g.server.client.Delete(g.t.Context(), g.parse("apiVersion: v1\nkind: Secret\nmetadata: {name: gw-picker-tls}")))
	g.touch("gw") // nobody watches what is someone else's: the next change of any kind has it looked at
	g.says("gw", v1alpha1.ConditionAccepted, metav1.ConditionTrue, "Accepted", "")
	g.says("gw", v1alpha1.ConditionAdmissionBlocked, metav1.ConditionFalse, "NotBlocked", "")
	g.removed("gw")
	g.removed("taken")
	need(g.t, g.there(new(gatewayv1.Gateway), g.system, "taken"))
}

// Policies are told whether they are in force.
func (g *stage) saysOfPolicies() {
	g.play(script{})
	g.gateway("gw", "", "llama")
	g.document("apiVersion: gateway.sluice.dev/v1alpha1\nkind: GatewayPolicy\nmetadata: {name: a}\nspec: {targetRef: {name: gw}, sessionAffinity: {header: x-session}}")
	said := func(name, reason string) {
		g.t.Helper()
		g.eventually(name+" is "+reason, func() error {
			p := new(v1alpha1.GatewayPolicy)
			if err := g.there(p, g.models, name); err != nil {
				return err
			}
			if len(p.Status.Conditions) != 1 || p.Status.Conditions[0].Reason != reason || p.Status.ObservedGeneration != p.Generation {
				return fmt.Errorf("it says %+v", p.Status)
			}
			return nil
		})
	}
	said("a", "Accepted")
	g.eventually("pickers are told of it", func() error {
		m := new(corev1.ConfigMap)
		if err := g.there(m, g.models, "gw-picker"); err != nil {
			return err
		}
		if !strings.Contains(m.Data["gateway.yaml"], "x-session") {
			return errors.New("its file has no x-session")
		}
		return nil
	})
	g.document("apiVersion: gateway.sluice.dev/v1alpha1\nkind: GatewayPolicy\nmetadata: {name: b}\nspec: {targetRef: {name: gw}, sessionAffinity: {header: x-other}}")
	g.document("apiVersion: gateway.sluice.dev/v1alpha1\nkind: GatewayPolicy\nmetadata: {name: c}\nspec: {targetRef: {name: gw, sectionName: nobody}, sessionAffinity: {header: x-other}}")
	said("b", "Conflicted")
	said("c", "TargetNotFound")
	need(g.t, g.server.client.Delete(g.t.Context(), g.parse("apiVersion: gateway.sluice.dev/v1alpha1\nkind: GatewayPolicy\nmetadata: {name: a}")))
	said("b", "Accepted")
	g.removed("gw")
	said("b", "TargetNotFound") // there is nothing left that it is for
	g.document("apiVersion: gateway.sluice.dev/v1alpha1\nkind: GatewayPolicy\nmetadata: {name: early}\nspec: {targetRef: {name: later}, sessionAffinity: {header: x-other}}")
	said("early", "TargetNotFound")
	g.gateway("later", "", "mistral")
	said("early", "Accepted")
	g.removed("later")
}

// An object that a policy of the cluster denies is said, the others are made, and nothing is let in that should have been
// checked. When the policy goes, so does the condition.
func (g *stage) goesOnWithoutWhatIsRefused() {
	deny := func(name, group, version, resource string) {
		fail, scope := admissionv1.Fail, admissionv1.NamespacedScope
		p := &admissionv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: admissionv1.ValidatingAdmissionPolicySpec{FailurePolicy: &fail,
			MatchConstraints: &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: admissionv1.RuleWithOperations{
				Operations: []admissionv1.OperationType{"CREATE", "UPDATE"}, Rule: admissionv1.Rule{APIGroups: []string{group}, APIVersions: []string{version}, Resources: []string{resource}, Scope: &scope}}}}},
			Validations: []admissionv1.Validation{{Expression: "!object.metadata.namespace.startsWith('refused-')", Message: "no " + resource + " here"}}}}
		need(g.t, g.server.client.Create(g.t.Context(), p))
		need(g.t, g.server.client.Create(g.t.Context(), &admissionv1.ValidatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: name, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny}}}))
		g.t.Cleanup(func() { g.allow(name) })
	}
	deny("refused-budgets", "policy", "v1", "poddisruptionbudgets")
	deny("refused-security", "gateway.envoyproxy.io", "v1alpha1", "securitypolicies")
	g.eventually("the policies are in force", func() error {
		for _, text := range []string{
			"apiVersion: policy/v1\nkind: PodDisruptionBudget\nmetadata: {name: probe}\nspec: {selector: {matchLabels: {a: b}}}",
			"apiVersion: gateway.envoyproxy.io/v1alpha1\nkind: SecurityPolicy\nmetadata: {name: probe}\nspec: {targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: x}], authorization: {defaultAction: Allow}}",
		} {
			if err := g.server.client.Create(g.t.Context(), g.parse(text), client.DryRunAll); err == nil || !strings.Contains(err.Error(), "here") {
				return fmt.Errorf("got %v", err)
			}
		}
		return nil
	})
	g.play(script{})
	g.gateway("gw", "  auth: {jwt: {provider: {name: p, issuer: \"https://i.example.com\", remoteJWKS: {uri: \"https://i.example.com/keys\"}, audiences: [a]}}}\n", "llama", "qwen")
	g.says("gw", v1alpha1.ConditionAdmissionBlocked, metav1.ConditionTrue, "AdmissionDenied", "no poddisruptionbudgets here")
	g.says("gw", v1alpha1.ConditionAdmissionBlocked, metav1.ConditionTrue, "AdmissionDenied", "no securitypolicies here")
	need(g.t, g.there(new(appsv1.Deployment), g.models, "gw-picker"))
	for _, k := range []string{kindGateway, kindRoute} {
		for key := range g.made("gw") {
			if key.kind == k {
				g.t.Errorf("%s is made, and who may call could not be made sure of", key)
			}
		}
	}
	g.allow("refused-security")
	g.allow("refused-budgets")
	g.eventually("the policies are gone", func() error {
		g.touch("gw")
		return g.there(new(gatewayv1.Gateway), g.system, "gw")
	})
	g.says("gw", v1alpha1.ConditionAdmissionBlocked, metav1.ConditionFalse, "NotBlocked", "")
	g.settled()
	g.hasEverything("gw")
	g.removed("gw")
}

// allow takes away a policy that denies something.
func (g *stage) allow(name string) {
	ctx := context.WithoutCancel(g.t.Context())
	for _, o := range []client.Object{&admissionv1.ValidatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: name}}, &admissionv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}}} {
		if err := g.server.client.Delete(ctx, o); client.IgnoreNotFound(err) != nil {
			g.t.Error(err)
		}
	}
}

// What a configuration has left that is gone without us is found at the start, and while it runs; what only looks like ours
// is not touched.
func (g *stage) findsOrphans() {
	g.play(script{})
	g.gateway("gw", "", "llama")
	g.settled()
	g.stop()
	if g.Controller.leads.Load() {
		g.t.Error("it leads after its end")
	}
	// A copy that someone made of an object of ours, labels and all.
	copied := new(corev1.ConfigMap)
	need(g.t, g.there(copied, g.models, "gw-picker"))
	copied.ObjectMeta = metav1.ObjectMeta{Namespace: g.models, Name: "copied", Labels: copied.Labels, Annotations: copied.Annotations}
	need(g.t, g.server.client.Create(g.t.Context(), copied))
	c := g.edit("gw", func(c *v1alpha1.InferenceGatewayConfig) { c.Finalizers = nil })
	need(g.t, g.server.client.Delete(g.t.Context(), c))
	if n := len(g.made("gw")); n < 20 {
		g.t.Fatalf("got %d objects left, want all", n)
	}
	g.play(script{})
	g.eventually("all but the copy is gone", func() error {
		if left := slices.Collect(maps.Keys(g.made("gw"))); len(left) != 1 || left[0].name != "copied" {
			return fmt.Errorf("there are %v", left)
		}
		return nil
	})
	// The same while it runs.
	g.gateway("gw", "", "llama")
	g.settled()
	c, err := g.stored("gw")
	need(g.t, err)
	need(g.t, g.server.client.Delete(g.t.Context(), c))
	g.eventually("all but the copy is gone again", func() error {
		if left := slices.Collect(maps.Keys(g.made("gw"))); len(left) != 1 {
			return fmt.Errorf("there are %v", left)
		}
		return nil
	})
	need(g.t, g.server.client.Delete(g.t.Context(), copied))
}

// A kind that the API server does not know is said, and made when it comes, without a restart; one that goes keeps nothing
// from being deleted.
func (g *stage) seesKindsComeAndGo() {
	monitors := definition("monitoring.coreos.com", "v1", "ServiceMonitor", "servicemonitors")
	filters := new(apiextensionsv1.CustomResourceDefinition)
	need(g.t, g.there(filters, "", "httproutefilters.gateway.envoyproxy.io"))
	need(g.t, g.server.client.Delete(g.t.Context(), filters))
	g.t.Cleanup(func() {
		ctx := context.WithoutCancel(g.t.Context())
		filters.ObjectMeta = metav1.ObjectMeta{Name: filters.Name, Annotations: filters.Annotations}
		if err := g.server.client.Create(ctx, filters.DeepCopy()); err != nil && !apierrors.IsAlreadyExists(err) {
			g.t.Error(err)
		}
	})
	g.play(script{})
	g.gateway("gw", "", "llama")
	g.says("gw", v1alpha1.ConditionGatewayProgrammed, metav1.ConditionFalse, "DefinitionsMissing", "HTTPRouteFilter of gateway.envoyproxy.io/v1alpha1, which comes with Envoy Gateway")
	need(g.t, g.there(new(appsv1.Deployment), g.models, "gw-picker"))

	again := filters.DeepCopy()
	again.ObjectMeta = metav1.ObjectMeta{Name: filters.Name, Annotations: filters.Annotations}
	need(g.t, g.server.client.Create(g.t.Context(), again))
	need(g.t, g.server.client.Create(g.t.Context(), monitors.DeepCopy()))
	g.says("gw", v1alpha1.ConditionGatewayProgrammed, metav1.ConditionFalse, "NotProgrammed", "nobody has taken it")
	g.eventually("a monitor is made", func() error {
		for key := range g.made("gw") {
			if key.kind == "ServiceMonitor" {
				return nil
			}
		}
		return errors.New("there is none")
	})
	need(g.t, g.server.client.Delete(g.t.Context(), monitors))
	g.eventually("the kind is gone", func() error {
		if err := g.there(new(apiextensionsv1.CustomResourceDefinition), "", monitors.Name); !apierrors.IsNotFound(err) {
			return fmt.Errorf("it is there: %v", err)
		}
		return nil
	})
	need(g.t, g.server.client.Create(g.t.Context(), monitors.DeepCopy()))
	g.eventually("a monitor is made anew", func() error {
		for key := range g.made("gw") {
			if key.kind == "ServiceMonitor" {
				return nil
			}
		}
		return errors.New("there is none")
	})
	need(g.t, g.server.client.Delete(g.t.Context(), monitors))
	g.removed("gw")
}

// definition is one of a kind that takes anything.
func definition(group, version, name, resource string) *apiextensionsv1.CustomResourceDefinition {
	return &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: resource + "." + group}, Spec: apiextensionsv1.CustomResourceDefinitionSpec{
		Group: group, Scope: apiextensionsv1.NamespaceScoped,
		Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: resource, Singular: strings.ToLower(name), Kind: name, ListKind: name + "List"},
		Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{Name: version, Served: true, Storage: true, Subresources: &apiextensionsv1.CustomResourceSubresources{Status: new(apiextensionsv1.CustomResourceSubresourceStatus)},
			Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: new(true)}}}}}}
}

// A hundred models in one gateway are made in seconds.
func (g *stage) isQuick() {
	var names []string
	for i := range 100 {
		names = append(names, fmt.Sprintf("s%d", i))
	}
	g.play(script{})
	g.eventually("it writes", func() error {
		if !g.Controller.leads.Load() {
			return errors.New("not yet")
		}
		return nil
	})
	g.settled()
	reads, writes, begun := g.calls.reads.Load(), g.calls.writes.Load(), time.Now()
	g.gateway("many", "", names...)
	g.says("many", v1alpha1.ConditionAccepted, metav1.ConditionTrue, "Accepted", "")
	took := time.Since(begun)
	g.settled()
	made := g.made("many")
	g.t.Logf("100 schedulers: %d objects in %s, %d reads, %d writes", len(made), took.Round(10*time.Millisecond), g.calls.reads.Load()-reads, g.calls.writes.Load()-writes)
	if took > time.Minute {
		g.t.Errorf("it took %s", took)
	}
	if n := g.calls.writes.Load() - writes; n > int64(len(made))+20 {
		g.t.Errorf("got %d writes for %d objects", n, len(made))
	}
	g.hasEverything("many")
	g.becomes("many", kindGateway) // until it has a status, each write gives it the one that its definition has
	g.settled()
	g.stop()
	g.play(script{})
	g.eventually("it writes again", func() error {
		if !g.Controller.leads.Load() {
			return errors.New("not yet")
		}
		return nil
	})
	before := g.made("many")
	g.settled()
	if diff := cmp.Diff(before, g.made("many")); diff != "" {
		g.t.Errorf("a new turn changed something:\n%s", diff)
	}
	g.t.Logf("a new turn: %d reads, %d writes that change nothing", g.calls.reads.Load(), g.calls.writes.Load())
	begun = time.Now()
	g.removed("many")
	g.t.Logf("removed in %s", time.Since(begun).Round(10*time.Millisecond))
}

// errCut is what comes of a request that a test cuts off.
var errCut = errors.New("cut off")

// A Controller that is killed after any number of writes leaves nothing that the next one doesn't finish.
func (g *stage) isKilledInTheMiddle() {
	for _, n := range []int64{1, 5, 17, 30} {
		g.play(script{lease: 3 * time.Second})
		var left atomic.Int64
		left.Store(n)
		cut := func(r *http.Request) error {
			if r.Method != http.MethodGet && !strings.HasSuffix(r.URL.Path, "selfsubjectaccessreviews") && left.Add(-1) < 0 {
				return errCut
			}
			return nil
		}
		g.calls.stand.Store(&cut)
		g.gateway("gw", "", "llama", "qwen")
		g.eventually("it is cut off", func() error {
			if left.Load() >= 0 {
				return fmt.Errorf("%d writes are left", left.Load())
			}
			return nil
		})
		g.stop()
		g.play(script{lease: 3 * time.Second})
		g.says("gw", v1alpha1.ConditionAccepted, metav1.ConditionTrue, "Accepted", "")
		g.settled()
		g.hasEverything("gw")

		// And while it removes.
		left.Store(min(n, 20))
		g.calls.stand.Store(&cut)
		c, err := g.stored("gw")
		need(g.t, err)
		need(g.t, g.server.client.Delete(g.t.Context(), c))
		g.eventually("it is cut off", func() error {
			if left.Load() >= 0 {
				return fmt.Errorf("%d writes are left", left.Load())
			}
			return nil
		})
		g.stop()
		g.play(script{lease: 3 * time.Second})
		g.removed("gw")
		g.stop()
	}
}

// What can't be read is not absent (K19, K22): while the API server does not answer, or answers that nothing is there to a
// feed, nothing is removed.
func (g *stage) takesNothingForAbsent() {
	g.play(script{})
	g.gateway("gw", "", "llama", "qwen")
	g.document("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: tunes, labels: {inference.networking.k8s.io/bbr-managed: \"true\"}}\ndata: {baseModel: model/qwen, adapters: \"- sql\"}")
	g.settled()
	before := g.made("gw")
	fail := func(r *http.Request) error {
		if r.Method == http.MethodGet {
			return errCut
		}
		return nil
	}
	g.calls.stand.Store(&fail)
	g.edit("gw", func(c *v1alpha1.InferenceGatewayConfig) { c.Spec.Schedulers[0].LoRAAdapters = []string{"a"} })
	g.eventually("it is told", func() error {
		m := new(corev1.ConfigMap)
		need(g.t, g.there(m, g.models, "gw-picker"))
		if !strings.Contains(m.Data["gateway.yaml"], "loraAdapters") {
			return errors.New("the file is as it was")
		}
		if !strings.Contains(m.Data["gateway.yaml"], "sql") {
			g.t.Error("the list of adapters was taken for absent")
		}
		return nil
	})
	g.calls.stand.Store(nil)
	// A turn that begins while nothing can be read makes nothing of it.
	g.stop()
	g.play(script{})
	g.calls.stand.Store(&fail)
	g.eventually("it leads", func() error {
		if !g.Controller.leads.Load() {
			return errors.New("not yet")
		}
		return nil
	})
	writes := g.calls.writes.Load()
	time.AfterFunc(3*time.Second, func() { g.calls.stand.Store(nil) })
	g.eventually("it may read again", func() error {
		if g.calls.stand.Load() != nil {
			if n := g.calls.writes.Load(); n != writes {
				g.t.Errorf("got %d writes while nothing could be read", n-writes)
				writes = n
			}
			return errors.New("not yet")
		}
		return nil
	})
	g.settled()
	after := g.made("gw")
	if len(after) != len(before) {
		g.t.Errorf("got %d objects, had %d", len(after), len(before))
	}
	g.removed("gw")
}

// Of two Controllers one writes. When it ends it lets go at once, and the other goes on without a change.
func (g *stage) sharesItsTurn() {
	g.play(script{identity: "one", lease: time.Minute})
	first := g.stop
	g.gateway("gw", "", "llama")
	g.settled()
	g.becomes("gw", kindGateway)
	g.settled()
	second := &stage{server: g.server, t: g.t, system: g.system, models: g.models}
	second.play(script{identity: "two", lease: time.Minute})
	before := g.made("gw")
	second.eventually("the second one knows who writes", second.Controller.Ready)
	if second.Controller.leads.Load() || second.calls.writes.Load() > 0 {
		g.t.Error("both write")
	}
	begun := time.Now()
	first()
	second.eventually("the second one writes", func() error {
		if !second.Controller.leads.Load() {
			return errors.New("not yet")
		}
		return nil
	})
	if took := time.Since(begun); took > 20*time.Second {
		g.t.Errorf("it took %s until the second one wrote, with a lease of a minute", took)
	}
	second.settled()
	if diff := cmp.Diff(before, second.made("gw")); diff != "" {
		g.t.Errorf("the change of turns changed something:\n%s", diff)
	}
	second.removed("gw")
}

// An API server that is gone for longer than the Lease lasts ends the turn, and not the process, which goes on when it is
// back: with what has changed in between, and nothing else.
func (g *stage) outlastsTheAPIServer() {
	g.play(script{lease: 3 * time.Second})
	g.gateway("gw", "", "llama")
	g.settled()
	g.becomes("gw", kindGateway)
	g.settled()
	before := g.made("gw")
	g.calls.gone.Store(true)
	g.eventually("its turn is over", func() error {
		if g.Controller.leads.Load() {
			return errors.New("it writes")
		}
		return nil
	})
	if err := g.Controller.Ready(); err != nil {
		g.t.Errorf("it is not ready to answer Envoy Gateway: %v", err)
	}
	need(g.t, g.server.client.Delete(g.t.Context(), g.parse("apiVersion: v1\nkind: Service\nmetadata: {name: llama-epp}")))
	g.calls.gone.Store(false)
	g.eventually("what was deleted is made anew", func() error { return g.there(new(corev1.Service), g.models, "llama-epp") })
	g.settled()
	after := g.made("gw")
	delete(before, objectKey{kindService, g.models, "llama-epp"})
	delete(after, objectKey{kindService, g.models, "llama-epp"})
	if diff := cmp.Diff(before, after); diff != "" {
		g.t.Errorf("-before +after:\n%s", diff)
	}
	g.removed("gw")
}

// Another topology takes over when its pickers run, and not before: until then everything that leads to the old ones stays.
func (g *stage) handsOver() {
	g.play(script{})
	g.gateway("gw", "", "llama", "qwen")
	g.settled()
	g.becomes("gw")
	g.pod("llama-0", "10.1.0.1", 8000, map[string]string{"app": "llama"})
	g.pod("qwen-0", "10.1.0.2", 8000, map[string]string{"app": "qwen"})
	g.says("gw", v1alpha1.ConditionReady, metav1.ConditionTrue, "Ready", "")
	g.says("gw", v1alpha1.ConditionServing, metav1.ConditionTrue, "Serving", "")
	g.document("apiVersion: gateway.sluice.dev/v1alpha1\nkind: GatewayPolicy\nmetadata: {name: how}\nspec: {targetRef: {name: gw}, topology: Split}")
	g.eventually("the new pickers are made", func() error { return g.there(new(appsv1.Deployment), g.models, "qwen-epp") })
	g.says("gw", v1alpha1.ConditionReady, metav1.ConditionFalse, "NotReady", `Deployment "qwen-epp"`)
	g.says("gw", v1alpha1.ConditionServing, metav1.ConditionTrue, "Serving", "") // the old picker goes on
	g.settled()
	asks := func() string {
		u := new(unstructured.Unstructured)
		u.SetAPIVersion("gateway.envoyproxy.io/v1alpha1")
		u.SetKind("EnvoyExtensionPolicy")
		need(g.t, g.there(u, g.models, "gw-select"))
		return fmt.Sprint(u.Object["spec"])
	}
	service := new(corev1.Service)
	need(g.t, g.there(service, g.models, "qwen-epp"))
	if !strings.Contains(asks(), "gw-picker") || service.Spec.Selector["app"] != "gw-picker" {
		g.t.Errorf("got %s, and %v, before the new pickers run", asks(), service.Spec.Selector)
	}
	need(g.t, g.there(new(appsv1.Deployment), g.models, "gw-picker"))
	for _, at := range []types.NamespacedName{{Namespace: g.models, Name: "llama-epp"}, {Namespace: g.models, Name: "qwen-epp"}, {Namespace: g.system, Name: "gw-bbr"}} {
		g.rollsOut(at, -1)
	}
	g.eventually("the old picker is gone", func() error {
		if err := g.there(new(appsv1.Deployment), g.models, "gw-picker"); !apierrors.IsNotFound(err) {
			return fmt.Errorf("it is there: %v", err)
		}
		return nil
	})
	need(g.t, g.there(service, g.models, "qwen-epp"))
	if !strings.Contains(asks(), "gw-bbr") || service.Spec.Selector["app"] != "qwen-epp" {
		g.t.Errorf("got %s, and %v", asks(), service.Spec.Selector)
	}
	g.eventually("the old picker's keys are gone", func() error {
		if err := g.there(new(corev1.Secret), g.models, "gw-picker-tls"); !apierrors.IsNotFound(err) {
			return fmt.Errorf("they are there: %v", err)
		}
		return g.there(new(corev1.Secret), g.system, "gw-bbr-tls")
	})
	g.removed("gw")
}

// grant gives a service account rights, in the whole cluster and in the system namespace.
func (g *stage) grant(account string, cluster, own []rbacv1.PolicyRule) string {
	g.t.Helper()
	user := "system:serviceaccount:" + g.system + ":" + account
	subject := []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: g.system, Name: account}}
	name := g.system + "-" + account
	for _, o := range []client.Object{
		&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: cluster},
		&rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: name}, Subjects: subject, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name}},
		&rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: g.system, Name: name}, Rules: own},
		&rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: g.system, Name: name}, Subjects: subject, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name}},
	} {
		need(g.t, g.server.client.Create(g.t.Context(), o))
	}
	return user
}

// The rights that the chart gives are enough for everything, and all of them are used.
func (g *stage) needsNoMoreRights() {
	cluster, own := rights()
	g.play(script{as: g.grant("controller", cluster, own)})
	g.document("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: tunes, labels: {inference.networking.k8s.io/bbr-managed: \"true\"}}\ndata: {baseModel: model/qwen, adapters: \"- sql\"}")
	g.gateway("gw", "", "llama", "qwen")
	g.eventually("there is a picker", func() error { return g.there(new(appsv1.Deployment), g.models, "gw-picker") })
	g.settled()
	g.becomes("gw")
	g.says("gw", v1alpha1.ConditionReady, metav1.ConditionTrue, "Ready", "")
	g.says("gw", v1alpha1.ConditionAdmissionBlocked, metav1.ConditionFalse, "NotBlocked", "")
	g.hasEverything("gw")
	g.document("apiVersion: gateway.sluice.dev/v1alpha1\nkind: GatewayPolicy\nmetadata: {name: how}\nspec: {targetRef: {name: gw}, topology: Split}")
	g.eventually("there is a router", func() error { return g.there(new(appsv1.Deployment), g.system, "gw-bbr") })
	g.settled()
	g.becomes("gw")
	g.eventually("the old picker is gone", func() error {
		if err := g.there(new(appsv1.Deployment), g.models, "gw-picker"); !apierrors.IsNotFound(err) {
			return fmt.Errorf("it is there: %v", err)
		}
		return nil
	})
	g.removed("gw")
	if text := g.log.String(); strings.Contains(text, "forbidden") || strings.Contains(text, "missing") {
		g.t.Errorf("rights are missing:\n%s", text)
	}
}

// A right that is missing keeps the controller from what it is for, and is said: in the log, and in the conditions of those
// who ask for it (K07). Nothing else suffers, and when the right is there, so is what it is for.
func (g *stage) worksWithFewerRights() {
	cluster, own := rights()
	without := func(resources ...string) []rbacv1.PolicyRule {
		var out []rbacv1.PolicyRule
		for _, r := range cluster {
			r.Resources = slices.DeleteFunc(slices.Clone(r.Resources), func(name string) bool { return slices.Contains(resources, name) })
			if len(r.Resources) > 0 {
				out = append(out, r)
			}
		}
		return out
	}
	g.play(script{as: g.grant("controller", without("pods", "gatewaypolicies", "poddisruptionbudgets"), own)})
	g.gateway("gw", "", "llama", "qwen")
	g.settled()
	g.becomes("gw")
	g.says("gw", v1alpha1.ConditionServing, metav1.ConditionUnknown, "PodsNotRead", "for want of the right to list pods in namespace "+g.models)
	g.says("gw", v1alpha1.ConditionHonoured, metav1.ConditionFalse, "NotHonoured", "for want of the right to list gatewaypolicies.gateway.sluice.dev in the whole cluster")
	g.says("gw", v1alpha1.ConditionAdmissionBlocked, metav1.ConditionTrue, "AdmissionDenied", "for want of the right to list poddisruptionbudgets.policy")
	need(g.t, g.there(new(gatewayv1.Gateway), g.system, "gw"))
	if text := g.log.String(); !strings.Contains(text, "a right is missing") || !strings.Contains(text, "patch poddisruptionbudgets.policy") {
		g.t.Errorf("the log does not say which rights are missing:\n%s", text)
	}
	// A picker's Role can only be given by who has what is in it.
	g.says("gw", v1alpha1.ConditionAdmissionBlocked, metav1.ConditionTrue, "AdmissionDenied", "Role "+g.models+"/gw-picker")
	role := new(rbacv1.ClusterRole)
	need(g.t, g.there(role, "", g.system+"-controller"))
	role.Rules = cluster
	need(g.t, g.server.client.Update(g.t.Context(), role))
	g.says("gw", v1alpha1.ConditionServing, metav1.ConditionFalse, "NotServing", "modelSelector matches no pod")
	g.says("gw", v1alpha1.ConditionHonoured, metav1.ConditionTrue, "Honoured", "")
	g.says("gw", v1alpha1.ConditionAdmissionBlocked, metav1.ConditionFalse, "NotBlocked", "")
	g.settled()
	g.hasEverything("gw")
	g.removed("gw")
}

// Keys are made anew before they end, by the authority that everyone knows.
func (g *stage) renewsKeys() {
	g.play(script{})
	g.gateway("gw", "", "llama")
	g.settled()
	read := func() (leaf, string) {
		g.t.Helper()
		s, m := new(corev1.Secret), new(corev1.ConfigMap)
		need(g.t, g.there(s, g.models, "gw-picker-tls"))
		need(g.t, g.there(m, g.models, "gw-picker-ca"))
		l := leafOf(s.Data[corev1.TLSCertKey], s.Data[corev1.TLSPrivateKeyKey], s.Data[entryCA])
		if l.cert == nil {
			g.t.Fatal("the Secret has no certificate")
		}
		return l, m.Data[entryCA]
	}
	alike := func() {
		g.t.Helper()
		g.settled()
		if l, bundle := read(); string(l.bundle) != bundle {
			g.t.Error("the ConfigMap has other authorities than the Secret")
		}
	}
	alike()
	first, authority := read()
	g.clock.Store(int64(leafLife * 3 / 4))
	g.touch("gw")
	var second leaf
	g.eventually("there is a new certificate", func() error {
		var same string
		if second, same = read(); second.cert.Equal(first.cert) {
			return errors.New("it is the old one")
		} else if same != authority {
			g.t.Error("it has another authority")
		}
		return nil
	})
	g.clock.Store(int64(authorityLife * 3 / 4))
	g.touch("gw")
	g.eventually("there is a second authority", func() error {
		if _, both := read(); strings.Count(both, "BEGIN CERTIFICATE") != 2 {
			return errors.New("there is one")
		}
		return nil
	})
	alike()
	third, _ := read()
	if third.cert.Equal(second.cert) {
		g.t.Error("the certificate has ended and is still there")
	}
	// Whoever destroys a Secret gets a new one.
	s := new(corev1.Secret)
	need(g.t, g.there(s, g.models, "gw-picker-tls"))
	s.Data[corev1.TLSPrivateKeyKey] = []byte("x")
	need(g.t, g.server.client.Update(g.t.Context(), s))
	g.clock.Add(int64(time.Minute))
	g.touch("gw")
	g.eventually("there is a key again", func() error {
		need(g.t, g.there(s, g.models, "gw-picker-tls"))
		if leafOf(s.Data[corev1.TLSCertKey], s.Data[corev1.TLSPrivateKeyKey], nil).cert == nil {
			return errors.New("there is none")
		}
		return nil
	})
	g.removed("gw")
}

// A document that package config would refuse is left out, and said; the others count.
func (g *stage) leavesOutBadDocuments() {
	rules := definition("llm-d.ai", "v1alpha2", kindRewrite, "inferencemodelrewrites")
	need(g.t, g.server.client.Create(g.t.Context(), rules))
	g.t.Cleanup(func() {
		if err := g.server.client.Delete(context.WithoutCancel(g.t.Context()), rules); err != nil {
			g.t.Error(err)
		}
	})
	g.play(script{})
	g.gateway("gw", "", "llama", "qwen")
	g.document("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: good, labels: {inference.networking.k8s.io/bbr-managed: \"true\"}}\ndata: {baseModel: model/qwen, adapters: \"- sql\"}")
	g.document("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: bad, labels: {inference.networking.k8s.io/bbr-managed: \"true\"}}\ndata: {baseModel: model/qwen, adapters: \"{\"}")
	g.document("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: foreign, labels: {inference.networking.k8s.io/bbr-managed: \"true\"}}\ndata: {baseModel: other, adapters: \"- x\"}")
	g.eventually("rules can be written", func() error {
		return client.IgnoreAlreadyExists(g.server.client.Create(g.t.Context(), g.parse("apiVersion: llm-d.ai/v1alpha2\nkind: InferenceModelRewrite\nmetadata: {name: canary}\nspec: {poolRef: {name: qwen}, rules: [{matches: [{model: {value: fast}}], targets: [{modelRewrite: sql, weight: 1}]}]}")))
	})
	g.document("apiVersion: llm-d.ai/v1alpha2\nkind: InferenceModelRewrite\nmetadata: {name: wrong}\nspec: {poolRef: {name: qwen}, rules: [{targets: [{modelRewrite: sql, weight: 0}]}]}")
	g.document("apiVersion: llm-d.ai/v1alpha2\nkind: InferenceModelRewrite\nmetadata: {name: elsewhere}\nspec: {poolRef: {name: others}, rules: []}")
	g.says("gw", v1alpha1.ConditionHonoured, metav1.ConditionFalse, "NotHonoured", `"bad"`)
	g.says("gw", v1alpha1.ConditionHonoured, metav1.ConditionFalse, "NotHonoured", `"wrong"`)
	g.eventually("pickers read the good ones", func() error {
		m := new(corev1.ConfigMap)
		need(g.t, g.there(m, g.models, "gw-picker"))
		text := m.Data["gateway.yaml"]
		for _, want := range []string{"- sql", "name: canary"} {
			if !strings.Contains(text, want) {
				return fmt.Errorf("there is no %q in\n%s", want, text)
			}
		}
		for _, not := range []string{"name: bad", "name: wrong", "name: elsewhere", "name: foreign"} {
			if strings.Contains(text, not) {
				return fmt.Errorf("there is %q in\n%s", not, text)
			}
		}
		return nil
	})
	g.removed("gw")
}

// file waits until a configuration's pickers read some texts, and not others.
func (g *stage) file(name, what string, want, not []string) {
	g.t.Helper()
	g.eventually(what, func() error {
		m := new(corev1.ConfigMap)
		if err := g.there(m, g.models, name+"-picker"); err != nil {
			return err
		}
		text := m.Data["gateway.yaml"]
		for _, w := range want {
			if !strings.Contains(text, w) {
				return fmt.Errorf("there is no %q in\n%s", w, text)
			}
		}
		for _, n := range not {
			if strings.Contains(text, n) {
				return fmt.Errorf("there is %q in\n%s", n, text)
			}
		}
		return nil
	})
}

// Addresses that are no pods come and go while a gateway runs: its pickers read them, Envoys are told of them by the pool, and what
// pickers say of them is in the status. Of two lists with one address the younger one is left out, until the older one goes.
func (g *stage) followsAddresses() {
	g.play(script{})
	g.gateway("gw", "", "llama", "qwen")
	pool := func(want string) {
		g.t.Helper()
		g.eventually("the pool has the addresses "+want, func() error {
			u := g.parse("apiVersion: inference.networking.k8s.io/v1\nkind: InferencePool\nmetadata: {name: llama}")
			if err := g.there(u, g.models, "llama"); err != nil {
				return err
			}
			if got := u.GetAnnotations()[translate.AnnotationAddresses]; got != want {
				return fmt.Errorf("it has %q", got)
			}
			return nil
		})
	}
	pool("")
	g.document("apiVersion: gateway.sluice.dev/v1alpha1\nkind: Endpoints\nmetadata: {name: rack}\nspec: {labels: {app: llama}, endpoints: [{address: 10.9.0.1}, {address: \"10.9.0.2:9000\"}, {address: 10.9.0.3, apiKey: {file: /etc/key}}]}")
	g.file("gw", "pickers read the list", []string{"name: rack", "address: 10.9.0.1", "address: 10.9.0.2:9000"}, []string{"10.9.0.3"})
	pool("10.9.0.1:8000 10.9.0.2:9000")
	g.says("gw", v1alpha1.ConditionHonoured, metav1.ConditionFalse, "NotHonoured", `Endpoints "rack": spec.endpoints[2].apiKey.file: no picker has such a file`)
	g.says("gw", v1alpha1.ConditionServing, metav1.ConditionFalse, "NotServing", `scheduler "llama": none of 0 pods and 2 addresses`)
	says := g.picker("gw")
	says(`[{"pool":"llama","endpoints":[{"host":"10.9.0.1:8000","state":"ready","metricsRead":true,"models":["model/llama"]},{"host":"10.9.0.2:9000","state":"not ready","metricsRead":false}]}]`)
	g.eventually("the scheduler serves", func() error {
		c, err := g.stored("gw")
		if err != nil {
			return err
		}
		if text := fmt.Sprint(c.Status.Schedulers[0].Conditions); !strings.Contains(text, "1 of 2 pods and addresses are ready") || !strings.Contains(text, "the metrics of 1 endpoints are read") {
			return errors.New(text)
		}
		return nil
	})
	// Other lists: of another scheduler, of nobody's, and one that says again what the first one says.
	g.document("apiVersion: gateway.sluice.dev/v1alpha1\nkind: Endpoints\nmetadata: {name: shelf}\nspec: {endpoints: [{address: 10.9.1.1, labels: {app: qwen}}, {address: 10.9.1.2, labels: {app: nobody}}]}")
	g.file("gw", "pickers read the second list", []string{"10.9.0.1", "10.9.1.1"}, []string{"10.9.1.2"})
	g.settled()
	g.document("apiVersion: gateway.sluice.dev/v1alpha1\nkind: Endpoints\nmetadata: {name: twin}\nspec: {labels: {app: llama}, endpoints: [{address: 10.9.2.1}, {address: 10.9.0.1}]}")
	g.says("gw", v1alpha1.ConditionHonoured, metav1.ConditionFalse, "NotHonoured", `Endpoints "twin" is left out: spec.endpoints[1].address: Invalid value: "10.9.0.1": must be unique`)
	g.file("gw", "the older list counts", []string{"name: rack"}, []string{"10.9.2.1"})
	// A change is followed, and so is an end.
	rack := new(v1alpha1.Endpoints)
	need(g.t, g.there(rack, g.models, "rack"))
	rack.Spec.Endpoints = append(rack.Spec.Endpoints[:2], v1alpha1.EndpointEntry{Address: "10.9.0.4"})
	rack.Spec.Endpoints[1].Drain = true
	need(g.t, g.server.client.Update(g.t.Context(), rack))
	g.file("gw", "pickers hear of the change", []string{"drain: true", "10.9.0.4"}, nil)
	pool("10.9.0.1:8000 10.9.0.4:8000")
	need(g.t, g.server.client.Delete(g.t.Context(), rack))
	g.file("gw", "the younger list counts", []string{"10.9.2.1", "10.9.0.1"}, []string{"name: rack"})
	pool("10.9.0.1:8000 10.9.2.1:8000")
	need(g.t, g.server.client.Delete(g.t.Context(), &v1alpha1.Endpoints{ObjectMeta: metav1.ObjectMeta{Namespace: g.models, Name: "twin"}}))
	pool("")
	g.says("gw", v1alpha1.ConditionHonoured, metav1.ConditionTrue, "Honoured", "")
	g.removed("gw")
	need(g.t, g.there(new(v1alpha1.Endpoints), g.models, "shelf"))
}

// Objectives are read once the API server knows their kind, of both groups, and a condition says what they come to. Two of one
// name in the two groups, as while documents are moved, keep nobody from anything.
func (g *stage) followsObjectives() {
	g.play(script{})
	g.gateway("gw", "", "llama", "qwen")
	g.says("gw", v1alpha1.ConditionHonoured, metav1.ConditionTrue, "Honoured", "")
	for _, group := range []string{"llm-d.ai", "inference.networking.x-k8s.io"} {
		d := definition(group, "v1alpha2", kindObjective, "inferenceobjectives")
		need(g.t, g.server.client.Create(g.t.Context(), d))
		g.t.Cleanup(func() {
			if err := g.server.client.Delete(context.WithoutCancel(g.t.Context()), d); err != nil {
				g.t.Error(err)
			}
		})
		g.eventually("objectives of "+group+" can be written", func() error {
			return client.IgnoreAlreadyExists(g.server.client.Create(g.t.Context(), g.parse("apiVersion: "+group+"/v1alpha2\nkind: InferenceObjective\nmetadata: {name: chat}\nspec: {priority: 100, poolRef: {name: llama}}")))
		})
	}
	g.document("apiVersion: llm-d.ai/v1alpha2\nkind: InferenceObjective\nmetadata: {name: batch}\nspec: {priority: -10, poolRef: {name: qwen}}")
	g.document("apiVersion: llm-d.ai/v1alpha2\nkind: InferenceObjective\nmetadata: {name: elsewhere}\nspec: {priority: 7, poolRef: {name: others}}")
	g.document("apiVersion: llm-d.ai/v1alpha2\nkind: InferenceObjective\nmetadata: {name: wrong}\nspec: {priority: high, poolRef: {name: qwen}}")
	g.document("apiVersion: llm-d.ai/v1alpha2\nkind: InferenceObjective\nmetadata: {name: strange}\nspec: {priority: 1, poolRef: {kind: Service, name: qwen}}")
	g.file("gw", "pickers read the good ones", []string{"llm-d.ai/v1alpha2", "inference.networking.x-k8s.io/v1alpha2", "name: batch", "priority: -10", "priority: 100"},
		[]string{"elsewhere", "wrong", "strange"})
	g.says("gw", v1alpha1.ConditionHonoured, metav1.ConditionFalse, "NotHonoured", `InferenceObjective "wrong"`)
	g.says("gw", v1alpha1.ConditionHonoured, metav1.ConditionFalse, "NotHonoured", `InferenceObjective "strange" is left out: spec.poolRef.kind: Invalid value: "Service": must be InferencePool`)
	g.says("gw", v1alpha1.ConditionHonoured, metav1.ConditionFalse, "NotHonoured", `InferenceObjective "batch", "chat", "chat": priorities order nothing yet`)
	g.says("gw", v1alpha1.ConditionAccepted, metav1.ConditionTrue, "Accepted", "")
	need(g.t, g.server.client.Delete(g.t.Context(), g.parse("apiVersion: llm-d.ai/v1alpha2\nkind: InferenceObjective\nmetadata: {name: batch}")))
	g.file("gw", "the one that is gone is gone", []string{"name: chat"}, []string{"name: batch"})
	g.removed("gw")
}

// Objects that are stored in an older version are written in the newest, with what only that has, and the definition says so.
func (g *stage) movesToNewerVersions() {
	g.gateway("gw", "", "llama")
	d := new(apiextensionsv1.CustomResourceDefinition)
	read := func() {
		need(g.t, g.there(d, "", "inferencegatewayconfigs.inference.sagemaker.aws.amazon.com"))
	}
	read()
	newer := *d.Spec.Versions[0].DeepCopy()
	newer.Name = "v1beta1"
	newer.Schema.OpenAPIV3Schema.Properties["note"] = apiextensionsv1.JSONSchemaProps{Type: "string"}
	d.Spec.Versions[0].Storage = false
	d.Spec.Versions = append(d.Spec.Versions, newer)
	need(g.t, g.server.client.Update(g.t.Context(), d))
	g.eventually("there are two versions", func() error {
		read()
		if !slices.Equal(d.Status.StoredVersions, []string{"v1alpha1", "v1beta1"}) {
			return fmt.Errorf("there are %v", d.Status.StoredVersions)
		}
		return nil
	})
	g.document("apiVersion: inference.sagemaker.aws.amazon.com/v1beta1\nkind: InferenceGatewayConfig\nmetadata: {name: later}\nnote: kept\nspec: {bbr: {enabled: false}, schedulers: [{name: mistral, modelName: m, modelSelector: {}}]}")
	g.play(script{})
	g.eventually("one version is stored", func() error {
		read()
		if !slices.Equal(d.Status.StoredVersions, []string{"v1beta1"}) {
			return fmt.Errorf("there are %v", d.Status.StoredVersions)
		}
		return nil
	})
	later := g.parse("apiVersion: inference.sagemaker.aws.amazon.com/v1beta1\nkind: InferenceGatewayConfig\nmetadata: {name: later}")
	need(g.t, g.there(later, g.models, "later"))
	if later.Object["note"] != "kept" {
		g.t.Errorf("got %v, want what only the newer version has", later.Object["note"])
	}
	g.removed("gw")
	g.removed("later")
}

// Whoever writes to a configuration owns what they have written: the operator of model deployments applies its entry, a
// person theirs, both again and again, and the controller is in nobody's way.
func (g *stage) keepsOutOfDocuments() {
	g.play(script{})
	entry := func(name, model, more string) *unstructured.Unstructured {
		return g.parse("apiVersion: inference.sagemaker.aws.amazon.com/v1alpha1\nkind: InferenceGatewayConfig\nmetadata: {name: gw}\nspec: {" + more + "schedulers: [{name: " + name + ", modelName: " + model + ", modelSelector: {}}]}")
	}
	person, operator := entry("mine", "m", "bbr: {enabled: true}, "), entry("theirs", "k", "")
	apply := func(u *unstructured.Unstructured, manager string) {
		g.t.Helper()
		need(g.t, g.server.client.Apply(g.t.Context(), client.ApplyConfigurationFromUnstructured(u.DeepCopy()), client.FieldOwner(manager)))
	}
	for range 3 {
		apply(person, "person")
		apply(operator, "operator")
		g.says("gw", v1alpha1.ConditionAccepted, metav1.ConditionTrue, "Accepted", "")
		g.settled()
	}
	need(g.t, g.there(new(gatewayv1.HTTPRoute), g.models, "mine"))
	need(g.t, g.there(new(gatewayv1.HTTPRoute), g.models, "theirs"))
	c, err := g.stored("gw")
	need(g.t, err)
	for _, m := range c.ManagedFields {
		if m.Manager == fieldManager && m.Subresource == "" {
			if want := `{"f:metadata":{"f:finalizers":{"v:\"gateway.sluice.dev/cleanup\"":{}}}}`; m.FieldsV1.GetRawString() != want {
				g.t.Errorf("the controller owns %s, want its finalizer alone", m.FieldsV1.GetRawString())
			}
		}
	}
	// The operator takes its entry away: its route goes, and the person's stays.
	apply(g.parse("apiVersion: inference.sagemaker.aws.amazon.com/v1alpha1\nkind: InferenceGatewayConfig\nmetadata: {name: gw}\nspec: {schedulers: []}"), "operator")
	g.eventually("its route is gone", func() error {
		if err := g.there(new(gatewayv1.HTTPRoute), g.models, "theirs"); !apierrors.IsNotFound(err) {
			return fmt.Errorf("it is there: %v", err)
		}
		return g.there(new(gatewayv1.HTTPRoute), g.models, "mine")
	})
	g.removed("gw")
}

// A document that was read with our finalizer in it and written again by someone else, who so owns it, too, goes when it is deleted,
// however it was written. Whoever else has a finalizer there keeps it until they have done what it is for.
func (g *stage) letsGo() {
	g.play(script{})
	doc := func(name, more string) *unstructured.Unstructured {
		return g.parse("apiVersion: inference.sagemaker.aws.amazon.com/v1alpha1\nkind: InferenceGatewayConfig\nmetadata: {name: " + name + ", finalizers: [" + more + finalizer + "]}\nspec: {bbr: {enabled: false}, schedulers: [{name: " + name + ", modelName: m, modelSelector: {}}]}")
	}
	need(g.t, g.server.client.Apply(g.t.Context(), client.ApplyConfigurationFromUnstructured(doc("applied", "")), client.FieldOwner("kubectl")))
	need(g.t, g.server.client.Create(g.t.Context(), doc("created", ""), client.FieldOwner("kubectl-client-side-apply")))
	const foreign = "example.com/waits"
	need(g.t, g.server.client.Apply(g.t.Context(), client.ApplyConfigurationFromUnstructured(doc("held", foreign+", ")), client.FieldOwner("kubectl")))
	for _, name := range []string{"applied", "created", "held"} {
		g.says(name, v1alpha1.ConditionAccepted, metav1.ConditionTrue, "Accepted", "")
	}
	g.removed("applied")
	g.removed("created")
	held, err := g.stored("held")
	need(g.t, err)
	need(g.t, g.server.client.Delete(g.t.Context(), held))
	g.eventually("the finalizer of someone else alone is left", func() error {
		c, err := g.stored("held")
		if err != nil {
			return err
		}
		if !slices.Equal(c.Finalizers, []string{foreign}) {
			return fmt.Errorf("it has %v", c.Finalizers)
		}
		return nil
	})
	if left := g.made("held"); len(left) > 0 {
		g.t.Errorf("got %v left, want nothing", left)
	}
	for _, kind := range []string{v1alpha1.ConditionReady, v1alpha1.ConditionServing} {
		g.says("held", kind, metav1.ConditionFalse, "Deleted", "its parts are taken away, so that nobody answers; it is kept by finalizer "+foreign)
	}
	if c, err := g.stored("held"); err != nil || len(c.Status.Conditions) != 2 || len(c.Status.Schedulers) != 0 {
		g.t.Errorf("got %+v, %v, want no word of parts that are gone", c, err)
	}
	g.edit("held", func(c *v1alpha1.InferenceGatewayConfig) { c.Finalizers = nil })
	g.removed("held")
}

// Pods that are ready and that no picker reaches, as with a wrong targetPort, serve nobody: the conditions say so once it lasts, and
// doctor fails. A picker that begins and has tried nobody yet changes nothing of that; one that reaches a pod does.
func (g *stage) saysWhoIsReached() {
	g.play(script{})
	g.gateway("gw", "", "llama")
	g.pod("llama-0", "10.1.0.1", 8000, map[string]string{"app": "llama"})
	g.says("gw", v1alpha1.ConditionServing, metav1.ConditionFalse, "NotReady", `Deployment "gw-picker"`)
	g.becomes("gw", kindDeployment)
	g.says("gw", v1alpha1.ConditionServing, metav1.ConditionFalse, "NotReady", "GatewayProgrammed: ")
	g.becomes("gw")
	g.says("gw", v1alpha1.ConditionServing, metav1.ConditionTrue, "Serving", "")
	says := g.picker("gw")
	says(`[{"pool":"llama","endpoints":[{"pod":"llama-0","host":"10.1.0.1:8000","state":"ready","metricsRead":true,"models":["model/llama"]}]}]`)
	g.says("gw", v1alpha1.ConditionMetricsRead, metav1.ConditionTrue, "Read", "")

	refused := `[{"pool":"llama","endpoints":[{"pod":"llama-0","host":"10.1.0.1:8000","state":"not ready","why":"connection refused: no process listens there","metricsRead":false}]}]`
	g.edit("gw", func(c *v1alpha1.InferenceGatewayConfig) {
		port := int32(9999)
		c.Spec.Schedulers[0].TargetPort = &port
	})
	says(refused) // at the port of before: nobody here takes over the new document
	g.says("gw", v1alpha1.ConditionServing, metav1.ConditionFalse, "NotServing", "no picker reaches any of 1 ready pods at port 8000, where pickers look until they have taken over the document's 9999 (llama-0: connection refused")
	refused = strings.ReplaceAll(refused, "8000", "9999")
	says(refused)
	g.says("gw", v1alpha1.ConditionServing, metav1.ConditionFalse, "NotServing", "no picker reaches any of 1 ready pods at port 9999 (llama-0: connection refused")
	c, err := g.stored("gw")
	need(g.t, err)
	for _, one := range c.Status.Schedulers[0].Conditions {
		if one.Type == v1alpha1.ConditionServing && one.Reason != "NoReadyEndpoint" || one.Type == v1alpha1.ConditionMetricsRead && one.Reason != "NotReached" || strings.Contains(one.Message, "routed to") {
			g.t.Errorf("got %+v", one)
		}
	}
	asked := g.times.Load()
	says(`[{"pool":"llama","endpoints":[{"pod":"llama-0","host":"10.1.0.1:9999","state":"stale","why":"not asked yet"}]}]`)
	g.eventually("the picker was asked again", func() error {
		if g.times.Load() < asked+2 {
			return errors.New("not yet")
		}
		return nil
	})
	g.settled()
	g.says("gw", v1alpha1.ConditionServing, metav1.ConditionFalse, "NotServing", "at port 9999 (llama-0: connection refused")
	g.doctor(LevelFail, "Serving is False (NotServing)")

	says(strings.NewReplacer("9999", "8000", "not ready", "ready", "false", "true").Replace(refused))
	g.says("gw", v1alpha1.ConditionServing, metav1.ConditionTrue, "Serving", "")
	g.removed("gw")
}

// What pickers said before a document changed speaks of another one: they are asked anew within seconds, however seldom otherwise.
func (g *stage) knowsSoonWhatAChangeDid() {
	g.play(script{ask: time.Hour})
	g.gateway("gw", "", "llama")
	g.settled()
	g.becomes("gw")
	g.pod("llama-0", "10.1.0.1", 8000, map[string]string{"app": "llama"})
	says := g.picker("gw")
	ready := `[{"pool":"llama","endpoints":[{"pod":"llama-0","host":"10.1.0.1:8000","state":"ready","metricsRead":true,"models":["model/llama"]}]}]`
	says(ready)
	g.says("gw", v1alpha1.ConditionMetricsRead, metav1.ConditionTrue, "Read", "")
	port := func(n int32) {
		g.edit("gw", func(c *v1alpha1.InferenceGatewayConfig) { c.Spec.Schedulers[0].TargetPort = &n })
	}
	port(9999)
	says(strings.NewReplacer("8000", "9999", `"ready"`, `"not ready"`, "true", "false").Replace(ready))
	g.says("gw", v1alpha1.ConditionServing, metav1.ConditionFalse, "NotServing", "at port 9999")
	port(8000)
	says(ready)
	g.says("gw", v1alpha1.ConditionServing, metav1.ConditionTrue, "Serving", "")
	g.removed("gw")
}

// What is wrong with the default backend is said of it, and of the models nothing: a Service that isn't there, that hasn't the port, or
// that nobody reaches.
func (g *stage) saysOfTheDefaultBackend() {
	g.play(script{})
	g.gateway("gw", "", "llama", "qwen")
	g.settled()
	g.becomes("gw")
	for i, name := range []string{"llama", "qwen"} {
		g.pod(name+"-0", fmt.Sprintf("10.1.0.%d", i+1), 8000, map[string]string{"app": name})
	}
	says := g.picker("gw")
	const pools = `{"pool":"llama","endpoints":[{"pod":"llama-0","host":"10.1.0.1:8000","state":"ready","metricsRead":true,"models":["model/llama"]}]},` +
		`{"pool":"qwen","endpoints":[{"pod":"qwen-0","host":"10.1.0.2:8000","state":"ready","metricsRead":true,"models":["model/qwen"]}]}`
	says("[" + pools + "]")
	g.says("gw", v1alpha1.ConditionServing, metav1.ConditionTrue, "Serving", "")
	leads := func(to string) {
		g.t.Helper()
		g.eventually("what no model matches goes to "+to, func() error {
			route := new(gatewayv1.HTTPRoute)
			if err := g.there(route, g.models, "gw-select"); err != nil {
				return err
			}
			got := ""
			for _, b := range route.Spec.Rules[0].BackendRefs {
				got += fmt.Sprintf("%s:%d", b.Name, *b.Port)
			}
			if got != to || (len(route.Spec.Rules[0].Filters) == 0) != (to != "") {
				return fmt.Errorf("it goes to %q", got)
			}
			return nil
		})
	}
	g.edit("gw", func(c *v1alpha1.InferenceGatewayConfig) {
		port := int32(8001)
		c.Spec.BBR.DefaultBackend = &v1alpha1.DefaultBackend{Name: "other", Port: &port}
	})
	g.says("gw", v1alpha1.ConditionHonoured, metav1.ConditionFalse, "NotHonoured", `spec.bbr.defaultBackend.name: there is no Service "other"`)
	leads("")
	g.document("apiVersion: v1\nkind: Service\nmetadata: {name: other}\nspec: {ports: [{port: 80}]}")
	g.says("gw", v1alpha1.ConditionHonoured, metav1.ConditionFalse, "NotHonoured", `spec.bbr.defaultBackend.port: Service "other"`)
	leads("")
	g.settled()
	g.becomes("gw")
	g.edit("gw", func(c *v1alpha1.InferenceGatewayConfig) { *c.Spec.BBR.DefaultBackend.Port = 80 })
	g.says("gw", v1alpha1.ConditionHonoured, metav1.ConditionTrue, "Honoured", "")
	leads("other:80")
	backend := fmt.Sprintf(`,{"pool":"default backend","endpoints":[{"host":"other.%s.svc:80","state":"not ready","why":"connection refused","metricsRead":false}]}`, g.models)
	says("[" + pools + backend + "]")
	g.says("gw", v1alpha1.ConditionHonoured, metav1.ConditionFalse, "NotHonoured", `spec.bbr.defaultBackend: pickers don't reach Service "other" at port 80 (connection refused)`)
	g.settled()
	g.becomes("gw")
	g.says("gw", v1alpha1.ConditionServing, metav1.ConditionTrue, "Serving", "")
	says("[" + pools + strings.NewReplacer("not ready", "ready", "connection refused", "", "false", "true").Replace(backend) + "]")
	g.says("gw", v1alpha1.ConditionHonoured, metav1.ConditionTrue, "Honoured", "")
	g.removed("gw")
}

// Annotations of ours that nobody knows, or whose value can't be used, are said with what would be right, once for all pods that have
// the same; those of others, and those of pods that no scheduler selects, are nobody's matter.
func (g *stage) saysWhatPodsSayWrongly() {
	g.play(script{})
	g.gateway("gw", "", "llama")
	annotate := func(name, key, value string) {
		g.t.Helper()
		g.eventually(name+" is annotated", func() error {
			p := new(corev1.Pod)
			if err := g.there(p, g.models, name); err != nil {
				return err
			}
			p.Annotations = map[string]string{"example.com/endpoint": "{"}
			if key != "" {
				p.Annotations[key] = value
			}
			return g.server.client.Update(g.t.Context(), p)
		})
	}
	for i := range 3 {
		name := fmt.Sprintf("llama-%d", i)
		g.pod(name, fmt.Sprintf("10.1.0.%d", i+1), 8000, map[string]string{"app": "llama"})
		annotate(name, "gateway.sluice.dev/endpoint", "{kvEvent: {}}")
	}
	g.pod("other", "10.1.0.9", 8000, map[string]string{"app": "other"})
	annotate("other", "gateway.sluice.dev/endpoint", "{drain: perhaps}")
	g.says("gw", v1alpha1.ConditionHonoured, metav1.ConditionFalse, "NotHonoured",
		`pod "llama-0" and 2 more: the annotation gateway.sluice.dev/endpoint: {kvEvent: {}} is not used: strict decoding error: unknown field "kvEvent"`)
	g.doctor(LevelWarn, "the annotation gateway.sluice.dev/endpoint: {kvEvent: {}} is not used")
	for _, name := range []string{"llama-0", "llama-1"} {
		annotate(name, "gateway.sluice.dev/endpoint", "{kvEvents: {}}")
	}
	annotate("llama-2", "gateway.sluice.dev/endpont", "{kvEvents: {}}")
	g.says("gw", v1alpha1.ConditionHonoured, metav1.ConditionFalse, "NotHonoured",
		`pod "llama-2": the annotation gateway.sluice.dev/endpont: {kvEvents: {}} is not read: write gateway.sluice.dev/endpoint, with drain, engine`)
	annotate("llama-2", "", "")
	g.says("gw", v1alpha1.ConditionHonoured, metav1.ConditionTrue, "Honoured", "")
	// A model of which every pod drains has no endpoint, and has one again once one of them drains no more.
	g.becomes("gw")
	g.says("gw", v1alpha1.ConditionServing, metav1.ConditionTrue, "Serving", "")
	for i := range 3 {
		annotate(fmt.Sprintf("llama-%d", i), "gateway.sluice.dev/endpoint", "{drain: true}")
	}
	g.says("gw", v1alpha1.ConditionServing, metav1.ConditionFalse, "NotServing",
		"all 3 pods drain, so that requests are answered 503: take drain out of the pods' annotation gateway.sluice.dev/endpoint, or take all of it away by kubectl annotate pod -n "+g.models+" -l 'app=llama' gateway.sluice.dev/endpoint-")
	if all := g.doctor(LevelFail, "all 3 pods drain"); slices.ContainsFunc(all, func(f Finding) bool { return strings.Contains(f.Text, "takes requests") }) {
		g.t.Errorf("got %+v, want nothing that takes requests", all)
	}
	annotate("llama-1", "gateway.sluice.dev/endpoint", "{drain: false}")
	g.says("gw", v1alpha1.ConditionServing, metav1.ConditionTrue, "Serving", "")
	g.removed("gw")
}

// doctor has the cluster examined, looks for a finding about the gateway, and returns all there are.
func (g *stage) doctor(level Level, words string) []Finding {
	g.t.Helper()
	all := g.examined()
	if !slices.ContainsFunc(all, func(f Finding) bool {
		return f.Level == level && f.What == "gateway "+g.models+"/gw" && strings.Contains(f.Text, words)
	}) {
		g.t.Errorf("got no %s of gateway %s/gw with %q in\n%+v", level, g.models, words, all)
	}
	return all
}

// examined is what is found in the cluster.
func (g *stage) examined() []Finding {
	g.t.Helper()
	return g.plugin().Examine(g.t.Context())
}

// plugin looks into the cluster as a person does.
func (g *stage) plugin() *Cluster {
	g.t.Helper()
	file := filepath.Join(g.t.TempDir(), "kubeconfig")
	need(g.t, os.WriteFile(file, kubeconfigOf(g.t, g.server.config), 0o600))
	c, err := OpenCluster(file, "", g.models)
	need(g.t, err)
	return c
}

// Without our definitions the plugin says what is missing, and not what an API server says of an address that it doesn't know.
func (g *stage) isNotDefined() {
	d := new(apiextensionsv1.CustomResourceDefinition)
	serve := func(served bool) {
		g.eventually("the definition is changed", func() error {
			if err := g.there(d, "", configKind().plural()); err != nil {
				return err
			}
			for i := range d.Spec.Versions {
				d.Spec.Versions[i].Served = served
			}
			return g.server.client.Update(g.t.Context(), d)
		})
	}
	c := g.plugin()
	serve(false)
	const want = "the API server does not know InferenceGatewayConfig of inference.sagemaker.aws.amazon.com/v1alpha1: install what brings it (`kubectl sluice doctor` says what is missing)"
	for what, ask := range map[string]func() error{
		"top":     func() error { _, err := c.Configs(g.t.Context(), false); return err },
		"top -A":  func() error { _, err := c.Configs(g.t.Context(), true); return err },
		"explain": func() error { _, err := c.Pickers(g.t.Context(), "gw"); return err },
	} {
		g.eventually(what+" says what is missing", func() error {
			if err := ask(); err == nil || !strings.HasSuffix(err.Error(), want) {
				return fmt.Errorf("got %w", err)
			}
			return nil
		})
	}
	serve(true)
	g.eventually("it is known again", func() error { _, err := c.Configs(g.t.Context(), true); return err })
}

// A thousand pods that come one after the other are counted, and are no thousand writes.
func (g *stage) countsAThousandPods() {
	g.play(script{})
	g.gateway("gw", "", "llama")
	g.settled()
	const n = 1000
	writes, begun := g.calls.writes.Load(), time.Now()
	need(g.t, each(n, func(i int) error {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: g.models, Name: fmt.Sprintf("llama-%d", i), Labels: map[string]string{"app": "llama"}},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
		if err := g.server.client.Create(g.t.Context(), p); err != nil {
			return err
		}
		p.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: fmt.Sprintf("10.2.%d.%d", i/250, i%250), Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}
		return g.server.client.Status().Update(g.t.Context(), p)
	}))
	came := time.Since(begun)
	g.eventually("all are counted", func() error {
		c, err := g.stored("gw")
		if err != nil {
			return err
		}
		for _, has := range c.Status.Schedulers[0].Conditions {
			if has.Type == v1alpha1.ConditionServing && strings.HasPrefix(has.Message, fmt.Sprintf("%d of %d pods", n, n)) {
				return nil
			}
		}
		return fmt.Errorf("it says %+v", c.Status.Schedulers)
	})
	wrote := g.calls.writes.Load() - writes
	g.t.Logf("%d pods came in %s and were counted %s later, with %d writes", n, came.Round(10*time.Millisecond), (time.Since(begun) - came).Round(10*time.Millisecond), wrote)
	if most := int64(came/pause) + 8; wrote > most {
		g.t.Errorf("got %d writes, want at most %d", wrote, most)
	}
	need(g.t, g.server.client.DeleteAllOf(g.t.Context(), new(corev1.Pod), client.InNamespace(g.models), client.GracePeriodSeconds(0)))
	g.removed("gw")
}

// The status says since when there is a certificate for clients, which cert-manager makes.
func (g *stage) saysWhenACertificateWasIssued() {
	certificates := definition(groupCertManager, "v1", kindCertificate, "certificates")
	need(g.t, g.server.client.Create(g.t.Context(), certificates))
	g.t.Cleanup(func() {
		if err := g.server.client.Delete(context.WithoutCancel(g.t.Context()), certificates); err != nil {
			g.t.Error(err)
		}
	})
	g.play(script{settings: func(s *translate.Settings) { s.Issuer = "company" }})
	g.gateway("gw", "  tls: {}\n", "llama")
	u := new(unstructured.Unstructured)
	u.SetGroupVersionKind(certificateKind().GroupVersionKind)
	g.eventually("a certificate is asked for", func() error { return g.there(u, g.system, "gw-tls") })
	need(g.t, unstructured.SetNestedField(u.Object, "2026-01-02T03:04:05Z", "status", "notBefore"))
	need(g.t, g.server.client.Status().Update(g.t.Context(), u))
	g.eventually("the status has its time", func() error {
		c, err := g.stored("gw")
		if err != nil {
			return err
		}
		if c.Status.TLS == nil || c.Status.TLS.IssuedAt == nil || c.Status.TLS.IssuedAt.UTC().Format(time.RFC3339) != "2026-01-02T03:04:05Z" || len(c.Status.TLS.DNSNames) != 2 {
			return fmt.Errorf("it says %+v", c.Status.TLS)
		}
		return nil
	})
	g.removed("gw")
}
