package envoy

import (
	"errors"
	"fmt"
	"net"
	"path"
	"strings"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	metricsv3 "github.com/envoyproxy/go-control-plane/envoy/config/metrics/v3"
	overloadv3 "github.com/envoyproxy/go-control-plane/envoy/config/overload/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	connectionsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/resource_monitors/downstream_connections/v3"
	heapv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/resource_monitors/fixed_heap/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// Names of parts that refer to each other.
const (
	listenerName  = "sluice"
	routesName    = "sluice"
	pickerCluster = "picker"
	jwksCluster   = "jwks"
	openCluster   = "open"
	closedCluster = "closed"
	poolPrefix    = "pool/"
	certificate   = "certificate"
)

// maxConnections bounds the clients' connections; without a bound Envoy warns, and runs out of files instead.
const maxConnections = 50000

// Bootstrap makes Envoy's bootstrap of options. An error names everything that forbids one.
func Bootstrap(o Options) (*bootstrapv3.Bootstrap, error) {
	o = o.withDefaults()
	if err := o.check(); err != nil {
		return nil, fmt.Errorf("cannot configure Envoy: %w", err)
	}
	b := &builder{o: o}
	boot := b.bootstrap()
	if err := errors.Join(append(b.faults, boot.ValidateAll())...); err != nil {
		return nil, fmt.Errorf("cannot configure Envoy: %w", err)
	}
	return boot, nil
}

// builder makes messages of options whose defaults are filled in.
type builder struct {
	o      Options
	faults []error
}

// valid is a message that knows what it must hold.
type valid interface {
	proto.Message
	ValidateAll() error
}

// pack wraps a message in an Any. What is in one is checked by nobody later, so it is here.
func (b *builder) pack(m valid) *anypb.Any {
	out := new(anypb.Any)
	b.faults = append(b.faults, m.ValidateAll(), anypb.MarshalFrom(out, m, proto.MarshalOptions{Deterministic: true}))
	return out
}

func (b *builder) bootstrap() *bootstrapv3.Bootstrap {
	boot := &bootstrapv3.Bootstrap{
		Node:             &corev3.Node{Id: "sluice", Cluster: b.o.Name},
		Admin:            &bootstrapv3.Admin{Address: b.admin()},
		StaticResources:  &bootstrapv3.Bootstrap_StaticResources{Clusters: []*clusterv3.Cluster{b.picker()}},
		DynamicResources: &bootstrapv3.Bootstrap_DynamicResources{AdsConfig: b.ads()},
		OverloadManager:  b.overload(),
		StatsConfig:      stats(),
	}
	setDefault(&boot.Node.Cluster, "sluice")
	if b.o.Dynamic {
		boot.DynamicResources.LdsConfig, boot.DynamicResources.CdsConfig = overADS(), overADS()
		return boot
	}
	boot.StaticResources.Listeners = []*listenerv3.Listener{b.listener()}
	boot.StaticResources.Clusters = append(boot.StaticResources.Clusters, b.clusters()...)
	return boot
}

// ads is the discovery service beside the picker. It is asked again soon after it was away: Envoy's own pause grows to
// half a minute, in which a started picker would stay alone.
func (b *builder) ads() *corev3.ApiConfigSource {
	return &corev3.ApiConfigSource{
		ApiType:             corev3.ApiConfigSource_DELTA_GRPC,
		TransportApiVersion: corev3.ApiVersion_V3,
		GrpcServices: []*corev3.GrpcService{{TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{EnvoyGrpc: &corev3.GrpcService_EnvoyGrpc{
			ClusterName: pickerCluster,
			RetryPolicy: &corev3.RetryPolicy{RetryBackOff: &corev3.BackoffStrategy{
				BaseInterval: durationpb.New(100 * time.Millisecond), MaxInterval: durationpb.New(time.Second)}},
		}}}},
		SetNodeOnFirstMessageOnly: true,
	}
}

// overADS is where everything that is discovered comes from. An Envoy that starts without its picker waits no longer
// than a second for it.
func overADS() *corev3.ConfigSource {
	return &corev3.ConfigSource{
		ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}},
		ResourceApiVersion:    corev3.ApiVersion_V3,
		InitialFetchTimeout:   durationpb.New(time.Second),
	}
}

