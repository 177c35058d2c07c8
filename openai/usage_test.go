package openai

import (
	"bytes"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func recorded(t testing.TB, name string) []byte {
	t.Helper()
	p, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// feed gives p to a reader in pieces of n bytes.
func feed(sse bool, p []byte, n int) *UsageReader {
	u := NewUsageReader(sse)
	for len(p) > n {
		_, _ = u.Write(p[:n])
		p = p[n:]
	}
	_, _ = u.Write(p)
	_ = u.Close()
	return u
}

func TestUsageOfRecordedStreams(t *testing.T) {
	for name, want := range map[string]Usage{
		"vllm-0.32.0-chat-stream.txt":         {PromptTokens: 15, OutputTokens: 4, Seen: true},
		"llama-server-b11434-chat-stream.txt": {PromptTokens: 14, CachedTokens: 13, OutputTokens: 3, Seen: true},
	} {
		p := recorded(t, name)
		// S01: whatever the pieces, also the usage event and the end marker apart.
		for n := 1; n <= len(p); n++ {
			u := feed(true, p, n)
			if u.Usage() != want || u.Events() != 6 {
				t.Fatalf("%s in pieces of %d: got %+v, %d events, want %+v, 6", name, n, u.Usage(), u.Events(), want)
			}
		}
	}
	for name, want := range map[string]Usage{
		"vllm-0.32.0-chat.json":      {PromptTokens: 15, OutputTokens: 4, Seen: true},
		"vllm-0.32.0-responses.json": {PromptTokens: 15, OutputTokens: 4, Seen: true},
	} {
		p := recorded(t, name)
		for n := 1; n <= len(p); n++ {
			if got := feed(false, p, n).Usage(); got != want {
				t.Fatalf("%s in pieces of %d: got %+v, want %+v", name, n, got, want)
			}
		}
	}
}

func TestUsageOfStreams(t *testing.T) {
	type result struct {
		Usage  Usage
		Events int
	}
	openai := Usage{PromptTokens: 7, OutputTokens: 3, Seen: true}
	for stream, want := range map[string]result{
		// S03: no space after the colon, other fields, comments.
		"event:x\nid:1\ndata:{\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":3}}\n\n: ping\n\ndata:[DONE]\n\n": {openai, 1},
		// Line ends of all three kinds.
		"data: {}\r\n\r\ndata: {\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":3}}\r\n\r\n": {openai, 2},
		"data: {}\r\rdata: {\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":3}}\r\r":         {openai, 2},
		// A last line without an end.
		"data: {}\n\ndata: {\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":3}}": {openai, 2},
		// S04: nested in the response.
		"event: response.completed\ndata: {\"response\":{\"x\":[],\"usage\":{\"input_tokens\":7,\"output_tokens\":3,\"input_tokens_details\":{\"cached_tokens\":5}}}}\n\n": {
			Usage{PromptTokens: 7, CachedTokens: 5, OutputTokens: 3, Seen: true}, 1},
		// S07: the messages API repeats cache counts; they are beside its input_tokens.
		"data: {\"message\":{\"usage\":{\"input_tokens\":4,\"cache_read_input_tokens\":90,\"cache_creation_input_tokens\":6,\"output_tokens\":1}}}\n\n" +
			"data: {\"usage\":{\"input_tokens\":4,\"cache_read_input_tokens\":90,\"cache_creation_input_tokens\":6,\"output_tokens\":20}}\n\n": {
			Usage{PromptTokens: 100, CachedTokens: 90, OutputTokens: 20, Seen: true}, 2},
		// S12: the end marker inside text, or with something beside it.
		"data: {\"choices\":[{\"delta\":{\"content\":\"data: [DONE]\\n\"}}]}\n\ndata: [DONE]x\n\n": {Usage{}, 2},
		// The word usage inside text is text.
		"data: {\"choices\":[{\"delta\":{\"content\":\"\\\"usage\\\":{\\\"prompt_tokens\\\":9}\"}}]}\n\n": {Usage{}, 1},
		"data: {\"choices\":[{\"usage\":{\"prompt_tokens\":9}}]}\n\n":                                     {Usage{}, 1},
		// B14: odd types are passed over, their neighbours count.
		"data: {\"usage\":\"7\"}\n\ndata: {\"usage\":null}\n\ndata: {\"usage\":[1]}\n\n": {Usage{}, 3},
		"data: {\"usage\":{\"prompt_tokens\":\"7\",\"completion_tokens\":3,\"prompt_tokens_details\":0}}\n\n": {
			Usage{OutputTokens: 3, Seen: true}, 1},
		"data: {\"usage\":{\"prompt_tokens\":-7,\"completion_tokens\":3.5,\"prompt_tokens_details\":{\"cached_tokens\":1e9}}}\n\n": {Usage{}, 1},
		"data: {\"usage\":{\"prompt_tokens\":99999999999999999999999,\"completion_tokens\":3}}\n\n":                                {Usage{OutputTokens: 3, Seen: true}, 1},
		"data: {\"usage\":{\"prompt_tokens\":7\n\ndata: {\"usage\":{\"completion_tokens\":3}}\n\n":                                 {openai, 2},
		// S21: one bad event doesn't end the reading.
		"data: {{{\"usage\"\n\ndata: {\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":3}}\n\n": {openai, 2},
		"": {},
	} {
		for n := 1; n <= len(stream)+1; n++ {
			u := feed(true, []byte(stream), n)
			if d := cmp.Diff(want, result{u.Usage(), u.Events()}); d != "" {
				t.Fatalf("%q in pieces of %d, want -, got +:\n%s", stream, n, d)
			}
		}
	}
}

