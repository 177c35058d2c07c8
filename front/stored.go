package front

import (
	"bytes"

	"github.com/sluice-gateway/sluice/fleet"
	"github.com/sluice-gateway/sluice/openai"
)

// holder looks up which pool and endpoint keep the response that the request is about or continues; nil and empty where
// there is none or that isn't known, which is noted.
func (r *Request) holder(req *openai.Request) (*fleet.Pool, string) {
	id := req.PreviousResponseID
	if r.Path.Stateful {
		id = openai.ResponseID(r.url)
	}
	if id == "" {
		return nil, ""
	}
	p, endpoint := r.desk.fleet.Holder(id)
	r.Lost = p == nil
	return p, endpoint
}

// Store notes where a new response lives. piece is the first of the answer, not compressed: the response's identifier
// comes first in what engines write, and inside a string of JSON its quotes would be escaped.
func (r *Request) Store(piece []byte, lease *fleet.Lease) {
	if r.Path.Operation != "responses" || r.Path.Stateful {
		return
	}
	if id := responseID(piece); id != "" {
		r.desk.fleet.Stored(r.desk.now(), id, lease)
	}
}

// responseID finds the value of the first "id" that names a response, empty when there is none.
func responseID(p []byte) string {
	for {
		_, rest, ok := bytes.Cut(p, []byte(`"id":`))
		if !ok {
			return ""
		}
		p = rest
		rest, ok = bytes.CutPrefix(bytes.TrimLeft(rest, " "), []byte(`"resp_`))
		if !ok {
			continue
		}
		if end := bytes.IndexByte(rest, '"'); end >= 0 && end < 256 && bytes.IndexByte(rest[:end], '\\') < 0 {
			return "resp_" + string(rest[:end])
		}
		return ""
	}
}
