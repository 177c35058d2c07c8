package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	coordination "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/sluice-gateway/sluice/api/v1alpha1"
	"github.com/sluice-gateway/sluice/translate"
)

// fieldManager is the name under which everything is written. What it has applied and applies no longer goes.
const fieldManager = "sluice"

// leaseName is the Lease that the replica holds which writes.
const leaseName = translate.Controller

// ControlOptions are what a Controller goes by.
type ControlOptions struct {
	// Settings are the installation's, with its image.
	Settings translate.Settings
	// ClassOwner is the controllerName of the GatewayClass in Settings, where that is to be made if it isn't there; empty
	// where somebody else makes it.
	ClassOwner string
	// Identity tells this replica from the others.
	Identity string
	// Now is the time of day, by which certificates are made and conditions change.
	Now func() time.Time
	// Log gets what changes, Registerer the metrics.
	Log        *slog.Logger
	Registerer prometheus.Registerer
	// Lease is for how long a replica that has vanished keeps the others from writing; 15 s if it is 0.
	Lease time.Duration
	// Ask is how often pickers are asked what they know of pods; 15 s if it is 0. Just after a document has changed they are asked more
	// often.
	Ask time.Duration
}

// Controller makes what InferenceGatewayConfigs ask for, and says in their status how far that has come. Of several
// replicas one writes.
type Controller struct {
	options ControlOptions
	log     *slog.Logger
	config  *rest.Config
	http    *http.Client
	scheme  *runtime.Scheme
	mapper  meta.RESTMapper
	client  client.Client
	found   *discovery.DiscoveryClient
	metrics *controlMetrics
	// leads: this replica writes. reached: an API server has answered once.
	leads, reached atomic.Bool
}

// NewController makes a Controller that reaches its API server as config says. It asks it nothing before Run.
func NewController(config *rest.Config, o ControlOptions) (*Controller, error) {
	if o.Settings.SystemNamespace == "" {
		o.Settings.SystemNamespace = translate.DefaultSystemNamespace
	}
	if o.Lease == 0 {
		o.Lease = 15 * time.Second
	}
	if o.Settings.GatewayClass == "" {
		o.Settings.GatewayClass = translate.DefaultGatewayClass
	}
	if o.Ask == 0 {
		o.Ask = 15 * time.Second
	}
	log.SetLogger(logr.FromSlogHandler(o.Log.Handler())) // the library has one for the whole process
	own := rest.CopyConfig(config)
	own.QPS = -1 // an API server shares itself out among its clients; one that waits by itself is late for nothing
	own.WarningHandlerWithContext = rest.NoWarnings{}
	h, err := rest.HTTPClientFor(own)
	if err != nil {
		return nil, fmt.Errorf("cannot connect to the API server %s: %w", config.Host, err)
	}
	c := &Controller{options: o, log: o.Log, config: own, http: h, mapper: mapper(), metrics: newControlMetrics(o.Registerer)}
	if c.scheme, err = newScheme(); err != nil {
		return nil, err
	}
	if c.client, err = client.New(own, client.Options{HTTPClient: h, Scheme: c.scheme, Mapper: c.mapper}); err != nil {
		return nil, fmt.Errorf("cannot make a client of the API server %s: %w", config.Host, err)
	}
	if c.found, err = discovery.NewDiscoveryClientForConfigAndClient(own, h); err != nil {
		return nil, fmt.Errorf("cannot make a client of the API server %s: %w", config.Host, err)
	}
	return c, nil
}

// newScheme knows the types of what is read whole, and no others: one with every kind takes megabytes.
func newScheme() (*runtime.Scheme, error) {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, appsv1.AddToScheme, authorizationv1.AddToScheme, eventsv1.AddToScheme,
		gatewayv1.Install, v1alpha1.AddToScheme, metav1.AddMetaToScheme} {
		if err := add(s); err != nil {
			return nil, fmt.Errorf("cannot put types together: %w", err)
		}
	}
	return s, nil
}

