package peer

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
)

// TLS names the files by which replicas know each other. They are read again for every connection, so that certificates
// may be renewed while the gateway runs.
type TLS struct{ cert, key, authority string }

// LoadTLS checks the files: a certificate and its key, for both sides of a connection, and the authority that must have signed
// those of all peers. The certificate names the host of --peers. All three are given, or none, which is nil: no TLS.
func LoadTLS(cert, key, authority string) (*TLS, error) {
	if cert == "" && key == "" && authority == "" {
		return nil, nil
	}
	if cert == "" || key == "" || authority == "" {
		return nil, errors.New("cannot use TLS between peers: it needs a certificate, its key and the authority of the peers' certificates")
	}
	t := &TLS{cert, key, authority}
	_, _, err := t.load()
	return t, err
}

func (t *TLS) load() (tls.Certificate, *x509.CertPool, error) {
	pair, err := tls.LoadX509KeyPair(t.cert, t.key)
	if err != nil {
		return pair, nil, fmt.Errorf("cannot load the certificate for peers: %w", err)
	}
	text, err := os.ReadFile(t.authority)
	if err != nil {
		return pair, nil, fmt.Errorf("cannot read the peers' authority: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return pair, nil, fmt.Errorf("cannot use the peers' authority %q: there is no certificate in it", t.authority)
	}
	return pair, pool, nil
}

// server asks every peer for a certificate of the authority.
func (t *TLS) server() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS13, NextProtos: []string{"h2"}, GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		pair, pool, err := t.load()
		if err != nil {
			return nil, err
		}
		return &tls.Config{MinVersion: tls.VersionTLS13, NextProtos: []string{"h2"}, Certificates: []tls.Certificate{pair}, ClientCAs: pool,
			ClientAuth: tls.RequireAndVerifyClientCert}, nil
	}}
}

// client shows the certificate, and checks the peer's against the configured host.
func (t *TLS) client(hostPort string) (*tls.Config, error) {
	host, _, err := net.SplitHostPort(hostPort)
	if err != nil {
		return nil, fmt.Errorf("cannot use the peer's address: %w", err)
	}
	pair, pool, err := t.load()
	if err != nil {
		return nil, err
	}
	return &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{pair}, RootCAs: pool, ServerName: host}, nil
}
