package scrape

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/fleet"
)

// What tokens stand for comes out of the names that two families of tokenizers give them.
func TestTokenTexts(t *testing.T) {
	for _, c := range []struct {
		names []string
		want  string
	}{
		{[]string{"<|im_start|>", "user", "Ċ", "Hello", "Ġworld", "Ã©", "!"}, "<|im_start|>user\nHello worldé!"},
		{[]string{"<s>", "▁Hello", "▁world", "<0x0A>", "é"}, "<s> Hello world\né"},
		{[]string{"plain", "text"}, "plaintext"},
	} {
		if got := string(slices.Concat(tokenTexts(c.names)...)); got != c.want {
			t.Errorf("%q: got %q, want %q", c.names, got, c.want)
		}
	}
	var all []byte
	for r := rune('!'); r <= 0x143; r++ {
		if r <= '~' || r >= 0xa1 && r != 0xad {
			all = appendByteOf(all, r)
		}
	}
	slices.Sort(all)
	if all = slices.Compact(all); len(all) != 256 {
		t.Errorf("got %d bytes out of the alphabet, want all 256", len(all))
	}
}

// words cuts a text as tokenizers do at best: each word with the space before it, marks on their own.
func words(text string) [][]byte {
	var out [][]byte
	for len(text) > 0 {
		n := 1
		if text[0] == '<' {
			n = strings.IndexByte(text, '>') + 1
		} else {
			for n < len(text) && text[n] != ' ' && text[n] != '<' && text[n] != '\n' {
				n++
			}
		}
		out = append(out, []byte(text[:n]))
		text = text[n:]
	}
	return out
}

// Blocks get the tokens that are certain by their ends, never more; what a template changes ends it.
func TestAlign(t *testing.T) {
	chat := "<begin><user>one two three four<end><assistant>five six<end><user>seven eight<end><assistant>"
	for _, c := range []struct {
		name  string
		texts Texts
		text  string
		want  []int32
	}{
		{"a chat", Texts{Pieces: []string{"one two three four", "five six", "seven eight"}, Before: []int{20, 20, 20},
			EndPieces: []int{-1, 0, 0, 0, 1, 2}, EndBytes: []int{0, 5, 13, 18, 4, 11}, Whole: true}, chat,
			// Of "one t" the second word may go on; so may "three" though a space follows, and "four" at the end of its text.
			[]int32{0, 3, 4, 5, 8, 16}},
		{"space around texts is cut", Texts{Pieces: []string{" \n one two three four\n", "five six"}, Before: []int{20, 20},
			EndPieces: []int{0, 0, 1}, EndBytes: []int{2, 9, 8}}, chat, []int32{2, 3, 9}},
		{"a text is changed", Texts{Pieces: []string{"one two three four", "FIVE SIX", "seven eight"}, Before: []int{20, 20, 20},
			EndPieces: []int{0, 1, 2}, EndBytes: []int{18, 3, 11}, Whole: true}, chat, []int32{5}},
		{"a text is far away", Texts{Pieces: []string{"one"}, Before: []int{20}, EndPieces: []int{0}, EndBytes: []int{3}, Whole: true},
			strings.Repeat("x ", 4000) + "one", nil},
		{"a plain prompt", Texts{Pieces: []string{"a b c"}, Before: []int{0}, EndPieces: []int{0, 0}, EndBytes: []int{4, 5}, Whole: true}, "a b c", []int32{2, 3}},
		{"no space at all", Texts{Pieces: []string{strings.Repeat("x", 200)}, Before: []int{0}, EndPieces: []int{0, 0}, EndBytes: []int{150, 200}, Whole: true},
			strings.Repeat("x", 200), []int32{0, 1}},
	} {
		got := align(&c.texts, words(c.text))
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: got %v, want %v of %q", c.name, got, c.want, words(c.text))
		}
	}
}

func FuzzAlign(f *testing.F) {
	f.Add("one two three", "<a>one two three<b>", 5, true)
	f.Fuzz(func(t *testing.T, piece, text string, end int, whole bool) {
		x := Texts{Pieces: []string{piece, "b"}, Before: []int{0, 3}, EndPieces: []int{-1, 0, 1}, EndBytes: []int{0, end & 1023 % (len(piece) + 1), 1}, Whole: whole}
		last := int32(0)
		for _, n := range align(&x, words(text)) {
			if n < last || int(n) > len(words(text)) {
				t.Fatalf("got %d after %d", n, last)
			}
			last = n
		}
	})
}

// An engine is asked for a prompt's tokens with the request as it is. One that refuses prompts from the start is one that can't tell; of one
// that has told, it is the prompt's fault.
func TestEngineIsAskedForTokens(t *testing.T) {
	status, got := http.StatusBadRequest, ""
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		got = r.URL.Path + " " + string(body)
		w.WriteHeader(status)
		_, _ = io.WriteString(w, `{"tokens":[1,2],"token_strs":["Hello","Ġworld"]}`)
	}))
	defer engine.Close()
	e := ep(engine.Listener.Addr().String())
	w := &worker{pool: fleet.NewPool("p"), endpoint: e, client: newClient(e, nil, time.Second), metrics: &endpointMetrics{follow: newFollowMetrics().endpoint("p", "e")}}
	defer w.client.close()
	ask := func() error {
		q := &Prompt{Blocks: []uint64{1}, Texts: func([]byte, int) (Texts, bool) {
			return Texts{Pieces: []string{"Hello world"}, Before: []int{0}, EndPieces: []int{0}, EndBytes: []int{11}, Whole: true}, true
		}}
		return w.learnTokens(context.Background(), q, []byte(`{"prompt":"Hello world"}`), false)
	}
	if err := ask(); !errors.Is(err, errPrompt) {
		t.Errorf("an engine that has told nothing yet refuses: got %v", err)
	}
	status = http.StatusOK
	if err := ask(); err != nil || got != `/tokenize {"return_token_strs":true,"prompt":"Hello world"}` || w.metrics.follow.learned.n.Load() != 1 {
		t.Errorf("got %v and the question %s", err, got)
	}
	status = http.StatusBadRequest
	if err := ask(); err != nil || w.metrics.follow.learned.n.Load() != 1 {
		t.Errorf("one that has told refuses a prompt: got %v", err)
	}
	status = http.StatusNotFound
	if err := ask(); err == nil {
		t.Error("one that can't tell any more: got no error")
	}
}
