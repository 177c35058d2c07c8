package proxy

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"syscall"
	"time"
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

// linesPerSecond is how often one pool's trouble of one kind is logged. An outage fails every request in the same way.
const linesPerSecond = 3

// throttle bounds what is logged. The zero value is ready.
type throttle struct {
	mu   sync.Mutex
	said map[kind]burst
}

// kind is what lines are bounded by; both words come from the configuration and from tables in the code.
type kind struct{ pool, cause string }

type burst struct {
	since         time.Duration // the gateway's clock at its first line
	lines, missed int
}

// pass reports whether a line may be logged at the time now, and how many of its kind were left out before it.
func (t *throttle) pass(now time.Duration, k kind) (missed int, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	b, seen := t.said[k]
	if !seen || now-b.since >= time.Second {
		b.since, b.lines = now, 0
	}
	if b.lines == linesPerSecond {
		b.missed++
		t.said[k] = b
		return 0, false
	}
	b.lines++
	missed, b.missed = b.missed, 0
	if t.said == nil {
		t.said = make(map[kind]burst)
	}
	t.said[k] = b
	return missed, true
}

// prune forgets what is known of pools that are gone.
func (t *throttle) prune(there map[string]bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for k := range t.said {
		if k.pool != "" && !there[k.pool] {
			delete(t.said, k)
		}
	}
}

// complain logs a request that the gateway could not serve, or not to its end. Good requests are not logged.
func (c *call) complain(message, cause string, status int) {
	k := kind{cause: cause}
	if c.pool != nil {
		k.pool = c.pool.Name()
	}
	missed, ok := c.g.said.pass(c.g.now(), k)
	if !ok {
		return
	}
	attrs := []slog.Attr{slog.String("x-request-id", c.id), slog.String("pool", k.pool), slog.String("endpoint", c.trouble.endpoint),
		slog.Int("status", status), slog.String("cause", cause)}
	if missed > 0 {
		attrs = append(attrs, slog.Int("missed", missed))
	}
	c.g.log.LogAttrs(context.WithoutCancel(c.r.Context()), slog.LevelInfo, message, attrs...)
}
