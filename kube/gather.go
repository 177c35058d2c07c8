package kube

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
	"sigs.k8s.io/yaml"

	"github.com/sluice-gateway/sluice/api/v1alpha1"
	"github.com/sluice-gateway/sluice/api/v1alpha2"
	"github.com/sluice-gateway/sluice/config"
	"github.com/sluice-gateway/sluice/translate"
)

// gather reads everything that a plan depends on. Either all of it is known, or what isn't is named in the context for the
// want of a right, or it fails: a plan that lacks what could not be read would take it away.
func (t *turn) gather(ctx context.Context, gateway *v1alpha1.InferenceGatewayConfig) (*translate.Context, error) {
	c := &translate.Context{Settings: t.options.Settings, Definitions: t.definitions.names()}
	t.mu.Lock()
	c.ClassFault = t.classFault
	t.mu.Unlock()
	for _, read := range []func(context.Context, *v1alpha1.InferenceGatewayConfig, *translate.Context) error{
		t.readPolicies, t.readEndpoints, t.readAdapters, t.readRewrites, t.readObjectives, t.readServices, t.readPods, t.readRollouts, t.readGateway, t.readCertificate,
	} {
		var unread *unreadError
		switch err := read(ctx, gateway, c); {
		case errors.As(err, &unread):
			c.Unread = append(c.Unread, unread.why)
		case err != nil:
			return nil, err
		}
	}
	_, err := leaveOut(gateway, c)
	return c, err
}

func (t *turn) readPolicies(ctx context.Context, gateway *v1alpha1.InferenceGatewayConfig, c *translate.Context) error {
	if !t.definitions.knows(policyKind()) {
		return nil
	}
	var list v1alpha1.GatewayPolicyList
	err := t.feeds.list(ctx, t.policies(), &list, client.InNamespace(gateway.Namespace))
	for i := range list.Items {
		c.Policies = append(c.Policies, *list.Items[i].DeepCopy())
	}
	return err
}

func (t *turn) readEndpoints(ctx context.Context, gateway *v1alpha1.InferenceGatewayConfig, c *translate.Context) error {
	if !t.definitions.knows(endpointsKind()) {
		return nil
	}
	var list v1alpha1.EndpointsList
	err := t.feeds.list(ctx, t.documents(endpointsKind()), &list, client.InNamespace(gateway.Namespace))
	for i := range list.Items {
		l := list.Items[i].DeepCopy()
		canonical(l)
		c.Endpoints = append(c.Endpoints, *l)
	}
	for name, f := range t.asker.facts(client.ObjectKeyFromObject(gateway)) {
		if f.uid == "" {
			c.Addresses = append(c.Addresses, translate.Pod{Name: name, Ready: f.ready, Tried: triedOf(f)})
		}
	}
	slices.SortFunc(c.Addresses, func(x, y translate.Pod) int { return strings.Compare(x.Name, y.Name) })
	return err
}

// canonical writes addresses as pickers tell of them.
func canonical(l *v1alpha1.Endpoints) {
	for i := range l.Spec.Endpoints {
		e := &l.Spec.Endpoints[i]
		e.Address = config.CanonicalAddress(e.Address)
	}
}

func (t *turn) readAdapters(ctx context.Context, gateway *v1alpha1.InferenceGatewayConfig, c *translate.Context) error {
	var list corev1.ConfigMapList
	err := t.feeds.list(ctx, t.adapters(), &list, client.InNamespace(gateway.Namespace))
	for i := range list.Items {
		if base := list.Items[i].Data["baseModel"]; slices.ContainsFunc(gateway.Spec.Schedulers, func(s v1alpha1.Scheduler) bool { return s.ModelName == base }) {
			c.Adapters = append(c.Adapters, *list.Items[i].DeepCopy())
		}
	}
	return err
}

