package kube

import (
	"encoding/json"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-gateway/sluice/api/v1alpha1"
	"github.com/sluice-gateway/sluice/api/v1alpha2"
	"github.com/sluice-gateway/sluice/config"
	"github.com/sluice-gateway/sluice/translate"
)

// judged are the objects of a file, taken by an API server, and what a trial of them is made of.
func judged(t *testing.T, docs string) []*Tried {
	t.Helper()
	var list []*Tried
	for _, o := range config.Objects([]byte(docs)) {
		list = append(list, &Tried{Place: o.Place(), Kind: o.Kind, Namespace: "models", Name: o.Name, object: &o, legible: true})
	}
	return list
}

// TestJudgeByGroup: of two rewrites of one name, each of its own group, the one that is wrong has the fault.
func TestJudgeByGroup(t *testing.T) {
	rewrite := func(group, weight string) string {
		return "apiVersion: " + group + "/" + v1alpha2.Version + "\nkind: InferenceModelRewrite\nmetadata: {name: canary}\n" +
			"spec: {poolRef: {name: llama}, rules: [{targets: [{modelRewrite: llama, weight: " + weight + "}]}]}\n---\n"
	}
	for _, bad := range []int{0, 1} {
		weights := []string{"1", "1"}
		weights[bad] = "0"
		list := judged(t, rewrite(v1alpha2.LLMDGroup, weights[0])+rewrite(v1alpha2.ExtensionGroup, weights[1]))
		tr := &trial{namespace: "models", tried: list}
		g := v1alpha1.InferenceGatewayConfig{ObjectMeta: metav1.ObjectMeta{Name: "gw", Namespace: "models"}}
		g.Spec.Schedulers = []v1alpha1.Scheduler{{Name: "llama", ModelName: "llama", ModelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "llama"}}}}
		tr.gateways = append(tr.gateways, g)
		for _, k := range rewriteKinds() {
			if err := overlay(t.Context(), tr, new(definitions), k, nil, &tr.rewrites); err != nil {
				t.Fatal(err)
			}
		}
		if err := tr.gateway(t.Context(), &tr.gateways[0]); err != nil {
			t.Fatal(err)
		}
		for i, one := range list {
			if says := strings.Join(one.Faults, "; "); (i == bad) != strings.Contains(says, "weight") {
				t.Errorf("%s: got %q, want the fault of document %d alone", one.object.APIVersion, says, bad+1)
			}
		}
	}
}

// TestJudgeByDefaults: where nobody can read the controller's settings, what its defaults alone refuse is a note.
func TestJudgeByDefaults(t *testing.T) {
	const head = "apiVersion: " + v1alpha1.InferenceGroup + "/" + v1alpha1.Version + "\nkind: InferenceGatewayConfig\nmetadata: {name: gw}\n"
	const llama = "schedulers: [{name: llama, modelName: llama, modelSelector: {matchLabels: {app: llama}}}]"
	f := func(spec string, owned translate.Owned, fault, note string) {
		t.Helper()
		list := judged(t, head+"spec: {"+spec+llama+"}\n")
		g := &v1alpha1.InferenceGatewayConfig{}
		text, err := json.Marshal(list[0].object.Tree)
		if err == nil {
			err = json.Unmarshal(text, g)
		}
		if err != nil {
			t.Fatal(err)
		}
		g.Namespace = "models"
		tr := &trial{namespace: "models", guessed: true, known: []string{certificateKind().name()}, tried: list}
		c := tr.facts(g)
		if owned.Name != "" {
			c.Owned = append(c.Owned, owned)
		}
		plan, err := translate.Build(g, c)
		if err != nil {
			t.Fatal(err)
		}
		if plan, err = tr.surely(g, c, plan); err != nil {
			t.Fatal(err)
		}
		tr.tell(g, plan)
		faults, notes := strings.Join(list[0].Faults, "; "), strings.Join(list[0].Notes, "; ")
		if (fault == "") != (faults == "") || !strings.Contains(faults, fault) || strings.Contains(notes, "default settings") != (note != "") || !strings.Contains(notes, note) {
			t.Errorf("%s %v: got faults %q and notes %q, want %q and %q", spec, owned, faults, notes, fault, note)
		}
	}
	f("", translate.Owned{}, "", "")
	f("tls: {hostname: a.example.com}, ", translate.Owned{}, "", "no ClusterIssuer is named")
	f("", translate.Owned{Kind: "Gateway", Namespace: translate.DefaultSystemNamespace, Name: "gw"}, "", "Gateway hyperpod-inference-system/gw is there")
	f("", translate.Owned{Kind: "Service", Namespace: "models", Name: "llama-epp"}, "Service models/llama-epp is there", "")
	f("tls: {hostname: a.example.com}, ", translate.Owned{Kind: "Service", Namespace: "models", Name: "llama-epp"}, "Service models/llama-epp is there", "no ClusterIssuer is named")
}
