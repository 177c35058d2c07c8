package extproc

import (
	"bytes"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	filter "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	envoytype "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/sluice-gateway/sluice/front"
)

// cutUp lays p into buffers of at most n bytes, as a connection's frames do.
func cutUp(p []byte, n int) mem.BufferSlice {
	var out mem.BufferSlice
	for len(p) > n {
		out, p = append(out, mem.SliceBuffer(p[:n])), p[n:]
	}
	return append(out, mem.SliceBuffer(p))
}

// theirs reads a message with the generated types, into the form that decode gives it.
func theirs(p *pb.ProcessingRequest) (message, string) {
	m := message{unheard: p.GetObservabilityMode()}
	if c := p.GetProtocolConfig(); c != nil {
		m.announced, m.request, m.answer = true, bodyMode(c.GetRequestBodyMode()), bodyMode(c.GetResponseBodyMode())
	}
	var headers *pb.HttpHeaders
	var body *pb.HttpBody
	switch r := p.GetRequest().(type) {
	case *pb.ProcessingRequest_RequestHeaders:
		m.kind, headers = requestHeaders, r.RequestHeaders
	case *pb.ProcessingRequest_ResponseHeaders:
		m.kind, headers = responseHeaders, r.ResponseHeaders
	case *pb.ProcessingRequest_RequestBody:
		m.kind, body = requestBody, r.RequestBody
	case *pb.ProcessingRequest_ResponseBody:
		m.kind, body = responseBody, r.ResponseBody
	case *pb.ProcessingRequest_RequestTrailers:
		m.kind = requestTrailers
	case *pb.ProcessingRequest_ResponseTrailers:
		m.kind = responseTrailers
	}
	if headers != nil {
		m.end, m.header = headers.GetEndOfStream(), make(http.Header)
		for _, h := range headers.GetHeaders().GetHeaders() {
			v := string(h.GetRawValue())
			if v == "" {
				v = h.GetValue()
			}
			if strings.HasPrefix(h.GetKey(), ":") {
				if to := m.pseudo(h.GetKey()); to != nil {
					*to = v
				}
				continue
			}
			m.header.Add(h.GetKey(), v)
		}
	}
	m.end = m.end || body.GetEndOfStream()
	m.size = len(body.GetBody())
	if v := p.GetAttributes()[spaceAttributes].GetFields()[keyDetails]; v != nil {
		m.details = v.GetStringValue()
		if list := v.GetListValue().GetValues(); len(list) > 0 {
			m.details = list[0].GetStringValue()
		}
	}
	spaces := p.GetMetadataContext().GetFilterMetadata()
	if v := spaces[spaceLB].GetFields()[front.WireServed]; v != nil {
		m.served = v.GetStringValue()
		if list := v.GetListValue().GetValues(); len(list) > 0 {
			m.served = list[0].GetStringValue()
		}
	}
	if v, ok := spaces[spaceSubset].GetFields()[front.WireSubset]; ok {
		m.hinted = true
		m.subset = addresses(v.GetStringValue())
		for _, v := range v.GetListValue().GetValues() {
			m.subset = append(m.subset, addresses(v.GetStringValue())...)
		}
	}
	return m, string(body.GetBody())
}

