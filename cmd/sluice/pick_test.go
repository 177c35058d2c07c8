package main

import (
	"bufio"
	"context"
	"io"
	"strings"
	"testing"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	filter "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
)

// The picker finds its endpoints, answers Envoy and the health service, and on SIGTERM waits for what runs.
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
	if err := <-ended; err != nil {
		t.Errorf("got %v, want an end in good order", err)
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
