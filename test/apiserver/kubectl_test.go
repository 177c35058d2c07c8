//go:build kube

package apiserver

import (
	"regexp"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-gateway/sluice/api/v1alpha1"
)

// TestDryRunMessages: what someone reads who tries a manifest out, as the reference's guide has it.
func TestDryRunMessages(t *testing.T) {
	f := func(doc, want string) {
		t.Helper()
		if got := kubectl(t, doc, "apply", "--dry-run=server", "-f", "-"); !strings.Contains(got, want) {
			t.Errorf("got %s, want %q in it", got, want)
		}
	}
	f(gatewayHead+"spec:\n  bbr: {enabled: true}\n  banana: 1\n"+oneScheduler, `strict decoding error: unknown field "spec.banana"`)
	f(gatewayHead+"spec:\n  bbr: {enabled: false}\n  schedulers: [{name: a, modelName: a, modelSelector: {}}, {name: b, modelName: b, modelSelector: {}}]\n",
		"bbr must be enabled when more than one scheduler is defined")
	f(gatewayHead+"spec:\n  bbr: {enabled: true}\n"+oneScheduler, "inferencegatewayconfig.inference.sagemaker.aws.amazon.com/g created (server dry run)")
}

// TestTables: short names, the category of all kinds, and the columns.
func TestTables(t *testing.T) {
	f := func(args, want string) {
		t.Helper()
		if got := kubectl(t, "", strings.Fields("get --namespace tables "+args)...); !regexp.MustCompile(want).MatchString(got) {
			t.Errorf("kubectl get %s: got\n%s\nwant %s", args, got, want)
		}
	}
	kubectl(t, "", "create", "namespace", "tables")
	for _, doc := range []string{
		gatewayHead + "spec:\n  bbr: {enabled: true}\n" + oneScheduler,
		policyHead + "spec: {targetRef: {name: g, sectionName: s}}\n",
		endpointsHead + "spec: {endpoints: [{address: '10.0.0.1:8000'}]}\n",
		globalHead + "spec: {members: [{cluster: dublin, namespace: models, name: g, endpoint: 'https://a'}, {cluster: virginia, namespace: models, name: g, endpoint: 'https://b'}]}\n",
	} {
		if got := kubectl(t, doc, "apply", "--namespace", "tables", "-f", "-"); !strings.Contains(got, "created") {
			t.Fatal(got)
		}
	}
	c := object(t, gatewayHead)
	c.SetNamespace("tables")
	status := &v1alpha1.InferenceGatewayConfig{ObjectMeta: metav1.ObjectMeta{Name: "g", Namespace: "tables"}}
	if err := shared.client.Get(t.Context(), keyOf(c), status); err != nil {
		t.Fatal(err)
	}
	now := metav1.Now()
	status.Status.Conditions = []metav1.Condition{
		{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: "Available", LastTransitionTime: now},
		{Type: v1alpha1.ConditionServing, Status: metav1.ConditionFalse, Reason: "NoEndpoints", LastTransitionTime: now},
		{Type: v1alpha1.ConditionGlobalRouting, Status: metav1.ConditionTrue, Reason: "Ready", LastTransitionTime: now},
	}
	if err := shared.client.Status().Update(t.Context(), status); err != nil {
		t.Fatal(err)
	}
	f("igwc", `(?s)^NAME +READY +SERVING +REASON +GLOBAL-ROUTING +AGE\ng +True +False +NoEndpoints +Ready +\S+\n$`)
	f("igwc -o wide", `NAME +READY +SERVING +REASON +GLOBAL-ROUTING +ACCEPTED +PROGRAMMED +BBR +AGE\ng +True +False +NoEndpoints +Ready +true +`)
	f("gwp", `NAME +TARGET +SECTION +ACCEPTED +AGE\np +g +s +`)
	f("gwep", `NAME +FIRST +AGE\ne +10.0.0.1:8000 +`)
	f("ggw", `NAME +READY +SERVING +REASON +AGE\nw +\S+\n`)
	f("ggw -o wide", `NAME +READY +SERVING +REASON +FIRST +AGE\nw +dublin +\S+\n`)
	f("sluice -o name", `(?s)^(?:(?:endpoints.gateway.sluice.dev/e|globalgateway.gateway.sluice.dev/w|gatewaypolicy.gateway.sluice.dev/p|inferencegatewayconfig.inference.sagemaker.aws.amazon.com/g)\n){4}$`)
}

// TestExplain: what kubectl explain says is what the Go types say, with bounds and defaults.
func TestExplain(t *testing.T) {
	f := func(what string, want ...string) {
		t.Helper()
		got := strings.Join(strings.Fields(kubectl(t, "", "explain", what)), " ")
		for _, w := range want {
			if !strings.Contains(got, w) {
				t.Errorf("kubectl explain %s: got %s, want %q in it", what, got, w)
			}
		}
	}
	f("igwc", "InferenceGatewayConfig describes one gateway", "Spec is what is asked of the gateway.", "Status is written by the controller")
	f("igwc.spec.schedulers", "Schedulers lists the models", "modelName <string> -required-", "enum: vllm, sglang")
	f("igwc.spec.schedulers.weights", "0 switches a scorer off", "queue <integer>", "PredictedLatency prefers endpoints expected to answer sooner.")
	f("ggw.spec.members", "Members are the gateways that requests are sent to.", "cluster <string> -required-", "costMilliseconds <integer>")
	f("ggw.spec.weights", "all four, which together are 1", "KVHeadroom <number> -required-")
	f("gwp.spec.sessionAffinity", "SessionAffinity", "TTL is how long a session without requests is remembered")
}
