package proxy

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/fleet"
)

// early is an engine that answers once it has read a request's head, reads a little more or nothing, and closes with
// most of the body unread, so that the client's side is reset while it writes.
func early(l net.Listener, head string, body int, asked chan<- struct{}) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer func() { _ = c.Close() }()
			in := bufio.NewReader(c)
			if _, err := http.ReadRequest(in); err != nil {
				return
			}
			asked <- struct{}{}
			_, _ = fmt.Fprintf(c, "%s\r\nContent-Length: %d\r\n\r\n%s", head, body, strings.Repeat("x", body))
			_, _ = io.CopyN(io.Discard, in, 100_000)
		}()
	}
}

// B34, E31: an engine that answers a large body before it has read it, and hangs up, has answered: its answer passes,
// nothing moves, and the endpoint is not held to have failed.
func TestEarlyAnswer(t *testing.T) {
	big := `{"model":"m","prompt":"` + strings.Repeat("x", 3<<20) + `"}`
	f := func(name, head string, status, size int, secure, chunked bool) {
		t.Helper()
		for range 3 {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			address, asked := l.Addr().String(), make(chan struct{}, 10)
			e := fleet.Endpoint{Name: address}
			if secure {
				s := httptest.NewUnstartedServer(nil)
				s.StartTLS()
				roots := x509.NewCertPool()
				roots.AddCert(s.Certificate())
				l = tls.NewListener(l, s.TLS)
				s.Close()
				e.Host, e.TLS = "example.com", &tls.Config{RootCAs: roots}
			}
			go early(l, head, size, asked)
			r := newRig(t, Options{}, says("other"))
			r.applyEndpoints([]fleet.Endpoint{e, {Name: r.engines[0]}})
			req := r.request(http.MethodPost, chatPath, big)
			if chunked { // only then do trailers pass, in chunks
				req.ContentLength, req.Trailer = -1, http.Header{"X-Sum": {"1"}}
			}
			a := r.do(req)
			if a.status != status || len(a.body) != size || a.err != nil || len(asked) != 1 {
				t.Errorf("%s: got %d, %d bytes, error %v after %d requests, want %d with %d bytes after 1", name, a.status, len(a.body), a.err, len(asked), status, size)
			}
			if s := r.pool.Status(0)[0]; s.Endpoint.Name == address && s.State != "ready" {
				t.Errorf("%s: got an endpoint that is not ready: %+v", name, s)
			}
			_ = l.Close()
		}
	}
	for _, size := range []int{0, 20, 20_000} {
		f("413", "HTTP/1.1 413 Too Large\r\nConnection: close", 413, size, false, false)
		f("200", "HTTP/1.1 200 OK", 200, size, false, false)
	}
	f("chunked", "HTTP/1.1 413 Too Large", 413, 20, false, true)
	f("TLS", "HTTP/1.1 413 Too Large", 413, 20, true, false)
}
