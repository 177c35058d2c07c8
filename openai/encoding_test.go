package openai

import (
	"bytes"
	"compress/flate"
	"compress/gzip"
	"compress/zlib"
	"errors"
	"io"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"

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

// Z13: however many small bodies ask for large windows, only as many decoders as processors are at work, because their
// memory is in no budget. A body that isn't encoded waits for none of them.
func TestDecodersAreBounded(t *testing.T) {
	const clients = 400
	for _, coding := range append(slices.Clone(codings), "broken") {
		packed, want := []byte("no zstd"), ""
		if coding == "broken" {
			coding = "zstd"
		} else {
			packed, want = encode(t, coding, []byte(`{"model":"m"}`)), "m"
		}
		synctest.Test(t, func(t *testing.T) {
			budget := NewBudget(0)
			var read atomic.Int32
			ask := func(coding string, p []byte, want string) {
				b, err := ReadBody(bytes.NewReader(p), -1, 0, budget)
				if err != nil {
					t.Error(err)
					return
				}
				defer b.Free()
				var s Scratch
				defer s.Reset()
				if r, _ := Read("", coding, b, &s); r.Model != want {
					t.Errorf("%s: got %+v, want model %q", coding, r, want)
				}
				read.Add(1)
			}
			for range cap(budget.decoders) {
				budget.startDecoding()
			}
			for range clients {
				go ask(header(coding), packed, want)
			}
			synctest.Wait()
			if n := read.Load(); n != 0 {
				t.Errorf("%s: got %d bodies read while every decoder was taken, want none", coding, n)
			}
			ask("", []byte(`{"model":"m"}`), "m")
			budget.endDecoding()
			synctest.Wait()
			if n := read.Load(); n != clients+1 {
				t.Errorf("%s: got %d bodies read in the end, want %d", coding, n, clients+1)
			}
			for range 10 { // a decoder that met a fault, or half a body, works as before
				ask(header(coding), []byte("no such coding"), "")
				ask(header(coding), packed[:len(packed)/2], "")
				ask(header(coding), packed, want)
			}
		})
	}
}
