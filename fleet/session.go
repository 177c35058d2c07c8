package fleet

import (
	"container/list"
	"time"
)

// SessionConfig says what a session's endpoint is worth, where a front door tells sessions.
type SessionConfig struct {
	// Cost is what leaving the session's endpoint costs in the profile latency, beyond what the prefix index sees.
	Cost time.Duration
	// TTL is how long a session without requests is remembered.
	TTL time.Duration
}

// maxSessions bounds how many sessions a pool remembers. Whoever makes up more pushes out the oldest.
const maxSessions = 1 << 16

// sessions remembers where each session's last request went. The zero value is ready.
type sessions struct {
	by    map[uint64]*list.Element
	order list.List // of *session, least recently used first
}

type session struct {
	key  uint64
	name string
	at   float64
}

// home is the endpoint of the session's last request, empty if none is known.
func (s *sessions) home(key uint64, now, ttl float64) string {
	e := s.by[key]
	if e == nil {
		return ""
	}
	if found := e.Value.(*session); now-found.at <= ttl {
		return found.name
	}
	return ""
}

// went notes where a session's request went, and forgets those that are too old or too many. Of a peer's request it may hear after
// later ones.
func (s *sessions) went(key uint64, name string, now, ttl float64) {
	if s.by == nil {
		s.by = make(map[uint64]*list.Element)
	}
	if e := s.by[key]; e != nil {
		if e.Value.(*session).at > now {
			return
		}
		*e.Value.(*session) = session{key, name, now}
		s.order.MoveToBack(e)
	} else {
		s.by[key] = s.order.PushBack(&session{key, name, now})
	}
	for e := s.order.Front(); e != nil; e = s.order.Front() {
		old := e.Value.(*session)
		if s.order.Len() <= maxSessions && now-old.at <= ttl {
			break
		}
		s.order.Remove(e)
		delete(s.by, old.key)
	}
}

// gatherSession says in the view which endpoint the request's session is at, and what leaving it costs.
func (p *Pool) gatherSession(now float64, cfg *PoolConfig, key uint64) {
	v := &p.view
	v.Home, v.SessionMS = 0, 0
	if cfg.Session == nil || key == 0 {
		return
	}
	if ep := p.by[p.sessions.home(key, now, cfg.Session.TTL.Seconds())]; ep != nil {
		v.Home, v.SessionMS = int32(ep.row+1), float32(1000*cfg.Session.Cost.Seconds())
	}
}

// remember notes where the request's session is from now on.
func (p *Pool) remember(now float64, cfg *PoolConfig, key uint64, name string) {
	if cfg.Session != nil && key != 0 {
		p.sessions.went(key, name, now, cfg.Session.TTL.Seconds())
	}
}
