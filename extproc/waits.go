package extproc

import (
	"time"

	"github.com/sluice-gateway/sluice/openai"
)

// startWork notes that an answer is being made, for which Envoy waits.
func (s *stream) startWork() {
	s.mu.Lock()
	s.working, s.workedFrom, s.asked = true, s.p.now(), false
	s.mu.Unlock()
	s.p.late.Add(s, s.set.Patience/4)
}

// late asks for more time if the answer has taken the stream's patience, and reports whether to look again. Who holds
// the lock sends, for as long as Envoy makes it wait: that one needs no more time, and the others can't wait for it.
func (s *stream) late() bool {
	if !s.mu.TryLock() {
		return false
	}
	defer s.mu.Unlock()
	if !s.working || s.asked {
		return false
	}
	if s.p.now()-s.workedFrom < s.set.Patience/2 {
		return true
	}
	s.asked = true
	go s.ask() // a send may have to wait for Envoy
	return false
}

// ask asks for more time. An answer that is sent meanwhile makes it needless, and one that follows does no harm.
func (s *stream) ask() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.working {
		s.p.metrics.asked.Inc()
		_ = s.grpc.SendMsg(&answer{wait: s.set.MaxWait}) // where Envoy has gone, the stream hears of it
	}
}

// stuckEvery is how often requests that wait for their answers' headers are looked at.
const stuckEvery = time.Second

// await notes that the request is on its way to its endpoint.
func (s *stream) await() {
	if s.lease == nil {
		return
	}
	s.mu.Lock()
	s.awaiting = true
	s.mu.Unlock()
	s.p.stuck.Add(s, stuckEvery)
}

// awaited notes that its answer's headers are here, and reports whether it was still waited for.
func (s *stream) awaited() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.awaiting = false
	return !s.gaveUp
}

// stuck gives a request up that waits at an endpoint for nothing, and reports whether to look again. As in late, nobody
// waits for a stream that sends.
func (s *stream) stuck() bool {
	if !s.mu.TryLock() {
		return true
	}
	defer s.mu.Unlock()
	if !s.awaiting {
		return false
	}
	if !s.lease.Stuck(s.p.now()) {
		return true
	}
	s.awaiting, s.gaveUp = false, true
	go s.giveUp() // a send may have to wait for Envoy
	return false
}

// giveUp ends the request with an answer that Envoy has not asked for, which it passes on all the same. Envoy can't be
// told to try another endpoint; the client can, and finds one.
func (s *stream) giveUp() {
	e := openai.UpstreamFailed.Errorf("the endpoint makes no progress and has sent nothing of an answer; try again, another can take the request")
	e.RetryAfter = giveUpRetryAfter
	a := s.refusal(e)
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.over {
		_ = s.grpc.SendMsg(&a) // where Envoy has gone, the stream hears of it
	}
}

// giveUpRetryAfter is told to clients whose endpoint stands still: another is ready.
const giveUpRetryAfter = time.Second

// send answers Envoy.
func (s *stream) send(a *answer) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.working = false
	return s.grpc.SendMsg(a)
}
