package envoy

import (
	"fmt"
	"slices"
	"strings"
	"time"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	mutationv3 "github.com/envoyproxy/go-control-plane/envoy/config/common/mutation_rules/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	filelogv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/file/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	answersv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/header_mutation/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	earlyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/http/early_header_mutation/header_mutation/v3"
	uuidv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/request_id/uuid/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sluice-gateway/sluice/front"
)

// metadataNamespace is where in metadata the picker and Envoy speak, extProcFilter the name by which routes set up what asks it.
const (
	metadataNamespace = "envoy.lb"
	extProcFilter     = "envoy.filters.http.ext_proc"
)

// Limits of connections with clients. A connection's own buffer bounds answers to slow clients; request bodies have
// their limit in the routes.
const (
	connectionBuffer   = 1 << 20
	streamWindow       = 1 << 20
	connectionWindow   = 16 << 20
	maxStreams         = 1000
	headersTimeout     = 10 * time.Second
	keepAliveTimeout   = 2 * time.Minute
	headersKilobytes   = 96
	answerKilobytes    = 1 << 10 // of an engine's headers, as the embedded front door takes them
	maxHeaders         = 1000    // Envoy's own limit, 100, is met by what tracing and meshes add
	delayedCloseWindow = time.Second
)

func (b *builder) listener() *listenerv3.Listener {
	chain := &listenerv3.FilterChain{Filters: []*listenerv3.Filter{{Name: "envoy.filters.network.http_connection_manager",
		ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: b.pack(b.manager())}}}}
	if b.o.Certificate != nil {
		chain.TransportSocket = &corev3.TransportSocket{Name: "envoy.transport_sockets.tls",
			ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: b.pack(b.downstreamTLS())}}
	}
	return &listenerv3.Listener{
		Name:                          listenerName,
		Address:                       b.address(b.o.Listen),
		FilterChains:                  []*listenerv3.FilterChain{chain},
		PerConnectionBufferLimitBytes: wrapperspb.UInt32(connectionBuffer),
	}
}

func (b *builder) downstreamTLS() *tlsv3.DownstreamTlsContext {
	common := &tlsv3.CommonTlsContext{AlpnProtocols: []string{"h2", "http/1.1"},
		TlsParams: &tlsv3.TlsParameters{TlsMinimumProtocolVersion: tlsv3.TlsParameters_TLSv1_2}}
	c := b.o.Certificate
	if c.SDSFile == "" {
		common.TlsCertificates = []*tlsv3.TlsCertificate{{CertificateChain: file(c.CertFile), PrivateKey: file(c.KeyFile)}}
	} else {
		common.TlsCertificateSdsSecretConfigs = []*tlsv3.SdsSecretConfig{{Name: certificate, SdsConfig: &corev3.ConfigSource{
			ConfigSourceSpecifier: &corev3.ConfigSource_PathConfigSource{PathConfigSource: &corev3.PathConfigSource{Path: c.SDSFile}},
			ResourceApiVersion:    corev3.ApiVersion_V3,
		}}}
	}
	return &tlsv3.DownstreamTlsContext{CommonTlsContext: common}
}

// manager is the HTTP side of the listener. A path is looked at as it came, by the picker, which opens a list of them;
// nothing here rewrites it.
func (b *builder) manager() *hcmv3.HttpConnectionManager {
	m := &hcmv3.HttpConnectionManager{
		CodecType:  hcmv3.HttpConnectionManager_AUTO,
		StatPrefix: "sluice",
		CommonHttpProtocolOptions: &corev3.HttpProtocolOptions{
			IdleTimeout:                  durationpb.New(keepAliveTimeout),
			HeadersWithUnderscoresAction: corev3.HttpProtocolOptions_ALLOW,
			MaxHeadersCount:              wrapperspb.UInt32(maxHeaders),
		},
		HttpProtocolOptions: &corev3.Http1ProtocolOptions{AcceptHttp_10: true, DefaultHostForHttp_10: "gateway"},
		Http2ProtocolOptions: &corev3.Http2ProtocolOptions{
			MaxConcurrentStreams:        wrapperspb.UInt32(maxStreams),
			InitialStreamWindowSize:     wrapperspb.UInt32(streamWindow),
			InitialConnectionWindowSize: wrapperspb.UInt32(connectionWindow),
		},
		ServerHeaderTransformation:      hcmv3.HttpConnectionManager_PASS_THROUGH,
		SchemeHeaderTransformation:      &corev3.SchemeHeaderTransformation{MatchUpstream: true},
		MaxRequestHeadersKb:             wrapperspb.UInt32(headersKilobytes),
		StreamIdleTimeout:               durationpb.New(b.o.IdleTimeout),
		RequestTimeout:                  durationpb.New(0), // a prompt may take its time to arrive
		RequestHeadersTimeout:           durationpb.New(headersTimeout),
		DelayedCloseTimeout:             durationpb.New(delayedCloseWindow),
		UseRemoteAddress:                yes(),
		EarlyHeaderMutationExtensions:   []*corev3.TypedExtensionConfig{b.earlyMutation()},
		GenerateRequestId:               yes(),
		PreserveExternalRequestId:       true,
		AlwaysSetRequestIdInResponse:    true,
		RequestIdExtension:              &hcmv3.RequestIDExtension{TypedConfig: b.pack(&uuidv3.UuidRequestIdConfig{PackTraceReason: wrapperspb.Bool(false)})},
		NormalizePath:                   wrapperspb.Bool(false),
		StreamErrorOnInvalidHttpMessage: yes(),
		LocalReplyConfig:                b.localReplies(),
		AccessLog:                       b.accessLog(),
	}
	if b.o.Dynamic {
		m.RouteSpecifier = &hcmv3.HttpConnectionManager_Rds{Rds: &hcmv3.Rds{ConfigSource: overADS(), RouteConfigName: routesName}}
	} else {
		m.RouteSpecifier = &hcmv3.HttpConnectionManager_RouteConfig{RouteConfig: b.routes()}
	}
	filter := func(name string, config valid) {
		m.HttpFilters = append(m.HttpFilters, &hcmv3.HttpFilter{Name: name, ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: b.pack(config)}})
	}
	m.HttpFilters = b.tokenFilters()
	filter(extProcFilter, b.extProc())
	// After the picker on the way in, so before it on the way out: what an engine says of routing is gone when the picker
	// says something.
	filter("envoy.filters.http.header_mutation", &answersv3.HeaderMutation{Mutations: &answersv3.Mutations{ResponseMutations: removals(reservedPrefixes()...)}})
	filter("envoy.filters.http.router", &routerv3.Router{SuppressEnvoyHeaders: true})
	return m
}

