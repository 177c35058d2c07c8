package kube

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sluice-gateway/sluice/api/v1alpha1"
	"github.com/sluice-gateway/sluice/translate"
)

// Times of a turn.
const (
	// together is how long changes are waited for that come with another one: that long at least, share times as long as a
	// look takes where that is more, and patience at most. So a thousand pods that come and go take a tenth of a core.
	together = 100 * time.Millisecond
	share    = 10
	patience = time.Second
	// lookSeldom is how often kinds and rights are looked at anyway, lookOften how often after something has changed there,
	// lookTimes how many times.
	lookSeldom = 30 * time.Second
	lookOften  = time.Second
	lookTimes  = 5
)

// workers is how many configurations are looked at at a time; none is by two of them.
const workers = 4

// turn is one time of writing. Everything in it ends with it, and the next one begins by reading.
type turn struct {
	*Controller
	log         *slog.Logger
	feeds       *feeds
	definitions *definitions
	memo        *memo
	keys        *keyring
	asker       *asker
	teller      *teller
	queue       workqueue.TypedRateLimitingInterface[types.NamespacedName]
	// nudge asks for a look at kinds and rights.
	nudge chan struct{}

	mu sync.Mutex
	// classFault is what is wrong with the GatewayClass, empty where nothing is.
	classFault string
	// refusals count, took is how long the last look took, said is when a status was written last, by configuration.
	refusals map[types.NamespacedName]int
	took     map[types.NamespacedName]time.Duration
	said     map[types.NamespacedName]time.Time
}

func newTurn(c *Controller) *turn {
	t := &turn{Controller: c, log: c.log, memo: newMemo(c.options.Now), nudge: make(chan struct{}, 1), refusals: make(map[types.NamespacedName]int), took: make(map[types.NamespacedName]time.Duration), said: make(map[types.NamespacedName]time.Time)}
	t.queue = workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[types.NamespacedName](50*time.Millisecond, time.Minute))
	t.definitions = &definitions{ask: c.found.ServerResourcesForGroupVersionWithContext}
	t.feeds = &feeds{config: c.config, http: c.http, scheme: c.scheme, mapper: c.mapper, log: c.log, allowed: c.mayFollow, lost: t.look, running: make(map[string]*feed)}
	t.keys = &keyring{rings: make(map[types.NamespacedName]*ring)}
	t.asker = newAsker(c.options.Now, c.log)
	return t
}

// run writes until ctx ends.
func (t *turn) run(ctx context.Context) error {
	defer t.feeds.stopAll()
	var err error
	if t.teller, err = t.newTeller(ctx); err != nil {
		return err
	}
	defer t.teller.end()
	var all sync.WaitGroup
	defer all.Wait()
	all.Go(func() { t.keepLooking(ctx) })
	all.Go(func() { t.keepAsking(ctx) })
	all.Go(func() { t.migrate(ctx) })
	for range workers {
		all.Go(func() {
			for t.work(ctx) {
			}
		})
	}
	<-ctx.Done()
	t.queue.ShutDown()
	return nil
}

// work looks at the next configuration, and reports whether there may be another one.
func (t *turn) work(ctx context.Context) bool {
	key, over := t.queue.Get()
	if over {
		return false
	}
	defer t.queue.Done(key)
	wait, err := t.reconcile(ctx, key)
	switch {
	case err != nil && ctx.Err() == nil:
		t.log.Warn("a gateway is not what it should be yet, and is looked at again", "gateway", key.String(), "error", err)
		t.queue.AddRateLimited(key)
		return true
	case wait > 0:
		t.queue.AddAfter(key, wait)
	}
	t.queue.Forget(key)
	return true
}

// look asks for a look at kinds and rights.
func (t *turn) look() {
	select {
	case t.nudge <- struct{}{}:
	default:
	}
}

