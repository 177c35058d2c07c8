//go:build kube

package apiserver

import (
	"encoding/json"
	"os/exec"
	"path/filepath"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
)

// moduleFolder is where Go keeps a module whose version test/cluster/tools/definitions names.
func moduleFolder(t *testing.T, module string) string {
	t.Helper()
	c := exec.CommandContext(t.Context(), "go", "mod", "download", "-json", module)
	c.Dir = "../cluster/tools/definitions"
	out, err := c.Output()
	if err != nil {
		t.Fatalf("cannot download module %q: %v: %s", module, err, out)
	}
	var m struct{ Dir string }
	if err := json.Unmarshal(out, &m); err != nil {
		t.Fatal(err)
	}
	return m.Dir
}

// TestForeignDefinitions: the definitions of Gateway API and of the Inference Extension, read from their Go modules, take
// what a gateway of ours is translated into.
func TestForeignDefinitions(t *testing.T) {
	if _, err := envtest.InstallCRDs(shared.config, envtest.CRDInstallOptions{
		Paths: []string{
			filepath.Join(moduleFolder(t, "sigs.k8s.io/gateway-api"), "config/crd/standard"),
			filepath.Join(moduleFolder(t, "sigs.k8s.io/gateway-api-inference-extension"), "config/crd/bases"),
		},
		ErrorIfPathMissing: true,
	}); err != nil {
		t.Fatal(err)
	}
	for _, doc := range []string{
		`{apiVersion: inference.networking.k8s.io/v1, kind: InferencePool, metadata: {name: llama}, spec: {
            selector: {matchLabels: {app: llama}}, targetPorts: [{number: 8000}, {number: 8001}],
            endpointPickerRef: {name: llama-epp, port: {number: 9002}, failureMode: FailOpen}}}`,
		`{apiVersion: gateway.networking.k8s.io/v1, kind: HTTPRoute, metadata: {name: llama}, spec: {
            parentRefs: [{name: gateway, namespace: hyperpod-inference-system}],
            rules: [{matches: [{headers: [{name: X-Gateway-Base-Model-Name, value: m}]}], backendRefs: [{group: inference.networking.k8s.io, kind: InferencePool, name: llama}]}]}}`,
	} {
		if err := shared.client.Create(t.Context(), object(t, doc), client.DryRunAll, client.FieldValidation("Strict")); err != nil {
			t.Error(err)
		}
	}
}
