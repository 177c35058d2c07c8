package kube

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/sluice-gateway/sluice/api/v1alpha1"
	"github.com/sluice-gateway/sluice/api/v1alpha2"
	"github.com/sluice-gateway/sluice/translate"
)

// trial is what the controller would find in one namespace, were the objects of a file applied there.
type trial struct {
	*Cluster
	namespace string
	settings  translate.Settings
	guessed   bool     // they are defaults, since nobody can read the controller's
	known     []string // kinds, as translate.Context has them
	tried     []*Tried // those of the file that are in the namespace and were taken

	gateways   []v1alpha1.InferenceGatewayConfig
	policies   []v1alpha1.GatewayPolicy
	endpoints  []v1alpha1.Endpoints
	adapters   []corev1.ConfigMap
	rewrites   []v1alpha2.InferenceModelRewrite
	objectives []v1alpha2.InferenceObjective
	services   []translate.Service
	refused    map[string]bool      // gateways of the file that the API server does not take
	unlisted   map[string]bool      // kinds of which the cluster's could not be listed
	claims     map[objectKey]string // whose what is planned for gateways of the file is, in all namespaces
	notes      []string
}

// judge says of those objects of a file that the API server takes, or would without what it does not know, what the controller would
// refuse, by its own code.
func (c *Cluster) judge(ctx context.Context, list []Tried, settingsOf func(args []string) (translate.Settings, error)) (notes []string, err error) {
	namespaces, refused := make(map[string][]*Tried), make(map[string]map[string]bool)
	for i := range list {
		switch t := &list[i]; {
		case t.Namespace == "" || !readByUs(t):
			continue
		case len(t.Faults) > 0 && t.Kind == kindConfig:
			if refused[t.Namespace] == nil {
				refused[t.Namespace] = make(map[string]bool)
			}
			refused[t.Namespace][t.Name] = true
		}
		if t := &list[i]; t.legible {
			namespaces[t.Namespace] = append(namespaces[t.Namespace], t)
		}
	}
	if len(namespaces) == 0 {
		return nil, nil
	}
	settings, note := c.settings(ctx, settingsOf)
	if note != "" {
		notes = append(notes, note)
	}
	d := &definitions{ask: func(ctx context.Context, groupVersion string) (*metav1.APIResourceList, error) {
		list := new(metav1.APIResourceList)
		return list, c.read(ctx, list, nil, "/apis/"+groupVersion)
	}}
	if _, err := d.refresh(ctx); err != nil {
		return nil, err
	}
	claims := make(map[objectKey]string)
	for _, ns := range slices.Sorted(maps.Keys(namespaces)) {
		t := &trial{Cluster: c, namespace: ns, settings: settings, guessed: note != "", known: d.names(), tried: namespaces[ns], refused: refused[ns], unlisted: make(map[string]bool), claims: claims}
		if err := t.gather(ctx, d); err != nil {
			return nil, err
		}
		for i := range t.gateways {
			if err := t.gateway(ctx, &t.gateways[i]); err != nil {
				return nil, err
			}
		}
		t.strays()
		notes = append(notes, t.notes...)
	}
	return notes, nil
}

// readByUs reports whether the controller reads an object, by its kind and group.
func readByUs(t *Tried) bool {
	for _, k := range slices.Concat([]kind{configKind(), policyKind(), endpointsKind(), mapKind()}, rewriteKinds(), objectiveKinds()) {
		if k.Kind == t.Kind && k.GroupVersion().String() == t.object.APIVersion {
			return true
		}
	}
	return false
}

// settings are those of the controller that is installed, or the defaults, and why.
func (c *Cluster) settings(ctx context.Context, of func(args []string) (translate.Settings, error)) (translate.Settings, string) {
	ours, _, err := c.controllers(ctx)
	if err != nil {
		return translate.Settings{}, fmt.Sprintf("how the controller is installed can't be looked at, and its defaults are taken for it: %v", err)
	}
	for i := range ours {
		for _, container := range ours[i].Spec.Template.Spec.Containers {
			if slices.Contains(container.Args, "control") {
				if s, err := of(container.Args); err == nil {
					return s, ""
				}
			}
		}
	}
	return translate.Settings{}, "no controller is installed whose settings can be read, and its defaults are taken for it"
}

