package openai

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cespare/xxhash/v2"
)

func blocksOf(t *testing.T, body string) []uint64 {
	t.Helper()
	var s Scratch
	r, err := Read("", "", bodyOf([]byte(body)), &s)
	if err != nil {
		t.Fatal(err)
	}
	blocks, _ := s.Blocks(r.Model)
	return slices.Clone(blocks)
}

func shared(a, b []uint64) int {
	n := 0
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return n
}

func TestBlocksGrowWithTheConversation(t *testing.T) {
	text := strings.Repeat("words of a turn ", 100)
	turn := func(n int) string {
		var list []string
		for i := range n {
			list = append(list, fmt.Sprintf(`{"role":"user","content":"%d %s"}`, i, text))
		}
		return `{"model":"m","messages":[` + strings.Join(list, ",") + `]}`
	}
	one, two := blocksOf(t, turn(1)), blocksOf(t, turn(2))
	if got := shared(one, two); got != len(one)-1 {
		t.Errorf("second turn shares %d blocks of the first's %d, want all but the trailing one", got, len(one))
	}
	// The tag of the field is one byte.
	if want := (len(turn(1)) - len(`{"model":"m","messages":}`) + 1 + UnitBytes - 1) / UnitBytes; len(one) != want {
		t.Errorf("got %d blocks, want %d", len(one), want)
	}
}

func TestBlocksKeepApart(t *testing.T) {
	messages := `"messages":[{"role":"user","content":"` + strings.Repeat("a", 2*UnitBytes) + `"}]`
	base := blocksOf(t, `{"model":"m",`+messages+`}`)
	for name, other := range map[string][]uint64{
		// E38: all that changes the prompt is part of the chain.
		"model":             blocksOf(t, `{"model":"n",`+messages+`}`),
		"cache_salt":        blocksOf(t, `{"model":"m","cache_salt":"x",`+messages+`}`),
		"tools":             blocksOf(t, `{"model":"m","tools":[1],`+messages+`}`),
		"functions":         blocksOf(t, `{"model":"m","functions":[1],`+messages+`}`),
		"system":            blocksOf(t, `{"model":"m","system":"x",`+messages+`}`),
		"instructions":      blocksOf(t, `{"model":"m","instructions":"x",`+messages+`}`),
		"chat_template":     blocksOf(t, `{"model":"m","chat_template":"x",`+messages+`}`),
		"template kwargs":   blocksOf(t, `{"model":"m","chat_template_kwargs":{},`+messages+`}`),
		"reasoning_effort":  blocksOf(t, `{"model":"m","reasoning_effort":"low",`+messages+`}`),
		"documents":         blocksOf(t, `{"model":"m","documents":[],`+messages+`}`),
		"previous response": blocksOf(t, `{"model":"m","previous_response_id":"r",`+messages+`}`),
		"other field":       blocksOf(t, `{"model":"m",`+strings.Replace(messages, "messages", "input", 1)+`}`),
	} {
		if n := shared(base, other); n != 0 {
			t.Errorf("%s: %d blocks shared, want none", name, n)
		}
	}
	for name, other := range map[string][]uint64{
		"order of fields": blocksOf(t, `{`+messages+`,"model":"m"}`),
		"sampling":        blocksOf(t, `{"model":"m","temperature":0.1,"stream":true,"tool_choice":"none",`+messages+`}`),
		"spaces outside":  blocksOf(t, ` { "model" : "m" , `+messages+` } `),
		"escaped key":     blocksOf(t, `{"model":"m",`+strings.Replace(messages, "mess", `\u006dess`, 1)+`}`),
	} {
		if !slices.Equal(base, other) {
			t.Errorf("%s: blocks differ, want the same", name)
		}
	}
}

// E37: what differs in the trailing partial block only.
func TestTrailingBlockIsHashed(t *testing.T) {
	body := `{"model":"m","messages":[{"content":"` + strings.Repeat("a", 2*UnitBytes) + `","image":"http://i/%d"}]}`
	a, b := blocksOf(t, fmt.Sprintf(body, 1)), blocksOf(t, fmt.Sprintf(body, 2))
	if len(a) != 3 || shared(a, b) != 2 {
		t.Errorf("got %d blocks, %d shared, want 3 and 2", len(a), shared(a, b))
	}
}

func TestSharedToolsAndSystemMatch(t *testing.T) {
	long := strings.Repeat("x", 4*UnitBytes)
	a := blocksOf(t, `{"model":"m","messages":[1],"tools":["`+long+`"]}`)
	b := blocksOf(t, `{"model":"m","tools":["`+long+`"],"messages":[2]}`)
	if got := shared(a, b); got != 4 {
		t.Errorf("long tools, other messages: %d blocks shared, want 4", got)
	}
}

func TestBlocksAreCapped(t *testing.T) {
	got := blocksOf(t, `{"prompt":"`+strings.Repeat("x", 5<<20)+`","suffix":"y"}`)
	if len(got) != MaxBlocks {
		t.Errorf("got %d blocks, want %d", len(got), MaxBlocks)
	}
	if got := blocksOf(t, `{"model":"m"}`); len(got) != 0 {
		t.Errorf("no prompt: got %d blocks, want none", len(got))
	}
}

