package v1alpha2

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
)

// TestMarkersAgree holds the markers, which say what an API server takes, against the constants, which documents are checked
// by.
func TestMarkersAgree(t *testing.T) {
	text, err := os.ReadFile("inferencemodelrewrite.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, marker := range []string{fmt.Sprintf("Maximum=%d", MaxTargetWeight), "Enum=" + PoolGroup + ";" + ExtensionGroup + "\n", "Enum=" + PoolKind + "\n",
		"default=" + PoolGroup + "\n", "default=" + PoolKind + "\n", "Enum=" + MatchExact + "\n"} {
		if !strings.Contains(string(text), marker) {
			t.Errorf("got no marker %q", marker)
		}
	}
}

// A document as it stands in a cluster is read and written with every field.
func TestWire(t *testing.T) {
	const doc = `{"kind":"InferenceModelRewrite","apiVersion":"llm-d.ai/v1alpha2","metadata":{"name":"a"},"spec":{"poolRef":{"group":"g","kind":"k","name":"p"},` +
		`"rules":[{"matches":[{"model":{"type":"Exact","value":"v"}}],"targets":[{"weight":1,"modelRewrite":"m"}]}]},` +
		`"status":{"conditions":[{"type":"Accepted","status":"True","lastTransitionTime":null,"reason":"r","message":"m"}]}}`
	var r InferenceModelRewrite
	if err := json.Unmarshal([]byte(doc), &r); err != nil {
		t.Fatal(err)
	}
	if got, err := json.Marshal(r); err != nil || string(got) != doc {
		t.Errorf("got %s, %v; want %s", got, err, doc)
	}
	const objective = `{"kind":"InferenceObjective","apiVersion":"llm-d.ai/v1alpha2","metadata":{"name":"a"},"spec":{"priority":-9007199254740993,"poolRef":{"name":"p"}},` +
		`"status":{"conditions":[{"type":"Accepted","status":"True","lastTransitionTime":null,"reason":"r","message":"m"}]}}`
	var o InferenceObjective
	if err := json.Unmarshal([]byte(objective), &o); err != nil {
		t.Fatal(err)
	}
	if got, err := json.Marshal(o); err != nil || string(got) != objective {
		t.Errorf("got %s, %v; want %s", got, err, objective)
	}
}