// removals removes the headers whose names begin so.
func removals(prefixes ...string) []*mutationv3.HeaderMutation {
	var out []*mutationv3.HeaderMutation
	for _, prefix := range prefixes {
		out = append(out, removeMatching(&matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Prefix{Prefix: prefix}}))
	}
	return out
}

func removeMatching(m *matcherv3.StringMatcher) *mutationv3.HeaderMutation {
	return &mutationv3.HeaderMutation{Action: &mutationv3.HeaderMutation_RemoveOnMatch_{RemoveOnMatch: &mutationv3.HeaderMutation_RemoveOnMatch{KeyMatcher: m}}}
}

// earlyMutation removes the headers that only a gateway may send, before anything looks at a request: where it goes, its
// priority, its fairness, and those that make an engine's sidecar call the address they hold. Headers to Envoy itself go
// in any case: they would let a client set retries and timeouts. What selects the model stays.
func (b *builder) earlyMutation() *corev3.TypedExtensionConfig {
	list := removals("x-envoy-")
	if !b.o.TrustHeaders {
		list = removals(slices.DeleteFunc(reservedPrefixes(), func(prefix string) bool { return prefix == gatewayPrefix })...)
		for _, m := range allBut(front.WireModel) {
			list = append(list, removeMatching(m))
		}
		for _, name := range front.ReservedNames() {
			list = append(list, &mutationv3.HeaderMutation{Action: &mutationv3.HeaderMutation_Remove{Remove: strings.ToLower(name)}})
		}
	}
	return &corev3.TypedExtensionConfig{Name: "envoy.http.early_header_mutation.header_mutation",
		TypedConfig: b.pack(&earlyv3.HeaderMutation{Mutations: list})}
}

// gatewayPrefix is the one of the reserved prefixes of which a header stays.
const gatewayPrefix = "x-gateway-"

func reservedPrefixes() []string {
	var list []string
	for _, prefix := range front.ReservedPrefixes() {
		list = append(list, strings.ToLower(prefix))
	}
	return list
}

// allBut matches the names that begin with x-gateway- but one. RE2 can't look ahead, so the expressions leave the one at
// each of its letters, in two halves, because Envoy refuses expressions as long as one would be.
func allBut(name string) []*matcherv3.StringMatcher {
	cut := strings.LastIndexByte(name, '-') + 1
	begin := len(gatewayPrefix)
	var list []*matcherv3.StringMatcher
	for _, regex := range []string{leaving(name[:begin], name[begin:cut]), leaving(name[:cut], name[cut:]), name + ".+"} {
		list = append(list, &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_SafeRegex{SafeRegex: &matcherv3.RegexMatcher{Regex: regex}}})
	}
	return list
}

// leaving is a regular expression for what begins with prefix and leaves rest before its end:
// prefix([^m].*|m([^o].*|o(…)?)?)?
func leaving(prefix, rest string) string {
	tail := ""
	for i := len(rest) - 1; i >= 0; i-- {
		further := ""
		if tail != "" {
			further = fmt.Sprintf("|%c%s", rest[i], tail)
		}
		tail = fmt.Sprintf("([^%c].*%s)?", rest[i], further)
	}
	return prefix + tail
}

