//go:build doors && unix

package e2e

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	modev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
)

// neighbour is someone else's ext_proc service in Envoy's chain of filters: it puts a field at the end of each request's
// body, which makes it longer, and a header before it.
type neighbour struct {
	extprocv3.UnimplementedExternalProcessorServer
}

// startNeighbour starts one and returns its port.
func startNeighbour(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(grpc.MaxRecvMsgSize(64<<20), grpc.MaxSendMsgSize(64<<20))
	extprocv3.RegisterExternalProcessorServer(s, neighbour{})
	go func() { _ = s.Serve(l) }()
	t.Cleanup(s.Stop)
	return l.Addr().(*net.TCPAddr).Port
}

// noted is a body with the neighbour's field.
func noted(body []byte) []byte {
	return append(bytes.TrimSuffix(slices.Clone(body), []byte("}")), `,"note":"someone else was here"}`...)
}

// Process is one request.
func (neighbour) Process(stream grpc.BidiStreamingServer[extprocv3.ProcessingRequest, extprocv3.ProcessingResponse]) error {
	var body []byte
	duplex := false
	for {
		asked, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if c := asked.GetProtocolConfig(); c != nil { // which comes with the first message only
			duplex = c.RequestBodyMode == modev3.ProcessingMode_FULL_DUPLEX_STREAMED
		}
		var answers []*extprocv3.ProcessingResponse
		switch r := asked.Request.(type) {
		case *extprocv3.ProcessingRequest_RequestHeaders:
			answers = append(answers, &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestHeaders{
				RequestHeaders: &extprocv3.HeadersResponse{Response: &extprocv3.CommonResponse{HeaderMutation: neighbourHeaders(duplex)}}}})
		case *extprocv3.ProcessingRequest_RequestBody:
			body = append(body, r.RequestBody.Body...)
			if !duplex || r.RequestBody.EndOfStream { // before trailers a body has no end of its own
				answers = changed(noted(body), duplex, true)
			}
		case *extprocv3.ProcessingRequest_RequestTrailers:
			if duplex {
				answers = changed(noted(body), true, false)
			}
			answers = append(answers, &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestTrailers{
				RequestTrailers: &extprocv3.TrailersResponse{}}})
		}
		for _, a := range answers {
			if err := stream.Send(a); err != nil {
				return err
			}
		}
	}
}

// neighbourHeaders are the changes of a request's headers. A body that comes piece by piece has another length than its
// headers say.
func neighbourHeaders(duplex bool) *extprocv3.HeaderMutation {
	m := overwrite("x-neighbour", "here")
	if duplex {
		m.RemoveHeaders = []string{"content-length"}
	}
	return m
}

func overwrite(name, value string) *extprocv3.HeaderMutation {
	return &extprocv3.HeaderMutation{SetHeaders: []*corev3.HeaderValueOption{{Header: &corev3.HeaderValue{Key: name, RawValue: []byte(value)},
		AppendAction: corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD}}}
}

// changed answers with another body, in one piece or in many.
func changed(body []byte, duplex, last bool) (all []*extprocv3.ProcessingResponse) {
	answer := func(m *extprocv3.BodyMutation, headers *extprocv3.HeaderMutation) {
		all = append(all, &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestBody{
			RequestBody: &extprocv3.BodyResponse{Response: &extprocv3.CommonResponse{BodyMutation: m, HeaderMutation: headers}}}})
	}
	if !duplex {
		answer(&extprocv3.BodyMutation{Mutation: &extprocv3.BodyMutation_Body{Body: body}}, overwrite("content-length", fmt.Sprint(len(body))))
		return all
	}
	parts := slices.Collect(slices.Chunk(body, 50_000))
	for i, part := range parts {
		answer(&extprocv3.BodyMutation{Mutation: &extprocv3.BodyMutation_StreamedResponse{
			StreamedResponse: &extprocv3.StreamedBodyResponse{Body: part, EndOfStream: last && i == len(parts)-1}}}, nil)
	}
	return all
}

