package kube

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// objectKey names an object of a plan.
type objectKey struct{ kind, namespace, name string }

func (k objectKey) String() string { return fmt.Sprintf("%s %s/%s", k.kind, k.namespace, k.name) }

func keyOf(u *unstructured.Unstructured) objectKey {
	return objectKey{u.GetKind(), u.GetNamespace(), u.GetName()}
}

// entry is what an API server made of an object that was applied.
type entry struct {
	sum        [sha256.Size]byte
	uid        types.UID
	generation int64
	version    string
	at         time.Time
}

// heard is how long a feed may be behind before something that it doesn't know counts as gone.
const heard = time.Minute

// memo is what was applied in a turn, so that an API server is asked nothing where nothing is different: neither in what
// there should be nor in what there is.
type memo struct {
	now     func() time.Time
	mu      sync.Mutex
	entries map[objectKey]entry
}

func newMemo(now func() time.Time) *memo {
	return &memo{now: now, entries: make(map[objectKey]entry)}
}

// sum is that of an object as it should be.
func sum(u *unstructured.Unstructured) ([sha256.Size]byte, error) {
	text, err := json.Marshal(u.Object)
	if err != nil {
		return [sha256.Size]byte{}, fmt.Errorf("cannot write down %s: %w", keyOf(u), err)
	}
	return sha256.Sum256(text), nil
}

// note keeps what became of an object.
func (m *memo) note(key objectKey, sum [sha256.Size]byte, became client.Object) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.entries[key] = entry{sum, became.GetUID(), became.GetGeneration(), became.GetResourceVersion(), m.now()}
}

// forget drops what is known of an object: it is gone, or someone else has written to it.
func (m *memo) forget(key objectKey) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.entries, key)
}

// forgetKind drops what is known of all objects of a kind.
func (m *memo) forgetKind(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	maps.DeleteFunc(m.entries, func(k objectKey, _ entry) bool { return k.kind == name })
}

// applied reports whether an object was applied just so and nobody has changed that since: there is what a feed says there
// is, nil where it has not heard of it. A feed may be behind what was applied, never ahead of what there is.
func (m *memo) applied(u *unstructured.Unstructured, sum [sha256.Size]byte, there client.Object) bool {
	m.mu.Lock()
	e, ok := m.entries[keyOf(u)]
	m.mu.Unlock()
	switch {
	case !ok || e.sum != sum:
		return false
	case there == nil:
		return m.now().Sub(e.at) < heard // the feed is behind: it tells of what goes, and then the entry goes
	case there.GetUID() != e.uid:
		return false
	case !older(there.GetResourceVersion(), e.version) && !holds(there, u):
		return false
	case e.generation > 0: // it counts changes of what was asked for, and not of how that fares
		return there.GetGeneration() <= e.generation
	}
	return there.GetResourceVersion() == e.version || older(there.GetResourceVersion(), e.version)
}

// older reports whether a version is older than another one.
func older(version, than string) bool {
	n, err := resourceversion.CompareResourceVersion(version, than)
	return err == nil && n < 0
}

// holds reports whether an object has the labels, annotations and owners that another one has.
func holds(there, want client.Object) bool {
	for k, v := range want.GetLabels() {
		if there.GetLabels()[k] != v {
			return false
		}
	}
	for k, v := range want.GetAnnotations() {
		if there.GetAnnotations()[k] != v {
			return false
		}
	}
	owners := make(map[types.UID]bool)
	for _, o := range there.GetOwnerReferences() {
		owners[o.UID] = true
	}
	for _, o := range want.GetOwnerReferences() {
		if !owners[o.UID] {
			return false
		}
	}
	return true
}
