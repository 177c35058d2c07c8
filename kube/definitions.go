package kube

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// definitions are the kinds that the API server knows, of those that not every one does.
type definitions struct {
	// ask lists the kinds of a group's version.
	ask func(ctx context.Context, groupVersion string) (*metav1.APIResourceList, error)

	mu    sync.RWMutex
	known map[schema.GroupVersion][]string // kinds by group and version, no entry before it could be asked for
}

// asked are the groups' versions that matter.
func asked() []schema.GroupVersion {
	var list []schema.GroupVersion
	for _, k := range append(append(madeKinds(), configKind(), policyKind()), rewriteKinds()...) {
		if gv := k.GroupVersion(); !builtIn(gv.Group) && !slices.Contains(list, gv) {
			list = append(list, gv)
		}
	}
	return list
}

// refresh asks the API server anew, and reports whether it knows others now. What it can't say at the moment stays as it
// was.
func (d *definitions) refresh(ctx context.Context) (changed bool, err error) {
	var faults []error
	found := make(map[schema.GroupVersion][]string)
	for _, gv := range asked() {
		if ctx.Err() != nil {
			return false, ctx.Err()
		}
		list, err := d.ask(ctx, gv.String())
		switch {
		case apierrors.IsNotFound(err):
			found[gv] = []string{}
			continue
		case err != nil:
			faults = append(faults, fmt.Errorf("cannot ask which kinds there are of %s: %w", gv, err))
			continue
		}
		kinds := []string{}
		for i := range list.APIResources {
			if name := list.APIResources[i].Kind; !slices.Contains(kinds, name) {
				kinds = append(kinds, name)
			}
		}
		slices.Sort(kinds)
		found[gv] = kinds
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.known == nil {
		d.known = make(map[schema.GroupVersion][]string)
	}
	for gv, kinds := range found {
		before, there := d.known[gv]
		changed = changed || !there || !slices.Equal(before, kinds)
		d.known[gv] = kinds
	}
	return changed, errors.Join(faults...)
}

// whole reports whether the API server has said of every group what it knows. Before that nothing is absent.
func (d *definitions) whole() bool {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return len(d.known) == len(asked())
}

// knows reports whether the API server has a kind.
func (d *definitions) knows(k kind) bool {
	if builtIn(k.Group) {
		return true
	}
	d.mu.RLock()
	defer d.mu.RUnlock()
	return slices.Contains(d.known[k.GroupVersion()], k.Kind)
}

// names are those kinds as translate.Context has them, in order.
func (d *definitions) names() []string {
	d.mu.RLock()
	defer d.mu.RUnlock()
	var list []string
	for gv := range maps.Keys(d.known) {
		for _, name := range d.known[gv] {
			list = append(list, kind{GroupVersionKind: gv.WithKind(name)}.name())
		}
	}
	slices.Sort(list)
	return list
}
