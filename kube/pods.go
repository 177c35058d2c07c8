package kube

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/sluice-gateway/sluice/config"
)

// Labels by which a GPU's kind is told, those of pods and of nodes alike, the first one winning.
const (
	labelGPU       = "gpu"
	labelNvidiaGPU = "nvidia.com/gpu.product"
)

// pods are those of a namespace that may serve, as a reflector tells of them.
type pods struct {
	// tell is called with each change that matters; soon says that someone must not wait for it.
	tell func(soon bool)

	mu    sync.Mutex
	known map[string]config.Pod // by name
	read  bool                  // all there were have been seen once
}

// list is what is known, those that are ending last; nil before it was read.
func (p *pods) list() []config.Pod {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.read {
		return nil
	}
	list := make([]config.Pod, 0, len(p.known))
	for _, pod := range p.known {
		list = append(list, pod)
	}
	slices.SortFunc(list, func(a, b config.Pod) int {
		if a.Ending != b.Ending {
			if b.Ending {
				return -1
			}
			return 1
		}
		return cmp.Compare(a.Name, b.Name)
	})
	return list
}

// Add is part of cache.ReflectorStore.
func (p *pods) Add(o any) error {
	pod, ok := o.(*corev1.Pod)
	if !ok {
		return fmt.Errorf("cannot take %T for a pod", o)
	}
	now, serves := podOf(pod)
	p.mu.Lock()
	was, served := p.known[pod.Name]
	if serves {
		p.known[pod.Name] = now
	} else {
		delete(p.known, pod.Name)
	}
	p.mu.Unlock()
	switch {
	case !serves && !served, serves && served && same(&was, &now):
	default:
		// Whoever leaves must get no more requests; whoever comes can wait for others that come with it.
		p.tell(served && !was.Ending && (!serves || now.Ending || now.UID != was.UID))
	}
	return nil
}

// Update is part of cache.ReflectorStore.
func (p *pods) Update(o any) error { return p.Add(o) }

// Delete is part of cache.ReflectorStore.
func (p *pods) Delete(o any) error {
	pod, ok := o.(*corev1.Pod)
	if !ok {
		return fmt.Errorf("cannot take %T for a pod", o)
	}
	p.mu.Lock()
	was, served := p.known[pod.Name]
	delete(p.known, pod.Name)
	p.mu.Unlock()
	if served {
		p.tell(!was.Ending)
	}
	return nil
}

// Replace is part of cache.ReflectorStore. It is given all that there are, at the first reading and after each that began anew.
func (p *pods) Replace(all []any, _ string) error {
	known := make(map[string]config.Pod)
	for _, o := range all {
		pod, ok := o.(*corev1.Pod)
		if !ok {
			return fmt.Errorf("cannot take %T for a pod", o)
		}
		if one, serves := podOf(pod); serves {
			known[pod.Name] = one
		}
	}
	p.mu.Lock()
	changed := !p.read || !maps.EqualFunc(p.known, known, func(a, b config.Pod) bool { return same(&a, &b) })
	p.known, p.read = known, true
	p.mu.Unlock()
	if changed {
		p.tell(true)
	}
	return nil
}

// Resync is part of cache.ReflectorStore.
func (p *pods) Resync() error { return nil }

// Transformer is part of cache.TransformingStore: a thousand whole pods would take tens of megabytes while they are first
// read.
func (p *pods) Transformer() cache.TransformFunc {
	return func(o any) (any, error) {
		if pod, ok := o.(*corev1.Pod); ok {
			return slim(pod), nil
		}
		return o, nil
	}
}

// slim is a pod with what podOf reads and nothing else.
func slim(pod *corev1.Pod) *corev1.Pod {
	out := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: pod.Name, Namespace: pod.Namespace, UID: pod.UID, ResourceVersion: pod.ResourceVersion,
		Labels: pod.Labels, DeletionTimestamp: pod.DeletionTimestamp}}
	out.Status = corev1.PodStatus{Phase: pod.Status.Phase, PodIP: pod.Status.PodIP}
	if saysReady(pod) {
		out.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	}
	out.Annotations = map[string]string{labelGPU: gpuOf(pod), config.AnnotationEndpoint: pod.Annotations[config.AnnotationEndpoint]}
	return out
}

// podOf is a pod as configuration sees it, if it may serve or goes on with what it has: it is ready and has an address.
func podOf(pod *corev1.Pod) (config.Pod, bool) {
	address, err := netip.ParseAddr(pod.Status.PodIP)
	if err != nil || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed || !saysReady(pod) {
		return config.Pod{}, false
	}
	return config.Pod{Name: pod.Name, UID: string(pod.UID), Address: address.Unmap().String(), Labels: pod.Labels, GPU: gpuOf(pod),
		Says: pod.Annotations[config.AnnotationEndpoint], Ending: pod.DeletionTimestamp != nil}, true
}

// saysReady reports whether a pod is ready, as its node said last. Once nothing was heard of a node for a while, as when the
// API server was away, pods are called not ready by their condition Ready alone, all those of the cluster at once if it
// comes to that, and serve on: whether they really do is found out by asking them.
func saysReady(pod *corev1.Pod) bool {
	holds := func(condition corev1.PodConditionType) bool {
		return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == condition && c.Status == corev1.ConditionTrue })
	}
	if holds(corev1.PodReady) {
		return true
	}
	return holds(corev1.ContainersReady) && !slices.ContainsFunc(pod.Spec.ReadinessGates, func(g corev1.PodReadinessGate) bool { return !holds(g.ConditionType) })
}

// gpuOf is the kind of GPU that a pod has, as far as it says so itself where labels don't: nodes, whose labels name it, are
// not read, since that would take a right over the whole cluster.
func gpuOf(pod *corev1.Pod) string {
	if pod.Labels[labelGPU] != "" || pod.Labels[labelNvidiaGPU] != "" {
		return ""
	}
	for _, m := range []map[string]string{pod.Annotations, pod.Spec.NodeSelector} {
		for _, key := range []string{labelGPU, labelNvidiaGPU} {
			if m[key] != "" {
				return m[key]
			}
		}
	}
	if pod.Spec.Affinity == nil || pod.Spec.Affinity.NodeAffinity == nil || pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return ""
	}
	terms := pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	if len(terms) != 1 { // of several it is not known which one holds
		return ""
	}
	for _, e := range terms[0].MatchExpressions {
		if (e.Key == labelGPU || e.Key == labelNvidiaGPU) && e.Operator == corev1.NodeSelectorOpIn && len(e.Values) == 1 {
			return e.Values[0]
		}
	}
	return ""
}

// same reports whether two readings of a pod mean the same.
func same(a, b *config.Pod) bool {
	return a.Name == b.Name && a.UID == b.UID && a.Address == b.Address && a.GPU == b.GPU && a.Says == b.Says && a.Ending == b.Ending && maps.Equal(a.Labels, b.Labels)
}
