package config

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/sluice-gateway/sluice/api/v1alpha1"
)

// Pod is a pod that serves, or is about to end: to schedulers what an entry of Endpoints is where there is no cluster.
type Pod struct {
	// Name is unique in the namespace; UID tells it from one that had its name, or its address, before.
	Name, UID string
	// Address is its IP address in its shortest form, without brackets. The port is the scheduler's targetPort.
	Address string
	// Labels are what modelSelector selects on. Not to be written to.
	Labels map[string]string
	// GPU is the kind of GPU where no label says it; empty if unknown.
	GPU string
	// Says is the value of its AnnotationEndpoint, empty where it has none.
	Says string
	// Ending: it gets no new requests, those under way may finish.
	Ending bool
}

// AnnotationEndpoint is where a pod says what an entry of Endpoints would say of it, as far as that reaches nothing but the
// pod: YAML with drain, engine, metrics, kvEvents, ranks and firstRank.
const AnnotationEndpoint = "gateway.sluice.dev/endpoint"

// Pods are those of a namespace that may serve.
type Pods struct {
	// Namespace is where they are.
	Namespace string
	// List has each once; nil while nobody knows them yet. Of two with one address the first counts.
	List []Pod
}

// Documents are read and checked documents, of which configurations are made for whatever pods there are at a time. They
// must not be used by two goroutines at once.
type Documents struct{ b *builder }

// Read is Parse for a gateway that has pods beside its documents. There a list of schedulers may be empty, which it is where a
// cluster's controller could make nothing of any: a gateway that answers 404 says more than one that does not start.
func Read(docs []byte, name string) (*Documents, error) {
	b, err := parse(docs, name, true)
	if err != nil {
		return nil, err
	}
	return &Documents{b}, nil
}

// With is what a gateway runs while these are the pods. It does nothing again that pods don't matter to: no document is
// read, nor checked.
func (d *Documents) With(pods Pods) *Config {
	b := *d.b
	b.config, b.pods = &Config{Source: d.b.config.Source}, &pods
	b.hear()
	d.b.sayings = b.sayings
	b.build()
	b.misheard()
	return b.config
}

// saying is what an annotation says: one entry, or why it can't be used.
type saying struct {
	list  *v1alpha1.Endpoints
	fault string
}

// hear reads what pods say, each text once: those of a Deployment say the same.
func (b *builder) hear() {
	before := b.sayings
	b.sayings = make(map[string]*saying)
	for i := range b.pods.List {
		text := b.pods.List[i].Says
		if text == "" || b.sayings[text] != nil {
			continue
		}
		if b.sayings[text] = before[text]; b.sayings[text] == nil {
			b.sayings[text] = readSaying(text)
		}
	}
}

// readSaying reads an annotation. It can't have labels, which are the pod's own, nor name files and variables of this
// process, which are none of the pod's business.
func readSaying(text string) *saying {
	d := &document{number: 1, kind: "annotation"}
	root, empty := d.parse(chunk{[]byte(text), 1})
	tree, isObject := root.(map[string]any)
	if d.tree = tree; !isObject && !empty && len(d.faults) == 0 {
		d.say("must be an object, such as {kvEvents: {}}, not %s", noun(root))
	}
	says := decode[struct {
		Drain     bool                       `json:"drain,omitempty"`
		Engine    v1alpha1.EngineKind        `json:"engine,omitempty"`
		Metrics   *v1alpha1.EndpointMetrics  `json:"metrics,omitempty"`
		KVEvents  *v1alpha1.EndpointKVEvents `json:"kvEvents,omitempty"`
		Ranks     *int32                     `json:"ranks,omitempty"`
		FirstRank *int32                     `json:"firstRank,omitempty"`
	}](d)
	e := v1alpha1.EndpointEntry{Address: "127.0.0.1", Drain: says.Drain, Engine: says.Engine, Metrics: says.Metrics, KVEvents: says.KVEvents,
		Ranks: says.Ranks, FirstRank: says.FirstRank} // the address is the pod's
	list := &v1alpha1.Endpoints{Spec: v1alpha1.EndpointsSpec{Endpoints: []v1alpha1.EndpointEntry{e}}}
	list.Default()
	c := &checks{}
	c.ranks(nil, &list.Spec.Endpoints[0], nil)
	c.entry(nil, &list.Spec.Endpoints[0])
	d.add(c.errs...)
	if d.faults == nil {
		return &saying{list: list}
	}
	words := make([]string, len(d.faults))
	for i, f := range d.faults {
		words[i] = f.Text
	}
	return &saying{fault: strings.Join(words, "; ")}
}

