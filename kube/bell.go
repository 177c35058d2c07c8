package kube

import (
	"sync"
	"time"
)

// bell says that there is news, once for what comes together: a thousand pods that start are not a thousand changes.
type bell struct {
	rings chan struct{}

	mu    sync.Mutex
	timer *time.Timer // nil while there is nothing to tell
	due   time.Time
}

func newBell() *bell { return &bell{rings: make(chan struct{}, 1)} }

// news has the bell ring, if it would not by then.
func (b *bell) news(within time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	due := time.Now().Add(within)
	switch {
	case b.timer == nil:
		b.due, b.timer = due, time.AfterFunc(within, b.ring)
	case due.Before(b.due):
		b.due = due
		b.timer.Reset(within)
	}
}

func (b *bell) ring() {
	b.mu.Lock()
	b.timer = nil
	b.mu.Unlock()
	select {
	case b.rings <- struct{}{}:
	default: // it rings already
	}
}
