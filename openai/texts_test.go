package openai

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// blockCount is how many blocks a body has.
func blockCount(t *testing.T, body string) int {
	t.Helper()
	b, err := ReadBody(strings.NewReader(body), int64(len(body)), 1<<30, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Free()
	var s Scratch
	defer s.Reset()
	if _, err := Read("application/json", "", b, &s); err != nil {
		t.Fatal(err)
	}
	blocks, _ := s.Blocks("m")
	return len(blocks)
}

// ends writes down up to which byte of which piece each block reaches.
func ends(x *Texts) []string {
	var out []string
	for _, end := range x.Ends {
		p, n, last := -1, 0, ""
		for p+1 < len(x.Pieces) && x.At(p+1, 0) <= end {
			p++
		}
		if p >= 0 {
			text := x.Pieces[p]
			for n < len(text) && x.At(p, n+1) <= end {
				n++
			}
			last = text[max(n-3, 0):n]
		}
		out = append(out, fmt.Sprintf("%d %d %s", p, n, last))
	}
	return out
}

func TestTextsOf(t *testing.T) {
	long := strings.Repeat("0123456789", 30)
	for _, c := range []struct {
		name, body string
		pieces     int
		want       []string
	}{
		{"a prompt", `{"prompt":"` + long + `"}`, 1, []string{"0 254 123", "0 300 789"}},
		{"a prompt with escapes", `{"prompt":"` + strings.Repeat(`\n`, 126) + `\u00e9\ud83d\ude00"}`, 1, []string{"0 126 \n\n\n", "0 132 😀"}},
		{"an escape that is cut", `{"prompt":"` + strings.Repeat("a", 252) + `\ud83d\ude00b"}`, 1, []string{"0 252 aaa", "0 257 b"}},
		{"a chat", `{"messages":[{"role":"system","content":"` + long + `"},{"content":null},{"role":"user","content":[{"type":"text","text":"` + long + `"}]}]}`, 2,
			[]string{"0 226 345", "1 113 012", "1 300 789"}},
		{"a chat with tools", `{"messages":[{"content":"x"}],"tools":[{"a":"` + long + `"}]}`, 1, []string{"-1 0 ", "0 1 x"}},
	} {
		x, ok := TextsOf([]byte(c.body), blockCount(t, c.body))
		got := ends(&x)
		for i := range c.want { // the last three bytes may be one letter
			if len(got) == len(c.want) && strings.HasPrefix(got[i], strings.TrimRight(c.want[i], "😀b")) {
				got[i] = c.want[i]
			}
		}
		if !ok || len(x.Pieces) != c.pieces || !slices.Equal(got, c.want) || !x.Whole {
			t.Errorf("%s: got %v, %d pieces, ends %q, whole %v, want %d and %q", c.name, ok, len(x.Pieces), got, x.Whole, c.pieces, c.want)
		}
	}
	body := `{"cache_salt":"s","prompt":[` + strings.Repeat("12345, ", 100) + `7]}`
	x, ok := TextsOf([]byte(body), blockCount(t, body))
	if !ok || len(x.Tokens) != 101 || x.Tokens[100] != 7 || x.Salt != "s" || !slices.Equal(x.Ends, []int{256, 512, 704}) || x.Certain[35] > 256 || x.Certain[36] <= 256 || x.Certain[100] > 704 {
		t.Errorf("got %v, %d tokens, certain at %v, blocks end at %v, want 101, of which 36 in the first block", ok, len(x.Tokens), x.Certain, x.Ends)
	}
}

// Whose tokens depend on more than texts is left alone.
func TestTextsOfOthers(t *testing.T) {
	for _, body := range []string{
		`{}`, `{"prompt":["a","b"]}`, `{"prompt":[[1,2]]}`, `{"prompt":[1,-2]}`, `{"prompt":[1.5]}`, `{"prompt":[99999999999]}`, `{"prompt":"a","messages":[{"content":"b"}]}`,
		`{"messages":[{"content":[{"type":"image_url","image_url":{"url":"x"}}]}]}`, `{"messages":[{"content":3}]}`, `{"messages":{}}`, `{"input":"a"}`,
		`{"prompt":"a","suffix":"b"}`, `{"messages":[{"content":"b"}],"documents":[]}`, `{"messages":[{"content":"b"}],"reasoning_effort":"low"}`,
		`{"prompt":"a","truncate_prompt_tokens":5}`, `[`,
	} {
		if x, ok := TextsOf([]byte(body), 1); ok {
			t.Errorf("%s: got %+v, want nothing", body, x)
		}
	}
}

func FuzzTextsOf(f *testing.F) {
	f.Add([]byte(`{"prompt":"a\u00e9\ud83d\ude00"}`), 3)
	f.Add([]byte(`{"messages":[{"content":"a"},{"content":[{"type":"text","text":"b"}]}],"tools":[]}`), 2)
	f.Add([]byte(`{"prompt":[1, 2 ,3]}`), 1)
	f.Fuzz(func(t *testing.T, body []byte, n int) {
		x, ok := TextsOf(body, n%100)
		if !ok {
			return
		}
		last := 0
		for p, text := range x.Pieces {
			for k := range len(text) + 2 {
				at := x.At(p, k)
				if at < last {
					t.Fatalf("%d bytes of piece %d are there at %d, after %d", k, p, at, last)
				}
				last = at
			}
		}
	})
}
