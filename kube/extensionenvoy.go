package kube

import (
	"errors"
	"fmt"
	"strings"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	overridev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/override_host/v3"
	rawv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/raw_buffer/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	upstreamv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sluice-gateway/sluice/envoy"
	"github.com/sluice-gateway/sluice/translate"
)

// metadataNamespace is where a picker names the endpoint.
const metadataNamespace = "envoy.lb"

// Filters that ask the pickers of pools, ours and others', each of which is told what to ask by the route. They differ in
// what they answer where a picker fails closed: 503, as our policies do, and Envoy's own 500.
const (
	filterOwn    = "sluice.pick.own"
	filterOthers = "sluice.pick"
)

// pickFilters are both, in the order in which they are added.
func pickFilters() []string { return []string{filterOthers, filterOwn} }

// Bounds. Envoy holds 1 MiB of a connection by itself; where someone has asked for more, it may hold whole bodies.
const (
	bufferEnvoy = 1 << 20
	bufferLarge = bufferEnvoy + 1
	unlimited   = 1<<32 - 1
)

// longestWait is how long a picker may keep a request in its queue.
func longestWait() *durationpb.Duration { return durationpb.New(envoy.DefaultQueueTimeout) }

// unbounded is no bound.
func unbounded() *durationpb.Duration { return durationpb.New(0) }

// idleTimeout is how long a request may go without a byte, for prompts that take long to compute.
func idleTimeout() *durationpb.Duration { return durationpb.New(envoy.DefaultIdleTimeout) }

// retries go to what comes next in a picker's list. What has reached an endpoint is not tried again.
func retries() *routev3.RetryPolicy {
	return &routev3.RetryPolicy{RetryOn: "connect-failure,refused-stream", NumRetries: wrapperspb.UInt32(envoy.DefaultRetries),
		RetryBackOff: &routev3.RetryPolicy_RetryBackOff{BaseInterval: durationpb.New(25 * time.Millisecond), MaxInterval: durationpb.New(250 * time.Millisecond)}}
}

// valid is a message that knows what it must hold.
type valid interface {
	proto.Message
	ValidateAll() error
}

// packed is a message in an Any, by equal bytes for equal messages.
func packed(m valid) (*anypb.Any, error) {
	out := new(anypb.Any)
	return out, errors.Join(m.ValidateAll(), anypb.MarshalFrom(out, m, proto.MarshalOptions{Deterministic: true}))
}

// endpointSource is where Envoys get endpoints from: this process, or another replica, at a name that leads to any of them.
// Envoy lets an EDS cluster name only clusters of its bootstrap, which is Envoy Gateway's; Google's gRPC client needs none.
func endpointSource(target string, authority []byte) *corev3.ConfigSource {
	number := func(n int64) *corev3.GrpcService_GoogleGrpc_ChannelArgs_Value {
		return &corev3.GrpcService_GoogleGrpc_ChannelArgs_Value{ValueSpecifier: &corev3.GrpcService_GoogleGrpc_ChannelArgs_Value_IntValue{IntValue: n}}
	}
	google := &corev3.GrpcService_GoogleGrpc{TargetUri: target, StatPrefix: "sluice_endpoints",
		ChannelArgs: &corev3.GrpcService_GoogleGrpc_ChannelArgs{Args: map[string]*corev3.GrpcService_GoogleGrpc_ChannelArgs_Value{
			// By itself the client waits up to two minutes between two attempts.
			"grpc.initial_reconnect_backoff_ms": number(200), "grpc.min_reconnect_backoff_ms": number(200), "grpc.max_reconnect_backoff_ms": number(2000),
			// A replica that vanished with its node closes nothing.
			"grpc.keepalive_time_ms": number(10000), "grpc.keepalive_timeout_ms": number(5000), "grpc.http2.max_pings_without_data": number(0),
		}}}
	if authority != nil {
		google.ChannelCredentials = &corev3.GrpcService_GoogleGrpc_ChannelCredentials{CredentialSpecifier: &corev3.GrpcService_GoogleGrpc_ChannelCredentials_SslCredentials{
			SslCredentials: &corev3.GrpcService_GoogleGrpc_SslCredentials{RootCerts: inline(authority)}}}
	}
	return &corev3.ConfigSource{ResourceApiVersion: corev3.ApiVersion_V3, ConfigSourceSpecifier: &corev3.ConfigSource_ApiConfigSource{ApiConfigSource: &corev3.ApiConfigSource{
		ApiType: corev3.ApiConfigSource_DELTA_GRPC, TransportApiVersion: corev3.ApiVersion_V3, SetNodeOnFirstMessageOnly: true,
		GrpcServices: []*corev3.GrpcService{{TargetSpecifier: &corev3.GrpcService_GoogleGrpc_{GoogleGrpc: google}}}}}}
}

