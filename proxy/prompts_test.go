package proxy

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/fleet"
	"github.com/sluice-gateway/sluice/front"
	"github.com/sluice-gateway/sluice/openai"
	"github.com/sluice-gateway/sluice/prefix"
)

// follow has the first engine's KV events be known.
func (r *rig) follow() {
	r.pool.Observe(0, 0, r.engines[0], fleet.UnknownReading(), nil)
	r.pool.FollowEvents(r.engines[0], prefix.FollowedFromEmpty)
	r.pool.ObserveBlocks(r.engines[0], []prefix.Event{{Kind: prefix.Stored, First: true, Hashes: []uint64{1}, Tokens: make([]uint32, 16), BlockSize: 16}})
}

// Prompts that wait for their tokens take no memory that requests need.
func TestWaitingPromptsLeaveRoom(t *testing.T) {
	const budget = 256 << 10
	waiting := 0
	r := newRig(t, Options{Options: front.Options{BodyBudget: budget, Prompt: func(p front.Prompt) {
		waiting++
		t.Cleanup(func() { p.Body.Close() })
	}}}, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{}`) })
	r.follow()
	for i := range 40 {
		a := r.post(fmt.Sprintf(`{"model":"m","prompt":"%d %s"}`, i, strings.Repeat("words and ", 1500)))
		if a.status != http.StatusOK {
			t.Fatalf("request %d: got %d %s, want no more memory taken than leaves room for it", i, a.status, a.body)
		}
	}
	if used := r.bodyBytes(); waiting == 0 || used < budget/4 || used > 3*budget/4 {
		t.Errorf("got %d prompts waiting with %d bytes, want about half of %d", waiting, used, budget)
	}
}

// A prompt's tokens are wanted where an endpoint's KV events are followed, once, and only where the text says it all.
// Whoever gets the prompt holds its body, and holds up nothing else.
func TestPromptsWhoseTokensAreWanted(t *testing.T) {
	var got []front.Prompt
	r := newRig(t, Options{Options: front.Options{Prompt: func(p front.Prompt) {
		got = append(got, p)
		t.Cleanup(func() { p.Body.Close() })
	}}}, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{}`) })
	text := strings.Repeat("some words ", 100)
	plain := `{"model":"m","messages":[{"role":"user","content":"` + text + `"}]}`
	if r.post(plain); len(got) != 0 {
		t.Errorf("got %+v without events, want nothing", got)
	}
	r.follow()
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
	if used := r.bodyBytes(); used == 0 {
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

// A prompt that parts from a known one inside a prefix block is expected to be cached up to there. The engine of this test has a token for each
// byte of the prompt as it is hashed.
func TestCachedUpToWherePromptsPart(t *testing.T) {
	var got []front.Prompt
	ended := make(chan front.Ended, 4)
	r := newRig(t, Options{Options: front.Options{Prompt: func(p front.Prompt) {
		got = append(got, p)
		t.Cleanup(func() { p.Body.Close() })
	}, Ended: func(e front.Ended) { ended <- e }}}, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"usage":{"prompt_tokens":1000,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":1}}}`)
	})
	r.pool.Observe(0, 0, r.engines[0], fleet.UnknownReading(), nil)
	r.pool.FollowEvents(r.engines[0], prefix.FollowedFromEmpty)
	stored := func(tokens []uint32) {
		e := prefix.Event{Kind: prefix.Stored, First: true, Tokens: tokens[:len(tokens)/16*16], BlockSize: 16}
		for k := range len(tokens) / 16 {
			e.Hashes = append(e.Hashes, uint64(len(tokens)<<16|k))
		}
		r.pool.ObserveBlocks(r.engines[0], []prefix.Event{e})
	}
	stored(make([]uint32, 16))
	text := strings.Repeat("some words ", 100)
	begin := `[{"role":"user","content":"`
	r.post(`{"model":"m","messages":` + begin + text + `"}]}`)
	<-ended
	if len(got) != 1 {
		t.Fatalf("got %d prompts, want one", len(got))
	}
	p := got[0]
	body, err := io.ReadAll(p.Body)
	if err != nil || p.Body.Close() != nil {
		t.Fatalf("cannot read the body: %v", err)
	}
	texts, ok := openai.TextsOf(body, len(p.Blocks))
	if !ok {
		t.Fatal("got no texts of the prompt")
	}
	q := &prefix.Prompt{Blocks: p.Blocks, Head: texts.Head}
	for i, b := range []byte("m" + begin + text + `"}]`) {
		q.Tokens, q.Certain = append(q.Tokens, uint32(b)), append(q.Certain, int32(i+1))
	}
	for _, end := range texts.Ends {
		q.Ends = append(q.Ends, int32(end))
	}
	stored(q.Tokens)
	r.pool.LearnPrompt(q)
	for _, n := range []int{300, 700, 711, 712} {
		r.post(`{"model":"m","messages":` + begin + text[:n] + strings.Repeat("#", n) + `"}]}`)
		if e, want := <-ended, (1+len(begin)+n)/16*16; e.ExpectedTokens != want {
			t.Errorf("they share %d bytes: got %d tokens expected, want %d", 1+len(begin)+n, e.ExpectedTokens, want)
		}
	}
}