// overload keeps the process within its memory: bodies of many requests add up, whatever bounds each.
func (b *builder) overload() *overloadv3.OverloadManager {
	at := func(action string, share float64) *overloadv3.OverloadAction {
		return &overloadv3.OverloadAction{Name: "envoy.overload_actions." + action, Triggers: []*overloadv3.Trigger{{
			Name:         "envoy.resource_monitors.fixed_heap",
			TriggerOneof: &overloadv3.Trigger_Threshold{Threshold: &overloadv3.ThresholdTrigger{Value: share}},
		}}}
	}
	return &overloadv3.OverloadManager{
		RefreshInterval: durationpb.New(250 * time.Millisecond),
		ResourceMonitors: []*overloadv3.ResourceMonitor{
			{Name: "envoy.resource_monitors.fixed_heap", ConfigType: &overloadv3.ResourceMonitor_TypedConfig{
				TypedConfig: b.pack(&heapv3.FixedHeapConfig{MaxHeapSizeBytes: uint64(b.o.Memory)})}},
			{Name: "envoy.resource_monitors.global_downstream_max_connections", ConfigType: &overloadv3.ResourceMonitor_TypedConfig{
				TypedConfig: b.pack(&connectionsv3.DownstreamConnectionsConfig{MaxActiveDownstreamConnections: maxConnections})}},
		},
		Actions: []*overloadv3.OverloadAction{at("shrink_heap", .9), at("disable_http_keepalive", .95), at("stop_accepting_requests", .98)},
	}
}

// stats keeps what an operator looks at: what clients and endpoints saw, the picker, memory.
func stats() *metricsv3.StatsConfig {
	var patterns []*matcherv3.StringMatcher
	for _, prefix := range []string{"cluster.", "cluster_manager.", "http.sluice.", "listener.", "listener_manager.", "overload.", "server."} {
		patterns = append(patterns, &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Prefix{Prefix: prefix}})
	}
	return &metricsv3.StatsConfig{StatsMatcher: &metricsv3.StatsMatcher{StatsMatcher: &metricsv3.StatsMatcher_InclusionList{
		InclusionList: &matcherv3.ListStringMatcher{Patterns: patterns}}}}
}

// address turns HOST:PORT, which has been checked, into Envoy's form.
func (b *builder) address(text string) *corev3.Address {
	host, port, err := splitAddress(text)
	b.faults = append(b.faults, err)
	return &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address: host, PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: port}}}}
}

func (b *builder) admin() *corev3.Address {
	if isPath(b.o.Admin) {
		return &corev3.Address{Address: &corev3.Address_Pipe{Pipe: &corev3.Pipe{Path: b.o.Admin}}}
	}
	return b.address(b.o.Admin)
}

func isPath(address string) bool { return strings.HasPrefix(address, "/") }

// literal reports whether the host of an address needs no look-up.
func literal(address string) bool {
	host, _, err := net.SplitHostPort(address)
	return err == nil && net.ParseIP(host) != nil
}

func file(path string) *corev3.DataSource {
	return &corev3.DataSource{Specifier: &corev3.DataSource_Filename{Filename: path}}
}

func folder(file string) *corev3.WatchedDirectory {
	return &corev3.WatchedDirectory{Path: path.Dir(file)}
}

func yes() *wrapperspb.BoolValue { return wrapperspb.Bool(true) }

func percent(share float64) *typev3.Percent { return &typev3.Percent{Value: share} }

// resources are what a dynamic Envoy discovers besides endpoints.
type resources struct {
	listener *listenerv3.Listener
	filters  []*corev3.TypedExtensionConfig // what the listener's filters for tokens do
	routes   *routev3.RouteConfiguration
	clusters []*clusterv3.Cluster
}

// Validate reports everything that no dynamic Envoy can be configured by, as Discovery.Apply does.
func Validate(o Options) error {
	_, err := resourcesOf(o)
	return err
}

// resourcesOf makes what a dynamic Envoy with these options discovers.
func resourcesOf(o Options) (*resources, error) {
	o = o.withDefaults()
	o.Dynamic = true
	if err := o.check(); err != nil {
		return nil, fmt.Errorf("cannot configure Envoy: %w", err)
	}
	b := &builder{o: o}
	r := &resources{b.listener(), b.tokenRules(), b.routes(), b.clusters()}
	b.faults = append(b.faults, r.listener.ValidateAll(), r.routes.ValidateAll())
	for _, c := range r.clusters {
		b.faults = append(b.faults, c.ValidateAll())
	}
	for _, f := range r.filters {
		b.faults = append(b.faults, f.ValidateAll())
	}
	if err := errors.Join(b.faults...); err != nil {
		return nil, fmt.Errorf("cannot configure Envoy: %w", err)
	}
	return r, nil
}
