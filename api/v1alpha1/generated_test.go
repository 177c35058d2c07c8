package v1alpha1

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/go/packages"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-tools/pkg/crd"
	"sigs.k8s.io/controller-tools/pkg/deepcopy"
	"sigs.k8s.io/controller-tools/pkg/genall"
	"sigs.k8s.io/controller-tools/pkg/loader"
	"sigs.k8s.io/controller-tools/pkg/markers"
	"sigs.k8s.io/yaml"
)

var rewrite = flag.Bool("rewrite", false, "write what is made from this package instead of comparing it")

// The folders of the definitions: for kubectl and tests, and the chart's own, since a chart is one folder.
const (
	definitions = "../../deploy/crds"
	charted     = "../../deploy/chart/files/crds"
)

// TestGenerated compares the definitions and the copying code in the repository with what this package makes, and has every field
// explained. Both begin with the sources of this package and of all that it stands on, which are loaded once: reading them is nearly
// all of the time.
func TestGenerated(t *testing.T) {
	pkgs, err := loader.LoadRoots(".")
	if err != nil {
		t.Fatal(err)
	}
	lighten(pkgs[0], make(map[*loader.Package]bool))
	made := map[string][]byte{"zz_generated.deepcopy.go": copying(t, pkgs)}
	resources := customResources(t, pkgs)
	explained(t, resources)
	all := []byte("# Made from api/v1alpha1 by go test ./api/v1alpha1 -rewrite.\napiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources:\n")
	for _, d := range resources {
		made[filepath.Join(definitions, d.Name+".yaml")] = definition(t, d)
		made[filepath.Join(charted, d.Name+".yaml")] = definition(t, d)
		all = fmt.Appendf(all, "  - %s.yaml\n", d.Name)
	}
	made[filepath.Join(definitions, "kustomization.yaml")] = all
	for path, want := range made {
		if *rewrite {
			if err := os.WriteFile(path, want, 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		got, err := os.ReadFile(path)
		if err != nil {
			t.Error(err)
		}
		if diff := cmp.Diff(string(want), string(got)); diff != "" {
			t.Errorf("%s is not what this package makes: run go test ./api/v1alpha1 -rewrite and review the change; -want +got:\n%s", path, diff)
		}
	}
	for _, folder := range []string{definitions, charted} {
		there, err := filepath.Glob(folder + "/*")
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range there {
			if made[path] == nil {
				t.Errorf("%s is made from no kind: delete it", path)
			}
		}
	}
}

// explained: kubectl explain has a text for every field of ours. Those of other packages bring theirs.
func explained(t *testing.T, resources []*apiextensions.CustomResourceDefinition) {
	t.Helper()
	var visit func(path string, s *apiextensions.JSONSchemaProps)
	visit = func(path string, s *apiextensions.JSONSchemaProps) {
		for name, field := range s.Properties {
			if field.Description == "" && (path != "" || name != "metadata") {
				t.Errorf("%s.%s has no text: give the field a comment", path, name)
			}
			visit(path+"."+name, &field)
		}
		if s.Items != nil {
			visit(path+"[]", s.Items.Schema)
		}
	}
	for _, d := range resources {
		visit("", d.Spec.Versions[0].Schema.OpenAPIV3Schema)
	}
}

// lighten leaves out of the sources how Kubernetes' types are coded for the wire: a quarter of the time, and nothing that a field is
// made of.
func lighten(p *loader.Package, seen map[*loader.Package]bool) {
	if seen[p] {
		return
	}
	seen[p] = true
	p.CompiledGoFiles = slices.DeleteFunc(p.CompiledGoFiles, func(file string) bool { return filepath.Base(file) == "generated.pb.go" })
	for _, below := range p.Imports() {
		lighten(below, seen)
	}
}

// roots are this package for a generator.
func roots(t *testing.T, pkgs []*loader.Package, g genall.Generator) genall.GenerationContext {
	t.Helper()
	registry := &markers.Registry{}
	if err := g.RegisterMarkers(registry); err != nil {
		t.Fatal(err)
	}
	checker := &loader.TypeChecker{}
	if filtered, ok := g.(genall.NeedsTypeChecking); ok {
		checker.NodeFilters = []loader.NodeFilter{filtered.CheckFilter()}
	}
	return genall.GenerationContext{Collector: &markers.Collector{Registry: registry}, Roots: pkgs, Checker: checker}
}

// complaints fails the test where the generator found something wrong with the source. Types are incomplete where a
// generator looks at some of them only, which is no fault.
func complaints(t *testing.T, pkgs []*loader.Package) {
	t.Helper()
	if loader.PrintErrors(pkgs, packages.TypeError) {
		t.Fatal("the generator complains of this package")
	}
}

// customResources makes the definition of every kind.
func customResources(t *testing.T, pkgs []*loader.Package) []*apiextensions.CustomResourceDefinition {
	t.Helper()
	c := roots(t, pkgs, crd.Generator{})
	// A global gateway's weights are fractions, as the reference has them.
	p := &crd.Parser{Collector: c.Collector, Checker: c.Checker, AllowDangerousTypes: true}
	crd.AddKnownTypes(p)
	p.NeedPackage(c.Roots[0])
	var out []*apiextensions.CustomResourceDefinition
	for _, k := range []schema.GroupKind{
		{Group: InferenceGroup, Kind: InferenceGatewayConfigKind},
		{Group: GatewayGroup, Kind: GatewayPolicyKind},
		{Group: GatewayGroup, Kind: EndpointsKind},
		{Group: GatewayGroup, Kind: GlobalGatewayKind},
	} {
		// The generator takes a package for one group; ours has kinds of two.
		p.GroupVersions[c.Roots[0]] = schema.GroupVersion{Group: k.Group, Version: Version}
		p.NeedCRDFor(k, nil)
		d := p.CustomResourceDefinitions[k]
		crd.FixTopLevelMetadata(d)
		tighten(d.Spec.Versions[0].Schema.OpenAPIV3Schema)
		out = append(out, &d)
	}
	complaints(t, c.Roots)
	return out
}

// tighten adds what markers cannot reach, which is what is inside types of other packages: a selector that no client
// could read and a variable without a name are refused by package config, too.
func tighten(s *apiextensions.JSONSchemaProps) {
	for name, field := range s.Properties {
		switch name {
		case "modelSelector":
			selector(&field)
		case "env":
			if field.Items != nil {
				key := field.Items.Schema.Properties["name"]
				key.MinLength = of[int64](1)
				field.Items.Schema.Properties["name"] = key
			}
		case "labels":
			labels(&field)
		}
		tighten(&field)
		s.Properties[name] = field
	}
	if s.Items != nil {
		tighten(s.Items.Schema)
	}
}

const (
	labelName  = `^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?([A-Za-z0-9][-A-Za-z0-9_.]{0,61})?[A-Za-z0-9]$`
	labelValue = `^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$`
)

// labels bounds a map of labels, but not its keys, which no schema reaches.
func labels(s *apiextensions.JSONSchemaProps) {
	s.MaxProperties = of[int64](MaxSelectorTerms)
	s.AdditionalProperties.Schema.MaxLength = of[int64](63)
	s.AdditionalProperties.Schema.Pattern = labelValue
}

// selector bounds a label selector.
func selector(s *apiextensions.JSONSchemaProps) {
	byLabel, byExpression := s.Properties["matchLabels"], s.Properties["matchExpressions"]
	labels(&byLabel)
	byLabel.XValidations = apiextensions.ValidationRules{{
		Rule:    "self.all(k, size(k) <= 317 && k.matches('" + strings.ReplaceAll(labelName, `\`, `\\`) + "'))",
		Message: "must have label names: at most 63 letters, digits, '-', '_' and '.', with an optional domain and '/' in front",
	}}
	s.Properties["matchLabels"] = byLabel
	byExpression.MaxItems = of[int64](MaxSelectorTerms)
	item := byExpression.Items.Schema
	key, operator, values := item.Properties["key"], item.Properties["operator"], item.Properties["values"]
	key.MaxLength, key.Pattern = of[int64](317), labelName
	for _, word := range []string{"In", "NotIn", "Exists", "DoesNotExist"} {
		operator.Enum = append(operator.Enum, apiextensions.JSON{Raw: []byte(`"` + word + `"`)})
	}
	values.MaxItems = of[int64](MaxSelectorTerms)
	values.Items.Schema.MaxLength, values.Items.Schema.Pattern = of[int64](63), labelValue
	item.Properties["key"], item.Properties["operator"], item.Properties["values"] = key, operator, values
	item.XValidations = apiextensions.ValidationRules{{
		Rule:    "self.operator in ['In', 'NotIn'] ? has(self.values) && size(self.values) > 0 : !has(self.values) || size(self.values) == 0",
		Message: "In and NotIn need at least one value, Exists and DoesNotExist take none",
	}}
	s.Properties["matchExpressions"] = byExpression
}

func of[T any](v T) *T { return &v }

// definition writes one for people and for Helm.
func definition(t *testing.T, d *apiextensions.CustomResourceDefinition) []byte {
	t.Helper()
	raw, err := yaml.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	var tree map[string]any
	if err := yaml.Unmarshal(raw, &tree); err != nil {
		t.Fatal(err)
	}
	delete(tree, "status")
	delete(tree["metadata"].(map[string]any), "creationTimestamp")
	if raw, err = yaml.Marshal(tree); err != nil {
		t.Fatal(err)
	}
	return append([]byte("# Made from api/v1alpha1 by go test ./api/v1alpha1 -rewrite: change the Go types.\n"), raw...)
}

// memory is where a generator writes.
type memory struct{ bytes.Buffer }

// Open is genall.OutputRule's.
func (m *memory) Open(*loader.Package, string) (io.WriteCloser, error) { return m, nil }

// Close is io.Closer's.
func (m *memory) Close() error { return nil }

// copying makes the code that copies values of this package.
func copying(t *testing.T, pkgs []*loader.Package) []byte {
	t.Helper()
	c, out := roots(t, pkgs, deepcopy.Generator{}), new(memory)
	c.OutputRule = out
	if err := (deepcopy.Generator{}).Generate(&c); err != nil {
		t.Fatal(err)
	}
	complaints(t, c.Roots)
	text := out.String()
	if !strings.Contains(text, "DeepCopyObject") {
		t.Fatal(fmt.Errorf("got no code that copies objects: %.200s", text))
	}
	return []byte(text)
}
