package kube

import (
	"context"
	"fmt"
	"log/slog"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	poolv1 "sigs.k8s.io/gateway-api-inference-extension/api/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
	gatewayv1beta1 "sigs.k8s.io/gateway-api/apis/v1beta1"
)

// poolFeed follows what routes to InferencePools depend on, in the whole cluster.
type poolFeed struct {
	log    *slog.Logger
	scheme *runtime.Scheme
	mapper meta.RESTMapper
	client client.WithWatch

	pools, routes, grants, pods, services, slices, gateways, classes cache.SharedIndexInformer
	// news rings when endpoints may have changed, words when the status of a pool may have.
	news, words *bell
}

// followedKind is a kind that a poolFeed follows.
type followedKind struct {
	into     *cache.SharedIndexInformer
	object   client.Object
	list     client.ObjectList
	resource schema.GroupVersionResource
	cluster  bool // not in a namespace
	// Whom a change is news to.
	endpoints, status bool
}

func (f *poolFeed) kinds() []followedKind {
	gateway, older := schema.GroupVersion(gatewayv1.GroupVersion), schema.GroupVersion(gatewayv1beta1.GroupVersion)
	pool := schema.GroupVersion{Group: poolv1.GroupName, Version: "v1"}
	return []followedKind{
		{&f.pools, new(poolv1.InferencePool), new(poolv1.InferencePoolList), pool.WithResource("inferencepools"), false, true, true},
		{&f.pods, new(corev1.Pod), new(corev1.PodList), corev1.SchemeGroupVersion.WithResource("pods"), false, true, false},
		{&f.services, new(corev1.Service), new(corev1.ServiceList), corev1.SchemeGroupVersion.WithResource("services"), false, true, true},
		{&f.slices, new(discoveryv1.EndpointSlice), new(discoveryv1.EndpointSliceList), discoveryv1.SchemeGroupVersion.WithResource("endpointslices"), false, true, true},
		{&f.routes, new(gatewayv1.HTTPRoute), new(gatewayv1.HTTPRouteList), gateway.WithResource("httproutes"), false, false, true},
		{&f.gateways, new(gatewayv1.Gateway), new(gatewayv1.GatewayList), gateway.WithResource("gateways"), false, false, true},
		{&f.classes, new(gatewayv1.GatewayClass), new(gatewayv1.GatewayClassList), gateway.WithResource("gatewayclasses"), true, false, true},
		{&f.grants, new(gatewayv1beta1.ReferenceGrant), new(gatewayv1beta1.ReferenceGrantList), older.WithResource("referencegrants"), false, false, true},
	}
}

func newPoolFeed(config *rest.Config, log *slog.Logger) (*poolFeed, error) {
	f := &poolFeed{log: log, scheme: runtime.NewScheme(), news: newBell(), words: newBell()}
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, discoveryv1.AddToScheme, gatewayv1.Install, gatewayv1beta1.Install, poolv1.Install, metav1.AddMetaToScheme} {
		if err := add(f.scheme); err != nil {
			return nil, fmt.Errorf("cannot put types together: %w", err)
		}
	}
	m := meta.NewDefaultRESTMapper(nil)
	f.mapper = m
	for _, k := range f.kinds() {
		kinds, _, err := f.scheme.ObjectKinds(k.object)
		if err != nil {
			return nil, fmt.Errorf("cannot put types together: %w", err)
		}
		scope := meta.RESTScope(meta.RESTScopeNamespace)
		if k.cluster {
			scope = meta.RESTScopeRoot
		}
		m.AddSpecific(k.resource.GroupVersion().WithKind(kinds[0].Kind), k.resource, k.resource, scope)
	}
	secrets := corev1.SchemeGroupVersion.WithResource("secrets")
	m.AddSpecific(corev1.SchemeGroupVersion.WithKind("Secret"), secrets, secrets, meta.RESTScopeNamespace)
	var err error
	if f.client, err = client.NewWithWatch(config, client.Options{Scheme: f.scheme, Mapper: m}); err != nil {
		return nil, fmt.Errorf("cannot make a client of the API server %s: %w", config.Host, err)
	}
	for _, k := range f.kinds() {
		if err := f.follow(k); err != nil {
			return nil, fmt.Errorf("cannot follow %s: %w", k.resource.Resource, err)
		}
	}
	return f, nil
}

