package kube

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sluice-gateway/sluice/translate"
)

// side is how many objects are asked about or written at a time.
const side = 4

// standing is what there is under the names of a plan's objects.
type standing struct {
	// ours are objects that were made here, for whichever configuration.
	ours map[objectKey]client.Object
	// unread are kinds that can't be listed, with the right that is missing.
	unread map[string]string
}

// stand finds what there is under the names of objects of a plan. Of names that no feed knows the API server is asked, since
// feeds tell of our own objects alone.
func (t *turn) stand(ctx context.Context, objects []*unstructured.Unstructured) (*standing, []translate.Owned, error) {
	s := &standing{ours: make(map[objectKey]client.Object), unread: make(map[string]string)}
	var unknown []*unstructured.Unstructured
	var owned []translate.Owned
	for _, u := range objects {
		k, ok := madeKind(u.GroupVersionKind())
		if !ok {
			return nil, nil, fmt.Errorf("cannot make %s: its kind is not in the table of kinds", keyOf(u))
		}
		there, err := t.feeds.get(ctx, t.made(k), client.ObjectKeyFromObject(u))
		var unread *unreadError
		switch {
		case errors.As(err, &unread):
			s.unread[u.GetKind()] = unread.why
			continue
		case err != nil:
			return nil, nil, err
		case there == nil:
			unknown = append(unknown, u)
			continue
		}
		key, _ := ownerOf(there)
		if owner := key.String(); owner != u.GetAnnotations()[translate.AnnotationOwner] {
			owned = append(owned, translate.Owned{Kind: u.GetKind(), Namespace: u.GetNamespace(), Name: u.GetName(), Owner: owner})
			continue
		}
		s.ours[keyOf(u)] = there
	}
	others, err := t.strangers(ctx, unknown)
	return s, append(owned, others...), err
}

// strangers are objects that no feed knows and there are: someone else's.
func (t *turn) strangers(ctx context.Context, list []*unstructured.Unstructured) ([]translate.Owned, error) {
	found := make([]*translate.Owned, len(list))
	err := each(len(list), func(i int) error {
		u := list[i]
		sum, err := sum(u)
		if err != nil || t.memo.applied(u, sum, nil) {
			return err
		}
		m := new(metav1.PartialObjectMetadata)
		m.SetGroupVersionKind(u.GroupVersionKind())
		switch err := t.client.Get(ctx, client.ObjectKeyFromObject(u), m); {
		case apierrors.IsNotFound(err), apierrors.IsForbidden(err): // without force nothing is taken from anyone either
			return nil
		case err != nil:
			return fmt.Errorf("cannot find out whether there is %s: %w", keyOf(u), err)
		}
		if key, ok := ownerOf(m); ok && key.String() == u.GetAnnotations()[translate.AnnotationOwner] {
			return nil // the feed has not heard of it yet
		}
		found[i] = &translate.Owned{Kind: u.GetKind(), Namespace: u.GetNamespace(), Name: u.GetName()}
		return nil
	})
	var owned []translate.Owned
	for _, o := range found {
		if o != nil {
			owned = append(owned, *o)
		}
	}
	return owned, err
}

// each does something with 0 to n-1, a few at a time, and returns what went wrong.
func each(n int, do func(i int) error) error {
	faults := make([]error, n)
	places := make(chan struct{}, side)
	var all sync.WaitGroup
	for i := range n {
		places <- struct{}{}
		all.Go(func() {
			defer func() { <-places }()
			faults[i] = do(i)
		})
	}
	all.Wait()
	return errors.Join(faults...)
}

// outcome is how far a plan was carried out.
type outcome struct {
	refused []translate.Refusal
	// held: something is refused without which the rest would not be safe, or what there is has to go on until what takes
	// over is there. So nothing may be removed yet.
	held bool
}

// carryOut has the API server take objects of a plan, in its order. What it refuses doesn't keep it from taking the
// others, as far as these are safe without. Anything else that goes wrong ends it, to be tried again.
func (t *turn) carryOut(ctx context.Context, objects []*unstructured.Unstructured, s *standing, taking bool) (*outcome, error) {
	o := new(outcome)
	w := writing{standing: s, taking: taking}
	for run := range runs(objects) {
		kind := run[0].GetKind()
		refusals := make([]*translate.Refusal, len(run))
		if err := each(len(run), func(i int) (err error) {
			refusals[i], err = t.put(ctx, run[i], &w)
			return err
		}); err != nil {
			return o, err
		}
		for _, r := range refusals {
			if r != nil {
				o.refused = append(o.refused, *r)
				o.held = o.held || !spare(kind)
				w.open = w.open || kind == kindSecurity
			}
		}
	}
	o.held = o.held || taking
	return o, nil
}

