package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestKeepPanics: what a program that panics says of it is in the file, from its first line on; where there is none, nobody minds.
func TestKeepPanics(t *testing.T) {
	const asked = "SLUICE_TEST_PANICS_INTO"
	if file := os.Getenv(asked); file != "" {
		keepPanics(file)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			panic("nothing is left")
		}()
		<-ended
	}
	file := filepath.Join(t.TempDir(), "termination-log")
	run := func() string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestKeepPanics$")
		cmd.Env = append(os.Environ(), asked+"="+file)
		out, err := cmd.CombinedOutput()
		if err == nil || !strings.Contains(string(out), "panic: nothing is left") {
			t.Fatalf("got %v, %s, want a panic", err, out)
		}
		text, _ := os.ReadFile(file) // may not be there
		return string(text)
	}
	if text := run(); text != "" {
		t.Errorf("got %q in a file that was not there", text)
	}
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if text := run(); !strings.HasPrefix(text, "panic: nothing is left\n") || !strings.Contains(text, "goroutine ") {
		t.Errorf("got %q, want the panic and its stack", text)
	}
}
