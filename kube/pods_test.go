package kube

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-gateway/sluice/config"
)

// pod is one that serves, changed by the caller.
func pod(name string, change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "models", Name: name, UID: "uid-of-1", ResourceVersion: "7", Labels: map[string]string{"app": "llama"},
		ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "kubelet"}}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "engine"}}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.0.0.1", Conditions: []corev1.PodCondition{
			{Type: corev1.PodScheduled, Status: corev1.ConditionTrue}, {Type: corev1.PodReady, Status: corev1.ConditionTrue}}}}
	for _, c := range change {
		c(p)
	}
	return p
}

func ready(is corev1.ConditionStatus) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Status.Conditions[1].Status = is }
}

func ending(p *corev1.Pod) { now := metav1.Now(); p.DeletionTimestamp = &now }

// A pod serves while it is ready and has an address, and says itself which GPU it has.
func TestPodOf(t *testing.T) {
	serving := config.Pod{Name: "llama-0", UID: "uid-of-1", Address: "10.0.0.1", Labels: map[string]string{"app": "llama"}}
	f := func(what string, p *corev1.Pod, want *config.Pod) {
		t.Helper()
		for _, seen := range []*corev1.Pod{p, slim(p), slim(slim(p))} { // as it is watched, and as it is first read
			got, serves := podOf(seen)
			switch {
			case serves != (want != nil):
				t.Errorf("%s: serves is %t", what, serves)
			case serves:
				if diff := cmp.Diff(*want, got); diff != "" {
					t.Errorf("%s: -want +got:\n%s", what, diff)
				}
			}
		}
	}
	with := func(change func(*config.Pod)) *config.Pod { c := serving; change(&c); return &c }
	f("ready", pod("llama-0"), &serving)
	f("not ready", pod("llama-0", ready(corev1.ConditionFalse)), nil)
	f("ready as far as nobody knows", pod("llama-0", ready(corev1.ConditionUnknown)), nil)
	f("without conditions", pod("llama-0", func(p *corev1.Pod) { p.Status.Conditions = nil }), nil)
	f("without an address", pod("llama-0", func(p *corev1.Pod) { p.Status.PodIP = "" }), nil)
	f("ended well", pod("llama-0", func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }), nil)
	f("ended badly", pod("llama-0", func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }), nil)
	containers := func(is corev1.ConditionStatus) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: corev1.ContainersReady, Status: is})
		}
	}
	gate := func(is corev1.ConditionStatus) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: "example.com/gate"}}
			p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: "example.com/gate", Status: is})
		}
	}
	f("on a node that nothing is heard of", pod("llama-0", ready(corev1.ConditionFalse), containers(corev1.ConditionTrue)), &serving)
	f("and behind an open gate", pod("llama-0", ready(corev1.ConditionFalse), containers(corev1.ConditionTrue), gate(corev1.ConditionTrue)), &serving)
	f("not ready, and nor are its containers", pod("llama-0", ready(corev1.ConditionFalse), containers(corev1.ConditionFalse)), nil)
	f("behind a shut gate", pod("llama-0", ready(corev1.ConditionFalse), containers(corev1.ConditionTrue), gate(corev1.ConditionFalse)), nil)
	f("ending", pod("llama-0", ending), with(func(c *config.Pod) { c.Ending = true }))
	f("ending and not ready", pod("llama-0", ending, ready(corev1.ConditionFalse)), nil)
	f("IPv6", pod("llama-0", func(p *corev1.Pod) { p.Status.PodIP = "FD00:0::1" }), with(func(c *config.Pod) { c.Address = "fd00::1" }))
	gpu := func(kind string) *config.Pod { return with(func(c *config.Pod) { c.GPU = kind }) }
	f("an annotation", pod("llama-0", func(p *corev1.Pod) { p.Annotations = map[string]string{"gpu": "H100"} }), gpu("H100"))
	f("a node selector", pod("llama-0", func(p *corev1.Pod) {
		p.Spec.NodeSelector = map[string]string{"nvidia.com/gpu.product": "NVIDIA-A10G"}
	}), gpu("NVIDIA-A10G"))
	needs := func(terms ...corev1.NodeSelectorTerm) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: terms}}}
		}
	}
	in := func(values ...string) corev1.NodeSelectorTerm {
		return corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "nvidia.com/gpu.product", Operator: corev1.NodeSelectorOpIn, Values: values}}}
	}
	f("an affinity", pod("llama-0", needs(in("NVIDIA-L40S"))), gpu("NVIDIA-L40S"))
	f("an affinity with a choice", pod("llama-0", needs(in("NVIDIA-L40S", "NVIDIA-A10G"))), &serving)
	f("affinities to choose from", pod("llama-0", needs(in("NVIDIA-L40S"), in("NVIDIA-A10G"))), &serving)
	f("what it says of itself", pod("llama-0", func(p *corev1.Pod) {
		p.Annotations = map[string]string{config.AnnotationEndpoint: "kvEvents: {}", "else": "x"}
	}),
		with(func(c *config.Pod) { c.Says = "kvEvents: {}" }))
	labels := map[string]string{"app": "llama", "gpu": "H200"}
	f("a label wins", pod("llama-0", func(p *corev1.Pod) {
		p.Labels, p.Annotations = labels, map[string]string{"gpu": "H100"}
	}), with(func(c *config.Pod) { c.Labels = labels }))
}

