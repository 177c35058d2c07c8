package openai

import (
	"bytes"
	"errors"
	"io"
	"mime/multipart"
	"strings"
	"testing"
)

type formPart struct{ name, file, value string }

func form(t testing.TB, parts ...formPart) (contentType string, body []byte) {
	t.Helper()
	var out bytes.Buffer
	w := multipart.NewWriter(&out)
	for _, p := range parts {
		var dst io.Writer
		var err error
		if p.file != "" {
			dst, err = w.CreateFormFile(p.name, p.file)
		} else {
			dst, err = w.CreateFormField(p.name)
		}
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(dst, p.value)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return w.FormDataContentType(), out.Bytes()
}

func TestReadForm(t *testing.T) {
	audio := formPart{"file", "a.wav", strings.Repeat("RIFF\x00\xff\r\n--", 200_000)}
	model := formPart{"model", "", "whisper-1"}
	for name, parts := range map[string][]formPart{
		"model first":         {model, audio},                 // B23
		"model after 2 MB":    {audio, model},                 // B24
		"model twice, equal":  {model, audio, model},          // B11
		"other fields beside": {{"x", "", "y"}, audio, model}, // B25
	} {
		contentType, body := form(t, append(parts, formPart{"stream", "", "true"})...)
		var s Scratch
		for _, b := range []*Body{bodyOf(body), split(body, 1, 1000)} {
			r, err := Read(contentType, "", b, &s)
			if err != nil || r.Model != "whisper-1" || !r.Form || !r.Stream || r.MediaBytes != int64(len(body)) {
				t.Errorf("%s: got %+v, %v, want whisper-1 streamed", name, r, err)
			}
			if blocks, _ := s.Blocks(r.Model); len(blocks) != 0 {
				t.Errorf("%s: got %d blocks of a form, want none", name, len(blocks))
			}
		}
	}
	contentType, body := form(t, audio)
	var s Scratch
	if r, err := Read(contentType, "", bodyOf(body), &s); err != nil || r.Model != "" {
		t.Errorf("form without model: got %q, %v, want none", r.Model, err)
	}
}

func TestReadFormRefuses(t *testing.T) {
	contentType, good := form(t, formPart{"file", "a.wav", "RIFF"}, formPart{"model", "", "m"})
	bad := func(parts ...formPart) []byte {
		_, p := form(t, parts...)
		b := strings.TrimPrefix(contentType, "multipart/form-data; boundary=")
		first, _, _ := bytes.Cut(p, []byte("\r\n"))
		return bytes.ReplaceAll(p, first, []byte("--"+b))
	}
	for name, c := range map[string]struct {
		contentType string
		body        []byte
	}{
		// B24
		"cut off in a header": {contentType, good[:100]},
		"cut off in the file": {contentType, good[:len(good)-150]},
		"end marker missing":  {contentType, good[:len(good)-6]},
		"wrong boundary":      {"multipart/form-data; boundary=other", good},
		"no boundary":         {"multipart/form-data", good},
		"broken parameters":   {"multipart/form-data; boundary=\"", good},
		"empty":               {contentType, nil},
		"json":                {contentType, []byte(`{"model":"m"}`)},
		// Z06
		"model empty":         {contentType, bad(formPart{"model", "", ""})},
		"model too long":      {contentType, bad(formPart{"model", "", strings.Repeat("m", MaxModelBytes+1)})},
		"model a file":        {contentType, bad(formPart{"model", "m.txt", "m"})},
		"model not UTF-8":     {contentType, bad(formPart{"model", "", "\xff"})},
		"model with line end": {contentType, bad(formPart{"model", "", "a\nb"})},
		"two models":          {contentType, bad(formPart{"model", "", "a"}, formPart{"model", "", "b"})},
	} {
		var s Scratch
		_, err := Read(c.contentType, "", bodyOf(c.body), &s)
		var e *Error
		if !errors.As(err, &e) || e.Status != 400 {
			t.Errorf("%s: got %v, want 400", name, err)
		}
	}
}

func FuzzForm(f *testing.F) {
	contentType, body := form(f, formPart{"file", "a.wav", "RIFF--\r\n"}, formPart{"model", "", "m"}, formPart{"n", "", "2"})
	f.Add(contentType, body)
	f.Add("multipart/form-data; boundary=b", []byte("--b\nContent-Disposition: form-data; name=model\n\nm\n--b--"))
	f.Add("multipart/form-data; boundary=b", []byte("--b\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nm\r\n--b\r\n"))
	f.Fuzz(func(t *testing.T, contentType string, p []byte) {
		var s Scratch
		a, err := Read(contentType, "", bodyOf(p), &s)
		b, err2 := Read(contentType, "", split(p, uint64(len(p)), 30), &s)
		if (err == nil) != (err2 == nil) || a.Model != b.Model {
			t.Errorf("%q: got %q, %v in one piece, %q, %v in parts", p, a.Model, err, b.Model, err2)
		}
	})
}