func compare(t *testing.T, p []byte, piece int) {
	t.Helper()
	var full pb.ProcessingRequest
	if (proto.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(p, &full) != nil {
		return
	}
	p, err := proto.MarshalOptions{Deterministic: true}.Marshal(&full) // what comes twice in it is put together
	if err != nil {
		t.Fatal(err)
	}
	want, body := theirs(&full)
	var got message
	if err := got.decode(cutUp(p, piece)); err != nil {
		t.Fatalf("got %v for a good message", err)
	}
	if b := string(got.body.Materialize()); b != body {
		t.Errorf("got a body of %d bytes, want %d", len(b), len(body))
	}
	got.body = nil
	if d := cmp.Diff(want, got, cmp.AllowUnexported(message{}), cmp.Comparer(func(a, b http.Header) bool {
		return len(a) == 0 && len(b) == 0 || cmp.Equal(map[string][]string(a), map[string][]string(b))
	}), cmp.Comparer(func(a, b []string) bool { return strings.Join(a, ",") == strings.Join(b, ",") })); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
}

func headerMap(pairs ...string) *core.HeaderMap {
	m := &core.HeaderMap{}
	for i := 0; i < len(pairs); i += 2 {
		m.Headers = append(m.Headers, &core.HeaderValue{Key: pairs[i], RawValue: []byte(pairs[i+1])})
	}
	return m
}

// samples are messages as Envoy sends them, one of each kind.
func samples(t testing.TB) [][]byte {
	hint, err := structpb.NewStruct(map[string]any{front.WireSubset: []any{"10.0.0.1:8000", "[fd00::1]:8000"}})
	served, err2 := structpb.NewStruct(map[string]any{front.WireServed: "10.0.0.2:8000", "other": map[string]any{"a": 1.5}})
	details, err3 := structpb.NewStruct(map[string]any{keyDetails: "via_upstream", "response.flags": 4})
	if err != nil || err2 != nil || err3 != nil {
		t.Fatal(err, err2)
	}
	list, _ := structpb.NewStruct(map[string]any{front.WireSubset: "10.0.0.1:8000, 10.0.0.2:8000"})
	var out [][]byte
	for _, m := range []*pb.ProcessingRequest{
		{Request: &pb.ProcessingRequest_RequestHeaders{RequestHeaders: &pb.HttpHeaders{Headers: headerMap(":method", "POST", ":path", "/v1/chat/completions",
			":scheme", "https", ":authority", "gw", "content-type", "application/json", "x-a", "1", "x-a", "\xff"), EndOfStream: true}},
			ProtocolConfig:  &pb.ProtocolConfiguration{RequestBodyMode: filter.ProcessingMode_FULL_DUPLEX_STREAMED, ResponseBodyMode: filter.ProcessingMode_STREAMED},
			MetadataContext: &core.Metadata{FilterMetadata: map[string]*structpb.Struct{spaceSubset: hint, "x": served}},
			Attributes:      map[string]*structpb.Struct{"envoy.filters.http.ext_proc": served}},
		{Request: &pb.ProcessingRequest_RequestHeaders{RequestHeaders: &pb.HttpHeaders{Headers: headerMap(":path", "/")}},
			MetadataContext: &core.Metadata{FilterMetadata: map[string]*structpb.Struct{spaceSubset: list}}},
		{Request: &pb.ProcessingRequest_ResponseHeaders{ResponseHeaders: &pb.HttpHeaders{Headers: headerMap(":status", "200")}},
			MetadataContext: &core.Metadata{FilterMetadata: map[string]*structpb.Struct{spaceLB: served}}},
		{Request: &pb.ProcessingRequest_RequestBody{RequestBody: &pb.HttpBody{Body: bytes.Repeat([]byte("prompt "), 10000), EndOfStream: true}}},
		{Request: &pb.ProcessingRequest_ResponseBody{ResponseBody: &pb.HttpBody{Body: []byte("x"), EndOfStreamWithoutMessage: true}}, ObservabilityMode: true},
		{Request: &pb.ProcessingRequest_RequestTrailers{RequestTrailers: &pb.HttpTrailers{Trailers: headerMap("a", "b")}}},
		{Request: &pb.ProcessingRequest_ResponseTrailers{ResponseTrailers: &pb.HttpTrailers{}}},
		{Request: &pb.ProcessingRequest_RequestHeaders{RequestHeaders: &pb.HttpHeaders{Headers: headerMap(":method", "POST", ":path", "/v1/chat/completions")}},
			ProtocolConfig: &pb.ProtocolConfiguration{RequestBodyMode: filter.ProcessingMode_BUFFERED}},
		{Request: &pb.ProcessingRequest_RequestBody{RequestBody: &pb.HttpBody{Body: []byte(good), EndOfStream: true}}},
		{Request: &pb.ProcessingRequest_ResponseHeaders{ResponseHeaders: &pb.HttpHeaders{Headers: headerMap(":status", "503")}},
			Attributes: map[string]*structpb.Struct{"envoy.filters.http.ext_proc": details}},
	} {
		p, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, p)
	}
	return out
}

func TestMessagesAreReadAsTheGeneratedTypesReadThem(t *testing.T) {
	for i, p := range samples(t) {
		for _, piece := range []int{1, 2, 7, 100, 16384, 1 << 20} {
			t.Run(fmt.Sprint(i, "/", piece), func(t *testing.T) { compare(t, p, piece) })
		}
	}
}

