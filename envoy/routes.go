package envoy

import (
	"net/http"
	"regexp"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	previousv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/retry/host/previous_hosts/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sluice-gateway/sluice/front"
	"github.com/sluice-gateway/sluice/openai"
)

// Pauses before a retry, which Envoy draws by chance between 0 and a bound that doubles.
const (
	backOffBase = 25 * time.Millisecond
	backOffMax  = 250 * time.Millisecond
)

// routes has one route for each pool, which the picker chooses by a header that no client can send, and one for what the
// picker has not seen: the failure mode.
func (b *builder) routes() *routev3.RouteConfiguration {
	host := &routev3.VirtualHost{Name: "all", Domains: []string{"*"}, RequestBodyBufferLimit: wrapperspb.UInt64(uint64(b.o.MaxBodyBytes)),
		TypedPerFilterConfig: b.asked(b.processing())}
	for i := range b.o.Pools {
		host.Routes = append(host.Routes, b.poolRoute(&b.o.Pools[i]))
	}
	host.Routes = append(append(host.Routes, b.openRoutes()...), b.storedRoutes()...)
	host.Routes = append(host.Routes, b.closedRoute())
	return &routev3.RouteConfiguration{Name: routesName, VirtualHosts: []*routev3.VirtualHost{host}, ValidateClusters: wrapperspb.Bool(false)}
}

func everything() *routev3.RouteMatch {
	return &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}}
}

func (b *builder) poolRoute(p *Pool) *routev3.Route {
	match := everything()
	// By the header alone, a client that is trusted with headers could choose a pool while the picker is away.
	match.DynamicMetadata = []*matcherv3.MetadataMatcher{{Filter: metadataNamespace,
		Path:  []*matcherv3.MetadataMatcher_PathSegment{{Segment: &matcherv3.MetadataMatcher_PathSegment_Key{Key: front.WireDestination}}},
		Value: &matcherv3.ValueMatcher{MatchPattern: &matcherv3.ValueMatcher_PresentMatch{PresentMatch: true}}}}
	match.Headers = []*routev3.HeaderMatcher{{Name: front.WireBaseModel, HeaderMatchSpecifier: &routev3.HeaderMatcher_StringMatch{
		StringMatch: &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Exact{Exact: p.key()}}}}}
	return &routev3.Route{
		Name:   p.Name,
		Match:  match,
		Action: &routev3.Route_Route{Route: b.action(clusterOf(p.Name), p)},
		// The endpoints in question are known from the picker's metadata by now, and are no engine's business.
		RequestHeadersToRemove: []string{front.WireDestination, front.WireBaseModel, "x-envoy-external-address"},
	}
}

// action sends to a cluster. There is no bound on a whole request unless one is asked for: answers take minutes.
func (b *builder) action(cluster string, p *Pool) *routev3.RouteAction {
	a := &routev3.RouteAction{
		ClusterSpecifier:     &routev3.RouteAction_Cluster{Cluster: cluster},
		HostRewriteSpecifier: &routev3.RouteAction_AutoHostRewrite{AutoHostRewrite: yes()},
		Timeout:              durationpb.New(p.RouteTimeout),
		IdleTimeout:          durationpb.New(b.o.IdleTimeout),
	}
	if b.o.Retries > 0 {
		a.RetryPolicy = &routev3.RetryPolicy{
			RetryOn:              "connect-failure,refused-stream,reset,retriable-status-codes",
			RetriableStatusCodes: []uint32{429, 502, 503, 504},
			NumRetries:           wrapperspb.UInt32(uint32(b.o.Retries)),
			RetryBackOff:         &routev3.RetryPolicy_RetryBackOff{BaseInterval: durationpb.New(backOffBase), MaxInterval: durationpb.New(backOffMax)},
		}
		if b.o.AttemptTimeout > 0 {
			a.RetryPolicy.PerTryTimeout = durationpb.New(b.o.AttemptTimeout)
		}
	}
	return a
}

// Names of the routes for what nobody has picked an endpoint for: unpickedRoute, and notOpenRoute for paths that stay closed
// to everybody while the gateway fails open.
const (
	unpickedRoute = "unpicked"
	notOpenRoute  = "not open"
)

// openRoutes are for requests that the picker has not seen, or not yet, where a gateway fails open: there is one pool, whose
// configured endpoints get the requests in turn, each a retry's next. Which paths are open is the picker's to say, too:
// without it those of the API are that need no endpoint in particular, and nothing of engines' administration is.
func (b *builder) openRoutes() []*routev3.Route {
	if b.o.FailureMode != FailOpen {
		return nil
	}
	a := b.action(openCluster, &b.o.Pools[0])
	if a.RetryPolicy != nil {
		a.RetryPolicy.RetryHostPredicate = []*routev3.RetryPolicy_RetryHostPredicate{{Name: "envoy.retry_host_predicates.previous_hosts",
			ConfigType: &routev3.RetryPolicy_RetryHostPredicate_TypedConfig{TypedConfig: b.pack(&previousv3.PreviousHostsPredicate{})}}}
		a.RetryPolicy.HostSelectionRetryMaxAttempts = 5
	}
	var list []*routev3.Route
	for _, path := range openai.FixedPaths() {
		list = append(list, &routev3.Route{Name: unpickedRoute, Action: &routev3.Route_Route{Route: a},
			Match: &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_SafeRegex{SafeRegex: &matcherv3.RegexMatcher{Regex: regexp.QuoteMeta(path) + "/?"}}}})
		if _, ok := openai.PathOf(path + "/identifier"); ok { // what the one endpoint has that only the picker finds
			list = append(list, nowhere(unpickedRoute, &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: path + "/"}}))
		}
	}
	// Clients are served, so whoever balances over such Envoys is to leave this one in.
	for _, path := range openPaths() {
		list = append(list, &routev3.Route{Name: unpickedRoute, Match: &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Path{Path: path}},
			Action: &routev3.Route_DirectResponse{DirectResponse: &routev3.DirectResponseAction{Status: http.StatusOK,
				Body: &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: "ok\n"}}}}})
	}
	return list
}

// closedRoute is for all other requests that the picker has not seen, or not yet.
func (b *builder) closedRoute() *routev3.Route {
	if b.o.FailureMode == FailOpen {
		return nowhere(notOpenRoute, everything())
	}
	return nowhere(unpickedRoute, everything())
}

// nowhere is a route to a cluster without members rather than a direct response, since a limit on bodies holds on routes to
// clusters only.
func nowhere(name string, match *routev3.RouteMatch) *routev3.Route {
	return &routev3.Route{Name: name, Match: match,
		Action: &routev3.Route_Route{Route: &routev3.RouteAction{ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: closedCluster}}}}
}

// storedRoutes have the picker see the answers to POST /v1/responses, in which stand the names of what an engine stores. It asks
// for that itself where it may, which is not in full duplex.
func (b *builder) storedRoutes() []*routev3.Route {
	if !b.o.FullDuplex {
		return nil
	}
	mode := b.processing()
	mode.ResponseBodyMode = extprocv3.ProcessingMode_STREAMED
	r := b.closedRoute()
	r.TypedPerFilterConfig = b.asked(mode)
	r.Match = &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_SafeRegex{SafeRegex: &matcherv3.RegexMatcher{Regex: "/v1/responses/?"}}}
	return []*routev3.Route{r}
}

// clusterOf is the name of a pool's cluster.
func clusterOf(pool string) string { return poolPrefix + pool }
