package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sluice-gateway/sluice/translate"
)

// errNotYet is the answer while a feed has not told everything once.
var errNotYet = errors.New("not everything has been read yet")

// unreadError is the answer where a feed can't be had, and says which right it takes.
type unreadError struct{ why string }

func (e *unreadError) Error() string { return e.why }

// watched says what a feed is of.
type watched struct {
	kind
	// namespace is where; empty for everywhere. labels are those of objects that count, nil for all.
	namespace string
	labels    map[string]string
	// whole: objects with everything that slimmed leaves of them; otherwise their metadata alone.
	whole bool
	// slimmed takes out what nobody reads, before an object is kept.
	slimmed func(client.Object)
	// told is called with each object that comes or changes, gone with each that goes, from several goroutines.
	told, gone func(client.Object)
	// same reports whether a change means nothing; nil: every one means something.
	same func(before, after client.Object) bool
	// ended is called when a feed has been stopped.
	ended func()
	// owned: objects can be asked for by the configuration that they are of.
	owned bool
}

// id tells it from all others.
func (s *watched) id() string {
	return fmt.Sprintf("%s %s %s", s.name(), s.namespace, labels.FormatLabels(s.labels))
}

// object is an empty one.
func (s *watched) object(scheme *runtime.Scheme) client.Object {
	if !s.whole {
		m := new(metav1.PartialObjectMetadata)
		m.SetGroupVersionKind(s.GroupVersionKind)
		return m
	}
	if o, err := scheme.New(s.GroupVersionKind); err == nil {
		if typed, ok := o.(client.Object); ok {
			return typed
		}
	}
	u := new(unstructured.Unstructured)
	u.SetGroupVersionKind(s.GroupVersionKind)
	return u
}

// feed follows what is watched.
type feed struct {
	watched
	cache    cache.Cache
	informer cache.Informer
	stop     context.CancelFunc
	stopped  chan struct{}
}

// feeds are those that run. They come and go with the kinds that the API server knows, the namespaces that matter and the
// rights that there are; none of them keeps the others from running.
type feeds struct {
	config *rest.Config
	http   *http.Client
	scheme *runtime.Scheme
	mapper meta.RESTMapper
	log    *slog.Logger
	// allowed says which right is missing to follow a kind, nothing if none is.
	allowed func(ctx context.Context, s *watched) (missing string, err error)
	// lost is called when a watch ended badly.
	lost func()

	mu      sync.RWMutex
	running map[string]*feed
	// denied can't be followed, by id, with the right that is missing.
	denied map[string]string
}

