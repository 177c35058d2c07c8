//go:build vllm && unix

package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"text/template"
	"time"
)

// engineBlock is how many tokens a block of the servers' caches has.
const engineBlock = 32

var eventsConfiguration = template.Must(template.New("gateway.yaml").Parse(tinyEndpoints + `{{- range .}}
  - address: {{.Address}}
    labels:
      app: tiny
    kvEvents:
      port: {{.Events}}
      replayPort: {{.Replay}}
{{- end}}
`))

// writeEventsConfiguration writes a file that tells the gateway where the servers publish their KV events.
func writeEventsConfiguration(t *testing.T, servers []*server) string {
	t.Helper()
	type entry struct {
		Address        string
		Events, Replay int
	}
	var entries []entry
	for _, s := range servers {
		_, port, _ := net.SplitHostPort(s.events)
		events, err := strconv.Atoi(port)
		if err != nil {
			t.Fatal(err)
		}
		entries = append(entries, entry{s.address, events, events + 1})
	}
	var text bytes.Buffer
	if err := eventsConfiguration.Execute(&text, entries); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "gateway.yaml")
	if err := os.WriteFile(path, text.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// expectation is what the gateway's record says of one request.
type expectation struct {
	ID          string `json:"id"`
	Cached      int    `json:"cached"`
	CachedExact bool   `json:"cachedExact"`
}

// expectations reads the record; the last decision of a request stands.
func expectations(t *testing.T, path string) map[string]expectation {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]expectation{}
	for line := range bytes.Lines(text) {
		var e expectation
		if err := json.Unmarshal(line, &e); err != nil {
			t.Fatalf("cannot read the record's line %q: %v", line, err)
		}
		all[e.ID] = e
	}
	return all
}

// agreement counts how expectations of what a cache holds and the engine's own counts compare.
type agreement struct {
	requests        int
	equal, near     int // the same number of tokens; within one block of the engine
	over            int // expected more than was there
	expected, found int // tokens
}

// add compares one expectation.
func (a *agreement) add(e *expectation, end *event) {
	a.requests, a.expected, a.found = a.requests+1, a.expected+e.Cached, a.found+end.CachedTokens
	switch beyond := end.CachedTokens - e.Cached; {
	case beyond == 0:
		a.equal, a.near = a.equal+1, a.near+1
	case beyond >= -engineBlock && beyond <= engineBlock:
		a.near++
	}
	if e.Cached > end.CachedTokens {
		a.over++
	}
}

func (a *agreement) String() string {
	return fmt.Sprintf("%3d requests: %3d equal, %3d within a block of %d tokens, %d too high; %d tokens expected, %d found",
		a.requests, a.equal, a.near, engineBlock, a.over, a.expected, a.found)
}

// exactIndex sends prompts of every kind that a cache may hold a part of, one after another, through a gateway that
// follows the servers' KV events, and compares how many tokens it expected the server it chose to hold with how many
// that says it found. The caches are far smaller than what is sent, so blocks are evicted all the time. M20.
func exactIndex(t *testing.T, servers []*server) {
	for _, s := range servers {
		for _, adapter := range []string{firstAdapter, laterAdapter} {
			s.loadAdapter(t, adapter)
			defer s.unloadAdapter(t, adapter)
		}
	}
	record := filepath.Join(t.TempDir(), "decisions.jsonl")
	g := startGateway(t, []string{vllmModel, firstAdapter, laterAdapter}, "-f", writeEventsConfiguration(t, servers), "--record", record)
	eventually(t, "the gateway to follow the servers' events", time.Minute, func() bool {
		n := 0
		for _, s := range servers {
			if g.stderr.holding(0, "prefixes are exact", s.address) {
				n++
			}
		}
		return n == len(servers)
	})
	all := startClient(t, "exact", g.url, "--requests", "200", "--tokens", "8").finish(5 * time.Minute)
	g.stop(t) // which writes the rest of the record

	expected, counted := expectations(t, record), map[string]*agreement{}
	of := func(kind string) *agreement {
		if counted[kind] == nil {
			counted[kind] = &agreement{}
		}
		return counted[kind]
	}
	for _, end := range all {
		e, found := expected[end.RequestID]
		if !found {
			t.Errorf("got no record of %s, want one of each request", end.RequestID)
			continue
		}
		if e.Cached != end.CachedTokens {
			t.Logf("%s, %s at %s: %d tokens of %d expected, %d found; exact: %v", end.RequestID, end.Kind, end.Endpoint, e.Cached, end.PromptTokens, end.CachedTokens, e.CachedExact)
		}
		of(end.Kind).add(&e, &end)
		of("all").add(&e, &end)
		if e.Cached > 0 || end.CachedTokens > 0 {
			of("warm").add(&e, &end)
		}
		if e.CachedExact {
			of("exact").add(&e, &end)
		}
	}
	for _, kind := range slices.Sorted(maps.Keys(counted)) {
		t.Logf("%-8s%v", kind, counted[kind])
	}
	// The gateway sees what prompts share to the byte, and leaves out tokens that may change with what follows: the last word before
	// prompts part, and what the template writes at a prompt's end. A block of the engine that ends with one of these is missed.
	for kind, equal := range map[string]float64{"all": .95, "warm": .92, "exact": .95} {
		if a := of(kind); a.requests == 0 || float64(a.near) < .98*float64(a.requests) || float64(a.equal) < equal*float64(a.requests) {
			t.Errorf("%s: got %d of %d expectations equal and %d within a block, want at least %.0f %% and 98 %%", kind, a.equal, a.requests, a.near, 100*equal)
		}
	}
	if a := of("repeat"); a.equal < a.requests-1 {
		t.Errorf("got %d of %d expectations of repeated prompts equal, want all but one", a.equal, a.requests)
	}
	if a := of("all"); a.requests != 200 || 50*a.over > a.requests {
		t.Errorf("got %d requests, of %d of which more was expected in the cache than was there, want 200 and at most 2 %%", a.requests, a.over)
	}
}
