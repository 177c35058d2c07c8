package kube

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-gateway/sluice/api/v1alpha1"
	"github.com/sluice-gateway/sluice/config"
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
		if _, err := leaveOut(gateway, c); err != nil {
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

// thousandSaying is a gateway with one scheduler, and a thousand pods that it selects and that have one annotation.
func thousandSaying(text string) (*v1alpha1.InferenceGatewayConfig, []corev1.Pod) {
	app := map[string]string{"app": "m"}
	pods := make([]corev1.Pod, 1000)
	for i := range pods {
		pods[i].Name, pods[i].Labels, pods[i].Annotations = fmt.Sprintf("m-%03d", i), app, map[string]string{config.AnnotationEndpoint: text}
	}
	return &v1alpha1.InferenceGatewayConfig{Spec: v1alpha1.InferenceGatewayConfigSpec{Schedulers: []v1alpha1.Scheduler{{Name: "m", ModelSelector: &metav1.LabelSelector{MatchLabels: app}}}}}, pods
}

// heardOf is what is heard of pods.
func heardOf(pods []corev1.Pod) map[saying]*said {
	heard := make(map[saying]*said)
	for i := range pods {
		hear(heard, &pods[i])
	}
	return heard
}

// A pod drains by what it says, and not by what can't be used, or is somebody else's.
func TestHear(t *testing.T) {
	f := func(annotations map[string]string, want bool) {
		t.Helper()
		if got := hear(make(map[saying]*said), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: annotations}}); got != want {
			t.Errorf("%v: got %t, want %t", annotations, got, want)
		}
	}
	f(nil, false)
	f(map[string]string{config.AnnotationEndpoint: "{drain: true}", "gateway.sluice.dev/other": "x"}, true)
	f(map[string]string{config.AnnotationEndpoint: "{drain: true, ranks: -1}"}, false)
	f(map[string]string{config.AnnotationEndpoint: "", "example.com/endpoint": "{drain: true}"}, false)
}

// However many pods say however much that can't be used, what is said of it is short, and the same in whatever order they come.
func TestMisheardIsBounded(t *testing.T) {
	gateway, pods := thousandSaying("{kvEvent: {}}")
	got := misheard(gateway, heardOf(pods))
	if len(got) != 1 || !strings.HasPrefix(got[0], `pod "m-000" and 999 more: the annotation `+config.AnnotationEndpoint) {
		t.Errorf("got %q, want one sentence for all", got)
	}
	pods[0].Annotations = map[string]string{config.AnnotationEndpoint: "kvEvents:\n  prot: 5557\n"}
	if got := misheard(gateway, heardOf(pods[:1])); len(got) != 1 || !strings.Contains(got[0], "endpoint: kvEvents: prot: 5557 is not used: ") {
		t.Errorf("got %q, want it on one line", got)
	}
	for i := range pods {
		pods[i].Annotations = map[string]string{config.AnnotationEndpoint: fmt.Sprintf("{%03d%s: {}}", i, strings.Repeat("é", 5000))}
	}
	got = misheard(gateway, heardOf(pods))
	slices.Reverse(pods)
	if again := misheard(gateway, heardOf(pods)); !slices.Equal(got, again) {
		t.Errorf("got %q, and in another order %q", got, again)
	}
	if n := len(strings.Join(got, "; ")); n > 8000 || len(got) != misheardMost+1 || got[misheardMost] != "995 more annotations of pods can't be used" {
		t.Errorf("got %d bytes: %q", n, got)
	}
}

func BenchmarkMisheard(b *testing.B) {
	gateway, pods := thousandSaying("{kvEvents: {}}")
	for b.Loop() {
		misheard(gateway, heardOf(pods))
	}
}