func inline(text []byte) *corev3.DataSource {
	return &corev3.DataSource{Specifier: &corev3.DataSource_InlineBytes{InlineBytes: text}}
}

// discovered has a cluster get its endpoints from source, by name.
func discovered(c *clusterv3.Cluster, name string, source *corev3.ConfigSource) {
	c.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS}
	c.EdsClusterConfig = &clusterv3.Cluster_EdsClusterConfig{ServiceName: name, EdsConfig: source}
	c.LoadAssignment = nil
}

// protocols is the key of a cluster's HTTP settings.
const protocols = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"

// speakHTTP2 has a cluster's endpoints spoken to by HTTP/2, whatever else is set for HTTP.
func speakHTTP2(c *clusterv3.Cluster) error {
	o := new(upstreamv3.HttpProtocolOptions)
	if set := c.TypedExtensionProtocolOptions[protocols]; set != nil {
		if err := set.UnmarshalTo(o); err != nil {
			return fmt.Errorf("cannot read the HTTP settings of cluster %q: %w", c.Name, err)
		}
	}
	o.UpstreamProtocolOptions = &upstreamv3.HttpProtocolOptions_ExplicitHttpConfig_{ExplicitHttpConfig: &upstreamv3.HttpProtocolOptions_ExplicitHttpConfig{
		ProtocolConfig: &upstreamv3.HttpProtocolOptions_ExplicitHttpConfig_Http2ProtocolOptions{Http2ProtocolOptions: new(corev3.Http2ProtocolOptions)}}}
	set, err := packed(o)
	if err != nil {
		return err
	}
	if c.TypedExtensionProtocolOptions == nil {
		c.TypedExtensionProtocolOptions = make(map[string]*anypb.Any)
	}
	c.TypedExtensionProtocolOptions[protocols] = set
	return nil
}

// poolCluster makes a cluster of Envoy Gateway's a pool's. What a policy says of load balancing holds where the picker names
// nobody.
func poolCluster(c *clusterv3.Cluster, u *use, source *corev3.ConfigSource) error {
	discovered(c, resourceName(resourcePool, u.key()), source)
	fallback := c.LoadBalancingPolicy
	for _, p := range fallback.GetPolicies() {
		// One by a header is what policies can say in Envoy Gateway's words: a client could send it.
		o := new(overridev3.OverrideHost)
		if set := p.GetTypedExtensionConfig().GetTypedConfig(); set.MessageIs(o) && set.UnmarshalTo(o) == nil {
			fallback = o.FallbackPolicy
		}
	}
	policy, err := envoy.Picked(fallback)
	if err != nil {
		return err
	}
	c.LoadBalancingPolicy = policy
	if u.H2C {
		return speakHTTP2(c)
	}
	return nil
}

// pickerCluster is the name of the cluster with a pool's pickers.
func pickerCluster(pool types.NamespacedName) string {
	return "sluice/picker/" + pool.Namespace + "/" + pool.Name
}

