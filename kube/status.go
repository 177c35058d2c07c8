package kube

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sluice-gateway/sluice/api/v1alpha1"
	"github.com/sluice-gateway/sluice/translate"
)

// pause is how long words in a status stay before others that say the same follow: a thousand pods that come one by one
// are no thousand writes. What changes whether a condition holds, or why, is written at once.
const pause = 5 * time.Second

// merged are conditions with the times at which they last changed whether they hold.
func merged(before, now []metav1.Condition, at metav1.Time) []metav1.Condition {
	out := slices.Clone(now)
	for i := range out {
		c := &out[i]
		c.LastTransitionTime = at
		if j := slices.IndexFunc(before, func(b metav1.Condition) bool { return b.Type == c.Type }); j >= 0 && before[j].Status == c.Status {
			c.LastTransitionTime = before[j].LastTransitionTime
		}
	}
	return out
}

// mergedStatus is a configuration's status as it is written.
func mergedStatus(before, now *v1alpha1.InferenceGatewayConfigStatus, at metav1.Time) *v1alpha1.InferenceGatewayConfigStatus {
	out := now.DeepCopy()
	out.Conditions = merged(before.Conditions, now.Conditions, at)
	for i := range out.Schedulers {
		s := &out.Schedulers[i]
		var was []metav1.Condition
		if j := slices.IndexFunc(before.Schedulers, func(b v1alpha1.SchedulerStatus) bool { return b.Name == s.Name }); j >= 0 {
			was = before.Schedulers[j].Conditions
		}
		s.Conditions = merged(was, s.Conditions, at)
	}
	return out
}

// verdicts are what two statuses that mean the same have in common: everything but the words.
func verdicts(s *v1alpha1.InferenceGatewayConfigStatus) *v1alpha1.InferenceGatewayConfigStatus {
	out := s.DeepCopy()
	mute := func(list []metav1.Condition) {
		for i := range list {
			list[i].Message = ""
		}
	}
	mute(out.Conditions)
	for i := range out.Schedulers {
		mute(out.Schedulers[i].Conditions)
	}
	return out
}

// tell writes what a plan says of its configuration and its policies, where that is not there already. It returns how long
// words have to wait that are written later.
func (t *turn) tell(ctx context.Context, config *v1alpha1.InferenceGatewayConfig, plan *translate.Plan, policies []v1alpha1.GatewayPolicy) (later time.Duration, err error) {
	at := metav1.NewTime(t.options.Now()).Rfc3339Copy()
	for _, p := range plan.Policies {
		i := slices.IndexFunc(policies, func(o v1alpha1.GatewayPolicy) bool { return o.Name == p.Name })
		if i < 0 {
			continue
		}
		if err := t.tellPolicy(ctx, &policies[i], &p.Status, at); err != nil {
			return 0, err
		}
	}
	next := mergedStatus(&config.Status, &plan.Status, at)
	if equality.Semantic.DeepEqual(&config.Status, next) {
		return 0, nil
	}
	// What a feed knows may be behind what was written a moment ago: so the API server is asked before something is written.
	live := new(v1alpha1.InferenceGatewayConfig)
	switch err := t.client.Get(ctx, client.ObjectKeyFromObject(config), live); {
	case apierrors.IsNotFound(err):
		return 0, nil
	case err != nil:
		return 0, fmt.Errorf("cannot read the status of %s/%s: %w", config.Namespace, config.Name, err)
	case live.UID != config.UID || live.Generation != config.Generation:
		return 0, nil // there is another change to be looked at
	}
	next = mergedStatus(&live.Status, &plan.Status, at)
	if equality.Semantic.DeepEqual(&live.Status, next) {
		return 0, nil
	}
	if wait := t.spoken(config, equality.Semantic.DeepEqual(verdicts(&live.Status), verdicts(next))); wait > 0 {
		return wait, nil
	}
	if err := t.writeStatus(ctx, live, configKind(), next); err != nil {
		return 0, err
	}
	t.teller.changes(live, live.Status.Conditions, next)
	return 0, nil
}

