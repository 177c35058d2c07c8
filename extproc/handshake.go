package extproc

import (
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc/credentials"
)

// failedEvery is how often failed handshakes are logged: an Envoy tries again and again.
const failedEvery = time.Minute

// handshakes are credentials that log handshakes that fail, which gRPC keeps to itself: an Envoy that speaks plain text, or
// has the wrong authority, is otherwise seen at Envoy alone.
type handshakes struct {
	credentials.TransportCredentials
	failed *failures
}

// failures are the handshakes that have failed, of the connections of one server.
type failures struct {
	log *slog.Logger
	now func() time.Duration

	mu     sync.Mutex
	said   time.Duration // when one was last logged
	unsaid int           // how many have failed since
	any    bool
}

func (p *Picker) handshakes(config *tls.Config) credentials.TransportCredentials {
	return &handshakes{TransportCredentials: credentials.NewTLS(config), failed: &failures{log: p.log, now: p.now}}
}

// ServerHandshake does the handshake of a connection that has come.
func (h *handshakes) ServerHandshake(c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	secure, info, err := h.TransportCredentials.ServerHandshake(c)
	if err != nil && !errors.Is(err, io.EOF) { // a connection that says nothing is someone's health check
		h.failed.add(c.RemoteAddr(), err)
	}
	return secure, info, err
}

// Clone copies the credentials; the copy counts with the original.
func (h *handshakes) Clone() credentials.TransportCredentials {
	return &handshakes{TransportCredentials: h.TransportCredentials.Clone(), failed: h.failed}
}

func (f *failures) add(from net.Addr, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.now()
	if f.any && now-f.said < failedEvery {
		f.unsaid++
		return
	}
	f.log.Warn("a connection to the picker fails in its TLS handshake: does Envoy speak TLS to it, with an authority and a certificate that fit (sluice envoy --picker-tls, --picker-ca, --picker-cert)?",
		"from", from.String(), "error", err, "also", f.unsaid)
	f.said, f.unsaid, f.any = now, 0, true
}
