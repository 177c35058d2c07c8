package openai

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// bodyOf makes a Body of bytes that are there already.
func bodyOf(parts ...[]byte) *Body {
	b := newBody(DefaultBodyLimit, nil)
	for _, p := range parts {
		b.add(p)
	}
	return b
}

func read(t *testing.T, body string) (Request, error) {
	t.Helper()
	var s Scratch
	return Read("application/json", "", bodyOf([]byte(body)), &s)
}

func same(a, b Request) string {
	return cmp.Diff(a, b, cmpopts.IgnoreUnexported(Request{}))
}

func TestReadFields(t *testing.T) {
	for body, want := range map[string]Request{
		`{}`:                         {OutputLimit: -1},
		" \r\n\t{\"model\":\"m\"}\n": {Model: "m", OutputLimit: -1},
		`{"mod\u0065l":"\u006d2"}`:   {Model: "m2", OutputLimit: -1},
		// B10: exact case only.
		`{"Model":"other","model":"m","MODEL":1}`: {Model: "m", OutputLimit: -1},
		// B11: a duplicate that agrees, and a nested one, are fine.
		`{"model":"m","x":{"model":"n","model":"o"},"model":"\u006d"}`: {Model: "m", OutputLimit: -1},
		// B20: null is absent.
		`{"stream":null,"stream_options":null,"max_tokens":null,"n":null,"logprobs":null}`: {OutputLimit: -1},
		`{"stream_options":{"x":{"stream":false}},"stream":true}`:                          {Stream: true, OutputLimit: -1},
		`{"max_tokens":5,"max_completion_tokens":7,"n":3}`:                                 {OutputLimit: 7},
		`{"max_tokens":5,"max_completion_tokens":null}`:                                    {OutputLimit: 5},
		`{"max_output_tokens":16.0}`:                                                       {OutputLimit: 16},
		`{"previous_response_id":"resp_1"}`:                                                {PreviousResponseID: "resp_1", OutputLimit: -1},
		`{"previous_response_id":7}`:                                                       {OutputLimit: -1},
		`{"max_tokens":"7","n":[],"stream":"true","stream_options":[]}`:                    {OutputLimit: -1},
		// Z04: numbers have no bound; what is too large is clamped or passed over.
		`{"max_tokens":9223372036854775809,"x":1e400,"n":-3}`: {OutputLimit: maxNumber},
		`{"max_tokens":1e400}`:                                {OutputLimit: maxNumber},
		`{"max_tokens":1.5}`:                                  {OutputLimit: -1},
		// B17, B18, B19: every form of prompt and input, counted as it stands.
		`{"prompt":["a","b"]}`:        {PromptBytes: 9, OutputLimit: -1},
		`{"prompt":[1,2,3]}`:          {PromptBytes: 7, OutputLimit: -1},
		`{"prompt":[[1],[2]]}`:        {PromptBytes: 9, OutputLimit: -1},
		`{"input":[[1],[2]]}`:         {PromptBytes: 9, OutputLimit: -1},
		`{"input":[{"text":"a"}]}`:    {PromptBytes: 14, OutputLimit: -1},
		`{"input":[{"role":"user"}]}`: {PromptBytes: 17, OutputLimit: -1},
		// B16: a chat body needs no prompt, a completion no messages.
		`{"messages":[]}`:                  {PromptBytes: 2, OutputLimit: -1},
		`{"messages":[1],"messages":[12]}`: {PromptBytes: 4, OutputLimit: -1},
	} {
		got, err := read(t, body)
		if err != nil {
			t.Errorf("Read(%s): %v", body, err)
			continue
		}
		if d := same(want, got); d != "" {
			t.Errorf("Read(%s), want -, got +:\n%s", body, d)
		}
	}
}

