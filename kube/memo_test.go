package kube

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// What was applied counts as there until someone has changed it: as far as a feed tells, which may be behind.
func TestMemo(t *testing.T) {
	now := time.Unix(1000, 0)
	l := newMemo(func() time.Time { return now })
	want := new(unstructured.Unstructured)
	want.SetKind("HTTPRoute")
	want.SetNamespace("models")
	want.SetName("llama")
	want.SetLabels(map[string]string{"a": "b"})
	want.SetOwnerReferences([]metav1.OwnerReference{{UID: "owner"}})
	is := func(uid types.UID, generation int64, version string, change ...func(*metav1.PartialObjectMetadata)) client.Object {
		m := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{UID: uid, Generation: generation, ResourceVersion: version,
			Labels: map[string]string{"a": "b", "more": "x"}, OwnerReferences: []metav1.OwnerReference{{UID: "owner"}}}}
		for _, f := range change {
			f(m)
		}
		return m
	}
	text, err := sum(want)
	if err != nil {
		t.Fatal(err)
	}
	key := keyOf(want)
	if l.applied(want, text, nil) {
		t.Error("got an object that nobody has applied")
	}
	for name, c := range map[string]struct {
		became, there client.Object
		applied       bool
	}{
		"as it became":                   {is("1", 3, "70"), is("1", 3, "70"), true},
		"with a newer status":            {is("1", 3, "70"), is("1", 3, "75"), true},
		"changed by someone":             {is("1", 3, "70"), is("1", 4, "75"), false},
		"older than it became":           {is("1", 3, "70"), is("1", 2, "60"), true},
		"another of its name":            {is("1", 3, "70"), is("2", 3, "75"), false},
		"without a label":                {is("1", 3, "70"), is("1", 3, "75", func(m *metav1.PartialObjectMetadata) { m.Labels = nil }), false},
		"without its owner":              {is("1", 3, "70"), is("1", 3, "75", func(m *metav1.PartialObjectMetadata) { m.OwnerReferences = nil }), false},
		"of a kind without generations":  {is("1", 0, "70"), is("1", 0, "70"), true},
		"of such a kind, changed":        {is("1", 0, "70"), is("1", 0, "75"), false},
		"of such a kind, a feed behind":  {is("1", 0, "100"), is("1", 0, "75"), true},
		"not heard of yet by its feed":   {is("1", 3, "70"), nil, true},
		"with versions that can't order": {is("1", 0, "x"), is("1", 0, "y"), false},
	} {
		l.note(key, text, c.became)
		if got := l.applied(want, text, c.there); got != c.applied {
			t.Errorf("%s: got applied %t, want %t", name, got, c.applied)
		}
	}
	l.note(key, text, is("1", 3, "70"))
	other := want.DeepCopy()
	other.SetLabels(map[string]string{"a": "c"})
	if changed, err := sum(other); err != nil || l.applied(other, changed, is("1", 3, "70")) {
		t.Errorf("got an object applied that is to be different, %v", err)
	}
	now = now.Add(2 * heard)
	if l.applied(want, text, nil) {
		t.Error("its feed has not heard of it for minutes, and it counts as there")
	}
	l.forgetKind("HTTPRoute")
	if l.applied(want, text, is("1", 3, "70")) {
		t.Error("it counts as there after its kind has gone")
	}
}