// writing is how objects of a plan are written.
type writing struct {
	*standing
	// taking: new pickers are to take over and don't run yet, so that what leads to the old ones stays.
	taking bool
	// open: the policy that says who may call could not be made.
	open bool
}

// put applies one object, as far as that may be.
func (t *turn) put(ctx context.Context, u *unstructured.Unstructured, w *writing) (*translate.Refusal, error) {
	kind, there := u.GetKind(), w.ours[keyOf(u)]
	switch why := w.unread[kind]; {
	case why != "":
		return &translate.Refusal{Object: keyOf(u).String(), Message: why}, nil
	case there == nil && w.open && opens(kind):
		return &translate.Refusal{Object: keyOf(u).String(), Message: "not made, since who may call could not be made sure of"}, nil
	case w.taking && (there != nil && !replaceable(kind) || opens(kind)):
		return nil, nil
	}
	return t.apply(ctx, u, there)
}

// kindSecurity is the kind that says who may call.
const kindSecurity = "SecurityPolicy"

// opens reports whether an object of a kind has requests come in or go elsewhere.
func opens(kind string) bool {
	return slices.Contains([]string{kindGateway, kindRoute, "EnvoyExtensionPolicy", "InferencePool", "ClientTrafficPolicy", "BackendTrafficPolicy"}, kind)
}

// replaceable reports whether an object of a kind may change while others still go by what it was.
func replaceable(kind string) bool { return kind == kindDeployment || kind == kindSecurity }

// spare reports whether a gateway works without objects of a kind.
func spare(kind string) bool {
	return slices.Contains([]string{"PodDisruptionBudget", "NetworkPolicy", "ServiceMonitor"}, kind)
}

// runs are the objects of a list that stand together and are of one kind.
func runs(list []*unstructured.Unstructured) func(yield func([]*unstructured.Unstructured) bool) {
	return func(yield func([]*unstructured.Unstructured) bool) {
		for i := 0; i < len(list); {
			j := i + 1
			for j < len(list) && list[j].GroupVersionKind() == list[i].GroupVersionKind() {
				j++
			}
			if !yield(list[i:j]) {
				return
			}
			i = j
		}
	}
}

// apply has the API server take an object, unless it has taken it already and nobody has changed it. there is what stands
// under its name and is ours, nil if nothing does: then nothing is taken from anyone who comes in between.
func (t *turn) apply(ctx context.Context, u *unstructured.Unstructured, there client.Object) (*translate.Refusal, error) {
	sum, err := sum(u)
	if err != nil {
		return nil, err
	}
	if t.memo.applied(u, sum, there) || there != nil && there.GetDeletionTimestamp() != nil {
		return nil, nil
	}
	o := u.DeepCopy()
	options := []client.ApplyOption{client.FieldOwner(fieldManager)}
	if there != nil {
		o.SetUID(there.GetUID()) // or it is another one by now
		options = append(options, client.ForceOwnership)
	}
	err = t.client.Apply(ctx, client.ApplyConfigurationFromUnstructured(o), options...)
	switch {
	case err == nil:
		t.metrics.writes.WithLabelValues(writeApply).Inc()
		t.memo.note(keyOf(u), sum, o)
		return nil, nil
	case denied(err):
		t.memo.forget(keyOf(u))
		return &translate.Refusal{Object: keyOf(u).String(), Message: message(err)}, nil
	}
	t.memo.forget(keyOf(u))
	return nil, fmt.Errorf("cannot apply %s: %w", keyOf(u), err)
}

// denied reports whether an error says that the API server would not take an object as it is, and will not a moment later:
// it is wrong, or not allowed, or a webhook or a quota is against it, or its namespace or its kind is not there.
func denied(err error) bool {
	switch {
	case apierrors.IsInvalid(err):
		return !strings.Contains(err.Error(), "metadata.uid")
	case apierrors.IsForbidden(err), apierrors.IsBadRequest(err), apierrors.IsRequestEntityTooLargeError(err), apierrors.IsNotFound(err), apierrors.IsMethodNotSupported(err):
		return true
	case apierrors.IsInternalError(err):
		return strings.Contains(err.Error(), "webhook")
	}
	return false
}

// message is what the API server said, without what we know ourselves.
func message(err error) string {
	var status apierrors.APIStatus
	if errors.As(err, &status) && status.Status().Message != "" {
		return status.Status().Message
	}
	return err.Error()
}
