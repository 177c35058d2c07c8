//go:build kube

package apiserver

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	yamlreader "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/sluice-gateway/sluice/api/v1alpha1"
	"github.com/sluice-gateway/sluice/config"
)

const (
	gatewayHead   = "apiVersion: inference.sagemaker.aws.amazon.com/v1alpha1\nkind: InferenceGatewayConfig\nmetadata: {name: g}\n"
	endpointsHead = "apiVersion: gateway.sluice.dev/v1alpha1\nkind: Endpoints\nmetadata: {name: e}\n"
	globalHead    = "apiVersion: gateway.sluice.dev/v1alpha1\nkind: GlobalGateway\nmetadata: {name: w}\n"
	policyHead    = "apiVersion: gateway.sluice.dev/v1alpha1\nkind: GatewayPolicy\nmetadata: {name: p}\n"
	oneScheduler  = "  schedulers: [{name: s, modelName: m, modelSelector: {}}]\n"
	oneGateway    = gatewayHead + "spec:\n  bbr: {enabled: true}\n" + oneScheduler
)

// expand makes a document of what a script gives: a spec, or what is in the one scheduler, endpoint or session of it.
func expand(t *testing.T, command, input string) string {
	t.Helper()
	indented := func(by string) string {
		return by + strings.TrimRight(strings.ReplaceAll(input, "\n", "\n"+by), " ")
	}
	switch command {
	case "document":
		return input
	case "spec":
		return gatewayHead + "spec:\n" + indented("  ")
	case "more":
		return gatewayHead + "spec:\n  bbr: {enabled: true}\n" + oneScheduler + indented("  ")
	case "scheduler":
		return gatewayHead + "spec:\n  bbr: {enabled: true}\n  schedulers:\n  - name: s\n    modelName: m\n" + indented("    ")
	case "endpoints":
		return endpointsHead + "spec:\n" + indented("  ")
	case "endpoint":
		return endpointsHead + "spec:\n  endpoints:\n  -\n" + indented("    ")
	case "global":
		return globalHead + "spec:\n" + indented("  ")
	case "policy":
		return policyHead + "spec:\n" + indented("  ")
	case "session":
		return policyHead + "spec:\n  targetRef: {name: g}\n  sessionAffinity:\n" + indented("    ")
	}
	t.Fatalf("no command %q", command)
	return ""
}

// TestRules: an API server and package config are given the same documents, and refuse the same. What both say stands in the
// scripts. Where only one can see a fault, the script says so: only=config or only=server.
func TestRules(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			input, times := d.Input, 1
			if d.HasArg("times") {
				d.ScanArgs(t, "times", &times)
				input = repeat(input, times)
			}
			only := ""
			d.MaybeScanArgs(t, "only", &only)
			local, remote := judge(t, expand(t, d.Cmd, input), oneGateway)
			switch {
			case only == "" && (len(local) > 0) != (len(remote) > 0),
				only == "config" && (len(local) == 0 || len(remote) > 0),
				only == "server" && (len(local) > 0 || len(remote) == 0):
				t.Errorf("%s: config and the API server disagree on\n%s\nconfig: %q\nserver: %q", d.Pos, d.Input, local, remote)
			}
			if len(local)+len(remote) == 0 {
				return "fine\n"
			}
			return lines("config", local) + lines("server", remote)
		})
	})
}

// repeat writes what stands between < and > so many times, with each number in the place of #.
func repeat(input string, times int) string {
	before, rest, _ := strings.Cut(input, "<")
	part, after, _ := strings.Cut(rest, ">")
	var b strings.Builder
	for i := range times {
		b.WriteString(strings.ReplaceAll(part, "#", fmt.Sprint(i)))
	}
	return before + b.String() + after
}

func lines(who string, texts []string) string {
	var b strings.Builder
	for _, text := range texts {
		fmt.Fprintf(&b, "%s: %s\n", who, text)
	}
	return b.String()
}

// judge says what package config and the API server have against a document, which config reads beside a gateway where
// it is none itself. A document that both take must come out of
// both with the same defaults.
func judge(t *testing.T, doc, beside string) (local, remote []string) {
	t.Helper()
	u := object(t, doc)
	u.SetNamespace("default")
	local = byConfig(t, doc, u.GetKind(), beside)
	written := u.DeepCopy()
	err := shared.client.Create(t.Context(), u, client.DryRunAll, client.FieldValidation("Strict"))
	if err != nil {
		return local, byServer(t, err)
	}
	if len(local) == 0 {
		if diff := cmp.Diff(defaulted(t, written), typed(t, u)); diff != "" {
			t.Errorf("defaults differ, -config +server:\n%s\n%s", diff, doc)
		}
	}
	return local, nil
}

