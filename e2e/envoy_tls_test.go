//go:build doors && unix

package e2e

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	discovery "github.com/sluice-gateway/sluice/envoy"
)

// certificateRig is a certificate that is its own authority, in two files.
type certificateRig struct {
	cert, key string
	pair      tls.Certificate
}

// newCertificate makes one for these names and the loopback address, in files of the folder.
func newCertificate(t *testing.T, folder string, names ...string) *certificateRig {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	serial, _ := rand.Int(rand.Reader, big.NewInt(1<<62))
	template := &x509.Certificate{SerialNumber: serial, Subject: pkix.Name{CommonName: names[0]}, DNSNames: names, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	c := &certificateRig{cert: filepath.Join(folder, names[0]+".crt"), key: filepath.Join(folder, names[0]+".key")}
	certText, keyText := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret})
	if c.pair, err = tls.X509KeyPair(certText, keyText); err != nil {
		t.Fatal(err)
	}
	for path, text := range map[string][]byte{c.cert: certText, c.key: keyText} {
		if err := os.WriteFile(path+".new", text, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

func writeFile(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// secureEndpoint is an endpoint that is reached by TLS.
func secureEndpoint(t *testing.T, c *certificateRig) *endpointRig {
	t.Helper()
	e := newEndpoint(t)
	e.server.Close()
	e.server = httptest.NewUnstartedServer(e)
	e.server.TLS = &tls.Config{Certificates: []tls.Certificate{c.pair}}
	e.server.StartTLS()
	e.address = strings.TrimPrefix(e.server.URL, "https://")
	return e
}

// Endpoints by TLS: the certificate is checked by authority and name, and is asked for by name (H19).
func TestEnvoyReachesEndpointsByTLS(t *testing.T) {
	eachEnvoy(t, func(t *testing.T, binary string) {
		folder := t.TempDir()
		good, other := newCertificate(t, folder, "gpu.example.com"), newCertificate(t, folder, "other.example.com")
		a := secureEndpoint(t, good)
		names := make(chan string, 10)
		a.do(func(w http.ResponseWriter, r *http.Request) { names <- r.TLS.ServerName; fmt.Fprint(w, a.address) })
		f := func(s discovery.TLS, want int) {
			t.Helper()
			file := writeGateway(t, "", "tls: {"+fmt.Sprintf("caFile: %q, serverName: %q, insecureSkipVerify: %t", s.CAFile, s.ServerName, s.InsecureSkipVerify)+"}", a)
			p := newPicker(t, a)
			if s.ServerName == "" {
				s.ServerName = "127.0.0.1"
			}
			p.options.Pools[0].Endpoints = []discovery.Endpoint{{Host: a.address, TLS: &s}}
			p.start(t)
			e := startEnvoy(t, binary, p, []*endpointRig{a}, "-f", file)
			status, _, text := e.chat(nil)
			if status != want {
				t.Errorf("%+v: got %d %q, want %d", s, status, text, want)
			}
			if want != 200 {
				return
			}
			asked := s.ServerName
			if asked == "127.0.0.1" {
				asked = "" // an address is no name to ask for
			}
			if got := <-names; got != asked {
				t.Errorf("%+v: got server name %q, want %q", s, got, asked)
			}
		}
		f(discovery.TLS{CAFile: good.cert, ServerName: "gpu.example.com"}, 200)
		f(discovery.TLS{CAFile: good.cert}, 200) // by its address
		f(discovery.TLS{InsecureSkipVerify: true, ServerName: "gpu.example.com"}, 200)
		f(discovery.TLS{CAFile: good.cert, ServerName: "another.example.com"}, 502)
		f(discovery.TLS{CAFile: other.cert, ServerName: "gpu.example.com"}, 502)
	})
}

// Clients by TLS, by HTTP/2 and HTTP/1.1; a renewed certificate is taken over while running.
func TestEnvoyServesByTLS(t *testing.T) {
	eachEnvoy(t, func(t *testing.T, binary string) {
		folder := t.TempDir()
		first := newCertificate(t, folder, "gateway.example.com")
		a := newEndpoint(t)
		p := newPicker(t, a).start(t)
		e := startEnvoy(t, binary, p, []*endpointRig{a}, "--tls-cert", first.cert, "--tls-key", first.key)
		url := strings.Replace(e.url, "http://", "https://", 1) + "/v1/chat/completions"
		ask := func(http2 bool) (*http.Response, error) {
			transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true, ServerName: "gateway.example.com"}, ForceAttemptHTTP2: http2}
			defer transport.CloseIdleConnections()
			answer, err := (&http.Client{Transport: transport, Timeout: time.Minute}).Post(url, "application/json", strings.NewReader("{}"))
			if err == nil {
				_, _ = io.Copy(io.Discard, answer.Body)
				answer.Body.Close()
			}
			return answer, err
		}
		for _, http2 := range []bool{true, false} {
			answer, err := ask(http2)
			if err != nil || answer.StatusCode != 200 || (answer.ProtoMajor == 2) != http2 || string(answer.TLS.PeerCertificates[0].Raw) != string(first.pair.Certificate[0]) {
				t.Fatalf("HTTP/2 %t: got %v and %v, want 200 with the certificate", http2, answer, err)
			}
		}
		renewed := newCertificate(t, folder, "gateway.example.com")
		eventually(t, "the renewed certificate", 30*time.Second, func() bool {
			answer, err := ask(true)
			return err == nil && string(answer.TLS.PeerCertificates[0].Raw) == string(renewed.pair.Certificate[0])
		})
	})
}

// issuerRig is an issuer at an address here.
type issuerRig struct {
	*issuer
	url string
}

func newIssuerRig(t *testing.T, c *certificateRig) *issuerRig {
	t.Helper()
	i := newIssuer(t)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(i.keys) }))
	server.TLS = &tls.Config{Certificates: []tls.Certificate{c.pair}}
	server.StartTLS()
	t.Cleanup(server.Close)
	return &issuerRig{issuer: i, url: server.URL}
}

