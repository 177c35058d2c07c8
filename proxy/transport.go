package proxy

import (
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/sluice-gateway/sluice/fleet"
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
	chunked bool // for request bodies without a known length
	connect time.Duration
}

// Sizes of the buffers of one connection. A body beyond the write buffer goes to the socket in one piece, see conn.
const (
	readBuffer  = 16 << 10
	writeBuffer = 8 << 10
)

const (
	// idleConnsPerHost keeps as many connections as an engine is likely to have requests.
	idleConnsPerHost = 1024
	idleConnTimeout  = 90 * time.Second
	// maxAnswerHeader bounds an engine's headers in bytes; an engine that sends more is at fault.
	maxAnswerHeader = 1 << 20
)

// of returns the transport for a request to an endpoint.
func (t *transports) of(e *fleet.Endpoint, chunked bool, connect time.Duration) *http.Transport {
	w := way{tls: e.TLS, h2c: e.H2C, chunked: chunked, connect: connect}
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

// serverName is the name that the endpoint's certificate must be for: what its settings say, else the host it was configured
// under.
func serverName(e *fleet.Endpoint) string {
	if e.TLS.ServerName != "" {
		return e.TLS.ServerName
	}
	host := e.Host
	if host == "" {
		host = e.Name
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
			if err != nil || w.tls != nil || w.h2c || w.chunked {
				return c, err
			}
			return &conn{Conn: c}, nil
		},
		TLSHandshakeTimeout:    w.connect,
		DisableCompression:     true,
		MaxIdleConnsPerHost:    idleConnsPerHost,
		IdleConnTimeout:        idleConnTimeout,
		MaxResponseHeaderBytes: maxAnswerHeader,
		ReadBufferSize:         readBuffer,
		WriteBufferSize:        writeBuffer,
		Protocols:              new(http.Protocols),
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

// conn sends a request's head and body together and the body in its own large pieces. The transport on its own sends the head alone whenever the
// body is none of the standard library's readers, and then makes an intermediate buffer to write 32 KB at a time: at 2 KB that is one
// system call in seven. It carries HTTP/1.1 in which every body has a known length; so what it is given to Write are heads, and bodies come by ReadFrom.
type conn struct {
	net.Conn
	head []byte // of a request whose body follows
}

// smallBody is the largest piece in bytes that costs less to copy behind the head than to write beside it.
const smallBody = 4 << 10

// Write keeps back a request's head if a body follows it.
func (c *conn) Write(p []byte) (int, error) {
	if len(c.head) == 0 && bodyFollows(p) {
		if c.head == nil {
			c.head = make([]byte, 0, len(p)+smallBody)
		}
		c.head = append(c.head, p...)
		return len(p), nil
	}
	return c.write(p)
}

// write sends p and what was kept back before it.
func (c *conn) write(p []byte) (int, error) {
	if len(c.head) == 0 {
		return c.Conn.Write(p)
	}
	before := int64(len(c.head))
	var n int64
	var err error
	if len(p) <= smallBody {
		var m int
		m, err = c.Conn.Write(append(c.head, p...))
		n = int64(m)
	} else {
		pieces := net.Buffers{c.head, p}
		n, err = pieces.WriteTo(c.Conn)
	}
	c.head = c.head[:0]
	return int(max(n-before, 0)), err
}

// bodyFollows reports whether p ends the head of a request that has a body of known length. The transport writes that length itself, near the
// start, and only for such a request, so that nothing is ever kept back for good.
func bodyFollows(p []byte) bool {
	if !bytes.HasSuffix(p, []byte("\r\n\r\n")) {
		return false
	}
	_, length, ok := bytes.Cut(p, []byte("\r\nContent-Length: "))
	return ok && length[0] != '0'
}

// ReadFrom is called by the transport's write buffer with what is left of a body.
func (c *conn) ReadFrom(r io.Reader) (int64, error) {
	if l, ok := r.(*io.LimitedReader); ok {
		if w, ok := l.R.(io.WriterTo); ok {
			return w.WriteTo(limitedWriter{c, l})
		}
	}
	return io.Copy(bodyWriter{c}, r)
}

// bodyWriter writes a body of any kind.
type bodyWriter struct{ c *conn }

func (w bodyWriter) Write(p []byte) (int, error) { return w.c.write(p) }

// limitedWriter writes no more than the limit of the reader it stands for.
type limitedWriter struct {
	c *conn
	l *io.LimitedReader
}

func (w limitedWriter) Write(p []byte) (int, error) {
	if int64(len(p)) > w.l.N {
		return 0, io.ErrShortWrite
	}
	n, err := w.c.write(p)
	w.l.N -= int64(n)
	return n, err
}
