package kube

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"
)

// proxyTimeout is how long the API server's own way to a pod is waited for. Where a NetworkPolicy closes it, nothing ever comes.
const proxyTimeout = 3 * time.Second

// byAnyWay asks a pod's admin listener through the API server's proxy, and where that has no way to the pod, or nobody may
// use it, through the node's kubelet, as kubectl port-forward does.
func (c *Cluster) byAnyWay(ctx context.Context, pod *corev1.Pod, path string, query url.Values) ([]byte, error) {
	short, cancel := context.WithTimeout(ctx, proxyTimeout)
	defer cancel()
	raw, err := c.byProxy(short, pod, path, query)
	if err == nil {
		return raw, nil
	}
	raw, other := c.byForward(ctx, pod, path, query)
	if other == nil {
		return raw, nil
	}
	return nil, fmt.Errorf("by pods/proxy: %w; by pods/portforward: %w", err, other)
}

// byForward asks through the kubelet.
func (c *Cluster) byForward(ctx context.Context, pod *corev1.Pod, path string, query url.Values) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	transport, upgrader, err := spdy.RoundTripperFor(c.config)
	if err != nil {
		return nil, err
	}
	at := c.client.Post().AbsPath(pathTo(pathCore, pod.Namespace, "pods", pod.Name, "portforward")...).URL()
	ready := make(chan struct{})
	said := new(lastError)
	forward, err := portforward.NewOnAddressesWithContext(logr.NewContext(ctx, logr.New(said)), spdy.NewDialer(upgrader, &http.Client{Transport: transport}, http.MethodPost, at),
		[]string{"127.0.0.1"}, []string{fmt.Sprintf("0:%d", adminPort(pod))}, ready, io.Discard, io.Discard)
	if err != nil {
		return nil, err
	}
	ended := make(chan error, 1)
	go func() { ended <- forward.ForwardPorts() }()
	select {
	case err := <-ended:
		return nil, errors.Join(err, ctx.Err())
	case <-ready:
	}
	ports, err := forward.GetPorts()
	if err != nil {
		return nil, err
	}
	u := url.URL{Scheme: "http", Host: fmt.Sprintf("127.0.0.1:%d", ports[0].Local), Path: "/" + path, RawQuery: query.Encode()}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, err
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return nil, cmp.Or(said.last(), err) // the connection to here says less than the one to the pod
	}
	defer answer.Body.Close()
	raw, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("it answers %s", answer.Status)
	}
	return raw, err
}

// lastError is a log that keeps the last error: what breaks a connection client-go does not return, and would write to the terminal.
type lastError struct {
	mu  sync.Mutex
	err error
}

func (f *lastError) last() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.err
}

func (f *lastError) Error(err error, message string, _ ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err = err; err == nil {
		f.err = errors.New(message)
	}
}

func (f *lastError) Init(logr.RuntimeInfo)          {}
func (f *lastError) Enabled(int) bool               { return false }
func (f *lastError) Info(int, string, ...any)       {}
func (f *lastError) WithValues(...any) logr.LogSink { return f }
func (f *lastError) WithName(string) logr.LogSink   { return f }