func TestMediaIsCountedApart(t *testing.T) {
	data := strings.Repeat("QUJD", 1000)
	for body, want := range map[string]int64{
		`{"messages":[{"image_url":{"url":"data:image/png;base64,` + data + `"}}]}`: 4000,
		`{"messages":[{"input_audio":{"data":"` + data + `","format":"wav"}}]}`:     4000,
		`{"messages":[{"content":"` + data + `"}]}`:                                 0,
		`{"messages":[{"data":1},["` + data + `"]]}`:                                0,
		`{"metadata":{"data":"` + data + `"},"prompt":"x"}`:                         0,
	} {
		got, err := read(t, body)
		if err != nil || got.MediaBytes != want {
			t.Errorf("Read(%.50s…): got %d media bytes and %v, want %d", body, got.MediaBytes, err, want)
		}
	}
}

func TestReadAllocations(t *testing.T) {
	body := bodyOf(sampleBody("chat", 220_000))
	var s Scratch
	got := testing.AllocsPerRun(50, func() {
		r, err := Read("application/json", "", body, &s)
		if err != nil {
			t.Fatal(err)
		}
		s.Blocks(r.Model)
	})
	if got != 0 {
		t.Errorf("Read and Blocks with a used Scratch: got %v allocations, want 0", got)
	}
}

// Blocks grow with their place in the prompt; ends counts in units of the smallest, the trailing one rounded up, and
// where a prompt is split makes no difference.
func TestBlocksGrow(t *testing.T) {
	const prompt = 100_000
	var s Scratch
	r, err := Read("application/json", "", bodyOf([]byte(`{"prompt":"`+strings.Repeat("x", prompt)+`"}`)), &s)
	if err != nil {
		t.Fatal(err)
	}
	blocks, ends := s.Blocks(r.Model)
	const large = (prompt + 3 - 65536 + 4095) / 4096 // the quotes and the tag of the field count
	if want := smallBlocks + middleBlocks + large; len(blocks) != want || len(ends) != want {
		t.Fatalf("got %d blocks and %d ends, want %d", len(blocks), len(ends), want)
	}
	for k, want := range map[int]int32{0: 1, 63: 64, 64: 68, 111: 256, 112: 272, len(ends) - 1: (prompt + 3 + UnitBytes - 1) / UnitBytes} {
		if ends[k] != want {
			t.Errorf("block %d ends at %d units, want %d", k, ends[k], want)
		}
	}
}

// streamOf is the prompt of a body as it is hashed.
func streamOf(s *Scratch) []byte {
	var out []byte
	for f := firstPrompt; f < fieldCount; f++ {
		if sp := s.fields[f]; sp.len() > 0 {
			out = appendSpan(append(out, byte(f)), s.source.parts, sp, int(sp.len()))
		}
	}
	return out
}

// What Head hashes is the prompt from the beginning of a block on, wherever the body is cut into parts; and what a block's
// tokens are found out by hashes the same.
func TestHead(t *testing.T) {
	long := strings.Repeat("0123456789 abcde\n", 9000)
	for _, body := range []string{
		`{"messages":[{"role":"user","content":"` + strings.ReplaceAll(long, "\n", `\n`) + `"}],"tools":[{"a":1}],"model":"m"}`,
		`{"prompt":"` + strings.Repeat("x", 5000) + `"}`,
		`{"prompt":[` + strings.Repeat("12345,", 100) + `7]}`,
	} {
		var s Scratch
		if _, err := Read("application/json", "", split([]byte(body), 7, 3000), &s); err != nil {
			t.Fatal(err)
		}
		blocks, _ := s.Blocks("m")
		stream, head := streamOf(&s), s.Head()
		texts, ok := TextsOf([]byte(body), len(blocks))
		if !ok || texts.Ends[len(blocks)-1] != len(stream) {
			t.Fatalf("got blocks that end at %v, want the last at %d", texts.Ends, len(stream))
		}
		start := 0
		for _, end := range texts.Ends {
			for _, n := range []int{start + 1, (start + end) / 2, end - 1, end} {
				if n <= start {
					continue
				}
				want := xxhash.Sum64(stream[start:n])
				if got, other := head(n), texts.Head(n); got != want || other != want {
					t.Fatalf("the first %d bytes of %d in a block from %d: got %x and %x, want %x", n, len(stream), start, got, other, want)
				}
			}
			start = end
		}
		for _, n := range []int{-1, 0, len(stream) + 1, 5 << 20} {
			if head(n) != 0 || texts.Head(n) != 0 {
				t.Errorf("%d bytes of %d: got a hash", n, len(stream))
			}
		}
		if n := testing.AllocsPerRun(20, func() { s.Head()(1000) }); n != 0 {
			t.Errorf("got %v allocations, want none", n)
		}
	}
}

func BenchmarkHead(b *testing.B) {
	body := sampleBody("chat", 220_000)
	var s Scratch
	if _, err := Read("application/json", "", bodyOf(body), &s); err != nil {
		b.Fatal(err)
	}
	for _, n := range []int{15_000, 200_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				s.Head()(n)
			}
		})
	}
}
