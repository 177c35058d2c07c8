package openai

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"strings"
	"testing"
)

// cut is a body whose parts end each n bytes.
func cut(p []byte, n int) *Body {
	var parts [][]byte
	for len(p) > n {
		parts, p = append(parts, p[:n]), p[n:]
	}
	return lentBody(append(parts, p), nil)
}

// text reads a body to its end.
func text(t *testing.T, b *Body) string {
	t.Helper()
	r := b.Reader()
	p, err := io.ReadAll(r)
	if err != nil || int64(len(p)) != b.Len() {
		t.Errorf("got %d bytes and %v, want %d", len(p), err, b.Len())
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	return string(p)
}

// rewrite reads a body and gives it another model; empty where nothing is to be replaced.
func rewrite(t *testing.T, contentType, coding string, b *Body, name string) (string, error) {
	t.Helper()
	var s Scratch
	defer s.Reset()
	if _, err := Read(contentType, coding, b, &s); err != nil {
		t.Fatal(err)
	}
	out, err := s.WithModel(name)
	if err != nil || out == nil {
		return "", err
	}
	defer out.Free()
	return text(t, out), nil
}

// B10, B11, B30, B32: each top-level model is replaced, once, and nothing else: no other case, no nested field, no text that
// looks like one, no order, number or space.
func TestWithModel(t *testing.T) {
	for body, want := range map[string]string{
		`{"model":"a"}`: `{"model":"new \"name\""}`,
		"\n{ \"model\"\t:\r\"a\" , \"n\":1.0,\"big\":12345678901234567890,\"b\":1,\"a\":2 }\n": "\n{ \"model\"\t:\r\"new \\\"name\\\"\" , \"n\":1.0,\"big\":12345678901234567890,\"b\":1,\"a\":2 }\n",
		`{"Model":"b","MODEL":"c","model":"a"}`:                                                `{"Model":"b","MODEL":"c","model":"new \"name\""}`,
		`{"m\u006fdel":"\u0061","model":"a","x":{"model":"a"}}`:                                `{"m\u006fdel":"new \"name\"","model":"new \"name\"","x":{"model":"a"}}`,
		`{"prompt":"\"model\":\"a\"","model":"a","metadata":["model"]}`:                        `{"prompt":"\"model\":\"a\"","model":"new \"name\"","metadata":["model"]}`,
		`{"prompt":"none"}`: "",
	} {
		for n := 1; n <= len(body); n++ {
			b := cut([]byte(body), n)
			got, err := rewrite(t, "application/json", "", b, `new "name"`)
			if err != nil || got != want {
				t.Fatalf("%s in pieces of %d: got %s, %v; want %s", body, n, got, err, want)
			}
			if text(t, b) != body {
				t.Fatal("the original has changed") // B09
			}
			b.Free()
		}
	}
}

// Both bodies are read at the same time, each gives its memory back by itself, and the original's goes last.
func TestWithModelSharesMemory(t *testing.T) {
	done := 0
	b := lentBody([][]byte{[]byte(`{"model":"a","prompt":"p"}`)}, func() { done++ })
	var s Scratch
	if _, err := Read("", "", b, &s); err != nil {
		t.Fatal(err)
	}
	out, err := s.WithModel("long name of a model")
	if err != nil {
		t.Fatal(err)
	}
	s.Reset()
	b.Free()
	first := out.Reader()
	out.Free()
	if p, err := io.ReadAll(first); err != nil || string(p) != `{"model":"long name of a model","prompt":"p"}` || done != 0 {
		t.Errorf("got %s, %v, and the memory given back %d times while it is read", p, err, done)
	}
	_ = first.Close()
	if done != 1 {
		t.Errorf("the memory was given back %d times, want once", done)
	}
}

// A body that came encoded is the decoded one, and counts in the budget until it is freed.
func TestWithModelDecodes(t *testing.T) {
	for _, coding := range codings {
		budget := NewBudget(1 << 20)
		packed := encode(t, coding, []byte(`{"model":"a","prompt":"p"}`))
		b, err := ReadBody(bytes.NewReader(packed), -1, 0, budget)
		if err != nil {
			t.Fatal(err)
		}
		name, _, _ := strings.Cut(coding, " ")
		if name == "raw" {
			name = "deflate"
		}
		got, err := rewrite(t, "", name, b, "b")
		if err != nil || got != `{"model":"b","prompt":"p"}` {
			t.Errorf("%s: got %s, %v", coding, got, err)
		}
		b.Free()
		if n := budget.Used(); n != 0 {
			t.Errorf("%s: got %d bytes held at the end", coding, n)
		}
	}
}

const formType = `multipart/form-data; boundary=XX`

// The model of a form is replaced wherever it stands, among parts that hold what looks like delimiters.
func TestWithModelInForms(t *testing.T) {
	const before = "--XX\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a\"\r\n\r\n--XXY\r\n--XXY\n--XX\r\nx\n--XX--\n\r\n--XX\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\n"
	const after = "\r\n--XX  \t\r\nContent-Disposition: form-data; name=\"prompt\"\r\n\r\nmodel\r\n--XX\r\nContent-Disposition: form-data; name=empty\r\n\r\n\r\n--XX--\r\nend"
	bare := strings.NewReplacer("\r\n", "\n").Replace
	for body, want := range map[string]string{
		before + "a" + after:             before + "new name" + after,
		"pre\r\n" + before + "a" + after: "pre\r\n" + before + "new name" + after,
		bare("--XX\r\nContent-Disposition: form-data; name=model\r\n\r\na\r\n--XX--\r\n"): bare("--XX\r\nContent-Disposition: form-data; name=model\r\n\r\nnew name\r\n--XX--\r\n"),
		"--XX\r\nContent-Disposition: form-data; name=x\r\n\r\na\r\n--XX--":               "",
	} {
		for n := 1; n <= len(body); n++ {
			b := cut([]byte(body), n)
			got, err := rewrite(t, formType, "", b, "new name")
			if err != nil || got != want {
				t.Fatalf("%q in pieces of %d: got %q, %v; want %q", body, n, got, err, want)
			}
			b.Free()
		}
	}
}

// FuzzWithModel holds what is promised of any body that is read: the same JSON but for the model, and the same bytes.
func FuzzWithModel(f *testing.F) {
	for _, s := range []string{`{"model":"a"}`, `{"model":"a","x":[1.0,{"model":2}],"m\u006fdel":"a"}`, `{"messages":[],"model":"\u0061"}`} {
		f.Add([]byte(s), "b", 3)
	}
	f.Add([]byte(`{"model":"é"}`), "<\u2028\">", 1)
	f.Fuzz(func(t *testing.T, body []byte, name string, n int) {
		if name == "" || hasControl([]byte(name)) || strings.ToValidUTF8(name, "") != name || len(name) > MaxModelBytes {
			return
		}
		b := cut(body, max(n, 1))
		var s, again Scratch
		before, err := Read("", "", b, &s)
		if err != nil {
			return
		}
		out, err := s.WithModel(name)
		if err != nil || (out == nil) != (before.Model == "") {
			t.Fatalf("got %v, %v for model %q", out, err, before.Model)
		}
		if out == nil {
			return
		}
		got := []byte(text(t, out))
		after, err := Read("", "", out, &again)
		if err != nil || after.Model != name {
			t.Fatalf("got model %q, %v; want %q in %s", after.Model, err, name, got)
		}
		before.Model, after.Model = "", ""
		if before != after {
			t.Errorf("got %+v, want %+v", after, before)
		}
		// What replaced the models, put back, gives the very bytes.
		var back []byte
		at := int64(0)
		for i, sp := range again.models {
			back = append(append(back, got[at:sp.start]...), body[s.models[i].start:s.models[i].end]...)
			at = sp.end
		}
		if back = append(back, got[at:]...); !bytes.Equal(back, body) {
			t.Errorf("got %q back, want %q", back, body)
		}
		var one, two map[string]json.RawMessage
		if err := json.Unmarshal(body, &one); err != nil {
			return // it nests deeper than is judged here
		}
		if err := json.Unmarshal(got, &two); err != nil {
			t.Fatal(err)
		}
		var model string
		if err := json.Unmarshal(two["model"], &model); err != nil || model != name {
			t.Errorf("got model %q, %v; want %q", model, err, name)
		}
		delete(one, "model")
		delete(two, "model")
		if fmt.Sprint(one) != fmt.Sprint(two) {
			t.Errorf("got %s, want %s but for the model", got, body)
		}
	})
}

// FuzzFormWithModel: whoever reads the form as it goes on finds the new model, and every other part as it was.
func FuzzFormWithModel(f *testing.F) {
	f.Add([]byte("--XX\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\na\r\n--XX--"), "b", 5)
	f.Add([]byte("--XX\nContent-Disposition: form-data; name=model\n\na\n--XX\nContent-Disposition: form-data; name=x\n\n\r\n--XX--"), "b", 1)
	f.Fuzz(func(t *testing.T, body []byte, name string, n int) {
		if name == "" || hasControl([]byte(name)) || strings.ToValidUTF8(name, "") != name || len(name) > MaxModelBytes {
			return
		}
		b := cut(body, max(n, 1))
		var s Scratch
		if _, err := Read(formType, "", b, &s); err != nil {
			return
		}
		out, err := s.WithModel(name)
		if err != nil || out == nil {
			return // a refusal; what is not refused is right
		}
		one, two := formParts(t, body), formParts(t, []byte(text(t, out)))
		if len(one) != len(two) {
			t.Fatalf("got %d parts, want %d", len(two), len(one))
		}
		for i := range one {
			if one[i].name == "model" && one[i].value != two[i].value {
				one[i].value = name
			}
			if one[i] != two[i] {
				t.Errorf("part %d: got %+v, want %+v", i, two[i], one[i])
			}
		}
	})
}

type part struct{ name, head, value string }

func formParts(t *testing.T, body []byte) []part {
	_, params, err := mime.ParseMediaType(formType)
	if err != nil {
		t.Fatal(err)
	}
	var out []part
	for r := multipart.NewReader(bytes.NewReader(body), params["boundary"]); ; {
		p, err := r.NextRawPart()
		if err != nil {
			return out
		}
		value, err := io.ReadAll(p)
		if err != nil {
			return out
		}
		out = append(out, part{p.FormName(), fmt.Sprint(p.Header), string(value)})
	}
}

// BenchmarkWithModel is what rewriting costs beside reading: nothing that grows with the body.
func BenchmarkWithModel(b *testing.B) {
	body := append(append([]byte(`{"prompt":"`), bytes.Repeat([]byte("words of a prompt "), 12_000)...), `","model":"a"}`...)
	src := lentBody([][]byte{body}, nil)
	var s Scratch
	if _, err := Read("", "", src, &s); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		out, err := s.WithModel("another")
		if err != nil {
			b.Fatal(err)
		}
		out.Free()
	}
}
