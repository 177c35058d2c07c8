package kube

import (
	"context"
	"log/slog"
	"net"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/rest"
)

// An API server that is not there ends nothing, and a Controller that waits for it ends when it is told to.
func TestNoAPIServer(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	tried := make(chan struct{}, 1)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_ = c.Close() // whoever asks gets no answer
			select {
			case tried <- struct{}{}:
			default:
			}
		}
	}()
	defer l.Close()
	c, err := NewController(&rest.Config{Host: "http://" + l.Addr().String()}, ControlOptions{Identity: "one", Now: time.Now, Log: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- c.Run(ctx) }()
	<-tried
	if c.Ready() == nil {
		t.Error("it is ready, and nobody has answered")
	}
	select {
	case err := <-ended:
		t.Fatalf("it ended: %v", err)
	default:
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
