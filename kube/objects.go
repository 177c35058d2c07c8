package kube

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// wholeList is an empty list of a kind that is followed whole.
func (t *term) wholeList(k kind) (client.ObjectList, error) {
	o, err := t.scheme.New(listOf(k.GroupVersionKind))
	if err != nil {
		return nil, fmt.Errorf("cannot list %s: %w", k.name(), err)
	}
	list, ok := o.(client.ObjectList)
	if !ok {
		return nil, fmt.Errorf("cannot list %s: %T is no list", k.name(), o)
	}
	return list, nil
}

// objectsOf are the objects of a list.
func objectsOf(list client.ObjectList) ([]client.Object, error) {
	var out []client.Object
	err := meta.EachListItem(list, func(o runtime.Object) error {
		one, ok := o.(client.Object)
		if !ok {
			return fmt.Errorf("cannot take %T for an object", o)
		}
		out = append(out, one)
		return nil
	})
	return out, err
}
