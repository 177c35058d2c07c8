package config

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/sluice-gateway/sluice/api/v1alpha1"
	"github.com/sluice-gateway/sluice/api/v1alpha2"
	"github.com/sluice-gateway/sluice/route"
)

// TestParse holds the values of a whole configuration, which other rooms read.
func TestParse(t *testing.T) {
	c, err := Parse(readFile(t, "testdata/two-models.good.yaml"), "lab.yaml")
	if err != nil {
		t.Fatal(err)
	}
	minuteAndHalf, none := 90*time.Second, time.Duration(0)
	want := &Config{
		Source:       "lab.yaml",
		Name:         "lab",
		SelectModel:  true,
		MaxBodyBytes: 268435456,
		Pools: []Pool{{
			Scheduler: "llama-8b", Model: "meta-llama/Llama-3.1-8B-Instruct", Adapters: []string{"sql", "chat"},
			Selector: "app=llama", AppProtocol: HTTP, EngineType: "vllm", RouteTimeout: &minuteAndHalf,
			Endpoints: []Endpoint{
				{Address: "10.0.0.1", Port: 8000, Labels: map[string]string{"app": "llama", "gpu": "H100"}},
				{Address: "10.0.0.2", Port: 8000, Drain: true, Labels: map[string]string{"app": "llama", "gpu": "A10G"}},
				{Address: "fd00::1", Port: 8001, Engine: "llamacpp", Labels: map[string]string{"app": "llama", "gpu": "A10G"}},
			},
		}, {
			Scheduler: "qwen-32b", Model: "Qwen/Qwen3-32B", Selector: "app in (qwen),tier notin (canary)",
			AppProtocol: HTTP, EngineType: "sglang", RouteTimeout: &none,
			Weights: map[string]float64{"queue": 3, "kvCache": 2, "prefix": 0},
			Endpoints: []Endpoint{{
				Address: "qwen.internal", Port: 30000, Engine: "sglang",
				Labels:      map[string]string{"app": "qwen", "gpu": "H100"},
				MetricsPath: "/metrics", MetricsPort: 30001,
				TLS:    &TLS{CAFile: "/etc/sluice/ca.pem", ServerName: "qwen"},
				APIKey: APIKey{Env: "QWEN_KEY"},
			}},
		}},
	}
	if diff := cmp.Diff(want, c); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if err := c.Refusal(); err != nil {
		t.Errorf("got refusal %v, want none", err)
	}
	// E42: the address to dial has brackets, the address itself has none.
	if got := c.Pools[0].Endpoints[2].HostPort(); got != "[fd00::1]:8001" {
		t.Errorf("got %s, want [fd00::1]:8001", got)
	}
}

// gateway is a document with one scheduler, and spec fields of the caller's.
func gateway(spec, scheduler string) string {
	return fmt.Sprintf(`{apiVersion: inference.sagemaker.aws.amazon.com/v1alpha1, kind: InferenceGatewayConfig, metadata: {name: g},
 spec: {bbr: {enabled: true}, %s schedulers: [{name: s, modelName: m, modelSelector: {}, %s}]}}`, spec, scheduler)
}

// TestRewrites holds the order of rules, which other rooms read: the oldest document's, then the younger's, then those that were
// created nowhere.
func TestRewrites(t *testing.T) {
	c, err := Parse(readFile(t, "testdata/rewrites.good.yaml"), "lab.yaml")
	if err != nil {
		t.Fatal(err)
	}
	one := func(model string) []RewriteTarget { return []RewriteTarget{{model, 1}} }
	want := []Rewrite{
		{"oldest", "llama", []RewriteRule{{[]string{"food-review", "reviews"}, []RewriteTarget{{"ski-resorts", 90}, {"qwen", 10}}}}},
		{"younger", "llama", []RewriteRule{{[]string{"food-review"}, one("never")}, {nil, one("all-others")}}},
		{"written-by-hand", "llama", []RewriteRule{{nil, one("sql")}, {[]string{"food-review"}, one("never")}, {[]string{"qwen"}, one("never")}, {[]string{"llama"}, nil}}},
	}
	if diff := cmp.Diff(want, c.Rewrites); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if diff := cmp.Diff([]string{"sql", "ski-resorts", "movie-critique"}, c.Pools[0].Adapters); diff != "" {
		t.Errorf("adapters: -want +got:\n%s", diff)
	}
}

