package proxy

import (
	"bytes"
	"sync"

	"github.com/sluice-gateway/sluice/openai"
)

// maxStored bounds how many responses' endpoints are remembered. What is forgotten is searched for.
const maxStored = 1 << 16

// stored remembers which endpoint holds which response of the responses API, so that a call about one goes there (Q01).
type stored struct {
	mu        sync.Mutex
	endpoints map[string]string
	order     []string // a ring of the identifiers, oldest at next once it is full
	next      int
}

func (s *stored) put(id, endpoint string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.endpoints[id]; !ok {
		if len(s.order) < maxStored {
			s.order = append(s.order, id)
		} else {
			delete(s.endpoints, s.order[s.next])
			s.order[s.next] = id
			s.next = (s.next + 1) % maxStored
		}
	}
	s.endpoints[id] = endpoint
}

func (s *stored) get(id string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.endpoints[id]
}

// pin has the first pick leave out every endpoint but the one that holds the response that the request is about or continues.
func (c *call) pin(req *openai.Request) {
	id := req.PreviousResponseID
	if c.path.Stateful {
		id = openai.ResponseID(c.r.URL.Path)
	}
	if id == "" {
		return
	}
	holder := c.g.stored.get(id)
	if holder == "" {
		return
	}
	for _, name := range c.pool.Snapshot().Names {
		if name != holder {
			c.want.Tried = append(c.want.Tried, name)
		}
	}
}

// store notes where a new response lives. Its identifier comes first in what engines write, and inside a string of JSON its quotes would be
// escaped, so that the first piece of the answer tells.
func (c *call) store(a *attempt) {
	if c.path.Operation != "responses" || c.path.Stateful || !readable(a.resp.Header) {
		return
	}
	if id := responseID((*a.buf)[:a.n]); id != "" {
		c.g.stored.put(id, a.lease.Endpoint.Name)
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