// Ours reports whether an annotation is meant for this gateway, by its prefix, whether it is known or not.
func Ours(annotation string) bool {
	group, _, _ := strings.Cut(annotation, "/")
	return group == "sluice.dev" || strings.HasSuffix(group, ".sluice.dev")
}

// Annotation is what one of Ours at a pod that serves comes to: whether the pod gets nothing new, and what is wrong with it and would
// be right, empty where nothing is.
func Annotation(annotation, value string) (drains bool, fault string) {
	if annotation != AnnotationEndpoint {
		return false, fmt.Sprintf("is not read: write %s, with %s", AnnotationEndpoint, endpointFields)
	}
	if value == "" {
		return false, ""
	}
	s := readSaying(value)
	if s.fault != "" {
		return false, fmt.Sprintf("is not used: %s: it is an object with %s", s.fault, endpointFields)
	}
	return s.list.Spec.Endpoints[0].Drain, ""
}

// endpointFields are what AnnotationEndpoint may have.
const endpointFields = "drain, engine, metrics, kvEvents, ranks and firstRank"

// misheard tells of annotations that can't be used, once for all pods that have the same.
func (b *builder) misheard() {
	said := make(map[*saying]bool)
	for i := range b.pods.List {
		p := &b.pods.List[i]
		s := b.sayings[p.Says]
		if s == nil || s.fault == "" || said[s] {
			continue
		}
		said[s] = true
		b.warn(fmt.Sprintf("Pod %q", p.Name), field.NewPath("metadata", "annotations").Key(AnnotationEndpoint), "", "is not used, here and at every pod that has the same: %s", s.fault)
	}
}

// choosePods gives a pool the pods that its selector selects, after the entries that it has, and says how many of them
// drain.
func (b *builder) choosePods(i int, p *Pool, selector labels.Selector, has map[string]bool) (draining int) {
	if b.pods == nil {
		return 0
	}
	port, written := int(*b.gateway.Spec.Schedulers[i].TargetPort), &b.written.Spec.Schedulers[i]
	for j := range b.pods.List {
		pod := &b.pods.List[j]
		if !selector.Matches(labels.Set(pod.Labels)) {
			continue
		}
		e := Endpoint{Engine: string(written.EngineType)}
		if s := b.sayings[pod.Says]; s != nil && s.list != nil {
			e = b.endpoint(s.list, 0, written, port)
		}
		e.Address, e.Port, e.Labels, e.Drain = pod.Address, port, pod.Labels, e.Drain || pod.Ending
		e.Pod, e.UID, e.GPU = pod.Name, pod.UID, pod.GPU
		at := e.HostPort()
		if has[at] {
			continue
		}
		has[at] = true
		if e.Drain {
			draining++
		}
		p.Endpoints = append(p.Endpoints, e)
	}
	return draining
}

// selectsNone tells of a scheduler without an endpoint, unless it isn't known yet whether it has some.
func (b *builder) selectsNone(i int, p *Pool) {
	if b.pods != nil && b.pods.List == nil {
		return
	}
	b.warn(b.gatewayDoc.ref(), at(i).Child("modelSelector"), p.Selector, "selects no endpoint, so requests for %q are answered 503%s", p.Model, b.whyNone())
}

func (b *builder) whyNone() string {
	switch {
	case b.pods != nil:
		return fmt.Sprintf(": compare it with the labels of the pods in namespace %q, and look whether those are ready", b.pods.Namespace)
	case len(b.lists) == 0:
		return fmt.Sprintf(": there is no document of kind %s to select from", v1alpha1.EndpointsKind)
	}
	return fmt.Sprintf(": compare it with the labels in the %s documents", v1alpha1.EndpointsKind)
}
