package kube

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	poolv1 "sigs.k8s.io/gateway-api-inference-extension/api/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

const (
	// maxParents is how many an InferencePool's status may have, maxMessage how long a condition's message may be.
	maxParents = 32
	maxMessage = 32768
)

// attachment is what the routes of one Gateway make of a pool.
type attachment struct {
	controller string // the class's
	accepted   bool   // at least one route was
	refused    string // why one was not
	pending    bool   // one has not been looked at
}

// attachments are the Gateways of our classes whose routes send to a pool.
func attachments(pool types.NamespacedName, w *world, ours map[string]bool) map[types.NamespacedName]*attachment {
	all := make(map[types.NamespacedName]*attachment)
	for _, route := range w.routes {
		if !poolsOf(route)[pool] || !granted(route.Namespace, pool, w.grants) {
			continue
		}
		for j := range route.Spec.ParentRefs {
			ref := &route.Spec.ParentRefs[j]
			name, ok := gatewayOf(ref, route.Namespace)
			if !ok {
				continue
			}
			controller := controllerOf(name, w)
			if !ours[controller] {
				continue
			}
			a := all[name]
			if a == nil {
				a = &attachment{controller: controller}
				all[name] = a
			}
			a.add(route, ref)
		}
	}
	return all
}

// gatewayOf is the Gateway that a route's parent is, if it is one.
func gatewayOf(ref *gatewayv1.ParentReference, namespace string) (types.NamespacedName, bool) {
	if ref.Group != nil && *ref.Group != gatewayv1.GroupName || ref.Kind != nil && *ref.Kind != "Gateway" {
		return types.NamespacedName{}, false
	}
	if ref.Namespace != nil {
		namespace = string(*ref.Namespace)
	}
	return types.NamespacedName{Namespace: namespace, Name: string(ref.Name)}, true
}

// controllerOf is who carries out a Gateway, empty if it or its class is not there.
func controllerOf(gateway types.NamespacedName, w *world) string {
	g := w.gateways[gateway]
	if g == nil {
		return ""
	}
	class := w.classes[string(g.Spec.GatewayClassName)]
	if class == nil {
		return ""
	}
	return string(class.Spec.ControllerName)
}

// add takes in what the Gateway's controller says of a route that is attached by ref.
func (a *attachment) add(route *gatewayv1.HTTPRoute, ref *gatewayv1.ParentReference) {
	for i := range route.Status.Parents {
		p := &route.Status.Parents[i]
		if string(p.ControllerName) != a.controller || !equality.Semantic.DeepEqual(full(&p.ParentRef, route.Namespace), full(ref, route.Namespace)) {
			continue
		}
		c := meta.FindStatusCondition(p.Conditions, string(gatewayv1.RouteConditionAccepted))
		switch {
		case c == nil || c.ObservedGeneration < route.Generation:
			a.pending = true
		case c.Status == metav1.ConditionTrue:
			a.accepted = true
		default:
			a.refused = fmt.Sprintf("HTTPRoute %s/%s is not accepted: %s", route.Namespace, route.Name, c.Message)
		}
		return
	}
	a.pending = true
}

// full is a parent with its defaults.
func full(ref *gatewayv1.ParentReference, namespace string) gatewayv1.ParentReference {
	out := *ref
	group, kind, ns := gatewayv1.Group(gatewayv1.GroupName), gatewayv1.Kind("Gateway"), gatewayv1.Namespace(namespace)
	if out.Group == nil {
		out.Group = &group
	}
	if out.Kind == nil {
		out.Kind = &kind
	}
	if out.Namespace == nil {
		out.Namespace = &ns
	}
	return out
}

