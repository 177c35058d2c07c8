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

// textsOf lays pieces out in a prompt, each after some other bytes and in quotes, with blocks that end after some bytes of a piece.
func textsOf(pieces []string, before int, whole bool, ends ...[2]int) Texts {
	t := Texts{Pieces: pieces, Whole: whole}
	from := []int{}
	at := 0
	for _, p := range pieces {
		at += before
		from, t.Before = append(from, at), append(t.Before, before)
		at += len(p)
	}
	t.At = func(piece, bytes int) int { return from[piece] + bytes }
	for k, e := range ends {
		switch {
		case e[0] < 0:
			t.Ends = append(t.Ends, 1)
		case whole && k == len(ends)-1:
			t.Ends = append(t.Ends, at+2)
		default:
			t.Ends = append(t.Ends, t.At(e[0], e[1]))
		}
	}
	return t
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
		{"a chat", textsOf([]string{"one two three four", "five six", "seven eight"}, 20, true,
			[2]int{-1, 0}, [2]int{0, 0}, [2]int{0, 5}, [2]int{0, 13}, [2]int{0, 18}, [2]int{0, 19}, [2]int{1, 4}, [2]int{2, 11}), chat,
			// Of "one t" the second word may go on; so may "three" though a space follows, and "four" until its quote ends it.
			[]int32{0, 2, 3, 4, 5, 6, 8, 16}},
		{"space around texts is cut", textsOf([]string{" \n one two three four\n", "five six"}, 20, false,
			[2]int{0, 2}, [2]int{0, 9}, [2]int{1, 8}, [2]int{1, 9}), chat, []int32{2, 3, 9, 10}},
		{"a text is changed", textsOf([]string{"one two three four", "FIVE SIX", "seven eight"}, 20, true,
			[2]int{0, 18}, [2]int{0, 19}, [2]int{1, 3}, [2]int{2, 11}), chat, []int32{5, 6}},
		{"a text is far away", textsOf([]string{"one"}, 20, true, [2]int{-1, 0}, [2]int{0, 3}), strings.Repeat("x ", 4000) + "one", []int32{0}},
		{"a plain prompt", textsOf([]string{"a b c"}, 1, true, [2]int{0, 4}, [2]int{0, 5}), "a b c", []int32{2, 3}},
		{"no space at all", textsOf([]string{strings.Repeat("x", 200)}, 1, true, [2]int{0, 150}, [2]int{0, 200}), strings.Repeat("x", 200), []int32{0, 1}},
		{"two parts that are one text", textsOf([]string{"one", "<two>"}, 20, true, [2]int{0, 4}, [2]int{1, 5}, [2]int{1, 6}), "one<two><end>", []int32{0, 0, 3}},
	} {
		certain, got := align(&c.texts, words(c.text))
		if !slices.Equal(got, c.want) || !slices.IsSorted(certain) {
			t.Errorf("%s: got %v, want %v of %q, certain from %v on", c.name, got, c.want, words(c.text), certain)
		}
	}
}

// What is certain of a text at a byte is what it has in common with any other that begins so.
func FuzzAlign(f *testing.F) {
	f.Add("one two three", "four", 5, true)
	f.Add("one  two\nthree", "", 9, false)
	f.Add("\u300000 0", "", 4, false)
	f.Fuzz(func(t *testing.T, piece, other string, end int, whole bool) {
		if strings.ContainsAny(piece+other, "<>") {
			return
		}
		end = end & 1023 % (len(piece) + 1)
		certainOf := func(piece string) ([][]byte, []int32) {
			x := textsOf([]string{piece, "b"}, 9, whole, [2]int{-1, 0}, [2]int{0, end}, [2]int{1, 1})
			all := words("<a>" + strings.TrimSpace(piece) + "<c>b<d>")
			certain, ends := align(&x, all)
			if !slices.IsSorted(certain) || !slices.IsSorted(ends) || len(certain) > len(all) || len(ends) > 0 && int(ends[len(ends)-1]) > len(all) {
				t.Fatalf("got %v and %v of %q", certain, ends, all)
			}
			return all, certain
		}
		if len(piece)+len(other) > 60 {
			return // of long words it is an assumption
		}
		a, certain := certainOf(piece)
		b, _ := certainOf(piece[:end] + other)
		for i, at := range certain {
			if int(at) <= 9+end && (i >= len(b) || string(a[i]) != string(b[i])) {
				t.Fatalf("%q and %q share %d bytes: token %d is %q and %q", piece, piece[:end]+other, end, i, a[i], b[i])
			}
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
			return textsOf([]string{"Hello world"}, 0, true, [2]int{0, 11}), true
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

// An answer about tokens is read as far as the prompt can be a reason for its size.
func TestAnswerAboutTokensIsBounded(t *testing.T) {
	pad := 0
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(w, `{"tokens":[1,2],"token_strs":["Hello","Ġworld"]`+strings.Repeat(" ", pad)+"}")
	}))
	defer engine.Close()
	e := ep(engine.Listener.Addr().String())
	w := &worker{endpoint: e, client: newClient(e, nil, time.Second)}
	defer w.client.close()
	for _, c := range []struct {
		prompt, pad int
		want        error
	}{{10, 1 << 19, nil}, {10, 5 << 18, errTooLarge}, {1 << 16, 3 << 20, nil}, {1 << 16, 6 << 20, errTooLarge}} {
		pad = c.pad
		if _, _, err := w.askTokens(t.Context(), []byte(`{"prompt":"`+strings.Repeat("x", c.prompt)+`"}`)); !errors.Is(err, c.want) {
			t.Errorf("a prompt of %d bytes and %d more in the answer: got %v, want %v", c.prompt, c.pad, err, c.want)
		}
	}
}
