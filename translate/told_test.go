package translate

import (
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	lua "github.com/yuin/gopher-lua"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/sluice-gateway/sluice/api/v1alpha1"
	"github.com/sluice-gateway/sluice/config"
)

// page is what people read of conditions.
const page = "../docs/kubernetes.md"

func readPage(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestConditionsAreExplained: the page has a row for every reason of a condition that is not as it should be, and for no
// others.
func TestConditionsAreExplained(t *testing.T) {
	said := make(map[string]bool)
	take := func(list []metav1.Condition) {
		for _, c := range list {
			bad := c.Status != metav1.ConditionTrue
			if c.Type == v1alpha1.ConditionAdmissionBlocked {
				bad = c.Status == metav1.ConditionTrue
			}
			if bad {
				said[c.Type+" "+c.Reason] = true
			}
		}
	}
	for _, name := range cases(t) {
		plan, _ := build(t, name)
		take(plan.Status.Conditions)
		for _, s := range plan.Status.Schedulers {
			take(s.Conditions)
		}
		for _, p := range plan.Policies {
			take(p.Status.Conditions)
		}
	}
	take(Deleted(&v1alpha1.InferenceGatewayConfig{}, []string{"example.com/waits"}).Conditions)
	told := make(map[string]bool)
	for _, m := range regexp.MustCompile(`(?m)^\| ([A-Z]\w+) \| ([A-Z]\w+) \| (.*) \| (.*) \|$`).FindAllStringSubmatch(readPage(t), -1) {
		key := m[1] + " " + m[2]
		if told[key] {
			t.Errorf("%s: %s has two rows", page, key)
		}
		told[key] = true
	}
	for _, key := range slices.Sorted(maps.Keys(said)) {
		if !told[key] {
			t.Errorf("%s: has no row for %s: say what it means and what to do", page, key)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(told)) {
		if !said[key] {
			t.Errorf("%s: has a row for %s, which no case of testdata comes to", page, key)
		}
	}
}

// TestServing: the condition Serving of a gateway whose pods are all ready goes by what is on the way to them, too.
func TestServing(t *testing.T) {
	f := func(what, name string, change func(*v1alpha1.InferenceGatewayConfig, *Context), want metav1.ConditionStatus, reason, says string) {
		t.Helper()
		c, ctx, _ := read(t, name)
		change(c, ctx)
		plan, err := Build(c, ctx)
		if err != nil {
			t.Fatal(err)
		}
		got, ready := meta.FindStatusCondition(plan.Status.Conditions, v1alpha1.ConditionServing), meta.FindStatusCondition(plan.Status.Conditions, v1alpha1.ConditionReady)
		if got.Status != want || got.Reason != reason || !strings.Contains(got.Message, says) {
			t.Errorf("%s: got %s, %s: %s; want %s, %s with %q", what, got.Status, got.Reason, got.Message, want, reason, says)
		}
		for _, one := range plan.Status.Schedulers {
			if own := meta.FindStatusCondition(one.Conditions, v1alpha1.ConditionServing); ctx.PodsUnread == "" && own.Status != metav1.ConditionTrue {
				t.Errorf("%s: scheduler %q: got Serving %s, %s, want what is of its endpoints alone", what, one.Name, own.Status, own.Reason)
			}
		}
		if what != outgoes && ready.Status == metav1.ConditionFalse && got.Status != metav1.ConditionFalse {
			t.Errorf("%s: Ready is False (%s), and Serving %s", what, ready.Message, got.Status)
		}
	}
	no, yes := metav1.ConditionFalse, metav1.ConditionTrue
	rollouts := func(list ...Rollout) func(*v1alpha1.InferenceGatewayConfig, *Context) {
		return func(_ *v1alpha1.InferenceGatewayConfig, ctx *Context) { ctx.Rollouts = list }
	}
	of := func(name string, available int32) Rollout {
		return Rollout{Namespace: "models", Name: name, Wanted: 2, Updated: 1, Available: available}
	}
	f("all is there", "fused", func(*v1alpha1.InferenceGatewayConfig, *Context) {}, yes, "Serving", "every model")
	f("no picker yet", "fused", rollouts(), no, "NotReady", `Deployment "gw-picker" in namespace "models": not there yet`)
	f("a picker that begins", "fused", rollouts(of("gw-picker", 0)), no, "NotReady", "0 of 2 copies")
	f("one of before beside it", "fused", rollouts(of("gw-picker", 1)), yes, "Serving", "")
	f("no Gateway yet", "fused", func(_ *v1alpha1.InferenceGatewayConfig, ctx *Context) { ctx.Gateway = nil }, no, "NotReady", "is not there yet")
	f("a Gateway without an address", "fused", func(_ *v1alpha1.InferenceGatewayConfig, ctx *Context) {
		ctx.Gateway = &GatewayState{Message: "no address"}
	}, no, "NotReady", "GatewayProgrammed: no address")
	f("another's Gateway", "fused", func(_ *v1alpha1.InferenceGatewayConfig, ctx *Context) {
		ctx.Owned = []Owned{{Kind: "Gateway", Namespace: DefaultSystemNamespace, Name: "gw", Owner: "other/gw"}}
	}, no, "NotAccepted", "belongs to other/gw")
	f("pods that nobody may read, and no picker", "fused", func(_ *v1alpha1.InferenceGatewayConfig, ctx *Context) {
		ctx.PodsUnread, ctx.Rollouts = "for want of a right", nil
	}, no, "NotReady", "not there yet")

	split := func(list ...Rollout) func(*v1alpha1.InferenceGatewayConfig, *Context) {
		return func(_ *v1alpha1.InferenceGatewayConfig, ctx *Context) {
			ctx.Rollouts = list
			ctx.Policies = []v1alpha1.GatewayPolicy{{Spec: v1alpha1.GatewayPolicySpec{TargetRef: v1alpha1.PolicyTarget{Name: "gw"}, Topology: v1alpha1.TopologySplit}}}
		}
	}
	router := func(available int32) Rollout {
		r := of("gw-bbr", available)
		r.Namespace = DefaultSystemNamespace
		return r
	}
	f("all of Split", "fused", split(of("llama-epp", 1), of("qwen-epp", 1), router(1)), yes, "Serving", "")
	f("Split without what finds the model", "fused", split(of("llama-epp", 1), of("qwen-epp", 1), router(0)), no, "NotReady", "BBRReady: ")
	f("Split without one of its pickers", "fused", split(of("llama-epp", 1), router(1)), no, "NotReady", `scheduler "qwen": `)
	f(outgoes, "fused", split(of("gw-picker", 1), of("llama-epp", 1), router(0)), yes, "Serving", "")
	for _, name := range cases(t) {
		plan, _ := build(t, name)
		if list := plan.Status.Conditions; meta.IsStatusConditionFalse(list, v1alpha1.ConditionReady) && !meta.IsStatusConditionFalse(list, v1alpha1.ConditionServing) {
			t.Errorf("%s: Ready is False, and Serving isn't", name)
		}
	}
	f("the old topology goes, too", "fused", split(of("gw-picker", 0), of("llama-epp", 1), router(0)), no, "NotReady", "")
}

// outgoes is the one case where a gateway that isn't ready serves.
const outgoes = "pickers of another topology go on until the new ones run"

// What people are told to take away of a pod is what package config reads.
func TestDrainingIsUndone(t *testing.T) {
	if annotationEndpoint != config.AnnotationEndpoint {
		t.Errorf("got %s, want %s", annotationEndpoint, config.AnnotationEndpoint)
	}
}

// TestPageIsRepeatable: what people are shown is taken, and holds in every cluster: K36, the addresses of pods in a text.
func TestPageIsRepeatable(t *testing.T) {
	text := readPage(t)
	for _, address := range regexp.MustCompile(`\b\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}\b`).FindAllString(text, -1) {
		if !strings.HasPrefix(address, "127.") {
			t.Errorf("%s: has the address %s, which means nothing in another cluster", page, address)
		}
	}
	for _, link := range regexp.MustCompile(`\]\(([^)#:]+)[^):]*\)`).FindAllStringSubmatch(text, -1) {
		if _, err := os.Stat(filepath.Join(filepath.Dir(page), link[1])); err != nil {
			t.Errorf("%s: %v", page, err)
		}
	}
	for _, file := range regexp.MustCompile(`\bdeploy/[a-z0-9/.-]*[a-z0-9]`).FindAllString(text, -1) {
		if _, err := os.Stat("../" + file); err != nil {
			t.Errorf("%s: %v", page, err)
		}
	}
	gateway, err := os.ReadFile("../deploy/quickstart/gateway.yaml")
	if err != nil {
		t.Fatal(err)
	}
	docs := string(gateway)
	for _, block := range regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(text, -1) {
		docs += "---\n" + block[1]
	}
	if _, err := config.Parse([]byte(docs), page); err != nil {
		t.Error(err)
	}
}

// healthScripts are Argo CD's, by group and kind.
func healthScripts(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile("../deploy/argocd/health.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var m struct {
		Data map[string]string `json:"data"`
	}
	if err := yaml.Unmarshal(text, &m); err != nil {
		t.Fatal(err)
	}
	scripts := make(map[string]string)
	for key, script := range m.Data {
		name, ours := strings.CutPrefix(key, "resource.customizations.health.")
		if !ours {
			t.Errorf("key %q is not one that Argo CD looks for", key)
		}
		scripts[name] = script
	}
	return scripts
}

// health runs a script as Argo CD does: with the object as obj, and without the libraries for strings and files.
func health(t *testing.T, script string, o any) (status, message string) {
	t.Helper()
	raw, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	var tree any
	if err := d.Decode(&tree); err != nil {
		t.Fatal(err)
	}
	l := lua.NewState(lua.Options{SkipOpenLibs: true})
	defer l.Close()
	for name, open := range map[string]lua.LGFunction{lua.BaseLibName: lua.OpenBase, lua.TabLibName: lua.OpenTable} {
		if err := l.CallByParam(lua.P{Fn: l.NewFunction(open), Protect: true}, lua.LString(name)); err != nil {
			t.Fatal(err)
		}
	}
	l.SetGlobal("obj", inLua(l, tree))
	if err := l.DoString(script); err != nil {
		t.Fatal(err)
	}
	answer, ok := l.Get(-1).(*lua.LTable)
	if !ok {
		t.Fatalf("got %v, want a table", l.Get(-1))
	}
	return lua.LVAsString(answer.RawGetString("status")), lua.LVAsString(answer.RawGetString("message"))
}

func inLua(l *lua.LState, v any) lua.LValue {
	switch v := v.(type) {
	case map[string]any:
		table := l.NewTable()
		for key, below := range v {
			table.RawSetString(key, inLua(l, below))
		}
		return table
	case []any:
		table := l.NewTable()
		for _, below := range v {
			table.Append(inLua(l, below))
		}
		return table
	case string:
		return lua.LString(v)
	case float64:
		return lua.LNumber(v)
	case bool:
		return lua.LBool(v)
	}
	return lua.LNil
}

// TestArgoCDHealth: what Argo CD makes of the status that each case comes to.
func TestArgoCDHealth(t *testing.T) {
	scripts := healthScripts(t)
	script := scripts[v1alpha1.InferenceGroup+"_"+v1alpha1.InferenceGatewayConfigKind]
	of := func(name string) (status, message string) {
		t.Helper()
		c, _, _ := read(t, name)
		plan, _ := build(t, name)
		c.Status = plan.Status
		return health(t, script, c)
	}
	for _, name := range cases(t) {
		if status, message := of(name); !slices.Contains([]string{"Healthy", "Progressing", "Degraded"}, status) || message == "" {
			t.Errorf("%s: got %s, %q", name, status, message)
		}
	}
	f := func(name, want, says string) {
		t.Helper()
		if status, message := of(name); status != want || !strings.Contains(message, says) {
			t.Errorf("%s: got %s, %q, want %s with %q", name, status, message, want, says)
		}
	}
	f("fused", "Healthy", "every model has an endpoint")
	f("serving", "Degraded", "modelSelector matches no pod")
	f("rolling-out", "Progressing", "0 of 2 copies")
	f("default-backend-missing", "Healthy", "Honoured: ")
	f("new", "Progressing", "not there yet")
	f("no-extension", "Degraded", "extension server")
	f("definitions-missing", "Degraded", "does not know")
	f("admission-blocked", "Degraded", "admission webhook")
	f("config-map-ref", "Degraded", "configMapRef")
	f("owned-gateway", "Degraded", "belongs to")

	c, ctx, _ := read(t, "fused")
	for i := range ctx.Pods {
		ctx.Pods[i].Ready = false
	}
	loading, err := Build(c, ctx)
	if err != nil {
		t.Fatal(err)
	}
	if status, message := health(t, script, map[string]any{"metadata": c.ObjectMeta, "status": loading.Status}); status != "Progressing" || !strings.Contains(message, "is ready") {
		t.Errorf("while models load: got %s, %q, want Progressing", status, message)
	}
	if status, _ := health(t, script, c); status != "Progressing" {
		t.Errorf("without a status: got %s, want Progressing", status)
	}
	plan, _ := build(t, "serving")
	c.Status = plan.Status
	c.Generation = c.Status.ObservedGeneration + 1
	if status, _ := health(t, script, c); status != "Progressing" {
		t.Errorf("with a status of an older version: got %s, want Progressing", status)
	}
	policy := scripts[v1alpha1.GatewayGroup+"_"+v1alpha1.GatewayPolicyKind]
	for _, accepted := range []metav1.ConditionStatus{metav1.ConditionTrue, metav1.ConditionFalse} {
		p := v1alpha1.GatewayPolicy{Status: v1alpha1.GatewayPolicyStatus{Conditions: []metav1.Condition{{Type: v1alpha1.ConditionAccepted, Status: accepted, Message: "so"}}}}
		if status, _ := health(t, policy, p); (status == "Healthy") != (accepted == metav1.ConditionTrue) {
			t.Errorf("a policy whose Accepted is %s: got %s", accepted, status)
		}
	}
	if status, _ := health(t, policy, v1alpha1.GatewayPolicy{}); status != "Progressing" {
		t.Errorf("a policy without a status: got %s, want Progressing", status)
	}
	for _, kind := range []string{v1alpha1.EndpointsKind, v1alpha1.GlobalGatewayKind} {
		if status, _ := health(t, scripts[v1alpha1.GatewayGroup+"_"+kind], map[string]any{}); status != "Healthy" {
			t.Errorf("%s: got %s, want Healthy", kind, status)
		}
	}
}
