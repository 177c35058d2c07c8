package translate

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/sluice-gateway/sluice/api/v1alpha1"
	"github.com/sluice-gateway/sluice/api/v1alpha2"
	"github.com/sluice-gateway/sluice/config"
)

var rewrite = flag.Bool("rewrite", false, "write the plans instead of comparing them")

// compared is the line of a case that says which other case its plan is compared with, so that a plan shows what the
// case is about and nothing else.
var compared = regexp.MustCompile(`(?m)^# compared with ([a-z0-9-]+)$`)

// read is a case: the configuration, and everything else in the Context.
func read(t *testing.T, name string) (config *v1alpha1.InferenceGatewayConfig, ctx *Context, with string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name+".in.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	config, ctx = new(v1alpha1.InferenceGatewayConfig), new(Context)
	var policies []v1alpha1.GatewayPolicy
	var adapters []corev1.ConfigMap
	var rewrites []v1alpha2.InferenceModelRewrite
	var objectives []v1alpha2.InferenceObjective
	var lists []v1alpha1.Endpoints
	for _, doc := range bytes.Split(text, []byte("\n---\n")) {
		var kind struct{ Kind string }
		if err := yaml.Unmarshal(doc, &kind); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		switch kind.Kind {
		case "InferenceGatewayConfig":
			err = yaml.UnmarshalStrict(doc, config)
		case "GatewayPolicy":
			policies = append(policies, v1alpha1.GatewayPolicy{})
			err = yaml.UnmarshalStrict(doc, &policies[len(policies)-1])
		case "ConfigMap":
			adapters = append(adapters, corev1.ConfigMap{})
			err = yaml.UnmarshalStrict(doc, &adapters[len(adapters)-1])
		case "InferenceModelRewrite":
			rewrites = append(rewrites, v1alpha2.InferenceModelRewrite{})
			err = yaml.UnmarshalStrict(doc, &rewrites[len(rewrites)-1])
		case "InferenceObjective":
			objectives = append(objectives, v1alpha2.InferenceObjective{})
			err = yaml.UnmarshalStrict(doc, &objectives[len(objectives)-1])
		case "Endpoints":
			lists = append(lists, v1alpha1.Endpoints{})
			err = yaml.UnmarshalStrict(doc, &lists[len(lists)-1])
		default:
			err = yaml.UnmarshalStrict(doc, ctx)
		}
		if err != nil {
			t.Fatalf("%s: %v in\n%s", name, err, doc)
		}
	}
	ctx.Definitions = known(ctx.Definitions)
	ctx.Policies, ctx.Endpoints, ctx.Adapters, ctx.Rewrites, ctx.Objectives = policies, lists, adapters, rewrites, objectives
	if m := compared.FindSubmatch(text); m != nil {
		with = string(m[1])
	}
	return config, ctx, with
}

// known are the kinds that an API server knows in a case: the usual ones, those that it names besides, and not those that
// it names with a minus.
func known(named []string) []string {
	list := []string{"Gateway.gateway.networking.k8s.io/v1", "HTTPRoute.gateway.networking.k8s.io/v1", "BackendTLSPolicy.gateway.networking.k8s.io/v1",
		"ReferenceGrant.gateway.networking.k8s.io/v1beta1", "InferencePool.inference.networking.k8s.io/v1"}
	for _, kind := range []string{"EnvoyProxy", "EnvoyExtensionPolicy", "SecurityPolicy", "ClientTrafficPolicy", "BackendTrafficPolicy", "HTTPRouteFilter"} {
		list = append(list, kind+".gateway.envoyproxy.io/v1alpha1")
	}
	for _, name := range named {
		if less, minus := strings.CutPrefix(name, "-"); minus {
			list = slices.DeleteFunc(list, func(kind string) bool { return kind == less })
			continue
		}
		list = append(list, name)
	}
	return list
}

func build(t *testing.T, name string) (plan *Plan, with string) {
	t.Helper()
	config, ctx, with := read(t, name)
	before := fmt.Sprintf("%+v %+v", config, ctx)
	plan, err := Build(config, ctx)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	if after := fmt.Sprintf("%+v %+v", config, ctx); before != after {
		t.Errorf("%s: Build wrote to what it was given", name)
	}
	return plan, with
}

func key(u *unstructured.Unstructured) string {
	return u.GetKind() + " " + u.GetNamespace() + "/" + u.GetName()
}

// cases are the names of testdata.
func cases(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("testdata/*.in.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal("no cases", err)
	}
	for i := range files {
		files[i] = strings.TrimSuffix(filepath.Base(files[i]), ".in.yaml")
	}
	return files
}

