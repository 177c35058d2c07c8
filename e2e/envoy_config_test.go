//go:build doors && unix

package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Every bootstrap that the unit tests compare is one that Envoy accepts.
func TestEnvoyAcceptsBootstraps(t *testing.T) {
	paths, err := filepath.Glob("../envoy/testdata/*.yaml")
	if err != nil || len(paths) == 0 {
		t.Fatalf("got %v and %v, want the bootstraps of the unit tests", paths, err)
	}
	folder := t.TempDir()
	pair := newCertificate(t, folder, "gateway.example.com")
	for _, name := range []string{"tls.crt", "client.crt", "ca.crt", "gpu.crt", "roots.crt"} {
		link(t, pair.cert, filepath.Join(folder, name))
	}
	for _, name := range []string{"tls.key", "client.key"} {
		link(t, pair.key, filepath.Join(folder, name))
	}
	here := strings.NewReplacer("/tls/", folder+"/", "/etc/envoy/", folder+"/", "/etc/ssl/certs/ca-certificates.crt", folder+"/roots.crt")
	eachEnvoy(t, func(t *testing.T, binary string) {
		for _, path := range paths {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			copied := filepath.Join(folder, filepath.Base(path))
			if err := os.WriteFile(copied, []byte(here.Replace(string(text))), 0o644); err != nil {
				t.Fatal(err)
			}
			if filepath.Base(path) == "certificate.yaml" {
				continue // which a bootstrap names
			}
			p := start(t, "envoy", binary, "--mode", "validate", "-c", copied, "--use-dynamic-base-id", "--log-level", "warning")
			if code := p.exitCode(t, 60e9); code != 0 || p.stderr.holding(0, "deprecated") {
				t.Errorf("%s: got exit code %d and\n%s\nwant 0 and nothing deprecated", path, code, p.tail(10))
			}
		}
	})
}

func link(t *testing.T, from, to string) {
	t.Helper()
	if from == to {
		return
	}
	if err := os.Symlink(from, to); err != nil {
		t.Fatal(err)
	}
}
