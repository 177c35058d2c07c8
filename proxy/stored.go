package proxy

import (
	"bytes"
	"sync"

	"github.com/sluice-gateway/sluice/fleet"
	"github.com/sluice-gateway/sluice/openai"
)

// maxStored bounds how many responses' endpoints are remembered. What is forgotten is searched for.
const maxStored = 1 << 16

// stored remembers who holds which response of the responses API: an engine knows only those that it made itself, so a
// call about one must go there.
type stored struct {
	mu      sync.Mutex
	holders map[string]holder
	order   []string // a ring of the identifiers, oldest at next once it is full
	next    int
}

// holder is the endpoint that holds a response, and its pool; empty when that isn't known.
type holder struct{ pool, endpoint string }

func (s *stored) put(id string, h holder) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.holders[id]; !ok {
		if len(s.order) < maxStored {
			s.order = append(s.order, id)
		} else {
			delete(s.holders, s.order[s.next])
			s.order[s.next] = id
			s.next = (s.next + 1) % maxStored
		}
	}
	s.holders[id] = h
}

func (s *stored) get(id string) holder {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.holders[id]
}

// holder looks up who holds the response that the request is about or continues.
func (c *call) holder(req *openai.Request) holder {
	id := req.PreviousResponseID
	if c.path.Stateful {
		id = openai.ResponseID(c.r.URL.Path)
	}
	if id == "" {
		return holder{}
	}
	return c.g.stored.get(id)
}

// holding is the pool of the holder of the response that the request is about, nil when it is about none, or one whose
// pool isn't known or has left. A request that only continues a response names a model, and the pool goes by that.
func (c *call) holding(h holder) *fleet.Pool {
	if !c.path.Stateful {
		return nil
	}
	for _, p := range c.g.fleet.Pools() {
		if p.Name() == h.pool {
			return p
		}
	}
	return nil
}

// pin has the first pick leave out every endpoint but the holder.
func (c *call) pin(h holder) {
	if h.pool != c.pool.Name() {
		return
	}
	for _, name := range c.pool.Snapshot().Names {
		if name != h.endpoint {
			c.want.Tried = append(c.want.Tried, name)
		}
	}
}

// store notes where a new response lives. Its identifier comes first in what engines write, and inside a string of JSON
// its quotes would be escaped, so that the first piece of the answer tells.
func (c *call) store(a *attempt) {
	if c.path.Operation != "responses" || c.path.Stateful || !readable(a.resp.Header) {
		return
	}
	if id := responseID((*a.buf)[:a.n]); id != "" {
		c.g.stored.put(id, holder{c.pool.Name(), a.lease.Endpoint.Name})
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
