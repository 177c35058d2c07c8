package envoy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	clusterservice "github.com/envoyproxy/go-control-plane/envoy/service/cluster/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	endpointservice "github.com/envoyproxy/go-control-plane/envoy/service/endpoint/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/sluice-gateway/sluice/fleet"
)

// lookEvery is the time between two looks at the fleet: what joins, leaves or stalls is known to every Envoy a moment
// after it.
const lookEvery = 50 * time.Millisecond

// Discovery tells Envoys what there is: endpoints always, and listener, its filters, routes and clusters to those whose bootstrap is
// Dynamic. Every Envoy is told the same, whatever it calls itself. Make one with NewDiscovery.
type Discovery struct {
	fleet  *fleet.Fleet
	caches map[string]*cache.LinearCache

	mu       sync.Mutex
	sockets  map[string]map[string]string // TLS settings by pool and by host
	looked   uint64                       // the fleet's version
	told     map[string]*endpointv3.ClusterLoadAssignment
	clusters []string
}

// NewDiscovery makes a discovery service of a fleet. Before Know or Apply no endpoint
// is reached by TLS, and there are no listeners and no clusters.
func NewDiscovery(f *fleet.Fleet) *Discovery {
	d := &Discovery{fleet: f, caches: make(map[string]*cache.LinearCache), told: make(map[string]*endpointv3.ClusterLoadAssignment)}
	for _, kind := range []string{resource.EndpointType, resource.ClusterType, resource.ExtensionConfigType, resource.RouteType, resource.ListenerType} {
		d.caches[kind] = cache.NewLinearCache(kind)
	}
	return d
}

// Register serves discovery at a gRPC server until ctx ends.
func (d *Discovery) Register(ctx context.Context, s *grpc.Server) {
	mux := &cache.MuxCache{
		Classify:      func(r *cache.Request) string { return r.GetTypeUrl() },
		ClassifyDelta: func(r *cache.DeltaRequest) string { return r.GetTypeUrl() },
		Caches:        make(map[string]cache.Cache),
	}
	for kind, c := range d.caches {
		mux.Caches[kind] = c
	}
	all := server.NewServer(ctx, mux, nil)
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(s, all)
	endpointservice.RegisterEndpointDiscoveryServiceServer(s, all)
	clusterservice.RegisterClusterDiscoveryServiceServer(s, all)
}

// Know takes over how the endpoints of pools are reached, and publishes those there are.
func (d *Discovery) Know(pools []Pool) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.know(pools)
}

func (d *Discovery) know(pools []Pool) error {
	d.sockets = make(map[string]map[string]string)
	for i := range pools {
		p := &pools[i]
		d.sockets[p.Name] = make(map[string]string)
		for _, e := range p.Endpoints {
			d.sockets[p.Name][e.Host] = e.TLS.key()
		}
	}
	return d.publish()
}

// Apply takes over options for Envoys that discover their listener, routes and clusters, too, and does what Know does.
// Faulty ones change nothing.
func (d *Discovery) Apply(o Options) error {
	r, err := resourcesOf(o)
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.know(o.Pools); err != nil {
		return err
	}
	// Clusters before the routes to them, and those that are gone after the routes from them.
	update, names := make(map[string]types.Resource), make([]string, 0, len(r.clusters))
	for _, c := range r.clusters {
		update[c.Name], names = c, append(names, c.Name)
	}
	filters := make(map[string]types.Resource)
	for _, f := range r.filters {
		filters[f.Name] = f
	}
	gone := slices.DeleteFunc(d.clusters, func(name string) bool { return slices.Contains(names, name) })
	for _, step := range []struct {
		kind string
		set  map[string]types.Resource
		gone []string
	}{
		{resource.ClusterType, update, nil},
		{resource.ExtensionConfigType, filters, nil},
		{resource.RouteType, map[string]types.Resource{routesName: r.routes}, nil},
		{resource.ListenerType, map[string]types.Resource{listenerName: r.listener}, nil},
		{resource.ClusterType, nil, gone},
	} {
		if err := d.caches[step.kind].UpdateResources(step.set, step.gone); err != nil {
			return fmt.Errorf("cannot publish %s: %w", step.kind, err)
		}
	}
	d.clusters = names
	return nil
}

// Run publishes the fleet's changes until ctx ends.
func (d *Discovery) Run(ctx context.Context) error {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		d.mu.Lock()
		err := d.look()
		d.mu.Unlock()
		if err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// look publishes the fleet if it has changed.
func (d *Discovery) look() error {
	version := d.fleet.Version()
	if version == d.looked {
		return nil
	}
	err := d.publish()
	d.looked = version // what has changed meanwhile is published again
	return err
}

// publish tells of the pools that are not as they were told of.
func (d *Discovery) publish() error {
	update, there := make(map[string]types.Resource), make(map[string]bool)
	for _, p := range d.fleet.Pools() {
		name := clusterOf(p.Name())
		there[name] = true
		a, err := d.assignment(p)
		if err != nil {
			return err
		}
		if old := d.told[name]; old == nil || !proto.Equal(old, a) {
			d.told[name], update[name] = a, a
		}
	}
	var gone []string
	for name := range d.told {
		if !there[name] {
			delete(d.told, name)
			gone = append(gone, name)
		}
	}
	if len(update)+len(gone) == 0 {
		return nil
	}
	if err := d.caches[resource.EndpointType].UpdateResources(update, gone); err != nil {
		return fmt.Errorf("cannot publish endpoints: %w", err)
	}
	return nil
}

// assignment is a pool as Envoy sees it. An address that makes no progress is unhealthy: where the picker's list is used
// up, Envoy chooses among the healthy. Nothing else is, since whom the picker would rather not have is better than nobody.
// No kind of health has Envoy end requests that run: not what is discovered, and not its own checks either.
func (d *Discovery) assignment(p *fleet.Pool) (*endpointv3.ClusterLoadAssignment, error) {
	b := new(builder)
	members := &endpointv3.LocalityLbEndpoints{}
	for _, a := range p.Addresses(nil) {
		m := b.member(a.Endpoint.Address(), a.Endpoint.Host, d.sockets[p.Name()][a.Endpoint.Host])
		m.HealthStatus = corev3.HealthStatus_HEALTHY
		if a.Stalled {
			m.HealthStatus = corev3.HealthStatus_UNHEALTHY
		}
		members.LbEndpoints = append(members.LbEndpoints, m)
	}
	a := &endpointv3.ClusterLoadAssignment{ClusterName: clusterOf(p.Name()), Endpoints: []*endpointv3.LocalityLbEndpoints{members}}
	if err := errors.Join(append(b.faults, a.ValidateAll())...); err != nil {
		return nil, fmt.Errorf("cannot publish pool %q: %w", p.Name(), err)
	}
	return a, nil
}