// follow makes the informer of a kind.
func (f *poolFeed) follow(k followedKind) error {
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			list := k.list.DeepCopyObject().(client.ObjectList)
			return list, f.client.List(ctx, list, &client.ListOptions{Raw: &o})
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return f.client.Watch(ctx, k.list.DeepCopyObject().(client.ObjectList), &client.ListOptions{Raw: &o})
		},
	}
	informer := cache.NewSharedIndexInformer(lw, k.object, 0, cache.Indexers{})
	if err := informer.SetTransform(lean); err != nil {
		return err
	}
	said := "" // by the one goroutine of this kind
	if err := informer.SetWatchErrorHandlerWithContext(func(ctx context.Context, _ *cache.Reflector, err error) {
		if text := err.Error(); ctx.Err() == nil && text != said {
			said = text
			f.log.Warn("cannot follow what routes to InferencePools depend on: what is known stays", "resource", k.resource.GroupResource().String(), "error", err)
		}
	}); err != nil {
		return err
	}
	changed := func() {
		if k.endpoints {
			f.news.news(settle)
		}
		if k.status {
			f.words.news(statusEvery)
		}
	}
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { changed() },
		DeleteFunc: func(any) { changed() },
		UpdateFunc: func(before, after any) {
			if !alike(before, after) {
				changed()
			}
		},
	})
	*k.into = informer
	return err
}

// lean takes from an object what nobody here reads: in a large cluster it is most of what there is.
func lean(o any) (any, error) {
	if pod, ok := o.(*corev1.Pod); ok {
		return slim(pod), nil
	}
	if m, ok := o.(metav1.Object); ok {
		m.SetManagedFields(nil)
	}
	return o, nil
}

// alike reports whether two states of an object differ in their versions alone.
func alike(before, after any) bool {
	a, ok := before.(client.Object)
	b, also := after.(client.Object)
	if !ok || !also {
		return false
	}
	a = a.DeepCopyObject().(client.Object)
	a.SetResourceVersion(b.GetResourceVersion())
	return equality.Semantic.DeepEqual(a, b)
}

// run follows until ctx ends.
func (f *poolFeed) run(ctx context.Context) {
	for _, k := range f.kinds() {
		go (*k.into).RunWithContext(ctx)
	}
	for _, k := range f.kinds() {
		if !cache.WaitForCacheSync(ctx.Done(), (*k.into).HasSynced) {
			return
		}
	}
	f.news.ring()
	f.words.ring()
	<-ctx.Done()
}

// world is what is known. It is not ok before everything that endpoints, or with status the status of pools, depend on has
// been read once: what could not be read is not absent.
func (f *poolFeed) world(status bool) (w *world, ok bool) {
	for _, k := range f.kinds() {
		if (k.endpoints || status && k.status) && !(*k.into).HasSynced() {
			return nil, false
		}
	}
	w = &world{pods: make(map[string][]*corev1.Pod), services: make(map[types.NamespacedName]*corev1.Service),
		slices: make(map[types.NamespacedName][]*discoveryv1.EndpointSlice), gateways: make(map[types.NamespacedName]*gatewayv1.Gateway),
		classes: make(map[string]*gatewayv1.GatewayClass)}
	w.pools, w.routes, w.grants = all[*poolv1.InferencePool](f.pools), all[*gatewayv1.HTTPRoute](f.routes), all[*gatewayv1beta1.ReferenceGrant](f.grants)
	for _, pod := range all[*corev1.Pod](f.pods) {
		w.pods[pod.Namespace] = append(w.pods[pod.Namespace], pod)
	}
	for _, s := range all[*corev1.Service](f.services) {
		w.services[nameOf(s)] = s
	}
	for _, s := range all[*discoveryv1.EndpointSlice](f.slices) {
		name := types.NamespacedName{Namespace: s.Namespace, Name: s.Labels[discoveryv1.LabelServiceName]}
		w.slices[name] = append(w.slices[name], s)
	}
	for _, g := range all[*gatewayv1.Gateway](f.gateways) {
		w.gateways[nameOf(g)] = g
	}
	for _, c := range all[*gatewayv1.GatewayClass](f.classes) {
		w.classes[c.Name] = c
	}
	return w, true
}

// all are an informer's objects.
func all[T any](informer cache.SharedIndexInformer) []T {
	stored := informer.GetStore().List()
	list := make([]T, 0, len(stored))
	for _, o := range stored {
		if t, ok := o.(T); ok {
			list = append(list, t)
		}
	}
	return list
}
