package front

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// linesPerSecond is how often one pool's trouble of one kind is logged. An outage fails every request in the same way.
const linesPerSecond = 3

// throttle bounds what is logged. The zero value is ready.
type throttle struct {
	mu   sync.Mutex
	said map[kind]burst
}

// kind is what lines are bounded by; both words come from the configuration and from tables in the code.
type kind struct{ pool, cause string }

type burst struct {
	since         time.Duration // the gateway's clock at its first line
	lines, missed int
}

// pass reports whether a line may be logged at the time now, and how many of its kind were left out before it.
func (t *throttle) pass(now time.Duration, k kind) (missed int, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	b, seen := t.said[k]
	if !seen || now-b.since >= time.Second {
		b.since, b.lines = now, 0
	}
	if b.lines == linesPerSecond {
		b.missed++
		t.said[k] = b
		return 0, false
	}
	b.lines++
	missed, b.missed = b.missed, 0
	if t.said == nil {
		t.said = make(map[kind]burst)
	}
	t.said[k] = b
	return missed, true
}

// prune forgets what is known of pools that are gone.
func (t *throttle) prune(there map[string]bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for k := range t.said {
		if k.pool != "" && !there[k.pool] {
			delete(t.said, k)
		}
	}
}

// Complain logs a request that the gateway could not serve, or not to its end. Good requests are not logged. cause is
// one of a fixed set of words or sentences; endpoint is the last that was tried, empty for none.
func (r *Request) Complain(ctx context.Context, message, cause, endpoint string, status int) {
	k := kind{cause: cause}
	if r.Pool != nil {
		k.pool = r.Pool.Name()
	}
	missed, ok := r.desk.said.pass(r.desk.now(), k)
	if !ok {
		return
	}
	attrs := []slog.Attr{slog.String(WireRequestID, r.ID), slog.String("pool", k.pool), slog.String("endpoint", endpoint),
		slog.Int("status", status), slog.String("cause", cause)}
	if missed > 0 {
		attrs = append(attrs, slog.Int("missed", missed))
	}
	r.desk.log.LogAttrs(context.WithoutCancel(ctx), slog.LevelInfo, message, attrs...)
}
