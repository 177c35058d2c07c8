package kube

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sluice-gateway/sluice/api/v1alpha1"
	"github.com/sluice-gateway/sluice/translate"
)

// Finalizer keeps a configuration until what was made for it elsewhere is gone: in other namespaces nothing is collected with
// its owner.
const finalizer = "gateway.sluice.dev/cleanup"

// Times after which a configuration is looked at again by itself.
const (
	retryUnread  = 250 * time.Millisecond
	retryRefused = 30 * time.Second
)

// reconcile brings one configuration's objects and status to what they should be. Nothing is written before everything has
// been read. It returns when to look again without a change, 0 for never.
func (t *turn) reconcile(ctx context.Context, key types.NamespacedName) (wait time.Duration, err error) {
	begun := t.options.Now()
	gone := false
	defer func() {
		took := t.options.Now().Sub(begun)
		t.metrics.seconds.Observe(took.Seconds())
		t.mu.Lock()
		t.took[key] = took
		t.mu.Unlock()
		if gone {
			t.drop(key)
		}
	}()
	config, err := t.find(ctx, key)
	switch {
	case err != nil:
	case config == nil:
		if err = t.clear(ctx, key); err == nil {
			gone, err = true, t.tellUntargeted(ctx, key)
		}
	case config.DeletionTimestamp != nil:
		err = t.end(ctx, config)
	default:
		wait, err = t.fulfil(ctx, config)
	}
	switch {
	case errors.Is(err, errNotYet):
		return retryUnread, nil
	case err != nil:
		return 0, err
	}
	return wait, nil
}

// find is a configuration, nil if there is none. That there is none the API server has to say, since everything that was
// made for it goes.
func (t *turn) find(ctx context.Context, key types.NamespacedName) (*v1alpha1.InferenceGatewayConfig, error) {
	o, err := t.feeds.get(ctx, t.configs(), key)
	if config, ok := o.(*v1alpha1.InferenceGatewayConfig); ok || err != nil {
		return config, err
	}
	config := new(v1alpha1.InferenceGatewayConfig)
	switch err := t.client.Get(ctx, key, config); {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("cannot find out whether it is gone: %w", err)
	}
	return nil, fmt.Errorf("cannot go by what is known: it is there and no feed knows it: %w", errNotYet)
}

// fulfil makes what a configuration asks for, and returns when it has to be looked at again without a change; 0 is never.
func (t *turn) fulfil(ctx context.Context, config *v1alpha1.InferenceGatewayConfig) (time.Duration, error) {
	facts, err := t.gather(ctx, config)
	if err != nil {
		return 0, err
	}
	plan, s, err := t.settle(ctx, config, facts)
	if err != nil {
		return 0, err
	}
	if err := t.finalize(ctx, config, true); err != nil {
		return 0, err
	}
	beside, refused, due, err := t.hold(ctx, config, plan, calm(facts))
	if err != nil {
		return 0, err
	}
	more, err := t.besides(ctx, beside)
	if err != nil {
		return 0, err
	}
	refused = append(refused, more.refused...)
	o, err := t.carryOut(ctx, plan.Objects, s, takingOver(plan, facts))
	if err != nil {
		return 0, err
	}
	refused = append(refused, o.refused...)
	if !o.held && !more.held {
		if _, err := t.tidy(ctx, client.ObjectKeyFromObject(config), plan); err != nil {
			return 0, err
		}
		if err := t.forgetKeys(ctx, config, plan); err != nil {
			return 0, err
		}
	}
	wait := due.Sub(t.options.Now())
	t.count(client.ObjectKeyFromObject(config), len(refused))
	if len(refused) > 0 {
		facts.Refused = refused
		wait = sooner(wait, retryRefused)
		if plan, err = translate.Build(config, facts); err != nil {
			return 0, fmt.Errorf("cannot plan: %w", err)
		}
	}
	later, err := t.tell(ctx, config, plan, facts.Policies)
	return sooner(wait, later), err
}

// settle makes the plan that takes nothing from anyone: what stands under its names and is another's has it made anew.
func (t *turn) settle(ctx context.Context, config *v1alpha1.InferenceGatewayConfig, facts *translate.Context) (*translate.Plan, *standing, error) {
	for {
		plan, err := translate.Build(config, facts)
		if err != nil {
			return nil, nil, fmt.Errorf("cannot plan: %w", err)
		}
		s, owned, err := t.stand(ctx, plan.Objects)
		if err != nil {
			return nil, nil, err
		}
		if len(owned) == 0 {
			return plan, s, nil
		}
		facts.Owned = append(facts.Owned, owned...) // each is new, since nothing is planned over one that is known
	}
}

// calm reports whether nothing hints at a Secret that is gone: every pod that should be there is.
func calm(facts *translate.Context) bool {
	return !slices.ContainsFunc(facts.Rollouts, func(r translate.Rollout) bool { return r.Available < r.Wanted })
}