// extProc asks the picker. The routes have it asked about answers, too: what has no route is Envoy's own refusal of what can't be
// read as HTTP, whose connection ends before a picker could answer, and the client would be told nothing.
func (b *builder) extProc() *extprocv3.ExternalProcessor {
	ours := &extprocv3.MetadataOptions_MetadataNamespaces{Untyped: []string{metadataNamespace}}
	told := &extprocv3.MetadataOptions_MetadataNamespaces{Untyped: []string{metadataNamespace, metadataNamespace + ".subset_hint"}}
	mode := b.processing()
	mode.ResponseHeaderMode = extprocv3.ProcessingMode_SKIP
	return &extprocv3.ExternalProcessor{
		GrpcService: &corev3.GrpcService{TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{
			EnvoyGrpc: &corev3.GrpcService_EnvoyGrpc{ClusterName: pickerCluster}}},
		// Whatever the failure mode, which is the route for what nobody picked: a picker that goes takes no running answer along.
		// Not where it holds the body: what it has not sent back would be missing.
		FailureModeAllow:   !b.o.FullDuplex,
		ProcessingMode:     mode,
		MessageTimeout:     durationpb.New(b.o.Picker.MessageTimeout),
		MaxMessageTimeout:  durationpb.New(b.o.Picker.QueueTimeout),
		AllowModeOverride:  true,
		StatusOnError:      &typev3.HttpStatus{Code: typev3.StatusCode_ServiceUnavailable},
		MetadataOptions:    &extprocv3.MetadataOptions{ForwardingNamespaces: told, ReceivingNamespaces: ours},
		ResponseAttributes: []string{"response.code_details"}, // whether an endpoint answered, or Envoy for it
	}
}

// asked is a virtual host's or a route's setting of what the picker is sent.
func (b *builder) asked(mode *extprocv3.ProcessingMode) map[string]*anypb.Any {
	return map[string]*anypb.Any{extProcFilter: b.pack(&extprocv3.ExtProcPerRoute{Override: &extprocv3.ExtProcPerRoute_Overrides{
		Overrides: &extprocv3.ExtProcOverrides{ProcessingMode: mode}}})}
}

// processing says what the picker is sent. Its stream stays open to a request's end, since the answer's headers are sent and
// its body is not: that is how the picker knows when a request has ended.
func (b *builder) processing() *extprocv3.ProcessingMode {
	mode := &extprocv3.ProcessingMode{
		RequestHeaderMode:   extprocv3.ProcessingMode_SEND,
		RequestBodyMode:     extprocv3.ProcessingMode_BUFFERED,
		RequestTrailerMode:  extprocv3.ProcessingMode_SKIP,
		ResponseHeaderMode:  extprocv3.ProcessingMode_SEND,
		ResponseBodyMode:    extprocv3.ProcessingMode_NONE,
		ResponseTrailerMode: extprocv3.ProcessingMode_SKIP,
	}
	if b.o.FullDuplex {
		mode.RequestBodyMode, mode.RequestTrailerMode = extprocv3.ProcessingMode_FULL_DUPLEX_STREAMED, extprocv3.ProcessingMode_SEND
		mode.ResponseTrailerMode = extprocv3.ProcessingMode_SEND // or the stream would end with the answer's headers
	}
	return mode
}

// accessLog is a line of JSON for each request: what it was, where it went and why, and how long that took; never a
// body, a token, or a query, in which some clients put one.
func (b *builder) accessLog() []*accesslogv3.AccessLog {
	if b.o.AccessLog == "" {
		return nil
	}
	fields := make(map[string]*structpb.Value)
	for name, operator := range map[string]string{
		"time": "%START_TIME%", "request_id": "%REQ(X-REQUEST-ID)%", "method": "%REQ(:METHOD)%", "path": "%PATH(NQ:PATH)%",
		"protocol": "%PROTOCOL%", "client": "%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%",
		"model": "%REQ(" + front.WireModel + ")%", "pool": "%ROUTE_NAME%", "endpoint": "%UPSTREAM_HOST%", "attempts": "%UPSTREAM_REQUEST_ATTEMPT_COUNT%",
		"picked": "%DYNAMIC_METADATA(" + metadataNamespace + ":" + front.WireDestination + ")%",
		"reason": "%DYNAMIC_METADATA(" + metadataNamespace + ":" + front.WireReason + ")%",
		"status": "%RESPONSE_CODE%", "flags": "%RESPONSE_FLAGS%", "details": "%RESPONSE_CODE_DETAILS%",
		"request_bytes": "%BYTES_RECEIVED%", "response_bytes": "%BYTES_SENT%",
		"request_ms": "%REQUEST_DURATION%", "headers_ms": "%RESPONSE_DURATION%", "duration_ms": "%DURATION%",
	} {
		fields[name] = structpb.NewStringValue(operator)
	}
	format := &corev3.SubstitutionFormatString{Format: &corev3.SubstitutionFormatString_JsonFormat{JsonFormat: &structpb.Struct{Fields: fields}}}
	return []*accesslogv3.AccessLog{{Name: "envoy.access_loggers.file", Filter: b.logged(), ConfigType: &accesslogv3.AccessLog_TypedConfig{TypedConfig: b.pack(
		&filelogv3.FileAccessLog{Path: b.o.AccessLog, AccessLogFormat: &filelogv3.FileAccessLog_LogFormat{LogFormat: format}})}}}
}
