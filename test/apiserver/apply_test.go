//go:build kube

package apiserver

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sluice-gateway/sluice/api/v1alpha1"
)

// entries is what a writer of spec.schedulers applies.
func entries(t *testing.T, name, schedulers string) *unstructured.Unstructured {
	t.Helper()
	return object(t, "apiVersion: inference.sagemaker.aws.amazon.com/v1alpha1\nkind: InferenceGatewayConfig\nmetadata: {name: "+name+"}\nspec: {schedulers: ["+schedulers+"]}")
}

// stored reads a config back.
func stored(t *testing.T, name string) *v1alpha1.InferenceGatewayConfig {
	t.Helper()
	out := new(v1alpha1.InferenceGatewayConfig)
	if err := shared.client.Get(t.Context(), types.NamespacedName{Namespace: "default", Name: name}, out); err != nil {
		t.Fatal(err)
	}
	return out
}

// names lists the schedulers of a config.
func names(c *v1alpha1.InferenceGatewayConfig) []string {
	var out []string
	for _, s := range c.Spec.Schedulers {
		out = append(out, s.Name)
	}
	return out
}

// TestWritersOfSchedulersCoexist: the operator of model deployments applies entries of its own beside a person's, later
// keeps what a person changed in them, and takes away its own alone.
func TestWritersOfSchedulersCoexist(t *testing.T) {
	const name, operator = "coexist", "operator"
	mine := entries(t, name, "{name: mine, modelName: m, modelSelector: {}}")
	if err := unstructured.SetNestedField(mine.Object, true, "spec", "bbr", "enabled"); err != nil {
		t.Fatal(err)
	}
	if err := apply(t.Context(), mine, "person"); err != nil {
		t.Fatal(err)
	}
	theirs := "{name: theirs, modelName: k, modelSelector: {matchLabels: {app: k}}}"
	if err := apply(t.Context(), entries(t, name, theirs), operator); err != nil {
		t.Fatal(err)
	}
	got := stored(t, name)
	if diff := cmp.Diff([]string{"mine", "theirs"}, names(got)); diff != "" {
		t.Fatalf("-want +got:\n%s", diff)
	}
	if *got.Spec.Schedulers[1].Replicas != v1alpha1.DefaultReplicas || !*got.Spec.BBR.Enabled {
		t.Errorf("got %+v, want the defaults in the operator's entry and the person's bbr", got.Spec)
	}

	// What a person sets in the operator's entry outlasts the operator's next turn.
	got.Spec.Schedulers[1].Weights = &v1alpha1.Weights{}
	got.Spec.Schedulers[1].LoRAAdapters = []string{"sql"}
	if err := shared.client.Update(t.Context(), got, client.FieldOwner("kubectl-edit")); err != nil {
		t.Fatal(err)
	}
	if err := apply(t.Context(), entries(t, name, theirs), operator); err != nil {
		t.Fatal(err)
	}
	if s := stored(t, name).Spec.Schedulers[1]; s.Weights == nil || *s.Weights.Prefix != v1alpha1.DefaultPrefixWeight || len(s.LoRAAdapters) != 1 {
		t.Errorf("got %+v, want the person's weights and adapters in it", s)
	}

	// Who wants another's field is told whose it is.
	err := apply(t.Context(), entries(t, name, "{name: theirs, modelName: other, modelSelector: {}}"), "person")
	if !apierrors.IsConflict(err) || !strings.Contains(err.Error(), operator) || !strings.Contains(err.Error(), `.spec.schedulers[name="theirs"].modelName`) {
		t.Errorf("got %v, want a conflict that names the operator and the field", err)
	}

	// The operator takes its entry away, with what was edited in it.
	if err := apply(t.Context(), entries(t, name, ""), operator); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"mine"}, names(stored(t, name))); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// TestEntryOfTwoAppliers: what a person applied to the operator's entry outlives it, and an entry without a model is
// refused. So the operator has to take the entry away whole.
func TestEntryOfTwoAppliers(t *testing.T) {
	const name, operator = "two-appliers", "operator"
	mine := entries(t, name, "{name: mine, modelName: m, modelSelector: {}}")
	if err := unstructured.SetNestedField(mine.Object, true, "spec", "bbr", "enabled"); err != nil {
		t.Fatal(err)
	}
	if err := apply(t.Context(), mine, "person"); err != nil {
		t.Fatal(err)
	}
	if err := apply(t.Context(), entries(t, name, "{name: theirs, modelName: k, modelSelector: {}}"), operator); err != nil {
		t.Fatal(err)
	}
	if err := apply(t.Context(), entries(t, name, "{name: theirs, weights: {prefix: 0}}"), "another"); err != nil {
		t.Fatal(err)
	}
	if err := apply(t.Context(), entries(t, name, ""), operator); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "spec.schedulers[1].modelName: Required value") {
		t.Errorf("got %v, want a refusal for the model that is missing; it made %+v", err, stored(t, name).Spec.Schedulers)
	}
	got := stored(t, name)
	got.Spec.Schedulers = got.Spec.Schedulers[:1]
	if err := shared.client.Update(t.Context(), got, client.FieldOwner(operator)); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"mine"}, names(stored(t, name))); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// TestBBRIsAskedForWithTheSecondEntry: the rule holds for what two writers make together.
