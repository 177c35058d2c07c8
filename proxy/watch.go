package proxy

import (
	"net/http"
	"time"
)

// moveAgain is how often a request that should move, but has nowhere to go, looks again.
const moveAgain = time.Second

// watchAfter is how long an attempt goes unwatched. What is over by then needs no watcher, and starting one
// costs more than deciding.
const watchAfter = 20 * time.Millisecond

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

// check enforces the limits that have passed and returns the time until the next one. on is false when the attempt is over.
func (a *attempt) check(wish cause) (wait time.Duration, on bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.phase == over {
		return 0, false
	}
	now, set := a.c.g.now(), a.c.set
	wait = 24 * time.Hour
	passed := func(since, limit time.Duration) bool {
		if limit <= 0 {
			return false
		}
		left := since + limit - now
		wait = min(wait, max(left, time.Millisecond))
		return left <= 0
	}
	if passed(a.c.start, set.RouteTimeouts[a.c.pool.Name()]) {
		a.giveUpLocked(causeRoute)
		return 0, false
	}
	if a.phase == begun {
		if passed(time.Duration(a.lastByte.Load()), set.IdleTimeout) {
			a.giveUpLocked(causeIdle)
			return 0, false
		}
		return wait, true
	}
	passed(now, set.IdleTimeout) // its limit begins with the first byte, at the earliest now
	if passed(a.c.from, set.FirstByteTimeout) {
		a.giveUpLocked(causeFirst)
		return 0, false
	}
	if set.AttemptTimeout > 0 && !a.final && wish == causeNone && passed(a.sent, set.AttemptTimeout) {
		wish = causeSlow
	}
	if wish != causeNone && !a.final {
		if a.next = a.c.pick(); a.next != nil {
			a.giveUpLocked(wish)
			return 0, false
		}
		wait = min(wait, moveAgain) // staying beats being dropped
		if wish == causeSlow {
			wait = moveAgain
		}
	}
	return wait, true
}

func (a *attempt) giveUp(k cause) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.phase != over {
		a.giveUpLocked(k)
	}
}

// giveUpLocked ends the wait of the call's goroutine, wherever it waits: in the transport, in a read, or in a write to a client
// that takes nothing.
func (a *attempt) giveUpLocked(k cause) {
	a.why = k
	if a.told {
		_ = http.NewResponseController(a.c.w).SetWriteDeadline(time.Now().Add(time.Second))
	}
	a.phase = over
	a.cancel()
}