// gather lists what there is, and puts what the file has in its place.
func (t *trial) gather(ctx context.Context, d *definitions) error {
	var err error
	put := func(e error) { err = cmp.Or(err, e) }
	put(overlay(ctx, t, d, configKind(), nil, &t.gateways))
	put(overlay(ctx, t, d, policyKind(), nil, &t.policies))
	put(overlay(ctx, t, d, endpointsKind(), nil, &t.endpoints))
	put(overlay(ctx, t, d, mapKind(), labelled(adapterLabel, "true"), &t.adapters))
	for _, k := range rewriteKinds() {
		put(overlay(ctx, t, d, k, nil, &t.rewrites))
	}
	for _, k := range objectiveKinds() {
		put(overlay(ctx, t, d, k, nil, &t.objectives))
	}
	var services []corev1.Service
	if slices.ContainsFunc(t.gateways, func(g v1alpha1.InferenceGatewayConfig) bool { return g.Spec.BBR.DefaultBackend != nil }) {
		put(overlay(ctx, t, d, serviceKind(), nil, &services))
	}
	for i := range services {
		t.services = append(t.services, serviceOf(&services[i]))
	}
	for i := range t.endpoints {
		canonical(&t.endpoints[i])
	}
	t.adapters = slices.DeleteFunc(t.adapters, func(m corev1.ConfigMap) bool { return m.Labels[adapterLabel] != "true" })
	return err
}

// overlay appends a namespace's objects of a kind to a list: the file's, and the cluster's that the file does not have. What is
// new is the youngest.
func overlay[T any, P interface {
	*T
	metav1.Object
}](ctx context.Context, t *trial, d *definitions, k kind, selector url.Values, list *[]T) error {
	var there struct {
		Items []T `json:"items"`
	}
	if d.knows(k) {
		if err := t.read(ctx, &there, selector, pathTo(basePath(k.GroupVersion().String()), t.namespace, k.resource)...); err != nil && !apierrors.IsNotFound(err) {
			t.unlisted[k.Kind] = true
			t.notes = append(t.notes, fmt.Sprintf("what there is of %s in namespace %q beside the file can't be looked at: %v", k.plural(), t.namespace, err))
		}
	}
	at := make(map[string]P)
	for i := range there.Items {
		p := P(&there.Items[i])
		at[p.GetName()] = p
	}
	now := metav1.Now()
	for _, one := range t.tried {
		if one.Kind != k.Kind || one.object.APIVersion != k.GroupVersion().String() {
			continue
		}
		p := P(new(T))
		raw, err := json.Marshal(one.object.Tree)
		if err == nil {
			err = json.Unmarshal(raw, p)
		}
		if err != nil {
			return fmt.Errorf("cannot read %s: %w", one.Place, err)
		}
		p.SetNamespace(t.namespace)
		p.SetCreationTimestamp(now)
		if old := at[one.Name]; old != nil {
			p.SetCreationTimestamp(old.GetCreationTimestamp())
			p.SetUID(old.GetUID())
		}
		at[one.Name] = p
	}
	for _, name := range slices.Sorted(maps.Keys(at)) {
		*list = append(*list, *at[name])
	}
	return nil
}

// said are those objects of the file that have a kind and a name: one, or several where the file has it more than once.
func (t *trial) said(kind schema.GroupVersionKind, name string) []*Tried {
	var list []*Tried
	for _, one := range t.tried {
		if one.Kind == kind.Kind && one.object.APIVersion == kind.GroupVersion().String() && one.Name == name {
			list = append(list, one)
		}
	}
	return list
}

// against notes a fault of an object, if it is one of the file's.
func (t *trial) against(kind schema.GroupVersionKind, name, text string) {
	for _, one := range t.said(kind, name) {
		if !slices.Contains(one.Faults, text) {
			one.Faults = append(one.Faults, text)
		}
	}
}