// byConfig gives the document to package config.
func byConfig(t *testing.T, doc, kind, beside string) []string {
	t.Helper()
	if kind != v1alpha1.InferenceGatewayConfigKind {
		doc = "---\n" + doc + "\n---\n" + beside
	}
	_, err := config.Parse([]byte(doc), "x.yaml")
	if err == nil {
		return nil
	}
	var faults *config.Faults
	if !errors.As(err, &faults) {
		t.Fatal(err)
	}
	var out []string
	for _, f := range faults.List {
		out = append(out, shortened(f.Text))
	}
	return out
}

// byServer takes the API server's refusal apart.
func byServer(t *testing.T, err error) []string {
	t.Helper()
	var status *apierrors.StatusError
	if !errors.As(err, &status) {
		t.Fatal(err)
	}
	if d := status.ErrStatus.Details; d != nil && len(d.Causes) > 0 {
		var out []string
		for _, c := range d.Causes {
			if strings.Contains(c.Message, "some validation rules were not checked") {
				continue // besides what is wrong
			}
			out = append(out, shortened(c.Field+": "+c.Message))
		}
		slices.Sort(out)
		return out
	}
	return []string{shortened(status.ErrStatus.Message)}
}

// shortened cuts values that are long on purpose.
func shortened(s string) string {
	if r := []rune(s); len(r) > 400 {
		return string(r[:200]) + " … " + string(r[len(r)-200:])
	}
	return s
}

// typed reads what an API server returns into our types, without what it adds to every object.
func typed(t *testing.T, u *unstructured.Unstructured) any {
	t.Helper()
	for _, field := range []string{"creationTimestamp", "generation", "managedFields", "uid", "resourceVersion"} {
		unstructured.RemoveNestedField(u.Object, "metadata", field)
	}
	unstructured.RemoveNestedField(u.Object, "status")
	var out any
	switch u.GetKind() {
	case v1alpha1.InferenceGatewayConfigKind:
		out = new(v1alpha1.InferenceGatewayConfig)
	case v1alpha1.GatewayPolicyKind:
		out = new(v1alpha1.GatewayPolicy)
	case v1alpha1.GlobalGatewayKind:
		out = new(v1alpha1.GlobalGateway)
	default:
		out = new(v1alpha1.Endpoints)
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, out); err != nil {
		t.Fatal(err)
	}
	return out
}

// defaulted reads a document into our types and fills in the defaults.
func defaulted(t *testing.T, u *unstructured.Unstructured) any {
	t.Helper()
	out := typed(t, u)
	out.(interface{ Default() }).Default()
	return out
}

// TestDocumentsOfConfig gives the documents that package config is tested with to the API server, one by one.
func TestDocumentsOfConfig(t *testing.T) {
	files, err := filepath.Glob("../../config/testdata/*.yaml")
	if err != nil || len(files) < 20 {
		t.Fatalf("got %d files, %v", len(files), err)
	}
	n, refused := 0, 0
	for _, path := range files {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		beside := oneGateway
		reader := yamlreader.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
		for i := 1; ; i++ {
			doc, err := reader.Read()
			if err == io.EOF {
				break
			}
			name := fmt.Sprintf("%s document %d", filepath.Base(path), i)
			tree := make(map[string]any)
			if err != nil || yaml.UnmarshalStrict(doc, &tree) != nil || !ours(tree) {
				continue // no YAML, or of no kind of ours: kubectl sends neither
			}
			n++
			if tree["kind"] == v1alpha1.InferenceGatewayConfigKind {
				beside = string(doc)
			}
			local, remote := judge(t, string(doc), beside)
			if len(remote) > 0 {
				refused++
			}
			if (len(local) > 0) != (len(remote) > 0) && configAlone()[name] == "" {
				t.Errorf("%s: config and the API server disagree\nconfig: %q\nserver: %q", name, local, remote)
			}
		}
	}
	t.Logf("%d documents, of which %d are refused", n, refused)
	if n < 30 || refused < 15 {
		t.Errorf("got %d documents, %d of them refused: the table has lost its rows", n, refused)
	}
}

// configAlone are the documents that only package config refuses, each with its reason.
func configAlone() map[string]string {
	return map[string]string{
		"policies.bad.yaml document 5":             "its target is not there",
		"same-port-by-default.bad.yaml document 2": "two addresses are the same once the port of another object is filled in",
		"text-after-the-end.bad.yaml document 1":   "it is two documents, and readers of YAML see the first",
	}
}

// ours says whether a document is of a kind that the API server knows in that version.
func ours(tree map[string]any) bool {
	switch tree["kind"] {
	case v1alpha1.InferenceGatewayConfigKind:
		return tree["apiVersion"] == v1alpha1.InferenceGroup+"/"+v1alpha1.Version
	case v1alpha1.GatewayPolicyKind, v1alpha1.EndpointsKind, v1alpha1.GlobalGatewayKind:
		return tree["apiVersion"] == v1alpha1.GatewayGroup+"/"+v1alpha1.Version
	}
	return false
}
