package config

import (
	"path/filepath"
	"strings"
	"testing"
)

// TestExamples: what we show people is right, alone or beside the gateway that it is for.
func TestExamples(t *testing.T) {
	files, err := filepath.Glob("../deploy/examples/*.yaml")
	if err != nil || len(files) < 5 {
		t.Fatalf("got %d examples, %v", len(files), err)
	}
	gateway := string(readFile(t, "../deploy/examples/one-model.yaml"))
	for _, path := range files {
		text := string(readFile(t, path))
		if !strings.Contains(text, "kind: InferenceGatewayConfig") {
			text += "---\n" + gateway
		}
		if _, err := Parse([]byte(text), path); err != nil {
			t.Error(err)
		}
	}
}
