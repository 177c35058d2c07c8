package kube

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/sluice-gateway/sluice/translate"
)

// A condition has the time at which it last changed whether it holds, whatever else it says.
func TestTransitionTimes(t *testing.T) {
	early, late := metav1.NewTime(time.Unix(100, 0)), metav1.NewTime(time.Unix(200, 0))
	before := []metav1.Condition{{Type: "A", Status: "True", Reason: "X", LastTransitionTime: early}, {Type: "B", Status: "False", LastTransitionTime: early}}
	got := merged(before, []metav1.Condition{{Type: "A", Status: "True", Reason: "Y", Message: "other"}, {Type: "B", Status: "True"}, {Type: "C", Status: "Unknown"}}, late)
	want := []metav1.Condition{{Type: "A", Status: "True", Reason: "Y", Message: "other", LastTransitionTime: early}, {Type: "B", Status: "True", LastTransitionTime: late},
		{Type: "C", Status: "Unknown", LastTransitionTime: late}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestGatewayState(t *testing.T) {
	yes := func(kinds ...string) (list []metav1.Condition) {
		for _, k := range kinds {
			list = append(list, metav1.Condition{Type: k, Status: "True", ObservedGeneration: 2})
		}
		return list
	}
	ns := gatewayv1.Namespace("system")
	parent := gatewayv1.ParentReference{Namespace: &ns, Name: "gw"}
	route := func(list ...metav1.Condition) gatewayv1.HTTPRoute {
		r := gatewayv1.HTTPRoute{ObjectMeta: metav1.ObjectMeta{Name: "llama", Generation: 2}}
		if list != nil {
			r.Status.Parents = []gatewayv1.RouteParentStatus{{ParentRef: parent, Conditions: list}}
		}
		return r
	}
	fine := route(yes("Accepted", "ResolvedRefs")...)
	for name, c := range map[string]struct {
		conditions []metav1.Condition
		routes     []gatewayv1.HTTPRoute
		want       string
	}{
		"all is well":       {yes("Accepted", "Programmed"), []gatewayv1.HTTPRoute{fine}, ""},
		"nobody looked":     {[]metav1.Condition{{Type: "Accepted", Status: "Unknown", Reason: "Pending"}, {Type: "Programmed", Status: "Unknown", Reason: "Pending"}}, nil, "nobody has taken it"},
		"an older one":      {[]metav1.Condition{{Type: "Programmed", Status: "True", ObservedGeneration: 1}}, nil, "latest change"},
		"no address":        {[]metav1.Condition{{Type: "Programmed", Status: "False", Reason: "AddressNotAssigned", Message: "no address", ObservedGeneration: 2}}, nil, "Programmed: AddressNotAssigned: no address"},
		"a route not taken": {yes("Accepted", "Programmed"), []gatewayv1.HTTPRoute{route()}, `HTTPRoute "llama": the data plane has not looked at it yet`},
		"a pool not found": {yes("Accepted", "Programmed"), []gatewayv1.HTTPRoute{route(metav1.Condition{Type: "ResolvedRefs", Status: "False", Reason: "BackendNotFound", Message: "no pool", ObservedGeneration: 2})},
			`HTTPRoute "llama": ResolvedRefs: BackendNotFound: no pool`},
	} {
		g := &gatewayv1.Gateway{ObjectMeta: metav1.ObjectMeta{Namespace: "system", Name: "gw", Generation: 2}, Status: gatewayv1.GatewayStatus{Conditions: c.conditions}}
		got := gatewayState(g, c.routes)
		if got.Programmed != (c.want == "") || !strings.Contains(got.Message, c.want) {
			t.Errorf("%s: got %+v, want %q", name, got, c.want)
		}
	}
}

func TestRolloutOf(t *testing.T) {
	two := int32(2)
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "gw-picker", Namespace: "models", Generation: 3}, Spec: appsv1.DeploymentSpec{Replicas: &two},
		Status: appsv1.DeploymentStatus{ObservedGeneration: 3, UpdatedReplicas: 2, AvailableReplicas: 1, Conditions: []appsv1.DeploymentCondition{
			{Type: appsv1.DeploymentProgressing, Status: corev1.ConditionTrue, Reason: "NewReplicaSetAvailable"},
			{Type: appsv1.DeploymentReplicaFailure, Status: corev1.ConditionTrue, Reason: "FailedCreate", Message: "exceeded quota"}}}}
	want := translate.Rollout{Namespace: "models", Name: "gw-picker", Observed: true, Wanted: 2, Updated: 2, Available: 1, Complete: true, Stuck: "FailedCreate: exceeded quota"}
	if diff := cmp.Diff(want, rolloutOf(d)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestSooner(t *testing.T) {
	for _, c := range [][3]time.Duration{{0, 0, 0}, {0, 5, 5}, {5, 0, 5}, {3, 5, 3}, {-1, 5, 5}, {5, 3, 3}} {
		if got := sooner(c[0], c[1]); got != c[2] {
			t.Errorf("sooner(%d, %d): got %d, want %d", c[0], c[1], got, c[2])
		}
	}
}
