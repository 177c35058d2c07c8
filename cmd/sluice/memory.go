package main

import (
	"os"
	"runtime/debug"
	"sync/atomic"
)

// memory decides how far the heap may grow before it is collected. While requests come it may grow to five times what is in
// use, since little is: collecting sooner costs a tenth of the CPU of small requests. While none come it grows by half, and
// what load has left is given back: reading a hundred endpoints makes garbage enough to fill whatever there is. Nil decides
// nothing.
type memory struct {
	requests atomic.Int64 // that have ended
	seen     int64
	quiet    int // looks without one
}

const (
	busyGrowth, idleGrowth = 400, 50 // per cent
	quietLooks             = 10
)

// tuneMemory sets the process up for bodies of so many bytes together: with many large ones the heap is collected sooner, before it
// takes much more than they may. Who sets GOGC or GOMEMLIMIT is obeyed.
func tuneMemory(bodies int64) *memory {
	const others = 512 << 20
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(bodies + others)
	}
	if os.Getenv("GOGC") != "" {
		return nil
	}
	debug.SetGCPercent(idleGrowth)
	return &memory{quiet: quietLooks}
}

// ended takes the news that a request has ended.
func (m *memory) ended() {
	if m != nil {
		m.requests.Add(1)
	}
}

// look sees whether requests come. It is called by one goroutine, about once a second.
func (m *memory) look() {
	if m == nil {
		return
	}
	n := m.requests.Load()
	switch {
	case n != m.seen:
		if m.quiet >= quietLooks {
			debug.SetGCPercent(busyGrowth)
		}
		m.quiet = 0
	case m.quiet < quietLooks:
		if m.quiet++; m.quiet == quietLooks {
			debug.SetGCPercent(idleGrowth)
			debug.FreeOSMemory()
		}
	}
	m.seen = n
}
