package kube

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-gateway/sluice/api/v1alpha1"
	"github.com/sluice-gateway/sluice/translate"
)

// What is left out is said in one order, whatever order feeds have.
func TestLeaveOut(t *testing.T) {
	var bad []corev1.ConfigMap
	for _, name := range []string{"b", "a", "c"} {
		bad = append(bad, corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{adapterLabel: "true"}},
			Data: map[string]string{"baseModel": "llama", "adapters": "{}"}})
	}
	good := *bad[0].DeepCopy()
	good.Name, good.Data["adapters"] = "good", "- sql"
	gateway := &v1alpha1.InferenceGatewayConfig{ObjectMeta: metav1.ObjectMeta{Name: "gw", Namespace: "models"}}
	gateway.Spec.Schedulers = []v1alpha1.Scheduler{{Name: "llama", ModelName: "llama", ModelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "llama"}}}}
	var want []string
	for i := range bad {
		c := &translate.Context{Adapters: append(append(slices.Clone(bad[i:]), good), bad[:i]...)}
		if err := leaveOut(gateway, c); err != nil {
			t.Fatal(err)
		}
		if len(c.Adapters) != 1 || c.Adapters[0].Name != "good" || len(c.LeftOut) != len(bad) {
			t.Fatalf("got the adapters %v and %q, want the good ones alone", c.Adapters, c.LeftOut)
		}
		if i == 0 {
			want = c.LeftOut
		}
		if !slices.Equal(c.LeftOut, want) {
			t.Errorf("got %q, and %q before", c.LeftOut, want)
		}
	}
}
