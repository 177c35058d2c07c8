package openai

import (
	"bytes"
	"encoding/json"
	"slices"
)

// RewriteModel returns a Body that says model where the request s read last named its own, and is otherwise the same byte for
// byte (B32); its Len is the new Content-Length. It shares memory with the original, which stays as it is (B09); free both.
// Of a body that came with a Content-Encoding the decoded form is rewritten: forward it without that header. An error is
// returned where the body has no model to replace; then b must be forwarded as it is or not at all.
func RewriteModel(r *Request, s *Scratch, model string) (*Body, error) {
	spans := r.models[:r.count]
	value := quoted(model)
	if r.Form {
		spans, value = s.formModels(r), []byte(model)
	}
	if len(spans) == 0 || s.source == nil || !s.source.hold() {
		return nil, modelError("the model in this request body can't be replaced")
	}
	b := newBody(s.source.limit, nil)
	b.parent = s.source
	end := int64(0)
	for _, sp := range spans {
		b.addSpan(s.source, span{end, sp.start})
		b.add(value)
		end = sp.end
	}
	b.addSpan(s.source, span{end, s.source.size})
	return b, nil
}

// quoted is a JSON string that leaves <, > and & alone, as names of models are better read so.
func quoted(text string) []byte {
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	if e.Encode(text) != nil { // strings always encode
		return []byte(`""`)
	}
	return bytes.TrimSuffix(out.Bytes(), []byte("\n"))
}

func (b *Body) addSpan(from *Body, sp span) {
	base := int64(0)
	for _, p := range from.parts {
		b.add(within(p, base, sp))
		base += int64(len(p))
	}
}

// formModels finds the values of the model parts of a form. The boundary can't stand inside any part, so a value between the
// end of a header and the boundary is a whole part; its header tells whether it is the model's.
func (s *Scratch) formModels(r *Request) []span {
	if r.Model == "" {
		return nil
	}
	const headEnd = "\r\n\r\n"
	pattern := []byte(headEnd + r.Model + "\r\n--" + r.boundary)
	var spans []span
	for _, at := range indexAll(s.source.parts, pattern) {
		head := appendSpan(nil, s.source.parts, span{max(at-maxPartHead, 0), at}, maxPartHead)
		head = head[bytes.LastIndex(head, []byte("--"+r.boundary))+1:]
		if bytes.Contains(head, []byte(`name="model"`)) || bytes.Contains(head, []byte(`name=model`)) {
			start := at + int64(len(headEnd))
			spans = append(spans, span{start, start + int64(len(r.Model))})
		}
	}
	if len(spans) != r.count {
		return nil
	}
	return spans
}

// maxPartHead is how much header before a form's model is looked at for its name.
const maxPartHead = 4 << 10

// indexAll returns the offset of each occurrence of pattern in parts, also of those across the borders of parts.
func indexAll(parts [][]byte, pattern []byte) []int64 {
	var found []int64
	keep := len(pattern) - 1 // bytes around a border that can take part in a match across it
	base, before := int64(0), []byte(nil)
	for _, p := range parts {
		border := slices.Concat(before, p[:min(len(p), keep)])
		found = appendIndexes(found, border, pattern, base-int64(len(before)))
		found = appendIndexes(found, p, pattern, base)
		base += int64(len(p))
		if len(p) >= keep {
			before = p[len(p)-keep:]
		} else {
			before = border[max(0, len(border)-keep):]
		}
	}
	return found
}

func appendIndexes(dst []int64, p, pattern []byte, base int64) []int64 {
	for i := 0; ; i++ {
		n := bytes.Index(p[i:], pattern)
		if n < 0 {
			return dst
		}
		i += n
		dst = append(dst, base+int64(i))
	}
}
