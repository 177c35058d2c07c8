package kube

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	endpointservice "github.com/envoyproxy/go-control-plane/envoy/service/endpoint/v3"
	cachetypes "github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	discovery "github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	"k8s.io/apimachinery/pkg/types"
)

// Kinds of resources that Envoys ask for by name.
const (
	resourcePool   = "pool"   // the members of an InferencePool
	resourcePicker = "picker" // the pickers that it names
)

// resourceName is what an Envoy asks for.
func resourceName(kind string, pool types.NamespacedName) string {
	return kind + "/" + pool.Namespace + "/" + pool.Name
}

// endpoints tells Envoys of the members of pools and of their pickers, each time they change.
type endpoints struct {
	log   *slog.Logger
	cache *cache.LinearCache
	told  map[string]*endpointv3.ClusterLoadAssignment
	// faults are what was complained about, so that each is once.
	faults map[string]string
}

func newEndpoints(log *slog.Logger) *endpoints {
	return &endpoints{log: log, cache: cache.NewLinearCache(resource.EndpointType), told: make(map[string]*endpointv3.ClusterLoadAssignment), faults: make(map[string]string)}
}

// register serves them at a gRPC server until ctx ends.
func (e *endpoints) register(ctx context.Context, s *grpc.Server) {
	endpointservice.RegisterEndpointDiscoveryServiceServer(s, discovery.NewServer(ctx, e.cache, nil))
}

// publish tells of what is not as it was told of.
func (e *endpoints) publish(w *world) error {
	all, faults := assignments(w)
	for pool, fault := range faults {
		if e.faults[pool] != fault {
			e.log.Warn("InferencePool is not whole", "pool", pool, "error", fault)
		}
	}
	e.faults = faults
	update := make(map[string]cachetypes.Resource)
	for name, a := range all {
		if old := e.told[name]; old == nil || !proto.Equal(old, a) {
			update[name] = a
		}
	}
	var gone []string
	for name := range e.told {
		if all[name] == nil {
			gone = append(gone, name)
		}
	}
	if len(update)+len(gone) == 0 {
		return nil
	}
	if err := e.cache.UpdateResources(update, gone); err != nil {
		return fmt.Errorf("cannot publish endpoints: %w", err)
	}
	e.told = all
	return nil
}

// assignments are two resources for each pool: its members, and its pickers. Whether a route may use it is Envoy Gateway's to
// say. Faults are by pool.
func assignments(w *world) (all map[string]*endpointv3.ClusterLoadAssignment, faults map[string]string) {
	all, faults = make(map[string]*endpointv3.ClusterLoadAssignment), make(map[string]string)
	for _, pool := range w.pools {
		name := nameOf(pool)
		members, err := membersOf(pool, w.pods[name.Namespace])
		if err != nil {
			faults[name.String()] = err.Error()
		}
		asked, err := pickersOf(pool, w)
		if err != nil {
			faults[name.String()] = err.Error()
		}
		if asked == nil {
			asked = new(pickers)
		}
		for _, a := range []*endpointv3.ClusterLoadAssignment{
			assignment(resourceName(resourcePool, name), members, nil),
			assignment(resourceName(resourcePicker, name), asked.addresses, asked.metadata()),
		} {
			all[a.ClusterName] = a
		}
	}
	return all, faults
}

// metadata is by what clusters choose how pickers are spoken to.
func (p *pickers) metadata() *corev3.Metadata {
	if !p.plain {
		return nil
	}
	return &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{"envoy.transport_socket_match": plainMatch()}}
}

// assignment is a list of addresses as Envoy reads it. One locality with a weight is all that policies which weigh localities ask.
func assignment(name string, addresses []string, m *corev3.Metadata) *endpointv3.ClusterLoadAssignment {
	group := &endpointv3.LocalityLbEndpoints{Locality: new(corev3.Locality), LoadBalancingWeight: wrapperspb.UInt32(1)}
	for _, address := range addresses {
		at, err := netip.ParseAddrPort(address)
		if err != nil {
			continue // a slice of a Service may hold what no proxy could dial
		}
		group.LbEndpoints = append(group.LbEndpoints, &endpointv3.LbEndpoint{Metadata: m, HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{
			Address: &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
				Address: at.Addr().String(), PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: uint32(at.Port())}}}}}}})
	}
	return &endpointv3.ClusterLoadAssignment{ClusterName: name, Endpoints: []*endpointv3.LocalityLbEndpoints{group}}
}
