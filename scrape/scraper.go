package scrape

import (
	"context"
	"hash/fnv"
	"log/slog"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-gateway/sluice/fleet"
)

// Options are a scraper's settings; the zero value is usable.
type Options struct {
	// Interval is the time between two scrapes of one endpoint; 0 means DefaultInterval.
	Interval time.Duration
	// AskInterval is the time between two looks at what an endpoint lists; 0 means DefaultAskInterval.
	AskInterval time.Duration
	// Now is the fleet's clock: the time since an origin, which must never jump. nil means the time since New.
	Now func() time.Duration
	// Log takes changes of state; nil means nowhere.
	Log *slog.Logger
	// Registerer takes the scraper's own metrics; nil means nowhere.
	Registerer prometheus.Registerer
	// DialContext opens connections to endpoints; nil means the network.
	DialContext func(ctx context.Context, network, address string) (net.Conn, error)
}

// How often the scraper looks after its pools.
const (
	tickEvery  = 100 * time.Millisecond
	matchEvery = 2 // ticks between two comparisons of the fleet with the goroutines
)

// Scraper keeps a fleet's readings fresh: one goroutine an endpoint, so that no endpoint waits for another.
type Scraper struct {
	fleet   *fleet.Fleet
	opts    Options
	metrics *metrics
	pages   sync.Pool // of *[]byte
	workers map[place]*worker
	warned  map[*fleet.Pool]time.Duration // pools whose intervals were found wrong, and with which limit

	mu   sync.Mutex
	said map[lacking]bool // guarded by mu
	// followed is the endpoints with KV events, by pool and name; guarded by mu.
	followed map[[2]string]*followCounts
}

// lacking is what the endpoints of one engine in a pool don't say, in words.
type lacking struct {
	pool          *fleet.Pool
	engine, words string
}

// sayLack logs what an engine lacks, once for all endpoints of a pool. Any worker may call it.
func (p *Scraper) sayLack(pool *fleet.Pool, engine, words string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l := lacking{pool, engine, words}
	if p.said[l] {
		return
	}
	p.said[l] = true
	p.opts.Log.Info("engine lacks what routing could use", "pool", pool.Name(), "engine", engine, "missing", words)
}

// place is an endpoint in a pool. The pool is told by its address: one that was removed and came back is another.
type place struct {
	pool *fleet.Pool
	name string
}

// New makes a scraper for a fleet. It reports an error if readings of a pool that the fleet has would be stale before
// the next ones arrive, or if its metrics are registered already.
func New(f *fleet.Fleet, opts Options) (*Scraper, error) {
	if opts.Interval == 0 {
		opts.Interval = DefaultInterval
	}
	if opts.AskInterval == 0 {
		opts.AskInterval = DefaultAskInterval
	}
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	if opts.Now == nil {
		start := time.Now()
		opts.Now = func() time.Duration { return time.Since(start) }
	}
	for _, p := range f.Pools() {
		if err := CheckIntervals(opts.Interval, p.Config().StaleAfter); err != nil {
			return nil, err
		}
	}
	m, err := newMetrics(opts.Registerer)
	if err != nil {
		return nil, err
	}
	return &Scraper{fleet: f, opts: opts, metrics: m, pages: sync.Pool{New: func() any { return new([]byte) }},
		workers: make(map[place]*worker), warned: make(map[*fleet.Pool]time.Duration),
		said: make(map[lacking]bool), followed: make(map[[2]string]*followCounts)}, nil
}

// Run scrapes until ctx ends, and returns nil when every goroutine has ended too. Call it once.
func (p *Scraper) Run(ctx context.Context) error {
	ticker := time.NewTicker(tickEvery)
	defer ticker.Stop()
	for i := 0; ; i++ {
		if i%matchEvery == 0 {
			p.match(ctx)
		}
		for _, pool := range p.fleet.Pools() {
			pool.Tick(p.opts.Now())
		}
		select {
		case <-ctx.Done():
			p.stop(func(place) bool { return true })
			return nil
		case <-ticker.C:
		}
	}
}

// match makes the goroutines those of the fleet's endpoints: it starts and stops them, and restarts what is reached
// otherwise than before.
func (p *Scraper) match(ctx context.Context) {
	want := make(map[place]fleet.Endpoint)
	pools := p.fleet.Pools()
	for _, pool := range pools {
		p.check(pool)
		for _, e := range pool.Endpoints() {
			want[place{pool, e.Name}] = e
		}
	}
	for pool := range p.warned {
		if !slices.Contains(pools, pool) {
			delete(p.warned, pool)
		}
	}
	p.mu.Lock()
	maps.DeleteFunc(p.said, func(l lacking, _ bool) bool { return !slices.Contains(pools, l.pool) })
	p.mu.Unlock()
	clash := p.clashes(pools)
	p.stop(func(at place) bool {
		e, ok := want[at]
		return !ok || !sameReach(&e, &p.workers[at].endpoint) || clash[at] != p.workers[at].clash
	})
	for at, e := range want {
		if p.workers[at] == nil {
			p.workers[at] = p.start(ctx, at.pool, e, p.sharing(at.pool, &e), clash[at])
		}
	}
}

// check says once when a pool that came later has a limit too low for the interval.
func (p *Scraper) check(pool *fleet.Pool) {
	limit := pool.Config().StaleAfter
	err := CheckIntervals(p.opts.Interval, limit)
	if err != nil && p.warned[pool] != limit {
		p.opts.Log.Error("readings can't be kept fresh", "pool", pool.Name(), "error", err)
		p.warned[pool] = limit
	}
}

// stop ends workers and waits for them; a worker ends as soon as its context does, whatever its endpoint is doing.
func (p *Scraper) stop(which func(place) bool) {
	var ended []*worker
	for at, w := range p.workers {
		if which(at) {
			w.cancel()
			ended = append(ended, w)
			delete(p.workers, at)
		}
	}
	for _, w := range ended {
		<-w.done
		w.metrics.leave()
		p.unfollow(w)
		others := false
		for at := range p.workers {
			others = others || at.pool.Name() == w.pool.Name()
		}
		if !others {
			p.metrics.leavePool(w.pool.Name())
		}
	}
}

// sameReach reports whether two endpoints are reached and understood in the same way. Labels and draining are nothing
// to a scraper.
func sameReach(a, b *fleet.Endpoint) bool {
	return a.Name == b.Name && a.UID == b.UID && a.Host == b.Host && a.Engine == b.Engine && a.MetricsPort == b.MetricsPort && a.MetricsPath == b.MetricsPath &&
		a.TLS == b.TLS && a.H2C == b.H2C && a.APIKey == b.APIKey && a.KVEvents == b.KVEvents && a.Ranks == b.Ranks && a.FirstRank == b.FirstRank
}

// timeout is how long a scrape may take: as long as it does no harm, since a busy engine answers late.
func (p *Scraper) timeout(staleAfter time.Duration) time.Duration {
	return max(p.opts.Interval, min(time.Second, staleAfter/2))
}

// slot is how far turns are apart at least. Those of one slot begin together: waking an idle core for each costs more than
// reading its page.
const slot = 10 * time.Millisecond

// untilNext is how long to wait for an endpoint's next turn. Turns are spread over the interval by the endpoint's name,
// so that they are the same after a restart and need no chance.
func untilNext(name string, now, interval time.Duration) time.Duration {
	h := fnv.New64a()
	h.Write([]byte(name))
	offset := time.Duration(h.Sum64()%uint64(max(interval/slot, 1))) * slot
	return interval - (now-offset+interval)%interval
}