func (t *turn) readRewrites(ctx context.Context, gateway *v1alpha1.InferenceGatewayConfig, c *translate.Context) (err error) {
	c.Rewrites, err = readForeign(ctx, t, gateway, c, rewriteKinds(), func(r *v1alpha2.InferenceModelRewrite) *v1alpha2.PoolReference { return r.Spec.PoolRef })
	return err
}

func (t *turn) readObjectives(ctx context.Context, gateway *v1alpha1.InferenceGatewayConfig, c *translate.Context) (err error) {
	c.Objectives, err = readForeign(ctx, t, gateway, c, objectiveKinds(), func(o *v1alpha2.InferenceObjective) *v1alpha2.PoolReference { return o.Spec.PoolRef })
	return err
}

// readForeign reads the documents of someone else's kind, in all its groups, that are for schedulers of a configuration.
func readForeign[T any](ctx context.Context, t *turn, gateway *v1alpha1.InferenceGatewayConfig, c *translate.Context, kinds []kind, poolOf func(*T) *v1alpha2.PoolReference) (found []T, err error) {
	for _, k := range kinds {
		if !t.definitions.knows(k) {
			continue
		}
		var list unstructured.UnstructuredList
		list.SetGroupVersionKind(listOf(k.GroupVersionKind))
		if err := t.feeds.list(ctx, t.documents(k), &list, client.InNamespace(gateway.Namespace)); err != nil {
			return found, err
		}
		for i := range list.Items {
			var one T
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(list.Items[i].Object, &one); err != nil {
				c.LeftOut = append(c.LeftOut, fmt.Sprintf("%s %q: %v", k.Kind, list.Items[i].GetName(), err))
				continue
			}
			if p := poolOf(&one); p != nil && slices.ContainsFunc(gateway.Spec.Schedulers, func(s v1alpha1.Scheduler) bool { return s.Name == p.Name }) {
				found = append(found, one)
			}
		}
	}
	return found, nil
}

func (t *turn) readServices(ctx context.Context, gateway *v1alpha1.InferenceGatewayConfig, c *translate.Context) error {
	if gateway.Spec.BBR.DefaultBackend == nil {
		return nil
	}
	var list corev1.ServiceList
	err := t.feeds.list(ctx, t.servicesOf(gateway.Namespace), &list)
	for i := range list.Items {
		c.Services = append(c.Services, serviceOf(&list.Items[i]))
	}
	var unread *unreadError
	if errors.As(err, &unread) {
		c.Services = asAsked(gateway) // nobody knows that it isn't there
	}
	return err
}

// serviceOf is what a plan depends on of a Service.
func serviceOf(s *corev1.Service) translate.Service {
	one := translate.Service{Name: s.Name}
	for _, p := range s.Spec.Ports {
		if p.Protocol == "" || p.Protocol == corev1.ProtocolTCP {
			one.Ports = append(one.Ports, p.Port)
		}
	}
	return one
}

// asAsked is the Service that a configuration's default backend wants.
func asAsked(gateway *v1alpha1.InferenceGatewayConfig) []translate.Service {
	g := gateway.DeepCopy()
	g.Default()
	d := g.Spec.BBR.DefaultBackend
	return []translate.Service{{Name: d.Name, Ports: []int32{*d.Port}}}
}

func (t *turn) readPods(ctx context.Context, gateway *v1alpha1.InferenceGatewayConfig, c *translate.Context) error {
	var list corev1.PodList
	err := t.feeds.list(ctx, t.podsOf(gateway.Namespace), &list)
	var unread *unreadError
	if errors.As(err, &unread) {
		c.PodsUnread = unread.why
		return nil
	}
	facts := t.asker.facts(client.ObjectKeyFromObject(gateway))
	heard := make(map[saying]*said)
	pods := slices.DeleteFunc(list.Items, func(pod corev1.Pod) bool {
		return isEnded(&pod) || pod.Labels[translate.LabelManagedBy] == translate.ManagedBy
	})
	for i := range pods {
		pod := &pods[i]
		p := translate.Pod{Name: pod.Name, Labels: pod.Labels, Ready: podReady(pod), Terminating: pod.DeletionTimestamp != nil, Drain: hear(heard, pod)}
		if f, ok := facts[pod.Name]; ok && f.uid == pod.UID {
			p.Tried = triedOf(f)
		}
		c.Pods = append(c.Pods, p)
	}
	c.Misheard = misheard(gateway, heard)
	return err
}

