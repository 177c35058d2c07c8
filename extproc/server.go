package extproc

import (
	"context"
	"crypto/tls"
	"math"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"github.com/sluice-gateway/sluice/openai"
)

const (
	// beside is how much a message may have beside a body, in bytes: headers, metadata, attributes.
	beside = 1 << 20
	// Windows: what a stream and a connection may have on their way. Bodies come in one message each, and a window is how
	// much of them Envoy sends before it waits for word that they are read.
	streamWindow, connectionWindow = 1 << 20, 16 << 20
	// readBuffer and writeBuffer are gRPC's for each connection, of which an Envoy has one for each of its threads.
	readBuffer, writeBuffer = 128 << 10, 64 << 10
)

// Server is a gRPC server with the picker and its health service, over TLS if config is not nil. Other services may be
// registered with it before it serves.
func (p *Picker) Server(config *tls.Config) *grpc.Server {
	// A message over the limit is refused in words; gRPC bounds what no configuration allows.
	biggest := min(max(p.settings.Load().MaxBodyBytes, openai.DefaultBodyLimit), math.MaxInt32-beside)
	options := []grpc.ServerOption{
		grpc.ForceServerCodecV2(newCodec()),
		grpc.MaxRecvMsgSize(int(biggest + beside)),
		grpc.MaxConcurrentStreams(math.MaxUint32), // requests wait in engines, for minutes, each with its stream
		grpc.InitialWindowSize(streamWindow),
		grpc.InitialConnWindowSize(connectionWindow),
		grpc.ReadBufferSize(readBuffer),
		grpc.WriteBufferSize(writeBuffer),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 30 * time.Second, Timeout: 10 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Second, PermitWithoutStream: true}),
	}
	if config != nil {
		options = append(options, grpc.Creds(p.handshakes(config)))
	}
	s := grpc.NewServer(options...)
	s.RegisterService(p.desc(), nil)
	healthpb.RegisterHealthServer(s, &health{p: p})
	return s
}

// health is the health service, asked as the endpoint-picker protocol has it.
type health struct {
	healthpb.UnimplementedHealthServer
	p *Picker
}

// Services that the health service knows, beside the picker's own name and the empty one, which mean that it is ready.
const (
	serviceLive  = "liveness"
	serviceReady = "readiness"
)

func (h *health) of(service string) (healthpb.HealthCheckResponse_ServingStatus, bool) {
	switch service {
	case serviceLive:
		return healthpb.HealthCheckResponse_SERVING, true
	case "", serviceReady, serviceName:
		if _, ready := h.p.readiness(); ready {
			return healthpb.HealthCheckResponse_SERVING, true
		}
		return healthpb.HealthCheckResponse_NOT_SERVING, true
	}
	return healthpb.HealthCheckResponse_SERVICE_UNKNOWN, false
}

// Check tells how a service is.
func (h *health) Check(_ context.Context, r *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	how, known := h.of(r.GetService())
	if !known {
		return nil, status.Errorf(codes.NotFound, "the health service knows %q, %q, %q and the empty name", serviceLive, serviceReady, serviceName)
	}
	return &healthpb.HealthCheckResponse{Status: how}, nil
}

// watchEvery is how often a watcher's service is looked at.
const watchEvery = time.Second

// Watch tells how a service is, and each time that changes.
func (h *health) Watch(r *healthpb.HealthCheckRequest, out healthpb.Health_WatchServer) error {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	told := healthpb.HealthCheckResponse_UNKNOWN
	for {
		how, _ := h.of(r.GetService())
		if how != told {
			if err := out.Send(&healthpb.HealthCheckResponse{Status: how}); err != nil {
				return err
			}
			told = how
		}
		select {
		case <-out.Context().Done():
			return status.FromContextError(out.Context().Err()).Err()
		case <-tick.C:
		}
	}
}
