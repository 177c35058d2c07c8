package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/sim"
)

// talker is a server that answers every chat with three tokens and half of its prompt cached, and remembers what it was asked.
type talker struct {
	mu    sync.Mutex
	asked [][]liveMessage
	// spoil, if there is one, answers instead when it returns true.
	spoil func(w http.ResponseWriter, n int) bool
}

func (s *talker) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/v1/models" {
		fmt.Fprint(w, `{"data":[{"id":"parrot"}]}`)
		return
	}
	var body struct {
		Model    string
		Messages []liveMessage
	}
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil || body.Model != "parrot" || r.URL.Path != "/v1/chat/completions" {
		http.Error(w, "what?", http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	s.asked = append(s.asked, body.Messages)
	n := len(s.asked)
	s.mu.Unlock()
	if s.spoil != nil && s.spoil(w, n) {
		return
	}
	fmt.Fprintf(w, `data: {"choices":[{"delta":{"role":"assistant","content":""}}]}

data: {"choices":[{"delta":{"content":"answer"}}]}

data: {"choices":[{"delta":{"content":" %d"},"finish_reason":"stop"}],"error":null}

data: {"choices":[],"usage":{"prompt_tokens":10,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":5}}}

data: [DONE]

`, n)
}

// play plays requests at a talker.
func (s *talker) play(t *testing.T, requests ...sim.Request) (liveFigures, error) {
	t.Helper()
	server := httptest.NewServer(s)
	defer server.Close()
	p := livePlay{live: &live{model: "parrot", length: time.Hour, size: 1, ttft: time.Hour, tpot: time.Hour, client: server.Client()}, url: server.URL, words: 1}
	return p.run(t.Context(), requests)
}

// alone is a request of so many tokens.
func alone(id uint64) sim.Request {
	return sim.Request{Follows: -1, Prompt: []sim.Segment{{ID: id, Tokens: 4}}, Output: 3}
}

func TestLiveTurnsRepeatTheAnswersBeforeThem(t *testing.T) {
	s := &talker{}
	f, err := s.play(t,
		sim.Request{Follows: -1, Prompt: []sim.Segment{{ID: 1, Tokens: 5}, {ID: 2, Tokens: 3}}, Reply: 3, Output: 3},
		sim.Request{Follows: 0, Prompt: []sim.Segment{{ID: 1, Tokens: 5}, {ID: 2, Tokens: 3}, {ID: 3, Tokens: 3}, {ID: 4, Tokens: 2}}, Reply: 5, Output: 3})
	if err != nil {
		t.Fatal(err)
	}
	if len(s.asked) != 2 || len(s.asked[1]) != 4 {
		t.Fatalf("got %v, want two requests, the second of four messages", s.asked)
	}
	first, second := s.asked[0], s.asked[1]
	if first[0] != second[0] || first[1] != second[1] || first[0].Role != "system" || len(strings.Fields(first[0].Content)) != 5 || first[1].Role != "user" {
		t.Errorf("got %v and then %v, want the same beginning: five words of the system, three of the user", first, second)
	}
	if second[2] != (liveMessage{"assistant", "answer 1"}) || second[3].Role != "user" {
		t.Errorf("got %v, want the answer before it repeated", second)
	}
	if f[liveHits] != .5 || f[liveLost] != 0 || f[liveGood] != 1 || !(f[liveMean] > 0 && f[liveTotal95] >= f[liveP50]) {
		t.Errorf("got %v, want half the prompts cached, all good", f)
	}
}

func TestLiveCountsWhatBreaksAsLost(t *testing.T) {
	for name, spoil := range map[string]func(w http.ResponseWriter){
		"refused": func(w http.ResponseWriter) { w.WriteHeader(http.StatusTooManyRequests) },
		"broken off": func(w http.ResponseWriter) {
			fmt.Fprint(w, "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n")
		},
		"an error event": func(w http.ResponseWriter) {
			fmt.Fprint(w, "data: {\"error\":{\"message\":\"no\"}}\n\ndata: [DONE]\n\n")
		},
		"no text": func(w http.ResponseWriter) { fmt.Fprint(w, "data: [DONE]\n\n") },
		"no JSON": func(w http.ResponseWriter) { fmt.Fprint(w, "data: {\n\n") },
	} {
		s := &talker{spoil: func(w http.ResponseWriter, n int) bool {
			if n == 1 {
				spoil(w)
			}
			return n == 1
		}}
		f, err := s.play(t, alone(1), alone(2), alone(3), alone(4))
		if err != nil || f[liveLost] != .25 || f[liveGood] != .75 {
			t.Errorf("%s: got lost %v, good %v, error %v, want a quarter lost and the rest good", name, f[liveLost], f[liveGood], err)
		}
	}
	s := &talker{spoil: func(w http.ResponseWriter, _ int) bool { w.WriteHeader(http.StatusBadGateway); return true }}
	if _, err := s.play(t, alone(1)); err == nil || !strings.Contains(err.Error(), "502") {
		t.Errorf("got %v of a target that answers nothing, want an error with the status", err)
	}
}

func TestBenchLive(t *testing.T) {
	var servers [2]talker
	args := []string{"--live", "--workload", "chat", "--rate", "40", "--for", "500ms", "--seeds", "2", "--size", ".1"}
	for i, name := range []string{"ours", "theirs"} {
		server := httptest.NewServer(&servers[i])
		defer server.Close()
		args = append(args, "--target", name+"="+server.URL+"/v1")
	}
	out, _, err := runBench(t, args...)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"chat at real servers, model parrot: 2 rounds of 500ms each", "mean of rounds, too few rounds for an interval, which takes 3", "ours ", "against theirs ", "50.0%"} {
		if !strings.Contains(out, want) {
			t.Errorf("got\n%s\nwithout %q", out, want)
		}
	}
	words := map[string]bool{}
	for _, m := range servers[0].asked {
		words[m[0].Content] = true
	}
	for _, m := range servers[1].asked {
		if words[m[0].Content] {
			t.Errorf("got %q at both targets, want words of their own, which engines behind both have not cached", m[0].Content)
		}
	}
	out, _, err = runBench(t, append(args, "--json")...)
	var table liveTable
	if err != nil || json.Unmarshal([]byte(out), &table) != nil || len(table.Targets) != 2 || table.Targets[1].Ratios["TTFT P50"].Mean <= 0 {
		t.Errorf("got %s, %v, want two targets as JSON", out, err)
	}
}

