//go:build doors && unix

package e2e

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// authority signs certificates.
type authority struct {
	t      *testing.T
	folder string
	cert   *x509.Certificate
	key    *ecdsa.PrivateKey
}

// newAuthority makes an authority whose own certificate lies at path.
func newAuthority(t *testing.T) (a *authority, path string) {
	t.Helper()
	a = &authority{t: t, folder: t.TempDir()}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	a.cert, a.key = template, a.newKey()
	der := a.sign(template, a.key)
	var err error
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	return a, a.write("ca.crt", "CERTIFICATE", der)
}

// issue makes a certificate for 127.0.0.1, to serve and to ask with.
func (a *authority) issue(name string) (cert, key string) {
	a.t.Helper()
	k := a.newKey()
	der := a.sign(&x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}, k)
	private, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		a.t.Fatal(err)
	}
	return a.write(name+".crt", "CERTIFICATE", der), a.write(name+".key", "PRIVATE KEY", private)
}

func (a *authority) newKey() *ecdsa.PrivateKey {
	a.t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	return k
}

func (a *authority) sign(template *x509.Certificate, k *ecdsa.PrivateKey) []byte {
	a.t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &k.PublicKey, a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	return der
}

func (a *authority) write(name, kind string, der []byte) (path string) {
	a.t.Helper()
	path = filepath.Join(a.folder, name)
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		a.t.Fatal(err)
	}
	return path
}

// TestPickerKnowsItsEnvoy has Envoy and the picker show each other certificates; an Envoy without one, or with one of
// another authority, is not answered.
func TestPickerKnowsItsEnvoy(t *testing.T) {
	w := startWitnesses(t, 2)
	ours, ca := newAuthority(t)
	pickerCert, pickerKey := ours.issue("picker")
	envoyCert, envoyKey := ours.issue("envoy")
	others, _ := newAuthority(t)
	strangeCert, strangeKey := others.issue("stranger")
	pick := []string{"--tls-cert", pickerCert, "--tls-key", pickerKey, "--tls-client-ca", ca}
	body := chatBodies(1, 2<<10, 20, false)[0]
	t.Run("known", func(t *testing.T) {
		t.Parallel()
		p := startPlane(t, instantModel, planeOptions{endpoints: w.endpoints(), pick: pick,
			envoy: []string{"--picker-ca", ca, "--picker-cert", envoyCert, "--picker-key", envoyKey}})
		if err := post(t.Context(), keepAlive(t), p.url, body); err != nil {
			t.Errorf("got %v, want an answer", err)
		}
	})
	for name, shown := range map[string][]string{"nameless": nil, "stranger": {"--picker-cert", strangeCert, "--picker-key", strangeKey}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlane(t, planeOptions{endpoints: w.endpoints(), pick: pick, envoy: append([]string{"--picker-ca", ca}, shown...)})
			p.startPicker(t)
			p.startEnvoy(t)
			eventually(t, "Envoy to have tried twice", 30*time.Second, func() bool {
				wantClosed(t, keepAlive(t), p.url)
				return p.stat(t, "cluster.picker.upstream_cx_total") >= 2
			})
			if n := p.metric(t, "sluice_extproc_streams_total"); n != 0 {
				t.Errorf("got %v requests that the picker was asked about, want none", n)
			}
		})
	}
}
