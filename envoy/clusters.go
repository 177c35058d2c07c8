package envoy

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	leastv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/least_request/v3"
	overridev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/override_host/v3"
	roundv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/round_robin/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	upstreamv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	metadatav3 "github.com/envoyproxy/go-control-plane/envoy/type/metadata/v3"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sluice-gateway/sluice/front"
)

// Limits of clusters. Envoy's own, 1024 requests and connections, answer 503 long before an engine is full; who is full
// is the picker's to know.
const (
	unlimited = 1 << 24
	// A dying endpoint moves all its requests at once, which is most of a small gateway's and no storm: so many retries are
	// always allowed, and beyond them a share of the requests under way.
	retriesAlways = 256
	retryShare    = 75
)

// openedAfter is how long an endpoint that fails is left alone where no picker does so.
const openedAfter = 5 * time.Second

// clusters are the pools' and those that filters ask.
func (b *builder) clusters() []*clusterv3.Cluster {
	var list []*clusterv3.Cluster
	for i := range b.o.Pools {
		list = append(list, b.pool(&b.o.Pools[i]))
	}
	if b.o.FailureMode == FailOpen {
		list = append(list, b.open(&b.o.Pools[0]))
	}
	list = append(list, &clusterv3.Cluster{Name: closedCluster, ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC}})
	if b.o.JWT != nil {
		list = append(list, b.jwks())
	}
	return list
}

// base is what all clusters share.
func (b *builder) base(name string, http2 bool) *clusterv3.Cluster {
	explicit := &upstreamv3.HttpProtocolOptions_ExplicitHttpConfig{
		ProtocolConfig: &upstreamv3.HttpProtocolOptions_ExplicitHttpConfig_HttpProtocolOptions{HttpProtocolOptions: &corev3.Http1ProtocolOptions{}}}
	if http2 {
		explicit.ProtocolConfig = &upstreamv3.HttpProtocolOptions_ExplicitHttpConfig_Http2ProtocolOptions{Http2ProtocolOptions: &corev3.Http2ProtocolOptions{
			ConnectionKeepalive: &corev3.KeepaliveSettings{Interval: durationpb.New(10 * time.Second), Timeout: durationpb.New(5 * time.Second)}}}
	}
	limits := &clusterv3.CircuitBreakers_Thresholds{
		MaxConnections: wrapperspb.UInt32(unlimited), MaxPendingRequests: wrapperspb.UInt32(unlimited), MaxRequests: wrapperspb.UInt32(unlimited),
		RetryBudget: &clusterv3.CircuitBreakers_Thresholds_RetryBudget{BudgetPercent: percent(retryShare), MinRetryConcurrency: wrapperspb.UInt32(retriesAlways)},
	}
	return &clusterv3.Cluster{
		Name:           name,
		ConnectTimeout: durationpb.New(b.o.ConnectTimeout),
		TypedExtensionProtocolOptions: map[string]*anypb.Any{"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": b.pack(&upstreamv3.HttpProtocolOptions{
			CommonHttpProtocolOptions: &corev3.HttpProtocolOptions{MaxHeadersCount: wrapperspb.UInt32(maxHeaders), MaxResponseHeadersKb: wrapperspb.UInt32(answerKilobytes)},
			UpstreamProtocolOptions:   &upstreamv3.HttpProtocolOptions_ExplicitHttpConfig_{ExplicitHttpConfig: explicit}})},
		CircuitBreakers: &clusterv3.CircuitBreakers{Thresholds: []*clusterv3.CircuitBreakers_Thresholds{limits}},
		UpstreamConnectionOptions: &clusterv3.UpstreamConnectionOptions{TcpKeepalive: &corev3.TcpKeepalive{
			KeepaliveProbes: wrapperspb.UInt32(3), KeepaliveTime: wrapperspb.UInt32(15), KeepaliveInterval: wrapperspb.UInt32(5)}},
	}
}

// pool is the cluster of a pool: its members are discovered, the picker names one of them and what comes after it, and an
// address that is no member is passed over. The name is taken from the picker's metadata, which no client can write.
func (b *builder) pool(p *Pool) *clusterv3.Cluster {
	c := b.base(clusterOf(p.Name), p.H2C)
	c.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS}
	c.EdsClusterConfig = &clusterv3.Cluster_EdsClusterConfig{EdsConfig: overADS()}
	c.TransportSocketMatches = b.sockets(p)
	c.LoadBalancingPolicy = b.picked(nil)
	return c
}