// A trace is the same in every round, and what one round has left in caches must not serve the next.
func TestLiveRoundsOfATraceHaveWordsOfTheirOwn(t *testing.T) {
	trace := filepath.Join(t.TempDir(), "trace.jsonl")
	lines := `{"timestamp":0,"input_length":20,"output_length":3,"hash_ids":[1]}
{"timestamp":3000,"input_length":20,"output_length":3,"hash_ids":[1]}
`
	if err := os.WriteFile(trace, []byte(lines), 0o644); err != nil {
		t.Fatal(err)
	}
	var s talker
	server := httptest.NewServer(&s)
	defer server.Close()
	if _, _, err := runBench(t, "--live", "--trace", trace, "--speed", "20", "--for", "500ms", "--seeds", "2", "--target", "a="+server.URL); err != nil {
		t.Fatal(err)
	}
	words := map[string]int{}
	for _, m := range s.asked {
		words[m[0].Content]++
	}
	if len(s.asked) != 4 || len(words) != 2 {
		t.Errorf("got %d requests of %d kinds, want 4 of 2: one kind a round", len(s.asked), len(words))
	}
}

func TestBenchLiveRefuses(t *testing.T) {
	good := []string{"--live", "--target", "a=http://127.0.0.1:1", "--workload", "chat", "--rate", "1"}
	for want, args := range map[string][]string{
		"needs 1 to 32 targets":  {"--live", "--workload", "chat", "--rate", "1"},
		"want NAME=URL":          append(good, "--target", "127.0.0.1:8080"),
		"needs --rate":           {"--live", "--target", "a=http://127.0.0.1:1", "--workload", "chat"},
		"needs --workload or":    {"--live", "--target", "a=http://127.0.0.1:1"},
		"--seeds 0":              append(good, "--seeds", "0"),
		"are not for --live":     append(good, "--check"),
		"--markdown, --check":    append(good, "--markdown", "page.md"),
		"name one with --model":  good,
		"cannot find workload":   {"--live", "--target", "a=http://127.0.0.1:1", "--workload", "none", "--rate", "1"},
		"answered none of":       append(good, "--model", "x", "--seeds", "1", "--for", "1s", "--rate", "20"),
		"--target is for --live": {"--target", "a=http://127.0.0.1:1"},
		"--size is for --live":   {"--size", "2"},
	} {
		if _, _, err := runBench(t, args...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: got %v, want …%s…", args, err, want)
		}
	}
}

