package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// writePair writes NAME.crt, which signs itself, and NAME.key.
func writePair(t *testing.T, dir, name string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for suffix, b := range map[string]*pem.Block{".crt": {Type: "CERTIFICATE", Bytes: der}, ".key": {Type: "PRIVATE KEY", Bytes: secret}} {
		if err := os.WriteFile(filepath.Join(dir, name+suffix), pem.EncodeToMemory(b), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// What Envoy is to read is there before a configuration names it, and is named so that Envoy finds it from any folder.
func TestEnvoyFiles(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	writePair(t, dir, "a")
	writePair(t, dir, "b")
	text := strings.Replace(fmt.Sprintf(gatewayFile, "127.0.0.1:1", false, "127.0.0.1:2", false), "drain: false}", "tls: {caFile: %s}}", 1)
	for name, ca := range map[string]string{"good": "a.crt", "bad": "none.crt"} {
		if err := os.WriteFile(name+".yaml", fmt.Appendf(nil, text, ca), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const plain = "--endpoint m=127.0.0.1:1"
	refused := func(want, args string) {
		t.Helper()
		if out, err := try(append([]string{"envoy"}, strings.Fields(args)...)...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("sluice envoy %s: got %v and\n%s\nwant an error with %q", args, err, out, want)
		}
	}
	refused(`--tls-cert "none.crt"`, plain+" --tls-cert none.crt --tls-key a.key")
	refused(`--tls-key "none.key"`, plain+" --tls-cert a.crt --tls-key none.key")
	refused("private key does not match", plain+" --tls-cert a.crt --tls-key b.key")
	refused(`--tls-roots "none.crt"`, plain+" --tls-roots none.crt")
	refused("there is no certificate in it", plain+" --tls-roots a.key")
	refused("it is a folder", plain+" --tls-roots "+dir)
	refused(`--picker-ca "none.crt"`, plain+" --picker-ca none.crt")
	refused(`--picker-cert "none.crt"`, plain+" --picker-ca a.crt --picker-cert none.crt --picker-key a.key")
	refused(`--picker-key "none.key"`, plain+" --picker-ca a.crt --picker-cert a.crt --picker-key none.key")
	refused(`caFile of endpoint 127.0.0.1:1 "none.crt"`, "-f bad.yaml")
	refused("ends in .yaml", plain+" --out envoy.conf")
	refused("ends in .yaml", plain+" --out envoy.json")

	out, err := try(strings.Fields("envoy -f good.yaml --access-log a.log --tls-cert a.crt --tls-key a.key --tls-roots b.crt --picker-ca b.crt --picker-cert b.crt --picker-key b.key")...)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a.log", "a.crt", "a.key", "b.crt", "b.key"} {
		if all, absolute := strings.Count(out, name), strings.Count(out, filepath.Join(dir, name)); all == 0 || all != absolute {
			t.Errorf("got %s %d times, %d of them with its folder:\n%s", name, all, absolute, out)
		}
	}
	if out, err := try(strings.Fields("envoy " + plain + " --picker-tls --tls-roots b.crt")...); err != nil || !strings.Contains(out, filepath.Join(dir, "b.crt")) {
		t.Errorf("got %v and\n%s\nwant the authorities with their folder", err, out)
	}
	if out, err := try("envoy", "--endpoint", "m=127.0.0.1:1", "--out", "envoy.yaml"); err != nil {
		t.Errorf("got %v and\n%s, want a file", err, out)
	}
	if _, err := try("serve", "--data-plane", "envoy", "--envoy", os.Args[0], "--endpoint", "m=127.0.0.1:1", "--tls-cert", "none.crt", "--tls-key", "a.key"); err == nil ||
		!strings.Contains(err.Error(), `--tls-cert "none.crt"`) {
		t.Errorf("serve: got %v, want an error for --tls-cert", err)
	}
}
