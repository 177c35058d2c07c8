package kube

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sluice-gateway/sluice/translate"
)

// tidy removes what was made for a configuration and is in its plan no longer; all of it where there is none. Nothing is
// removed that was not applied from here, whatever its labels say, nor anything that has changed since it was looked at.
// What can't be listed is left, and reported.
func (t *turn) tidy(ctx context.Context, key types.NamespacedName, plan *translate.Plan) (left []string, err error) {
	keep := make(map[objectKey]bool)
	if plan != nil {
		for _, u := range plan.Objects {
			keep[keyOf(u)] = true
		}
		for _, c := range plan.Certificates {
			keep[objectKey{kindConfigMap, c.Namespace, c.ConfigMap}] = true
		}
	}
	var faults []error
	for _, k := range t.kinds() {
		objects, err := t.madeFor(ctx, k, key)
		var unread *unreadError
		switch {
		case errors.As(err, &unread):
			left = append(left, unread.why)
			continue
		case err != nil:
			return left, err
		}
		for _, o := range objects {
			if keep[objectKey{k.Kind, o.GetNamespace(), o.GetName()}] || len(o.GetManagedFields()) == 0 || o.GetDeletionTimestamp() != nil {
				continue
			}
			faults = append(faults, t.remove(ctx, k.GroupVersionKind, o))
		}
	}
	return left, errors.Join(faults...)
}

// madeFor are the objects of a kind that were made for a configuration.
func (t *turn) madeFor(ctx context.Context, k kind, key types.NamespacedName) ([]client.Object, error) {
	var list client.ObjectList = new(metav1.PartialObjectMetadataList)
	if t.made(k).whole {
		list = t.wholeList(k)
	}
	list.GetObjectKind().SetGroupVersionKind(listOf(k.GroupVersionKind))
	if err := t.feeds.list(ctx, t.made(k), list, client.MatchingFields{indexOwner: key.String()}); err != nil {
		return nil, err
	}
	return objectsOf(list)
}

// remove deletes one object as it was looked at.
func (t *turn) remove(ctx context.Context, k schema.GroupVersionKind, o client.Object) error {
	m := new(metav1.PartialObjectMetadata)
	m.SetGroupVersionKind(k)
	m.SetNamespace(o.GetNamespace())
	m.SetName(o.GetName())
	uid, version := o.GetUID(), o.GetResourceVersion()
	err := t.client.Delete(ctx, m, client.Preconditions{UID: &uid, ResourceVersion: &version}, client.PropagationPolicy(metav1.DeletePropagationBackground))
	switch {
	case err == nil:
		t.metrics.writes.WithLabelValues(writeDelete).Inc()
		t.log.Info("removed", "object", objectKey{k.Kind, o.GetNamespace(), o.GetName()}.String(), "gateway", o.GetAnnotations()[translate.AnnotationOwner])
	case !apierrors.IsNotFound(err):
		return fmt.Errorf("cannot remove %s: %w", objectKey{k.Kind, o.GetNamespace(), o.GetName()}, err)
	}
	t.memo.forget(objectKey{k.Kind, o.GetNamespace(), o.GetName()})
	return nil
}

// clear removes everything of a configuration that is gone, or about to.
func (t *turn) clear(ctx context.Context, key types.NamespacedName) error {
	left, err := t.tidy(ctx, key, nil)
	if err := cmp.Or(err, t.clearKeys(ctx, key)); err != nil {
		return err
	}
	for _, why := range left {
		t.log.Warn("some objects of a gateway that is gone may be left, since they can't be listed", "gateway", key.String(), "right", why)
	}
	t.asker.forget(key)
	return nil
}