// note notes of an object what is as well to know, if it is one of the file's.
func (t *trial) note(kind schema.GroupVersionKind, name, format string, args ...any) {
	for _, one := range t.said(kind, name) {
		one.Notes = append(one.Notes, fmt.Sprintf(format, args...))
	}
}

// facts are what a gateway's plan depends on.
func (t *trial) facts(g *v1alpha1.InferenceGatewayConfig) *translate.Context {
	serves := func(pool string) bool {
		return slices.ContainsFunc(g.Spec.Schedulers, func(s v1alpha1.Scheduler) bool { return s.Name == pool })
	}
	c := &translate.Context{Settings: t.settings, Definitions: t.known, Policies: t.policies, Endpoints: slices.Clone(t.endpoints), Services: t.services,
		PodsUnread: "nobody has looked"}
	if g.Spec.BBR.DefaultBackend != nil && t.unlisted[kindService] {
		c.Services = asAsked(g)
	}
	for _, m := range t.adapters {
		if slices.ContainsFunc(g.Spec.Schedulers, func(s v1alpha1.Scheduler) bool { return s.ModelName == m.Data["baseModel"] }) {
			c.Adapters = append(c.Adapters, m)
		}
	}
	for _, r := range t.rewrites {
		if r.Spec.PoolRef != nil && serves(r.Spec.PoolRef.Name) {
			c.Rewrites = append(c.Rewrites, r)
		}
	}
	for _, o := range t.objectives {
		if o.Spec.PoolRef != nil && serves(o.Spec.PoolRef.Name) {
			c.Objectives = append(c.Objectives, o)
		}
	}
	return c
}

// gateway plans one, and says what is refused of the file.
func (t *trial) gateway(ctx context.Context, g *v1alpha1.InferenceGatewayConfig) error {
	c := t.facts(g)
	list, err := leaveOut(g, c)
	if err != nil {
		return err
	}
	for _, l := range list {
		t.against(l.kind, l.name, l.why)
	}
	c.LeftOut = nil
	plan, err := t.plan(ctx, g, c)
	if err != nil {
		return err
	}
	for _, p := range plan.Policies {
		for _, cond := range p.Status.Conditions {
			if cond.Type == v1alpha1.ConditionAccepted && cond.Status != metav1.ConditionTrue {
				t.against(policyKind().GroupVersionKind, p.Name, cond.Message)
			}
		}
	}
	if t.guessed {
		if plan, err = t.surely(g, c, plan); err != nil {
			return err
		}
	}
	t.tell(g, plan)
	for _, f := range finalizersOfOthers(g) {
		t.note(configKind().GroupVersionKind, g.Name, "metadata.finalizers: %q keeps it when it is deleted, until whoever put it there takes that out: where nobody does any more, take it out of the file", f)
	}
	return nil
}

// surely is what a controller would plan whose settings stand against nothing: it signs certificates, and in the namespace that it
// has for itself no name is taken, but by another gateway of the file. What the default settings refuse beside that is noted.
func (t *trial) surely(g *v1alpha1.InferenceGatewayConfig, c *translate.Context, plan *translate.Plan) (*translate.Plan, error) {
	with := *c
	with.Settings.Issuer = cmp.Or(with.Settings.Issuer, "any")
	with.Owned = slices.DeleteFunc(slices.Clone(c.Owned), func(o translate.Owned) bool {
		return o.Namespace != g.Namespace && (o.Owner == "" || t.claims[objectKey{o.Kind, o.Namespace, o.Name}] != o.Owner)
	})
	sure, err := translate.Build(g, &with)
	if err != nil {
		return nil, err
	}
	byDefault, anyway := meta.FindStatusCondition(plan.Status.Conditions, v1alpha1.ConditionAccepted), meta.FindStatusCondition(sure.Status.Conditions, v1alpha1.ConditionAccepted)
	if byDefault.Status == metav1.ConditionFalse && byDefault.Message != anyway.Message {
		t.note(configKind().GroupVersionKind, g.Name, "a controller with the default settings would refuse it: %s", byDefault.Message)
	}
	return sure, nil
}

