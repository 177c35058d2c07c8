package proxy

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/fleet"
	"github.com/sluice-gateway/sluice/prefix"
)

// A prompt's tokens are wanted where an endpoint's KV events are followed, once, and only where the text says it all.
// Whoever gets the prompt holds its body, and holds up nothing else.
func TestPromptsWhoseTokensAreWanted(t *testing.T) {
	var got []Prompt
	r := newRig(t, Options{Prompt: func(p Prompt) {
		got = append(got, p)
		t.Cleanup(func() { p.Body.Close() })
	}}, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{}`) })
	text := strings.Repeat("some words ", 100)
	plain := `{"model":"m","messages":[{"role":"user","content":"` + text + `"}]}`
	if r.post(plain); len(got) != 0 {
		t.Errorf("got %+v without events, want nothing", got)
	}
	r.pool.Observe(0, 0, r.engines[0], fleet.UnknownReading(), nil)
	r.pool.FollowEvents(r.engines[0], prefix.FollowedFromEmpty)
	r.pool.ObserveBlocks(r.engines[0], []prefix.Event{{Kind: prefix.Stored, First: true, Hashes: []uint64{1}, Tokens: make([]uint32, 16), BlockSize: 16}})
	for name, body := range map[string]string{
		"a short prompt": `{"model":"m","prompt":"a"}`,
		"a long one":     `{"model":"m","prompt":"` + strings.Repeat(text, 2000) + `"}`,
	} {
		if r.post(body); len(got) != 0 {
			t.Errorf("%s: got %d prompts, want none", name, len(got))
		}
	}
	if a := r.post(plain); a.status != http.StatusOK || len(got) != 1 {
		t.Fatalf("got status %d and %d prompts, want 200 and one", a.status, len(got))
	}
	p := got[0]
	body, err := io.ReadAll(p.Body)
	if err != nil || string(body) != plain || p.Pool != "pool" || p.Endpoint != r.engines[0] || len(p.Blocks) == 0 {
		t.Errorf("got %q, %v of %s at %s, want the body", body, err, p.Pool, p.Endpoint)
	}
	if used := r.g.settings.Load().budget.Used(); used == 0 {
		t.Error("got no memory counted, want the body's until it is closed")
	}
	if err := p.Body.Close(); err != nil {
		t.Error(err)
	}
	ends := make([]int32, len(p.Blocks))
	for i := range ends {
		ends[i] = int32(16 * (i + 1))
	}
	r.pool.LearnPrompt(&prefix.Prompt{Blocks: p.Blocks, Ends: ends, Tokens: make([]uint32, 16*len(ends))})
	if r.post(plain); len(got) != 1 {
		t.Errorf("got %d prompts, want the one, since its tokens are known", len(got))
	}
}
