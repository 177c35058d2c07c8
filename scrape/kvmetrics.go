package scrape

import (
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-gateway/sluice/prefix"
)

// kvKinds are the values of the label kind, by kvKind.
var kvKinds = [...]string{kvOther: "ignored", kvStored: "stored", kvRemoved: "removed", kvCleared: "cleared"}

// followMetrics are what is counted of KV events.
type followMetrics struct {
	events, gaps, lost, replays, restarts, learned *prometheus.CounterVec
	following                                      *prometheus.GaugeVec
}

func newFollowMetrics() *followMetrics {
	labels := []string{"pool", "endpoint"}
	return &followMetrics{
		events: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "sluice_kv_events_total",
			Help: "KV events of an endpoint by kind: stored and removed (each a run of blocks), cleared, ignored (of a kind or a group of blocks that says nothing of prefixes)."},
			[]string{"pool", "endpoint", "kind"}),
		gaps: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "sluice_kv_event_gaps_total",
			Help: "Times that messages with KV events of an endpoint did not come, so that they were asked for again."}, labels),
		lost: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "sluice_kv_event_lost_messages_total",
			Help: "Messages with KV events of an endpoint that were not to be had again, after which its prefixes are guessed in part."}, labels),
		replays: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "sluice_kv_event_replays_total",
			Help: "Times that an endpoint was asked for its KV events again: at the beginning, after a gap, after a lost connection."}, labels),
		restarts: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "sluice_kv_event_restarts_total",
			Help: "Times that an endpoint's KV events began anew over a new connection: its engine was restarted."}, labels),
		learned: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "sluice_kv_prompts_tokenized_total",
			Help: "Prompts whose tokens were found out, mostly by asking the endpoint's engine, so that its KV events tell what it holds of them."}, labels),
		following: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "sluice_kv_following",
			Help: "How an endpoint's prefixes are known: 0 by what was sent there (its KV events can't be followed), 1 by KV events that began late, 2 by all KV events since its cache was empty."},
			labels),
	}
}

func (m *followMetrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.events, m.gaps, m.lost, m.replays, m.restarts, m.learned, m.following}
}

// tally is one number, for a metric and for people.
type tally struct {
	n      atomic.Uint64
	series prometheus.Counter
}

func (t *tally) add(n int) {
	t.n.Add(uint64(n))
	t.series.Add(float64(n))
}

// followCounts are the numbers of one endpoint.
type followCounts struct {
	events                        [len(kvKinds)]tally
	gaps, lost, replays, restarts tally
	learned                       tally
	following                     prometheus.Gauge
	prompts                       chan *Prompt // whose tokens are wanted

	mu     sync.Mutex
	status Followed // guarded by mu, its numbers not filled in
	// weight is the events, each counting less as it ages, at the moment weighed; guarded by mu.
	weight  float64
	weighed time.Duration
	left    bool // the endpoint is gone; guarded by mu
	// root and size are what the engine's block hashes begin with and its blocks' tokens, size 0 while that isn't known;
	// guarded by mu.
	root prefix.VLLMHash
	size int
}

// endpoint makes the series of an endpoint.
func (m *followMetrics) endpoint(pool, name string) *followCounts {
	c := &followCounts{prompts: make(chan *Prompt, waitingPrompts), following: m.following.WithLabelValues(pool, name)}
	for kind, label := range kvKinds {
		c.events[kind].series = m.events.WithLabelValues(pool, name, label)
	}
	c.gaps.series, c.lost.series = m.gaps.WithLabelValues(pool, name), m.lost.WithLabelValues(pool, name)
	c.learned.series = m.learned.WithLabelValues(pool, name)
	c.replays.series, c.restarts.series = m.replays.WithLabelValues(pool, name), m.restarts.WithLabelValues(pool, name)
	return c
}

func (m *followMetrics) leave(labels prometheus.Labels) {
	for _, v := range []*prometheus.CounterVec{m.events, m.gaps, m.lost, m.replays, m.restarts, m.learned} {
		v.DeletePartialMatch(labels)
	}
	m.following.DeletePartialMatch(labels)
}

func (c *followCounts) turn(now time.Duration, f prefix.Following, why string) {
	c.following.Set(float64(f))
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.status.Following != f {
		c.status.Since = now
	}
	c.status.Following, c.status.Why = f, why
}

// names is what the engine's own hashes of blocks begin with, and how many tokens its blocks have; 0 if that isn't known.
func (c *followCounts) names() (root prefix.VLLMHash, size int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.root, c.size
}

// name takes over what names found.
func (c *followCounts) name(root prefix.VLLMHash, size int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.root, c.size = root, size
}

// unfollow ends what a worker began.
func (p *Scraper) unfollow(w *worker) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if at := [2]string{w.pool.Name(), w.endpoint.Name}; p.followed[at] == w.metrics.follow {
		delete(p.followed, at)
	}
}

// rateOver is the time over which the rate of events is a mean.
const rateOver = time.Minute

// came notes an event for the rate.
func (c *followCounts) came(now time.Duration, n float64) (perSecond float64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.weight = c.weight*math.Exp(-float64(now-c.weighed)/float64(rateOver)) + n
	c.weighed = now
	return c.weight / rateOver.Seconds()
}

// Followed is how an endpoint's KV events are followed, for people.
type Followed struct {
	// Following says how well, since a time of the scraper's clock; Why says more, in words.
	Following prefix.Following
	Since     time.Duration
	Why       string
	// Events are those that came, Gaps the times that some were missing, Lost the messages that were not to be had again, and
	// Restarts the times that the engine began anew.
	Events, Gaps, Lost, Restarts uint64
	// PerSecond is how many events come in a second, a mean that forgets over a minute.
	PerSecond float64
}

// Followed tells how the KV events of an endpoint are followed; false where it isn't said to publish any.
func (p *Scraper) Followed(pool, endpoint string) (Followed, bool) {
	now := p.opts.Now()
	p.mu.Lock()
	c := p.followed[[2]string{pool, endpoint}]
	p.mu.Unlock()
	if c == nil {
		return Followed{}, false
	}
	c.mu.Lock()
	f := c.status
	c.mu.Unlock()
	for i := range c.events {
		f.Events += c.events[i].n.Load()
	}
	f.PerSecond = c.came(now, 0)
	f.Gaps, f.Lost, f.Restarts = c.gaps.n.Load(), c.lost.n.Load(), c.restarts.n.Load()
	return f, true
}
