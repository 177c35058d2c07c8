package extproc

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// played gives a request's messages and takes its answers, without a connection.
type played struct {
	grpc.ServerStream
	ctx  context.Context
	left []mem.BufferSlice
	c    codec
}

func (s *played) Context() context.Context { return s.ctx }

func (s *played) RecvMsg(m any) error {
	if len(s.left) == 0 {
		return status.Error(codes.Canceled, "gone")
	}
	p := s.left[0]
	s.left = s.left[1:]
	return s.c.Unmarshal(p, m)
}

func (s *played) SendMsg(m any) error {
	p, err := s.c.Marshal(m)
	p.Free()
	return err
}

// A whole request as Envoy shows it, but for gRPC.
func BenchmarkRequest(b *testing.B) {
	start := time.Now()
	p, _ := newPicker(b, Options{}, func() time.Duration { return time.Since(start) }, slog.New(slog.DiscardHandler), prometheus.NewRegistry(),
		pool("pool", "m", "10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000"))
	head := headerMap(":method", "POST", ":path", "/v1/chat/completions", ":authority", "gw", ":scheme", "http", "content-type", "application/json",
		"accept", "*/*", "accept-encoding", "gzip, deflate", "user-agent", "OpenAI/Python 2.8.1", "x-stainless-lang", "python", "x-stainless-os", "Linux",
		"x-stainless-retry-count", "0", "authorization", "Bearer 0123456789", "x-forwarded-for", "10.1.2.3", "x-forwarded-proto", "http",
		"x-request-id", "5f3e1d64-9b8a-4a9c-8a52-6f1f6d0d3a11", "x-envoy-expected-rq-timeout-ms", "0")
	message := func(m *pb.ProcessingRequest) mem.BufferSlice {
		p, err := proto.Marshal(m)
		if err != nil {
			b.Fatal(err)
		}
		return cutUp(p, 16384)
	}
	for _, size := range []int{2 << 10, 220 << 10} {
		body := fmt.Appendf(nil, `{"model":"m","messages":[{"role":"user","content":%q}]}`, strings.Repeat("some words ", size/11))
		list := []mem.BufferSlice{
			message(&pb.ProcessingRequest{ProtocolConfig: &pb.ProtocolConfiguration{RequestBodyMode: buffered},
				Request: &pb.ProcessingRequest_RequestHeaders{RequestHeaders: &pb.HttpHeaders{Headers: head}}}),
			message(&pb.ProcessingRequest{Request: &pb.ProcessingRequest_RequestBody{RequestBody: &pb.HttpBody{Body: bytes.Clone(body), EndOfStream: true}}}),
			message(&pb.ProcessingRequest{Request: &pb.ProcessingRequest_ResponseHeaders{ResponseHeaders: &pb.HttpHeaders{
				Headers: headerMap(":status", "200", "content-type", "application/json", "date", "Mon, 30 Nov 2026 00:00:00 GMT", "server", "uvicorn")}}}),
		}
		b.Run(fmt.Sprintf("%dKB", size>>10), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				_ = p.process(&played{ctx: context.Background(), left: list, c: newCodec()})
			}
		})
	}
}