// picked is the policy of a cluster whose endpoints the picker names, with one for when it names none that is a member.
func (b *builder) picked(fallback *clusterv3.LoadBalancingPolicy) *clusterv3.LoadBalancingPolicy {
	if fallback == nil {
		fallback = &clusterv3.LoadBalancingPolicy{Policies: []*clusterv3.LoadBalancingPolicy_Policy{b.policy("least_request", &leastv3.LeastRequest{})}}
	}
	return &clusterv3.LoadBalancingPolicy{Policies: []*clusterv3.LoadBalancingPolicy_Policy{b.policy("override_host", &overridev3.OverrideHost{
		OverrideHostSources: []*overridev3.OverrideHost_OverrideHostSource{{Metadata: metadataKey(front.WireDestination)}},
		SelectedHostKey:     metadataKey(front.WireServed),
		FallbackPolicy:      fallback,
	})}}
}

// Picked is the load-balancing policy of a cluster of anybody's whose endpoints a picker names, and nobody else: by metadata,
// which no client can write. Where it names none that is a member, fallback chooses, nil for who has the fewest requests.
func Picked(fallback *clusterv3.LoadBalancingPolicy) (*clusterv3.LoadBalancingPolicy, error) {
	b := new(builder)
	policy := b.picked(fallback)
	return policy, errors.Join(b.faults...)
}

func (b *builder) policy(name string, config valid) *clusterv3.LoadBalancingPolicy_Policy {
	return &clusterv3.LoadBalancingPolicy_Policy{TypedExtensionConfig: &corev3.TypedExtensionConfig{
		Name: "envoy.load_balancing_policies." + name, TypedConfig: b.pack(config)}}
}

func metadataKey(name string) *metadatav3.MetadataKey {
	return &metadatav3.MetadataKey{Key: metadataNamespace, Path: []*metadatav3.MetadataKey_PathSegment{{
		Segment: &metadatav3.MetadataKey_PathSegment_Key{Key: name}}}}
}

// open is the cluster of a gateway that fails open: the configured endpoints, known without anybody's help. Nobody but
// itself ejects those that fail.
func (b *builder) open(p *Pool) *clusterv3.Cluster {
	c := b.base(openCluster, p.H2C)
	// Each address is a member of its own, so one family: an engine that listens on one would be half gone.
	c.ClusterDiscoveryType, c.DnsLookupFamily = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STRICT_DNS}, clusterv3.Cluster_V4_PREFERRED
	c.TransportSocketMatches = b.sockets(p)
	c.LoadBalancingPolicy = &clusterv3.LoadBalancingPolicy{Policies: []*clusterv3.LoadBalancingPolicy_Policy{b.policy("round_robin", &roundv3.RoundRobin{})}}
	c.OutlierDetection = &clusterv3.OutlierDetection{
		Consecutive_5Xx: wrapperspb.UInt32(0), ConsecutiveGatewayFailure: wrapperspb.UInt32(2), EnforcingConsecutiveGatewayFailure: wrapperspb.UInt32(100),
		EnforcingConsecutive_5Xx: wrapperspb.UInt32(0), EnforcingSuccessRate: wrapperspb.UInt32(0),
		Interval: durationpb.New(time.Second), BaseEjectionTime: durationpb.New(openedAfter), MaxEjectionPercent: wrapperspb.UInt32(50),
	}
	members := &endpointv3.LocalityLbEndpoints{}
	for _, e := range p.serving() {
		members.LbEndpoints = append(members.LbEndpoints, b.member(e.Host, e.Host, e.TLS.key()))
	}
	c.LoadAssignment = &endpointv3.ClusterLoadAssignment{ClusterName: openCluster, Endpoints: []*endpointv3.LocalityLbEndpoints{members}}
	return c
}

// member is one endpoint of a cluster: the address to dial, what it is called, and which TLS settings it has.
func (b *builder) member(address, host, socket string) *endpointv3.LbEndpoint {
	e := &endpointv3.LbEndpoint{HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{Address: b.address(address), Hostname: host}}}
	if socket != "" {
		e.Metadata = &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{"envoy.transport_socket_match": socketMatch(socket)}}
	}
	return e
}

func socketMatch(key string) *structpb.Struct {
	return &structpb.Struct{Fields: map[string]*structpb.Value{"tls": structpb.NewStringValue(key)}}
}

