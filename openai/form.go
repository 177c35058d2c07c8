package openai

import (
	"io"
	"mime/multipart"
	"slices"
	"unicode/utf8"
)

// formShape is what is known of a multipart body.
type formShape struct {
	boundary string
	models   []int // the numbers of the parts that hold the model, from 0
	parts    int
}

// readForm walks over all parts of a form, so that the model is found wherever it stands, also after a large file, and
// a body that ends early or lacks its boundary is an error.
func (r *Request) readForm(b *Body, f *formShape) error {
	src := b.Reader()
	defer func() { _ = src.Close() }()
	parts := multipart.NewReader(src, f.boundary)
	for ; ; f.parts++ {
		// Raw: form readers of engines don't undo a Content-Transfer-Encoding either.
		part, err := parts.NextRawPart()
		if err == io.EOF { // a body that is cut off gives an error that only wraps io.EOF
			break
		}
		if err != nil {
			return InvalidRequest.Errorf("the request body is not valid multipart/form-data")
		}
		count := r.count
		if err := r.readPart(part); err != nil {
			return err
		}
		if r.count > count {
			f.models = append(f.models, f.parts)
		}
	}
	if f.parts == 0 {
		return InvalidRequest.Errorf("the request body holds no form part")
	}
	r.PromptBytes, r.MediaBytes = b.size, b.size
	return nil
}

func (r *Request) readPart(part *multipart.Part) error {
	name := part.FormName()
	switch name {
	case "model", "stream":
	default:
		return nil
	}
	p, err := io.ReadAll(io.LimitReader(part, MaxModelBytes+1))
	if err != nil {
		return InvalidRequest.Errorf("the request body is not valid multipart/form-data")
	}
	if name == "stream" {
		r.Stream = slices.Contains([]string{"true", "True", "TRUE", "1", "on", "yes"}, string(p))
		return nil
	}
	return r.formModel(part, p)
}

func (r *Request) formModel(part *multipart.Part, p []byte) error {
	switch {
	case part.FileName() != "":
		return modelError("model must be a plain form field, not a file")
	case len(p) == 0:
		return modelError("model must not be empty")
	case len(p) > MaxModelBytes:
		return modelError("model must be at most %d bytes long", MaxModelBytes)
	case !utf8.Valid(p) || hasControl(p):
		return modelError("model must be UTF-8 text without control characters")
	case r.Model != "" && r.Model != string(p):
		return modelError("model is given twice with different values")
	}
	r.Model = string(p)
	r.count++
	return nil
}
