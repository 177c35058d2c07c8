package openai

import (
	"bytes"
	"encoding/json"
	"io"
	"mime/multipart"
	"slices"
)

// WithModel is the body that Read has read last with another model in each place where it names one, and every other byte as
// it was; what came encoded comes decoded. It shares the memory of the body, which does not change, copies nothing of it, and
// is freed by itself. It is nil where the body names no model. name must be UTF-8 text without control characters.
func (s *Scratch) WithModel(name string) (*Body, error) {
	if s.form.boundary != "" {
		return s.formWithModel(name)
	}
	if len(s.models) == 0 {
		return nil, nil
	}
	quoted, err := json.Marshal(name)
	if err != nil {
		return nil, Internal.Errorf("a model's name cannot be written as JSON")
	}
	return s.source.replace(s.models, quoted), nil
}

// replace is a body with value in place of each of the spans, which are in order and not empty. It holds the original.
func (b *Body) replace(spans []span, value []byte) *Body {
	b.refs.Add(1) // whoever has spans holds the body
	out := newBody(b.limit, b.budget)
	out.done = b.release
	at := int64(0)
	for _, sp := range spans {
		out.share(b, span{at, sp.start})
		out.add(value)
		at = sp.end
	}
	out.share(b, span{at, b.size})
	return out
}

// share adds a span of another body, in as many pieces as that has.
func (b *Body) share(of *Body, sp span) {
	base := int64(0)
	for _, p := range of.parts {
		end := base + int64(len(p))
		if from, to := max(sp.start, base), min(sp.end, end); from < to {
			b.add(p[from-base : to-base])
		}
		if base = end; base >= sp.end {
			return
		}
	}
}

// formWithModel finds the values of a form's model parts. Whoever reads the form for routing does not tell where they stand,
// so that they are found by its delimiters; and what comes of it is read again, in case the two see delimiters differently.
func (s *Scratch) formWithModel(name string) (*Body, error) {
	f := &s.form
	if len(f.models) == 0 {
		return nil, nil
	}
	w := formWalk{delimiter: []byte("--" + f.boundary), want: f.models}
	s.source.eachLine(len(w.delimiter)+maxPadding, w.line)
	if len(w.found) == len(f.models) {
		out := s.source.replace(w.found, []byte(name))
		if out.isForm(f, name) {
			return out, nil
		}
		out.Free()
	}
	return nil, modelError("the form's model cannot be replaced, as the gateway is configured to do: its parts are not delimited as they should be")
}

// isForm reports whether a body is a form with the same parts as f, its models all being name.
func (b *Body) isForm(f *formShape, name string) bool {
	src := b.Reader()
	defer func() { _ = src.Close() }()
	parts := multipart.NewReader(src, f.boundary)
	for n := 0; ; n++ {
		part, err := parts.NextRawPart()
		if err != nil {
			return err == io.EOF && n == f.parts
		}
		if !slices.Contains(f.models, n) {
			continue
		}
		if p, err := io.ReadAll(io.LimitReader(part, int64(len(name))+1)); err != nil || string(p) != name || part.FormName() != "model" {
			return false
		}
	}
}

// formWalk goes over the lines of a form and finds the values of some of its parts.
type formWalk struct {
	delimiter []byte
	want      []int // the numbers of the parts, in order

	state   formState
	part    int   // the number of the next part
	bare    bool  // delimiters stand between LF instead of CR LF
	cut     bool  // the last line ended as delimiters are preceded
	content int64 // where the part's value begins
	found   []span
}

// maxPadding is how many bytes are looked at after a delimiter: blanks, which may stand there and don't, and the line's end.
const maxPadding = 64

type formState int

const (
	formPreamble formState = iota
	formHead
	formContent
	formOver
)

// line takes one line with its end; head is its beginning.
func (w *formWalk) line(sp span, head []byte, crlf bool) {
	if w.state == formOver {
		return
	}
	if rest, ok := bytes.CutPrefix(head, w.delimiter); ok && w.delimits(sp) && w.delimit(sp.start, bytes.TrimLeft(rest, " \t")) {
		return
	}
	w.cut = crlf || w.bare
	if w.state == formHead && (string(head) == "\r\n" || string(head) == "\n") {
		w.state, w.content, w.cut = formContent, sp.end, false
	}
}

// delimits reports whether a line stands where a delimiter may.
func (w *formWalk) delimits(sp span) bool {
	return w.state == formPreamble || w.state == formContent && (w.cut || sp.start == w.content)
}

// delimit takes a delimiter's line, of which rest is what follows the delimiter and blanks. It reports false if it is none.
func (w *formWalk) delimit(at int64, rest []byte) bool {
	if w.state == formPreamble && string(rest) == "\n" {
		w.bare = true
	}
	switch {
	case string(rest) == "\r\n", w.bare && string(rest) == "\n":
		w.end(at)
		w.state = formHead
	case bytes.HasPrefix(rest, []byte("--")):
		w.end(at)
		w.state = formOver
	default:
		return false
	}
	return true
}

// end ends a part at the start of a delimiter.
func (w *formWalk) end(at int64) {
	if w.state != formContent {
		return
	}
	before := int64(len("\r\n"))
	if w.bare {
		before = 1
	}
	if value := (span{w.content, at - before}); slices.Contains(w.want, w.part) && value.len() > 0 {
		w.found = append(w.found, value)
	}
	w.part++
}

// eachLine calls see with the span of each line, its end included, with up to limit bytes of its beginning, and whether it
// ends in CR LF.
func (b *Body) eachLine(limit int, see func(line span, head []byte, crlf bool)) {
	var carried []byte // the beginning of a line that began in an earlier part
	var last byte
	start, base := int64(0), int64(0)
	for _, p := range b.parts {
		for len(p) > 0 {
			n := bytes.IndexByte(p, '\n') + 1
			piece := p[:n]
			if n == 0 {
				piece = p
			}
			head := piece[:min(len(piece), limit)]
			if len(carried) > 0 || n == 0 {
				carried = append(carried, head[:min(len(head), limit-len(carried))]...)
				head = carried
			}
			p, base = p[len(piece):], base+int64(len(piece))
			if len(piece) > 1 {
				last = piece[len(piece)-2]
			}
			if n == 0 {
				last = piece[len(piece)-1]
				continue
			}
			see(span{start, base}, head, last == '\r')
			start, carried, last = base, carried[:0], 0
		}
	}
	if start < b.size {
		see(span{start, b.size}, carried, false)
	}
}