// key tells settings apart; the zero key is plain text.
func (t *TLS) key() string {
	if t == nil {
		return ""
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%q %q %t", t.CAFile, t.ServerName, t.InsecureSkipVerify))
	return fmt.Sprintf("%s %x", t.ServerName, sum[:4])
}

// sockets are the TLS settings that a pool's endpoints have, each once. Endpoints that name none are spoken to in plain
// text.
func (b *builder) sockets(p *Pool) []*clusterv3.Cluster_TransportSocketMatch {
	var list []*clusterv3.Cluster_TransportSocketMatch
	seen := make(map[string]bool)
	for _, e := range p.Endpoints {
		key := e.TLS.key()
		if e.TLS == nil || seen[key] {
			continue
		}
		seen[key] = true
		list = append(list, &clusterv3.Cluster_TransportSocketMatch{Name: key, Match: socketMatch(key), TransportSocket: b.upstreamTLS(upstream{
			ca: e.TLS.CAFile, name: e.TLS.ServerName, insecure: e.TLS.InsecureSkipVerify, http2: p.H2C})})
	}
	return list
}

// upstream says how someone else's certificate is checked, and which one is shown.
type upstream struct {
	ca, name        string
	insecure, http2 bool
	cert, key       string
}

func (b *builder) upstreamTLS(u upstream) *corev3.TransportSocket {
	common := &tlsv3.CommonTlsContext{TlsParams: &tlsv3.TlsParameters{TlsMinimumProtocolVersion: tlsv3.TlsParameters_TLSv1_2, TlsMaximumProtocolVersion: tlsv3.TlsParameters_TLSv1_3},
		AlpnProtocols: []string{"http/1.1"}}
	if u.http2 {
		common.AlpnProtocols = []string{"h2"}
	}
	if !u.insecure {
		setDefault(&u.ca, b.o.RootsFile)
		common.ValidationContextType = &tlsv3.CommonTlsContext_ValidationContext{ValidationContext: &tlsv3.CertificateValidationContext{
			TrustedCa: file(u.ca), MatchTypedSubjectAltNames: alternatives(u.name)}}
	}
	if u.cert != "" {
		common.TlsCertificates = []*tlsv3.TlsCertificate{{CertificateChain: file(u.cert), PrivateKey: file(u.key)}}
	}
	t := &tlsv3.UpstreamTlsContext{CommonTlsContext: common}
	if net.ParseIP(u.name) == nil {
		t.Sni = u.name
	}
	return &corev3.TransportSocket{Name: "envoy.transport_sockets.tls", ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: b.pack(t)}}
}

// alternatives is what a certificate has to be made out to: a name, or an address.
func alternatives(name string) []*tlsv3.SubjectAltNameMatcher {
	kind := tlsv3.SubjectAltNameMatcher_DNS
	if net.ParseIP(name) != nil {
		kind = tlsv3.SubjectAltNameMatcher_IP_ADDRESS
	}
	return []*tlsv3.SubjectAltNameMatcher{{SanType: kind, Matcher: &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Exact{Exact: name}}}}
}

// fixed is a cluster with one configured address, which may be a name. Of all its addresses, of either family, the first that
// can be connected to is taken.
func (b *builder) fixed(name, address string, http2 bool) *clusterv3.Cluster {
	c := b.base(name, http2)
	c.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC}
	if !literal(address) {
		c.ClusterDiscoveryType, c.DnsLookupFamily = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_LOGICAL_DNS}, clusterv3.Cluster_ALL
	}
	c.LoadAssignment = &endpointv3.ClusterLoadAssignment{ClusterName: name, Endpoints: []*endpointv3.LocalityLbEndpoints{{
		LbEndpoints: []*endpointv3.LbEndpoint{b.member(address, "", "")}}}}
	return c
}

// picker is the cluster of the picker, asked about requests and endpoints on the same connection.
func (b *builder) picker() *clusterv3.Cluster {
	c := b.fixed(pickerCluster, b.o.Picker.Address, true)
	if t := b.o.Picker.TLS; t != nil {
		name := t.ServerName
		if name == "" {
			name, _, _ = splitAddress(b.o.Picker.Address)
		}
		c.TransportSocket = b.upstreamTLS(upstream{ca: t.CAFile, name: name, http2: true, cert: t.CertFile, key: t.KeyFile})
	}
	return c
}
