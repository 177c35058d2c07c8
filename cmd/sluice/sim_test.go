package main

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
)

// Sim says where each server is, and serves there until it is told to stop.
func TestSim(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	cmd := simCommand()
	lines, out := io.Pipe()
	cmd.SetOut(out)
	cmd.SetArgs([]string{"--profile", "l8-h100=2", "--profile", "l8-a10g", "--model", "llama", "--adapters", "sql,chat"})
	ended := make(chan error, 1)
	go func() { ended <- cmd.ExecuteContext(ctx) }()
	said := bufio.NewScanner(lines)
	for _, profile := range []string{"l8-h100", "l8-h100", "l8-a10g"} {
		if !said.Scan() {
			t.Fatalf("no line: %v", said.Err())
		}
		address, ok := strings.CutPrefix(said.Text(), "sluice: "+profile+" on ")
		if !ok {
			t.Fatalf("got line %q, want the address of %s", said.Text(), profile)
		}
		answer, err := http.Get(address + "/v1/models")
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(answer.Body)
		if _ = answer.Body.Close(); err != nil || !strings.Contains(string(body), `"id":"llama"`) || !strings.Contains(string(body), `"id":"chat"`) {
			t.Errorf("got models %s, %v", body, err)
		}
	}
	stop()
	if err := <-ended; err != nil {
		t.Errorf("got %v, want an orderly end", err)
	}
}

// What can't be is said before anything listens.
func TestSimRefusals(t *testing.T) {
	for args, want := range map[string]string{
		"":                             `name a profile with --profile NAME`,
		"--profile nothing":            `cannot find profile "nothing"`,
		"--profile l8-h100=many":       `cannot read --profile "l8-h100=many"`,
		"--profile l8-h100 --speed -1": "a --speed of 0 or less",
		"--profile l8-h100 --kv-events 127.0.0.1:1": "cannot read --kv-events",
	} {
		cmd := simCommand()
		cmd.SetOut(io.Discard)
		cmd.SetErr(io.Discard)
		cmd.SetArgs(strings.Fields(args))
		if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %s", args, err, want)
		}
	}
}
