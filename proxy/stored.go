package proxy

import (
	"bytes"

	"github.com/sluice-gateway/sluice/fleet"
	"github.com/sluice-gateway/sluice/openai"
)

// holder looks up which pool and endpoint keep the response that the request is about or continues; nil and empty where there
// is none or that isn't known, which is noted.
func (c *call) holder(req *openai.Request) (*fleet.Pool, string) {
	id := req.PreviousResponseID
	if c.path.Stateful {
		id = openai.ResponseID(c.r.URL.Path)
	}
	if id == "" {
		return nil, ""
	}
	p, endpoint := c.g.fleet.Holder(id)
	c.lost = p == nil
	return p, endpoint
}

// store notes where a new response lives. Its identifier comes first in what engines write, and inside a string of JSON
// its quotes would be escaped, so that the first piece of the answer tells.
func (c *call) store(a *attempt) {
	if c.path.Operation != "responses" || c.path.Stateful || !readable(a.resp.Header) {
		return
	}
	if id := responseID((*a.buf)[:a.n]); id != "" {
		c.g.fleet.Stored(c.g.now(), id, a.lease)
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
