package kube

import (
	"context"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sluice-gateway/sluice/api/v1alpha1"
)

// ownKinds are those whose definitions are ours.
func ownKinds() []kind {
	return []kind{configKind(), policyKind(), endpointsKind(),
		of(v1alpha1.GatewayGroup, v1alpha1.Version, v1alpha1.GlobalGatewayKind, "globalgateways")}
}

// migratePage is how many objects are read at a time.
const migratePage = 100

// migrate has everything of our own kinds stored in the version that is written today, so that a definition can leave out
// older ones: an object is in the version that was written when it last changed. It ends when that is so.
func (t *turn) migrate(ctx context.Context) {
	for _, k := range ownKinds() {
		for {
			err := t.migrateKind(ctx, k)
			if err == nil || ctx.Err() != nil {
				break
			}
			t.log.Warn("cannot bring stored objects to the newest version, and tries again", "kind", k.plural(), "error", err)
			select {
			case <-ctx.Done():
			case <-time.After(time.Minute):
			}
		}
	}
}

// migrateKind does so for one kind.
func (t *turn) migrateKind(ctx context.Context, k kind) error {
	d := new(unstructured.Unstructured)
	d.SetGroupVersionKind(definitionKind().GroupVersionKind)
	switch err := t.client.Get(ctx, types.NamespacedName{Name: k.plural()}, d); {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("cannot read the definition: %w", err)
	}
	version := storageVersion(d)
	stored, _, err := unstructured.NestedStringSlice(d.Object, "status", "storedVersions")
	if err != nil || version == "" || !slices.ContainsFunc(stored, func(v string) bool { return v != version }) {
		return err
	}
	// In that version, or what only it has would be lost on the way.
	newest := kind{k.GroupKind().WithVersion(version), k.resource}
	c, err := client.New(t.config, client.Options{HTTPClient: t.http, Scheme: t.scheme, Mapper: mapper(newest)})
	if err != nil {
		return fmt.Errorf("cannot make a client: %w", err)
	}
	n, err := rewrite(ctx, c, newest)
	if err != nil {
		return err
	}
	if err := unstructured.SetNestedStringSlice(d.Object, []string{version}, "status", "storedVersions"); err != nil {
		return fmt.Errorf("cannot write down the stored versions: %w", err)
	}
	// A definition that has changed since is looked at anew.
	if err := t.client.Status().Update(ctx, d, client.FieldOwner(fieldManager)); err != nil {
		return fmt.Errorf("cannot write the stored versions: %w", err)
	}
	t.log.Info("stored objects are in the newest version", "kind", k.plural(), "version", version, "objects", n, "before", stored)
	return nil
}

// storageVersion is the version in which objects of a definition are stored.
func storageVersion(d *unstructured.Unstructured) string {
	list, _, _ := unstructured.NestedSlice(d.Object, "spec", "versions")
	for _, v := range list {
		if m, ok := v.(map[string]any); ok && m["storage"] == true {
			name, _ := m["name"].(string)
			return name
		}
	}
	return ""
}

// rewrite writes every object of a kind as it is, which stores it in the newest version.
func rewrite(ctx context.Context, c client.Client, k kind) (n int, err error) {
	list := new(unstructured.UnstructuredList)
	list.SetGroupVersionKind(listOf(k.GroupVersionKind))
	for more := ""; ; more = list.GetContinue() {
		if err := c.List(ctx, list, client.Limit(migratePage), client.Continue(more)); err != nil {
			return n, fmt.Errorf("cannot list objects: %w", err)
		}
		for i := range list.Items {
			o := &list.Items[i]
			switch err := c.Update(ctx, o, client.FieldOwner(fieldManager)); {
			case apierrors.IsNotFound(err), apierrors.IsConflict(err): // it is gone, or was written a moment ago
			case err != nil:
				return n, fmt.Errorf("cannot write %s/%s: %w", o.GetNamespace(), o.GetName(), err)
			}
			n++
		}
		if list.GetContinue() == "" {
			return n, nil
		}
	}
}