// S25: an empty piece changes nothing, neither between lines nor inside one.
func TestEmptyPieceChangesNothing(t *testing.T) {
	u := NewUsageReader(true)
	for _, p := range []string{"data: {\"usage\":{\"prompt_", "", "tokens\":7,\"completion_tokens\":3}}\n", "", "\n", ""} {
		_, _ = u.Write([]byte(p))
	}
	if want := (Usage{PromptTokens: 7, OutputTokens: 3, Seen: true}); u.Usage() != want {
		t.Errorf("got %+v, want %+v", u.Usage(), want)
	}
}

func TestUsageOfPlainReplies(t *testing.T) {
	for body, want := range map[string]Usage{
		`{"usage":{"prompt_tokens":7,"completion_tokens":3}}`:                      {PromptTokens: 7, OutputTokens: 3, Seen: true},
		`{"data":[{"usage":{"prompt_tokens":9}}],"usage" : {"prompt_tokens":7} }`:  {PromptTokens: 7, Seen: true},
		`{"a":"usage","b":{"prompt_tokens":9},"x":"\"usage\":{"}`:                  {},
		`{"a":"\\","usage":{"prompt_tokens":7}}`:                                   {PromptTokens: 7, Seen: true},
		`{"usage":"7","x":1}`:                                                      {},
		`{"usage":null}`:                                                           {},
		`{"usage":{"prompt_tokens":7,"x":"}","y":[1,{"z":","}]},"b":{"usage":{}}}`: {PromptTokens: 7, Seen: true},
		`{"a":"网关","usage":{"prompt_tokens":7}}`:                                   {PromptTokens: 7, Seen: true},
		`}}]]{"usage":{"prompt_tokens":7}}`:                                        {},
		`{"usage":{"prompt_tokens":7`:                                              {},
		"":                                                                         {},
	} {
		for n := 1; n <= len(body)+1; n++ {
			if got := feed(false, []byte(body), n).Usage(); got != want {
				t.Fatalf("%s in pieces of %d: got %+v, want %+v", body, n, got, want)
			}
		}
	}
}

func TestGiantLinesAreNotHeld(t *testing.T) {
	u := NewUsageReader(true)
	piece := []byte("data: " + strings.Repeat("x", 64<<10))
	for range 100 {
		_, _ = u.Write(piece)
	}
	if cap(u.held) > 2*maxLine {
		t.Errorf("%d bytes held of a line without end, want at most %d", cap(u.held), 2*maxLine)
	}
	_, _ = u.Write([]byte("\ndata: {\"usage\":{\"prompt_tokens\":7}}\n"))
	if u.Usage().PromptTokens != 7 || u.Events() != 1 {
		t.Errorf("after a giant line: got %+v and %d events, want 7 prompt tokens and 1", u.Usage(), u.Events())
	}
	u = NewUsageReader(false)
	_, _ = u.Write([]byte(`{"usage":["`))
	for range 100 {
		_, _ = u.Write(piece)
	}
	if cap(u.held) > 2*maxUsage {
		t.Errorf("%d bytes held of a usage without end, want at most %d", cap(u.held), 2*maxUsage)
	}
}