// saying is an annotation of ours, and said what it comes to and which pods have it: many have the same.
type (
	saying struct{ key, value string }
	said   struct {
		drains bool
		fault  string
		pods   []*corev1.Pod
	}
)

// hear takes in a pod's annotations, each that is new read once, and reports whether it drains by them.
func hear(heard map[saying]*said, pod *corev1.Pod) (drains bool) {
	for key, value := range pod.Annotations {
		if !config.Ours(key) {
			continue
		}
		s := heard[saying{key, value}]
		if s == nil {
			s = new(said)
			s.drains, s.fault = config.Annotation(key, value)
			heard[saying{key, value}] = s
		}
		s.pods = append(s.pods, pod)
		drains = drains || s.drains
	}
	return drains
}

// Bounds of what is said of annotations: that many different ones, with so many letters of a value and of what is wrong with it.
const (
	misheardMost  = 5
	misheardValue = 100
	misheardFault = 400
)

// misheard says which annotations of ours can't be used, of those pods that schedulers select: once for all that have the same.
func misheard(gateway *v1alpha1.InferenceGatewayConfig, heard map[saying]*said) []string {
	var list []string
	for a, s := range heard {
		if s.fault == "" {
			continue
		}
		names := selected(gateway, s.pods)
		if len(names) == 0 {
			continue
		}
		who := fmt.Sprintf("pod %q", slices.Min(names))
		if more := len(names) - 1; more > 0 {
			who += fmt.Sprintf(" and %d more", more)
		}
		list = append(list, fmt.Sprintf("%s: the annotation %s: %s %s", who, a.key, shortened(a.value, misheardValue), shortened(s.fault, misheardFault)))
	}
	slices.Sort(list)
	if more := len(list) - misheardMost; more > 0 {
		list = append(list[:misheardMost], fmt.Sprintf("%d more annotations of pods can't be used", more))
	}
	return list
}

// selected are the names of those pods that some scheduler selects.
func selected(gateway *v1alpha1.InferenceGatewayConfig, pods []*corev1.Pod) (names []string) {
	var selectors []labels.Selector
	for i := range gateway.Spec.Schedulers {
		if selector, err := metav1.LabelSelectorAsSelector(gateway.Spec.Schedulers[i].ModelSelector); err == nil {
			selectors = append(selectors, selector)
		}
	}
	for _, pod := range pods {
		if slices.ContainsFunc(selectors, func(s labels.Selector) bool { return s.Matches(labels.Set(pod.Labels)) }) {
			names = append(names, pod.Name)
		}
	}
	return names
}

// shortened is a text on one line, with so many of its letters at most.
func shortened(text string, most int) string {
	text = strings.Join(strings.Fields(text), " ")
	if letters := []rune(text); len(letters) > most {
		return string(letters[:most]) + " ..."
	}
	return text
}

// triedOf is what pickers' looks at a pod or address came to, by scheduler.
func triedOf(f podFacts) []translate.Try {
	var list []translate.Try
	for _, pool := range slices.Sorted(maps.Keys(f.tried)) {
		one := f.tried[pool]
		list = append(list, translate.Try{Scheduler: pool, Port: one.port, Metrics: one.metrics, Missing: one.missing, Models: one.models, Why: one.why, Lasts: one.lasts})
	}
	return list
}