func FuzzMessage(f *testing.F) {
	for _, p := range samples(f) {
		f.Add(p, 7)
	}
	f.Fuzz(func(t *testing.T, p []byte, piece int) {
		piece = max(piece, 1)
		var m message
		_ = m.decode(cutUp(p, piece)) // must not panic, whatever it is
		compare(t, p, piece)
	})
}

func TestACutOffMessageIsAnError(t *testing.T) {
	for i, p := range samples(t) {
		for _, n := range []int{1, len(p) / 2, len(p) - 1} {
			var m message
			var full pb.ProcessingRequest
			if proto.Unmarshal(p[:n], &full) == nil {
				continue // it ends between two fields
			}
			if err := m.decode(cutUp(p[:n], 100)); err == nil {
				t.Errorf("message %d: got no error for its first %d of %d bytes", i, n, len(p))
			}
		}
	}
}

func setHeaders(pairs ...string) []*core.HeaderValueOption {
	var out []*core.HeaderValueOption
	for i := 0; i < len(pairs); i += 2 {
		out = append(out, &core.HeaderValueOption{Header: &core.HeaderValue{Key: pairs[i], RawValue: []byte(pairs[i+1])},
			AppendAction: core.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD})
	}
	return out
}

func TestAnswersAreWhatTheGeneratedTypesRead(t *testing.T) {
	metadata, err := structpb.NewStruct(map[string]any{spaceLB: map[string]any{front.WireDestination: "a:1,b:2", front.WireReason: "why"}})
	if err != nil {
		t.Fatal(err)
	}
	body := bytes.Repeat([]byte("0123456789"), 7000)
	mutation := &pb.HeaderMutation{SetHeaders: setHeaders("x-a", "1", "x-b", strings.Repeat("long", 200)), RemoveHeaders: []string{"accept-encoding"}}
	set := []header{{"x-a", "1"}, {"x-b", strings.Repeat("long", 200)}}
	for _, c := range []struct {
		name string
		give answer
		want *pb.ProcessingResponse
	}{
		{"headers", answer{kind: requestHeaders, set: set, remove: []string{"accept-encoding"}, reroute: true, destination: "a:1,b:2", reason: "why", mode: override{request: modeBuffered, answer: modeStreamed}},
			&pb.ProcessingResponse{DynamicMetadata: metadata, ModeOverride: &filter.ProcessingMode{RequestBodyMode: filter.ProcessingMode_BUFFERED,
				ResponseHeaderMode: filter.ProcessingMode_SEND, ResponseBodyMode: filter.ProcessingMode_STREAMED, ResponseTrailerMode: filter.ProcessingMode_SEND},
				Response: &pb.ProcessingResponse_RequestHeaders{RequestHeaders: &pb.HeadersResponse{Response: &pb.CommonResponse{HeaderMutation: mutation, ClearRouteCache: true}}}}},
		{"nothing", answer{kind: responseHeaders},
			&pb.ProcessingResponse{Response: &pb.ProcessingResponse_ResponseHeaders{ResponseHeaders: &pb.HeadersResponse{Response: &pb.CommonResponse{}}}}},
		{"body", answer{kind: requestBody, set: set, remove: []string{"accept-encoding"}},
			&pb.ProcessingResponse{Response: &pb.ProcessingResponse_RequestBody{RequestBody: &pb.BodyResponse{Response: &pb.CommonResponse{HeaderMutation: mutation}}}}},
		{"body replaced", answer{kind: requestBody, replaces: true, body: cutUp(body, 16384)},
			&pb.ProcessingResponse{Response: &pb.ProcessingResponse_RequestBody{RequestBody: &pb.BodyResponse{Response: &pb.CommonResponse{
				BodyMutation: &pb.BodyMutation{Mutation: &pb.BodyMutation_Body{Body: body}}}}}}},
		{"body replaced with headers", answer{kind: requestHeaders, replaces: true, set: set, remove: []string{"accept-encoding"}, body: cutUp(body, 16384)},
			&pb.ProcessingResponse{Response: &pb.ProcessingResponse_RequestHeaders{RequestHeaders: &pb.HeadersResponse{Response: &pb.CommonResponse{
				Status: pb.CommonResponse_CONTINUE_AND_REPLACE, HeaderMutation: mutation, BodyMutation: &pb.BodyMutation{Mutation: &pb.BodyMutation_Body{Body: body}}}}}}},
		{"body streamed", answer{kind: requestBody, streamed: true, end: true, body: cutUp(body, 16384)},
			&pb.ProcessingResponse{Response: &pb.ProcessingResponse_RequestBody{RequestBody: &pb.BodyResponse{Response: &pb.CommonResponse{
				BodyMutation: &pb.BodyMutation{Mutation: &pb.BodyMutation_StreamedResponse{StreamedResponse: &pb.StreamedBodyResponse{Body: body, EndOfStream: true}}}}}}}},
		{"empty piece", answer{kind: responseBody, streamed: true},
			&pb.ProcessingResponse{Response: &pb.ProcessingResponse_ResponseBody{ResponseBody: &pb.BodyResponse{Response: &pb.CommonResponse{
				BodyMutation: &pb.BodyMutation{Mutation: &pb.BodyMutation_StreamedResponse{StreamedResponse: &pb.StreamedBodyResponse{}}}}}}}},
		{"trailers", answer{kind: requestTrailers}, &pb.ProcessingResponse{Response: &pb.ProcessingResponse_RequestTrailers{RequestTrailers: &pb.TrailersResponse{}}}},
		{"response trailers", answer{kind: responseTrailers}, &pb.ProcessingResponse{Response: &pb.ProcessingResponse_ResponseTrailers{ResponseTrailers: &pb.TrailersResponse{}}}},
		{"time", answer{wait: 90*time.Minute + 5*time.Millisecond},
			&pb.ProcessingResponse{OverrideMessageTimeout: durationpb.New(90*time.Minute + 5*time.Millisecond)}},
		{"immediate", answer{status: 429, set: []header{{"retry-after", "2"}}, content: []byte(`{"error":{}}`), details: "overloaded"},
			&pb.ProcessingResponse{Response: &pb.ProcessingResponse_ImmediateResponse{ImmediateResponse: &pb.ImmediateResponse{
				Status: &envoytype.HttpStatus{Code: envoytype.StatusCode_TooManyRequests}, Headers: &pb.HeaderMutation{SetHeaders: setHeaders("retry-after", "2")},
				Body: []byte(`{"error":{}}`), Details: "overloaded"}}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var got pb.ProcessingResponse
			if err := proto.Unmarshal(c.give.encode().Materialize(), &got); err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(c.want, &got, protocmp.Transform()); d != "" {
				t.Errorf("-want +got:\n%s", d)
			}
		})
	}
}

