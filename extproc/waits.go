package extproc

import (
	"sync"
	"time"
)

// waits has Envoy asked for more time where an answer isn't ready. It looks at all streams that are being answered a few
// times in their patience: a timer for each would cost more than most answers do. Its goroutine runs while there are any.
type waits struct {
	mu      sync.Mutex
	list    []*stream
	running bool
}

// emptyRounds is after how many looks that found nothing the goroutine ends.
const emptyRounds = 10

// add watches a stream until it has answered. every is the time between two looks, as the first that is added says.
func (w *waits) add(s *stream, every time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.list = append(w.list, s)
	if !w.running {
		w.running = true
		go w.run(every)
	}
}

func (w *waits) run(every time.Duration) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	var spare []*stream
	for empty := 0; empty < emptyRounds; {
		<-tick.C
		w.mu.Lock()
		list := w.list
		w.list = spare[:0]
		if empty++; len(list) > 0 {
			empty = 0
		}
		w.running = empty < emptyRounds
		w.mu.Unlock()
		for _, s := range list {
			if s.late() {
				w.mu.Lock()
				w.list = append(w.list, s)
				w.mu.Unlock()
			}
		}
		clear(list)
		spare = list
	}
}

// startWork notes that an answer is being made, for which Envoy waits.
func (s *stream) startWork() {
	s.mu.Lock()
	s.working, s.workedFrom, s.asked = true, s.p.now(), false
	s.mu.Unlock()
	s.p.waits.add(s, s.set.Patience/4)
}

// late asks for more time if the answer has taken the stream's patience, and reports whether to look again. Who holds the
// lock sends, for as long as Envoy makes it wait: that one needs no more time, and the others can't wait for it.
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

// send answers Envoy.
func (s *stream) send(a *answer) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.working = false
	return s.grpc.SendMsg(a)
}
