package translate

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/sluice-gateway/sluice/api/v1alpha1"
)

// Plan is what a configuration means: the objects that there have to be, whole, and what to say of it. Whatever has the
// labels of the configuration and is not in Objects has to go.
type Plan struct {
	// Objects are in the order in which they are best applied, without status.
	Objects []*unstructured.Unstructured
	// Certificates are the keys that have to be made, and where they go.
	Certificates []Certificate
	// Status is the configuration's. Conditions have no transition time: whoever writes them knows when one changes.
	Status v1alpha1.InferenceGatewayConfigStatus
	// Policies are the conditions of the GatewayPolicies that are for it, by name.
	Policies []PolicyStatus
}

// Certificate is a key with its certificate, and the places for them. All certificates of a configuration are signed by
// one authority, made for it and known to nothing else.
type Certificate struct {
	// Namespace and Secret are where tls.crt, tls.key and the authority's ca.crt go. Empty ConfigMap: nowhere else; otherwise
	// the authority is in this one, too, of the same namespace, for those who may not read Secrets.
	Namespace string `json:"namespace"`
	Secret    string `json:"secret"`
	ConfigMap string `json:"configMap,omitempty"`
	// Names are the DNS names it is made out to; without any it is a client's alone.
	Names []string `json:"names,omitempty"`
}

// PolicyStatus is what to say of a GatewayPolicy.
type PolicyStatus struct {
	Name   string                       `json:"name"`
	Status v1alpha1.GatewayPolicyStatus `json:"status"`
}

// builder makes one plan.
type builder struct {
	config   *v1alpha1.InferenceGatewayConfig // with defaults
	ctx      *Context
	s        Settings
	topology v1alpha1.Topology
	policies []v1alpha1.GatewayPolicy // those in force
	listed   []listed
	backend  *v1alpha1.DefaultBackend // what gets requests for models of no scheduler, nil for nobody
	plan     *Plan
	planned  map[string]bool
	fault    error

	// missing are kinds that would be needed and the API server does not know.
	missing []string
	// notAccepted and notHonoured are why a condition is False, whole sentences; perScheduler those of one.
	notAccepted, notHonoured []string
	perScheduler             map[string][]string
	// models are what ready endpoints list, by scheduler, of those of which somebody wanted to know.
	models map[string][]string
}

// Build makes the plan for a configuration. It fails only where an object can't be written down, which no document makes
// happen.
func Build(config *v1alpha1.InferenceGatewayConfig, ctx *Context) (*Plan, error) {
	c := config.DeepCopy()
	c.Default()
	b := &builder{config: c, ctx: ctx, s: ctx.Settings.withDefaults(), plan: &Plan{}, planned: make(map[string]bool), perScheduler: make(map[string][]string), models: make(map[string][]string)}
	b.takePolicies()
	b.check()
	b.takeEndpoints()
	switch {
	case b.topology != v1alpha1.TopologyEmbedded && b.others("Gateway", b.s.SystemNamespace, b.config.Name):
		b.notAccepted = append(b.notAccepted, b.taken("Gateway", b.s.SystemNamespace, b.config.Name)) // what is for a Gateway would be for someone else's
	case b.topology != v1alpha1.TopologyEmbedded:
		b.behindEnvoy()
	case len(b.notAccepted) == 0: // no open door where a locked one was asked for
		b.embedded()
	}
	b.status()
	return b.plan, b.fault
}

// behindEnvoy plans the two topologies that have an Envoy.
func (b *builder) behindEnvoy() {
	b.security() // before there is anything that it is for
	b.pickers()
	b.pools()
	b.gateway()
	b.routes()
	b.asking()
	b.traffic()
}

// takePolicies finds out which policies are for this configuration and in force: the oldest of those for the same thing.
func (b *builder) takePolicies() {
	b.topology = v1alpha1.TopologyFused
	list := slices.Clone(b.ctx.Policies)
	slices.SortFunc(list, func(x, y v1alpha1.GatewayPolicy) int {
		return cmp.Or(x.CreationTimestamp.Compare(y.CreationTimestamp.Time), cmp.Compare(x.Name, y.Name))
	})
	first := make(map[string]string)
	for i := range list {
		p := &list[i]
		p.Default()
		t := p.Spec.TargetRef
		if t.Name != b.config.Name {
			continue
		}
		reason, message := "Accepted", "in force"
		older, taken := first[t.SectionName]
		switch {
		case t.SectionName != "" && b.scheduler(t.SectionName) == nil:
			reason, message = "TargetNotFound", fmt.Sprintf("spec.targetRef.sectionName: %q is the name of no scheduler", t.SectionName)
		case taken:
			reason, message = "Conflicted", fmt.Sprintf("GatewayPolicy %q is older and for the same: keep one of them", older)
		default:
			first[t.SectionName] = p.Name
			b.policies = append(b.policies, *p)
			if p.Spec.Topology != "" {
				b.topology = p.Spec.Topology
			}
		}
		c := b.condition(v1alpha1.ConditionAccepted, reason == "Accepted", reason, message)
		c.ObservedGeneration = p.Generation
		b.plan.Policies = append(b.plan.Policies, PolicyStatus{Name: p.Name, Status: v1alpha1.GatewayPolicyStatus{
			ObservedGeneration: p.Generation, Conditions: []metav1.Condition{c}}})
	}
	slices.SortFunc(b.plan.Policies, func(x, y PolicyStatus) int { return cmp.Compare(x.Name, y.Name) })
}

