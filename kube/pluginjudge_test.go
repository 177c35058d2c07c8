package kube

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-gateway/sluice/api/v1alpha1"
	"github.com/sluice-gateway/sluice/api/v1alpha2"
	"github.com/sluice-gateway/sluice/config"
)

// judged are the objects of a file, taken by an API server, and what a trial of them is made of.
func judged(t *testing.T, docs string) []*Tried {
	t.Helper()
	var list []*Tried
	for _, o := range config.Objects([]byte(docs)) {
		list = append(list, &Tried{Place: o.Place(), Kind: o.Kind, Namespace: "models", Name: o.Name, object: &o})
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
