package config

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const podDocuments = `
apiVersion: inference.sagemaker.aws.amazon.com/v1alpha1
kind: InferenceGatewayConfig
metadata: {name: demo}
spec:
  bbr: {enabled: true}
  schedulers:
  - {name: llama, modelName: meta/llama, modelSelector: {matchLabels: {app: llama}}}
  - name: qwen
    modelName: qwen
    targetPort: 30000
    engineType: sglang
    modelSelector:
      matchLabels: {app: qwen}
      matchExpressions: [{key: tier, operator: NotIn, values: [canary]}]
`

const podEndpoints = `---
apiVersion: gateway.sluice.dev/v1alpha1
kind: Endpoints
metadata: {name: lab}
spec:
  endpoints: [{address: 10.0.0.1, labels: {app: llama}, drain: true}, {address: 10.9.9.9, labels: {app: llama}}]
`

func app(name string) map[string]string { return map[string]string{"app": name} }

// Pods are what entries of Endpoints are: chosen by labels, at the port of the scheduler, whose engine holds if it says so.
// An entry with the same address comes first. K30: a selector means what Kubernetes means by it, expressions and all.
func TestPodsAreEndpoints(t *testing.T) {
	docs, err := Read([]byte(podDocuments+podEndpoints), "gateway.yaml")
	if err != nil {
		t.Fatal(err)
	}
	canary := map[string]string{"app": "qwen", "tier": "canary"}
	c := docs.With(Pods{Namespace: "models", List: []Pod{
		{Name: "llama-0", UID: "a", Address: "10.0.0.1", Labels: app("llama")},
		{Name: "llama-1", UID: "b", Address: "10.0.0.2", Labels: app("llama"), GPU: "H100"},
		{Name: "qwen-0", UID: "c", Address: "fd00::1", Labels: app("qwen")},
		{Name: "qwen-1", UID: "d", Address: "10.0.0.4", Labels: canary},
		{Name: "database", UID: "e", Address: "10.0.0.5", Labels: app("database")},
		{Name: "llama-2", UID: "f", Address: "10.0.0.6", Labels: app("llama"), Ending: true},
		{Name: "llama-3", UID: "g", Address: "10.0.0.2", Labels: app("llama"), Ending: true}, // it had the address of llama-1 before
	}})
	want := [][]Endpoint{{
		{Address: "10.0.0.1", Port: 8000, Labels: app("llama"), Drain: true},
		{Address: "10.9.9.9", Port: 8000, Labels: app("llama")},
		{Address: "10.0.0.2", Port: 8000, Labels: app("llama"), Pod: "llama-1", UID: "b", GPU: "H100"},
		{Address: "10.0.0.6", Port: 8000, Labels: app("llama"), Pod: "llama-2", UID: "f", Drain: true},
	}, {
		{Address: "fd00::1", Port: 30000, Labels: app("qwen"), Engine: "sglang", Pod: "qwen-0", UID: "c"},
	}}
	if diff := cmp.Diff(want, [][]Endpoint{c.Pools[0].Endpoints, c.Pools[1].Endpoints}); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if len(c.Warnings) != 0 {
		t.Errorf("got warnings %v, want none", c.Warnings)
	}
	// Pods leave nothing behind in what the documents say.
	if diff := cmp.Diff(want[0][:2], docs.With(Pods{Namespace: "models", List: []Pod{}}).Pools[0].Endpoints); diff != "" {
		t.Errorf("without pods again: -want +got:\n%s", diff)
	}
}