// chain is an arrangement of filters: a listener of its own in the same Envoy.
type chain struct {
	name               string
	port               int
	theirs             string // cluster
	before             bool   // theirs comes before ours
	theirMode, ourMode string // of request bodies
	wantNote           bool
}

const (
	buffered = "BUFFERED"
	duplex   = "FULL_DUPLEX_STREAMED"
)

// chains are all arrangements of our picker with someone else's service, and with a second of ours that selects the model only.
func chains(t *testing.T) (all []chain) {
	for _, before := range []bool{true, false} {
		for _, theirs := range []string{buffered, duplex} {
			for _, ours := range []string{buffered, duplex} {
				place := "after"
				if before {
					place = "before"
				}
				all = append(all, chain{name: fmt.Sprintf("theirs %s, %s, ours %s", place, theirs, ours), theirs: "neighbour", before: before, theirMode: theirs, ourMode: ours, wantNote: true})
			}
		}
	}
	for _, mode := range []string{buffered, duplex} {
		all = append(all, chain{name: "select-only before, " + mode, theirs: "selector", before: true, theirMode: mode, ourMode: mode})
	}
	for i, port := range freePorts(t, len(all)) {
		all[i].port = port
	}
	return all
}

// listener is the chain's, made from the usual one.
func (c *chain) listener(t *testing.T, usual object) object {
	l := copyOf(t, usual)
	l["name"] = c.name
	at[object](t, l, "address", "socket_address")["port_value"] = c.port
	m := at[object](t, l, "filter_chains", 0, "filters", 0, "typed_config")
	filters := at[[]any](t, m, "http_filters")
	i := slices.IndexFunc(filters, func(f any) bool { return f.(object)["name"] == "envoy.filters.http.ext_proc" })
	ours := at[object](t, filters[i], "typed_config")
	setMode(ours, c.ourMode)
	theirs := copyOf(t, ours)
	setMode(theirs, c.theirMode)
	at[object](t, theirs, "grpc_service", "envoy_grpc")["cluster_name"] = c.theirs
	delete(theirs, "metadata_options")
	theirs["processing_mode"].(object)["response_header_mode"] = "SKIP"
	place := i + 1
	if c.before {
		place = i
	}
	// An Envoy that may send a request again keeps its body, and where a filter has passed that on piece by piece and then
	// trailers, sends what it keeps after it. Our picker knows; theirs, as the last one, does not.
	if !c.before && c.theirMode == duplex {
		for _, r := range at[[]any](t, m, "route_config", "virtual_hosts", 0, "routes") {
			if to, ok := r.(object)["route"].(object); ok {
				delete(to, "retry_policy")
			}
		}
	}
	m["http_filters"] = slices.Insert(filters, place, any(object{"name": "theirs", "typed_config": theirs}))
	return l
}

func setMode(filter object, mode string) {
	p := filter["processing_mode"].(object)
	p["request_body_mode"], p["request_trailer_mode"] = mode, "SKIP"
	if mode == duplex {
		p["request_trailer_mode"] = "SEND"
	}
}

// TestChains puts another ext_proc service into Envoy's chain, before ours and after it, with every mode of bodies, and
// sends bodies of all sizes, with trailers and without, by HTTP/1.1 and HTTP/2: each arrives as it should, byte by byte. Envoy
// drops the trailers themselves where an engine speaks HTTP/1.1.
func TestChains(t *testing.T) {
	for _, release := range []string{envoyVariable, oldEnvoyVariable} {
		t.Run(release, func(t *testing.T) { t.Parallel(); tryChains(t, os.Getenv(release)) })
	}
}

