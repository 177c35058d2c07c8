package kube

import (
	"fmt"
	"log/slog"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
)

// file is a text in a ConfigMap, as a reflector tells of it. A text that was there once stays: what is gone or empty is
// nobody's wish for a gateway that runs.
type file struct {
	key  string
	tell func()
	log  *slog.Logger

	mu   sync.Mutex
	text []byte
	why  string // why there is none, or not a newer one; empty while there is
}

// now is the latest text, nil if there was none yet, and why it isn't that of the ConfigMap.
func (f *file) now() (text []byte, why string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.text, f.why
}

// Add is part of cache.ReflectorStore.
func (f *file) Add(o any) error {
	m, ok := o.(*corev1.ConfigMap)
	if !ok {
		return fmt.Errorf("cannot take %T for a ConfigMap", o)
	}
	text, there := m.Data[f.key]
	if !there {
		f.lacks(fmt.Sprintf("it has no key %q in data", f.key))
		return nil
	}
	f.mu.Lock()
	changed, lacked := f.text == nil || string(f.text) != text, f.why != ""
	f.text, f.why = []byte(text), ""
	f.mu.Unlock()
	if lacked {
		f.log.Info("the ConfigMap gives a configuration again")
	}
	if changed {
		f.tell()
	}
	return nil
}

// Update is part of cache.ReflectorStore.
func (f *file) Update(o any) error { return f.Add(o) }

// Delete is part of cache.ReflectorStore.
func (f *file) Delete(any) error {
	f.lacks("it is not there")
	return nil
}

// Replace is part of cache.ReflectorStore.
func (f *file) Replace(all []any, _ string) error {
	if len(all) == 0 {
		f.lacks("it is not there")
	}
	for _, o := range all {
		if err := f.Add(o); err != nil {
			return err
		}
	}
	return nil
}

// Resync is part of cache.ReflectorStore.
func (f *file) Resync() error { return nil }

func (f *file) lacks(why string) {
	f.mu.Lock()
	said := f.why == why
	f.why = why
	f.mu.Unlock()
	if !said {
		f.log.Warn("the ConfigMap gives no configuration, and the one before stays", "why", why)
	}
}

// Transformer is part of cache.TransformingStore.
func (f *file) Transformer() cache.TransformFunc {
	return func(o any) (any, error) {
		m, ok := o.(*corev1.ConfigMap)
		if !ok {
			return o, nil
		}
		out := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: m.Name, Namespace: m.Namespace, ResourceVersion: m.ResourceVersion}}
		if text, there := m.Data[f.key]; there {
			out.Data = map[string]string{f.key: text}
		}
		return out, nil
	}
}