// written is a plan as its golden file has it: of objects that another case has, too, only what is different.
func written(t *testing.T, plan *Plan, with string) string {
	t.Helper()
	base := make(map[string]*unstructured.Unstructured)
	var out strings.Builder
	if with != "" {
		other, _ := build(t, with)
		for _, u := range other.Objects {
			base[key(u)] = u
		}
		fmt.Fprintf(&out, "# As in %s, but for what follows: of objects that are there, too, only what is different, null for what is gone.\n", with)
	}
	doc := func(o any) {
		text, err := yaml.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&out, "---\n%s", text)
	}
	for _, u := range plan.Objects {
		same, there := base[key(u)]
		delete(base, key(u))
		switch {
		case !there:
			doc(u.Object)
		case !cmp.Equal(u, same):
			doc(map[string]any{"changed": key(u), "to": different(same.Object, u.Object)})
		}
	}
	gone := make([]string, 0, len(base))
	for k := range base {
		gone = append(gone, k)
	}
	slices.Sort(gone)
	for _, k := range gone {
		fmt.Fprintf(&out, "# Gone: %s\n", k)
	}
	doc(map[string]any{"certificates": plan.Certificates, "status": said(plan)})
	return out.String()
}

// different is what an object has and another has not, or has otherwise.
func different(from, to map[string]any) map[string]any {
	out := make(map[string]any)
	for k, v := range to {
		was, there := from[k]
		if cmp.Equal(was, v) {
			continue
		}
		one, listed := v.([]any)
		before, listedBefore := was.([]any)
		if listed && listedBefore && len(one) == 1 && len(before) == 1 {
			inner, ok := one[0].(map[string]any)
			if earlier, same := before[0].(map[string]any); ok && same {
				out[k] = []any{different(earlier, inner)}
				continue
			}
		}
		inner, nested := v.(map[string]any)
		earlier, nestedBefore := was.(map[string]any)
		if there && nested && nestedBefore {
			v = different(earlier, inner)
		}
		out[k] = v
	}
	for k := range from {
		if _, there := to[k]; !there {
			out[k] = nil
		}
	}
	return out
}

// said is what a plan says of the configuration and of policies, a line for each condition.
func said(plan *Plan) map[string]any {
	lines := func(list []metav1.Condition) (out []string) {
		for _, c := range list {
			out = append(out, fmt.Sprintf("%s %s %s (%d): %s", c.Type, c.Status, c.Reason, c.ObservedGeneration, c.Message))
		}
		return out
	}
	out := map[string]any{"observedGeneration": plan.Status.ObservedGeneration, "conditions": lines(plan.Status.Conditions)}
	if plan.Status.TLS != nil {
		out["tls"] = plan.Status.TLS
	}
	for _, s := range plan.Status.Schedulers {
		out["scheduler "+s.Name] = append([]string{fmt.Sprintf("%s %s", s.RolloutState, s.CurrentScheduler)}, lines(s.Conditions)...)
	}
	for _, p := range plan.Policies {
		out["policy "+p.Name] = lines(p.Status.Conditions)
	}
	return out
}

func TestPlans(t *testing.T) {
	names := cases(t)
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			plan, with := build(t, name)
			got := written(t, plan, with)
			file := filepath.Join("testdata", name+".out.yaml")
			if *rewrite {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(got, "\n")); diff != "" {
				t.Errorf("run go test ./translate -rewrite and review the change; -want +got:\n%s", diff)
			}
		})
	}
	outs, err := filepath.Glob("testdata/*.out.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, out := range outs {
		if name := strings.TrimSuffix(filepath.Base(out), ".out.yaml"); !slices.Contains(names, name) {
			t.Errorf("%s belongs to no case: delete it", out)
		}
	}
}

// Whatever a plan's pods are given to read, package config takes, and nothing in it is said to have no effect: it is what
// the process does.
func TestFilesAreTaken(t *testing.T) {
	files := 0
	for _, name := range cases(t) {
		plan, _ := build(t, name)
		for _, u := range plan.Objects {
			text, _, _ := unstructured.NestedString(u.Object, "data", fileName)
			if u.GetKind() != "ConfigMap" || text == "" {
				continue
			}
			files++
			docs, err := config.Read([]byte(text), u.GetName())
			if err != nil {
				t.Errorf("%s: %s: %v", name, key(u), err)
				continue
			}
			c := docs.With(config.Pods{})
			c.NotHonoured = slices.DeleteFunc(c.NotHonoured, func(n config.Notice) bool { return n.Path == "spec.priority" }) // for want of queues
			if len(c.NotHonoured) > 0 {
				t.Errorf("%s: %s: got %v, want everything honoured", name, key(u), c.NotHonoured)
			}
		}
	}
	if files == 0 {
		t.Error("got no file")
	}
}

