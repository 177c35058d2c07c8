package kube

import (
	"context"
	"encoding/json"
	"errors"
	"net/url"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/sluice-gateway/sluice/api/v1alpha1"
)

func TestJudge(t *testing.T) {
	f := func(kind string, status metav1.ConditionStatus, want Level, told bool) {
		t.Helper()
		if l, says := judge(metav1.Condition{Type: kind, Status: status}); l != want || says != told {
			t.Errorf("%s %s: got %s, %t, want %s, %t", kind, status, l, says, want, told)
		}
	}
	f(v1alpha1.ConditionAccepted, metav1.ConditionTrue, LevelOK, false)
	f(v1alpha1.ConditionAccepted, metav1.ConditionFalse, LevelFail, true)
	f(v1alpha1.ConditionServing, metav1.ConditionFalse, LevelFail, true)
	f(v1alpha1.ConditionAdmissionBlocked, metav1.ConditionFalse, LevelOK, false)
	f(v1alpha1.ConditionAdmissionBlocked, metav1.ConditionTrue, LevelFail, true)
	f(v1alpha1.ConditionMetricsRead, metav1.ConditionFalse, LevelWarn, true)
	f(v1alpha1.ConditionMetricsRead, metav1.ConditionUnknown, LevelWarn, true)
	f(v1alpha1.ConditionHonoured, metav1.ConditionFalse, LevelWarn, true)
}

func TestPickerFaults(t *testing.T) {
	f := func(text string, peers int, want ...string) {
		t.Helper()
		var s pickerState
		if err := json.Unmarshal([]byte(text), &s); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, s.faults(peers)); diff != "" {
			t.Errorf("%s: -want +got:\n%s", text, diff)
		}
	}
	f(`{"sides":[{"peers":[{"name":"b","told":true,"heard":true}],"pools":[{"name":"llama","endpoints":[{"name":"a","state":"ready"}]}]}]}`, 1)
	f(`{"sides":[{"peers":[{"name":"b","told":true,"heard":false}],"pools":[]}]}`, 2, `sees 0 of 2 peers, and decides without the others: look at their logs for "peer"`)
	f(`{"sides":[{"pools":[{"name":"llama","endpoints":[{"name":"a","state":"ready"},{"name":"b","state":"stale","why":"no reading for 5 s"}]}]}]}`, 0,
		"does not count on endpoints of llama: b is stale (no reading for 5 s)")
	f(`{"sides":[{"pools":[{"name":"q","endpoints":[{"name":"a","state":"gone"},{"name":"b","state":"gone"},{"name":"c","state":"gone"},{"name":"d","state":"gone"},{"name":"e","state":"gone"}]}]}]}`, 0,
		"does not count on endpoints of q: a is gone (), b is gone (), c is gone (), and 2 more")
}

func TestRefusal(t *testing.T) {
	f := func(err error, fails bool, want ...string) {
		t.Helper()
		faults, failed := refusal(err)
		if diff := cmp.Diff(want, faults); diff != "" || (failed != nil) != fails {
			t.Errorf("%v: got error %v, -want +got:\n%s", err, failed, diff)
		}
	}
	f(nil, false)
	f(errors.New("connection refused"), true)
	f(apierrors.NewInternalError(errors.New("etcd is gone")), true)
	f(apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "a", errors.New("no")), false, `pods "a" is forbidden: no`)
	f(apierrors.NewInvalid(schema.GroupKind{Kind: "K"}, "a", field.ErrorList{field.Required(field.NewPath("spec", "x"), "say what"), field.Invalid(field.NewPath("spec", "y"), 1, "is odd")}), false,
		"spec.x: Required value: say what", "spec.y: Invalid value: 1: is odd")
}

// TestAsk: who can't be asked is named, with what it takes.
func TestAsk(t *testing.T) {
	c := &Cluster{admin: func(context.Context, *corev1.Pod, string, url.Values) ([]byte, error) {
		return nil, errors.New("no route")
	}}
	if _, err := c.Ask(t.Context(), Picker{Namespace: "models", Name: "gw-picker-0"}, "explain", nil); err == nil || !strings.Contains(err.Error(), "gw-picker-0") || !strings.Contains(err.Error(), "pods/proxy") {
		t.Errorf("got %v, want the picker's name and the right", err)
	}
}
