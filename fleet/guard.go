package fleet

import "time"

// Where traffic lives by finding its beginnings again, losing them feeds on itself: what is computed again fills the
// queues, full queues send requests where nothing of theirs is held, and that pushes out what others hold. So the pool
// watches two figures of its own, and while hits have fallen and the backlog has risen it decides conservatively, as
// the reference's weights do, which of all policies compared lost least under stress.
const (
	// guardFast and guardSlow are over how many requests the present and the usual are averaged.
	guardFast, guardSlow = 100, 4000
	// guardLearns is how many requests make something usual.
	guardLearns = 1000
	// The guard comes up when hits are below guardFell of the usual, and each endpoint has guardBacklog milliseconds of
	// prompts waiting on average and guardRose times the usual; it goes down when hits are above guardBack of the usual
	// or the backlog is below half of what brought it up. Both must hold for guardHolds.
	guardFell, guardBack = .7, .85
	guardBacklog         = 1000
	guardRose            = 3
	guardHolds           = 2 * time.Second
	guardHits            = .1 // a pool with fewer hits than that has no affinity to lose
	// guardLasts is the longest the guard stays up. What has not come back by then is other traffic, not lost affinity, or
	// the averages are of requests long past: both are then taken as usual.
	guardLasts = time.Minute
)

// guard is what a pool knows of its hits and its backlog: shares of prompt tokens, and milliseconds an endpoint.
type guard struct {
	hits, usualHits       float64
	backlog, usualBacklog float64
	seen                  int
	// since is when the state began to want changing, -1 when it doesn't.
	since  float64
	up     bool
	upAt   float64 // seconds, when it last came up
	onsets int
}

// sent takes a decision: the share of the prompt that the endpoint holds, and the mean backlog. While the guard is up
// nothing becomes usual.
func (g *guard) sent(now, hit, backlog float64) {
	g.seen++
	follow := func(x *float64, value, over float64) { *x += (value - *x) / min(float64(g.seen), over) }
	follow(&g.hits, hit, guardFast)
	follow(&g.backlog, backlog, guardFast)
	if !g.up {
		follow(&g.usualHits, hit, guardSlow)
		follow(&g.usualBacklog, backlog, guardSlow)
	}
	if g.up && now-g.upAt > guardLasts.Seconds() {
		g.up, g.since = false, -1
		g.usualHits, g.usualBacklog = g.hits, g.backlog
		return
	}
	if g.seen < guardLearns || !g.wants() {
		g.since = -1
		return
	}
	if g.since < 0 {
		g.since = now
	}
	if now-g.since < guardHolds.Seconds() {
		return
	}
	g.up, g.since = !g.up, -1
	if g.up {
		g.onsets++
		g.upAt = now
	}
}

// wants reports whether the state should change.
func (g *guard) wants() bool {
	if g.up {
		return g.hits > guardBack*g.usualHits || g.backlog < guardBacklog/2
	}
	return g.usualHits > guardHits && g.hits < guardFell*g.usualHits && g.backlog > guardBacklog && g.backlog > guardRose*g.usualBacklog
}

// Affinity is what a pool knows of its hits, as far as it can tell from what it sent: for metrics and people.
type Affinity struct {
	// Guarded says that the pool decides conservatively because hits have fallen and the backlog has risen; Onsets is
	// how often that began.
	Guarded bool
	Onsets  int
	// Hits and UsualHits are shares of prompt tokens; Backlog and UsualBacklog milliseconds of prompts waiting at an
	// endpoint on average.
	Hits, UsualHits, Backlog, UsualBacklog float64
}

// Affinity says how the pool's hits and backlog are.
func (p *Pool) Affinity() Affinity {
	p.mu.Lock()
	defer p.mu.Unlock()
	g := &p.guard
	return Affinity{g.up, g.onsets, g.hits, g.usualHits, g.backlog, g.usualBacklog}
}

// watch has the guard take a decision for a row.
func (p *Pool) watch(now float64, row int) {
	v, backlog := &p.view, float32(0)
	for i := range p.rows {
		backlog += v.Work[i] * v.Rates[v.Snapshot.Kinds[i]].Prefill
	}
	hit := min(v.Match[row]*v.Request.UnitTokens/max(v.Request.PromptTokens, 1), 1)
	p.guard.sent(now, float64(hit), float64(backlog)/float64(len(p.rows)))
	v.Guard = p.guard.up
}