// tell says what the controller would say of a gateway: of the file's own on it, of another one on the policies for it, where it
// is they that it would no longer be accepted with.
func (t *trial) tell(g *v1alpha1.InferenceGatewayConfig, plan *translate.Plan) {
	for _, cond := range plan.Status.Conditions {
		if cond.Status != metav1.ConditionFalse {
			continue
		}
		switch cond.Type {
		case v1alpha1.ConditionAccepted:
			t.against(configKind().GroupVersionKind, g.Name, "the controller would refuse it: "+cond.Message)
			now := slices.ContainsFunc(g.Status.Conditions, func(c metav1.Condition) bool {
				return c.Type == v1alpha1.ConditionAccepted && c.Status == metav1.ConditionTrue
			})
			for i := range t.policies {
				if p := &t.policies[i]; now && p.Spec.TargetRef.Name == g.Name {
					t.against(policyKind().GroupVersionKind, p.Name, fmt.Sprintf("the controller would refuse InferenceGatewayConfig %q with it: %s", g.Name, cond.Message))
				}
			}
		case v1alpha1.ConditionGatewayProgrammed:
			if cond.Reason == "DefinitionsMissing" { // what else keeps it from that comes to pass once it is applied
				t.note(configKind().GroupVersionKind, g.Name, "would take no request yet: %s", cond.Message)
			}
		case v1alpha1.ConditionHonoured:
			t.note(configKind().GroupVersionKind, g.Name, "would not be honoured: %s", cond.Message)
		}
	}
}

// plan is the controller's, with what stands under its names in the cluster.
func (t *trial) plan(ctx context.Context, g *v1alpha1.InferenceGatewayConfig, c *translate.Context) (*translate.Plan, error) {
	for {
		plan, err := translate.Build(g, c)
		if err != nil || len(t.said(configKind().GroupVersionKind, g.Name)) == 0 {
			return plan, err
		}
		found, hidden := make([]*translate.Owned, len(plan.Objects)), make([]error, len(plan.Objects))
		if err := each(len(plan.Objects), func(i int) (err error) {
			found[i], err = t.stranger(ctx, plan.Objects[i])
			if apierrors.IsForbidden(err) {
				hidden[i], err = err, nil
			}
			return err
		}); err != nil {
			return nil, err
		}
		before := len(c.Owned)
		for _, o := range found {
			if o != nil {
				c.Owned = append(c.Owned, *o)
			}
		}
		if len(c.Owned) == before { // nothing is planned over what is known
			t.unseen(g, plan, hidden)
			for _, u := range plan.Objects {
				t.claims[keyOf(u)] = u.GetAnnotations()[translate.AnnotationOwner]
			}
			return plan, nil
		}
	}
}

// unseen notes of a gateway under which of its names nobody may look, since what stands there may be another's.
func (t *trial) unseen(g *v1alpha1.InferenceGatewayConfig, plan *translate.Plan, hidden []error) {
	var kinds []string
	var first error
	for i, err := range hidden {
		if err != nil {
			kinds, first = append(kinds, plan.Objects[i].GetKind()), cmp.Or(first, err)
		}
	}
	if first == nil {
		return
	}
	slices.Sort(kinds)
	t.note(configKind().GroupVersionKind, g.Name, "whether another's objects have its names already can't be looked at, of the kinds %s: %v", strings.Join(slices.Compact(kinds), ", "), first)
}

