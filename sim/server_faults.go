package sim

import (
	"math/rand/v2"
	"net/http"
	"time"
)

// SetSlow makes steps that begin from here on take factor times as long; 1 is normal.
func (s *Server) SetSlow(factor float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.advance(s.now())
	s.engine.SetSlow(factor)
}

// Stall stops the engine in the middle of its step while the server still answers what needs no engine; false lets it go on.
func (s *Server) Stall(stalled bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stall(stalled)
}

func (s *Server) stall(stalled bool) {
	now := s.now()
	s.advance(now)
	stepping := s.engine.stepping
	s.engine.Freeze(now, stalled)
	if !stepping && s.engine.stepping { // thawed, it began with what had come
		s.begun(now)
	}
	s.wakeDriver()
}

// Freeze stops the whole process: connections are accepted and nothing is answered, not even metrics, until it is thawed by false.
func (s *Server) Freeze(frozen bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.life.down {
		return
	}
	if !frozen && s.life.thawed != nil {
		close(s.life.thawed)
		s.life.thawed = nil
	}
	if frozen && s.life.thawed == nil {
		s.life.thawed = make(chan struct{})
	}
	s.stall(frozen)
}

// Crash ends the engine's life: all connections are reset, and none accepted until Restart. Cache, counters and adapters loaded later are lost.
func (s *Server) Crash() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.life.down {
		return
	}
	s.end()
}

// end lets everybody know that it is over.
func (s *Server) end() {
	for _, q := range s.engine.Crash() {
		c := s.calls[q.Tag]
		c.state.Store(callLost)
		c.rouse()
	}
	if !s.life.down {
		s.life.down = true
		close(s.life.over)
	}
	s.closeEvents()
	s.life.onOver()
}

// Restart begins a new life after a crash, or a first one that takes so long: until the engine has loaded, requests get 503.
func (s *Server) Restart(loading time.Duration) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.closed:
		return nil
	default:
	}
	if !s.life.down {
		s.end()
	}
	s.engine.Load(s.now() + time.Duration(float64(loading)*s.o.Speed))
	s.engine.SetSlow(1)
	s.engine.SetBlind(false)
	s.failing = 0
	s.adapters = s.adapters[:min(len(s.adapters), len(s.o.Adapters))]
	return s.live()
}

// Blind takes the metrics page away, 404, or gives it back.
func (s *Server) Blind(blind bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.engine.SetBlind(blind)
}

// setFailing has the server answer a share of what is posted to it with an error, 500, at once: 0 to 1, 0 for none.
func (s *Server) setFailing(share float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failing = share
}

// fails draws whether this request is one of those that fail.
func (s *Server) fails(r *http.Request) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return r.Method == http.MethodPost && s.failing > 0 && rand.Float64() < s.failing
}

func internalError(w http.ResponseWriter, _ *http.Request) {
	writeError(w, http.StatusInternalServerError, "InternalServerError", "", "the engine has failed")
}

// admit holds a request up while the process is frozen, and reports whether it is to be answered. One that is not has lost its connection.
func (s *Server) admit(w http.ResponseWriter, r *http.Request) bool {
	for {
		s.mu.Lock()
		life, loading := s.life, s.engine.Loading(s.now())
		thawed, down := life.thawed, life.down
		s.mu.Unlock()
		switch {
		case down:
			panic(http.ErrAbortHandler)
		case thawed != nil:
			select {
			case <-thawed:
			case <-life.over:
			case <-r.Context().Done():
				return false
			}
		case loading:
			writeError(w, http.StatusServiceUnavailable, "ServiceUnavailableError", "", "the model is being loaded")
			return false
		default:
			return true
		}
	}
}
