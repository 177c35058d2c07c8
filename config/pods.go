package config

import (
	"fmt"

	"k8s.io/apimachinery/pkg/labels"

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
	// Ending: it gets no new requests, those under way may finish.
	Ending bool
}

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

// Read is Parse for a gateway that has pods beside its documents.
func Read(docs []byte, name string) (*Documents, error) {
	b, err := parse(docs, name)
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
	b.build()
	return b.config
}

// choosePods gives a pool the pods that its selector selects, after the entries that it has, and says how many of them
// are ending.
func (b *builder) choosePods(i int, p *Pool, selector labels.Selector, has map[string]bool) (ending int) {
	if b.pods == nil {
		return 0
	}
	s, engine := &b.gateway.Spec.Schedulers[i], string(b.written.Spec.Schedulers[i].EngineType)
	for j := range b.pods.List {
		pod := &b.pods.List[j]
		if !selector.Matches(labels.Set(pod.Labels)) {
			continue
		}
		e := Endpoint{Address: pod.Address, Port: int(*s.TargetPort), Labels: pod.Labels, Drain: pod.Ending, Engine: engine,
			Pod: pod.Name, UID: pod.UID, GPU: pod.GPU}
		at := e.HostPort()
		if has[at] {
			continue
		}
		has[at] = true
		if pod.Ending {
			ending++
		}
		p.Endpoints = append(p.Endpoints, e)
	}
	return ending
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
