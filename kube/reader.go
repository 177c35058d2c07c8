package kube

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/sluice-gateway/sluice/config"
)

// How soon news is told: that a pod is there, which can wait for those that start with it, and everything else.
const (
	tellLater = 100 * time.Millisecond
	tellSoon  = 5 * time.Millisecond
)

// ReaderOptions say what a Reader reads.
type ReaderOptions struct {
	// API says how the API server is reached.
	API *rest.Config
	// Namespace is whose pods are read.
	Namespace string
	// FileName is the ConfigMap that has the documents, empty for none; FileNamespace is where it is, FileKey their key in data.
	FileName, FileNamespace, FileKey string
	// Log takes changes of state.
	Log *slog.Logger
}

// Reader reads what a gateway's process has to know of a cluster, and goes on reading it. All methods may be called by any
// goroutine.
type Reader struct {
	o     ReaderOptions
	bell  *bell
	pods  *pods
	file  *file
	reads []*reading
}

// reading is one kind of object that is followed.
type reading struct {
	trouble
	reflector *cache.Reflector
}

// NewReader makes a Reader that knows nothing yet.
func NewReader(o ReaderOptions) (*Reader, error) {
	client, err := core(o.API)
	if err != nil {
		return nil, err
	}
	r := &Reader{o: o, bell: newBell()}
	r.pods = &pods{known: make(map[string]config.Pod), tell: func(soon bool) {
		if soon {
			r.bell.news(tellSoon)
			return
		}
		r.bell.news(tellLater)
	}}
	r.reads = append(r.reads, follow(client, o.Log, &corev1.Pod{}, r.pods, followed{what: "pods", resource: "pods", namespace: o.Namespace,
		rule: `{apiGroups: [""], resources: [pods], verbs: [list, watch]}`}))
	if o.FileName != "" {
		r.file = &file{key: o.FileKey, tell: func() { r.bell.news(tellSoon) }, log: o.Log.With("configMap", o.FileName, "namespace", o.FileNamespace)}
		r.reads = append(r.reads, follow(client, o.Log, &corev1.ConfigMap{}, r.file, followed{what: fmt.Sprintf("ConfigMap %q", o.FileName),
			resource: "configmaps", namespace: o.FileNamespace, selector: fields.OneTermEqualSelector(metav1.ObjectNameField, o.FileName),
			rule: fmt.Sprintf(`{apiGroups: [""], resources: [configmaps], resourceNames: [%s], verbs: [list, watch]}`, o.FileName)}))
	}
	return r, nil
}

// followed says what a reading is of.
type followed struct {
	what, resource, namespace, rule string
	selector                        fields.Selector // nil for all
}

// follow has a store told of what there is. It reads nothing yet.
func follow(client *rest.RESTClient, log *slog.Logger, kind runtime.Object, to cache.TransformingStore, f followed) *reading {
	r := &reading{trouble: trouble{log: log, what: f.what, rule: f.rule, namespace: f.namespace, faults: make(map[string]fault)}}
	ask := func(o metav1.ListOptions) *rest.Request {
		if f.selector != nil {
			o.FieldSelector = f.selector.String()
		}
		return client.Get().Namespace(f.namespace).Resource(f.resource).VersionedParams(&o, metav1.ParameterCodec)
	}
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			list, err := ask(o).Do(ctx).Get()
			r.heard(ctx, verbList, err)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.Watch = true
			w, err := ask(o).Watch(ctx)
			r.heard(ctx, verbWatch, err)
			return w, err
		},
	}
	quiet := logr.Discard() // what goes wrong is said by trouble
	r.reflector = cache.NewReflectorWithOptions(lw, kind, to, cache.ReflectorOptions{Name: f.what, Logger: &quiet,
		// An API server that is back is found soon, and one that struggles is not asked by everyone at once.
		Backoff: &wait.Backoff{Duration: 200 * time.Millisecond, Cap: 5 * time.Second, Steps: 10, Factor: 2, Jitter: 0.5}})
	return r
}

// heard takes down how a request went.
func (r *reading) heard(ctx context.Context, verb string, err error) {
	switch {
	case ctx.Err() != nil:
	case err == nil:
		r.works(verb)
	case apierrors.IsResourceExpired(err), apierrors.IsGone(err), apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge):
		// What was seen last is too old, or from another API server's future: the reflector begins anew.
	case verb == verbWatch && (apierrors.IsInvalid(err) || apierrors.IsBadRequest(err)): // an older one, which is asked for a list next
	default:
		r.fails(verb, err)
	}
}

// Run reads until ctx ends.
func (r *Reader) Run(ctx context.Context) {
	ctx = logr.NewContext(ctx, logr.Discard())
	var all sync.WaitGroup
	for _, one := range r.reads {
		all.Go(func() { one.reflector.RunWithContext(ctx) })
	}
	all.Wait()
}

// News gets a value a moment after something has changed.
func (r *Reader) News() <-chan struct{} { return r.bell.rings }

// Pods are those that may serve; their list is nil before they were read once.
func (r *Reader) Pods() config.Pods {
	return config.Pods{Namespace: r.o.Namespace, List: r.pods.list()}
}

// File is the latest text of the ConfigMap, nil if there was none.
func (r *Reader) File() []byte {
	if r.file == nil {
		return nil
	}
	text, _ := r.file.now()
	return text
}

// Why says what keeps it from reading all there is, a line for each, none while all is well.
func (r *Reader) Why() []string {
	var lines []string
	for _, one := range r.reads {
		if why := one.why(); why != "" {
			lines = append(lines, why)
		}
	}
	if r.file != nil {
		if _, why := r.file.now(); why != "" {
			lines = append(lines, fmt.Sprintf("ConfigMap %q in namespace %q is not what is gone by: %s", r.o.FileName, r.o.FileNamespace, why))
		}
	}
	return lines
}
