package envoy

import (
	"cmp"
	"fmt"
	"net/http"
	"strings"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	celv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/filters/cel/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sluice-gateway/sluice/openai"
)

// reply is one way in which Envoy answers by itself, and what the client is told.
type reply struct {
	// flags are Envoy's response flags, details what its response code details begin with: either says that it is this
	// one. A reply without any of both is for what Envoy may answer beside these.
	flags, details []string
	where          string // a further condition on details, in CEL
	then           openai.Case
	status         int // another than the case's, unless it is 0
	// again says when to try again, in seconds; 0 says nothing.
	again   int
	message string
}

// replies is the table, in the order in which it is asked. The picker's own answers, which pass by here too, have a form
// already and match no row.
func replies() []reply {
	return []reply{
		{details: []string{"ext_proc_error", "ext_proc_message_timeout"}, then: openai.NoEndpoint, again: 1,
			message: "the gateway's picker can't be asked where to send the request; try again"},
		{details: []string{"no_healthy_upstream"}, where: fmt.Sprintf("xds.route_name == %q && !(%q in metadata.filter_metadata)", unpickedRoute, metadataNamespace),
			then: openai.NoEndpoint, again: 1, message: "the gateway's picker can't be asked where to send the request; try again"},
		{details: []string{"no_healthy_upstream"}, where: fmt.Sprintf("xds.route_name == %q", notOpenRoute), then: openai.PathNotFound,
			message: "the path is closed: while the gateway's picker can't be asked, only paths of the OpenAI API are open"},
		{details: []string{"jwt_authn_access_denied{Audiences"}, then: openai.Forbidden, message: "the token is meant for another audience than this gateway"},
		{details: []string{"jwt_authn_access_denied{Jwks_remote_fetch_is_failed}"}, then: openai.Internal, status: http.StatusServiceUnavailable, again: 1,
			message: "the gateway can't get the keys that it checks tokens by; try again"},
		{details: []string{"jwt_authn_access_denied"}, then: openai.NoToken, message: "the request has no valid token: send one as Authorization: Bearer TOKEN"},
		{details: []string{"rbac_access_denied"}, then: openai.Forbidden, message: "the token does not have the claims that this gateway requires"},
		{details: []string{"request_payload_too_large"}, then: openai.TooLarge, message: "the request body is larger than this gateway takes"},
		{flags: []string{"OM"}, then: openai.Overloaded, again: 1, message: "the gateway is out of memory for requests; try again"},
		{flags: []string{"UH", "NC", "NR"}, then: openai.NoEndpoint, again: 1, message: "no endpoint of the model is ready; try again"},
		{flags: []string{"UO"}, then: openai.Overloaded, again: 1, message: "the endpoints of the model are full; try again"},
		{flags: []string{"UT", "SI", "DT"}, then: openai.TimedOut, message: "the deadline passed before the answer's end"},
		{flags: []string{"UF", "UC", "UR", "LR", "UPE", "URX"}, then: openai.UpstreamFailed, message: "the endpoint failed before its first byte and no other could take the request"},
		{details: []string{"http1.headers_too_large", "http1.too_many_headers", "header_mutation_result_exceeds_limit"}, then: openai.InvalidRequest,
			status: http.StatusRequestHeaderFieldsTooLarge, message: "the request's headers are more than this gateway takes"},
		// The flag for these, DPE, is set when their answer is made already.
		{details: []string{"http1.", "http2.", "low_version", "missing_host_header", "missing_path", "path_normalization_failed"}, then: openai.InvalidRequest,
			message: "the request is not HTTP that can be read"},
	}
}

// localReplies gives Envoy's own answers the form that clients of the API read.
func (b *builder) localReplies() *hcmv3.LocalReplyConfig {
	c := new(hcmv3.LocalReplyConfig)
	for _, r := range replies() {
		e := r.then.Errorf("%s", r.message)
		m := &hcmv3.ResponseMapper{
			Filter:     b.filter(r),
			StatusCode: wrapperspb.UInt32(uint32(cmp.Or(r.status, e.Status))),
			BodyFormatOverride: &corev3.SubstitutionFormatString{ContentType: "application/json",
				Format: &corev3.SubstitutionFormatString_TextFormatSource{TextFormatSource: &corev3.DataSource{
					Specifier: &corev3.DataSource_InlineString{InlineString: strings.ReplaceAll(string(e.JSON()), "%", "%%")}}}},
		}
		if r.again > 0 {
			m.HeadersToAdd = []*corev3.HeaderValueOption{{Header: &corev3.HeaderValue{Key: "retry-after", Value: fmt.Sprint(r.again)},
				AppendAction: corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD}}
		}
		c.Mappers = append(c.Mappers, m)
	}
	return c
}

// filter is true of an answer that the row means.
func (b *builder) filter(r reply) *accesslogv3.AccessLogFilter {
	if len(r.flags) > 0 {
		return &accesslogv3.AccessLogFilter{FilterSpecifier: &accesslogv3.AccessLogFilter_ResponseFlagFilter{
			ResponseFlagFilter: &accesslogv3.ResponseFlagFilter{Flags: r.flags}}}
	}
	var any []string
	for _, d := range r.details {
		any = append(any, fmt.Sprintf("response.code_details.startsWith(%q)", d))
	}
	expression := strings.Join(any, " || ")
	if r.where != "" {
		expression = fmt.Sprintf("(%s) && %s", expression, r.where)
	}
	return &accesslogv3.AccessLogFilter{FilterSpecifier: &accesslogv3.AccessLogFilter_ExtensionFilter{ExtensionFilter: &accesslogv3.ExtensionFilter{
		Name:       "envoy.access_loggers.extension_filters.cel",
		ConfigType: &accesslogv3.ExtensionFilter_TypedConfig{TypedConfig: b.pack(&celv3.ExpressionFilter{Expression: expression})}}}}
}
