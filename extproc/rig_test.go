package extproc

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	filter "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/sluice-gateway/sluice/fleet"
	"github.com/sluice-gateway/sluice/front"
	"github.com/sluice-gateway/sluice/route"
)

// rig is a picker with a client that plays Envoy.
type rig struct {
	t      *testing.T
	fleet  *fleet.Fleet
	picker *Picker
	reg    *prometheus.Registry
	conn   *grpc.ClientConn
	said   *syncBuffer // the log

	mu    sync.Mutex
	ended []front.Ended
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// pool is a pool whose endpoints are ready, which serves a model under its own name.
func pool(name, model string, hosts ...string) fleet.PoolConfig {
	c := fleet.PoolConfig{Name: name, Model: model, Profile: route.RoundRobin()}
	for _, h := range hosts {
		c.Endpoints = append(c.Endpoints, fleet.Endpoint{Name: h, Host: h})
	}
	return c
}

// newPicker makes a picker for pools; a last one without a model takes unknown models.
func newPicker(t testing.TB, o Options, now func() time.Duration, log *slog.Logger, reg *prometheus.Registry, pools ...fleet.PoolConfig) (*Picker, *fleet.Fleet) {
	t.Helper()
	f := new(fleet.Fleet)
	fallback := ""
	if last := pools[len(pools)-1]; last.Model == "" {
		fallback = last.Name
	}
	f.Apply(pools, fallback)
	for _, p := range f.Pools() {
		for _, e := range p.Endpoints() {
			p.ObserveFailure(e.Name, fleet.NoMetrics, "none in tests")
		}
	}
	o.SelectModel = true
	return New(f, o, reg, now, log), f
}

// newRig serves a picker over a connection.
func newRig(t *testing.T, o Options, pools ...fleet.PoolConfig) *rig {
	t.Helper()
	if len(pools) == 0 {
		pools = []fleet.PoolConfig{pool("pool", "m", "10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000")}
	}
	r := &rig{t: t, reg: prometheus.NewRegistry(), said: new(syncBuffer)}
	o.Ended = func(e front.Ended) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.ended = append(r.ended, e)
	}
	start := time.Now()
	r.picker, r.fleet = newPicker(t, o, func() time.Duration { return time.Since(start) },
		slog.New(slog.NewTextHandler(r.said, &slog.HandlerOptions{Level: slog.LevelDebug})), r.reg, pools...)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := r.picker.Server(nil)
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
	r.conn, err = grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(1<<30)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.conn.Close() })
	return r
}

// eventually waits for a condition.
func (r *rig) eventually(what string, ok func() bool) {
	r.t.Helper()
	tick, limit := time.NewTicker(time.Millisecond), time.After(20*time.Second)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-limit:
			r.t.Fatalf("waited in vain until %s", what)
		}
	}
}

// atRest checks that nothing is left of any request.
func (r *rig) atRest() {
	r.t.Helper()
	r.eventually("no stream is open", func() bool { return testutil.ToFloat64(r.picker.metrics.open) == 0 })
	for _, p := range r.fleet.Pools() {
		if n := p.InFlight(); n != 0 {
			r.t.Errorf("pool %s: got %d requests in flight, want none", p.Name(), n)
		}
		for _, e := range p.Status(r.picker.now()) {
			if e.InFlight != 0 || e.Prefilling != 0 || e.BacklogTokens != 0 {
				r.t.Errorf("endpoint %s: got %d in flight, %d in prefill, a backlog of %v, want none", e.Endpoint.Name, e.InFlight, e.Prefilling, e.BacklogTokens)
			}
		}
	}
	for _, name := range []string{"sluice_in_flight", "sluice_request_body_bytes"} {
		if v := r.metric(name); v != 0 {
			r.t.Errorf("%s: got %v, want 0", name, v)
		}
	}
}