func TestCompleteLines(t *testing.T) {
	for p, want := range map[string]int{
		"": 0, "data": 0, "a\n": 2, "a\nb": 2, "a\r\nb": 3, "a\rb": 2, "a\n\nb\r": 5,
	} {
		if got := CompleteLines([]byte(p)); got != want {
			t.Errorf("CompleteLines(%q): got %d, want %d", p, got, want)
		}
	}
}

func TestUsageReaderAllocations(t *testing.T) {
	u := NewUsageReader(true)
	event := []byte("data: {\"choices\":[{\"delta\":{\"content\":\"hi\"}}],\"usage\":{\"prompt_tokens\":7,\"prompt_tokens_details\":{\"cached_tokens\":2}}}\n\n")
	_, _ = u.Write(event[:20])
	_, _ = u.Write(event[20:])
	if got := testing.AllocsPerRun(100, func() {
		_, _ = u.Write(event)
		_, _ = u.Write(event[:20])
		_, _ = u.Write(event[20:])
	}); got != 0 {
		t.Errorf("Write: got %v allocations, want 0", got)
	}
	if u.Usage().CachedTokens != 2 {
		t.Errorf("got %+v, want 2 cached tokens", u.Usage())
	}
}

func FuzzUsage(f *testing.F) {
	for _, name := range []string{"vllm-0.32.0-chat-stream.txt", "llama-server-b11434-chat-stream.txt"} {
		f.Add(recorded(f, name), true, uint64(1))
	}
	f.Add(recorded(f, "vllm-0.32.0-responses.json"), false, uint64(2))
	f.Add([]byte("data:{\"message\":{\"usage\":{\"input_tokens\":1}}}\r\rdata: [DONE]\r\n"), true, uint64(3))
	f.Add([]byte(`{"a":"\"","usage":{"prompt_tokens":"7","x":[{}]}}`), false, uint64(4))
	f.Fuzz(func(t *testing.T, p []byte, sse bool, seed uint64) {
		keep := bytes.Clone(p)
		whole := feed(sse, p, len(p)+1)
		rng := rand.New(rand.NewPCG(seed, 1))
		parts := NewUsageReader(sse)
		for rest := p; ; {
			n := rng.IntN(min(len(rest), 100) + 1)
			_, _ = parts.Write(rest[:n])
			if rest = rest[n:]; len(rest) == 0 {
				break
			}
		}
		_ = parts.Close()
		if whole.Usage() != parts.Usage() || whole.Events() != parts.Events() {
			t.Errorf("%q: got %+v in one piece, %+v in parts", p, whole.Usage(), parts.Usage())
		}
		if !bytes.Equal(p, keep) {
			t.Errorf("%q was changed to %q", keep, p) // S08
		}
		if n := CompleteLines(p); n > 0 && p[n-1] != '\n' && p[n-1] != '\r' || bytes.ContainsAny(p[n:], "\r\n") {
			t.Errorf("CompleteLines(%q): got %d, which is not after the last line end", p, n)
		}
	})
}

func BenchmarkUsage(b *testing.B) {
	run := func(name string, sse bool, p []byte) {
		b.Run(name, func(b *testing.B) {
			u := NewUsageReader(sse)
			b.SetBytes(int64(len(p)))
			b.ReportAllocs()
			for b.Loop() {
				_, _ = u.Write(p)
			}
		})
	}
	events := bytes.SplitAfter(recorded(b, "vllm-0.32.0-chat-stream.txt"), []byte("\n\n"))
	run("chunk", true, events[2])
	run("chunk with usage", true, events[5])
	run("plain reply", false, recorded(b, "vllm-0.32.0-chat.json"))
	run("1MB of embeddings", false, []byte(`{"data":[{"embedding":[`+strings.Repeat("-0.012345678,", 80000)+`0]}],"usage":{"prompt_tokens":7}}`))
}
