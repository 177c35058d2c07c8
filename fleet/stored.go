package fleet

import (
	"sync"
	"time"
)

// maxStored bounds how many responses' endpoints are remembered. What is forgotten is searched for.
const maxStored = 1 << 16

// maxResponse bounds the length of a response's identifier that a peer may have us remember.
const maxResponse = 256

// stored remembers who keeps which response of the responses API: an engine knows only those that it made itself, so a
// call about one must go there.
type stored struct {
	mu      sync.Mutex
	holders map[string]holder
	order   []string // a ring of the identifiers, oldest at next once it is full
	next    int
}

// holder is the endpoint that keeps a response, and its pool; empty when that isn't known.
type holder struct{ pool, endpoint string }

func (s *stored) put(response string, h holder) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.holders == nil {
		s.holders = make(map[string]holder)
	}
	if _, ok := s.holders[response]; !ok {
		if len(s.order) < maxStored {
			s.order = append(s.order, response)
		} else {
			delete(s.holders, s.order[s.next])
			s.order[s.next] = response
			s.next = (s.next + 1) % maxStored
		}
	}
	s.holders[response] = h
}

func (s *stored) get(response string) holder {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.holders[response]
}

// Stored notes that the lease's endpoint keeps a response of the responses API, and tells peers.
func (f *Fleet) Stored(now time.Duration, response string, l *Lease) {
	h := holder{l.pool.name, l.Endpoint.Name}
	f.stored.put(response, h)
	f.mu.Lock()
	tell := f.tell
	f.mu.Unlock()
	if tell != nil {
		tell(h.pool, &Note{Kind: NoteStored, At: now, Endpoint: h.endpoint, Response: response})
	}
}

// Holder is the pool and the endpoint that keep a response, as far as this gateway and its peers have seen it being made;
// nil and empty otherwise, and where the pool has left. The endpoint may have left its pool.
func (f *Fleet) Holder(response string) (*Pool, string) {
	h := f.stored.get(response)
	for _, p := range f.Pools() {
		if p.name == h.pool && h.endpoint != "" {
			return p, h.endpoint
		}
	}
	return nil, ""
}

// hearStored remembers what a peer has seen being made.
func (f *Fleet) hearStored(pool string, notes []Note) {
	for i := range notes {
		if n := &notes[i]; n.Kind == NoteStored && n.Response != "" && len(n.Response) <= maxResponse {
			f.stored.put(n.Response, holder{pool, n.Endpoint})
		}
	}
}
