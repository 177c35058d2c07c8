//go:build kube

package translate

import (
	"encoding/json"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

// folder is where Go keeps a module, in the version that a module of test/cluster/tools names.
func folder(t *testing.T, tool, module string) string {
	t.Helper()
	c := exec.CommandContext(t.Context(), "go", "mod", "download", "-json", module)
	c.Dir = filepath.Join("../test/cluster/tools", tool)
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

// A real API server with the definitions of Gateway API, of its Inference Extension and of Envoy Gateway takes every
// object of every plan, with no field that it doesn't know. It has none of cert-manager, of the Prometheus operator and of older releases.
func TestAnAPIServerTakesPlans(t *testing.T) {
	log.SetLogger(logr.Discard())
	gateway, extension := folder(t, "definitions", "sigs.k8s.io/gateway-api"), folder(t, "definitions", "sigs.k8s.io/gateway-api-inference-extension")
	env := &envtest.Environment{
		CRDDirectoryPaths: []string{filepath.Join(gateway, "config/crd/standard"), filepath.Join(extension, "config/crd/bases"),
			filepath.Join(folder(t, "envoy-gateway", "github.com/envoyproxy/gateway"), "charts/gateway-helm/charts/crds/crds/generated")},
		ErrorIfCRDPathMissing:    true,
		ControlPlaneStartTimeout: 3 * time.Minute,
		ControlPlaneStopTimeout:  time.Minute,
	}
	config, err := env.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := env.Stop(); err != nil {
			t.Error(err)
		}
	})
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	c, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	for _, ns := range []string{"models", DefaultSystemNamespace, "sluice"} {
		if err := c.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}); err != nil {
			t.Fatal(err)
		}
	}
	taken := make(map[string]int)
	hundred, err := Build(many(100))
	if err != nil {
		t.Fatal(err)
	}
	plans := map[string]*Plan{"a hundred schedulers": hundred}
	for _, name := range cases(t) {
		plans[name], _ = build(t, name)
	}
	for name, plan := range plans {
		for _, u := range plan.Objects {
			if strings.HasPrefix(u.GetAPIVersion(), "cert-manager.io/") || strings.HasPrefix(u.GetAPIVersion(), "monitoring.coreos.com/") || strings.HasSuffix(u.GetAPIVersion(), "/v1alpha3") {
				continue
			}
			o := u.DeepCopy()
			if err := c.Create(t.Context(), o, client.DryRunAll, client.FieldValidation("Strict")); err != nil {
				t.Errorf("%s: %s: %v", name, key(u), err)
			}
			taken[u.GetKind()]++
		}
	}
	for _, kind := range []string{"Gateway", "HTTPRoute", "ReferenceGrant", "BackendTLSPolicy", "InferencePool", "EnvoyProxy", "EnvoyExtensionPolicy", "SecurityPolicy",
		"ClientTrafficPolicy", "BackendTrafficPolicy", "HTTPRouteFilter", "Deployment", "NetworkPolicy", "PodDisruptionBudget", "Role"} {
		if taken[kind] == 0 {
			t.Errorf("no plan has a %s", kind)
		}
	}
}
