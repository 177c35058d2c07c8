package main

import (
	"io"
	"strings"
	"testing"
)

// Flags that can't be used are told all at once, before anything is asked of an API server.
func TestControlFlags(t *testing.T) {
	cmd := controlCommand()
	cmd.SetOut(io.Discard)
	cmd.SetErr(io.Discard)
	cmd.SetArgs([]string{"--service-type", "Other", "--envoy-replicas", "0", "--lease", "1ms", "--ask-interval", "0s"})
	err := cmd.ExecuteContext(t.Context())
	if err == nil {
		t.Fatal("got no error")
	}
	for _, want := range []string{"--image", `--service-type "Other"`, "--envoy-replicas 0", "--lease 1ms", "--ask-interval 0s"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s in it", err, want)
		}
	}
}
