package openai

import (
	"bytes"
	"compress/flate"
	"compress/gzip"
	"compress/zlib"
	"errors"
	"io"
	"slices"
	"testing"

	"github.com/andybalholm/brotli"
	"github.com/klauspost/compress/zstd"
)

func encode(t testing.TB, coding string, p []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	var w io.WriteCloser
	var err error
	switch coding {
	case "gzip":
		w = gzip.NewWriter(&out)
	case "deflate":
		w = zlib.NewWriter(&out)
	case "raw deflate":
		w, err = flate.NewWriter(&out, 5)
	case "br":
		w = brotli.NewWriter(&out)
	case "zstd":
		w, err = zstd.NewWriter(&out)
	}
	if err != nil {
		t.Fatal(err)
	}
	_, _ = w.Write(p)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

var codings = []string{"gzip", "deflate", "raw deflate", "br", "zstd"}

func header(coding string) string {
	if coding == "raw deflate" {
		return "deflate"
	}
	return coding
}

// Z13: an encoded body is read as what it says.
func TestReadDecodes(t *testing.T) {
	plain := sampleBody("chat", 220_000)
	var s Scratch
	want, err := Read("", "", bodyOf(plain), &s)
	if err != nil {
		t.Fatal(err)
	}
	hashed, _ := s.Blocks("m")
	blocks := slices.Clone(hashed)
	for _, coding := range codings {
		budget := NewBudget(0)
		p := encode(t, coding, plain)
		b, err := ReadBody(bytes.NewReader(p), int64(len(p)), 0, budget)
		if err != nil {
			t.Fatal(err)
		}
		got, err := Read("application/json", " "+header(coding), b, &s)
		if err != nil {
			t.Errorf("%s: %v", coding, err)
			continue
		}
		if d := same(want, got); d != "" {
			t.Errorf("%s, want -, got +:\n%s", coding, d)
		}
		if again, _ := s.Blocks("m"); !slices.Equal(again, blocks) {
			t.Errorf("%s: blocks differ from those of the plain body", coding)
		}
		r := b.Reader()
		if sent, _ := io.ReadAll(r); !bytes.Equal(sent, p) {
			t.Errorf("%s: the body to forward was changed", coding)
		}
		r.Close()
		b.Free()
		s.Reset()
		if budget.Used() != 0 {
			t.Errorf("%s: %d bytes still reserved", coding, budget.Used())
		}
	}
}

func TestReadRefusesEncodings(t *testing.T) {
	object := []byte(`{"model":"m"}`)
	status := func(coding string, p []byte, limit, total int64) int {
		budget := NewBudget(total)
		b, err := ReadBody(bytes.NewReader(p), int64(len(p)), limit, budget)
		if err != nil {
			t.Fatal(err)
		}
		var s Scratch
		_, err = Read("", coding, b, &s)
		s.Reset()
		b.Free()
		if budget.Used() != 0 {
			t.Errorf("%s: %d bytes still reserved", coding, budget.Used())
		}
		var e *Error
		if err != nil && !errors.As(err, &e) {
			t.Errorf("%s: got %v, want an *Error", coding, err)
			return 0
		}
		if err == nil {
			return 200
		}
		return e.Status
	}
	for _, coding := range []string{"gzip, gzip", "compress", "snappy", "br,gzip"} {
		if got := status(coding, object, 0, 0); got != 415 {
			t.Errorf("%s: got %d, want 415", coding, got)
		}
	}
	for _, coding := range codings {
		h, p, bomb := header(coding), encode(t, coding, object), encode(t, coding, make([]byte, 2<<20))
		for name, c := range map[string]struct {
			body         []byte
			limit, total int64
			want         int
		}{
			"whole":        {p, 0, 0, 200},
			"cut off":      {p[:len(p)-2], 0, 0, 400},
			"no such":      {object, 0, 0, 400},
			"empty (H09)":  {nil, 0, 0, 400}, // as an empty plain body: not an object, and no decoder's fault
			"bomb, limit":  {bomb, 1 << 20, 0, 413},
			"bomb, budget": {bomb, 0, 1 << 20, 429},
			"goes on":      {append(p[:len(p):len(p)], "more"...), 0, 0, 400},
		} {
			if got := status(h, c.body, c.limit, c.total); got != c.want {
				t.Errorf("%s, %s: got %d, want %d", coding, name, got, c.want)
			}
		}
	}
	// H09: empty stays empty.
	var s Scratch
	if _, err := Read("", "gzip", bodyOf(), &s); err == nil || !bytes.Contains([]byte(err.Error()), []byte("body is empty")) {
		t.Errorf("empty gzip body: got %v, want that it is empty", err)
	}
	if got := status("identity", object, 0, 0); got != 200 {
		t.Errorf("identity: got %d, want 200", got)
	}
}

func FuzzEncoding(f *testing.F) {
	for i, coding := range codings {
		f.Add(uint8(i), encode(f, coding, []byte(`{"model":"m","messages":["hi"]}`)))
	}
	f.Fuzz(func(t *testing.T, which uint8, p []byte) {
		budget := NewBudget(32 << 20)
		b, err := ReadBody(bytes.NewReader(p), -1, 1<<20, budget)
		if err != nil {
			return
		}
		var s Scratch
		_, err = Read("", header(codings[int(which)%len(codings)]), b, &s)
		var e *Error
		if err != nil && !errors.As(err, &e) {
			t.Errorf("got %v, want an *Error", err)
		}
		s.Reset()
		b.Free()
		if budget.Used() != 0 {
			t.Errorf("%d bytes still reserved", budget.Used())
		}
	})
}