func tryChains(t *testing.T, binary string) {
	w := startWitnesses(t, 2)
	all := chains(t)
	theirs := map[string]int{"neighbour": startNeighbour(t), "selector": startSelector(t, w)}
	p := startPlane(t, instantModel, planeOptions{binary: binary, endpoints: w.endpoints(), patch: func(b object) {
		static := b["static_resources"].(object)
		clusters := static["clusters"].([]any)
		for name, port := range theirs {
			c := copyOf(t, clusters[slices.IndexFunc(clusters, func(c any) bool { return c.(object)["name"] == "picker" })].(object))
			c["name"] = name
			at[object](t, c, "load_assignment", "endpoints", 0, "lb_endpoints", 0, "endpoint", "address", "socket_address")["port_value"] = port
			static["clusters"] = append(static["clusters"].([]any), c)
		}
		usual := at[object](t, static, "listeners", 0)
		for i := range all {
			static["listeners"] = append(static["listeners"].([]any), all[i].listener(t, usual))
		}
	}})
	one, two := keepAlive(t), overHTTP2(t)
	for _, c := range all {
		for i, r := range []struct {
			client   *http.Client
			size     int
			trailers bool
		}{{one, 1 << 10, false}, {two, 70 << 10, false}, {two, 70 << 10, true}, {one, 1 << 20, true}, {two, 8 << 20, false}} {
			id := fmt.Sprintf("%s-%d", strings.NewReplacer(" ", "-", ",", "").Replace(c.name), i)
			body := chatBodies(1, r.size, 20, false)[0]
			status, err := sendWith(t.Context(), r.client, "http://"+loopback(c.port), id, body, r.trailers)
			if err != nil || status != http.StatusOK {
				t.Errorf("%s: got status %d and error %v, want 200 and none", id, status, err)
				continue
			}
			if c.wantNote {
				body = noted(body)
			}
			c.check(t, id, w.seen(id), body)
		}
	}
	p.wantNothingOpen(t)
}

// check compares what arrived at an engine with what should have.
func (c *chain) check(t *testing.T, id string, came []arrived, want []byte) {
	t.Helper()
	if len(came) != 1 {
		t.Errorf("%s: got %d requests at the engines, want one", id, len(came))
		return
	}
	a := came[0]
	if a.size != len(want) || a.sum != sha256.Sum256(want) {
		t.Errorf("%s: got a body of %d bytes, want %d, byte by byte", id, a.size, len(want))
	}
	if l := a.header.Get("Content-Length"); l != "" && l != fmt.Sprint(len(want)) {
		t.Errorf("%s: got Content-Length %s, want %d or none", id, l, len(want))
	}
	if c.wantNote && a.header.Get("X-Neighbour") != "here" {
		t.Errorf("%s: got no header of the other service, want it", id)
	}
}

// sendWith sends a request, with a trailer if that is wanted, and reads its answer.
func sendWith(ctx context.Context, client *http.Client, url, id string, body []byte, trailers bool) (status int, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/chat/completions", bytes.NewReader(body))
	if err != nil {
		return 0, err
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("X-Request-Id", id)
	if trailers {
		r.ContentLength = -1
		r.Trailer = http.Header{"X-Checked": {"yes"}}
	}
	answer, err := client.Do(r)
	if err != nil {
		return 0, err
	}
	defer answer.Body.Close()
	_, err = io.Copy(io.Discard, answer.Body)
	return answer.StatusCode, err
}

// overHTTP2 is a client that speaks HTTP/2 without TLS.
func overHTTP2(t *testing.T) *http.Client {
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: &protocols, DisableCompression: true}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// startSelector starts a picker that selects the model only, and returns its port.
func startSelector(t *testing.T, w *witnesses) int {
	t.Helper()
	p := &plane{gateway: new(gateway), listen: freePorts(t, 1)[0]}
	p.pickArgs = append([]string{"pick", "--select-only", "--listen", loopback(p.listen), "--admin", "127.0.0.1:0"}, w.endpoints()...)
	p.startPicker(t)
	return p.listen
}

// at follows keys and indices into a configuration.
func at[T any](t *testing.T, whole any, path ...any) T {
	t.Helper()
	for _, step := range path {
		switch step := step.(type) {
		case string:
			whole = whole.(object)[step]
		case int:
			whole = whole.([]any)[step]
		}
	}
	found, ok := whole.(T)
	if !ok {
		t.Fatalf("got %T at %v of Envoy's configuration, want another", whole, path)
	}
	return found
}

// copyOf is a deep copy.
func copyOf(t *testing.T, o object) object {
	t.Helper()
	text, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	var out object
	if err := json.Unmarshal(text, &out); err != nil {
		t.Fatal(err)
	}
	return out
}
