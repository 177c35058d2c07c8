package scrape

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
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

// statusWords names a status that is of no use; servers that take only TLS tell a client without it 400.
func (c *client) statusWords(status int) string {
	if status == http.StatusBadRequest && c.endpoint.TLS == nil {
		return "status 400; " + plainToTLS
	}
	return fmt.Sprintf("status %d", status)
}
