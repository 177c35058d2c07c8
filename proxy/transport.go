package proxy

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"syscall"
	"time"

	"github.com/sluice-gateway/sluice/fleet"
	"github.com/sluice-gateway/sluice/openai"
)

// transports keeps one http.Transport for each way of speaking to endpoints.
type transports struct {
	// dial replaces the network where a test brings its own; nil for TCP.
	dial func(ctx context.Context, network, address string) (net.Conn, error)

	mu sync.RWMutex
	by map[way]*http.Transport
}

// way is what makes connections differ beside the address.
type way struct {
	tls     *tls.Config // as configured, compared by identity
	server  string      // the name in the certificate
	h2c     bool
	connect time.Duration
}

// Sizes of the buffers of one connection. The write buffer takes a usual head and a small body.
const (
	readBuffer  = 16 << 10
	writeBuffer = 8 << 10
)

const (
	// idleConnsPerHost keeps as many connections as an engine is likely to have requests.
	idleConnsPerHost = 1024
	idleConnTimeout  = 90 * time.Second
	// pingAfter and pingTimeout bound how long an HTTP/2 connection that died in silence takes every request to its
	// endpoint: it is asked when nothing came for the one, and given up when it says nothing for the other. Together
	// they are as long as an engine may be busy without being taken for stalled.
	pingAfter   = fleet.DefaultStallAfter / 2
	pingTimeout = fleet.DefaultStallAfter / 2
	// maxAnswerHeader bounds an engine's headers in bytes; an engine that sends more is at fault.
	maxAnswerHeader = 1 << 20
)

// of returns the transport for a request to an endpoint.
func (t *transports) of(e *fleet.Endpoint, connect time.Duration) *http.Transport {
	w := way{tls: e.TLS, h2c: e.H2C, connect: connect}
	if e.TLS != nil {
		w.server = serverName(e)
	}
	t.mu.RLock()
	found := t.by[w]
	t.mu.RUnlock()
	if found != nil {
		return found
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if found = t.by[w]; found != nil {
		return found
	}
	if t.by == nil {
		t.by = make(map[way]*http.Transport)
	}
	t.by[w] = newTransport(w, t.dial)
	return t.by[w]
}

// serverName is the name that the endpoint's certificate must be for: what its settings say, else the host it was
// configured under.
func serverName(e *fleet.Endpoint) string {
	if e.TLS.ServerName != "" {
		return e.TLS.ServerName
	}
	host := e.Host
	if host == "" {
		host = e.Address()
	}
	if h, _, err := net.SplitHostPort(host); err == nil {
		return h
	}
	return host
}

func newTransport(w way, dial func(ctx context.Context, network, address string) (net.Conn, error)) *http.Transport {
	if dial == nil {
		dial = (&net.Dialer{Timeout: w.connect, KeepAlive: 15 * time.Second}).DialContext
	}
	t := &http.Transport{
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			c, err := dial(ctx, network, address)
			if err != nil {
				return nil, err
			}
			if w.h2c {
				return c, nil
			}
			return conn{c}, nil
		},
		TLSHandshakeTimeout:    w.connect,
		DisableCompression:     true,
		MaxIdleConnsPerHost:    idleConnsPerHost,
		IdleConnTimeout:        idleConnTimeout,
		MaxResponseHeaderBytes: maxAnswerHeader,
		ReadBufferSize:         readBuffer,
		WriteBufferSize:        writeBuffer,
		Protocols:              new(http.Protocols),
		HTTP2:                  &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingTimeout},
	}
	t.Protocols.SetHTTP1(!w.h2c)
	t.Protocols.SetUnencryptedHTTP2(w.h2c)
	if w.tls != nil {
		t.TLSClientConfig = w.tls.Clone()
		t.TLSClientConfig.ServerName = w.server
	}
	return t
}

// prune forgets the transports for settings that no endpoint has any longer. Requests on them go on.
func (t *transports) prune(used map[*tls.Config]bool, connect time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for w, transport := range t.by {
		if w.connect != connect || w.tls != nil && !used[w.tls] {
			delete(t.by, w)
			transport.CloseIdleConnections()
		}
	}
}

func (t *transports) closeIdle() {
	t.mu.RLock()
	defer t.mu.RUnlock()
	for _, transport := range t.by {
		transport.CloseIdleConnections()
	}
}

// conn is a connection for HTTP/1.
//
// It sends a large body in its own large pieces: the transport would copy it through a fresh buffer, 32 KB at a time.
//
// And it has the transport read on when the other side takes no more: an engine may answer before it has read the whole
// body, 413 above all, and close. The transport would give up at the failed write, though the answer has arrived. So what
// can't be sent any longer counts as sent. The connection is dead, which the next read tells once what came before has
// been read; without an answer that is a failed request as before, tried again on a fresh connection if this one was a
// kept one.
type conn struct{ net.Conn }

func (c conn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	if hungUp(err) {
		return len(p), nil
	}
	return n, err
}

// ReadFrom is called by the transport's write buffer with what is left of a body.
func (c conn) ReadFrom(r io.Reader) (int64, error) {
	n, ok, err := openai.CopyBody(c.Conn, r)
	if !ok {
		n, err = io.Copy(c.Conn, r)
	}
	if hungUp(err) {
		rest, err := io.Copy(io.Discard, r)
		return n + rest, err
	}
	return n, err
}

// hungUp reports whether a write failed because the other side takes nothing any longer.
func hungUp(err error) bool {
	return errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET)
}

// smallBody is the size in bytes up to which copying a body costs less than a write of its own.
const smallBody = 4 << 10

// bodies makes the readers over a body for one request. The transport writes the body together with the head if it is
// one of the standard library's readers. Everything must fit into its buffer then and be framed by a length, or else it
// takes a failed write for a failed read of the body, and doesn't try again.
func bodies(b *openai.Body, out *http.Request) func() io.ReadCloser {
	if b.Len() > smallBody || out.ContentLength < 0 || headSize(out) > writeBuffer-smallBody {
		return b.Reader
	}
	small := make([]byte, b.Len())
	r := b.Reader()
	_, _ = io.ReadFull(r, small) // it has just this many bytes, in memory
	_ = r.Close()
	return func() io.ReadCloser { return io.NopCloser(bytes.NewReader(small)) }
}

// headSize is how many bytes a request's head takes at most.
func headSize(out *http.Request) int {
	n := 256 + 3*len(out.URL.Path) + len(out.URL.RawQuery) + len(out.Host) // with what the transport adds, and each byte of the path escaped
	for name, values := range out.Header {
		for _, v := range values {
			n += len(name) + len(v) + 4
		}
	}
	return n
}