// metric is the sum over a metric's series whose labels have the given values.
func (r *rig) metric(name string, values ...string) float64 {
	r.t.Helper()
	families, err := r.reg.Gather()
	if err != nil {
		r.t.Fatal(err)
	}
	sum := 0.
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			have := " "
			for _, l := range m.GetLabel() {
				have += l.GetValue() + " "
			}
			all := true
			for _, v := range values {
				all = all && strings.Contains(have, " "+v+" ")
			}
			if all {
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return sum
}

// last waits for the n-th request's end.
func (r *rig) last(n int) front.Ended {
	r.t.Helper()
	var e front.Ended
	r.eventually("the request has ended", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		if len(r.ended) < n {
			return false
		}
		e = r.ended[n-1]
		return true
	})
	return e
}

// envoy is one request of an Envoy's.
type envoy struct {
	t      *testing.T
	stream pb.ExternalProcessor_ProcessClient
	cancel context.CancelFunc
	mode   filter.ProcessingMode_BodySendMode
	answer filter.ProcessingMode_BodySendMode
	mute   bool // says nothing of its modes
	space  map[string]*structpb.Struct
}

// The modes.
const (
	none     = filter.ProcessingMode_NONE
	streamed = filter.ProcessingMode_STREAMED
	buffered = filter.ProcessingMode_BUFFERED
	partial  = filter.ProcessingMode_BUFFERED_PARTIAL
	duplex   = filter.ProcessingMode_FULL_DUPLEX_STREAMED
)

func (r *rig) envoy(mode filter.ProcessingMode_BodySendMode) *envoy {
	r.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	s, err := pb.NewExternalProcessorClient(r.conn).Process(ctx)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(cancel)
	return &envoy{t: r.t, stream: s, cancel: cancel, mode: mode}
}

func (e *envoy) send(m *pb.ProcessingRequest) {
	e.t.Helper()
	if err := e.stream.Send(m); err != nil {
		e.t.Fatalf("cannot send to the picker: %v", err)
	}
}

// headers sends a request's headers; pairs are beside the usual ones.
func (e *envoy) headers(end bool, method, path string, pairs ...string) {
	e.t.Helper()
	m := &pb.ProcessingRequest{Request: &pb.ProcessingRequest_RequestHeaders{RequestHeaders: &pb.HttpHeaders{EndOfStream: end,
		Headers: headerMap(append([]string{":method", method, ":path", path, ":authority", "gw", ":scheme", "http"}, pairs...)...)}}}
	if !e.mute {
		m.ProtocolConfig = &pb.ProtocolConfiguration{RequestBodyMode: e.mode, ResponseBodyMode: e.answer}
	}
	if e.space != nil {
		m.MetadataContext = &core.Metadata{FilterMetadata: e.space}
	}
	e.send(m)
}

// chat sends the headers of a chat completion.
func (e *envoy) chat(pairs ...string) {
	e.t.Helper()
	e.headers(false, "POST", "/v1/chat/completions", append([]string{"content-type", "application/json"}, pairs...)...)
}

func (e *envoy) body(p string, end bool) {
	e.t.Helper()
	e.send(&pb.ProcessingRequest{Request: &pb.ProcessingRequest_RequestBody{RequestBody: &pb.HttpBody{Body: []byte(p), EndOfStream: end}}})
}

func (e *envoy) trailers() {
	e.t.Helper()
	e.send(&pb.ProcessingRequest{Request: &pb.ProcessingRequest_RequestTrailers{RequestTrailers: &pb.HttpTrailers{Trailers: headerMap("x-sum", "1")}}})
}

// responds sends an answer's headers, from where it is served and, unless empty, why Envoy answers itself.
func (e *envoy) responds(status, served, details string, pairs ...string) {
	e.t.Helper()
	m := &pb.ProcessingRequest{Request: &pb.ProcessingRequest_ResponseHeaders{ResponseHeaders: &pb.HttpHeaders{
		Headers: headerMap(append([]string{":status", status}, pairs...)...)}}, MetadataContext: &core.Metadata{FilterMetadata: map[string]*structpb.Struct{}}}
	if served != "" {
		m.MetadataContext.FilterMetadata[spaceLB] = object(e.t, front.WireServed, served)
	}
	if details != "" {
		m.Attributes = map[string]*structpb.Struct{"envoy.filters.http.ext_proc": object(e.t, keyDetails, details)}
	}
	e.send(m)
}