// spoken reports how long a status has to wait, which says the same in other words than the last one that was written.
func (t *turn) spoken(config *v1alpha1.InferenceGatewayConfig, words bool) time.Duration {
	key, now := client.ObjectKeyFromObject(config), t.options.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	if wait := t.said[key].Add(pause).Sub(now); words && wait > 0 {
		return wait
	}
	t.said[key] = now
	return 0
}

// tellPolicy writes a policy's status.
func (t *turn) tellPolicy(ctx context.Context, p *v1alpha1.GatewayPolicy, status *v1alpha1.GatewayPolicyStatus, at metav1.Time) error {
	next := status.DeepCopy()
	next.Conditions = merged(p.Status.Conditions, status.Conditions, at)
	if equality.Semantic.DeepEqual(&p.Status, next) {
		return nil
	}
	live := new(v1alpha1.GatewayPolicy)
	switch err := t.client.Get(ctx, client.ObjectKeyFromObject(p), live); {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("cannot read the status of GatewayPolicy %s/%s: %w", p.Namespace, p.Name, err)
	}
	next.Conditions = merged(live.Status.Conditions, status.Conditions, at)
	if live.UID != p.UID || live.Generation != p.Generation || equality.Semantic.DeepEqual(&live.Status, next) {
		return nil
	}
	return t.writeStatus(ctx, live, policyKind(), next)
}

// tellUntargeted tells the policies for a configuration that there is none.
func (t *turn) tellUntargeted(ctx context.Context, key types.NamespacedName) error {
	if !t.definitions.knows(policyKind()) {
		return nil
	}
	var list v1alpha1.GatewayPolicyList
	var unread *unreadError
	if err := t.feeds.list(ctx, t.policies(), &list, client.InNamespace(key.Namespace)); errors.As(err, &unread) {
		return nil
	} else if err != nil {
		return err
	}
	at := metav1.NewTime(t.options.Now()).Rfc3339Copy()
	for i := range list.Items {
		p := &list.Items[i]
		if p.Spec.TargetRef.Name != key.Name {
			continue
		}
		c := metav1.Condition{Type: v1alpha1.ConditionAccepted, Status: metav1.ConditionFalse, Reason: "TargetNotFound", ObservedGeneration: p.Generation,
			Message: fmt.Sprintf("spec.targetRef.name: there is no InferenceGatewayConfig %q in namespace %q: it takes effect when there is one", key.Name, key.Namespace)}
		if err := t.tellPolicy(ctx, p, &v1alpha1.GatewayPolicyStatus{ObservedGeneration: p.Generation, Conditions: []metav1.Condition{c}}, at); err != nil {
			return err
		}
	}
	return nil
}

// writeStatus applies a status, and leaves alone what others have written there.
func (t *turn) writeStatus(ctx context.Context, o client.Object, k kind, status any) error {
	tree, err := runtime.DefaultUnstructuredConverter.ToUnstructured(status)
	if err != nil {
		return fmt.Errorf("cannot write down a status: %w", err)
	}
	u := &unstructured.Unstructured{Object: map[string]any{"status": tree}}
	u.SetGroupVersionKind(k.GroupVersionKind)
	u.SetNamespace(o.GetNamespace())
	u.SetName(o.GetName())
	u.SetUID(o.GetUID())
	err = t.client.Status().Apply(ctx, client.ApplyConfigurationFromUnstructured(u), client.FieldOwner(fieldManager), client.ForceOwnership)
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("cannot write the status of %s %s/%s: %w", k.Kind, o.GetNamespace(), o.GetName(), err)
	}
	t.metrics.writes.WithLabelValues(writeStatus).Inc()
	return nil
}

// sooner is the earlier of two times to look again, of which 0 is never.
func sooner(a, b time.Duration) time.Duration {
	if a <= 0 || b <= 0 {
		return cmp.Or(max(a, 0), max(b, 0))
	}
	return min(a, b)
}