// stranger is what stands under the name of a planned object and is another's, or would with the file's gateways before this one, nil
// for nothing. That nobody may look there is the API server's own error.
func (t *trial) stranger(ctx context.Context, u *unstructured.Unstructured) (*translate.Owned, error) {
	if owner := t.claims[keyOf(u)]; owner != "" && owner != u.GetAnnotations()[translate.AnnotationOwner] {
		return &translate.Owned{Kind: u.GetKind(), Namespace: u.GetNamespace(), Name: u.GetName(), Owner: owner}, nil
	}
	k, ok := madeKind(u.GroupVersionKind())
	if !ok {
		return nil, nil
	}
	m := new(metav1.PartialObjectMetadata)
	switch err := t.read(ctx, m, nil, pathTo(basePath(k.GroupVersion().String()), u.GetNamespace(), k.resource, u.GetName())...); {
	case apierrors.IsNotFound(err):
		return nil, nil
	case apierrors.IsForbidden(err):
		return nil, err
	case err != nil:
		return nil, fmt.Errorf("cannot find out whether there is %s: %w", keyOf(u), err)
	}
	key, ours := ownerOf(m)
	switch {
	case !ours:
		return &translate.Owned{Kind: u.GetKind(), Namespace: u.GetNamespace(), Name: u.GetName()}, nil
	case key.String() != u.GetAnnotations()[translate.AnnotationOwner]:
		return &translate.Owned{Kind: u.GetKind(), Namespace: u.GetNamespace(), Name: u.GetName(), Owner: key.String()}, nil
	}
	return nil, nil
}

// strays says of objects of the file that they are for nothing that there is, and of two of one name that one undoes the other.
func (t *trial) strays() {
	seen := make(map[string]string)
	for _, one := range t.tried {
		key := one.object.APIVersion + " " + one.Kind + " " + one.Name
		if first, twice := seen[key]; twice {
			one.Faults = append(one.Faults, fmt.Sprintf("metadata.name: %s has the same name, and would be undone by this one", first))
		}
		seen[key] = one.Place
	}
	for i := range t.policies {
		p, name := &t.policies[i], t.policies[i].Spec.TargetRef.Name
		if t.has(name) {
			continue
		}
		text := fmt.Sprintf("spec.targetRef.name: there is no InferenceGatewayConfig %q in the file or in namespace %q", name, t.namespace)
		if !t.unlisted[kindConfig] {
			t.against(policyKind().GroupVersionKind, p.Name, text)
			continue
		}
		t.note(policyKind().GroupVersionKind, p.Name, "spec.targetRef.name: there is no InferenceGatewayConfig %q in the file, and whether one is in namespace %q can't be looked at", name, t.namespace)
	}
	for i := range t.rewrites {
		t.forNobody(t.rewrites[i].GroupVersionKind(), t.rewrites[i].Name, "spec.poolRef.name", poolName(t.rewrites[i].Spec.PoolRef), func(s *v1alpha1.Scheduler) string { return s.Name })
	}
	for i := range t.objectives {
		t.forNobody(t.objectives[i].GroupVersionKind(), t.objectives[i].Name, "spec.poolRef.name", poolName(t.objectives[i].Spec.PoolRef), func(s *v1alpha1.Scheduler) string { return s.Name })
	}
	for i := range t.adapters {
		t.forNobody(mapKind().GroupVersionKind, t.adapters[i].Name, "data.baseModel", t.adapters[i].Data["baseModel"], func(s *v1alpha1.Scheduler) string { return s.ModelName })
	}
}

func poolName(p *v1alpha2.PoolReference) string {
	if p == nil {
		return ""
	}
	return p.Name
}

// has reports whether there is a gateway, or would be, were its document right.
func (t *trial) has(name string) bool {
	return t.refused[name] || slices.ContainsFunc(t.gateways, func(g v1alpha1.InferenceGatewayConfig) bool { return g.Name == name })
}

// forNobody notes of an object of the file that no scheduler is called as it says. Others may read it. Where a gateway of the file is
// refused nobody knows what its schedulers will be called.
func (t *trial) forNobody(kind schema.GroupVersionKind, name, path, value string, called func(*v1alpha1.Scheduler) string) {
	if len(t.refused) > 0 {
		return
	}
	for i := range t.gateways {
		for j := range t.gateways[i].Spec.Schedulers {
			if called(&t.gateways[i].Spec.Schedulers[j]) == value {
				return
			}
		}
	}
	t.note(kind, name, "%s: %q is no scheduler's in the file or, as far as can be seen, in namespace %q: no gateway reads it", path, value, t.namespace)
}
