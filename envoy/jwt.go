package envoy

import (
	"net"
	"net/url"
	"strings"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	jwtv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/jwt_authn/v3"
	rbacfilterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rbac/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sluice-gateway/sluice/front"
)

// claimsKey is where a checked token's claims are in metadata.
const claimsKey = "claims"

// openPaths are answered to everyone: who asks whether the gateway lives has no token.
func openPaths() []string { return []string{front.PathLive, front.PathReady} }

// Names of the filters that look at tokens.
const (
	tokenFilter = "envoy.filters.http.jwt_authn"
	claimFilter = "envoy.filters.http.rbac"
)

// tokenFilters are the filters that look at tokens. A dynamic Envoy discovers what they do: a listener that changed would
// be another one, which cuts the streams of the first, or leaves its connections to the rules of before.
func (b *builder) tokenFilters() []*hcmv3.HttpFilter {
	var list []*hcmv3.HttpFilter
	for _, c := range b.tokenRules() {
		f := &hcmv3.HttpFilter{Name: c.Name, ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: c.TypedConfig}}
		if b.o.Dynamic {
			// Without a default: nobody is let in by rules that have not come.
			f.ConfigType = &hcmv3.HttpFilter_ConfigDiscovery{ConfigDiscovery: &corev3.ExtensionConfigSource{ConfigSource: overADS(), TypeUrls: []string{c.TypedConfig.TypeUrl}}}
		}
		list = append(list, f)
	}
	return list
}

// tokenRules are what the filters that look at tokens do: those that are needed, and for a dynamic Envoy all, of which some
// let everybody pass.
func (b *builder) tokenRules() []*corev3.TypedExtensionConfig {
	tokens, claims := new(jwtv3.JwtAuthentication), new(rbacfilterv3.RBAC)
	if b.o.JWT != nil {
		tokens, claims = b.jwt(), b.claims()
	}
	var list []*corev3.TypedExtensionConfig
	if b.o.Dynamic || len(tokens.Rules) > 0 {
		list = append(list, &corev3.TypedExtensionConfig{Name: tokenFilter, TypedConfig: b.pack(tokens)})
	}
	if b.o.Dynamic || claims.Rules != nil {
		list = append(list, &corev3.TypedExtensionConfig{Name: claimFilter, TypedConfig: b.pack(claims)})
	}
	return list
}

// jwt asks for a token on every path but those of health.
func (b *builder) jwt() *jwtv3.JwtAuthentication {
	j := b.o.JWT
	provider := &jwtv3.JwtProvider{
		Issuer:    j.Issuer,
		Audiences: j.Audiences,
		// In the Authorization header only: a token in a query stands in every log.
		FromHeaders:       []*jwtv3.JwtHeader{{Name: "Authorization", ValuePrefix: "Bearer "}},
		PayloadInMetadata: claimsKey,
		JwksSourceSpecifier: &jwtv3.JwtProvider_RemoteJwks{RemoteJwks: &jwtv3.RemoteJwks{
			HttpUri: &corev3.HttpUri{Uri: j.JWKSURI, HttpUpstreamType: &corev3.HttpUri_Cluster{Cluster: jwksCluster}, Timeout: durationpb.New(5 * time.Second)},
			// Fetched ahead, so that the first request doesn't wait; the listener doesn't wait either, and an issuer that is
			// away for a moment takes no health check out.
			AsyncFetch:    &jwtv3.JwksAsyncFetch{FastListener: true, FailedRefetchDuration: durationpb.New(time.Second)},
			CacheDuration: durationpb.New(5 * time.Minute),
		}},
	}
	for _, c := range j.Claims {
		if c.List {
			if provider.NormalizePayloadInMetadata == nil {
				provider.NormalizePayloadInMetadata = new(jwtv3.JwtProvider_NormalizePayload)
			}
			n := provider.NormalizePayloadInMetadata
			n.SpaceDelimitedClaims = append(n.SpaceDelimitedClaims, c.Name) // as OAuth writes scopes
		}
	}
	var rules []*jwtv3.RequirementRule
	for _, path := range openPaths() {
		rules = append(rules, &jwtv3.RequirementRule{Match: &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Path{Path: path}}})
	}
	rules = append(rules, &jwtv3.RequirementRule{Match: everything(), RequirementType: &jwtv3.RequirementRule_Requires{
		Requires: &jwtv3.JwtRequirement{RequiresType: &jwtv3.JwtRequirement_ProviderName{ProviderName: j.Name}}}})
	return &jwtv3.JwtAuthentication{Providers: map[string]*jwtv3.JwtProvider{j.Name: provider}, Rules: rules}
}