// Tokens: signed by the issuer, for this audience, with every claim; health checks need none.
func TestEnvoyChecksTokens(t *testing.T) {
	eachEnvoy(t, func(t *testing.T, binary string) {
		folder := t.TempDir()
		c := newCertificate(t, folder, "issuer.example.com")
		good, bad := newIssuerRig(t, c), newIssuerRig(t, c)
		a := newEndpoint(t)
		p := newPicker(t, a).start(t)
		file := writeGateway(t, "", "", a)
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		auth := fmt.Sprintf(`  auth: {jwt: {provider: {name: idp, issuer: "https://issuer.example.com", remoteJWKS: {uri: %q}, audiences: [gateway],
    requiredClaims: [{name: scope, valueType: StringArray, values: [infer, admin]}, {name: realm.tenant, values: [one]}]}}}`+"\n  schedulers:", good.url+"/keys")
		if err := os.WriteFile(file, []byte(strings.Replace(string(text), "  schedulers:", auth, 1)), 0o644); err != nil {
			t.Fatal(err)
		}
		e := startEnvoy(t, binary, p, []*endpointRig{a}, "-f", file, "--tls-roots", c.cert)
		claims := func(change func(map[string]any)) map[string]any {
			m := map[string]any{"iss": "https://issuer.example.com", "aud": "gateway", "exp": time.Now().Add(time.Hour).Unix(),
				"scope": "openid infer", "realm": map[string]any{"tenant": "one"}}
			change(m)
			return m
		}
		bearer := func(token string) http.Header { return http.Header{"Authorization": {"Bearer " + token}} }
		whole := bearer(good.token(t, claims(func(map[string]any) {})))
		eventually(t, "the keys to be fetched", 30*time.Second, func() bool {
			status, _, _ := e.chat(whole)
			return status == 200
		})
		f := func(what string, h http.Header, want int, code string) {
			t.Helper()
			status, got, text := e.chat(h)
			if want == 200 {
				if status != 200 {
					t.Errorf("%s: got %d %q, want 200", what, status, text)
				}
				return
			}
			wantError(t, what, status, got, text, want, code)
		}
		f("no token", nil, 401, "invalid_api_key")
		f("no JWT", bearer("sk-1234"), 401, "invalid_api_key")
		f("another's signature", bearer(bad.token(t, claims(func(map[string]any) {}))), 401, "invalid_api_key")
		f("an expired token", bearer(good.token(t, claims(func(m map[string]any) { m["exp"] = time.Now().Add(-time.Hour).Unix() }))), 401, "invalid_api_key")
		f("another audience", bearer(good.token(t, claims(func(m map[string]any) { m["aud"] = "other" }))), 403, "permission_denied")
		f("another scope", bearer(good.token(t, claims(func(m map[string]any) { m["scope"] = "openid inference" }))), 403, "permission_denied")
		f("no scope", bearer(good.token(t, claims(func(m map[string]any) { delete(m, "scope") }))), 403, "permission_denied")
		f("another tenant", bearer(good.token(t, claims(func(m map[string]any) { m["realm"] = map[string]any{"tenant": "two"} }))), 403, "permission_denied")
		f("a list of scopes", bearer(good.token(t, claims(func(m map[string]any) { m["scope"] = []string{"admin"} }))), 200, "")
		f("a name with a dot", bearer(good.token(t, claims(func(m map[string]any) { delete(m, "realm"); m["realm.tenant"] = "one" }))), 200, "")
		for path, want := range map[string]int{"/healthz": 200, "/readyz": 200, "/healthz/": 401, "/healthz?x=1": 200, "/readyz/../v1/models": 401, "/v1/models": 401, "//healthz": 401} {
			if status, _, text := fetch(http.MethodGet, e.url+path, nil, nil); status != want {
				t.Errorf("%s without a token: got %d %q, want %d", path, status, text, want)
			}
		}
		p.halt()
		f("no token and no picker", nil, 401, "invalid_api_key")
		f("a token and no picker", whole, 503, "no_endpoint")
	})
}
