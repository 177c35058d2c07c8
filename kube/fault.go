package kube

import (
	"fmt"
	"log/slog"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Verbs by which things are read.
const (
	verbList  = "list"
	verbWatch = "watch"
)

// trouble is what keeps one thing from being read, and says so once until it is another thing or over.
type trouble struct {
	log *slog.Logger
	// what is read, as a person says it; rule is the one of a Role that allows it.
	what, rule, namespace string

	mu     sync.Mutex
	faults map[string]fault // by verb
}

// fault is why a verb does not work.
type fault struct {
	refused bool // by who is there, and not for being away
	text    string
	since   time.Time
}

// fails takes down that a verb does not work.
func (t *trouble) fails(verb string, err error) {
	f := fault{text: fmt.Sprintf("cannot %s %s in namespace %q: %v", verb, t.what, t.namespace, err), since: time.Now()}
	switch {
	case apierrors.IsForbidden(err):
		f.refused = true
		f.text += fmt.Sprintf("; bind a Role in namespace %q with the rule %s to whom the message names", t.namespace, t.rule)
	case apierrors.IsUnauthorized(err):
		f.refused = true
		f.text += "; it does not know the token: look whether the service account is still there, or sign in anew"
	}
	t.mu.Lock()
	was, before := t.faults[verb]
	if before && was.refused == f.refused {
		f.since = was.since
	}
	silent := t.known(f.refused)
	t.faults[verb] = f
	t.mu.Unlock()
	switch {
	case silent:
	case f.refused:
		t.log.Error("the API server refuses, and what is known stays", "error", f.text)
	default:
		t.log.Warn("the API server does not answer, and what is known stays", "error", f.text)
	}
}

// known reports whether this kind of trouble was said: a missing right keeps a list and a watch from being made.
func (t *trouble) known(refused bool) bool {
	for _, f := range t.faults {
		if f.refused == refused {
			return true
		}
	}
	return false
}

// works takes down that a verb does. Who watches needs to list no more, and who answers is there.
func (t *trouble) works(verb string) {
	t.mu.Lock()
	before := len(t.faults)
	for v, f := range t.faults {
		if v == verb || verb == verbWatch || !f.refused {
			delete(t.faults, v)
		}
	}
	over := before > 0 && len(t.faults) == 0
	t.mu.Unlock()
	if over {
		t.log.Info("the API server can be read again", "what", t.what, "namespace", t.namespace)
	}
}

// why says in words what is wrong, empty if nothing is. What keeps a watch from being made is all there is to say, if there is
// such a thing: a list is made where a watch can't begin with one.
func (t *trouble) why() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, verb := range []string{verbWatch, verbList} {
		if f, there := t.faults[verb]; there {
			return fmt.Sprintf("since %s: %s", f.since.UTC().Format(time.RFC3339), f.text)
		}
	}
	return ""
}
