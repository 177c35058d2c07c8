package kube

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// What comes together is told once, and what must not wait is told soon, with all that came before.
func TestBell(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, start := newBell(), time.Now()
		rings := func(after time.Duration) {
			t.Helper()
			<-b.rings
			if got := time.Since(start); got != after {
				t.Errorf("rang after %s, want %s", got, after)
			}
			start = time.Now()
		}
		for range 1000 {
			b.news(100 * time.Millisecond)
		}
		rings(100 * time.Millisecond)
		b.news(100 * time.Millisecond)
		b.news(5 * time.Millisecond)
		b.news(100 * time.Millisecond)
		rings(5 * time.Millisecond)
		time.Sleep(time.Second)
		select {
		case <-b.rings:
			t.Error("rang again for nothing")
		default:
		}
		b.news(5 * time.Millisecond)
		time.Sleep(time.Second) // nobody listens
		b.news(5 * time.Millisecond)
		time.Sleep(time.Second)
		<-b.rings
		select {
		case <-b.rings:
			t.Error("rang twice for one who was not there")
		default:
		}
	})
}

// What keeps something from being read is said once, with the way out, and so is its end.
func TestTroubleIsSaidOnce(t *testing.T) {
	var text bytes.Buffer
	log := slog.New(slog.NewTextHandler(&text, nil))
	r := &reading{trouble: trouble{log: log, what: "pods", namespace: "models", rule: "{a rule}", faults: make(map[string]fault)}}
	f := func(verb string, err error, logs, why string) {
		t.Helper()
		text.Reset()
		r.heard(t.Context(), verb, err)
		if got := text.String(); (logs == "") != (got == "") || !strings.Contains(got, logs) || strings.Count(got, "\n") > 1 {
			t.Errorf("logged %q, want one line with %q", got, logs)
		}
		if got := r.why(); (why == "") != (got == "") || !strings.Contains(got, why) {
			t.Errorf("why is %q, want %q in it", got, why)
		}
	}
	away := errors.New("connection refused")
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "", errors.New(`User "system:serviceaccount:models:demo-picker" cannot watch`))
	f(verbWatch, nil, "", "")
	f(verbWatch, away, `level=WARN msg="the API server does not answer`, `cannot watch pods in namespace "models": connection refused`)
	f(verbWatch, errors.New("no route to host"), "", "no route to host")
	f(verbList, away, "", "cannot watch pods")
	f(verbWatch, nil, "can be read again", "")
	f(verbWatch, apierrors.NewResourceExpired("too old"), "", "")
	f(verbWatch, apierrors.NewInvalid(schema.GroupKind{Kind: "ListOptions"}, "", nil), "", "") // an API server that knows no streamed lists
	f(verbWatch, forbidden, `level=ERROR msg="the API server refuses`, `bind a Role in namespace "models" with the rule {a rule} to whom the message names`)
	f(verbList, forbidden, "", "cannot watch pods")
	f(verbWatch, forbidden, "", "demo-picker")
	f(verbList, nil, "", "cannot watch pods") // who may list may still not watch
	f(verbWatch, away, "does not answer", "connection refused")
	f(verbWatch, apierrors.NewUnauthorized("expired"), "refuses", "does not know the token")
	f(verbWatch, nil, "can be read again", "")
}

// K19, K22: a text that was there stays: what is gone, or has lost its key, is nobody's wish for a gateway that runs.
func TestFileStays(t *testing.T) {
	var text bytes.Buffer
	news := 0
	f := &file{key: "gateway.yaml", tell: func() { news++ }, log: slog.New(slog.NewTextHandler(&text, nil))}
	step := func(what string, do func() error, wantText, wantWhy, logs string, wantNews int) {
		t.Helper()
		news = 0
		text.Reset()
		if err := do(); err != nil {
			t.Fatal(err)
		}
		got, why := f.now()
		if string(got) != wantText || why != wantWhy || news != wantNews || !strings.Contains(text.String(), logs) || logs == "" && text.Len() > 0 {
			t.Errorf("%s: got text %q, why %q, %d news, log %q", what, got, why, news, text.String())
		}
	}
	m := func(data map[string]string) *corev1.ConfigMap {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "models", Name: "demo-picker"}, Data: data}
	}
	one, two := m(map[string]string{"gateway.yaml": "one", "other": "x"}), m(map[string]string{"gateway.yaml": "two"})
	step("it is not there", func() error { return f.Replace(nil, "1") }, "", "it is not there", "it is not there", 0)
	step("nor later", func() error { return f.Replace(nil, "2") }, "", "it is not there", "", 0)
	step("it comes", func() error { return f.Add(one) }, "one", "", "again", 1)
	step("it is read again", func() error { return f.Replace([]any{one}, "3") }, "one", "", "", 0)
	step("it changes", func() error { return f.Update(two) }, "two", "", "", 1)
	step("it loses its key", func() error { return f.Update(m(nil)) }, "two", `it has no key "gateway.yaml" in data`, "no key", 0)
	step("it is gone", func() error { return f.Delete(m(nil)) }, "two", "it is not there", "not there", 0)
	step("it is back as it was", func() error { return f.Add(two) }, "two", "", "again", 0)
	kept, err := f.Transformer()(one)
	if err != nil || len(kept.(*corev1.ConfigMap).Data) != 1 {
		t.Errorf("got %v, %v, want the one key", kept, err)
	}
}