func TestReadRefuses(t *testing.T) {
	long := strings.Repeat("m", MaxModelBytes+1)
	for body, want := range map[string]string{
		// B13: what is not an object.
		``:        "empty",
		` `:       "empty",
		`[]`:      "must be one JSON object",
		`true`:    "must be one JSON object",
		`text`:    "must be one JSON object",
		`{]`:      "key in quotes",
		`{"a":1`:  "ends early",
		`{"a":1]`: "comma or a closing brace",
		// B12: a missing brace names its place.
		`{"model":"m","x":{"y":1}`: "at byte 24",
		// Z02
		"\ufeff{}": "byte-order mark",
		// Z03
		`{} x`:   "goes on after",
		`{}{}`:   "goes on after",
		"{}\x00": "goes on after",
		// B11
		`{"model":"a","model":"b"}`:                                     "twice with different values",
		`{"model":"a","model":"a","model":"a","model":"a","model":"a"}`: "more than 4 times",
		// Z06
		`{"model":1}`:                        "must be a string",
		`{"model":null}`:                     "must be a string",
		`{"model":true}`:                     "must be a string",
		`{"model":["m"]}`:                    "must be a string",
		`{"model":{"m":1}}`:                  "must be a string",
		`{"model":""}`:                       "must not be empty",
		`{"model":"` + long + `"}`:           "at most 1024 bytes",
		`{"model":"\ud800"}`:                 "lone surrogate",
		`{"model":"\udc00\ud800"}`:           "lone surrogate",
		`{"model":"\ud800\u0041"}`:           "lone surrogate",
		`{"mod\ud800el":"m"}`:                "lone surrogate",
		`{"model":"a\nb"}`:                   "control character",
		`{"x":NaN}`:                          "a value is missing",
		`{"x":-Infinity}`:                    "a digit is missing",
		"{\"x\":\"\xff\"}":                   "invalid UTF-8",
		"{\"x\":\"\xed\xa0\x80\"}":           "invalid UTF-8",
		"{\"x\":\"\xe4\xbd\"}":               "invalid UTF-8",
		"{\"x\":\"a\nb\"}":                   "control character",
		"{\"x\":\"\xed\xa0\x80你 and text\"}": "invalid UTF-8",
		"{\"x\":\"你\xed\xa0\x80 and text\"}": "invalid UTF-8",
		"{\"x\":\"\xe0\x80\x80你 and text\"}": "invalid UTF-8",
		"{\"x\":\"你\xe0\x80\x80 and text\"}": "invalid UTF-8",
		`{"x":[1,,2]}`:                       "a value is missing",
		`{"x":[1, ,2]}`:                      "a value is missing",
		`{"x":[1 2]}`:                        "closing bracket",
		`{"x":[1,02]}`:                       "closing bracket",
		`{"x":[1,2.]}`:                       "a digit is missing",
		`{"x":[1,2e]}`:                       "a digit is missing",
		`{"x":[1,-]}`:                        "a digit is missing",
		`{"x":"\x"}`:                         "unknown escape",
		`{"x":"\u12g4"}`:                     "hex digits",
		`{"x":01}`:                           "comma or a closing brace",
		`{"x":1.}`:                           "a digit is missing",
		`{"x":1e}`:                           "a digit is missing",
		`{"x":tru}`:                          "misspelt",
		`{"x":1,}`:                           "key in quotes",
		`{"x":[1,]}`:                         "a value is missing",
		`{"x":` + strings.Repeat("[", 1e5):   "nested too deep", // Z04
	} {
		_, err := read(t, body)
		var e *Error
		if !errors.As(err, &e) || e.Status != 400 || !strings.Contains(e.Message, want) {
			t.Errorf("Read(%.60q): got %v, want 400 with %q", body, err, want)
		}
	}
}

func TestDepthLimitIsThatOfEncodingJSON(t *testing.T) {
	for _, depth := range []int{maxDepth - 1, maxDepth} { // below the object itself
		body := `{"x":` + strings.Repeat("[", depth) + strings.Repeat("]", depth) + `}`
		_, err := read(t, body)
		if want := json.Valid([]byte(body)); (err == nil) != want {
			t.Errorf("depth %d: got %v, encoding/json accepts: %v", depth+1, err, want)
		}
	}
}

// reference reads a body with encoding/json, token by token and case-sensitively.
func reference(p []byte) (Request, bool) {
	r := Request{OutputLimit: -1}
	if !json.Valid(p) || !utf8.Valid(p) {
		return r, false
	}
	d := json.NewDecoder(bytes.NewReader(p))
	if tok, err := d.Token(); err != nil || tok != json.Delim('{') {
		return r, false
	}
	last := map[string]json.RawMessage{}
	for d.More() {
		before := d.InputOffset()
		key, err := d.Token()
		if raw := bytes.TrimLeft(p[before:d.InputOffset()], ", \t\r\n"); err != nil || len(raw) <= maxKeyBytes+2 && loneSurrogate(raw) {
			return r, false
		}
		var raw json.RawMessage
		if d.Decode(&raw) != nil {
			return r, false
		}
		name := key.(string)
		if name == "model" {
			var m any
			if json.Unmarshal(raw, &m) != nil || loneSurrogate(raw) {
				return r, false
			}
			s, ok := m.(string)
			if !ok || s == "" || len(s) > MaxModelBytes || hasControl([]byte(s)) || last[name] != nil && s != r.Model {
				return r, false
			}
			if r.count++; r.count > maxModels {
				return r, false
			}
			r.Model = s
		}
		last[name] = raw
	}
	r.Stream = string(last["stream"]) == "true"
	for _, name := range []string{"max_output_tokens", "max_tokens", "max_completion_tokens"} {
		if n, ok := referenceNumber(last[name]); ok {
			r.OutputLimit = n
		}
	}
	return r, true
}