// TestRefusal: what would serve by other rules than asked must not start, and says which field.
func TestRefusal(t *testing.T) {
	f := func(spec, scheduler, field string) {
		t.Helper()
		c, err := Parse([]byte(gateway(spec, scheduler)), "x.yaml")
		if err != nil {
			t.Fatal(err)
		}
		err = c.Refusal()
		if err == nil || !strings.Contains(err.Error(), field) || !strings.HasPrefix(err.Error(), `cannot serve "x.yaml": `) {
			t.Errorf("%s%s: got %v, want a refusal that names %s", spec, scheduler, err, field)
		}
	}
	f("tls: {},", "", "spec.tls")
	f("tls: {acmArn: arn},", "", "spec.tls")
	f("auth: {jwt: {provider: {name: p, issuer: 'https://i', remoteJWKS: {uri: 'https://k'}, audiences: [a]}}},", "", "spec.auth")
	f("", "configMapRef: {name: plugins}", "spec.schedulers[0].configMapRef")
}

// TestEveryScorerHasItsField: the table has a row for every scorer, and the row's field is the one that documents call
// like the scorer.
func TestEveryScorerHasItsField(t *testing.T) {
	var names []string
	for _, s := range scorers {
		names = append(names, s.name)
		w, one := new(v1alpha1.Weights), int32(1)
		*s.weight(w) = &one
		text, err := json.Marshal(w)
		if want := `{"` + s.name + `":1}`; err != nil || string(text) != want {
			t.Errorf("got %s, %v, want %s", text, err, want)
		}
	}
	names = append(names, route.ScorerSessionAffinity) // a GatewayPolicy has it
	want := route.ScorerNames()
	slices.Sort(names)
	slices.Sort(want)
	if diff := cmp.Diff(want, names); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// TestObjects: objects of any kind are read, each with its place; of those that Parse reads it is said what it would say, and
// nothing of another group's that has the same kind.
func TestObjects(t *testing.T) {
	got := Objects([]byte(`apiVersion: v1
kind: List
items:
- {apiVersion: v1, kind: Endpoints, metadata: {name: core, uid: u}, subsets: []}
- {apiVersion: gateway.sluice.dev/v1alpha1, kind: Endpoints, metadata: {name: none}, spec: {endpoints: []}}
---
{apiVersion: gateway.sluice.dev/v9, kind: Endpoints, metadata: {name: later}, spec: {endpoints: [{address: 10.0.0.1}]}}
---
{apiVersion: example.com/v1, kind: Nothing, metadata: {name: other}}
---
- a list
`))
	var lines []string
	for i := range got {
		o := &got[i]
		lines = append(lines, fmt.Sprintf("%s: %s %s", o.Place(), o.Kind, o.Name))
		for _, f := range slices.Concat(o.Unread, o.Faults()) {
			lines = append(lines, "  "+f.Text)
		}
	}
	want := []string{
		"document 1, items[0]: Endpoints core",
		"document 1, items[1]: Endpoints none", "  spec.endpoints: Required value: at least one address, such as [{address: 10.0.0.1:8000}]",
		"document 2: Endpoints later", `  apiVersion: Invalid value: "gateway.sluice.dev/v9": Endpoints is read in gateway.sluice.dev/v1alpha1`,
		"document 3: Nothing other",
		"document 4:  ", "  must be an object with apiVersion, kind, metadata and spec, not a list",
	}
	if diff := cmp.Diff(want, lines); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// TestWeights: absent weights mean latency, and a block that is there is completed.
func TestWeights(t *testing.T) {
	f := func(scheduler string, want map[string]float64) {
		t.Helper()
		c, err := Parse([]byte(gateway("", scheduler)), "x.yaml")
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, c.Pools[0].Weights); diff != "" {
			t.Errorf("%s: -want +got:\n%s", scheduler, diff)
		}
	}
	f("", nil)
	f("weights: null", nil)
	f("weights: {}", route.DefaultWeights())
	f("weights: {prefix: 0, queue: 3, kvCache: 2}", map[string]float64{"queue": 3, "kvCache": 2, "prefix": 0})
	f("weights: {lru: 1, loraAffinity: 2, runningRequests: 3, predictedLatency: 4, queue: 5}", map[string]float64{
		"queue": 5, "kvCache": 2, "prefix": 3, "lru": 1, "loraAffinity": 2, "runningRequests": 3, "predictedLatency": 4})
}

// TestDefaultBackend: a name and a port to resolve, 8000 where none is given.
func TestDefaultBackend(t *testing.T) {
	f := func(backend, want string) {
		t.Helper()
		c, err := Parse([]byte(strings.Replace(gateway("", ""), "enabled: true", "enabled: true, defaultBackend: "+backend, 1)), "x.yaml")
		if err != nil {
			t.Fatal(err)
		}
		if got := c.Default.Endpoints[0].HostPort(); got != want {
			t.Errorf("%s: got %s, want %s", backend, got, want)
		}
	}
	f("{name: fallback}", "fallback:8000")
	f("{name: fallback.other.svc, port: 80}", "fallback.other.svc:80")
}

// TestSizes checks the bounds of lists and names on both sides.
func TestSizes(t *testing.T) {
	provider := func(rest string) string {
		return "auth: {jwt: {provider: {name: p, issuer: 'https://i', remoteJWKS: {uri: 'https://k'}, " + rest + "}}},"
	}
	list := func(n int, item string) string { return "[" + strings.Repeat(item+", ", n-1) + item + "]" }
	numbered := func(n int) string {
		var s []string
		for i := range n {
			s = append(s, fmt.Sprintf("a%d", i))
		}
		return "[" + strings.Join(s, ", ") + "]"
	}
	x := func(n int) string { return strings.Repeat("é", n) } // characters, not bytes
	f := func(spec, scheduler, want string) {
		t.Helper()
		_, err := Parse([]byte(gateway(spec, scheduler)), "x.yaml")
		switch {
		case want == "" && err != nil:
			t.Errorf("got %v, want none", err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("got %v, want %q", err, want)
		}
	}
	f("", "loraAdapters: "+numbered(50), "")
	f("", "loraAdapters: "+numbered(51), "spec.schedulers[0].loraAdapters: Invalid value: has 51 entries, at most 50 are allowed")
	f("", "loraAdapters: ["+x(253)+"]", "")
	f("", "loraAdapters: ["+x(254)+"]", "spec.schedulers[0].loraAdapters[0]: Invalid value: is 254 characters long, at most 253 are allowed")
	f(provider("audiences: "+list(8, "a")), "", "")
	f(provider("audiences: "+list(9, "a")), "", "audiences: Invalid value: has 9 entries, at most 8 are allowed")
	f(provider("requiredClaims: "+list(16, "{name: c, values: [v]}")), "", "")
	f(provider("requiredClaims: "+list(17, "{name: c, values: [v]}")), "", "requiredClaims: Invalid value: has 17 entries, at most 16 are allowed")
	f(provider("requiredClaims: [{name: c, values: "+list(128, "v")+"}]"), "", "")
	f(provider("requiredClaims: [{name: c, values: "+list(129, "v")+"}]"), "", "requiredClaims[0].values: Invalid value: has 129 entries, at most 128 are allowed")
	f(provider("requiredClaims: [{name: c, values: ["+x(1024)+"]}]"), "", "")
	f(provider("requiredClaims: [{name: c, values: ["+x(1025)+"]}]"), "", "requiredClaims[0].values[0]: Invalid value: is 1025 characters long, at most 1024 are allowed")

	schedulers := func(n int) string {
		var s []string
		for i := range n {
			s = append(s, fmt.Sprintf("{name: s%d, modelName: m%d, modelSelector: {}}", i, i))
		}
		return strings.Replace(gateway("", ""), "schedulers: [", "schedulers: ["+strings.Join(s, ", ")+", ", 1)
	}
	if _, err := Parse([]byte(schedulers(99)), "x.yaml"); err != nil {
		t.Error(err)
	}
	if _, err := Parse([]byte(schedulers(100)), "x.yaml"); err == nil || !strings.Contains(err.Error(), "spec.schedulers: Invalid value: has 101 entries, at most 100 are allowed") {
		t.Errorf("got %v, want the bound of 100 schedulers", err)
	}
	long := func(n int) error {
		_, err := Parse([]byte(strings.Replace(gateway("", ""), "modelName: m,", "modelName: "+x(n)+",", 1)), "x.yaml")
		return err
	}
	if err := long(253); err != nil {
		t.Error(err)
	}
	if err := long(254); err == nil || !strings.Contains(err.Error(), "spec.schedulers[0].modelName: Invalid value: is 254 characters long, at most 253 are allowed") {
		t.Errorf("got %v, want the bound of 253 characters", err)
	}
}

// TestUnknownFieldsAsTheAPIServerSays holds the grammar of unknown fields against the decoder that API servers use.
func TestUnknownFieldsAsTheAPIServerSays(t *testing.T) {
	doc := gateway("banana: {a: 1}, podDefaults: {affinity: {nodeAfinity: {}}},", "weights: {kvcache: 1}, modelname: x, envFrom: [{secretRef: {nam: x}}]")
	raw, err := yaml.YAMLToJSON([]byte(doc))
	if err != nil {
		t.Fatal(err)
	}
	strict, err := kjson.UnmarshalStrict(raw, &v1alpha1.InferenceGatewayConfig{})
	if err != nil || len(strict) == 0 {
		t.Fatalf("got %v and %v, want strict errors", strict, err)
	}
	_, err = Parse([]byte(doc), "x.yaml")
	for _, want := range strict {
		if err == nil || !strings.Contains(err.Error(), "strict decoding error: "+want.Error()) {
			t.Errorf("got %v, want %q in it", err, want)
		}
	}
	if got := strings.Count(err.Error(), "strict decoding error"); got != len(strict) {
		t.Errorf("got %d unknown fields, want %d: %v", got, len(strict), err)
	}
}

// TestFaultsReadWell holds the whole text of an error once.
func TestFaultsReadWell(t *testing.T) {
	_, err := Parse([]byte(gateway("banana: 1,", "targetPort: 0")), "lab.yaml")
	want := `cannot use "lab.yaml": 2 faults
  document 1 (InferenceGatewayConfig "g"): strict decoding error: unknown field "spec.banana": known here are auth, bbr, observability, podDefaults, schedulers, tls
  document 1 (InferenceGatewayConfig "g"): spec.schedulers[0].targetPort: Invalid value: 0: must be from 1 to 65535`
	if err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

// TestNoKeyIsShown: whatever is wrong around a key, the key is not in the text.
func TestNoKeyIsShown(t *testing.T) {
	for _, apiKey := range []string{"sk-secret", "{env: sk-secret}", "{env: [sk-secret]}", "[sk-secret]", "{value: sk-secret}", "{env: sk-secret, file: f}"} {
		doc := "{apiVersion: gateway.sluice.dev/v1alpha1, kind: Endpoints, metadata: {name: e}, spec: {endpoints: [{address: a, apiKey: " + apiKey + "}]}}"
		_, err := Parse([]byte(doc), "x.yaml")
		if err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: got %v, want a fault without the key", apiKey, err)
		}
	}
}

// FuzzParse: no text makes Parse panic, and what parses means the same when it is written out again. Run it with
// -fuzzminimizetime=10x: maps are walked in another order each time, so that the fuzzer tries in vain to make its
// inputs shorter.
func FuzzParse(f *testing.F) {
	for _, ending := range []string{"two-models.good", "one-model.good", "everything.good", "rewrites.good", "rewrites.bad", "objectives.good", "objectives.bad", "adapters.bad", "wrong-types.bad", "duplicate-keys.bad", "not-documents.bad", "addresses.bad"} {
		f.Add(string(readFile(f, "testdata/"+ending+".yaml")))
	}
	f.Add("---\n---\xef\xbb\xbf{}\r\n--- {a: &a [*a]}\n...\n")
	f.Fuzz(func(t *testing.T, text string) {
		c, err := Parse([]byte(text), "fuzz")
		if err != nil {
			if _, isFaults := err.(*Faults); !isFaults || err.Error() == "" {
				t.Fatalf("got %T %v, want faults", err, err)
			}
			return
		}
		check(t, c)
		again, err := Parse(written(t, text), "fuzz")
		if err != nil {
			t.Fatalf("written out again: %v", err)
		}
		if diff := cmp.Diff(c, again); diff != "" {
			t.Errorf("written out again (-first +second):\n%s", diff)
		}
	})
}

// check holds what Config promises of itself.
func check(t *testing.T, c *Config) {
	t.Helper()
	if err := c.Explain(&strings.Builder{}); err != nil {
		t.Error(err)
	}
	if c.MaxBodyBytes <= 0 || len(c.Pools) == 0 || !c.SelectModel && len(c.Pools) != 1 {
		t.Errorf("got body limit %d and %d pools", c.MaxBodyBytes, len(c.Pools))
	}
	checkRewrites(t, c)
	names := map[string]bool{}
	for _, p := range c.Pools {
		for _, n := range append([]string{p.Model}, p.Adapters...) {
			if n == "" || names[n] {
				t.Errorf("name %q is empty or means two pools", n)
			}
			names[n] = true
		}
		for _, e := range p.Endpoints {
			if host, port, err := address(e.HostPort()); err != nil || host != e.Address || port != e.Port {
				t.Errorf("%s reads as %q, %d, %v", e.HostPort(), host, port, err)
			}
		}
	}
}

// checkRewrites holds what Config promises of its rules.
func checkRewrites(t *testing.T, c *Config) {
	t.Helper()
	has := func(scheduler string) bool {
		return slices.ContainsFunc(c.Pools, func(p Pool) bool { return p.Scheduler == scheduler })
	}
	for _, w := range c.Rewrites {
		for _, r := range w.Rules {
			for _, x := range r.Targets {
				if !has(w.Scheduler) || x.Weight < 1 || x.Model == "" || slices.Contains(r.Models, "") {
					t.Errorf("got the rule %+v of %s for scheduler %q", r, w.Name, w.Scheduler)
				}
			}
		}
	}
}

// written makes YAML of a text's documents after they have been read.
func written(t *testing.T, text string) []byte {
	t.Helper()
	var out []byte
	add := func(v any) {
		raw, err := yaml.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		out = append(append(out, "---\n"...), raw...)
	}
	for _, d := range read([]byte(text)) {
		switch d.kind {
		case v1alpha1.EndpointsKind:
			add(decode[v1alpha1.Endpoints](d))
		case v1alpha1.GatewayPolicyKind:
			add(decode[v1alpha1.GatewayPolicy](d))
		case v1alpha2.InferenceModelRewriteKind:
			add(decode[v1alpha2.InferenceModelRewrite](d))
		case v1alpha2.InferenceObjectiveKind:
			add(decode[v1alpha2.InferenceObjective](d))
		case configMapKind:
			add(decode[configMap](d))
		default:
			add(decode[v1alpha1.InferenceGatewayConfig](d))
		}
	}
	return out
}