// keepLooking has feeds come and go until ctx ends. The API server says what it knows some moments after a definition has
// changed, so that one change is followed by several looks.
func (t *turn) keepLooking(ctx context.Context) {
	often, checked := lookTimes, false
	for {
		changed, err := t.definitions.refresh(ctx)
		if err != nil && ctx.Err() == nil {
			t.log.Warn("cannot learn which kinds of objects there are", "error", err)
		}
		if !checked && t.definitions.whole() {
			checked = true
			t.preflight(ctx)
		}
		changed = t.keepClass(ctx) || changed
		if t.feeds.follow(ctx, t.sources(ctx)) || changed {
			t.everyone(ctx)
		}
		t.metrics.missing.Set(float64(len(t.feeds.missing())))
		wait := lookSeldom
		if often > 0 || !t.definitions.whole() {
			often, wait = often-1, lookOften
		}
		select {
		case <-ctx.Done():
			return
		case <-t.nudge:
			often = lookTimes
		case <-time.After(wait):
		}
	}
}

// Sources that code asks by name.
func (t *turn) configs() *watched {
	return &watched{kind: configKind(), whole: true, told: t.configChanged, gone: t.configGone}
}

func (t *turn) policies() *watched {
	return &watched{kind: policyKind(), whole: true, told: t.policyChanged, gone: t.documentChanged}
}

func (t *turn) adapters() *watched {
	return &watched{kind: mapKind(), whole: true, labels: map[string]string{adapterLabel: "true"}, told: t.documentChanged, gone: t.documentChanged}
}

// documents are those of a kind that lie beside configurations, in their namespaces.
func (t *turn) documents(k kind) *watched {
	return &watched{kind: k, whole: true, told: t.documentChanged, gone: t.documentChanged}
}

func (t *turn) podsOf(namespace string) *watched {
	return &watched{kind: podKind(), namespace: namespace, whole: true, slimmed: slimPod, same: samePod, told: t.documentChanged, gone: t.documentChanged}
}

func (t *turn) servicesOf(namespace string) *watched {
	return &watched{kind: serviceKind(), namespace: namespace, whole: true, slimmed: slimService, told: t.documentChanged, gone: t.documentChanged}
}

// made is the feed of a kind that plans have objects of.
func (t *turn) made(k kind) *watched {
	s := &watched{kind: k, labels: map[string]string{translate.LabelManagedBy: translate.ManagedBy}, owned: true, told: t.madeChanged, gone: t.madeGone(k), ended: func() { t.memo.forgetKind(k.Kind) }}
	switch k.Kind {
	case kindDeployment, kindGateway, kindRoute, kindCertificate:
		s.whole, s.slimmed = true, slimSpec
	}
	return s
}

// authorities are the Secrets of the system namespace, where nobody else's are.
func (t *turn) authorities() *watched {
	return &watched{kind: secretKind(), namespace: t.options.Settings.SystemNamespace, labels: map[string]string{translate.LabelManagedBy: translate.ManagedBy},
		owned: true, told: t.keysChanged, gone: t.keysChanged}
}

// keysChanged: what was read of a configuration's keys may be wrong.
func (t *turn) keysChanged(o client.Object) {
	if key, ok := ownerOf(o); ok {
		t.keys.keep(key, nil)
		t.again(key)
	}
}

// adapterLabel marks the ConfigMaps that list adapters.
const adapterLabel = "inference.networking.k8s.io/bbr-managed"

// sources are what has to be followed now: what configurations are made of, what was made of them, and what is beside them
// in their namespaces.
func (t *turn) sources(ctx context.Context) []watched {
	if !t.definitions.whole() {
		return nil
	}
	list := []watched{
		{kind: definitionKind(), told: func(client.Object) { t.look() }, gone: func(client.Object) { t.look() }},
		*t.configs(), *t.policies(), *t.adapters(), *t.authorities(),
	}
	for _, k := range slices.Concat([]kind{endpointsKind()}, rewriteKinds(), objectiveKinds()) {
		list = append(list, *t.documents(k))
	}
	for _, k := range t.kinds() {
		list = append(list, *t.made(k))
	}
	var all v1alpha1.InferenceGatewayConfigList
	if err := t.feeds.list(ctx, t.configs(), &all); err == nil {
		services := make(map[string]bool)
		for i := range all.Items {
			c := &all.Items[i]
			services[c.Namespace] = services[c.Namespace] || c.Spec.BBR.DefaultBackend != nil
		}
		for _, ns := range slices.Sorted(maps.Keys(services)) {
			list = append(list, *t.podsOf(ns))
			if services[ns] {
				list = append(list, *t.servicesOf(ns))
			}
		}
	}
	return slices.DeleteFunc(list, func(s watched) bool { return !t.definitions.knows(s.kind) })
}

