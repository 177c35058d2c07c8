package config

import (
	"fmt"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/sluice-gateway/sluice/api/v1alpha1"
)

// Fields that the embedded front door can't honour and Envoy can.
const (
	pathTLS  = "spec.tls"
	pathAuth = "spec.auth"
)

// Why settings have no effect, said once.
const (
	whyPods     = "shapes pods, and there are none here"
	whyPriority = "orders nothing yet, because there are no queues: it stands in the log and in records of the requests of trusted clients (--trust-client-headers) that name the objective"
	whyReplicas = "counts pods, and this is one process: run as many of it as you want copies"
)

// notHonoured goes over the document as it was written: a default is nobody's wish.
func (b *builder) notHonoured() {
	spec, s := field.NewPath("spec"), &b.written.Spec
	b.bbrNotHonoured(spec.Child("bbr"), &s.BBR)
	if s.TLS != nil {
		value := "a certificate from cert-manager"
		if arn := s.TLS.ACMArn; arn != nil && *arn != "" {
			value = *arn
		}
		b.embedded(pathTLS, value, "certificates of ACM and cert-manager exist in a cluster only, and clients that were promised https would speak plain text: remove spec.tls and end TLS in front, or serve with --data-plane envoy and --tls-cert")
	}
	if s.Auth != nil {
		b.embedded(pathAuth, "", "tokens are not checked by the embedded front door, and everyone would be let in: serve with `sluice serve --data-plane envoy`, or remove spec.auth and check tokens in front")
	}
	if o := s.Observability; o != nil && o.Metrics != nil && o.Metrics.Enabled != nil {
		b.note(spec.Child("observability", "metrics", "enabled"), fmt.Sprint(*o.Metrics.Enabled), "adds or leaves out a collector beside pods, and there are none here; /metrics is always there")
	}
	if s.PodDefaults != nil {
		b.podDefaults(spec.Child("podDefaults"), s.PodDefaults)
	}
	for i := range s.Schedulers {
		b.schedulerNotHonoured(at(i), &s.Schedulers[i])
	}
	for i, p := range b.policies {
		if p.Spec.Topology != "" {
			b.config.NotHonoured = append(b.config.NotHonoured, Notice{Object: b.policyDocs[i].ref(), Path: "spec.topology", Value: string(p.Spec.Topology), Why: whyPods})
		}
	}
	for i, o := range b.objectives {
		if o.Spec.Priority != nil {
			b.config.NotHonoured = append(b.config.NotHonoured, Notice{Object: b.objectiveDocs[i].ref(), Path: "spec.priority", Value: fmt.Sprint(*o.Spec.Priority), Why: whyPriority})
		}
	}
	for _, d := range b.globalDocs {
		b.config.NotHonoured = append(b.config.NotHonoured, Notice{Object: d.ref(), Path: "spec", Why: "is for a gateway in front of several clusters, which this build does not have: the gateway here serves its own endpoints alone"})
	}
}

func (b *builder) note(path *field.Path, value, why string) {
	b.config.NotHonoured = append(b.config.NotHonoured, Notice{Object: b.gatewayDoc.ref(), Path: path.String(), Value: value, Why: why})
}

func (b *builder) fatal(path *field.Path, value, why string) {
	b.config.NotHonoured = append(b.config.NotHonoured, Notice{Object: b.gatewayDoc.ref(), Path: path.String(), Value: value, Why: why, Fatal: true})
}

// embedded is fatal where the gateway meets its clients itself.
func (b *builder) embedded(path, value, why string) {
	b.config.NotHonoured = append(b.config.NotHonoured, Notice{Object: b.gatewayDoc.ref(), Path: path, Value: value, Why: why, Fatal: true, Embedded: true})
}

func (b *builder) bbrNotHonoured(path *field.Path, bbr *v1alpha1.BBR) {
	if bbr.Replicas != nil {
		b.note(path.Child("replicas"), fmt.Sprint(*bbr.Replicas), whyReplicas)
	}
	if d := bbr.DefaultBackend; d != nil && !*bbr.Enabled {
		b.note(path.Child("defaultBackend"), d.Name, "has nothing to receive while bbr.enabled is false: everything goes to the one scheduler")
	}
}

func (b *builder) podDefaults(path *field.Path, p *v1alpha1.PodDefaults) {
	for _, f := range []struct {
		name string
		set  bool
	}{
		{"resources", p.Resources != nil},
		{"nodeSelector", len(p.NodeSelector) > 0},
		{"tolerations", len(p.Tolerations) > 0},
		{"affinity", p.Affinity != nil},
		{"labels", len(p.Labels) > 0},
		{"annotations", len(p.Annotations) > 0},
		{"env", len(p.Env) > 0},
		{"envFrom", len(p.EnvFrom) > 0},
	} {
		if f.set {
			b.note(path.Child(f.name), "", whyPods)
		}
	}
}

func (b *builder) schedulerNotHonoured(path *field.Path, s *v1alpha1.Scheduler) {
	if s.Scheduler == v1alpha1.PickerEPP {
		b.note(path.Child("scheduler"), string(s.Scheduler), "names a picker that Sluice's own stands in for; it takes the same weights")
	}
	if r := s.ConfigMapRef; r != nil {
		b.fatal(path.Child("configMapRef"), r.Name, "ConfigMaps exist in a cluster only, and this scheduler would route by other rules than it asks for: remove configMapRef, or put weights in its place")
	}
	if s.Replicas != nil {
		b.note(path.Child("replicas"), fmt.Sprint(*s.Replicas), whyReplicas)
	}
	if len(s.Env) > 0 {
		b.note(path.Child("env"), "", whyPods)
	}
	if len(s.EnvFrom) > 0 {
		b.note(path.Child("envFrom"), "", whyPods)
	}
	if s.LogLevel != nil {
		b.note(path.Child("logLevel"), fmt.Sprint(*s.LogLevel), "is for one picker's log, and one process has one log: set its level when starting it")
	}
}
