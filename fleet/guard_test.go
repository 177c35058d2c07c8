package fleet

import "testing"

// feed gives the guard n requests a tenth of a second apart.
func (g *guard) feed(now float64, n int, hit, backlog float64) float64 {
	for range n {
		now += .1
		g.sent(now, hit, backlog)
	}
	return now
}

// The guard comes up when hits fall while the backlog rises, and goes down when either is over.
func TestGuardComesUpWhenAffinityIsLost(t *testing.T) {
	var g guard
	now := g.feed(0, 2000, .9, 50)
	if g.up {
		t.Fatal("up in a healthy pool")
	}
	now = g.feed(now, 400, .3, 4000)
	if !g.up || g.onsets != 1 {
		t.Fatalf("hits of .3 for .9 and 4 s of backlog: up %v, onsets %d", g.up, g.onsets)
	}
	if usual := g.usualHits; usual < .85 {
		t.Errorf("usual hits: got %v, want those of before", usual)
	}
	g.feed(now, 400, .88, 3000)
	if g.up || g.onsets != 1 {
		t.Errorf("hits are back: up %v, onsets %d", g.up, g.onsets)
	}
}

// One alone is no reason: other traffic has fewer hits, and more of the same traffic a longer backlog.
func TestGuardStaysDown(t *testing.T) {
	for what, c := range map[string]struct{ hit, backlog float64 }{
		"fewer hits": {.1, 100}, "more load": {.9, 8000}, "a little of both": {.75, 900},
	} {
		var g guard
		g.feed(g.feed(0, 2000, .9, 50), 2000, c.hit, c.backlog)
		if g.up {
			t.Errorf("%s: up", what)
		}
	}
	var g guard
	g.feed(g.feed(0, 2000, .02, 50), 2000, 0, 8000)
	if g.up {
		t.Error("up in a pool that never had hits")
	}
}

// Traffic that has changed for good, or so little of it that the averages last for minutes, does not keep the guard up.
func TestGuardEnds(t *testing.T) {
	var g guard
	now := g.feed(g.feed(0, 2000, .9, 50), 400, .3, 4000)
	if !g.up {
		t.Fatal("down with affinity lost")
	}
	g.feed(now, 600, .3, 4000)
	if g.up {
		t.Error("still up after a minute of the same")
	}
	g.feed(now+60, 2000, .3, 4000)
	if g.up || g.onsets != 1 {
		t.Errorf("what has become usual brings it up: up %v, onsets %d", g.up, g.onsets)
	}
}
