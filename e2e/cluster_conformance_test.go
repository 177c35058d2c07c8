//go:build cluster && linux

package e2e

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"
)

// conformanceClass is a class of the Envoy Gateway that asks the controller, as somebody has it who makes Gateways and pools
// by hand; its Envoys are as this cluster needs them.
const conformanceClass = envoyDocument + `apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: conformance}
spec:
  controllerName: gateway.envoyproxy.io/gatewayclass-controller
  parametersRef: {group: gateway.envoyproxy.io, kind: EnvoyProxy, name: envoy, namespace: conformance}
`

// conformanceReport is what is read of the report that the Inference Extension's tests write.
type conformanceReport struct {
	Profiles []struct {
		Name string
		Core struct {
			Result     string
			Statistics struct{ Passed, Failed, Skipped int }
		}
	}
}

// TestConformance: the Inference Extension's own tests of gateways pass, all of them, with its own picker. What they say and
// their report stay beside the logs of the cluster. Definitions here are newer than those that the tests were made for. The
// features claimed are those that the profile asks for: SupportGateway, SupportHTTPRoute, SupportInferencePool.
func TestConformance(t *testing.T) {
	t.Parallel()
	p := withSluice(t)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
		defer cancel()
		if t.Failed() {
			dump(ctx, t, "gateway-conformance-app-backend")
		}
		// The class goes last: with it, Envoy Gateway forgets how Envoys are to be run.
		for _, what := range [][]string{{"namespace", "gateway-conformance-app-backend", "gateway-conformance-infra"}, {"gatewayclass", "conformance"}} {
			if out, err := shared.kubectl(ctx, "", append([]string{"delete", "--ignore-not-found", "--timeout", "150s"}, what...)...); err != nil {
				t.Errorf("cannot delete what the tests left: %v: %s", err, out)
			}
		}
	})
	p.apply(conformanceClass)
	log, file := filepath.Join(shared.state, "log", "conformance.log"), filepath.Join(shared.state, "log", "conformance.yaml")
	if err := os.RemoveAll(file); err != nil {
		t.Fatal(err)
	}
	run := script("conformance.sh", "conformance", "-cleanup-base-resources=false", "-report-output", file,
		"-organization", "sluice-gateway", "-project", "sluice", "-url", "https://github.com/sluice-gateway/sluice", "-version", os.Getenv(tagVariable))
	said, failed := run.CombinedOutput()
	if err := os.WriteFile(log, said, 0o644); err != nil {
		t.Error(err)
	}
	for line := range strings.Lines(string(said)) {
		if strings.Contains(line, "--- ") {
			t.Log(strings.TrimRight(line, "\n"))
		}
	}
	if failed != nil {
		t.Fatalf("the tests fail: %v; what they say is in %s", failed, log)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s", text)
	var got conformanceReport
	if err := yaml.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	if len(got.Profiles) != 1 || got.Profiles[0].Name != "Gateway" {
		t.Fatal("the report is not one of the profile Gateway alone")
	}
	core := got.Profiles[0].Core
	if core.Result != "success" || core.Statistics.Passed == 0 || core.Statistics.Failed+core.Statistics.Skipped > 0 {
		t.Errorf("got %+v, want every test passed", core)
	}
}
