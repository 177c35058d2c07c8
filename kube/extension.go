package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/sluice-gateway/sluice/translate"
)

// ExtensionOptions are what an Extension goes by.
type ExtensionOptions struct {
	// Listen is where Envoy Gateway and Envoys reach it. They call it by the name of the chart's Service, at the same port.
	Listen string
	// GatewayClass is one of the classes whose Envoy Gateway asks it: all classes with the same controllerName are.
	GatewayClass string
	// SystemNamespace is where its Service is, and where keys are: its own, and those for Envoys.
	SystemNamespace string
	// Leads reports whether this replica writes; nil: it does.
	Leads func() bool
	// Now is the time of day, by which certificates are made.
	Now func() time.Time
	Log *slog.Logger
}

// Extension lets HTTPRoutes send to InferencePools, in the Gateways of an Envoy Gateway that asks it: it says how Envoys are
// to be configured, tells them of endpoints as they come and go, and says in the pools' status what holds of them. Every
// replica serves.
type Extension struct {
	options ExtensionOptions
	api     client.Client // no cache
	feed    *poolFeed
	told    *endpoints
	keys    *extensionKeys
	// target is how Envoys name it.
	target string
}

// NewExtension makes one that reaches its API server as config says. It asks it nothing before Run.
func NewExtension(config *rest.Config, o ExtensionOptions) (*Extension, error) {
	_, port, err := net.SplitHostPort(o.Listen)
	if err != nil {
		return nil, fmt.Errorf("cannot listen for Envoy Gateway at %q: %w", o.Listen, err)
	}
	own := rest.CopyConfig(config)
	own.QPS = -1 // an API server shares itself out among its clients
	own.WarningHandlerWithContext = rest.NoWarnings{}
	e := &Extension{options: o, told: newEndpoints(o.Log), target: fmt.Sprintf("dns:///%s.%s.svc:%s", extensionName, o.SystemNamespace, port)}
	if e.feed, err = newPoolFeed(own, o.Log); err != nil {
		return nil, err
	}
	if e.api, err = client.New(own, client.Options{Scheme: e.feed.scheme, Mapper: e.feed.mapper}); err != nil {
		return nil, fmt.Errorf("cannot make a client of the API server %s: %w", config.Host, err)
	}
	e.keys = &extensionKeys{api: e.api, namespace: o.SystemNamespace, now: o.Now}
	return e, nil
}

// settle is how long changes are gathered before Envoys are told of them: pods come and go in groups.
const settle = 20 * time.Millisecond

// statusEvery is the pause between two looks at the status of all pools, lookAgain how long whoever begins to write may take to
// notice that it has to, and a write that failed until it is tried again.
const (
	statusEvery = 200 * time.Millisecond
	lookAgain   = 5 * time.Second
)

// Run serves until ctx ends.
func (e *Extension) Run(ctx context.Context) error {
	l, err := net.Listen("tcp", e.options.Listen)
	if err != nil {
		return fmt.Errorf("cannot listen for Envoy Gateway: %w", err)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s := e.server(ctx)
	var parts sync.WaitGroup
	parts.Go(func() { e.feed.run(ctx) })
	parts.Go(func() { e.write(ctx) })
	parts.Go(func() { e.keep(ctx) })
	parts.Go(func() {
		if err := e.follow(ctx); err != nil {
			cancel(err)
		}
	})
	parts.Go(func() {
		if err := s.Serve(l); err != nil && ctx.Err() == nil {
			cancel(fmt.Errorf("cannot go on serving Envoy Gateway: %w", err))
		}
	})
	<-ctx.Done()
	s.Stop() // what is told has no end of its own, and each call can be made anew
	parts.Wait()
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// follow tells Envoys of endpoints, each time something has changed.
func (e *Extension) follow(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-e.feed.news.rings:
		}
		if w, ok := e.feed.world(false); ok {
			if err := e.told.publish(w); err != nil {
				return err
			}
		}
	}
}

// write keeps the status of pools while this replica writes.
func (e *Extension) write(ctx context.Context) {
	again := time.NewTicker(lookAgain)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-e.feed.words.rings:
		case <-again.C:
		}
		if !e.leads() {
			continue
		}
		w, ok := e.feed.world(true)
		if !ok {
			continue
		}
		if err := writeStatuses(ctx, e.api, w, e.ours(w)); err != nil && ctx.Err() == nil {
			e.options.Log.Warn("the status of InferencePools is not whole: it is tried again", "error", err)
		}
	}
}

// keep sees to the keys, and hears of those that another replica makes.
func (e *Extension) keep(ctx context.Context) {
	pause := time.NewTimer(0)
	defer pause.Stop()
	said := ""
	for {
		select {
		case <-ctx.Done():
			return
		case <-pause.C:
		}
		err := e.keys.look(ctx, e.leads())
		if text := fmt.Sprint(err); err != nil && ctx.Err() == nil && text != said {
			said = text
			e.options.Log.Warn("the extension's keys are as they were: they are looked at again", "error", err)
		}
		if err != nil || e.keys.bundle() == nil {
			pause.Reset(keysSoon)
		} else {
			pause.Reset(keysLater)
		}
	}
}

func (e *Extension) leads() bool { return e.options.Leads == nil || e.options.Leads() }

// ours are the controllerNames of the classes whose Envoy Gateway asks here.
func (e *Extension) ours(w *world) map[string]bool {
	class := w.classes[e.options.GatewayClass]
	if class == nil {
		return nil
	}
	return map[string]bool{string(class.Spec.ControllerName): true}
}

// messageLimit is the largest message: all of what one Envoy is told.
const messageLimit = 256 << 20