func (t *turn) readRollouts(ctx context.Context, gateway *v1alpha1.InferenceGatewayConfig, c *translate.Context) error {
	var list appsv1.DeploymentList
	k, _ := madeKind(appsv1.SchemeGroupVersion.WithKind(kindDeployment))
	err := t.feeds.list(ctx, t.made(k), &list, client.MatchingFields{indexOwner: client.ObjectKeyFromObject(gateway).String()})
	for i := range list.Items {
		c.Rollouts = append(c.Rollouts, rolloutOf(&list.Items[i]))
	}
	return err
}

// rolloutOf is how far a Deployment has come. That it has come to its end once, its condition says until the next one begins.
func rolloutOf(d *appsv1.Deployment) translate.Rollout {
	r := translate.Rollout{Namespace: d.Namespace, Name: d.Name, Observed: d.Status.ObservedGeneration >= d.Generation, Wanted: 1,
		Updated: d.Status.UpdatedReplicas, Available: d.Status.AvailableReplicas}
	if d.Spec.Replicas != nil {
		r.Wanted = *d.Spec.Replicas
	}
	for _, c := range d.Status.Conditions {
		switch {
		case c.Type == appsv1.DeploymentProgressing && c.Reason == "NewReplicaSetAvailable":
			r.Complete = true
		case c.Type == appsv1.DeploymentProgressing && c.Status == corev1.ConditionFalse, c.Type == appsv1.DeploymentReplicaFailure && c.Status == corev1.ConditionTrue:
			r.Stuck = strings.TrimSuffix(c.Reason+": "+c.Message, ": ")
		}
	}
	return r
}

// readGateway reads what the data plane says of the Gateway, and of the routes that lead to it.
func (t *turn) readGateway(ctx context.Context, gateway *v1alpha1.InferenceGatewayConfig, c *translate.Context) error {
	gateways, routes := gatewayKind(), routeKind()
	if !t.definitions.knows(gateways) || !t.definitions.knows(routes) {
		return nil
	}
	key := types.NamespacedName{Namespace: t.options.Settings.SystemNamespace, Name: gateway.Name}
	o, err := t.feeds.get(ctx, t.made(gateways), key)
	g, ok := o.(*gatewayv1.Gateway)
	if err != nil || !ok {
		return err
	}
	var list gatewayv1.HTTPRouteList
	if err := t.feeds.list(ctx, t.made(routes), &list, client.MatchingFields{indexOwner: client.ObjectKeyFromObject(gateway).String()}); err != nil {
		return err
	}
	c.Gateway = gatewayState(g, list.Items)
	return nil
}

// readCertificate reads since when there is a certificate for clients.
func (t *turn) readCertificate(ctx context.Context, gateway *v1alpha1.InferenceGatewayConfig, c *translate.Context) error {
	k := certificateKind()
	if gateway.Spec.TLS == nil || !t.definitions.knows(k) {
		return nil
	}
	list := new(unstructured.UnstructuredList)
	list.SetGroupVersionKind(listOf(k.GroupVersionKind))
	if err := t.feeds.list(ctx, t.made(k), list, client.MatchingFields{indexOwner: client.ObjectKeyFromObject(gateway).String()}); err != nil {
		return err
	}
	for i := range list.Items {
		text, _, _ := unstructured.NestedString(list.Items[i].Object, "status", "notBefore")
		if at := new(metav1.Time); at.UnmarshalQueryParameter(text) == nil && !at.IsZero() {
			c.Issued = at
		}
	}
	return nil
}

func gatewayKind() kind { return of(groupGateway, "v1", kindGateway, "gateways") }
func routeKind() kind   { return of(groupGateway, "v1", kindRoute, "httproutes") }

