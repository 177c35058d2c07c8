//go:build doors && unix

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/protobuf/types/known/structpb"

	discovery "github.com/sluice-gateway/sluice/envoy"
	"github.com/sluice-gateway/sluice/fleet"
)

// eachEnvoy runs a test with either release of Envoy, with both at a time: what they take is waiting.
func eachEnvoy(t *testing.T, test func(t *testing.T, binary string)) {
	for name, variable := range map[string]string{"current": envoyVariable, "old": oldEnvoyVariable} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, os.Getenv(variable))
		})
	}
}

// seen is what reached the picker or an endpoint.
type seen struct {
	Path   string
	Header http.Header
	Body   string
}

// pickerRig is a picker whose every answer the test says, with the gateway's own discovery beside it. What Envoy does for a
// picker is tried with it; what the picker does is tried with the real one.
type pickerRig struct {
	extprocv3.UnimplementedExternalProcessorServer
	fleet   *fleet.Fleet
	address string
	options discovery.Options // of discovery

	mu     sync.Mutex
	answer func(seen) *extprocv3.ProcessingResponse // nil never answers
	asked  []seen
	served []string // what Envoy told of the endpoints that served
	server *grpc.Server
	stop   context.CancelFunc
}

// newPicker makes a picker that chooses the endpoints given, in that order, for the model m.
func newPicker(t *testing.T, endpoints ...*endpointRig) *pickerRig {
	t.Helper()
	p := &pickerRig{fleet: new(fleet.Fleet), address: freeAddress(t)}
	p.options = discovery.Options{Listen: p.address, Admin: p.address, Picker: discovery.Picker{Address: p.address}, Pools: []discovery.Pool{{Name: "m", Model: "m"}}}
	p.pools(fleet.PoolConfig{Name: "m", Model: "m", Endpoints: members(endpoints...)})
	p.choose("m", endpoints...)
	return p
}

func (p *pickerRig) pools(pools ...fleet.PoolConfig) { p.fleet.Apply(pools, "") }

func members(endpoints ...*endpointRig) []fleet.Endpoint {
	var out []fleet.Endpoint
	for _, e := range endpoints {
		out = append(out, fleet.Endpoint{Name: e.address, Host: e.address})
	}
	return out
}

// start serves until stopped or the test ends.
func (p *pickerRig) start(t *testing.T) *pickerRig {
	t.Helper()
	l, err := net.Listen("tcp", p.address)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	d := discovery.NewDiscovery(p.fleet)
	if err := d.Apply(p.options); err != nil {
		t.Fatal(err)
	}
	p.server, p.stop = grpc.NewServer(grpc.MaxRecvMsgSize(300<<20),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true})), cancel
	extprocv3.RegisterExternalProcessorServer(p.server, p)
	d.Register(ctx, p.server)
	var running sync.WaitGroup
	running.Go(func() { _ = p.server.Serve(l) })
	running.Go(func() { _ = d.Run(ctx) })
	t.Cleanup(func() { cancel(); p.server.Stop(); running.Wait() })
	return p
}

// halt ends the picker as a crash does.
func (p *pickerRig) halt() { p.stop(); p.server.Stop() }

// say sets what every request is answered from now on.
func (p *pickerRig) say(answer func(seen) *extprocv3.ProcessingResponse) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.answer = answer
}

// choose picks the endpoints given, in that order.
func (p *pickerRig) choose(model string, endpoints ...*endpointRig) {
	var list []string
	for _, e := range endpoints {
		list = append(list, e.address)
	}
	p.say(func(seen) *extprocv3.ProcessingResponse { return picked(model, list...) })
}

// picked is the answer that names endpoints.
func picked(model string, addresses ...string) *extprocv3.ProcessingResponse {
	list := strings.Join(addresses, ",")
	common := &extprocv3.CommonResponse{ClearRouteCache: true, HeaderMutation: &extprocv3.HeaderMutation{SetHeaders: []*corev3.HeaderValueOption{
		setHeader("x-gateway-destination-endpoint", list), setHeader("x-gateway-base-model-name", model), setHeader("x-gateway-model-name", model)}}}
	lb, _ := structpb.NewStruct(map[string]any{"envoy.lb": map[string]any{"x-gateway-destination-endpoint": list, "x-gateway-routing-reason": "test"}})
	return &extprocv3.ProcessingResponse{DynamicMetadata: lb, Response: &extprocv3.ProcessingResponse_RequestBody{RequestBody: &extprocv3.BodyResponse{Response: common}}}
}

