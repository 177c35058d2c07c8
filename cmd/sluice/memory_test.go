package main

import (
	"runtime/debug"
	"testing"
)

// The heap may grow far while requests come, and little once none has come for a while; GOGC is obeyed.
func TestMemory(t *testing.T) {
	was, limit := debug.SetGCPercent(100), debug.SetMemoryLimit(-1)
	defer func() {
		debug.SetGCPercent(was)
		debug.SetMemoryLimit(limit)
	}()
	growth := func() int {
		now := debug.SetGCPercent(100)
		debug.SetGCPercent(now)
		return now
	}
	want := func(when string, percent int) {
		t.Helper()
		if got := growth(); got != percent {
			t.Errorf("%s: got %d %%, want %d", when, got, percent)
		}
	}
	t.Setenv("GOGC", "")
	t.Setenv("GOMEMLIMIT", "off")
	m := tuneMemory(1 << 30)
	want("at the start", idleGrowth)
	m.look()
	want("without a request", idleGrowth)
	m.ended()
	m.look()
	want("after a request", busyGrowth)
	for range quietLooks - 1 {
		m.look()
	}
	want("a moment later", busyGrowth)
	m.ended()
	for range quietLooks {
		m.look()
	}
	want("a moment after another", busyGrowth)
	m.look()
	want("long after it", idleGrowth)
	t.Setenv("GOGC", "77")
	debug.SetGCPercent(77)
	m = tuneMemory(1 << 30)
	m.ended()
	m.look()
	want("with GOGC", 77)
}