// besides applies what goes with certificates.
func (t *turn) besides(ctx context.Context, list []*unstructured.Unstructured) (*outcome, error) {
	own, owned, err := t.stand(ctx, list)
	if err != nil {
		return nil, err
	}
	strange := make(map[objectKey]bool)
	out := new(outcome)
	for _, o := range owned {
		key := objectKey{o.Kind, o.Namespace, o.Name}
		strange[key] = true
		out.refused = append(out.refused, translate.Refusal{Object: key.String(), Message: "is there and belongs to someone else: it is left alone; delete it, or choose another name"})
	}
	list = slices.DeleteFunc(slices.Clone(list), func(u *unstructured.Unstructured) bool { return strange[keyOf(u)] })
	o, err := t.carryOut(ctx, list, own, false)
	if err != nil {
		return nil, err
	}
	out.refused = append(out.refused, o.refused...)
	out.held = o.held
	return out, nil
}

// takingOver reports whether there are pickers that a plan has no longer, and those in their place don't run yet. Then the
// old ones go on, with everything that leads to them, until the new ones can take over.
func takingOver(plan *translate.Plan, facts *translate.Context) bool {
	planned := make(map[objectKey]bool)
	waiting := false
	for _, u := range plan.Objects {
		if u.GetKind() != kindDeployment {
			continue
		}
		planned[keyOf(u)] = true
		i := slices.IndexFunc(facts.Rollouts, func(r translate.Rollout) bool { return r.Namespace == u.GetNamespace() && r.Name == u.GetName() })
		waiting = waiting || i < 0 || facts.Rollouts[i].Available == 0
	}
	leaving := slices.ContainsFunc(facts.Rollouts, func(r translate.Rollout) bool {
		return r.Available > 0 && !planned[objectKey{kindDeployment, r.Namespace, r.Name}]
	})
	return waiting && leaving
}

// drop forgets a configuration that is gone.
func (t *turn) drop(key types.NamespacedName) {
	t.count(key, 0)
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.took, key)
	delete(t.said, key)
}

// count keeps how many objects are refused.
func (t *turn) count(key types.NamespacedName, refused int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if refused == 0 {
		delete(t.refusals, key)
	} else {
		t.refusals[key] = refused
	}
	all := 0
	for _, n := range t.refusals {
		all += n
	}
	t.metrics.refused.Set(float64(all))
}

// end removes everything of a configuration that is about to go, says so where others keep it, and lets it go.
func (t *turn) end(ctx context.Context, config *v1alpha1.InferenceGatewayConfig) error {
	if !slices.Contains(config.Finalizers, finalizer) {
		return nil // whoever else holds it has its own reasons
	}
	if err := t.clear(ctx, client.ObjectKeyFromObject(config)); err != nil {
		return err
	}
	if keptBy := finalizersOfOthers(config); len(keptBy) > 0 {
		at := metav1.NewTime(t.options.Now()).Rfc3339Copy()
		if err := t.writeStatus(ctx, config, configKind(), mergedStatus(&config.Status, translate.Deleted(config, keptBy), at)); err != nil {
			return err
		}
	}
	return t.finalize(ctx, config, false)
}

// finalize puts our finalizer on a configuration, or takes it off.
func (t *turn) finalize(ctx context.Context, config *v1alpha1.InferenceGatewayConfig, on bool) error {
	if slices.Contains(config.Finalizers, finalizer) == on {
		return nil
	}
	if !on {
		return t.letGo(ctx, config)
	}
	u := new(unstructured.Unstructured)
	u.SetGroupVersionKind(configKind().GroupVersionKind)
	u.SetNamespace(config.Namespace)
	u.SetName(config.Name)
	u.SetUID(config.UID) // one that is gone must not be made anew
	u.SetFinalizers([]string{finalizer})
	if err := t.client.Apply(ctx, client.ApplyConfigurationFromUnstructured(u), client.FieldOwner(fieldManager), client.ForceOwnership); err != nil {
		return fmt.Errorf("cannot write its finalizer: %w", err)
	}
	return nil
}

// finalizersOfOthers are an object's finalizers but for ours.
func finalizersOfOthers(o metav1.Object) []string {
	return slices.DeleteFunc(slices.Clone(o.GetFinalizers()), func(f string) bool { return f == finalizer })
}

// letGo takes our finalizer off, whoever put it there: to apply less leaves what another manager owns, too, as kubectl does of
// a document that was read with it and applied again. Other people's finalizers stay.
func (t *turn) letGo(ctx context.Context, config *v1alpha1.InferenceGatewayConfig) error {
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		live := new(v1alpha1.InferenceGatewayConfig)
		if err := t.client.Get(ctx, client.ObjectKeyFromObject(config), live); err != nil {
			return err
		}
		if live.UID != config.UID {
			return nil // another one of its name
		}
		before := live.DeepCopy()
		live.Finalizers = finalizersOfOthers(live)
		return t.client.Patch(ctx, live, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}), client.FieldOwner(fieldManager))
	})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("cannot take its finalizer off: %w", err)
	}
	return nil
}