func TestBBRIsAskedForWithTheSecondEntry(t *testing.T) {
	const name = "asked-for"
	mine := entries(t, name, "{name: mine, modelName: m, modelSelector: {}}")
	if err := unstructured.SetNestedField(mine.Object, false, "spec", "bbr", "enabled"); err != nil {
		t.Fatal(err)
	}
	if err := apply(t.Context(), mine, "person"); err != nil {
		t.Fatal(err)
	}
	theirs := entries(t, name, "{name: theirs, modelName: k, modelSelector: {}}")
	if err := apply(t.Context(), theirs, "operator"); err == nil || !strings.Contains(err.Error(), v1alpha1.MessageBBRRequired) {
		t.Errorf("got %v, want %q", err, v1alpha1.MessageBBRRequired)
	}
	if err := unstructured.SetNestedField(theirs.Object, true, "spec", "bbr", "enabled"); err != nil {
		t.Fatal(err)
	}
	if err := apply(t.Context(), theirs, "operator", client.ForceOwnership); err != nil {
		t.Errorf("got %v, want the second entry with bbr enabled", err)
	}
}

// TestStatus: only the subresource writes it, its lists merge by their keys, and a word that is not known is refused.
func TestStatus(t *testing.T) {
	const name = "status"
	doc := object(t, strings.Replace(gatewayHead, "name: g", "name: "+name, 1)+"spec:\n  bbr: {enabled: true}\n"+oneScheduler+
		"status: {observedGeneration: 7, conditions: [{type: Ready, status: \"True\", reason: Forged, message: \"\", lastTransitionTime: \"2026-01-02T15:04:05Z\"}]}\n")
	if err := shared.client.Create(t.Context(), doc); err != nil {
		t.Fatal(err)
	}
	c := stored(t, name)
	if diff := cmp.Diff(v1alpha1.InferenceGatewayConfigStatus{}, c.Status); diff != "" {
		t.Errorf("a document's own status was taken, -want +got:\n%s", diff)
	}
	now := metav1.Now().Rfc3339Copy()
	condition := func(kind string) metav1.Condition {
		return metav1.Condition{Type: kind, Status: metav1.ConditionTrue, Reason: "Told", Message: "so", LastTransitionTime: now, ObservedGeneration: c.Generation}
	}
	var all []metav1.Condition
	for _, kind := range []string{v1alpha1.ConditionAccepted, v1alpha1.ConditionReady, v1alpha1.ConditionGatewayProgrammed, v1alpha1.ConditionBBRReady,
		v1alpha1.ConditionAdmissionBlocked, v1alpha1.ConditionServing} {
		all = append(all, condition(kind))
	}
	arn := "arn:aws:acm:eu-west-1:111122223333:certificate/0a1b"
	c.Status = v1alpha1.InferenceGatewayConfigStatus{
		Conditions:         all,
		ObservedGeneration: c.Generation,
		TLS:                &v1alpha1.TLSStatus{ACMArn: arn, IssuedAt: &now, DNSNames: []string{"gateway.example.com"}},
	}
	for _, state := range []v1alpha1.RolloutState{v1alpha1.RolloutPending, v1alpha1.RolloutProgressing, v1alpha1.RolloutAvailable, v1alpha1.RolloutDegraded} {
		c.Status.Schedulers = []v1alpha1.SchedulerStatus{{Name: "s", Conditions: []metav1.Condition{condition("Resolved")}, CurrentScheduler: v1alpha1.PickerLLMD, RolloutState: state}}
		want := c.DeepCopy()
		if err := shared.client.Status().Update(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want.Status, stored(t, name).Status); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
	}
	generation := c.Generation
	c.Status.Schedulers[0].RolloutState = "Lost"
	if err := shared.client.Status().Update(t.Context(), c); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "status.schedulers[0].rolloutState") {
		t.Errorf("got %v, want the unknown state refused", err)
	}
	c = stored(t, name)
	c.Status.Conditions = append(c.Status.Conditions, condition(v1alpha1.ConditionReady))
	if err := shared.client.Status().Update(t.Context(), c); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "Duplicate value") {
		t.Errorf("got %v, want the second Ready refused", err)
	}
	c = stored(t, name)
	c.Spec.Schedulers[0].ModelName, c.Status = "other", v1alpha1.InferenceGatewayConfigStatus{}
	if err := shared.client.Update(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	if c = stored(t, name); c.Generation != generation+1 || len(c.Status.Conditions) != len(all) {
		t.Errorf("got generation %d and %d conditions, want %d and the status as it was", c.Generation, len(c.Status.Conditions), generation+1)
	}
}

// TestExamples: both an API server and package config take what we show people.
func TestExamples(t *testing.T) {
	files, err := filepath.Glob("../../deploy/examples/*.yaml")
	if err != nil || len(files) < 5 {
		t.Fatalf("got %d examples, %v", len(files), err)
	}
	for _, path := range files {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if local, remote := judge(t, strings.Replace(string(text), "targetRef: {name: gateway}", "targetRef: {name: g}", 1), oneGateway); len(local)+len(remote) > 0 {
			t.Errorf("%s: config: %q, server: %q", path, local, remote)
		}
	}
}
