package main

import (
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// With --probe a scheduler of which no endpoint answers is a fault, and one of which some do is none.
func TestCheckProbe(t *testing.T) {
	good, gone := httptest.NewServer(new(talker)), httptest.NewServer(new(talker))
	defer good.Close()
	gone.Close()
	if out, err := try("check", "--endpoint", "parrot="+addressOf(gone)); err != nil {
		t.Errorf("unasked: got %v and\n%s", err, out)
	}
	out, err := try("check", "--probe", "--endpoint", "parrot="+addressOf(good)+","+addressOf(gone))
	if err != nil || !strings.Contains(out, "connection refused") || !strings.Contains(out, "speeds: neutral, learned") {
		t.Errorf("one of two: got %v and\n%s", err, out)
	}
	out, err = try("check", "--probe", "--endpoint", "parrot="+addressOf(gone), "--endpoint", "other="+addressOf(good))
	if err == nil || !strings.Contains(err.Error(), "no endpoint of parrot answers") || strings.Contains(err.Error(), "other") {
		t.Errorf("one scheduler of two: got %v and\n%s", err, out)
	}
}

func TestCheckSaysWhereSpeedsComeFrom(t *testing.T) {
	file := filepath.Join(t.TempDir(), "gateway.yaml")
	text := strings.Replace(gatewayFile, "modelName: m", "modelName: meta-llama/Llama-3.1-8B-Instruct", 1)
	text = fmt.Sprintf(text, "10.0.0.1:8000", false, "10.0.0.2:8000", false)
	text = strings.Replace(text, "labels: {app: m}", "labels: {app: m, gpu: H100}", 1)
	text += `  - {address: "10.0.0.3:8000", labels: {app: m, gpu: B9000}}
  - {address: "10.0.0.4:8000", labels: {app: m, gpu: H100}}
`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := try("check", "-f", file)
	for _, want := range []string{
		"  m at 10.0.0.1:8000, 10.0.0.4:8000: from the row l8-h100 of the calibration (Llama-3.1-8B, H100)\n",
		"  m at 10.0.0.2:8000: neutral, learned (no label gpu or nvidia.com/gpu.product)\n",
		"  m at 10.0.0.3:8000: neutral, learned (the calibration has no row for the model on B9000)\n",
	} {
		if err != nil || !strings.Contains(out, want) {
			t.Errorf("got %v and\n%s\nwithout %q", err, out, want)
		}
	}
}

// A file that only an Envoy can serve is judged for Envoy when asked to be, and the embedded door's refusal names the way.
func TestCheckJudgesForEnvoy(t *testing.T) {
	dir := t.TempDir()
	write := func(name, spec string) string {
		t.Helper()
		file := filepath.Join(dir, name)
		text := strings.Replace(fmt.Sprintf(gatewayFile, "127.0.0.1:1", false, "127.0.0.1:2", false), "  bbr:", spec+"  bbr:", 1)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	const auth = "  auth: {jwt: {provider: {name: p, issuer: \"https://i.example\", remoteJWKS: {uri: \"https://i.example/keys\"}, audiences: [a]}}}\n"
	const tls = "  tls: {acmArn: \"arn:aws:acm:us-east-1:123456789012:certificate/12345678-1234-1234-1234-123456789012\"}\n"
	f := func(want, fault string, args ...string) {
		t.Helper()
		out, err := try(append([]string{"check"}, args...)...)
		if (err == nil) != (fault == "") || err != nil && !strings.Contains(err.Error(), fault) || !strings.Contains(out, want) {
			t.Errorf("check %s: got %v and\n%s\nwant %q and an error with %q", strings.Join(args, " "), err, out, want, fault)
		}
	}
	tokens, both := write("auth.yaml", auth), write("both.yaml", auth+tls)
	f("Behind Envoy it can: `sluice serve --data-plane envoy`", "spec.auth", "-f", tokens)
	f("checked by Envoy: of https://i.example, by the keys at https://i.example/keys", "", "-f", tokens, "--data-plane", "envoy")
	f("with a certificate: `sluice serve --data-plane envoy --tls-cert FILE", "spec.tls", "-f", both)
	f("cannot be served", "--tls-cert", "-f", both, "--data-plane", "envoy")
	f("Envoy has the one it was", "", "-f", both, "--data-plane", "envoy", "--tls-cert", "tls.crt")
	f("", "it is embedded or envoy", "-f", both, "--data-plane", "nginx")
	f("", "without --data-plane envoy", "-f", both, "--tls-cert", "tls.crt")
}