// refused is an answer without any endpoint.
func refused(status int, body string) *extprocv3.ProcessingResponse {
	return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ImmediateResponse{ImmediateResponse: &extprocv3.ImmediateResponse{
		Status: &typev3.HttpStatus{Code: typev3.StatusCode(status)}, Body: []byte(body),
		Headers: &extprocv3.HeaderMutation{SetHeaders: []*corev3.HeaderValueOption{setHeader("content-type", "application/json"), setHeader("retry-after", "7")}}}}}
}

func setHeader(name, value string) *corev3.HeaderValueOption {
	return &corev3.HeaderValueOption{Header: &corev3.HeaderValue{Key: name, RawValue: []byte(value)}, AppendAction: corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD}
}

// Process is the picker's side of one request.
func (p *pickerRig) Process(stream extprocv3.ExternalProcessor_ProcessServer) error {
	var now seen
	for {
		r, err := stream.Recv()
		if err != nil {
			return nil
		}
		var reply *extprocv3.ProcessingResponse
		switch m := r.Request.(type) {
		case *extprocv3.ProcessingRequest_RequestHeaders:
			now.Header = make(http.Header)
			for _, h := range m.RequestHeaders.Headers.Headers {
				now.Header.Add(h.Key, string(h.RawValue))
			}
			now.Path = now.Header.Get(":path")
			if reply = headersOnly(); m.RequestHeaders.EndOfStream {
				if reply = p.ask(now); reply.GetRequestBody() != nil {
					reply.Response = &extprocv3.ProcessingResponse_RequestHeaders{RequestHeaders: &extprocv3.HeadersResponse{Response: reply.GetRequestBody().Response}}
				}
			}
		case *extprocv3.ProcessingRequest_RequestBody:
			now.Body += string(m.RequestBody.Body)
			if !m.RequestBody.EndOfStream {
				continue
			}
			reply = p.ask(now)
		case *extprocv3.ProcessingRequest_ResponseHeaders:
			at := r.GetMetadataContext().GetFilterMetadata()["envoy.lb"].GetFields()["x-gateway-destination-endpoint-served"].GetStringValue()
			p.mu.Lock()
			p.served = append(p.served, at)
			p.mu.Unlock()
			reply = &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ResponseHeaders{ResponseHeaders: &extprocv3.HeadersResponse{Response: &extprocv3.CommonResponse{
				HeaderMutation: &extprocv3.HeaderMutation{SetHeaders: []*corev3.HeaderValueOption{setHeader("x-gateway-destination-endpoint-served", at)}}}}}}
		}
		if reply == nil { // a picker that never answers
			<-stream.Context().Done()
			return nil
		}
		if err := stream.Send(reply); err != nil {
			return nil
		}
	}
}

func headersOnly() *extprocv3.ProcessingResponse {
	return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestHeaders{RequestHeaders: &extprocv3.HeadersResponse{}}}
}

func (p *pickerRig) ask(s seen) *extprocv3.ProcessingResponse {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked = append(p.asked, s)
	if p.answer == nil {
		return nil
	}
	return p.answer(s)
}

func (p *pickerRig) lastAsked() seen {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.asked[len(p.asked)-1]
}

func (p *pickerRig) lastServed() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.served[len(p.served)-1]
}

// endpointRig is an endpoint that answers as the test says, and keeps what it was asked.
type endpointRig struct {
	address string
	server  *httptest.Server

	mu   sync.Mutex
	got  []seen
	does http.HandlerFunc
}

// newEndpoint starts an endpoint that answers 200 with its own address.
func newEndpoint(t *testing.T) *endpointRig {
	t.Helper()
	e := new(endpointRig)
	e.does = func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, e.address) }
	e.server = httptest.NewServer(e)
	t.Cleanup(func() { e.server.CloseClientConnections(); e.server.Close() })
	e.address = strings.TrimPrefix(e.server.URL, "http://")
	return e
}

func (e *endpointRig) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	header := maps.Clone(r.Header)
	header.Set("Host", r.Host)
	e.mu.Lock()
	e.got = append(e.got, seen{Path: r.URL.Path, Header: header, Body: string(body)})
	does := e.does
	e.mu.Unlock()
	does(w, r)
}

func (e *endpointRig) do(f http.HandlerFunc) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.does = f
}

func (e *endpointRig) requests() []seen {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.got)
}

// dead is an address that nobody listens on.
func dead(t *testing.T) *endpointRig { return &endpointRig{address: freeAddress(t)} }

