package main

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/sluice-gateway/sluice/api/v1alpha1"
	"github.com/sluice-gateway/sluice/translate"
)

// The containers that are planned for a cluster are started with flags that their commands have. That of pods is the one
// exception, until a command can watch them.
func TestPlannedArguments(t *testing.T) {
	on := true
	config := &v1alpha1.InferenceGatewayConfig{ObjectMeta: metav1.ObjectMeta{Name: "gw", Namespace: "models"}}
	config.Spec.BBR.Enabled = &on
	config.Spec.Schedulers = []v1alpha1.Scheduler{{Name: "s", ModelName: "m", ModelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "m"}}}}
	for topology, want := range map[v1alpha1.Topology]int{v1alpha1.TopologyFused: 1, v1alpha1.TopologySplit: 2, v1alpha1.TopologyEmbedded: 1} {
		policy := v1alpha1.GatewayPolicy{Spec: v1alpha1.GatewayPolicySpec{TargetRef: v1alpha1.PolicyTarget{Name: "gw"}, Topology: topology}}
		plan, err := translate.Build(config, &translate.Context{Policies: []v1alpha1.GatewayPolicy{policy}})
		if err != nil {
			t.Fatal(err)
		}
		started := 0
		for _, u := range plan.Objects {
			if u.GetKind() != "Deployment" {
				continue
			}
			containers, _, _ := unstructured.NestedSlice(u.Object, "spec", "template", "spec", "containers")
			args, _, _ := unstructured.NestedStringSlice(containers[0].(map[string]any), "args")
			cmd, rest, err := root().Find(args)
			if err != nil || !cmd.Runnable() {
				t.Fatalf("%s: %s: got command %v, %v", topology, u.GetName(), cmd, err)
			}
			var flags []string
			for _, arg := range rest {
				if !strings.HasPrefix(arg, "--pods=") {
					flags = append(flags, arg)
				}
			}
			if err := cmd.ParseFlags(flags); err != nil {
				t.Errorf("%s: %s: %v", topology, u.GetName(), err)
			}
			started++
		}
		if started != want {
			t.Errorf("%s: got %d Deployments, want %d", topology, started, want)
		}
	}
}