func (e *envoy) responseBody(p string, end bool) {
	e.t.Helper()
	e.send(&pb.ProcessingRequest{Request: &pb.ProcessingRequest_ResponseBody{ResponseBody: &pb.HttpBody{Body: []byte(p), EndOfStream: end}}})
}

func object(t *testing.T, key string, value any) *structpb.Struct {
	t.Helper()
	s, err := structpb.NewStruct(map[string]any{key: value})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// recv waits for an answer.
func (e *envoy) recv() *pb.ProcessingResponse {
	e.t.Helper()
	m, err := e.stream.Recv()
	if err != nil {
		e.t.Fatalf("got %v, want an answer", err)
	}
	return m
}

// end ends the request as Envoy does, and checks that nothing more was answered.
func (e *envoy) end() {
	e.t.Helper()
	_ = e.stream.CloseSend()
	if m, err := e.stream.Recv(); err == nil {
		e.t.Errorf("got one answer more than wanted: %v", m)
	}
	e.cancel()
}

// refused waits for an immediate answer and returns its status, headers and body.
func (e *envoy) refused() (int, map[string]string, string) {
	e.t.Helper()
	m := e.recv()
	i := m.GetImmediateResponse()
	if i == nil {
		e.t.Fatalf("got %v, want an immediate answer", m)
	}
	if _, err := e.stream.Recv(); err != io.EOF {
		e.t.Errorf("got %v after it, want the stream's end", err)
	}
	return int(i.GetStatus().GetCode()), setBy(i.GetHeaders()), string(i.GetBody())
}

// setBy are the headers that a mutation sets; added ones have a + before their value.
func setBy(m *pb.HeaderMutation) map[string]string {
	out := make(map[string]string)
	for _, h := range m.GetSetHeaders() {
		v := string(h.GetHeader().GetRawValue())
		if h.GetAppendAction() != core.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD {
			v = "+" + v
		}
		out[h.GetHeader().GetKey()] = v
	}
	return out
}

const good = `{"model":"m","messages":[{"role":"user","content":"hi"}]}`

// picked sends a chat completion as the mode has it and returns how it goes on: the mutation, the metadata's
// destination, and the body where that comes back.
func (e *envoy) picked(body string, pairs ...string) (*pb.CommonResponse, string, string) {
	e.t.Helper()
	e.chat(pairs...)
	if e.mode != duplex {
		first := e.recv().GetRequestHeaders()
		if first == nil || first.GetResponse().GetHeaderMutation() != nil {
			e.t.Fatalf("got %v for the headers, want a bare answer", first)
		}
		e.body(body, true)
		m := e.recv()
		c := m.GetRequestBody().GetResponse()
		if c == nil {
			e.t.Fatalf("got %v for the body", m)
		}
		return c, destinationIn(m), string(c.GetBodyMutation().GetBody())
	}
	for p := []byte(body); ; {
		n := min(len(p), 50_000)
		e.body(string(p[:n]), n == len(p))
		if p = p[n:]; len(p) == 0 {
			break
		}
	}
	m := e.recv()
	c := m.GetRequestHeaders().GetResponse()
	if c == nil {
		e.t.Fatalf("got %v, want the answer to the headers first", m)
	}
	back, end := e.echoed()
	if !end {
		e.t.Error("the body's end is not marked")
	}
	return c, destinationIn(m), back
}

// echoed receives pieces of the request's body until its end, or n pieces.
func (e *envoy) echoed() (body string, end bool) {
	e.t.Helper()
	for !end {
		piece := e.recv().GetRequestBody().GetResponse().GetBodyMutation().GetStreamedResponse()
		if piece == nil {
			e.t.Fatal("got no piece of the body")
		}
		if n := len(piece.GetBody()); n > maxEcho {
			e.t.Errorf("got a piece of %d bytes, want at most %d", n, maxEcho)
		}
		body, end = body+string(piece.GetBody()), piece.GetEndOfStream()
	}
	return body, end
}

func destinationIn(m *pb.ProcessingResponse) string {
	return m.GetDynamicMetadata().GetFields()[spaceLB].GetStructValue().GetFields()[front.WireDestination].GetStringValue()
}
