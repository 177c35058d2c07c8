package translate

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/sluice-gateway/sluice/api/v1alpha1"
	"github.com/sluice-gateway/sluice/api/v1alpha2"
)

// maxFile is what a ConfigMap is filled with at most, in bytes. An API server takes 1 MiB of an object and its metadata.
const maxFile = 1000 << 10

// file plans the ConfigMap with the documents that a workload reads: the very ones that users wrote, as far as they are for
// it, without what is for pods, which a process can't do anything about.
func (b *builder) file(w *workload) {
	c := &v1alpha1.InferenceGatewayConfig{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.InferenceGroup + "/" + v1alpha1.Version, Kind: v1alpha1.InferenceGatewayConfigKind},
		ObjectMeta: metav1.ObjectMeta{Name: b.config.Name},
	}
	c.Spec.BBR = v1alpha1.BBR{Enabled: &w.selectModel, MaxRequestBodyBytes: b.config.Spec.BBR.MaxRequestBodyBytes}
	if d := b.backend; d != nil && w.selectModel {
		c.Spec.BBR.DefaultBackend = &v1alpha1.DefaultBackend{Name: b.backendHost(), Port: d.Port}
	}
	c.Spec.Schedulers = []v1alpha1.Scheduler{} // where there are none, pickers are told so in so many words
	for _, s := range w.schedulers {
		one := *s
		one.Env, one.EnvFrom, one.Replicas, one.LogLevel, one.Scheduler = nil, nil, nil, nil, ""
		c.Spec.Schedulers = append(c.Spec.Schedulers, one)
	}
	docs := []any{c}
	for i := range b.policies {
		p := &b.policies[i]
		if section := p.Spec.TargetRef.SectionName; p.Spec.SessionAffinity == nil || section != "" && !slices.ContainsFunc(w.schedulers, func(s *v1alpha1.Scheduler) bool { return s.Name == section }) {
			continue
		}
		docs = append(docs, &v1alpha1.GatewayPolicy{
			TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GatewayGroup + "/" + v1alpha1.Version, Kind: v1alpha1.GatewayPolicyKind},
			ObjectMeta: metav1.ObjectMeta{Name: p.Name},
			Spec:       v1alpha1.GatewayPolicySpec{TargetRef: p.Spec.TargetRef, SessionAffinity: p.Spec.SessionAffinity},
		})
	}
	docs = append(append(docs, b.lists(w)...), b.beside(w)...)
	var text bytes.Buffer
	for i, d := range docs {
		if i > 0 {
			text.WriteString("---\n")
		}
		data, err := document(d)
		if err != nil {
			b.fault = cmp.Or(b.fault, fmt.Errorf("cannot write down the documents of %q: %w", w.name, err))
			return
		}
		text.Write(data)
	}
	if text.Len() > maxFile {
		b.notAccepted = append(b.notAccepted, fmt.Sprintf("the documents for %q are %d bytes together, and a ConfigMap takes %d: list fewer adapters or rules, or use several gateways", w.name, text.Len(), maxFile))
	}
	b.add("v1", "ConfigMap", &corev1.ConfigMap{ObjectMeta: b.meta(w.namespace, w.name, w.scheduler), Data: map[string]string{fileName: text.String()}})
}

// beside are the documents that other people write, as far as they are for a workload: lists of adapters, rules for names, and
// objectives.
func (b *builder) beside(w *workload) []any {
	var docs []any
	adapters := slices.SortedFunc(slices.Values(b.ctx.Adapters), func(x, y corev1.ConfigMap) int { return cmp.Compare(x.Name, y.Name) })
	for i := range adapters {
		if base := adapters[i].Data["baseModel"]; slices.ContainsFunc(w.schedulers, func(s *v1alpha1.Scheduler) bool { return s.ModelName == base }) {
			docs = append(docs, &corev1.ConfigMap{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}, ObjectMeta: named(&adapters[i].ObjectMeta), Data: adapters[i].Data})
		}
	}
	rules := slices.SortedFunc(slices.Values(b.ctx.Rewrites), func(x, y v1alpha2.InferenceModelRewrite) int {
		return cmp.Or(cmp.Compare(x.Name, y.Name), cmp.Compare(x.APIVersion, y.APIVersion))
	})
	for i := range rules {
		if p := rules[i].Spec.PoolRef; p != nil && slices.ContainsFunc(w.schedulers, func(s *v1alpha1.Scheduler) bool { return s.Name == p.Name }) {
			docs = append(docs, &v1alpha2.InferenceModelRewrite{TypeMeta: rules[i].TypeMeta, ObjectMeta: named(&rules[i].ObjectMeta), Spec: rules[i].Spec})
		}
	}
	for _, o := range b.objectives(w.schedulers) {
		docs = append(docs, &v1alpha2.InferenceObjective{TypeMeta: o.TypeMeta, ObjectMeta: metav1.ObjectMeta{Name: o.Name}, Spec: o.Spec})
	}
	return docs
}

// objectives are those for some schedulers.
func (b *builder) objectives(schedulers []*v1alpha1.Scheduler) []v1alpha2.InferenceObjective {
	list := slices.SortedFunc(slices.Values(b.ctx.Objectives), func(x, y v1alpha2.InferenceObjective) int {
		return cmp.Or(cmp.Compare(x.Name, y.Name), cmp.Compare(x.APIVersion, y.APIVersion))
	})
	return slices.DeleteFunc(list, func(o v1alpha2.InferenceObjective) bool {
		p := o.Spec.PoolRef
		return p == nil || !slices.ContainsFunc(schedulers, func(s *v1alpha1.Scheduler) bool { return s.Name == p.Name })
	})
}

// named is what a process needs of an object's metadata: of two rules the older one counts first.
func named(m *metav1.ObjectMeta) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: m.Name, Labels: m.Labels, CreationTimestamp: m.CreationTimestamp}
}

// document is an object as YAML, without what isn't set.
func document(o any) ([]byte, error) {
	data, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	var tree map[string]any
	if err := json.Unmarshal(data, &tree); err != nil {
		return nil, err
	}
	delete(tree, "status")
	prune(tree)
	return yaml.Marshal(tree)
}