// What nobody knows yet is no reason to warn; what is known to be missing is.
func TestPodsThatAreMissing(t *testing.T) {
	docs, err := Read([]byte(podDocuments), "gateway.yaml")
	if err != nil {
		t.Fatal(err)
	}
	f := func(pods []Pod, want ...string) {
		t.Helper()
		var got []string
		for _, n := range docs.With(Pods{Namespace: "models", List: pods}).Warnings {
			got = append(got, n.String())
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
	}
	none := func(i int, selector, model string) string {
		return fmt.Sprintf(`InferenceGatewayConfig "demo": spec.schedulers[%d].modelSelector: %s: selects no endpoint, so requests for %q are answered 503: compare it with the labels of the pods in namespace "models", and look whether those are ready`, i, selector, model)
	}
	const qwen = "app=qwen,tier notin (canary)"
	f(nil)
	f([]Pod{}, none(0, "app=llama", "meta/llama"), none(1, qwen, "qwen"))
	f([]Pod{{Name: "l", Address: "10.0.0.1", Labels: app("llama")}}, none(1, qwen, "qwen"))
	f([]Pod{{Name: "l", Address: "10.0.0.1", Labels: app("llama")}, {Name: "q", Address: "10.0.0.2", Labels: app("qwen"), Ending: true}},
		`InferenceGatewayConfig "demo": spec.schedulers[1].modelSelector: `+qwen+`: selects only endpoints that drain, so requests for "qwen" are answered 503`)
}

// What a pod says of itself is what its entry would say, but for what is none of its business; a text that can't be used is told
// once, and its pods are taken as if they said nothing.
func TestPodsSay(t *testing.T) {
	docs, err := Read([]byte(podDocuments), "gateway.yaml")
	if err != nil {
		t.Fatal(err)
	}
	f := func(says string, want Endpoint, warnings ...string) {
		t.Helper()
		want.Address, want.Labels, want.Pod, want.UID = "10.0.0.1", app("qwen"), "qwen-0", "a"
		if want.Port == 0 {
			want.Port = 30000
		}
		if want.Engine == "" {
			want.Engine = "sglang"
		}
		c := docs.With(Pods{Namespace: "models", List: []Pod{{Name: "qwen-0", UID: "a", Address: "10.0.0.1", Labels: app("qwen"), Says: says},
			{Name: "qwen-1", UID: "b", Address: "10.0.0.2", Labels: app("qwen"), Says: says}, {Name: "llama-0", Address: "10.0.0.3", Labels: app("llama")}}})
		if diff := cmp.Diff(want, c.Pools[1].Endpoints[0]); diff != "" {
			t.Errorf("%s: -want +got:\n%s", says, diff)
		}
		var got []string
		for _, n := range c.Warnings {
			got = append(got, strings.TrimPrefix(n.String(), `Pod "qwen-0": metadata.annotations[gateway.sluice.dev/endpoint]: is not used, here and at every pod that has the same: `))
		}
		if diff := cmp.Diff(warnings, got); diff != "" {
			t.Errorf("%s: -want +got:\n%s", says, diff)
		}
	}
	f("", Endpoint{})
	f("{}", Endpoint{})
	f("# nothing", Endpoint{})
	f("kvEvents: {}", Endpoint{KVEvents: KVEvents{Port: 5557, ReplayPort: 5558}})
	f("{engine: vllm, ranks: 8, firstRank: 8, kvEvents: {port: 6000, replayPort: 0, topic: kv}, metrics: {port: 9000, path: /stats}}",
		Endpoint{Engine: "vllm", Ranks: 8, FirstRank: 8, KVEvents: KVEvents{Port: 6000, Topic: "kv"}, MetricsPort: 9000, MetricsPath: "/stats"})
	const known = ": known here are drain, engine, firstRank, kvEvents, metrics, ranks"
	f("{apiKey: {file: /etc/sluice/tls/tls.key}, tls: {}}", Endpoint{},
		`strict decoding error: unknown field "apiKey"`+known+`; strict decoding error: unknown field "tls"`+known)
	f("{labels: {app: llama}}", Endpoint{}, `strict decoding error: unknown field "labels"`+known)
	f("{ranks: 0, metrics: {path: x}}", Endpoint{}, `ranks: Invalid value: 0: must be from 1 to 1024; metrics.path: Invalid value: "x": must begin with '/', such as /metrics`)
	f("[kvEvents]", Endpoint{}, "must be an object, such as {kvEvents: {}}, not a list")
	f("{", Endpoint{}, "cannot be read: line 1: did not find expected node content")
	drained := `InferenceGatewayConfig "demo": spec.schedulers[1].modelSelector: app=qwen,tier notin (canary): selects only endpoints that drain, so requests for "qwen" are answered 503`
	f("drain: true", Endpoint{Drain: true}, drained)
}

// Pods of two schedulers are one warning, however many they are.
func TestPodsOfTwoSchedulers(t *testing.T) {
	docs, err := Read([]byte(strings.ReplaceAll(podDocuments, "app: qwen", "app: llama")), "gateway.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var pods []Pod
	for i := range 3 {
		pods = append(pods, Pod{Name: fmt.Sprint("llama-", i), Address: fmt.Sprint("10.0.0.", i+1), Labels: app("llama")})
	}
	same, err := Read([]byte(strings.ReplaceAll(strings.ReplaceAll(podDocuments, "app: qwen", "app: llama"), "targetPort: 30000", "targetPort: 8000")), "gateway.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if got := docs.With(Pods{Namespace: "models", List: pods}).Warnings; len(got) != 0 {
		t.Errorf("got %v for different ports, want no warning", got)
	}
	got := same.With(Pods{Namespace: "models", List: pods}).Warnings
	const want = `InferenceGatewayConfig "demo": spec.schedulers: pods: are in the pools llama and qwen, and none of them counts what the others send there`
	if len(got) != 1 || got[0].String() != want {
		t.Errorf("got %v, want once %s", got, want)
	}
}

// Documents with pods, and without any, are what Parse makes of them, and its faults are theirs.
func TestReadIsParse(t *testing.T) {
	for _, path := range files(t, ".good.yaml") {
		text := readFile(t, path)
		want, err := Parse(text, path)
		if err != nil {
			t.Fatal(err)
		}
		docs, err := Read(text, path)
		if err != nil {
			t.Fatal(err)
		}
		got := docs.With(Pods{})
		want.Warnings, got.Warnings = nil, nil // which differ in whether it is known that there are no pods
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: -parsed +read:\n%s", path, diff)
		}
	}
	for _, path := range files(t, ".bad.yaml") {
		_, want := Parse(readFile(t, path), path)
		if _, err := Read(readFile(t, path), path); err == nil || err.Error() != want.Error() {
			t.Errorf("%s: got %v, want %v", path, err, want)
		}
	}
}

// FuzzRead: whatever the documents are, a pod changes nothing but endpoints and what is said of them.
func FuzzRead(f *testing.F) {
	f.Add(podDocuments+podEndpoints, "app", "llama", "kvEvents: {port: 1}")
	f.Add(gateway("", ""), "", "", "{ranks: 9999999999, apiKey: [")
	f.Fuzz(func(t *testing.T, text, key, value, says string) {
		docs, err := Read([]byte(text), "fuzz")
		if err != nil {
			return
		}
		pod := Pod{Name: "p", UID: "u", Address: "10.0.0.1", Labels: map[string]string{key: value}, Says: says}
		got := docs.With(Pods{Namespace: "models", List: []Pod{pod}})
		check(t, got)
		want := docs.With(Pods{Namespace: "models"})
		for _, c := range []*Config{got, want} {
			c.Warnings = nil
			for i := range c.Pools {
				c.Pools[i].Endpoints = nil
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("-without +with a pod:\n%s", diff)
		}
	})
}

// BenchmarkWith is what a change among the pods costs before the fleet hears of it.
func BenchmarkWith(b *testing.B) {
	for _, size := range []struct{ schedulers, pods int }{{1, 100}, {1, 1000}, {100, 1000}} {
		var text strings.Builder
		text.WriteString("{apiVersion: inference.sagemaker.aws.amazon.com/v1alpha1, kind: InferenceGatewayConfig, metadata: {name: g}, spec: {bbr: {enabled: true}, schedulers: [\n")
		for i := range size.schedulers {
			fmt.Fprintf(&text, "{name: s-%d, modelName: m-%d, modelSelector: {matchLabels: {app: m-%d}}},\n", i, i, i)
		}
		text.WriteString("]}}")
		docs, err := Read([]byte(text.String()), "bench")
		if err != nil {
			b.Fatal(err)
		}
		pods := Pods{Namespace: "models"}
		for i := range size.pods {
			pods.List = append(pods.List, Pod{Name: fmt.Sprint("pod-", i), UID: fmt.Sprint(i), Address: fmt.Sprintf("10.0.%d.%d", i/250, i%250),
				Labels: map[string]string{"app": fmt.Sprint("m-", i%size.schedulers), "pod-template-hash": "abc", "controller-revision-hash": "def"}})
		}
		b.Run(fmt.Sprintf("schedulers=%d/pods=%d", size.schedulers, size.pods), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				docs.With(pods)
			}
		})
	}
}