// kinds are those that plans have objects of and the API server knows. Of one that it knows in two versions the first
// counts, since both have the same objects.
func (t *turn) kinds() []kind {
	var list []kind
	for _, k := range madeKinds() {
		if t.definitions.knows(k) && !slices.ContainsFunc(list, func(m kind) bool { return m.plural() == k.plural() }) {
			list = append(list, k)
		}
	}
	return list
}

// again has a configuration looked at, together with what else changes in the next moment.
func (t *turn) again(key types.NamespacedName) {
	t.mu.Lock()
	wait := min(max(together, share*t.took[key]), patience)
	t.mu.Unlock()
	t.queue.AddAfter(key, wait)
}

// everyone has all configurations looked at, and those that are gone and left something.
func (t *turn) everyone(ctx context.Context) {
	for _, key := range t.known(ctx, "") {
		t.again(key)
	}
}

// known are the configurations of a namespace, of all where it is empty.
func (t *turn) known(ctx context.Context, namespace string) []types.NamespacedName {
	var list v1alpha1.InferenceGatewayConfigList
	if err := t.feeds.list(ctx, t.configs(), &list, client.InNamespace(namespace)); err != nil {
		return nil // whoever reads them first is told of each
	}
	keys := make([]types.NamespacedName, len(list.Items))
	for i := range list.Items {
		keys[i] = client.ObjectKeyFromObject(&list.Items[i])
	}
	return keys
}

// configChanged asks for a look at kinds and rights only where something is to be followed that isn't: each status that is written
// is a change, too, and a look is a dozen questions to the API server.
func (t *turn) configChanged(o client.Object) {
	t.again(client.ObjectKeyFromObject(o))
	c, ok := o.(*v1alpha1.InferenceGatewayConfig)
	if !ok || t.feeds.has(t.podsOf(c.Namespace)) && (c.Spec.BBR.DefaultBackend == nil || t.feeds.has(t.servicesOf(c.Namespace))) {
		return
	}
	t.look()
}

// configGone: its namespace may have none any more.
func (t *turn) configGone(o client.Object) {
	t.again(client.ObjectKeyFromObject(o))
	t.look()
}

// documentChanged: something is different in a namespace that configurations there may depend on.
func (t *turn) documentChanged(o client.Object) {
	for _, key := range t.known(context.Background(), o.GetNamespace()) {
		t.again(key)
	}
}

// policyChanged: a policy may be for a configuration that isn't there, and has to be told so.
func (t *turn) policyChanged(o client.Object) {
	t.documentChanged(o)
	if p, ok := o.(*v1alpha1.GatewayPolicy); ok {
		t.again(types.NamespacedName{Namespace: p.Namespace, Name: p.Spec.TargetRef.Name})
	}
}

func (t *turn) madeChanged(o client.Object) {
	if key, ok := ownerOf(o); ok {
		t.again(key)
	}
}

func (t *turn) madeGone(k kind) func(client.Object) {
	return func(o client.Object) {
		t.memo.forget(objectKey{k.Kind, o.GetNamespace(), o.GetName()})
		t.madeChanged(o)
	}
}

// ownerOf is the configuration that an object was made for, if it was made here.
func ownerOf(o client.Object) (types.NamespacedName, bool) {
	if o.GetLabels()[translate.LabelManagedBy] != translate.ManagedBy {
		return types.NamespacedName{}, false
	}
	namespace, name, ok := strings.Cut(o.GetAnnotations()[translate.AnnotationOwner], "/")
	return types.NamespacedName{Namespace: namespace, Name: name}, ok
}