// server has both services.
func (e *Extension) server(ctx context.Context) *grpc.Server {
	options := []grpc.ServerOption{grpc.MaxRecvMsgSize(messageLimit), grpc.MaxSendMsgSize(messageLimit),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 30 * time.Second, Timeout: 10 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Second, PermitWithoutStream: true}),
		grpc.Creds(credentials.NewTLS(e.keys.config()))}
	s := grpc.NewServer(options...)
	s.RegisterService(&grpc.ServiceDesc{ServiceName: extensionService, HandlerType: (*any)(nil), Methods: []grpc.MethodDesc{
		hook("PostRouteModify", e.noteRoute), hook("PostTranslateModify", e.translate)}}, e)
	e.told.register(ctx, s)
	return s
}

// known reports whether a caller has shown a certificate: whoever may have keys.
func known(ctx context.Context) bool {
	p, _ := peer.FromContext(ctx)
	if p == nil {
		return false
	}
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	return ok && len(info.State.VerifiedChains) > 0
}

// noteRoute is told of each route with backends that are extensions', and of those.
func (e *Extension) noteRoute(_ context.Context, q *routeRequest) (*routeAnswer, error) {
	var uses []*use
	if q.Context != nil {
		for _, r := range q.Context.Resources {
			u, err := useOf(r.JSON)
			if err != nil {
				return nil, err
			}
			if u != nil {
				uses = append(uses, u)
			}
		}
	}
	if len(uses) == 0 || q.Route == nil {
		return new(routeAnswer), nil // as it was
	}
	return &routeAnswer{Route: q.Route}, stamp(q.Route, uses)
}

// translate is asked about everything that an Envoy is to be told.
func (e *Extension) translate(ctx context.Context, q *translateRequest) (*translateAnswer, error) {
	routes, shown, err := e.read(ctx, q)
	if err != nil {
		return nil, e.failed(err)
	}
	t := &translation{routes: routes, shown: shown, source: endpointSource(e.target, e.keys.bundle())}
	a, err := t.run(q)
	if err != nil {
		return nil, e.failed(err)
	}
	return a, nil
}

// failed says what went wrong here, too: Envoy Gateway keeps what it had, and says so where few look.
func (e *Extension) failed(err error) error {
	e.options.Log.Error("an Envoy stays as it was configured", "error", err)
	return status.Error(codes.Unavailable, err.Error()) // which it tries again a few times
}

// readAtOnce bounds requests to the API server.
const readAtOnce = 16

// read asks the API server for what Envoy Gateway leaves out: how a rule's requests are shared out among its backends, and what
// certificates Envoys show. It is asked itself, and not a copy of what it said before: Envoy Gateway may have heard of a
// change first, and does not ask again.
func (e *Extension) read(ctx context.Context, q *translateRequest) (map[types.NamespacedName]*gatewayv1.HTTPRoute, map[string]*shownTo, error) {
	routes, shown, err := named(q)
	if err != nil {
		return nil, nil, err
	}
	var (
		mu     sync.Mutex
		reads  sync.WaitGroup
		faults []error
		turns  = make(chan struct{}, readAtOnce)
	)
	read := func(key types.NamespacedName, into client.Object, keep func()) {
		reads.Go(func() {
			turns <- struct{}{}
			defer func() { <-turns }()
			err := patiently(ctx, func() error { return e.api.Get(ctx, key, into) })
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				keep()
			case !apierrors.IsNotFound(err): // what has gone is left out
				faults = append(faults, fmt.Errorf("cannot read %T %s: %w", into, key, err))
			}
		})
	}
	for _, key := range slices.Collect(maps.Keys(routes)) {
		route := new(gatewayv1.HTTPRoute)
		read(key, route, func() { routes[key] = route })
	}
	if len(shown) > 0 && !known(ctx) {
		e.options.Log.Warn("Envoys can't ask our own pickers: Envoy Gateway shows no certificate; set extensionManager.service.tls.clientCertificateRef", "configurations", sortedKeys(shown))
		clear(shown)
	}
	for _, config := range sortedKeys(shown) {
		_, name, _ := strings.Cut(config, "/")
		secret := new(corev1.Secret)
		key := types.NamespacedName{Namespace: e.options.SystemNamespace, Name: translate.EnvoySecret(name)}
		read(key, secret, func() {
			shown[config] = &shownTo{secret: key.String(), cert: secret.Data[corev1.TLSCertKey], key: secret.Data[corev1.TLSPrivateKeyKey], authority: secret.Data["ca.crt"]}
		})
	}
	reads.Wait()
	return routes, shown, errors.Join(faults...)
}

// patiently tries to read for a while: Envoy Gateway keeps what it had where a call fails, and does not call again because of
// that.
func patiently(ctx context.Context, read func() error) error {
	var err error
	for pause := range 5 {
		if err = read(); err == nil || apierrors.IsNotFound(err) || apierrors.IsForbidden(err) || ctx.Err() != nil {
			break
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Duration(pause+1) * 400 * time.Millisecond):
		}
	}
	return err
}

// named are the HTTPRoutes with pools, and the configurations that pools of ours belong to.
func named(q *translateRequest) (routes map[types.NamespacedName]*gatewayv1.HTTPRoute, shown map[string]*shownTo, err error) {
	routes, shown = make(map[types.NamespacedName]*gatewayv1.HTTPRoute), make(map[string]*shownTo)
	for _, table := range q.Routes {
		for _, host := range table.VirtualHosts {
			for _, r := range host.Routes {
				uses, err := stampOf(r)
				if err != nil {
					return nil, nil, err
				}
				name, ok := ruleOf(r.Name)
				if len(uses) == 0 || !ok {
					continue
				}
				routes[name.route] = nil
				for _, u := range uses {
					if u.Config != "" {
						shown[u.Config] = nil
					}
				}
			}
		}
	}
	return routes, shown, nil
}
