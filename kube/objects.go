package kube

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// wholeList is an empty list of a kind that is followed whole.
func (t *turn) wholeList(k kind) client.ObjectList {
	if o, err := t.scheme.New(listOf(k.GroupVersionKind)); err == nil {
		if list, ok := o.(client.ObjectList); ok {
			return list
		}
	}
	return new(unstructured.UnstructuredList) // of a kind that no type is here for
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
