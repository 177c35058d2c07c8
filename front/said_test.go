package front

import (
	"testing"
	"time"
)

// O09: an outage is a few lines in a second, not one for each request.
func TestThrottle(t *testing.T) {
	var th throttle
	refused, other := kind{"a", "connection refused"}, kind{"b", "connection refused"}
	pass := func(now time.Duration, k kind, missed int, ok bool) {
		t.Helper()
		if m, o := th.pass(now, k); m != missed || o != ok {
			t.Errorf("at %v: got %d missed and %v, want %d and %v", now, m, o, missed, ok)
		}
	}
	for range linesPerSecond {
		pass(0, refused, 0, true)
	}
	pass(0, refused, 0, false)
	pass(time.Second-1, refused, 0, false)
	pass(time.Second-1, other, 0, true)  // a pool of its own
	pass(time.Second, refused, 2, true)  // a second later, with what was left out
	pass(time.Second, refused, 0, true)  // told once
	th.prune(map[string]bool{"b": true}) // pool a is gone
	if len(th.said) != 1 {
		t.Errorf("got %d kinds kept, want 1", len(th.said))
	}
}