// What is kept of a pod is small.
func TestSlim(t *testing.T) {
	p := slim(pod("llama-0"))
	if p.ManagedFields != nil || p.Spec.Containers != nil || len(p.Status.Conditions) != 1 || p.ResourceVersion != "7" {
		t.Errorf("got %v, want what serves alone, and the version that it was seen at", p)
	}
}

// told are the calls of tell since the last look.
type told struct{ soon, later int }

func TestPodsTellWhatMatters(t *testing.T) {
	var got told
	p := &pods{known: make(map[string]config.Pod), tell: func(soon bool) {
		if soon {
			got.soon++
			return
		}
		got.later++
	}}
	step := func(what string, do func(any) error, o *corev1.Pod, want told) {
		t.Helper()
		got = told{}
		if err := do(o); err != nil {
			t.Fatal(err)
		}
		if got != want {
			t.Errorf("%s: told %+v, want %+v", what, got, want)
		}
	}
	if p.list() != nil {
		t.Error("pods are known before they were read")
	}
	all := func(o any) error { return p.Replace([]any{o}, "1") }
	step("the first reading", all, pod("a"), told{soon: 1})
	step("the same again", all, pod("a"), told{})
	step("one starts", p.Add, pod("b", ready(corev1.ConditionFalse)), told{})
	step("and is ready", p.Update, pod("b"), told{later: 1})
	step("nothing of interest", p.Update, pod("b", func(p *corev1.Pod) { p.ResourceVersion = "9" }), told{})
	step("another label", p.Update, pod("b", func(p *corev1.Pod) { p.Labels = map[string]string{"app": "other"} }), told{later: 1})
	step("another annotation of ours", p.Update, pod("b", func(p *corev1.Pod) {
		p.Labels, p.Annotations = map[string]string{"app": "other"}, map[string]string{config.AnnotationEndpoint: "drain: true"}
	}), told{later: 1})
	step("one is to end", p.Update, pod("b", ending), told{soon: 1})
	step("and is ready no more", p.Update, pod("b", ending, ready(corev1.ConditionFalse)), told{later: 1})
	step("and is gone", p.Delete, pod("b"), told{})
	step("one fails", p.Update, pod("a", ready(corev1.ConditionFalse)), told{soon: 1})
	step("and comes back", p.Update, pod("a"), told{later: 1})
	step("and is replaced under its name", p.Update, pod("a", func(p *corev1.Pod) { p.UID = "another" }), told{soon: 1})
	step("one is gone at once", p.Delete, pod("a"), told{soon: 1})
	if got := p.list(); got == nil || len(got) != 0 {
		t.Errorf("got %v, want that there are none", got)
	}
}

// Those that are ending come last, so that another pod that has the address already is the one that is meant.
func TestPodsAreOrdered(t *testing.T) {
	p := &pods{known: make(map[string]config.Pod), tell: func(bool) {}}
	if err := p.Replace([]any{pod("a", ending), pod("c"), pod("b")}, "1"); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, one := range p.list() {
		names = append(names, one.Name)
	}
	if diff := cmp.Diff([]string{"b", "c", "a"}, names); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// BenchmarkPods is what a change of one among a thousand pods costs until the list is there.
func BenchmarkPods(b *testing.B) {
	p := &pods{known: make(map[string]config.Pod), tell: func(bool) {}}
	for i := range 1000 {
		if err := p.Add(pod(fmt.Sprint("pod-", i))); err != nil {
			b.Fatal(err)
		}
	}
	p.read = true
	b.ReportAllocs()
	for b.Loop() {
		if err := p.Update(pod("pod-7")); err != nil {
			b.Fatal(err)
		}
		if len(p.list()) != 1000 {
			b.Fatal("pods are missing")
		}
	}
}
