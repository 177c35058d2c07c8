package extproc

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
)

// certificate writes a certificate that signs itself, and its key.
func certificate(t *testing.T, dir, name string) (certFile, keyFile string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	certFile, keyFile = filepath.Join(dir, name+".crt"), filepath.Join(dir, name+".key")
	for file, block := range map[string]*pem.Block{certFile: {Type: "CERTIFICATE", Bytes: der}, keyFile: {Type: "PRIVATE KEY", Bytes: secret}} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return certFile, keyFile
}

// Envoy shows a certificate where one is asked for, and the picker's may be renewed while it runs (T02).
func TestTLS(t *testing.T) {
	dir := t.TempDir()
	cert, key := certificate(t, dir, "picker")
	own, ownKey := certificate(t, dir, "envoy")
	config, err := LoadTLS(cert, key, own)
	if err != nil {
		t.Fatal(err)
	}
	r := newRig(t, Options{})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := r.picker.Server(config)
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
	ask := func(show bool) error {
		t.Helper()
		text, err := os.ReadFile(cert)
		if err != nil {
			t.Fatal(err)
		}
		c := &tls.Config{RootCAs: x509.NewCertPool(), MinVersion: tls.VersionTLS12}
		c.RootCAs.AppendCertsFromPEM(text)
		if show {
			pair, err := tls.LoadX509KeyPair(own, ownKey)
			if err != nil {
				t.Fatal(err)
			}
			c.Certificates = []tls.Certificate{pair}
		}
		conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(credentials.NewTLS(c)))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		_, err = healthpb.NewHealthClient(conn).Check(context.Background(), &healthpb.HealthCheckRequest{Service: "liveness"})
		return err
	}
	if err := ask(true); err != nil {
		t.Errorf("with a certificate: %v", err)
	}
	if err := ask(false); err == nil {
		t.Error("without a certificate: got an answer")
	}
	// In TLS 1.3 the client has heard of it before the server says so.
	r.eventually("a line in the log of a client without a certificate", func() bool { return strings.Contains(r.said.String(), "fails in its TLS handshake") })
	certificate(t, dir, "picker")
	if err := ask(true); err != nil {
		t.Errorf("after the picker's certificate was renewed: %v", err)
	}
}

func TestLoadTLS(t *testing.T) {
	dir := t.TempDir()
	cert, key := certificate(t, dir, "picker")
	junk := filepath.Join(dir, "junk")
	if err := os.WriteFile(junk, []byte("junk"), 0o600); err != nil {
		t.Fatal(err)
	}
	if c, err := LoadTLS("", "", ""); c != nil || err != nil {
		t.Errorf("no files: got %v, %v, want nothing", c, err)
	}
	for _, files := range [][3]string{{cert, "", ""}, {"", key, ""}, {"", "", cert}, {junk, key, ""}, {cert, key, junk}, {cert, key, filepath.Join(dir, "none")}} {
		if _, err := LoadTLS(files[0], files[1], files[2]); err == nil {
			t.Errorf("%v: got no error", files)
		}
	}
}

// Handshakes that fail are told once in a while, with how many there were beside.
func TestFailedHandshakesAreLogged(t *testing.T) {
	dir := t.TempDir()
	cert, key := certificate(t, dir, "picker")
	config, err := LoadTLS(cert, key, "")
	if err != nil {
		t.Fatal(err)
	}
	said, now := new(syncBuffer), time.Hour
	p := &Picker{log: slog.New(slog.NewTextHandler(said, nil)), now: func() time.Duration { return now }}
	creds := p.handshakes(config).Clone()
	plain := func() {
		t.Helper()
		ours, theirs := net.Pipe()
		go func() {
			_, _ = ours.Write([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"))
			_, _ = io.Copy(io.Discard, ours)
		}()
		if _, _, err := creds.ServerHandshake(theirs); err == nil {
			t.Fatal("got a handshake with plain text")
		}
		_ = ours.Close()
		_ = theirs.Close()
	}
	plain()
	plain()
	plain()
	if got := said.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "first record does not look like a TLS handshake") || !strings.Contains(got, "also=0") {
		t.Errorf("got\n%s\nwant one line", got)
	}
	now += failedEvery
	plain()
	if got := said.String(); strings.Count(got, "\n") != 2 || !strings.Contains(got, "also=2") {
		t.Errorf("got\n%s\nwant a second line that counts two more", got)
	}
}
