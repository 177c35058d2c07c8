package scrape

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
)

// plainToTLS is what to look at where a port for TLS is asked without: there is no one answer that all such ports give.
const plainToTLS = "tls: the port may want TLS, and the endpoint is configured without it"

// tlsWords says what went wrong with TLS, and which setting is about it; empty if nothing did.
func tlsWords(err error) string {
	var header tls.RecordHeaderError
	var cert *tls.CertificateVerificationError
	var alert tls.AlertError
	var unknown x509.UnknownAuthorityError
	var name x509.HostnameError
	switch {
	case errors.As(err, &unknown):
		return "tls: its certificate is not trusted (caFile names whom to trust): " + unknown.Error()
	case errors.As(err, &name):
		return "tls: its certificate is for another name (serverName is the one that is checked): " + name.Error()
	case errors.As(err, &cert):
		return "tls: its certificate is not accepted: " + cert.Err.Error()
	case errors.As(err, &header), strings.Contains(err.Error(), "server gave HTTP response to HTTPS client"):
		return "tls: the port speaks without TLS, and the endpoint is configured with it"
	case errors.As(err, &alert):
		return "tls: no handshake: " + alert.Error()
	}
	return ""
}

// hungUp reports errors by which a server that takes only TLS ends a request without it: most close the connection,
// some send an alert first, which net/http quotes. Whoever has ever answered is no such server.
func (c *client) hungUp(err error) bool {
	const (
		alert   = `\x15\x03`
		noHTTP2 = "http2: client conn could not be established" // what a request that waited for the connection is told
	)
	if c.endpoint.TLS != nil || c.spoke.Load() {
		return false
	}
	for _, words := range []string{alert, noHTTP2} {
		if strings.Contains(err.Error(), words) {
			return true
		}
	}
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET)
}

// otherWays says what a port may want that closes a connection without an answer.
func (c *client) otherWays() string {
	if c.endpoint.H2C {
		return plainToTLS + "; or it does not speak HTTP/2 without TLS: then set appProtocol to http, or leave it out"
	}
	return plainToTLS + "; or it speaks HTTP/2 alone: then set appProtocol to kubernetes.io/h2c"
}

// protocolWords says which version of HTTP an endpoint speaks where that is not the configured one, by which no request is served
// either; empty if it is another matter.
func (c *client) protocolWords(err error) string {
	if c.endpoint.TLS != nil {
		return ""
	}
	if c.endpoint.H2C {
		if c.http1.Load() {
			return "it does not speak HTTP/2 without TLS: set appProtocol to http, or leave it out"
		}
		return ""
	}
	_, line, _ := strings.Cut(err.Error(), "malformed HTTP response ") // which net/http quotes
	if quoted, err := strconv.QuotedPrefix(line); err == nil {
		line, _ = strconv.Unquote(quoted)
	}
	const settings, goAway = 4, 7 // the types of the frames that a server may begin with; the length before is never long
	if len(line) > 4 && line[0] == 0 && line[1] == 0 && (line[3] == settings || line[3] == goAway) {
		return "it speaks HTTP/2 without TLS: set appProtocol to kubernetes.io/h2c"
	}
	return ""
}

// firstRead looks at what first comes over a connection. Whether net/http says that it was HTTP/1, or that a connection was closed
// over it, is left to chance.
type firstRead struct {
	net.Conn
	http1  *atomic.Bool
	looked bool
}

// Read is net.Conn's; one goroutine reads.
func (f *firstRead) Read(b []byte) (int, error) {
	n, err := f.Conn.Read(b)
	if !f.looked && n > 0 {
		f.looked = true
		f.http1.Store(bytes.HasPrefix(b[:n], []byte("HTTP/1.")))
	}
	return n, err
}

// statusWords names a status that is of no use; servers that take only TLS tell a client without it 400.
func (c *client) statusWords(status int) string {
	if status == http.StatusBadRequest && c.endpoint.TLS == nil {
		return "status 400; " + plainToTLS
	}
	return fmt.Sprintf("status %d", status)
}