// conditions are what there is to say of a pool to a Gateway.
func (a *attachment) conditions(pool *poolv1.InferencePool, w *world) []metav1.Condition {
	accepted := metav1.Condition{Type: string(poolv1.InferencePoolConditionAccepted), ObservedGeneration: pool.Generation,
		Status: metav1.ConditionTrue, Reason: string(poolv1.InferencePoolReasonAccepted), Message: "routes of the Gateway send to it"}
	switch {
	case a.accepted:
	case a.refused != "":
		accepted.Status, accepted.Reason, accepted.Message = metav1.ConditionFalse, string(poolv1.InferencePoolReasonHTTPRouteNotAccepted), a.refused
	case a.pending:
		accepted.Status, accepted.Reason, accepted.Message = metav1.ConditionUnknown, "Pending", "the Gateway's controller has not looked at the route yet"
	}
	resolved := metav1.Condition{Type: string(poolv1.InferencePoolConditionResolvedRefs), ObservedGeneration: pool.Generation,
		Status: metav1.ConditionTrue, Reason: string(poolv1.InferencePoolReasonResolvedRefs), Message: "its picker is there"}
	asked, err := pickersOf(pool, w)
	switch {
	case err != nil:
		resolved.Status, resolved.Reason, resolved.Message = metav1.ConditionFalse, string(poolv1.InferencePoolReasonInvalidExtensionRef), err.Error()
	case asked == nil:
		resolved.Message = "it names no picker: its endpoints are taken by how busy they are"
	case len(asked.addresses) == 0:
		resolved.Message = "its picker is there, and none of its pods is ready"
	}
	if _, err := selectorOf(pool); err != nil {
		resolved.Status, resolved.Reason, resolved.Message = metav1.ConditionFalse, "InvalidSelector", err.Error()
	}
	accepted.Message, resolved.Message = cutMessage(accepted.Message), cutMessage(resolved.Message)
	return []metav1.Condition{accepted, resolved}
}

// cutMessage keeps one within what an API server takes.
func cutMessage(message string) string {
	return strings.ToValidUTF8(message[:min(len(message), maxMessage)], "")
}

// parents are a pool's status: what others have written stays where it is, and so does what is ours as long as it holds, so that
// two controllers don't write for ever. Times change with what they are the times of.
func parents(pool *poolv1.InferencePool, w *world, ours map[string]bool) []poolv1.ParentStatus {
	all := attachments(nameOf(pool), w, ours)
	var list []poolv1.ParentStatus
	for _, p := range pool.Status.Parents {
		name := types.NamespacedName{Namespace: cmp.Or(string(p.ParentRef.Namespace), pool.Namespace), Name: string(p.ParentRef.Name)}
		writer := string(p.ControllerName)
		if writer == "" && p.ParentRef.Kind == "Gateway" {
			writer = controllerOf(name, w) // older definitions don't have the field
		}
		if !ours[writer] {
			list = append(list, p)
			continue
		}
		a := all[name]
		if a == nil {
			continue
		}
		delete(all, name)
		p.Conditions = slices.Clone(p.Conditions)
		for _, c := range a.conditions(pool, w) {
			meta.SetStatusCondition(&p.Conditions, c)
		}
		list = append(list, p)
	}
	group := poolv1.Group(gatewayv1.GroupName)
	for _, name := range slices.SortedFunc(maps.Keys(all), byName) {
		p := poolv1.ParentStatus{ControllerName: poolv1.ControllerName(all[name].controller), ParentRef: poolv1.ParentReference{
			Group: &group, Kind: "Gateway", Namespace: poolv1.Namespace(name.Namespace), Name: poolv1.ObjectName(name.Name)}}
		for _, c := range all[name].conditions(pool, w) {
			meta.SetStatusCondition(&p.Conditions, c)
		}
		list = append(list, p)
	}
	return list[:min(len(list), maxParents)]
}

// byName orders full names.
func byName(a, b types.NamespacedName) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

// writeStatuses has every pool say what holds of it. What is equal is not written.
func writeStatuses(ctx context.Context, c client.StatusClient, w *world, ours map[string]bool) error {
	var faults []error
	for _, had := range w.pools {
		want := parents(had, w, ours)
		if equality.Semantic.DeepEqual(want, had.Status.Parents) {
			continue
		}
		pool := had.DeepCopy()
		pool.Status.Parents = want
		if err := c.Status().Patch(ctx, pool, client.MergeFromWithOptions(had, client.MergeFromWithOptimisticLock{})); err != nil && !apierrors.IsNotFound(err) {
			faults = append(faults, fmt.Errorf("cannot write the status of InferencePool %s: %w", nameOf(pool), err))
		}
	}
	return errors.Join(faults...)
}