// Annotations of ours are told by their prefix; what is wrong with one is said with what would be right, and such a one drains nothing.
func TestAnnotation(t *testing.T) {
	f := func(key, value string, ours bool, want ...string) {
		t.Helper()
		if got := Ours(key); got != ours {
			t.Errorf("%s: got ours %t, want %t", key, got, ours)
		}
		got := ""
		if ours {
			var drains bool
			drains, got = Annotation(key, value)
			if want := value == "{drain: true}"; drains != want {
				t.Errorf("%s %q: got drains %t, want %t", key, value, drains, want)
			}
		}
		for _, w := range want {
			if !strings.Contains(got, w) {
				t.Errorf("%s %q: got %q, want %q in it", key, value, got, w)
			}
		}
		if len(want) == 0 && got != "" {
			t.Errorf("%s %q: got %q, want nothing", key, value, got)
		}
	}
	f(AnnotationEndpoint, "{kvEvents: {}}", true)
	f(AnnotationEndpoint, "", true)
	f(AnnotationEndpoint, "{drain: true}", true)
	f(AnnotationEndpoint, "{drain: false}", true)
	f(AnnotationEndpoint, "{drain: true, ranks: -1}", true, "is not used: ranks")
	f(AnnotationEndpoint, "{kvEvent: {}}", true, "is not used: ", `unknown field "kvEvent"`, "kvEvents, ranks and firstRank")
	f(AnnotationEndpoint, "{ranks: -1}", true, "is not used: ranks: Invalid value: -1")
	f(AnnotationEndpoint, "yes", true, "must be an object, such as {kvEvents: {}}, not")
	f("gateway.sluice.dev/endpoints", "{kvEvents: {}}", true, "is not read: write "+AnnotationEndpoint)
	f("sluice.dev/endpoint", "", true, "is not read: write "+AnnotationEndpoint)
	f("example.com/endpoint", "{", false)
	f("gpu", "H100", false)
	f("notsluice.dev/endpoint", "{", false)
}