// mapper says where kinds are found. The table is ours: asking the API server would make a kind that is not there a
// mistake, and one that has come or gone news that nobody hears.
func mapper(more ...kind) meta.RESTMapper {
	m := meta.NewDefaultRESTMapper(nil)
	add := func(k kind, scope meta.RESTScope) {
		gv := k.GroupVersion()
		m.AddSpecific(k.GroupVersionKind, gv.WithResource(k.resource), gv.WithResource(k.resource), scope)
		m.AddSpecific(listOf(k.GroupVersionKind), gv.WithResource(k.resource), gv.WithResource(k.resource), scope) // caches of one namespace ask for it
	}
	for _, k := range slices.Concat(madeKinds(), rewriteKinds(), objectiveKinds(), ownKinds(), []kind{podKind(), secretKind()}, more) {
		add(k, meta.RESTScopeNamespace)
	}
	add(definitionKind(), meta.RESTScopeRoot)
	add(classKind(), meta.RESTScopeRoot)
	add(of("", "v1", "Namespace", "namespaces"), meta.RESTScopeRoot)
	add(kind{authorizationv1.SchemeGroupVersion.WithKind("SelfSubjectAccessReview"), "selfsubjectaccessreviews"}, meta.RESTScopeRoot)
	return m
}

// Leads reports whether this replica is the one that writes.
func (c *Controller) Leads() bool { return c.leads.Load() }

// Ready says why nobody should count on this replica, nil where nothing is against it. One that waits for its turn is as
// ready as the one that writes.
func (c *Controller) Ready() error {
	if !c.reached.Load() {
		return errors.New("the API server has not answered yet")
	}
	return nil
}

// Run writes while it is this replica's turn, until ctx ends. An API server that is gone ends nothing: the turn is over,
// and there is another one when it is back.
func (c *Controller) Run(ctx context.Context) error {
	ctx = logr.NewContext(ctx, logr.FromSlogHandler(c.log.Handler())) // by which the libraries log
	for ctx.Err() == nil {
		if err := c.takeTurn(ctx); err != nil {
			return err
		}
	}
	return nil
}

// takeTurn waits for this replica's turn, and writes until it is over.
func (c *Controller) takeTurn(ctx context.Context) error {
	renewing := rest.CopyConfig(c.config)
	renewing.Timeout = c.options.Lease / 3
	leases, err := coordination.NewForConfig(renewing) // of all the kinds that there are clients for this one is enough
	if err != nil {
		return fmt.Errorf("cannot take part in the election of who writes: %w", err)
	}
	lock := &resourcelock.LeaseLock{LeaseMeta: metav1.ObjectMeta{Namespace: c.options.Settings.SystemNamespace, Name: leaseName}, Client: leases,
		LockConfig: resourcelock.ResourceLockConfig{Identity: c.options.Identity}}
	// Whoever gives the lease back has stopped writing before: so the election ends last.
	held, giveBack := context.WithCancel(context.WithoutCancel(ctx))
	defer giveBack()
	ended := make(chan struct{})
	started := make(chan struct{})
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: lock, Name: leaseName, ReleaseOnCancel: true,
		LeaseDuration: c.options.Lease, RenewDeadline: c.options.Lease * 2 / 3, RetryPeriod: c.options.Lease / 8,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(leading context.Context) {
				close(started)
				defer close(ended)
				c.write(ctx, leading)
				giveBack()
			},
			OnStoppedLeading: func() {},
			OnNewLeader: func(identity string) {
				c.reached.Store(true)
				if identity != c.options.Identity {
					c.log.Info("another replica writes", "replica", identity)
				}
			},
		},
	})
	if err != nil {
		return fmt.Errorf("cannot take part in the election of who writes: %w", err)
	}
	stopWaiting := context.AfterFunc(ctx, func() {
		select {
		case <-started: // it stops by itself, and gives back
		default:
			giveBack()
		}
	})
	defer stopWaiting()
	elector.Run(held)
	select {
	case <-started:
		<-ended
	default:
	}
	return nil
}

// write is what happens in a turn. It returns when either context ends and everything has stopped.
func (c *Controller) write(ctx, held context.Context) {
	both, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(held, cancel)()
	c.leads.Store(true)
	defer c.leads.Store(false)
	c.metrics.leads.Set(1)
	defer c.metrics.leads.Set(0)
	c.log.Info("this replica writes", "replica", c.options.Identity)
	if err := newTurn(c).run(both); err != nil {
		c.log.Error("this replica stops writing", "error", err)
	}
	c.log.Info("this replica writes no longer", "replica", c.options.Identity)
}

// listOf is the kind of lists of a kind.
func listOf(k schema.GroupVersionKind) schema.GroupVersionKind {
	return k.GroupVersion().WithKind(k.Kind + "List")
}