func referenceNumber(raw json.RawMessage) (int, bool) {
	if len(raw) == 0 || len(raw) > maxKeyBytes || raw[0] < '0' || raw[0] > '9' {
		return 0, false
	}
	v, _ := strconv.ParseFloat(string(raw), 64)
	if v >= maxNumber {
		return maxNumber, true
	}
	return int(v), v == float64(int(v))
}

// loneSurrogate looks at the escapes of a JSON string in its own way: every \u escape decoded to UTF-16 units in a run.
func loneSurrogate(raw []byte) bool {
	var units []uint16
	flush := func() bool {
		defer func() { units = units[:0] }()
		return slices.Contains(utf16.Decode(units), utf8.RuneError) && !slices.Contains(units, uint16(utf8.RuneError))
	}
	for i := 0; i < len(raw); i++ {
		if raw[i] == '\\' && i+5 < len(raw) && raw[i+1] == 'u' {
			n, err := strconv.ParseUint(string(raw[i+2:i+6]), 16, 16)
			if err == nil && n != uint64(utf8.RuneError) {
				units = append(units, uint16(n))
			}
			i += 5
			continue
		}
		if flush() {
			return true
		}
		if raw[i] == '\\' {
			i++
		}
	}
	return flush()
}

func split(p []byte, seed uint64, parts int) *Body {
	rng := rand.New(rand.NewPCG(seed, 1))
	var cut [][]byte
	for len(p) > 0 && parts > 1 {
		n := rng.IntN(min(len(p), 64) + 1)
		cut = append(cut, p[:n])
		p = p[n:]
		parts--
	}
	return bodyOf(append(cut, p)...)
}

func FuzzRead(f *testing.F) {
	for _, s := range []string{
		`{"model":"m","messages":[{"role":"user","content":"hi \"you\"\n\u4f60 你好 🎉"}],"stream":true,"stream_options":{"include_usage":true}}`,
		`{"mod\u0065l":"a","model":"\u0061","max_tokens":1.5e2,"n":2,"prompt":[[1,2],[3]]}`,
		`{"model":"\ud83d\ude00","tools":[],"x":-0.1E+5,"system":"s"}`,
		`{"model":"\ud800"}`, `{"a":1}{}`, "\ufeff{}", `[]`, ``, `{"x":[{},[],{"y":null}],"Model":true}`,
		"{\"x\":\"\xe4\xbd\xa0\xff\"}",
	} {
		f.Add([]byte(s), uint64(1))
	}
	f.Fuzz(func(t *testing.T, p []byte, seed uint64) {
		want, ok := reference(p)
		var s1, s2 Scratch
		got, err := Read("application/json", "", bodyOf(p), &s1)
		if (err == nil) != ok {
			t.Fatalf("Read(%q): got %v, encoding/json accepts: %v", p, err, ok)
		}
		again, err2 := Read("application/json", "", split(p, seed, 40), &s2)
		if (err == nil) != (err2 == nil) || err != nil && err.Error() != err2.Error() {
			t.Fatalf("Read(%q): got %v in one piece, %v in parts", p, err, err2)
		}
		if err != nil {
			return
		}
		if d := cmp.Diff(got, again, cmp.AllowUnexported(Request{}, span{})); d != "" {
			t.Fatalf("Read(%q) differs in one piece - and in parts +:\n%s", p, d)
		}
		got.PromptBytes, got.MediaBytes, got.PreviousResponseID = 0, 0, ""
		if d := same(want, got); d != "" {
			t.Fatalf("Read(%q), encoding/json -, got +:\n%s", p, d)
		}
		a, aEnds := s1.Blocks("m")
		b, bEnds := s2.Blocks("m")
		if !slices.Equal(a, b) || !slices.Equal(aEnds, bEnds) {
			t.Fatalf("Blocks(%q): got %x in one piece, %x in parts", p, a, b)
		}
	})
}

func TestReaderGivesTheSameBytes(t *testing.T) {
	p := bytes.Repeat([]byte("0123456789abcdef"), 200<<10)
	for _, length := range []int64{int64(len(p)), -1} {
		budget := NewBudget(0)
		b, err := ReadBody(bytes.NewReader(p), length, 0, budget)
		if err != nil {
			t.Fatal(err)
		}
		// B09: two readers, one after the other, see the original.
		for range 2 {
			r := b.Reader()
			got, err := io.ReadAll(r)
			if err != nil || !bytes.Equal(got, p) {
				t.Errorf("length %d: got %d bytes and %v, want %d", length, len(got), err, len(p))
			}
			r.Close()
		}
		b.Free()
		if budget.Used() != 0 {
			t.Errorf("length %d: %d bytes still reserved", length, budget.Used())
		}
	}
}
