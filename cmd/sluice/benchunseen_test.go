package main

import (
	"strings"
	"testing"
)

// --unseen compares the default profile with itself, in the rows asked for or in its own.
func TestBenchUnseen(t *testing.T) {
	out, _, err := runBench(t, "--unseen", "--workload", "mixed", "--rate", "5", "--fleet", "l8-h100=1,l8-a10g=1", "--for", "30s", "--seeds", "1")
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if lines := strings.Split(strings.TrimSpace(out), "\n"); len(lines) != 3 || !strings.Contains(lines[2], "| mixed | 1×l8-h100 + 1×l8-a10g, mixed, 5/s |") || !strings.Contains(lines[2], " %") {
		t.Errorf("got\n%s\nwant a table of one row", out)
	}
	if _, _, err := runBench(t, "--unseen", "--policies", "latency"); err == nil {
		t.Error("--unseen with --policies: got no error")
	}
	rows, err := unseenRows()
	if err != nil {
		t.Fatal(err)
	}
	seen := make(map[string]bool)
	for _, r := range rows {
		seen[r.ID] = true
		if len(r.Requests(1, 1e9)) == 0 || len(r.Engines) == 0 {
			t.Errorf("row %s has no traffic or no fleet", r.ID)
		}
	}
	for _, id := range []string{"A1", "A7", "B1", "C1", "mixed", "lora"} {
		if !seen[id] {
			t.Errorf("row %s is missing", id)
		}
	}
}