// claims denies whoever's token lacks a claim, and nobody where none is required.
func (b *builder) claims() *rbacfilterv3.RBAC {
	if len(b.o.JWT.Claims) == 0 {
		return new(rbacfilterv3.RBAC)
	}
	var every []*rbacv3.Principal
	for _, c := range b.o.JWT.Claims {
		every = append(every, anyOf(c.principals()))
	}
	var open []*rbacv3.Permission
	for _, path := range openPaths() {
		open = append(open, &rbacv3.Permission{Rule: &rbacv3.Permission_UrlPath{UrlPath: &matcherv3.PathMatcher{
			Rule: &matcherv3.PathMatcher_Path{Path: exactly(path)}}}})
	}
	return &rbacfilterv3.RBAC{Rules: &rbacv3.RBAC{Action: rbacv3.RBAC_ALLOW, Policies: map[string]*rbacv3.Policy{
		"health": {Permissions: open, Principals: []*rbacv3.Principal{{Identifier: &rbacv3.Principal_Any{Any: true}}}},
		"claims": {Permissions: []*rbacv3.Permission{{Rule: &rbacv3.Permission_Any{Any: true}}},
			Principals: []*rbacv3.Principal{{Identifier: &rbacv3.Principal_AndIds{AndIds: &rbacv3.Principal_Set{Ids: every}}}}},
	}}}
}

func anyOf(list []*rbacv3.Principal) *rbacv3.Principal {
	return &rbacv3.Principal{Identifier: &rbacv3.Principal_OrIds{OrIds: &rbacv3.Principal_Set{Ids: list}}}
}

func exactly(text string) *matcherv3.StringMatcher {
	return &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Exact{Exact: text}}
}

// principals are the ways to have the claim. A name with dots is a name, as URLs are, or a path into an object, as some
// issuers' roles are: either will do, since the issuer wrote both.
func (c *Claim) principals() []*rbacv3.Principal {
	paths := [][]string{{claimsKey, c.Name}}
	if strings.Contains(c.Name, ".") {
		paths = append(paths, append([]string{claimsKey}, strings.Split(c.Name, ".")...))
	}
	var list []*rbacv3.Principal
	for _, path := range paths {
		var segments []*matcherv3.MetadataMatcher_PathSegment
		for _, key := range path {
			segments = append(segments, &matcherv3.MetadataMatcher_PathSegment{Segment: &matcherv3.MetadataMatcher_PathSegment_Key{Key: key}})
		}
		for _, value := range c.Values {
			match := &matcherv3.ValueMatcher{MatchPattern: &matcherv3.ValueMatcher_StringMatch{StringMatch: exactly(value)}}
			if c.List {
				match = &matcherv3.ValueMatcher{MatchPattern: &matcherv3.ValueMatcher_ListMatch{ListMatch: &matcherv3.ListMatcher{
					MatchPattern: &matcherv3.ListMatcher_OneOf{OneOf: match}}}}
			}
			list = append(list, &rbacv3.Principal{Identifier: &rbacv3.Principal_SourcedMetadata{SourcedMetadata: &rbacv3.SourcedMetadata{
				MetadataMatcher: &matcherv3.MetadataMatcher{Filter: tokenFilter, Path: segments, Value: match}}}})
		}
	}
	return list
}

// jwks is the cluster of the issuer's keys, by TLS.
func (b *builder) jwks() *clusterv3.Cluster {
	u, err := url.Parse(b.o.JWT.JWKSURI)
	if err != nil {
		b.faults = append(b.faults, err)
		return nil
	}
	port := u.Port()
	setDefault(&port, "443")
	c := b.fixed(jwksCluster, net.JoinHostPort(u.Hostname(), port), false)
	c.TransportSocket = b.upstreamTLS(upstream{name: u.Hostname()})
	return c
}
