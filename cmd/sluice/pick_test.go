package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	filter "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/sluice-gateway/sluice/fleet"
	"github.com/sluice-gateway/sluice/route"
)

// The picker finds its endpoints, answers Envoy and the health service, and on SIGTERM waits for what runs, and not for streams on
// which nothing does (K33).
func TestPickCommand(t *testing.T) {
	a := addressOf(startEngine(t, "llama"))
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	said := new(syncBuffer)
	r, w := io.Pipe()
	cmd := root()
	cmd.SetArgs([]string{"pick", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--scrape-interval", "20ms", "--log-level", "debug", "--endpoint", "llama=" + a})
	cmd.SetOut(w)
	cmd.SetErr(said)
	ended := make(chan error, 1)
	go func() { ended <- cmd.ExecuteContext(ctx) }()
	lines := bufio.NewScanner(r)
	if !lines.Scan() {
		t.Fatalf("pick ended early; log:\n%s", said)
	}
	go func() { _, _ = io.Copy(io.Discard, r) }()
	address := strings.TrimPrefix(lines.Text(), "sluice: picking on ")
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	eventually(t, "the picker is ready", func() bool {
		h, err := healthpb.NewHealthClient(conn).Check(context.Background(), &healthpb.HealthCheckRequest{Service: "readiness"})
		return err == nil && h.GetStatus() == healthpb.HealthCheckResponse_SERVING
	})
	stream, err := pb.NewExternalProcessorClient(conn).Process(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	var headers []*core.HeaderValue
	for name, value := range map[string]string{":method": "POST", ":path": "/v1/completions", "x-request-id": "it"} {
		headers = append(headers, &core.HeaderValue{Key: name, RawValue: []byte(value)})
	}
	for _, m := range []*pb.ProcessingRequest{
		{ProtocolConfig: &pb.ProtocolConfiguration{RequestBodyMode: filter.ProcessingMode_BUFFERED},
			Request: &pb.ProcessingRequest_RequestHeaders{RequestHeaders: &pb.HttpHeaders{Headers: &core.HeaderMap{Headers: headers}}}},
		{Request: &pb.ProcessingRequest_RequestBody{RequestBody: &pb.HttpBody{Body: []byte(`{"model":"llama","prompt":"hi"}`), EndOfStream: true}}},
	} {
		if err := stream.Send(m); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	answer, err := stream.Recv()
	if err != nil || !strings.Contains(answer.String(), a) {
		t.Fatalf("got %v, %v, want it to name %s", answer, err, a)
	}
	for i := range 3 {
		if _, err := pb.NewExternalProcessorClient(conn).Process(context.Background()); err != nil {
			t.Fatal(i, err)
		}
		watch, err := healthpb.NewHealthClient(conn).Watch(context.Background(), &healthpb.HealthCheckRequest{Service: "readiness"})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := watch.Recv(); err != nil {
			t.Fatal(err)
		}
	}
	cancel()
	eventually(t, "it drains", func() bool { return strings.Contains(said.String(), "draining: no new connections") })
	select {
	case err := <-ended:
		t.Fatalf("got the end %v while a request runs", err)
	default:
	}
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("got %v, want an end in good order", err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("it does not end, though nothing runs")
	}
	if log := said.String(); !strings.Contains(log, "x-request-id=it modelName=llama") {
		t.Errorf("got no line for the request in the log:\n%s", log)
	}
}

func TestPickFlagsAreChecked(t *testing.T) {
	for flag, want := range map[string]string{"--patience=0s": "--patience", "--max-wait=0s": "--max-wait", "--see-answers=2": "--see-answers", "--tls-cert=none": "--tls-cert",
		"--scrape-interval=-1s": "--scrape-interval"} {
		cmd := root()
		cmd.SetArgs([]string{"pick", "--endpoint", "m=127.0.0.1:1", flag})
		cmd.SetOut(io.Discard)
		cmd.SetErr(io.Discard)
		if err := cmd.Execute(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v", flag, err)
		}
	}
}

// What the picker says at its start: what it does, and what it leaves to Envoy.
func TestPickSaysWhatItDoes(t *testing.T) {
	file := filepath.Join(t.TempDir(), "gateway.yaml")
	text := strings.Replace(fmt.Sprintf(gatewayFile, "127.0.0.1:1", false, "127.0.0.1:2", false), "  bbr:",
		"  auth: {jwt: {provider: {name: p, issuer: \"https://i.example\", remoteJWKS: {uri: \"https://i.example/keys\"}, audiences: [a]}}}\n  bbr:", 1)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) string {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		said := new(syncBuffer)
		cmd := root()
		cmd.SetArgs(append([]string{"pick", "--admin", "127.0.0.1:0"}, args...))
		cmd.SetOut(said)
		cmd.SetErr(said)
		err := cmd.ExecuteContext(ctx)
		return fmt.Sprint(said, err)
	}
	if said := run("--listen", "127.0.0.1:0", "-f", file); !strings.Contains(said, "sluice: picking on 127.") || strings.Count(said, "`sluice envoy -f FILE`") != 1 ||
		!strings.Contains(said, "what=spec.auth\n") {
		t.Errorf("with spec.auth: got\n%s", said)
	}
	if said := run("--listen", "127.0.0.1:0", "--endpoint", "m=127.0.0.1:1", "--select-only"); !strings.Contains(said, "sluice: selecting models on 127.") || strings.Contains(said, "sluice envoy") {
		t.Errorf("with --select-only: got\n%s", said)
	}
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	if said := run("--listen", taken.Addr().String(), "--endpoint", "m=127.0.0.1:1"); !strings.Contains(said, "cannot listen for Envoy") {
		t.Errorf("at a taken address: got\n%s", said)
	}
}

// An endpoint that becomes ready is new, though it had no reading when it was first looked at; later it was what was logged last.
func TestStatesAreLogged(t *testing.T) {
	said := new(syncBuffer)
	s := &server{fleet: new(fleet.Fleet), start: time.Now(), log: slog.New(slog.NewTextHandler(said, nil))}
	apply := func(drain bool) {
		s.fleet.Apply([]fleet.PoolConfig{{Name: "m", Model: "m", Profile: route.RoundRobin(), StaleAfter: time.Hour,
			Endpoints: []fleet.Endpoint{{Name: "e:1", Host: "e:1", Drain: drain}}}}, "")
	}
	apply(false)
	s.logStates()
	if said.String() != "" {
		t.Errorf("got a line before anything is known:\n%s", said)
	}
	now := s.now()
	s.fleet.Pools()[0].Observe(now, now, "e:1", fleet.Reading{}, nil)
	s.logStates()
	s.logStates()
	if got := said.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, `msg="endpoint is ready" pool=m endpoint=e:1 was=new`) {
		t.Errorf("ready: got\n%s", got)
	}
	apply(true)
	s.logStates()
	if got := said.String(); strings.Count(got, "\n") != 2 || !strings.Contains(got, `msg="endpoint is draining" pool=m endpoint=e:1 was=ready`) {
		t.Errorf("draining: got\n%s", got)
	}
}