func (b *builder) scheduler(name string) *v1alpha1.Scheduler {
	for i := range b.config.Spec.Schedulers {
		if s := &b.config.Spec.Schedulers[i]; s.Name == name {
			return s
		}
	}
	return nil
}

// selects reports whether a request's model chooses the scheduler.
func (b *builder) selects() bool {
	return b.config.Spec.BBR.Enabled != nil && *b.config.Spec.BBR.Enabled
}

// served are the schedulers that are planned.
func (b *builder) served() []*v1alpha1.Scheduler {
	var list []*v1alpha1.Scheduler
	for i := range b.config.Spec.Schedulers {
		if s := &b.config.Spec.Schedulers[i]; len(b.perScheduler[s.Name]) == 0 {
			list = append(list, s)
		}
	}
	return list
}

// idle reports whether no scheduler is planned, so that nobody serves.
func (b *builder) idle() bool { return len(b.served()) == 0 }

// catches reports whether there is a route for whatever no scheduler's own has: requests must not end at an Envoy that has no route.
func (b *builder) catches() bool { return b.selects() || b.idle() }

// owner is the configuration's full name.
func (b *builder) owner() string { return b.config.Namespace + "/" + b.config.Name }

// Metadata is that of an object which is made for a configuration: who made it, for which one, and, in its namespace, with
// which it goes.
func Metadata(config *v1alpha1.InferenceGatewayConfig, namespace, name string) metav1.ObjectMeta {
	m := metav1.ObjectMeta{
		Namespace: namespace, Name: name,
		Labels: map[string]string{
			LabelManagedBy: ManagedBy, LabelConfig: label(config.Name), LabelConfigNamespace: config.Namespace,
		},
		Annotations: map[string]string{AnnotationOwner: config.Namespace + "/" + config.Name},
	}
	if namespace == config.Namespace && config.UID != "" {
		yes := true
		m.OwnerReferences = []metav1.OwnerReference{{APIVersion: v1alpha1.InferenceGroup + "/" + v1alpha1.Version, Kind: v1alpha1.InferenceGatewayConfigKind,
			Name: config.Name, UID: config.UID, Controller: &yes, BlockOwnerDeletion: &yes}}
	}
	return m
}

// meta is the metadata of an object of the configuration, for a scheduler or for all.
func (b *builder) meta(namespace, name, scheduler string) metav1.ObjectMeta {
	m := Metadata(b.config, namespace, name)
	if scheduler != "" {
		m.Labels[LabelScheduler] = scheduler
	}
	return m
}

// foreignGroups are the groups of kinds that no gateway does without and not every cluster has, and who brings them.
func foreignGroups() map[string]string {
	return map[string]string{gatewayGroup: "Gateway API 1.4 or later", poolGroup: "the Gateway API Inference Extension 1.0 or later", envoyGatewayGroup: "Envoy Gateway 1.9 or later"}
}

// add plans an object, unless the API server does not know its kind, or its name is taken: by someone else, or by another
// object of the same plan.
func (b *builder) add(apiVersion, kind string, o any) {
	group, _, _ := strings.Cut(apiVersion, "/")
	if from := foreignGroups()[group]; from != "" && !b.ctx.knows(kind+"."+apiVersion) {
		if text := fmt.Sprintf("%s of %s, which comes with %s", kind, apiVersion, from); !slices.Contains(b.missing, text) {
			b.missing = append(b.missing, text)
		}
		return
	}
	tree, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	if err != nil {
		b.fault = cmp.Or(b.fault, fmt.Errorf("cannot write down %s: %w", kind, err))
		return
	}
	delete(tree, "status")
	prune(tree)
	u := &unstructured.Unstructured{Object: tree}
	u.SetAPIVersion(apiVersion)
	u.SetKind(kind)
	key := kind + " " + u.GetNamespace() + "/" + u.GetName()
	if b.planned[key] {
		b.notAccepted = append(b.notAccepted, fmt.Sprintf("%s would be needed twice: give the scheduler another name", key))
		return
	}
	b.planned[key] = true
	if b.others(kind, u.GetNamespace(), u.GetName()) {
		b.notAccepted = append(b.notAccepted, b.taken(kind, u.GetNamespace(), u.GetName()))
		return
	}
	b.plan.Objects = append(b.plan.Objects, u)
}

// others reports whether an object is there and is not this configuration's. Nothing may be planned over it, nor for it.
func (b *builder) others(kind, namespace, name string) bool {
	return slices.ContainsFunc(b.ctx.Owned, func(o Owned) bool {
		return o.Kind == kind && o.Namespace == namespace && o.Name == name && o.Owner != b.owner()
	})
}

// taken says that a name is.
func (b *builder) taken(kind, namespace, name string) string {
	owner, way := "someone else", "delete it, or choose another name"
	for _, o := range b.ctx.Owned {
		if o.Kind == kind && o.Namespace == namespace && o.Name == name && o.Owner != "" {
			owner, way = o.Owner, "choose another name"
		}
	}
	return fmt.Sprintf("%s %s/%s is there and belongs to %s: it is left alone; %s", kind, namespace, name, owner, way)
}

// prune takes out what only says that nothing is said. An applied object owns every field it has.
func prune(tree map[string]any) {
	maps.DeleteFunc(tree, func(key string, v any) bool {
		if list, ok := v.([]any); ok {
			for _, entry := range list {
				if below, ok := entry.(map[string]any); ok {
					prune(below)
				}
			}
		}
		below, ok := v.(map[string]any)
		if ok {
			prune(below)
		}
		return v == nil || (key == "resources" || key == "strategy") && ok && len(below) == 0
	})
}
