//go:build kube

package apiserver

import (
	"bytes"
	"errors"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

const (
	chartFolder    = "../../deploy/chart"
	chartNamespace = "hyperpod-inference-system"
)

// helm runs the real one, which sees the API server of these tests and nothing of the machine's settings.
func helm(t *testing.T, args ...string) (stdout, stderr string, ok bool) {
	t.Helper()
	c := exec.CommandContext(t.Context(), filepath.Join(os.Getenv("KUBEBUILDER_ASSETS"), "helm"), args...)
	home := t.TempDir()
	c.Env = append(os.Environ(), "KUBECONFIG="+shared.kubeconfig, "HELM_CACHE_HOME="+home, "HELM_CONFIG_HOME="+home, "HELM_DATA_HOME="+home)
	var out, errOut bytes.Buffer
	c.Stdout, c.Stderr = &out, &errOut
	err := c.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return out.String(), errOut.String(), err == nil
}

// rendered is what the chart makes of values, as helm template and GitOps have it: without a cluster.
func rendered(t *testing.T, args ...string) string {
	t.Helper()
	out, errOut, ok := helm(t, append([]string{"template", "sluice", chartFolder, "--namespace", chartNamespace, "--kube-version", "1.37.0"}, args...)...)
	if !ok {
		t.Fatalf("helm template %v: %s", args, errOut)
	}
	return out
}

// made compares a file with what it has to be, or writes it.
func made(t *testing.T, path, want string) {
	t.Helper()
	if flag.Lookup("rewrite").Value.String() == "true" {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff(string(got), want); diff != "" {
		t.Errorf("%s is not what the chart makes: run go test -tags kube ./test/apiserver -run %s -rewrite and review the change; -file +made:\n%s", path, t.Name(), diff)
	}
}

// TestChart: lint finds nothing, and what values make of the chart is what the golden files say. K35: tolerations, node
// selectors and the architecture reach the pods.
func TestChart(t *testing.T) {
	files, err := filepath.Glob("chart/*.values.yaml")
	if err != nil || len(files) < 4 {
		t.Fatalf("got %d cases, %v", len(files), err)
	}
	for _, values := range files {
		if out, errOut, ok := helm(t, "lint", "--strict", chartFolder, "--namespace", chartNamespace, "--values", values); !ok {
			t.Errorf("helm lint with %s: %s%s", values, out, errOut)
		}
		made(t, strings.TrimSuffix(values, ".values.yaml")+".out.yaml", rendered(t, "--values", values))
	}
	if out := rendered(t); out != rendered(t) {
		t.Error("the chart renders to something else each time: GitOps would never be in step")
	}
}

// TestChartRefuses: unknown keys and values that can't be meant, in words that name them.
func TestChartRefuses(t *testing.T) {
	f := func(set string, want ...string) {
		t.Helper()
		_, errOut, ok := helm(t, "template", "sluice", chartFolder, "--kube-version", "1.37.0", "--set-json", set)
		for _, w := range want {
			if ok || !strings.Contains(errOut, w) {
				t.Errorf("--set-json %s: got %t, %s, want %q in it", set, ok, errOut, w)
			}
		}
	}
	f(`inferenceGateway={"enable":true}`, "inferenceGateway", "enable")
	f(`inferencegateway={"enabled":true}`, "inferencegateway")
	f(`inferenceGateway={"enabled":"yes"}`, "enabled", "boolean")
	f(`controller.replicas=0`, "controller/replicas", "1")
	f(`controller.logLevel="loud"`, "logLevel", "debug")
	f(`image.registry="https://registry.example.com/"`, "registry")
	f(`image.digest="sha256:1"`, "digest")
	f(`envoy.service.type="External"`, "type")
	f(`metrics.namespaces=["Monitoring"]`, "metrics/namespaces")
	f(`gatewayClass.name="Inference"`, "name")
	f(`controller.extraArgs=["listen"]`, "extraArgs")
}

// TestChartsDefinitions: they come with the chart, stay when it goes, and don't count twice.
func TestChartsDefinitions(t *testing.T) {
	var names []string
	for _, doc := range strings.Split(rendered(t, "--show-only", "templates/crds.yaml"), "\n---\n") {
		u := new(unstructured.Unstructured)
		if err := yaml.Unmarshal([]byte(doc), &u.Object); err != nil {
			t.Fatal(err)
		}
		names = append(names, u.GetName())
		if a := u.GetAnnotations(); a["helm.sh/resource-policy"] != "keep" || !strings.Contains(a["argocd.argoproj.io/sync-options"], "Prune=false") {
			t.Errorf("%s: got annotations %v, want it kept", u.GetName(), a)
		}
	}
	slices.Sort(names)
	files, err := filepath.Glob("../../deploy/crds/*.*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, f := range files {
		want = append(want, strings.TrimSuffix(filepath.Base(f), ".yaml"))
	}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// TestCopiesOfTheChart: what those get who use no Helm, or Envoy Gateway's chart, is what the chart says.
func TestCopiesOfTheChart(t *testing.T) {
	const head = "# Made from deploy/chart by go test -tags kube ./test/apiserver -run TestCopiesOfTheChart -rewrite.\n"
	made(t, "../../deploy/kustomize/base/controller.yaml", head+rendered(t, "--set", "crds.install=false"))
	notes, errOut, ok := helm(t, "install", "sluice", chartFolder, "--namespace", chartNamespace, "--dry-run=server", "--take-ownership")
	if !ok {
		t.Fatal(errOut)
	}
	_, notes, _ = strings.Cut(notes, "\nNOTES:\n")
	block := regexp.MustCompile(`(?m)^    config:\n(?:    .*\n)+`).FindString(notes)
	if block == "" {
		t.Fatalf("got no values for Envoy Gateway in\n%s", notes)
	}
	made(t, "../../deploy/envoy-gateway/values.yaml", head+"# Values for Envoy Gateway's own chart, gateway-helm 1.9 or later, beside others: it asks the controller about InferencePools.\n"+
		regexp.MustCompile(`(?m)^    `).ReplaceAllString(block, ""))
	for _, folder := range []string{"base", "example"} {
		if out := kubectl(t, "", "kustomize", "../../deploy/kustomize/"+folder); !strings.Contains(out, "kind: CustomResourceDefinition") || !strings.Contains(out, "kind: Deployment") {
			t.Errorf("kubectl kustomize %s: got %.2000s", folder, out)
		}
	}
	example := kubectl(t, "", "kustomize", "../../deploy/kustomize/example")
	if n := strings.Count(example, "registry.example.com/inference/sluice:0.1.0"); n != 2 {
		t.Errorf("got the image of the example %d times, want it for the controller and for what it makes:\n%s", n, example)
	}
}

// TestGitOps: what is shown for Argo CD and Flux has values that the chart takes, and leads to the chart.
func TestGitOps(t *testing.T) {
	checked := 0
	var visit func(path string, tree any)
	visit = func(path string, tree any) {
		switch v := tree.(type) {
		case map[string]any:
			for key, below := range v {
				if values, isMap := below.(map[string]any); isMap && (key == "valuesObject" || key == "values" && v["chart"] != nil) {
					text, err := yaml.Marshal(values)
					if err != nil {
						t.Fatal(err)
					}
					file := filepath.Join(t.TempDir(), "values.yaml")
					if err := os.WriteFile(file, text, 0o600); err != nil {
						t.Fatal(err)
					}
					rendered(t, "--values", file)
					checked++
				}
				if text, isText := below.(string); isText && key == "templatePatch" {
					text = regexp.MustCompile(`(?m)^.*\{\{-.*\n`).ReplaceAllString(text, "")
					text = regexp.MustCompile(`\{\{[^}]*\}\}`).ReplaceAllString(text, "x")
					var patch map[string]any
					if err := yaml.Unmarshal([]byte(text), &patch); err != nil {
						t.Errorf("%s: templatePatch: %v", path, err)
					}
					visit(path, patch)
				}
				visit(path, below)
			}
		case []any:
			for _, below := range v {
				visit(path, below)
			}
		case string:
			if folder := strings.TrimPrefix(v, "./"); strings.HasPrefix(folder, "deploy/") {
				if _, err := os.Stat("../../" + folder); err != nil {
					t.Errorf("%s: %v", path, err)
				}
			}
		}
	}
	files := slices.Concat(glob(t, "../../deploy/argocd/*.yaml"), glob(t, "../../deploy/flux/*.yaml"))
	for _, path := range files {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, doc := range strings.Split(string(text), "\n---\n") {
			var tree map[string]any
			if err := yaml.UnmarshalStrict([]byte(doc), &tree); err != nil || tree["kind"] == nil {
				t.Errorf("%s: %v in\n%s", path, err, doc)
			}
			visit(path, tree)
		}
	}
	if checked < 3 {
		t.Errorf("got %d sets of values, want those of an Application, an ApplicationSet and a HelmRelease", checked)
	}
}

func glob(t *testing.T, pattern string) []string {
	t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) == 0 {
		t.Fatalf("got no %s, %v", pattern, err)
	}
	return files
}

// TestHelm installs the chart in a real API server, upgrades it, goes back and takes it away.
func TestHelm(t *testing.T) {
	run := func(want string, args ...string) {
		t.Helper()
		out, errOut, ok := helm(t, append(args, "--namespace", chartNamespace)...)
		if !ok || !strings.Contains(out, want) {
			t.Fatalf("helm %v: got %t, %s%s, want %q in it", args, ok, out, errOut, want)
		}
	}
	replicas := func(want int64) {
		t.Helper()
		d := named("apps/v1", "Deployment", "inference-gateway-controller")
		if err := shared.client.Get(t.Context(), keyOf(d), d); err != nil {
			t.Fatal(err)
		}
		if got, _, _ := unstructured.NestedInt64(d.Object, "spec", "replicas"); got != want {
			t.Errorf("got %d replicas, want %d", got, want)
		}
	}
	// The definitions of these tests are those that someone else has installed.
	_, errOut, ok := helm(t, "install", "sluice", chartFolder, "--namespace", chartNamespace, "--create-namespace")
	if ok || !strings.Contains(errOut, "cannot be imported into the current release") {
		t.Errorf("got %t, %s, want a refusal of definitions that are there", ok, errOut)
	}
	ramps := func(want bool) {
		t.Helper()
		if got := kubectl(t, "", "explain", "ggw.spec"); strings.Contains(got, "ramp") != want {
			t.Errorf("got\n%s\nwant a ramp in it: %t", got, want)
		}
	}
	older := olderChart(t)
	run("kubectl sluice doctor", "install", "sluice", older, "--create-namespace", "--take-ownership")
	replicas(2)
	ramps(false)
	run("", "upgrade", "sluice", chartFolder, "--reset-then-reuse-values", "--set", "controller.replicas=3")
	replicas(3)
	ramps(true)
	run("Rollback was a success", "rollback", "sluice", "1")
	replicas(2)
	ramps(false)
	run("is false", "upgrade", "sluice", chartFolder, "--set", "inferenceGateway.enabled=false")
	gone(t, named("apps/v1", "Deployment", "inference-gateway-controller"))
	run("", "upgrade", "sluice", chartFolder, "--reset-values") // Helm can't go back to what it has kept
	replicas(2)
	ramps(true)
	run("kept due to the resource policy", "uninstall", "sluice")
	gone(t, named("apps/v1", "Deployment", "inference-gateway-controller"))
	crd := named("apiextensions.k8s.io/v1", "CustomResourceDefinition", "inferencegatewayconfigs.inference.sagemaker.aws.amazon.com")
	crd.SetNamespace("")
	if err := shared.client.Get(t.Context(), types.NamespacedName{Name: crd.GetName()}, crd); err != nil {
		t.Errorf("the definition went with the chart: %v", err)
	}
}

// olderChart is the chart as it was before global gateways had a ramp.
func olderChart(t *testing.T) string {
	t.Helper()
	folder := filepath.Join(t.TempDir(), "sluice")
	if err := os.CopyFS(folder, os.DirFS(chartFolder)); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(folder, "files/crds/globalgateways.gateway.sluice.dev.yaml")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	u := object(t, string(text))
	version := u.Object["spec"].(map[string]any)["versions"].([]any)[0].(map[string]any)
	unstructured.RemoveNestedField(version, "schema", "openAPIV3Schema", "properties", "spec", "properties", "ramp")
	if text, err = yaml.Marshal(u.Object); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return folder
}

func named(apiVersion, kind, name string) *unstructured.Unstructured {
	u := new(unstructured.Unstructured)
	u.SetAPIVersion(apiVersion)
	u.SetKind(kind)
	u.SetNamespace(chartNamespace)
	u.SetName(name)
	return u
}

func gone(t *testing.T, u *unstructured.Unstructured) {
	t.Helper()
	if err := shared.client.Get(t.Context(), client.ObjectKeyFromObject(u), u); !apierrors.IsNotFound(err) {
		t.Errorf("%s %s: got %v, want it gone", u.GetKind(), u.GetName(), err)
	}
}