// follow has exactly those feeds run that are wanted, as far as the API server knows their kinds and there is a right to.
// It reports whether that changed anything.
func (f *feeds) follow(ctx context.Context, wanted []watched) (changed bool) {
	want := make(map[string]*watched, len(wanted))
	for i := range wanted {
		want[wanted[i].id()] = &wanted[i]
	}
	f.mu.RLock()
	before := maps.Clone(f.running)
	f.mu.RUnlock()
	for id, one := range before {
		if want[id] == nil {
			f.mu.Lock()
			delete(f.running, id)
			f.mu.Unlock()
			one.stop()
			<-one.stopped
			if one.ended != nil {
				one.ended()
			}
			changed = true
		}
	}
	denied := make(map[string]string)
	for _, id := range slices.Sorted(maps.Keys(want)) {
		if before[id] != nil {
			continue
		}
		s := want[id]
		missing, err := f.allowed(ctx, s)
		if err == nil && missing == "" {
			err = f.start(ctx, s)
		}
		switch {
		case err != nil:
			f.log.Warn("cannot follow a kind of object, and tries again", "kind", s.name(), "namespace", s.namespace, "error", err)
		case missing != "":
			denied[id] = missing
		default:
			changed = true
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for id, missing := range denied {
		if f.denied[id] == "" {
			f.log.Warn("a right is missing, and what it is for does not work", "right", missing, "namespace", want[id].namespace)
		}
	}
	changed = changed || !maps.Equal(f.denied, denied)
	f.denied = denied
	return changed
}

// start begins to follow.
func (f *feeds) start(ctx context.Context, s *watched) error {
	options := cache.Options{HTTPClient: f.http, Scheme: f.scheme, Mapper: f.mapper, ReaderFailOnMissingInformer: true,
		DefaultUnsafeDisableDeepCopy: new(true), DefaultTransform: s.transform, DefaultWatchErrorHandler: f.failed(s)}
	if s.namespace != "" {
		options.DefaultNamespaces = map[string]cache.Config{s.namespace: {}}
	}
	if s.labels != nil {
		options.DefaultLabelSelector = labels.SelectorFromSet(s.labels)
	}
	c, err := cache.New(f.config, options)
	if err != nil {
		return fmt.Errorf("cannot make a cache: %w", err)
	}
	o := s.object(f.scheme)
	informer, err := c.GetInformer(ctx, o, cache.BlockUntilSynced(false))
	if err != nil {
		return fmt.Errorf("cannot make an informer: %w", err)
	}
	if s.owned {
		if err := c.IndexField(ctx, o, indexOwner, func(o client.Object) []string { return []string{o.GetAnnotations()[translate.AnnotationOwner]} }); err != nil {
			return fmt.Errorf("cannot index by owner: %w", err)
		}
	}
	if _, err := informer.AddEventHandler(s); err != nil {
		return fmt.Errorf("cannot hear of changes: %w", err)
	}
	ctx, stop := context.WithCancel(ctx)
	one := &feed{watched: *s, cache: c, informer: informer, stop: stop, stopped: make(chan struct{})}
	go func() {
		defer close(one.stopped)
		if err := c.Start(ctx); err != nil {
			f.log.Error("a kind of object is followed no longer", "kind", s.name(), "error", err)
		}
	}()
	f.mu.Lock()
	f.running[s.id()] = one
	f.mu.Unlock()
	return nil
}

// indexOwner is the name of the index by the configuration that an object is of.
const indexOwner = "owner"

// failed hears of watches that end badly. Connections end and versions grow old all the time; a kind that is gone, or a
// right, is worth a look at once.
func (f *feeds) failed(s *watched) toolscache.WatchErrorHandlerWithContext {
	return func(ctx context.Context, r *toolscache.Reflector, err error) {
		if apierrors.IsForbidden(err) || apierrors.IsNotFound(err) || meta.IsNoMatchError(err) {
			f.log.Warn("a kind of object can't be followed at the moment; what is known of it stays", "kind", s.name(), "namespace", s.namespace, "error", err)
			f.lost()
			return
		}
		f.log.Debug("a watch ended and begins anew", "kind", s.name(), "namespace", s.namespace, "error", err)
	}
}

// has reports whether a feed runs, or is known to lack a right.
func (f *feeds) has(s *watched) bool {
	id := s.id()
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.running[id] != nil || f.denied[id] != ""
}

// stopAll ends every feed.
func (f *feeds) stopAll() {
	f.mu.Lock()
	all := f.running
	f.running = make(map[string]*feed)
	f.mu.Unlock()
	for _, one := range all {
		one.stop()
		<-one.stopped
	}
}

// list fills in what a feed knows. It fails where that isn't everything: what can't be read is not absent.
func (f *feeds) list(ctx context.Context, s *watched, into client.ObjectList, options ...client.ListOption) error {
	one, err := f.synced(s)
	if err != nil {
		return err
	}
	return one.cache.List(ctx, into, options...)
}

// get is one object that a feed knows, nil if there is none.
func (f *feeds) get(ctx context.Context, s *watched, key client.ObjectKey) (client.Object, error) {
	one, err := f.synced(s)
	if err != nil {
		return nil, err
	}
	o := s.object(f.scheme)
	if err := one.cache.Get(ctx, key, o); err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	return o, nil
}

// synced is a feed that has told everything once.
func (f *feeds) synced(s *watched) (*feed, error) {
	id := s.id()
	f.mu.RLock()
	one, why := f.running[id], f.denied[id]
	f.mu.RUnlock()
	switch {
	case one == nil && why != "":
		return nil, &unreadError{why}
	case one == nil || !one.informer.HasSynced():
		return nil, fmt.Errorf("cannot go by %s: %w", s.name(), errNotYet)
	}
	return one, nil
}

// missing are the rights for want of which something is not followed.
func (f *feeds) missing() []string {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return slices.Compact(slices.Sorted(maps.Values(f.denied)))
}

// transform is what an object becomes before it is kept.
func (s *watched) transform(o any) (any, error) {
	if m, ok := o.(client.Object); ok {
		slimMetadata(m)
		if s.slimmed != nil {
			s.slimmed(m)
		}
	}
	return o, nil
}

// OnAdd is part of toolscache.ResourceEventHandler.
func (s *watched) OnAdd(o any, _ bool) { tell(s.told, o) }

// OnUpdate is part of toolscache.ResourceEventHandler.
func (s *watched) OnUpdate(before, after any) {
	x, ok := before.(client.Object)
	y, too := after.(client.Object)
	if ok && too && (x.GetResourceVersion() == y.GetResourceVersion() || s.same != nil && s.same(x, y)) {
		return
	}
	tell(s.told, after)
}

// OnDelete is part of toolscache.ResourceEventHandler.
func (s *watched) OnDelete(o any) {
	if gone, ok := o.(toolscache.DeletedFinalStateUnknown); ok {
		o = gone.Obj
	}
	tell(s.gone, o)
}

func tell(whom func(client.Object), o any) {
	if m, ok := o.(client.Object); ok && whom != nil {
		whom(m)
	}
}