// gatewayState is what a Gateway and its routes say together: it runs a configuration once it runs each part of it.
func gatewayState(g *gatewayv1.Gateway, routes []gatewayv1.HTTPRoute) *translate.GatewayState {
	against := conditionsAgainst(g.Status.Conditions, g.Generation, string(gatewayv1.GatewayConditionAccepted), string(gatewayv1.GatewayConditionProgrammed))
	if !slices.ContainsFunc(g.Status.Conditions, func(c metav1.Condition) bool { return c.Status != metav1.ConditionUnknown }) { // its definition has some by default
		against = []string{"nobody has taken it: see that Envoy Gateway runs and that its GatewayClass is there"}
	}
	for i := range g.Status.Listeners {
		l := &g.Status.Listeners[i]
		for _, text := range conditionsAgainst(l.Conditions, g.Generation, string(gatewayv1.ListenerConditionResolvedRefs), string(gatewayv1.ListenerConditionProgrammed)) {
			against = append(against, fmt.Sprintf("listener %q: %s", l.Name, text))
		}
	}
	slices.SortFunc(routes, func(a, b gatewayv1.HTTPRoute) int { return strings.Compare(a.Name, b.Name) })
	for i := range routes {
		r := &routes[i]
		for _, text := range routeAgainst(g, r) {
			against = append(against, fmt.Sprintf("HTTPRoute %q: %s", r.Name, text))
		}
	}
	return &translate.GatewayState{Programmed: len(against) == 0, Message: strings.Join(against, "; ")}
}

// routeAgainst is what keeps a route from bringing requests to a Gateway.
func routeAgainst(g *gatewayv1.Gateway, r *gatewayv1.HTTPRoute) []string {
	for _, p := range r.Status.Parents {
		if ns := p.ParentRef.Namespace; string(p.ParentRef.Name) == g.Name && ns != nil && string(*ns) == g.Namespace {
			return conditionsAgainst(p.Conditions, r.Generation, string(gatewayv1.RouteConditionAccepted), string(gatewayv1.RouteConditionResolvedRefs))
		}
	}
	return []string{"the data plane has not looked at it yet"}
}

// conditionsAgainst are those of some types that are not True, or speak of what was before.
func conditionsAgainst(list []metav1.Condition, generation int64, kinds ...string) []string {
	var out []string
	for _, c := range list {
		switch {
		case !slices.Contains(kinds, c.Type):
		case c.ObservedGeneration < generation:
			out = append(out, c.Type+": the data plane has not looked at the latest change yet")
		case c.Status != metav1.ConditionTrue:
			out = append(out, fmt.Sprintf("%s: %s: %s", c.Type, c.Reason, c.Message))
		}
	}
	return out
}

// leaveOut takes out those documents beside a configuration that package config would refuse, and says so: one bad rule must
// not keep a gateway from everything else. Of two that can't be together the younger one goes. Feeds have no order, so that what
// is said is put into one: a status in another order would be written anew at each look, and each write brings a look.
func leaveOut(gateway *v1alpha1.InferenceGatewayConfig, c *translate.Context) (out []leftOut, err error) {
	slices.SortFunc(c.Endpoints, func(x, y v1alpha1.Endpoints) int {
		return cmp.Or(x.CreationTimestamp.Compare(y.CreationTimestamp.Time), cmp.Compare(x.Name, y.Name))
	})
	bad := make(map[any]bool)
	for {
		docs := beside(c, bad)
		list, err := objections(gateway, docs)
		if err != nil {
			return nil, err
		}
		more := false
		for _, f := range list {
			if at := f.Document - 2; at >= 0 {
				out = append(out, leftOut{kindOf(docs[at]), f.Name, f.Text})
				c.LeftOut = append(c.LeftOut, fmt.Sprintf("%s %q is left out: %s", f.Kind, f.Name, f.Text))
				bad[docs[at]], more = true, true
			}
		}
		if !more {
			break
		}
	}
	without(&c.Endpoints, bad)
	without(&c.Adapters, bad)
	without(&c.Rewrites, bad)
	without(&c.Objectives, bad)
	slices.Sort(c.LeftOut)
	return out, nil
}

// leftOut is a document that is left out, and why.
type leftOut struct {
	kind schema.GroupVersionKind
	name string
	why  string
}