// A body is read and sent back by us, and by the generated types. The difference is what the codec is for.
func BenchmarkCodec(b *testing.B) {
	for _, size := range []int{2 << 10, 220 << 10, 400 << 10} {
		p, err := proto.Marshal(&pb.ProcessingRequest{Request: &pb.ProcessingRequest_RequestBody{RequestBody: &pb.HttpBody{Body: make([]byte, size), EndOfStream: true}}})
		if err != nil {
			b.Fatal(err)
		}
		data := cutUp(p, 16384)
		ours, their := newCodec(), newCodec().CodecV2
		b.Run(fmt.Sprintf("%dKB/ours", size>>10), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				var m message
				if err := ours.Unmarshal(data, &m); err != nil {
					b.Fatal(err)
				}
				out, err := ours.Marshal(&answer{kind: requestBody, streamed: true, end: true, body: m.body})
				if err != nil {
					b.Fatal(err)
				}
				out.Free()
			}
		})
		b.Run(fmt.Sprintf("%dKB/generated", size>>10), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				var m pb.ProcessingRequest
				if err := their.Unmarshal(data, &m); err != nil {
					b.Fatal(err)
				}
				out, err := their.Marshal(&pb.ProcessingResponse{Response: &pb.ProcessingResponse_RequestBody{RequestBody: &pb.BodyResponse{Response: &pb.CommonResponse{
					BodyMutation: &pb.BodyMutation{Mutation: &pb.BodyMutation_StreamedResponse{StreamedResponse: &pb.StreamedBodyResponse{
						Body: m.GetRequestBody().GetBody(), EndOfStream: true}}}}}}})
				if err != nil {
					b.Fatal(err)
				}
				out.Free()
			}
		})
	}
}
