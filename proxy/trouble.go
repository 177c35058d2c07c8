package proxy

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"strings"
	"syscall"
)

// trouble is what went wrong with the last attempt.
type trouble struct {
	endpoint string
	said     string // in words
}

// words says a cause for people, in one of a fixed set of sentences, which name no address. said is what inWords made of
// an error, empty where there was none.
func (k cause) words(said string) string {
	if said != "" {
		return said
	}
	switch k {
	case causeConnect:
		return "no connection could be made"
	case causeLost:
		return "it left the pool, went stale or stalled"
	case causeSlow:
		return "it took longer than one attempt may"
	case causeFirst:
		return "no first byte came in time"
	case causeIdle:
		return "no further byte came in time"
	case causeRoute:
		return "the request took longer than its pool allows"
	case causeCut:
		return "the gateway is stopping"
	}
	return "no valid HTTP answer"
}

// inWords says how a connection or an answer failed. An error's own text holds addresses, and bytes of answers, so it
// goes neither to clients nor into the log.
func inWords(err error) string {
	var name *net.DNSError
	var certificate *tls.CertificateVerificationError
	var record tls.RecordHeaderError
	var slow net.Error
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return "connection refused"
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return "connection reset"
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		return "no route to the host"
	case errors.As(err, &name):
		return "its host name could not be resolved"
	case errors.As(err, &certificate):
		return "its TLS certificate could not be verified"
	case errors.As(err, &record):
		return "it does not speak TLS"
	case errors.As(err, &slow) && slow.Timeout():
		return "no connection in time"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, net.ErrClosed), strings.Contains(err.Error(), "connection lost"):
		return "connection closed before the end of the answer"
	}
	return "no valid HTTP answer"
}

// complain logs a request that the gateway could not serve, or not to its end.
func (c *call) complain(message, cause string, status int) {
	c.req.Complain(c.r.Context(), message, cause, c.trouble.endpoint, status)
}
