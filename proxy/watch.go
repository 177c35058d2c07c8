package proxy

import (
	"net/http"
	"time"
)

// moveAgain is how often a request that should move, but has nowhere to go, looks again.
const moveAgain = time.Second

// lateAfter is how long waits go unwatched: most of what is over by then needs no watcher.
const lateAfter = 20 * time.Millisecond

// waiter is something that waits, and wants watching when that lasts.
type waiter interface {
	// late is called once when the wait has lasted up to lateAfter; it may be over.
	late()
}

// late starts the watcher.
func (a *attempt) late() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.phase != over {
		go a.watch()
	}
}

// watch keeps the limits of one attempt until that ends.
func (a *attempt) watch() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	lost, cut := a.lease.Lost(), a.c.g.cut.Done()
	wish := causeNone // why the request should move
	for {
		wait, on := a.check(wish)
		if !on {
			return
		}
		timer.Reset(wait)
		select {
		case <-a.ctx.Done():
			return
		case <-cut:
			a.giveUp(causeCut)
			return
		case <-lost:
			lost, wish = nil, causeLost
		case <-timer.C:
		}
	}
}

// limits tells which limits have passed at the time now, and how long to wait for the next that will.
type limits struct{ now, wait time.Duration }

// passed reports whether more than limit has passed since then; never for limits that are not positive, which mean
// none.
func (l *limits) passed(since, limit time.Duration) bool {
	if limit <= 0 {
		return false
	}
	left := since + limit - l.now
	if left <= 0 {
		return true
	}
	l.lookWithin(left)
	return false
}

// lookWithin shortens the wait to d.
func (l *limits) lookWithin(d time.Duration) { l.wait = min(l.wait, max(d, time.Millisecond)) }

// check enforces the limits that have passed and returns the time until the next one. on is false when the attempt is
// over.
func (a *attempt) check(wish cause) (wait time.Duration, on bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.phase == over {
		return 0, false
	}
	set := a.c.set
	l := limits{now: a.c.g.now(), wait: 24 * time.Hour}
	if l.passed(a.c.req.Start, a.c.req.Options().RouteTimeouts[a.c.req.Pool.Name()]) {
		a.giveUpLocked(causeRoute)
		return 0, false
	}
	if a.phase == begun {
		if l.passed(time.Duration(a.lastByte.Load()), set.IdleTimeout) {
			a.giveUpLocked(causeIdle)
			return 0, false
		}
		return l.wait, true
	}
	if set.IdleTimeout > 0 {
		l.lookWithin(set.IdleTimeout) // it begins with the first byte, or when a held answer is passed on: at the earliest now
	}
	if a.phase == held {
		return l.wait, true
	}
	if l.passed(a.c.from, set.FirstByteTimeout) {
		a.giveUpLocked(causeFirst)
		return 0, false
	}
	if set.AttemptTimeout > 0 && !a.final && wish == causeNone && l.passed(a.sent, set.AttemptTimeout) {
		wish = causeSlow
	}
	if wish != causeNone && !a.final {
		if a.next = a.c.req.Pick(true); a.next != nil {
			a.giveUpLocked(wish)
			return 0, false
		}
		l.lookWithin(moveAgain) // staying beats being dropped
	}
	return l.wait, true
}

func (a *attempt) giveUp(k cause) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.phase != over {
		a.giveUpLocked(k)
	}
}

// giveUpLocked ends the wait of the call's goroutine, wherever it waits: in the transport, in a read, or in a write to
// a client that takes nothing.
func (a *attempt) giveUpLocked(k cause) {
	a.why = k
	if a.told {
		a.boundWrites()
	}
	a.phase = over
	a.cancel()
}

// boundWrites gives what may still be written to the client a second; conclude takes that back.
func (a *attempt) boundWrites() {
	_ = http.NewResponseController(a.c.w).SetWriteDeadline(time.Now().Add(time.Second))
}