// askedCluster has the pickers of a pool. Others' serve TLS with a certificate of their own making, which nobody can check,
// or plain text, as their endpoints say; ours have a certificate of their configuration's authority, and ask for one.
func askedCluster(u *use, source *corev3.ConfigSource, shown *shownTo) (*clusterv3.Cluster, []*tlsv3.Secret, error) {
	c := &clusterv3.Cluster{
		Name: pickerCluster(u.key()), ConnectTimeout: durationpb.New(2 * time.Second), IgnoreHealthOnHostRemoval: true,
		CircuitBreakers: &clusterv3.CircuitBreakers{Thresholds: []*clusterv3.CircuitBreakers_Thresholds{{
			MaxConnections: wrapperspb.UInt32(unlimited), MaxPendingRequests: wrapperspb.UInt32(unlimited), MaxRequests: wrapperspb.UInt32(unlimited), MaxRetries: wrapperspb.UInt32(unlimited)}}},
		LbPolicy: clusterv3.Cluster_LEAST_REQUEST,
		// gRPC's own rule ends connections whose client sends pings; the kernel's are seen by nobody.
		UpstreamConnectionOptions: &clusterv3.UpstreamConnectionOptions{TcpKeepalive: &corev3.TcpKeepalive{
			KeepaliveProbes: wrapperspb.UInt32(3), KeepaliveTime: wrapperspb.UInt32(15), KeepaliveInterval: wrapperspb.UInt32(5)}},
	}
	discovered(c, resourceName(resourcePicker, u.key()), source)
	if u.Open {
		watchOver(c)
	}
	if err := speakHTTP2(c); err != nil {
		return nil, nil, err
	}
	common := &tlsv3.CommonTlsContext{AlpnProtocols: []string{"h2"}}
	var secrets []*tlsv3.Secret
	if shown != nil {
		secrets = secure(common, u, shown)
	}
	tls, err := packed(&tlsv3.UpstreamTlsContext{CommonTlsContext: common})
	if err != nil {
		return nil, nil, err
	}
	raw, err := packed(new(rawv3.RawBuffer))
	if err != nil {
		return nil, nil, err
	}
	c.TransportSocketMatches = []*clusterv3.Cluster_TransportSocketMatch{
		{Name: "plain", Match: plainMatch(), TransportSocket: socket("raw_buffer", raw)},
		{Name: "tls", Match: new(structpb.Struct), TransportSocket: socket("tls", tls)},
	}
	if shown != nil {
		c.TransportSocketMatches = c.TransportSocketMatches[1:] // nobody who can change a Service makes ours speak in the open
	}
	return c, secrets, c.ValidateAll()
}

// watchOver has Envoy know beforehand that nobody can be asked. In full duplex a body is on its way to the picker before the
// connection has failed, and what Envoy has let go of can't go on elsewhere: only where no picker is left it fails open.
func watchOver(c *clusterv3.Cluster) {
	c.CommonLbConfig = &clusterv3.Cluster_CommonLbConfig{HealthyPanicThreshold: new(typev3.Percent)}
	c.HealthChecks = []*corev3.HealthCheck{{Timeout: durationpb.New(time.Second), Interval: durationpb.New(time.Second), NoTrafficInterval: durationpb.New(time.Second),
		UnhealthyThreshold: wrapperspb.UInt32(1), HealthyThreshold: wrapperspb.UInt32(1),
		HealthChecker: &corev3.HealthCheck_TcpHealthCheck_{TcpHealthCheck: new(corev3.HealthCheck_TcpHealthCheck)}}}
	never, always := wrapperspb.UInt32(0), wrapperspb.UInt32(100)
	c.OutlierDetection = &clusterv3.OutlierDetection{
		SplitExternalLocalOriginErrors: true, ConsecutiveLocalOriginFailure: wrapperspb.UInt32(1), EnforcingConsecutiveLocalOriginFailure: always,
		EnforcingConsecutive_5Xx: never, EnforcingConsecutiveGatewayFailure: never, EnforcingSuccessRate: never, EnforcingLocalOriginSuccessRate: never,
		Interval: durationpb.New(time.Second), BaseEjectionTime: durationpb.New(time.Minute), MaxEjectionPercent: always, // a check that succeeds ends it
	}
}

func socket(name string, config *anypb.Any) *corev3.TransportSocket {
	return &corev3.TransportSocket{Name: "envoy.transport_sockets." + name, ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: config}}
}

// plainMatch is what endpoints that take plain text are marked by.
func plainMatch() *structpb.Struct {
	return &structpb.Struct{Fields: map[string]*structpb.Value{"plain": structpb.NewBoolValue(true)}}
}

// secure has ours shown a certificate, and theirs checked. The secrets come to Envoy as Envoy Gateway's do.
func secure(common *tlsv3.CommonTlsContext, u *use, shown *shownTo) []*tlsv3.Secret {
	overADS := &corev3.ConfigSource{ResourceApiVersion: corev3.ApiVersion_V3, ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: new(corev3.AggregatedConfigSource)}}
	own := shown.certificate("sluice/certificate/" + u.Config)
	authority := &tlsv3.Secret{Name: "sluice/authority/" + u.Config,
		Type: &tlsv3.Secret_ValidationContext{ValidationContext: &tlsv3.CertificateValidationContext{TrustedCa: inline(shown.authority)}}}
	common.TlsCertificateSdsSecretConfigs = []*tlsv3.SdsSecretConfig{{Name: own.Name, SdsConfig: overADS}}
	valid := new(tlsv3.CertificateValidationContext)
	_, config, _ := strings.Cut(u.Config, "/")
	for _, host := range translate.PickerHosts(u.Namespace, config, u.Scheduler) {
		valid.MatchTypedSubjectAltNames = append(valid.MatchTypedSubjectAltNames, &tlsv3.SubjectAltNameMatcher{SanType: tlsv3.SubjectAltNameMatcher_DNS,
			Matcher: &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Exact{Exact: host}}})
	}
	common.ValidationContextType = &tlsv3.CommonTlsContext_CombinedValidationContext{CombinedValidationContext: &tlsv3.CommonTlsContext_CombinedCertificateValidationContext{
		DefaultValidationContext: valid, ValidationContextSdsSecretConfig: &tlsv3.SdsSecretConfig{Name: authority.Name, SdsConfig: overADS}}}
	return []*tlsv3.Secret{own, authority}
}

