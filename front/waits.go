package front

import (
	"sync"
	"time"
)

// Waits looks at everything that waits for something, again and again, for as long as it wants to be looked at. A timer
// for each would cost more than most waits do: every timer that is the next to fire wakes the thread that waits for the
// network. With timers and read deadlines for every request, small ones over one connection had .42 of the throughput of a
// reverse proxy, without them .78. Its goroutine runs while there are any. Look is set before the first Add.
type Waits[T any] struct {
	// Look deals with one that waits, and reports whether to look at it again. It must not block.
	Look func(T) (again bool)

	mu      sync.Mutex
	list    []T
	running bool
}

// idleAfter is after how long without anything that waits the goroutine ends, and idleLooks after how many looks at least.
const (
	idleAfter = time.Second
	idleLooks = 10
)

// Add has w looked at until it needs it no more. every is the time between two looks, as the first that is added says.
func (l *Waits[T]) Add(w T, every time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = append(l.list, w)
	if !l.running {
		l.running = true
		go l.run(every)
	}
}

func (l *Waits[T]) run(every time.Duration) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	most := max(idleLooks, int(idleAfter/every))
	var spare []T
	for empty := 0; empty < most; {
		<-tick.C
		l.mu.Lock()
		list := l.list
		l.list = spare[:0]
		if empty++; len(list) > 0 {
			empty = 0
		}
		l.running = empty < most
		l.mu.Unlock()
		for _, w := range list {
			if l.Look(w) {
				l.mu.Lock()
				l.list = append(l.list, w)
				l.mu.Unlock()
			}
		}
		clear(list)
		spare = list
	}
}