func FuzzLiveEvents(f *testing.F) {
	f.Add([]byte("data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\ndata: [DONE]\n\n"))
	f.Add([]byte(": comment\nevent: x\ndata:{\"usage\":{\"prompt_tokens\":3,\"prompt_tokens_details\":null},\"error\":null}\r\n\r\n"))
	f.Add([]byte("data: {\"choices\":null,\"usage\":null}\ndata: 1\n"))
	f.Fuzz(func(t *testing.T, stream []byte) {
		n := 0
		err := eachEvent(bytes.NewReader(stream), func(*liveEvent) error { n++; return nil })
		if err == nil && !bytes.Contains(stream, []byte("[DONE]")) {
			t.Errorf("got no error of a stream without an end")
		}
		if n > bytes.Count(stream, []byte("data:")) {
			t.Errorf("got %d events", n)
		}
	})
}

// Two rounds make no interval, whatever they differ by; of three it is printed in few letters. Lines fit a page.
func TestLiveTableIsNarrow(t *testing.T) {
	const name = "a gateway"
	for rounds, want := range map[int]string{2: "+212.5%", 3: "(>÷100…>×100)"} {
		table := &liveTable{Row: "chat", Model: "parrot", Rounds: rounds}
		var first, other []liveFigures
		for i, factor := range []float64{9.765625, 1, .0001}[:rounds] {
			var a, b liveFigures
			for m := range a {
				a[m], b[m] = factor*float64(m+1)*100, float64(m+1)*100
			}
			if i == 2 {
				b[liveMean] *= 10000
			}
			first, other = append(first, a), append(other, b)
		}
		table.add(name, first, first)
		table.add(name+" of another make", other, first)
		text := table.String()
		if !strings.Contains(text, want) || rounds == 2 && strings.Contains(text, "…") {
			t.Errorf("%d rounds: got\n%s\nwithout %q", rounds, text, want)
		}
		for line := range strings.Lines(text) {
			if n := len([]rune(strings.TrimSuffix(line, "\n"))); n > liveColumns {
				t.Errorf("%d rounds: a line of %d columns: %s", rounds, n, line)
			}
		}
		if ratio := table.Targets[1].Ratios["TTFT P50"]; math.IsNaN(ratio.Low) != (rounds == 2) {
			t.Errorf("%d rounds: got %+v, want bounds from three rounds on", rounds, ratio)
		}
	}
}

func TestLiveProgressCountsSeconds(t *testing.T) {
	began := time.Unix(1000, 0)
	p := &liveProgress{of: 4, length: time.Minute, began: began}
	f := func(at time.Duration, want string) {
		t.Helper()
		if got := p.words(began.Add(at)); got != want {
			t.Errorf("after %v: got %q, want %q", at, got, want)
		}
	}
	f(0, "run 1 of 4 is about to begin")
	p.begin("ours", began)
	f(2*time.Second, "run 1 of 4, at ours, for 2s, about 3m58s more")
	f(3*time.Second, "run 1 of 4, at ours, for 3s, about 3m57s more")
	f(70*time.Second, "run 1 of 4, at ours, for 1m10s, about 3m0s more")
	p.begin("theirs", began.Add(80*time.Second))
	f(90*time.Second, "run 2 of 4, at theirs, for 10s, about 3m50s more")
	p.begin("ours", began.Add(140*time.Second))
	p.begin("theirs", began.Add(200*time.Second))
	f(290*time.Second, "run 4 of 4, at theirs, for 1m30s, waiting for the last answers")
}