// pickFilter is one of our filters as a listener has it: switched off, and without anybody to ask.
func pickFilter(name string) (*hcmv3.HttpFilter, error) {
	p := &extprocv3.ExternalProcessor{
		GrpcService:       asks("sluice/picker", ""),
		ProcessingMode:    &extprocv3.ProcessingMode{RequestHeaderMode: extprocv3.ProcessingMode_SKIP, ResponseHeaderMode: extprocv3.ProcessingMode_SKIP},
		MessageTimeout:    durationpb.New(envoy.DefaultMessageTimeout),
		MaxMessageTimeout: longestWait(),
		AllowModeOverride: name == filterOwn,
	}
	if name == filterOwn {
		p.StatusOnError = &typev3.HttpStatus{Code: typev3.StatusCode_ServiceUnavailable}
	}
	config, err := packed(p)
	return &hcmv3.HttpFilter{Name: name, Disabled: true, ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: config}}, err
}

func asks(cluster, authority string) *corev3.GrpcService {
	return &corev3.GrpcService{TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{EnvoyGrpc: &corev3.GrpcService_EnvoyGrpc{ClusterName: cluster, Authority: authority}}}
}

// idleFilter is what our filters have where no pool is: they are made, and do nothing.
func idleFilter() (*anypb.Any, error) {
	idle, err := packed(&extprocv3.ExtProcPerRoute{Override: &extprocv3.ExtProcPerRoute_Disabled{Disabled: true}})
	if err != nil {
		return nil, err
	}
	return packed(&routev3.FilterConfig{Config: idle})
}

// pickFor is which filter asks a pool's picker, and what it is told by a route to the pool.
func pickFor(u *use, roomy bool) (filter string, config *anypb.Any, err error) {
	named := &extprocv3.MetadataOptions_MetadataNamespaces{Untyped: []string{metadataNamespace}}
	told := &extprocv3.MetadataOptions_MetadataNamespaces{Untyped: []string{metadataNamespace, metadataNamespace + ".subset_hint"}}
	o := &extprocv3.ExtProcOverrides{
		ProcessingMode: processing(u, roomy), GrpcService: asks(pickerCluster(u.key()), u.Picker), FailureModeAllow: wrapperspb.Bool(u.Open),
		MetadataOptions: &extprocv3.MetadataOptions{ForwardingNamespaces: told, ReceivingNamespaces: named},
	}
	filter = filterOthers
	if u.Config != "" {
		filter, o.ResponseAttributes = filterOwn, []string{"response.code_details"}
	}
	config, err = packed(&extprocv3.ExtProcPerRoute{Override: &extprocv3.ExtProcPerRoute_Overrides{Overrides: o}})
	return filter, config, err
}

// processing is what a picker is shown. Others are shown both bodies in full duplex, as the endpoint-picker protocol has it;
// ours hold bodies where the listener may, and see no answer's.
func processing(u *use, roomy bool) *extprocv3.ProcessingMode {
	m := &extprocv3.ProcessingMode{
		RequestHeaderMode: extprocv3.ProcessingMode_SEND, RequestBodyMode: extprocv3.ProcessingMode_FULL_DUPLEX_STREAMED, RequestTrailerMode: extprocv3.ProcessingMode_SEND,
		ResponseHeaderMode: extprocv3.ProcessingMode_SEND, ResponseBodyMode: extprocv3.ProcessingMode_FULL_DUPLEX_STREAMED, ResponseTrailerMode: extprocv3.ProcessingMode_SEND,
	}
	if u.Config == "" {
		return m
	}
	m.ResponseBodyMode = extprocv3.ProcessingMode_NONE
	if roomy {
		m.RequestBodyMode, m.RequestTrailerMode, m.ResponseTrailerMode = extprocv3.ProcessingMode_BUFFERED, extprocv3.ProcessingMode_SKIP, extprocv3.ProcessingMode_SKIP
	}
	return m
}