// A file that no ConfigMap can hold is said (K23); it is not cut, so that the API server refuses it and the one before stays.
func TestFileThatIsTooLarge(t *testing.T) {
	f := func(adapters int, accepted metav1.ConditionStatus, words string) {
		t.Helper()
		config, ctx, _ := read(t, "fused")
		var list strings.Builder
		for i := range adapters {
			fmt.Fprintf(&list, "- %0250d\n", i)
		}
		ctx.Adapters = []corev1.ConfigMap{{ObjectMeta: metav1.ObjectMeta{Name: "many"}, Data: map[string]string{"baseModel": config.Spec.Schedulers[0].ModelName, "adapters": list.String()}}}
		plan, err := Build(config, ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range plan.Status.Conditions {
			if c.Type == v1alpha1.ConditionAccepted && (c.Status != accepted || !strings.Contains(c.Message, words)) {
				t.Errorf("%d adapters: got %+v, want %s with %q", adapters, c, accepted, words)
			}
		}
	}
	f(3900, metav1.ConditionTrue, "")
	f(4000, metav1.ConditionFalse, "a ConfigMap takes 1024000: list fewer adapters or rules, or use several gateways")
}

// Every field of the document stands in some case, so that the folder is the list of what each means.
func TestEveryFieldHasACase(t *testing.T) {
	var all strings.Builder
	for _, name := range cases(t) {
		text, err := os.ReadFile(filepath.Join("testdata", name+".in.yaml"))
		if err != nil {
			t.Fatal(err)
		}
		all.Write(text)
	}
	source, err := os.ReadFile("../api/v1alpha1/inferencegatewayconfig.go")
	if err != nil {
		t.Fatal(err)
	}
	spec, _, _ := strings.Cut(string(source), "// Condition types of")
	fields := regexp.MustCompile("`json:\"([a-zA-Z0-9]+)").FindAllStringSubmatch(spec, -1)
	if len(fields) < 50 {
		t.Fatalf("got %d fields", len(fields))
	}
	for _, f := range fields {
		if slices.Contains([]string{"metadata", "items", "status"}, f[1]) {
			continue
		}
		if !regexp.MustCompile(`\b` + f[1] + `:`).MatchString(all.String()) {
			t.Errorf("no case has the field %s", f[1])
		}
	}
}

// A plan depends on nothing but its arguments.
func TestEqualArgumentsEqualPlans(t *testing.T) {
	for _, name := range cases(t) {
		first, _ := build(t, name)
		second, _ := build(t, name)
		if diff := cmp.Diff(first, second); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

// Of what clients send, the headers that only a gateway may send are removed, and that which selects the model stays.
func TestHeadersOfClients(t *testing.T) {
	f := forClients()
	removed := func(name string) bool {
		return slices.Contains(f.Remove, name) || slices.ContainsFunc(f.RemoveOnMatch, func(m stringMatch) bool {
			if m.Type == "Prefix" {
				return strings.HasPrefix(name, m.Value)
			}
			return regexp.MustCompile("^(" + m.Value + ")$").MatchString(name)
		})
	}
	for name, want := range map[string]bool{
		"x-gateway-model-name": false, "authorization": false, "x-request-id": false,
		"x-gateway-base-model-name": true, "x-gateway-destination-endpoint": true, "x-gateway-destination-endpoint-subset": true,
		"x-gateway-inference-fairness-id": true, "x-gateway-model-name-x": true, "x-gateway-model": true, "x-gateway-model-": true,
		"x-gateway-": true, "x-gateway-mode": true, "x-gateway-model-namf": true, "x-envoy-retry-on": true, "x-data-parallel-rank": true, "x-llm-d-a": true,
	} {
		if got := removed(name); got != want {
			t.Errorf("%s: got removed %t, want %t", name, got, want)
		}
	}
}

func TestLabel(t *testing.T) {
	long := strings.Repeat("a", 63)
	for name, want := range map[string]string{
		"llama-epp": "llama-epp", "7b-epp": "s-7b-epp", "a.b": "a-b-2e0e6d7c",
	} {
		if got := label(name); len(got) != len(want) || !strings.HasPrefix(got, want[:3]) {
			t.Errorf("%s: got %s, want one like %s", name, got, want)
		}
	}
	seen := make(map[string]string)
	for _, name := range []string{long, long + "-epp", long + "-tls", "7" + long, "a.b", "a-b"} {
		got := label(name)
		if len(got) > 63 || !regexp.MustCompile(`^[a-z]([-a-z0-9]*[a-z0-9])?$`).MatchString(got) {
			t.Errorf("%s: got %q, which no Service can be called", name, got)
		}
		if other, taken := seen[got]; taken {
			t.Errorf("%s and %s: got %s for both", name, other, got)
		}
		seen[got] = name
	}
}

// many is a configuration with n schedulers.
func many(n int) (*v1alpha1.InferenceGatewayConfig, *Context) {
	on := true
	c := &v1alpha1.InferenceGatewayConfig{ObjectMeta: metav1.ObjectMeta{Name: "many", Namespace: "models"}}
	c.Spec.BBR.Enabled = &on
	for i := range n {
		name := fmt.Sprintf("s%d", i)
		c.Spec.Schedulers = append(c.Spec.Schedulers, v1alpha1.Scheduler{Name: name, ModelName: "model/" + name,
			ModelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}}})
	}
	return c, &Context{Settings: Settings{Image: "sluice:1", Extension: true}, Definitions: known(nil)}
}

// A hundred schedulers are one Deployment, and a pool, a route and a Service each.
func TestAHundredSchedulers(t *testing.T) {
	plan, err := Build(many(100))
	if err != nil {
		t.Fatal(err)
	}
	got := make(map[string]int)
	for _, u := range plan.Objects {
		got[u.GetKind()]++
		if targets, _, _ := unstructured.NestedSlice(u.Object, "spec", "targetRefs"); u.GetKind() == "BackendTLSPolicy" && len(targets) > maxTargets {
			t.Errorf("%s has %d targets, at most %d are allowed", key(u), len(targets), maxTargets)
		}
	}
	want := map[string]int{"Deployment": 1, "InferencePool": 100, "HTTPRoute": 102, "Service": 102, "BackendTLSPolicy": 7, "EnvoyExtensionPolicy": 1, "ConfigMap": 1}
	for kind, n := range want {
		if got[kind] != n {
			t.Errorf("got %d of %s, want %d", got[kind], kind, n)
		}
	}
}

func BenchmarkBuild(b *testing.B) {
	for _, n := range []int{1, 100} {
		c, ctx := many(n)
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			for b.Loop() {
				if _, err := Build(c, ctx); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// K31: nobody may do more than read pods, and files by name; no role reaches beyond its namespace; two configurations of
// one namespace have nothing with the same name.
func TestLeastRights(t *testing.T) {
	roles := 0
	for _, name := range cases(t) {
		plan, _ := build(t, name)
		for _, u := range plan.Objects {
			if kind := u.GetKind(); kind == "ClusterRole" || kind == "ClusterRoleBinding" {
				t.Errorf("%s: got a %s", name, kind)
			}
			rules, _, _ := unstructured.NestedSlice(u.Object, "rules")
			if u.GetKind() != "Role" {
				continue
			}
			roles++
			for _, r := range rules {
				rule := r.(map[string]any)
				what, named := fmt.Sprint(rule["resources"]), rule["resourceNames"] != nil
				if fmt.Sprint(rule["verbs"]) != "[get list watch]" || what != "[pods]" && (what != "[configmaps]" || !named) {
					t.Errorf("%s: %s: got the rule %v", name, key(u), rule)
				}
			}
		}
	}
	if roles == 0 {
		t.Error("got no role")
	}
}

func TestTwoConfigurations(t *testing.T) {
	seen := make(map[string]string)
	for _, name := range []string{"one", "two"} {
		c, ctx := many(1)
		c.Name, c.Spec.Schedulers[0].Name = name, "of-"+name
		plan, err := Build(c, ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, u := range plan.Objects {
			if other := seen[key(u)]; other != "" {
				t.Errorf("%s is of %s and of %s", key(u), other, name)
			}
			seen[key(u)] = name
		}
	}
}

// K20: a message fits in a condition however much there is to say.
func TestMessagesFit(t *testing.T) {
	if got := cut(strings.Repeat("ä", maxMessage)); len(got) > maxMessage || !strings.HasSuffix(got, "ä ...") {
		t.Errorf("got %d bytes that end with %q", len(got), got[len(got)-8:])
	}
}

func TestRolloutStates(t *testing.T) {
	for _, c := range []struct {
		r    *Rollout
		want v1alpha1.RolloutState
	}{
		{nil, v1alpha1.RolloutPending},
		{&Rollout{Wanted: 2}, v1alpha1.RolloutProgressing},
		{&Rollout{Observed: true, Wanted: 2, Updated: 2, Available: 1}, v1alpha1.RolloutProgressing},
		{&Rollout{Observed: true, Wanted: 2, Updated: 2, Available: 2}, v1alpha1.RolloutAvailable},
		{&Rollout{Observed: true, Wanted: 2, Updated: 2, Available: 2, Complete: true}, v1alpha1.RolloutAvailable},
		{&Rollout{Observed: true, Wanted: 2, Updated: 2, Available: 1, Complete: true}, v1alpha1.RolloutDegraded},
		{&Rollout{Observed: true, Wanted: 2, Updated: 1, Available: 2, Stuck: "ImagePullBackOff"}, v1alpha1.RolloutDegraded},
	} {
		if got, why := rolloutState(c.r); got != c.want || why == "" {
			t.Errorf("%+v: got %s (%s), want %s", c.r, got, why, c.want)
		}
	}
}
