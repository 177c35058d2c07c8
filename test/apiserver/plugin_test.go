//go:build kube

package apiserver

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sluice-gateway/sluice/api/v1alpha1"
	"github.com/sluice-gateway/sluice/kube"
	"github.com/sluice-gateway/sluice/translate"
)

func plugin(t *testing.T, namespace string) *kube.Cluster {
	t.Helper()
	c, err := kube.OpenCluster(shared.kubeconfig, "", namespace)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestTry: an API server says of documents what it would say, and keeps none of them.
func TestTry(t *testing.T) {
	c := plugin(t, "default")
	text, err := os.ReadFile("../../deploy/examples/several-models.yaml")
	if err != nil {
		t.Fatal(err)
	}
	docs := string(text) + "---\n# nothing\n---\n" + strings.Replace(gatewayHead, "name: g", "name: two", 1) +
		"spec:\n  bbr: {enabled: false}\n  banana: 1\n  schedulers: [{name: a, modelName: a, modelSelector: {}}, {name: b, modelName: b, modelSelector: {}}]\n" +
		"---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: adapters}\ndata: {baseModel: m}\n---\napiVersion: example.com/v1\nkind: Nothing\nmetadata: {name: n}\n---\napiVersion: example.com/v1\nkind: Nothing\nmetadata: {name: nothing}\n"
	got, _, err := c.Try(t.Context(), []byte(docs), noSettings)
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 5 {
		t.Fatalf("got %+v, want five answers", got)
	}
	for i, want := range []string{"", `spec.banana`, "", "is no object of Kubernetes", "does not know Nothing of example.com/v1"} {
		if (want == "") != (len(got[i].Faults) == 0) || want != "" && !strings.Contains(strings.Join(got[i].Faults, "\n"), want) {
			t.Errorf("%s %q: got %q, want %q", got[i].Kind, got[i].Name, got[i].Faults, want)
		}
	}
	there := strings.Replace(oneGateway, "name: g", "name: tried", 1)
	if err := shared.client.Create(t.Context(), object(t, there)); err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{there: "", there + "  banana: 1\n": "banana", strings.Replace(there, "enabled: true", "enabled: 1", 1): "enabled"} {
		got, _, err := c.Try(t.Context(), []byte(text), noSettings)
		if err != nil || len(got) != 1 || (want == "") != (len(got[0].Faults) == 0) || !strings.Contains(strings.Join(got[0].Faults, "\n"), want) {
			t.Errorf("of one that is there: got %+v, %v, want %q", got, err, want)
		}
	}
	u := object(t, gatewayHead)
	u.SetName("gateway")
	if err := shared.client.Get(t.Context(), keyOf(u), u); client.IgnoreNotFound(err) != nil || err == nil {
		t.Errorf("got %v, want nothing kept", err)
	}
}

// noSettings stands for a controller of which nothing is known.
func noSettings([]string) (translate.Settings, error) { return translate.Settings{}, nil }

// TestTryAsTheController: of what the API server takes it is said what the controller would refuse, for each gateway and with
// what is in the cluster; what kubectl get -o yaml prints is taken as it is.
func TestTryAsTheController(t *testing.T) {
	const ns = "judged"
	c := plugin(t, ns)
	kubectl(t, "", "create", "namespace", ns)
	f := func(docs string, want ...string) {
		t.Helper()
		tried, _, err := c.Try(t.Context(), []byte(docs), noSettings)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, one := range tried {
			for _, fault := range one.Faults {
				got = append(got, one.Name+" fail "+fault)
			}
			for _, note := range one.Notes {
				if !strings.HasPrefix(note, noRequest) { // so it is of each gateway here
					got = append(got, one.Name+" note "+note)
				}
			}
		}
		for i, w := range want {
			begin, later, _ := strings.Cut(w, " … ")
			if i >= len(got) || !strings.HasPrefix(got[i], begin) || !strings.Contains(got[i], later) {
				t.Errorf("got %q, want %q", got, want)
				return
			}
		}
		if len(got) != len(want) {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	named := func(name, spec string) string {
		return strings.Replace(gatewayHead, "name: g", "name: "+name, 1) + "spec: {bbr: {enabled: true}, " + spec + "}\n---\n"
	}
	const one = "schedulers: [{name: llama, modelName: m, modelSelector: {matchLabels: {app: llama}}}]"
	reads := strings.Replace(one, "}}}]", "}}, configMapRef: {name: plugins}}]", 1)
	policy := func(name, target string) string {
		return strings.Replace(policyHead, "name: p", "name: "+name, 1) + "spec: {targetRef: " + target + ", sessionAffinity: {header: x-s}}\n---\n"
	}
	const refuses = "the controller would refuse it: scheduler \"llama\": configMapRef \"plugins\": picker configurations are not read"
	f(named("a", reads), "a fail "+refuses)
	f(named("a", one)+named("b", reads), "b fail "+refuses)
	f(named("a", one)+named("b", one), `b fail the controller would refuse it: scheduler "llama": … Service judged/llama-epp is there and belongs to judged/a`)
	f(named("a", "qwertyui: 1, "+one), `a fail strict decoding error: unknown field "spec.qwertyui"`)
	f(named("a", "podDefault: {}, schedulerz: [], "+one), `a fail strict decoding error: unknown field "spec.podDefault": did you mean "spec.podDefaults"?`,
		`a fail strict decoding error: unknown field "spec.schedulerz": did you mean "spec.schedulers"?`)
	f(named("a", "qwertyui: 1, "+reads), `a fail strict decoding error: unknown field "spec.qwertyui"`, "a fail "+refuses)
	f(named("a", "qwertyui: 1, "+strings.Replace(one, "modelName: m", "modelName: ''", 1)), `a fail strict decoding error: unknown field "spec.qwertyui"`, "a fail spec.schedulers[0].modelName")
	f(named("a", one)+policy("here", "{name: a}")+policy("nowhere", "{name: z}")+policy("section", "{name: a, sectionName: qwen}")+policy("second", "{name: a}"),
		`nowhere fail spec.targetRef.name: there is no InferenceGatewayConfig "z" in the file or in namespace "judged"`,
		`section fail spec.targetRef.sectionName: "qwen" is the name of no scheduler`,
		`second fail GatewayPolicy "here" is older and for the same`)
	endpoints := func(name string) string {
		return strings.Replace(endpointsHead, "name: e", "name: "+name, 1) + "spec: {endpoints: [{address: '10.0.0.1:8000'}]}\n---\n"
	}
	f(named("a", strings.Replace(one, "matchLabels: {app: llama}", "matchExpressions: [{key: app, operator: Exists}]", 1)), `a note would not be honoured: scheduler "llama": an InferencePool's selector has labels alone`)
	f(named("a", one)+endpoints("first")+endpoints("next"), `next fail spec.endpoints[0].address: Invalid value: "10.0.0.1:8000": must be unique`)
	const adapters = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: l, labels: {inference.networking.k8s.io/bbr-managed: \"true\"}}\ndata: {baseModel: other, adapters: \"[x]\"}\n"
	f(named("a", one)+adapters, `l note data.baseModel: "other" is no scheduler's in the file`)
	f(named("a", "qwertyui: 1, "+one)+adapters, `a fail strict decoding error: unknown field "spec.qwertyui"`)
	f("apiVersion: v1\nkind: Endpoints\nmetadata: {name: core}\nsubsets: [{addresses: [{ip: 10.0.0.1}], ports: [{port: 80}]}]\n")

	kubectl(t, "apiVersion: v1\nkind: Service\nmetadata: {name: llama-epp}\nspec: {ports: [{port: 80}]}\n", "apply", "-n", ns, "-f", "-")
	f(named("a", one), `a fail the controller would refuse it: scheduler "llama": Service judged/llama-epp is there and belongs to someone else`)
	kubectl(t, "", "delete", "-n", ns, "service", "llama-epp")
	if got := kubectl(t, named("a", one)+named("b", strings.ReplaceAll(one, "llama", "qwen"))+policy("here", "{name: a}"), "apply", "-n", ns, "-f", "-"); !strings.Contains(got, "b created") {
		t.Fatal(got)
	}
	f(policy("there", "{name: b}") + policy("here", "{name: a}"))
	f(policy("there", "{name: a}"), `there fail GatewayPolicy "here" is older and for the same`)
	written := kubectl(t, "", "get", "igwc,gwp", "-n", ns, "-o", "yaml", "--show-managed-fields")
	if !strings.Contains(written, "kind: List") || !strings.Contains(written, "managedFields") {
		t.Fatal(written)
	}
	f(named("a", "qwertyui: 1, "+reads), `a fail strict decoding error: unknown field "spec.qwertyui"`, "a fail "+refuses) // of one that is there
	f(written)
	f(strings.ReplaceAll(written, "uid: ", "uid: 0")) // of another cluster
	anew := strings.ReplaceAll(written, "\n    name: b\n", "\n    name: z\n    finalizers: [example.com/keep]\n")
	f(anew, `z note metadata.finalizers: "example.com/keep" keeps it`)
	f(strings.ReplaceAll(written, "modelName: m", "modelName: ''"), "a fail spec.schedulers[0].modelName", "b fail spec.schedulers[0].modelName")
}

// noRequest begins the note about a gateway that would be taken where kinds of others are missing.
const noRequest = "would take no request yet: the API server does not know "

// TestTryWithoutKindsOfOthers: a gateway is taken before Envoy Gateway is there, and it is said that it would do nothing then, unless it
// needs none of it.
func TestTryWithoutKindsOfOthers(t *testing.T) {
	kubectl(t, "", "create", "namespace", "early")
	c := plugin(t, "early")
	f := func(docs string, want bool) {
		t.Helper()
		tried, _, err := c.Try(t.Context(), []byte(docs), noSettings)
		if err != nil || len(tried[0].Faults) > 0 {
			t.Fatalf("got %+v, %v, want it taken", tried, err)
		}
		if got := slices.ContainsFunc(tried[0].Notes, func(n string) bool {
			return strings.HasPrefix(n, noRequest) && strings.Contains(n, "which comes with Envoy Gateway 1.9 or later")
		}); got != want {
			t.Errorf("got the notes %q, what is missing in them: %t, want %t", tried[0].Notes, got, want)
		}
	}
	f(oneGateway, true)
	f(oneGateway+"---\n"+policyHead+"spec: {targetRef: {name: g}, topology: Embedded}\n", false)
}

// TestTryWithFewRights: who may not look under the names of what a gateway becomes is told so.
func TestTryWithFewRights(t *testing.T) {
	const ns = "unseen"
	kubectl(t, "", "create", "namespace", ns)
	kubectl(t, "", "create", "role", "writer", "-n", ns, "--verb=get,list,create,patch", "--resource=inferencegatewayconfigs."+v1alpha1.InferenceGroup)
	kubectl(t, "", "create", "rolebinding", "writer", "-n", ns, "--role=writer", "--user=writer")
	config, err := clientcmd.LoadFromFile(shared.kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	for _, user := range config.AuthInfos {
		user.Impersonate = "writer"
	}
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*config, file); err != nil {
		t.Fatal(err)
	}
	c, err := kube.OpenCluster(file, "", ns)
	if err != nil {
		t.Fatal(err)
	}
	tried, _, err := c.Try(t.Context(), []byte(oneGateway), noSettings)
	if err != nil || len(tried) != 1 || len(tried[0].Faults) > 0 {
		t.Fatalf("got %+v, %v, want one that is taken", tried, err)
	}
	notes := strings.Join(tried[0].Notes, "\n")
	if !regexp.MustCompile(`whether another's objects have its names already can't be looked at, of the kinds .*ConfigMap, .*Service.*: .* is forbidden: User "writer"`).MatchString(notes) {
		t.Errorf("got %q, want the kinds that nobody may look at", notes)
	}
}

// TestPickers: who can't be asked, and why.
func TestPickers(t *testing.T) {
	c := plugin(t, "default")
	f := func(what, want string) {
		t.Helper()
		if _, err := c.Pickers(t.Context(), what); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", what, err, want)
		}
	}
	doc := object(t, strings.Replace(oneGateway, "name: g", "name: lonely", 1))
	if err := shared.client.Create(t.Context(), doc); err != nil {
		t.Fatal(err)
	}
	f("nobody", "-n names another namespace")
	f("lonely", "there is none yet")
	f("igwc/lonely", "there is none yet")
	f("pod/nobody", "not found")
	for where, all := range map[*kube.Cluster]bool{c: false, c.In("kube-system"): true} {
		if list, err := where.Configs(t.Context(), all); err != nil || !slices.Contains(list, kube.Config{Namespace: "default", Name: "lonely"}) {
			t.Errorf("of all namespaces %t: got %v, %v", all, list, err)
		}
	}
	if list, err := c.In("kube-system").Configs(t.Context(), false); err != nil || len(list) > 0 {
		t.Errorf("got %v, %v, of a namespace that has none", list, err)
	}
	f("service/lonely", "is the name of an InferenceGatewayConfig or of a picker's pod")
}

// TestExamine: what a cluster lacks is found in turn, and each with what to do.
func TestExamine(t *testing.T) {
	const ns = "examined"
	c := plugin(t, ns)
	kubectl(t, "", "create", "namespace", ns)
	found := func() string {
		t.Helper()
		var b strings.Builder
		for _, f := range c.Examine(t.Context()) {
			b.WriteString(string(f.Level) + " " + f.What + ": " + f.Text + "\n")
		}
		return b.String()
	}
	want := func(text, pattern string) {
		t.Helper()
		if !regexp.MustCompile("(?m)" + pattern).MatchString(text) {
			t.Errorf("got\n%s\nwant %s", text, pattern)
		}
	}
	text := found()
	want(text, `^ok API server: Kubernetes v1\.`)
	want(text, `^ok definitions: all 4 kinds`)
	want(text, `^fail controller: no Deployment inference-gateway-controller .* helm install`)
	if _, errOut, ok := helm(t, "install", "idle", chartFolder, "--namespace", chartNamespace, "--create-namespace", "--set", "inferenceGateway.enabled=false"); !ok {
		t.Fatalf("helm install: %s", errOut)
	}
	want(found(), `^fail controller: .*: helm upgrade idle deploy/chart -n `+chartNamespace+` --reset-then-reuse-values --set inferenceGateway\.enabled=true$`)
	if _, errOut, ok := helm(t, "uninstall", "idle", "--namespace", chartNamespace); !ok {
		t.Fatalf("helm uninstall: %s", errOut)
	}
	want(found(), `^fail controller: .* helm install`)
	want(text, `^fail Envoy Gateway: no Deployment with the label`)

	place := func(doc string) *unstructured.Unstructured {
		t.Helper()
		u := object(t, doc)
		u.SetNamespace(ns)
		if err := shared.client.Create(t.Context(), u); err != nil {
			t.Fatal(err)
		}
		return u
	}
	says := func(u *unstructured.Unstructured, status string) {
		t.Helper()
		u.Object["status"] = object(t, status).Object
		if err := shared.client.Status().Update(t.Context(), u); err != nil {
			t.Fatal(err)
		}
	}
	deployment := func(name, labels, args string) *unstructured.Unstructured {
		t.Helper()
		return place(`{apiVersion: apps/v1, kind: Deployment, metadata: {name: ` + name + `, labels: {` + labels + `}}, spec: {replicas: 2, selector: {matchLabels: {` + labels + `}},
            template: {metadata: {labels: {` + labels + `}}, spec: {serviceAccountName: envoy-gateway, containers: [{name: c, image: "i:2", args: [` + args + `]}]}}}}`)
	}
	const name = "inference-gateway-controller"
	const known, class = "app: " + name + ", app.kubernetes.io/name: sluice", "control, --gateway-class=examined, --gateway-class-controller=example.com/gateways"
	theirs := deployment(name, "app: "+name, "manager")
	text = found()
	want(text, `^fail controller: Deployment examined/inference-gateway-controller, image i:2, is not Sluice's: .* kubectl -n examined delete deployment inference-gateway-controller$`)
	want(text, `^fail controller: no Deployment inference-gateway-controller of Sluice .* helm install`)
	if err := shared.client.Delete(t.Context(), theirs); err != nil {
		t.Fatal(err)
	}
	mine := deployment(name, known, class)
	says(mine, `{observedGeneration: 1, replicas: 3, updatedReplicas: 1, availableReplicas: 2, readyReplicas: 2, unavailableReplicas: 1,
        conditions: [{type: Progressing, status: "False", reason: ProgressDeadlineExceeded, message: it hangs}]}`)
	for pod, status := range map[string]string{
		"old": `{conditions: [{type: Ready, status: "True"}]}`,
		"new": `{containerStatuses: [{name: c, image: "i:2", imageID: "", ready: false, restartCount: 0, state: {waiting: {reason: ImagePullBackOff, message: no such image}}}]}`,
	} {
		says(place(`{apiVersion: v1, kind: Pod, metadata: {name: `+pod+`, labels: {`+known+`}}, spec: {containers: [{name: c, image: "i:`+map[string]string{"old": "1", "new": "2"}[pod]+`", ports: [{name: admin, containerPort: 9090}]}]}}`), status)
	}
	const counts, waits = `2 copies of examined/inference-gateway-controller are available, 1 up to date, image i:2; it goes no further: ProgressDeadlineExceeded: it hangs`, `pod "new": container "c" waits \(ImagePullBackOff: no such image\): .kubectl describe pod -n examined new. says more`
	want(found(), `^warn controller: 2 of `+counts+`; those that are ready run image i:1; `+waits+`$`)
	says(mine, `{observedGeneration: 1, replicas: 1, updatedReplicas: 1, unavailableReplicas: 1}`)
	want(found(), `^fail controller: 0 of 2 copies .*; `+waits+`; gateways that run go on`)
	says(mine, `{observedGeneration: 1, replicas: 2, updatedReplicas: 2, availableReplicas: 2, readyReplicas: 2}`)
	egw := deployment("envoy-gateway", "control-plane: envoy-gateway", "server")
	says(egw, `{observedGeneration: 1, replicas: 1, updatedReplicas: 1, availableReplicas: 1, readyReplicas: 1}`)
	config := place("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: envoy-gateway-config}\ndata: {envoy-gateway.yaml: \"provider: {type: Kubernetes}\"}")
	g := place(strings.Replace(oneGateway, "name: g", "name: gateway", 1))
	text = found()
	want(text, `^ok controller: 2 of 2 copies of examined/inference-gateway-controller are available, image i:2$`)
	want(text, `^fail GatewayClass: there is none called examined yet: the controller makes it `)
	const without, switchOn = `our chart is installed without one \(envoyGateway\.extension=false\): helm upgrade `, ` --set envoyGateway\.extension=true`
	want(text, `^fail Envoy Gateway in examined: has no extensionManager.*: `+without+`.*`+switchOn+`; then give its chart the values`)

	want(text, `^fail gateway examined/gateway: the controller has not looked at this version`)

	values, err := os.ReadFile(filepath.Join("../../deploy/envoy-gateway/values.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	file := object(t, string(values))
	inner, _, _ := unstructured.NestedMap(file.Object, "config", "envoyGateway")
	set := func(service string) {
		t.Helper()
		written := strings.ReplaceAll(jsonOf(t, inner), "inference-gateway-extension."+chartNamespace, service)
		if err := unstructured.SetNestedField(config.Object, written, "data", "envoy-gateway.yaml"); err != nil {
			t.Fatal(err)
		}
		if err := shared.client.Update(t.Context(), config); err != nil {
			t.Fatal(err)
		}
	}
	set("other.elsewhere")
	want(found(), `^fail Envoy Gateway in examined: asks the extension server other\.elsewhere\.svc, and ours is not there: `+without)
	set("inference-gateway-extension.examined")
	want(found(), `^fail Envoy Gateway in examined: asks the extension server inference-gateway-extension\.examined\.svc, which is not there: `+without+`.*`+switchOn+`, or take the extensionManager out`)
	if err := shared.client.Delete(t.Context(), mine); err != nil {
		t.Fatal(err)
	}
	want(found(), `^fail Envoy Gateway in examined: asks the extension server inference-gateway-extension\.examined\.svc, which is not there: it comes with our chart, which is to be installed`)
	says(deployment(name, known, class+", --extension"), `{observedGeneration: 1, replicas: 2, updatedReplicas: 2, availableReplicas: 2, readyReplicas: 2}`)
	place(`{apiVersion: v1, kind: Service, metadata: {name: inference-gateway-extension}, spec: {selector: {app: inference-gateway-controller}, ports: [{name: extension, port: 9443}]}}`)
	set("other.elsewhere")
	want(found(), `^fail Envoy Gateway in examined: asks the extension server other\.elsewhere\.svc, and ours is inference-gateway-extension\.examined`)
	set("inference-gateway-extension.examined")
	want(found(), `^fail Envoy Gateway in examined: system:serviceaccount:examined:envoy-gateway may not watch inferencepools`)
	kubectl(t, `{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: examined}, rules: [{apiGroups: [inference.networking.k8s.io], resources: [inferencepools], verbs: [watch]}]}
---
{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRoleBinding, metadata: {name: examined}, roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: examined},
 subjects: [{kind: ServiceAccount, name: envoy-gateway, namespace: `+ns+`}]}`, "apply", "-f", "-")
	want(found(), `^ok Envoy Gateway in examined: asks the extension server inference-gateway-extension\.examined\.svc, and may watch InferencePools`)

	typed := new(v1alpha1.InferenceGatewayConfig)
	if err := shared.client.Get(t.Context(), keyOf(g), typed); err != nil {
		t.Fatal(err)
	}
	condition := func(kind string, status metav1.ConditionStatus, message string) metav1.Condition {
		return metav1.Condition{Type: kind, Status: status, Reason: "Because", Message: message, LastTransitionTime: metav1.Now()}
	}
	typed.Status = v1alpha1.InferenceGatewayConfigStatus{ObservedGeneration: typed.Generation, Conditions: []metav1.Condition{
		condition(v1alpha1.ConditionReady, metav1.ConditionTrue, "requests are taken"),
		condition(v1alpha1.ConditionServing, metav1.ConditionFalse, "modelSelector matches no pod: compare it"),
		condition(v1alpha1.ConditionHonoured, metav1.ConditionFalse, "env has no effect"),
	}}
	if err := shared.client.Status().Update(t.Context(), typed); err != nil {
		t.Fatal(err)
	}
	text = found()
	want(text, `^fail gateway examined/gateway: Serving is False \(Because\): modelSelector matches no pod: compare it$`)
	want(text, `^warn gateway examined/gateway: Honoured is False`)
	if strings.Contains(text, "requests are taken") {
		t.Errorf("got what is well told, too:\n%s", text)
	}

	refused := []metav1.Condition{condition(v1alpha1.ConditionAccepted, metav1.ConditionFalse, "its name is taken"), condition(v1alpha1.ConditionServing, metav1.ConditionFalse, "its name is taken")}
	refused[1].Reason = "NotAccepted"
	typed.Status.Conditions = refused
	if err := shared.client.Status().Update(t.Context(), typed); err != nil {
		t.Fatal(err)
	}
	if text = found(); strings.Count(text, "its name is taken") != 1 {
		t.Errorf("got it more than once, or never, that a name is taken:\n%s", text)
	}
	want(text, `^fail gateway examined/gateway: Accepted is False \(Because\): its name is taken$`)

	typed.Finalizers = []string{"example.com/keep"}
	if err := shared.client.Update(t.Context(), typed); err != nil {
		t.Fatal(err)
	}
	if err := shared.client.Delete(t.Context(), typed); err != nil {
		t.Fatal(err)
	}
	want(found(), `^warn gateway examined/gateway: is being deleted since 2.*Z, kept by finalizer example\.com/keep, which whoever put it there takes out`)
	kubectl(t, "", "patch", "igwc", "gateway", "-n", ns, "--type=merge", "-p", `{"metadata":{"finalizers":[]}}`)
}

func jsonOf(t *testing.T, v any) string {
	t.Helper()
	raw, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}