// envoyRig is a running Envoy with the bootstrap that the command writes.
type envoyRig struct {
	*process
	url, admin string
}

// bootstrapFor writes a bootstrap, for one pool m of these endpoints unless the flags name a file.
func bootstrapFor(t *testing.T, p *pickerRig, endpoints []*endpointRig, flags ...string) (path, listen, admin string) {
	t.Helper()
	listen, admin = freeAddress(t), freeAddress(t)
	path = filepath.Join(t.TempDir(), "envoy.yaml")
	args := append([]string{"envoy", "--listen", listen, "--admin", admin, "--picker", p.address, "--out", path}, flags...)
	if !slices.Contains(flags, "-f") {
		var list []string
		for _, e := range endpoints {
			list = append(list, e.address)
		}
		args = append(args, "--endpoint", "m="+strings.Join(list, ","))
	}
	c := start(t, "sluice envoy", os.Getenv(binaryVariable), args...)
	if code := c.exitCode(t, 30*time.Second); code != 0 {
		t.Fatalf("got exit code %d of sluice envoy, want 0:\n%s", code, c.tail(10))
	}
	return path, listen, admin
}

// startEnvoy runs an Envoy with such a bootstrap and waits until it serves, and knows the endpoints where the picker runs.
func startEnvoy(t *testing.T, binary string, p *pickerRig, endpoints []*endpointRig, flags ...string) *envoyRig {
	t.Helper()
	path, listen, admin := bootstrapFor(t, p, endpoints, flags...)
	e := &envoyRig{url: "http://" + listen, admin: "http://" + admin, process: start(t, "envoy", binary, "-c", path,
		"--concurrency", "1", "--use-dynamic-base-id", "--disable-hot-restart", "--log-level", "warning")}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("Envoy's last lines:\n%s", e.tail(40))
		}
	})
	eventually(t, "Envoy to be ready", time.Minute, func() bool {
		if !e.running() {
			t.Fatalf("Envoy ended at its start:\n%s", e.tail(20))
		}
		status, _, _ := fetch(http.MethodGet, e.admin+"/ready", nil, nil)
		return status == http.StatusOK
	})
	if p.server != nil {
		for _, m := range endpoints {
			e.knows(t, m)
		}
	}
	return e
}

// knows waits until Envoy has heard of an endpoint.
func (e *envoyRig) knows(t *testing.T, m *endpointRig) {
	t.Helper()
	eventually(t, "Envoy to know "+m.address, 20*time.Second, func() bool { return strings.Contains(e.members(), m.address+"::") })
}

// members is what Envoy says of its clusters' endpoints.
func (e *envoyRig) members() string {
	_, _, text := fetch(http.MethodGet, e.admin+"/clusters", nil, nil)
	return text
}

// fetch makes one request and returns its answer whole; status 0 is none.
func fetch(method, url string, header http.Header, body []byte) (status int, h http.Header, text string) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return 0, nil, err.Error()
	}
	maps.Copy(r.Header, header)
	var transport http.Transport
	defer transport.CloseIdleConnections()
	answer, err := transport.RoundTrip(r)
	if err != nil {
		return 0, nil, err.Error()
	}
	defer answer.Body.Close()
	all, err := io.ReadAll(answer.Body)
	if err != nil {
		return 0, nil, err.Error()
	}
	return answer.StatusCode, answer.Header, string(all)
}

// chat posts a small chat.
func (e *envoyRig) chat(header http.Header) (status int, h http.Header, text string) {
	return fetch(http.MethodPost, e.url+"/v1/chat/completions", header, []byte(`{"model":"m","messages":[]}`))
}

// wantError checks an answer against the API's error form.
func wantError(t *testing.T, what string, status int, h http.Header, text string, wantStatus int, wantCode string) {
	t.Helper()
	var body struct {
		Error struct{ Message, Type, Code string }
	}
	if err := json.Unmarshal([]byte(text), &body); err != nil || status != wantStatus || body.Error.Code != wantCode || body.Error.Message == "" || h.Get("Content-Type") != "application/json" || h.Get("X-Request-Id") == "" {
		t.Errorf("%s: got %d %v %q, want %d with code %s as JSON and an x-request-id", what, status, h, text, wantStatus, wantCode)
	}
	if status == http.StatusServiceUnavailable || status == http.StatusTooManyRequests {
		if h.Get("Retry-After") == "" {
			t.Errorf("%s: got %d without Retry-After", what, status)
		}
	}
}