// kindOf is the kind of a document beside a configuration: some are of either of two groups.
func kindOf(doc any) schema.GroupVersionKind {
	switch doc := doc.(type) {
	case *v1alpha1.Endpoints:
		return endpointsKind().GroupVersionKind
	case *v1alpha2.InferenceModelRewrite:
		return doc.GroupVersionKind()
	case *v1alpha2.InferenceObjective:
		return doc.GroupVersionKind()
	}
	return mapKind().GroupVersionKind
}

// beside are pointers to the documents beside a configuration, but for those that are bad.
func beside(c *translate.Context, bad map[any]bool) (docs []any) {
	add := func(p any) {
		if !bad[p] {
			docs = append(docs, p)
		}
	}
	for i := range c.Endpoints {
		add(&c.Endpoints[i])
	}
	for i := range c.Adapters {
		add(&c.Adapters[i])
	}
	for i := range c.Rewrites {
		add(&c.Rewrites[i])
	}
	for i := range c.Objectives {
		add(&c.Objectives[i])
	}
	return docs
}

// without takes those out of a list that are bad.
func without[T any](list *[]T, bad map[any]bool) {
	var kept []T
	for i := range *list {
		if p := &(*list)[i]; !bad[p] {
			kept = append(kept, *p)
		}
	}
	*list = kept
}

// objections is what package config has against documents beside a configuration, which is the first one.
func objections(gateway *v1alpha1.InferenceGatewayConfig, beside []any) ([]config.Fault, error) {
	if len(beside) == 0 {
		return nil, nil
	}
	own := &v1alpha1.InferenceGatewayConfig{ObjectMeta: metav1.ObjectMeta{Name: gateway.Name}, Spec: gateway.Spec}
	own.APIVersion, own.Kind = v1alpha1.InferenceGroup+"/"+v1alpha1.Version, kindConfig
	docs := []any{own}
	for _, d := range beside {
		switch d := d.(type) {
		case *v1alpha1.Endpoints:
			docs = append(docs, &v1alpha1.Endpoints{TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.GatewayGroup + "/" + v1alpha1.Version, Kind: kindEndpoints},
				ObjectMeta: metav1.ObjectMeta{Name: d.Name}, Spec: d.Spec})
		case *corev1.ConfigMap:
			docs = append(docs, &corev1.ConfigMap{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: kindConfigMap},
				ObjectMeta: metav1.ObjectMeta{Name: d.Name, Labels: d.Labels}, Data: d.Data})
		case *v1alpha2.InferenceModelRewrite:
			docs = append(docs, &v1alpha2.InferenceModelRewrite{TypeMeta: d.TypeMeta,
				ObjectMeta: metav1.ObjectMeta{Name: d.Name, CreationTimestamp: d.CreationTimestamp}, Spec: d.Spec})
		case *v1alpha2.InferenceObjective:
			docs = append(docs, &v1alpha2.InferenceObjective{TypeMeta: d.TypeMeta, ObjectMeta: metav1.ObjectMeta{Name: d.Name}, Spec: d.Spec})
		}
	}
	var text []byte
	for _, d := range docs {
		tree, err := runtime.DefaultUnstructuredConverter.ToUnstructured(d)
		if err != nil {
			return nil, fmt.Errorf("cannot write down a document: %w", err)
		}
		delete(tree, "status")
		if created, _, _ := unstructured.NestedFieldNoCopy(tree, "metadata", "creationTimestamp"); created == nil {
			unstructured.RemoveNestedField(tree, "metadata", "creationTimestamp")
		}
		one, err := yaml.Marshal(tree)
		if err != nil {
			return nil, fmt.Errorf("cannot write down a document: %w", err)
		}
		text = append(append(text, "---\n"...), one...)
	}
	var faults *config.Faults
	if _, err := config.Parse(text, "namespace "+gateway.Namespace); errors.As(err, &faults) {
		return faults.List, nil
	}
	return nil, nil
}
