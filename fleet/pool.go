package fleet

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-gateway/sluice/prefix"
	"github.com/sluice-gateway/sluice/route"
)

// Pool is the live state behind one model: its endpoints, what was read from them, and what was sent to them. All
// methods may be called by any goroutine.
//
// One mutex covers gathering, deciding and counting: two picks in the same microsecond must not see the same counts,
// and the whole step takes a few microseconds.
type Pool struct {
	name     string
	cfg      atomic.Pointer[PoolConfig]
	onModels func()
	changes  *atomic.Uint64 // the fleet's, of what a data plane has to know
	snapshot atomic.Pointer[route.Snapshot]
	missed   atomic.Uint64 // names that nobody serves

	mu     sync.Mutex
	rows   []*endpoint
	by     map[string]*endpoint
	places places
	index  prefix.Index
	exact  prefix.Exact
	spare  []int // index slots to reuse
	slots  int
	dirty  bool
	// unitBytes is Request.UnitBytes of the first request, 0 before.
	unitBytes int

	view     route.View
	outside  []bool // room for view.Outside
	match    []int32
	ends     []int32 // 1, 2, 3 …
	matched  prefix.Matched
	settling settling
	rents    rents
	replies  replies
	census   census
	best     int32  // units of the request being decided that some endpoint holds
	rentKey  uint64 // of the request being decided, 0 when nobody holds any of it
	kinds    []kind
	table    []Calibration
	means    means
	loads    loads
	guard    guard
	flowAt   float64 // when flows were last brought up to date
	sessions sessions

	ids   uint64 // the latest lease's
	tell  func(n *Note)
	note  Note // what is being told
	peers map[string]*heard
}

// endpoint is the live state of one endpoint, guarded by the pool's mutex but for lastByte.
type endpoint struct {
	Endpoint
	slot   int
	row    int
	twin   *endpoint // the next at the same address
	ledger *prefix.Ledger
	// renewed says that the ledger was begun anew since the last reading.
	renewed bool

	reading    Reading
	readAt     float64
	countedAt  float64 // readAt when its requests were last counted for the view; NaN: not since the last reading, or not yet in this row
	progressAt float64
	state      route.State
	why        string
	asked      bool
	down       string // why it can't be reached, empty when it can
	late       string // why the last scrape gave no reading, empty when it did
	unmetered  bool
	stalled    bool
	engine     string
	models     []Model
	listed     map[string]bool
	missing    []string
	resident   map[string]bool
	queued     map[string]bool
	misses
	uses    adapterUse
	idle    []float64 // room for idleSince
	loadEnd float64   // when the adapters should be loaded that were sent for

	first, last *Lease // requests before their first token, as far as that is known, in the order sent
	hidden
	leases       map[*Lease]struct{}
	heard        int // of them, peers'
	lastFirst    float64
	lastByte     atomic.Int64 // nanoseconds of the fleet's clock
	stepAt, step atomic.Int64 // when the last step was seen to end, and how long one without prompts takes, in nanoseconds
	lastCold     float64      // when a request without a match was last sent
	health
	flow   flow
	speed  speed
	roots  []string // names of the base model
	label  string   // of the kind, empty where no label says the GPU
	source string   // the calibration table's row, empty for the neutral shape
	pooled string   // the pool's model when it was identified
	shape  route.Step
	kind   int32
}

// NewPool makes an empty pool; Apply gives it its settings.
func NewPool(name string) *Pool {
	p := &Pool{name: name, by: make(map[string]*endpoint), table: Calibrations(), means: newMeans(), changes: new(atomic.Uint64)}
	p.cfg.Store(&PoolConfig{Name: name, Profile: route.Latency(), StaleAfter: DefaultStaleAfter, StallAfter: DefaultStallAfter})
	p.rebuild()
	return p
}

// Name is the pool's name, which never changes.
func (p *Pool) Name() string { return p.name }

func (p *Pool) config() *PoolConfig { return p.cfg.Load() }

// Config is what the pool was last given, defaults filled in. It must not be written to.
func (p *Pool) Config() PoolConfig { return *p.config() }

// Apply takes over new settings and endpoints.
func (p *Pool) Apply(c PoolConfig) {
	if c.Profile == nil {
		c.Profile = route.Latency()
	}
	if c.StaleAfter == 0 {
		c.StaleAfter = DefaultStaleAfter
	}
	if c.StallAfter == 0 {
		c.StallAfter = DefaultStallAfter
	}
	p.cfg.Store(&c)
	p.place(c.Endpoints)
}

// SetEndpoints makes the pool hold exactly these endpoints. Those it has keep their bookkeeping; one that is gone
// leaves nothing behind but the requests it still serves, and those of them without a byte are told to move.
func (p *Pool) SetEndpoints(endpoints []Endpoint) {
	if left := p.place(endpoints); left && p.onModels != nil {
		p.onModels() // a name that only they listed is served no more
	}
}

// place is SetEndpoints for callers that look at the models themselves; it reports whether an endpoint has left.
func (p *Pool) place(endpoints []Endpoint) (left bool) {
	gone := p.swap(endpoints)
	for _, ep := range gone {
		ep.ledger.Close() // while picks go on: a cache has ten thousands of blocks
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, ep := range gone {
		p.spare = append(p.spare, ep.slot)
	}
	return len(gone) > 0
}

// swap puts these endpoints in place of those there are, and returns those that have left. Their slots are not free yet.
func (p *Pool) swap(endpoints []Endpoint) (gone []*endpoint) {
	p.mu.Lock()
	defer p.mu.Unlock()
	keep := make(map[string]*endpoint, len(endpoints))
	var rows []*endpoint
	changed := false
	for _, e := range endpoints {
		if keep[e.Name] != nil {
			continue
		}
		ep := p.by[e.Name]
		known := ep != nil && ep.UID == e.UID
		if !known {
			ep, changed = p.newEndpoint(e), true
		}
		changed = changed || ep.reachedBy() != e.reachedBy()
		known = known && ep.pooled == p.config().Model && ep.GPU() == e.GPU() && ep.tp() == e.tp()
		ep.Endpoint = e
		p.restate(ep)
		if !known { // nobody may pick meanwhile, and the table takes microseconds for each
			p.identify(ep)
		}
		keep[e.Name] = ep
		rows = append(rows, ep)
	}
	for name, ep := range p.by {
		if keep[name] != ep {
			p.index.Clear(ep.slot)
			gone = append(gone, ep)
			ep.row = -1
			ep.moveByteless()
		}
	}
	if changed || len(gone) > 0 {
		p.changes.Add(1)
	}
	p.rows, p.by, p.places = rows, keep, placesOf(rows)
	for _, ep := range rows {
		ep.countedAt = math.NaN()
	}
	p.regroup()
	p.rebuild()
	return gone
}

func (p *Pool) newEndpoint(e Endpoint) *endpoint {
	ep := &endpoint{Endpoint: e, reading: UnknownReading(), readAt: route.Never,
		leases: make(map[*Lease]struct{}), uses: make(adapterUse)}
	if n := len(p.spare); n > 0 {
		ep.slot, p.spare = p.spare[n-1], p.spare[:n-1]
	} else {
		ep.slot = p.slots
		p.slots++
	}
	p.index.Resize(ep.slot, p.unitsFor(ep))
	ep.ledger = p.exact.Open(ep.slot)
	return ep
}

// unitsFor sizes an endpoint's share of the prefix index by its own cache, so that the index never believes in more
// than the engine can hold. Until a request says how long a unit is there is nothing to hold.
func (p *Pool) unitsFor(ep *endpoint) int {
	if p.unitBytes == 0 {
		return 0
	}
	tokens := ep.reading.KVTokens
	if !(tokens > 0) {
		tokens = defaultKVTokens
	}
	unitTokens := max(float64(p.unitBytes)/p.means.bytesPerToken(), 1)
	return int(min(tokens/unitTokens, prefix.MaxUnits))
}

// measureIn takes over the unit that requests are measured in, which is the same for all of them.
func (p *Pool) measureIn(unitBytes int) {
	p.unitBytes = unitBytes
	for _, ep := range p.rows {
		p.index.Resize(ep.slot, p.unitsFor(ep))
	}
}

// defaultKVTokens stands for a cache of unknown size: less than any GPU worth routing to.
const defaultKVTokens = 100_000

// restate derives the state and its reason from what is known of the endpoint. One that was not asked yet is stale, and
// so serves when nothing better is left: after a start, or a reload that replaces every endpoint, a request is not
// refused for a reading's sake.
func (p *Pool) restate(ep *endpoint) {
	was := ep.state
	ep.state, ep.why = 0, ""
	switch {
	case ep.down != "":
		ep.state, ep.why = route.NotReady, ep.down
	case ep.stalled:
		ep.state, ep.why = route.Stalled, "requests in flight and no progress"
	}
	if ep.Drain {
		ep.state |= route.Draining
		if ep.why == "" && ep.Pod != "" {
			ep.why = "its pod is ending, or is to drain"
		} else if ep.why == "" {
			ep.why = "taken out of traffic by configuration"
		}
	}
	if ep.unmetered {
		ep.state |= route.Unmetered
	}
	if (was^ep.state)&route.Stalled != 0 {
		p.changes.Add(1)
	}
}

// moveByteless tells every request that has had no byte from this endpoint to go elsewhere.
func (ep *endpoint) moveByteless() {
	for l := range ep.leases {
		if !l.begun && !l.told && !l.heard && (l.queued || !l.unseen) {
			l.told = true
			close(l.lost)
		}
	}
}

// Observe takes a reading of one endpoint. at is when the scrape was sent, so that what was sent to the endpoint later
// is known not to be in it. Unknown names are ignored: the endpoint has left.
func (p *Pool) Observe(now, at time.Duration, name string, r Reading, missing []string) {
	var lost, resized *prefix.Ledger
	defer func() { // once the pool is unlocked
		lost.Doubt()
		resized.Resize(int(min(r.KVTokens, 1<<40)))
	}()
	p.mu.Lock()
	defer p.mu.Unlock()
	ep := p.by[name]
	if ep == nil {
		return
	}
	if restarted(&ep.reading, &r) {
		p.index.Clear(ep.slot)
		lost = ep.outdated()
		ep.uses.restart()
	}
	ep.renewed = false
	p.confirm(ep, &r, at.Seconds())
	p.learnFromEngine(ep, &r)
	p.observePace(ep, &r, at.Seconds())
	p.observeQuiet(ep, &r)
	p.observeEnded(ep, &r)
	p.observeOthers(ep, &r)
	if r.KVTokens != ep.reading.KVTokens && r.KVTokens > 0 {
		resized = ep.ledger
	}
	if progressed(&ep.reading, &r) || ep.readAt == route.Never {
		ep.progressAt, ep.stalled = now.Seconds(), false
	}
	ep.reading, ep.readAt, ep.countedAt, ep.missing = r, at.Seconds(), math.NaN(), missing
	ep.observeAdapters(now.Seconds(), &r)
	ep.asked, ep.down, ep.late, ep.unmetered = true, "", "", false
	ep.stalled = p.stalls(ep, now.Seconds())
	p.restate(ep)
	if ep.stalled && p.refuge(now.Seconds()) {
		ep.moveByteless()
	}
	p.index.Resize(ep.slot, p.unitsFor(ep)) // bytes per token may have changed if nothing else has
	if resized != nil {
		p.identify(ep)
		p.regroup() // the size may tell how many GPUs share the model
	}
	p.dirty = true
}

// stalls reports whether an endpoint serves requests and yet neither its work nor its bodies have moved for too long: a
// frozen engine behind a process that still answers. Once stalled it stays so until something moves or it has nothing
// left to serve: our requests have left it, and those that go there for want of a better one prove nothing.
func (p *Pool) stalls(ep *endpoint, now float64) bool {
	if !(ep.reading.Running > 0) || math.IsNaN(ep.reading.Progress) {
		return false
	}
	since := max(ep.progressAt, time.Duration(ep.lastByte.Load()).Seconds())
	if !ep.stalled {
		oldest := now
		for l := range ep.leases {
			oldest = min(oldest, l.sent)
		}
		since = max(since, oldest)
	}
	return now-since > p.config().StallAfter.Seconds()
}

// refuge reports whether some endpoint may serve that is neither stale nor stalled: whoever is told to move has
// somewhere better to go.
func (p *Pool) refuge(now float64) bool {
	limit := p.config().StaleAfter.Seconds()
	return slices.ContainsFunc(p.rows, func(ep *endpoint) bool {
		return ep.state&(route.NotReady|route.Draining|route.Stalled) == 0 && now >= ep.ejectedUntil &&
			(ep.state&route.Unmetered != 0 || now-ep.readAt <= limit)
	})
}

// mostFresh reports whether at least half of the endpoints that may serve were read or heard of lately. Otherwise the
// readings are at fault, and what waits stays where it is, as the filter stale has it.
func (p *Pool) mostFresh(now float64) bool {
	limit := p.config().StaleAfter.Seconds()
	serving, fresh := 0, 0
	for _, ep := range p.rows {
		if ep.state&(route.NotReady|route.Draining|route.Stalled) != 0 {
			continue
		}
		serving++
		if ep.state&route.Unmetered != 0 || now-max(ep.readAt, time.Duration(ep.lastByte.Load()).Seconds()) <= limit {
			fresh++
		}
	}
	return 2*fresh >= serving
}

// restarted reports that the engine's counters fell, which they do only by a restart: its cache is empty.
func restarted(old, now *Reading) bool {
	return now.PrefillTokens < old.PrefillTokens || now.DecodeTokens < old.DecodeTokens
}

// progressed reports that the engine's work moved. Where nothing was known of it before, it counts as moved: the time
// without progress begins then.
func progressed(old, now *Reading) bool {
	return now.Progress != old.Progress && !math.IsNaN(now.Progress)
}

func set(names []string) map[string]bool {
	if len(names) == 0 {
		return nil
	}
	s := make(map[string]bool, len(names))
	for _, n := range names {
		s[n] = true
	}
	return s
}

// ObserveFailure takes the news that an endpoint gave no reading, with the reason in words. One that was asked and
// whose answer was no good is stale until there is a reading: traffic goes there if there is nowhere better.
func (p *Pool) ObserveFailure(name string, f Failure, why string) {
	var lost *prefix.Ledger
	defer func() { lost.Doubt() }() // once the pool is unlocked
	p.mu.Lock()
	defer p.mu.Unlock()
	ep := p.by[name]
	if ep == nil {
		return
	}
	ep.asked = true
	switch f {
	case Unreachable:
		if ep.down == "" {
			p.index.Clear(ep.slot) // it comes back, if it does, with an empty cache
			lost = ep.outdated()
			ep.uses.restart()
		}
		ep.down, ep.stalled = cmp.Or(why, "unreachable"), false
		ep.moveByteless()
	case ScrapeFailed:
		ep.late = why
	case NoMetrics:
		ep.down, ep.late, ep.unmetered, ep.stalled = "", "", true, false
		ep.missing = []string{why}
		// The last reading never ages there: a long queue in it would repel for ever, and an empty one attract.
		ep.reading, ep.readAt, ep.countedAt = UnknownReading(), route.Never, math.NaN()
		ep.resident, ep.queued = nil, nil
	}
	p.restate(ep)
	p.dirty = true
}

// ObserveModels takes what an endpoint lists under /v1/models, and the engine it turned out to be ("" for unknown).
func (p *Pool) ObserveModels(name, engine string, models []Model) {
	p.mu.Lock()
	ep := p.by[name]
	if ep == nil {
		p.mu.Unlock()
		return
	}
	changed := ep.engine != engine || !slices.EqualFunc(ep.models, models, func(a, b Model) bool { return a.ID == b.ID && a.Parent == b.Parent })
	ep.models, ep.engine, ep.roots = models, engine, roots(models)
	ep.listed = make(map[string]bool, len(models))
	for _, m := range models {
		ep.listed[m.ID] = true
	}
	ep.unlist()
	if changed {
		p.identify(ep)
		p.regroup()
	}
	p.dirty = true
	relist := p.onModels
	p.mu.Unlock()
	if changed && relist != nil {
		relist()
	}
}

// Tick notices what passes without an event: prefills of whole answers where no reading tells, and endpoints whose
// readings have become too old while requests wait there without a byte. They are told to move, unless everything is
// stale and there is nowhere better. It publishes a snapshot where there is news. Call it a few times a second.
func (p *Pool) Tick(now time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.dirty {
		p.rebuild()
	}
	p.settle(now.Seconds())
	t, limit := now.Seconds(), p.config().StaleAfter.Seconds()
	for _, ep := range p.rows {
		if ep.unmetered {
			p.advance(ep, t)
			for ep.first != nil && ep.first.passed { // there is nothing to hold it against
				p.showed(ep.first, t)
			}
		}
	}
	if !p.refuge(t) || !p.mostFresh(t) {
		return
	}
	for _, ep := range p.rows {
		quiet := t - time.Duration(ep.lastByte.Load()).Seconds()
		if ep.asked && ep.state&route.Unmetered == 0 && t-ep.readAt > limit && quiet > limit {
			ep.moveByteless()
		}
	}
}

// rebuild publishes a snapshot of the present state and lays out the live columns to match.
func (p *Pool) rebuild() {
	n := len(p.rows)
	floats := make(route.Column, 4*n)
	s := &route.Snapshot{Version: 1, Names: make([]string, n), Hashes: make([]uint64, n), States: make([]route.State, n),
		Why: make([]string, n), Kinds: make([]int32, n), ReadAt: make([]float64, n),
		Waiting: floats[:n:n], Running: floats[n : 2*n : 2*n], KVUse: floats[2*n : 3*n : 3*n], KVTokens: floats[3*n:]}
	if old := p.snapshot.Load(); old != nil {
		s.Version = old.Version + 1
	}
	for i, ep := range p.rows {
		ep.row = i
		s.Names[i], s.Hashes[i] = ep.Name, route.HashName(ep.Name)
		if ep.Pod != "" {
			if s.Pods == nil {
				s.Pods = make([]string, n)
			}
			s.Pods[i] = ep.Pod
		}
		s.States[i], s.Why[i], s.Kinds[i], s.ReadAt[i] = ep.state, ep.why, ep.kind, ep.readAt
		s.Waiting[i], s.Running[i] = float32(ep.reading.Waiting), float32(ep.reading.Running)
		s.KVUse[i], s.KVTokens[i] = float32(ep.reading.KVUse), float32(ep.reading.KVTokens)
	}
	p.snapshot.Store(s)
	p.dirty = false
	p.layout(s)
}

// layout gives the view's live columns one value per row. Requests are counted afresh where the row has moved or there is a new reading, which
// may have seen some of them: derived counters cannot drift for longer than from one reading to the next. To count those of every endpoint with
// each reading of one took half of the time of 64 busy endpoints.
func (p *Pool) layout(s *route.Snapshot) {
	v := &p.view
	v.Snapshot = s
	n := s.Len()
	if len(v.InFlight) != n {
		for _, c := range []*route.Column{&v.InFlight, &v.Prefilling, &v.Backlog, &v.Work, &v.Head, &v.Held, &v.Context, &v.SentSince, &v.Match,
			&v.Cached, &v.Errors, &v.Arrivals, &v.Occupied} {
			*c = make(route.Column, n)
		}
		v.HeadSince, v.StepEnd = make([]float64, n), make([]float64, n)
		v.LastCold, v.EjectedUntil, v.LastByte = make([]float64, n), make([]float64, n), make([]float64, n)
		v.SlotIdle, v.SlotAhead, v.LoadEnd = make(route.Column, n), make(route.Column, n), make([]float64, n)
		v.Adapters, v.Tried = make([]route.Adapter, n), make([]bool, n)
	}
	for i, ep := range p.rows {
		v.LastCold[i], v.EjectedUntil[i] = ep.lastCold, ep.ejectedUntil
		if ep.countedAt == ep.readAt {
			continue
		}
		ep.countedAt = ep.readAt
		v.InFlight[i], v.Held[i], v.Context[i], v.SentSince[i] = float32(len(ep.leases)), 0, 0, 0
		for l := range ep.leases {
			v.Held[i] += l.held
			v.Context[i] += l.context()
			if l.unread() {
				v.SentSince[i]++
			}
		}
		v.Prefilling[i], v.Backlog[i], v.Work[i] = 0, 0, 0
		for l := ep.first; l != nil; l = l.next {
			l.work = ep.workOf(l) // the shape may have changed
			if !l.passed {
				v.Prefilling[i]++
				v.Backlog[i] += l.uncached
				v.Work[i] += l.work
			}
		}
	}
}

// Snapshot is what was last published: what is read becomes part of it with the next Pick, Status or Tick.
func (p *Pool) Snapshot() *route.Snapshot { return p.snapshot.Load() }

// Endpoints lists the pool's endpoints in row order.
func (p *Pool) Endpoints() []Endpoint {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := make([]Endpoint, len(p.rows))
	for i, ep := range p.rows {
		out[i] = ep.Endpoint
	}
	return out
}

// Models is the union of what the endpoints list, the base model first and then by name.
func (p *Pool) Models() []Model {
	p.mu.Lock()
	defer p.mu.Unlock()
	union := make(map[string]Model)
	for _, ep := range p.rows {
		for _, m := range ep.models {
			if _, ok := union[m.ID]; !ok {
				union[m.ID] = m
			}
		}
	}
	return slices.SortedFunc(maps.Values(union), func(a, b Model) int {
		if (a.Parent == "") != (b.Parent == "") {
			if a.Parent == "" {
				return -1
			}
			return 1
		}
		return strings.Compare(a.ID, b.ID)
	})
}

// Status is what is known of one endpoint, for people and metrics.
type Status struct {
	Endpoint Endpoint
	// State is ready, stale, stalled, ejected, in doubt, draining or not ready; Why says more, in words.
	State, Why string
	// Engine and Kind are what was found by asking and by measuring.
	Engine, Kind string
	// Age is the age of the last reading in seconds, NaN if there never was one.
	Age float64
	// Reading is the last one.
	Reading Reading
	// InFlight is this gateway's own bookkeeping; Prefilling and BacklogTokens include what peers told.
	InFlight, Prefilling int
	BacklogTokens        float64
	// WorkMS is what computing the backlog takes at a factor of 1, ContextTokens the context of the requests in flight.
	WorkMS, ContextTokens float64
	// PrefixUnits is how much prefix the index believes the endpoint to hold, in units.
	PrefixUnits int
	// HeldTokens is how many tokens the endpoint's KV events say that its blocks hold, 0 where they are not followed.
	HeldTokens int
	// Asked: it was asked for its metrics. Metered: it gave some, and can be reached.
	Asked, Metered bool
	// MissingMetrics are metrics that routing could use and the engine does not have. Of one that is not Metered they are the
	// reason for that.
	MissingMetrics []string
	// Slower is how many times longer prompts take here than at the others of its kind, 0 where that is not much.
	Slower float64
	// Rate is the learned speed of the endpoint's kind.
	Rate route.Rate
	// Errors is the share of the latest requests that it failed, 0 to 1, forgotten over seconds.
	Errors float64
	// Models are the names that the endpoint lists, nil before it was asked.
	Models []string
}

// Status describes every endpoint at the time now.
func (p *Pool) Status(now time.Duration) []Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.dirty {
		p.rebuild()
	}
	out := make([]Status, len(p.rows))
	for i, ep := range p.rows {
		s := Status{Endpoint: ep.Endpoint, Engine: ep.engine, Reading: ep.reading, InFlight: len(ep.leases) - ep.heard,
			Prefilling: int(p.view.Prefilling[i]), BacklogTokens: float64(p.view.Backlog[i]),
			WorkMS: float64(p.view.Work[i]), ContextTokens: float64(p.view.Context[i]), PrefixUnits: p.index.Held(ep.slot),
			MissingMetrics: ep.missing, Rate: p.view.Rates[ep.kind], Kind: p.view.Rates[ep.kind].Name, Age: math.NaN(), Why: ep.why}
		s.HeldTokens, _ = ep.ledger.Tokens()
		s.Errors = ep.errorShare(now.Seconds())
		s.Slower = p.outlier(ep)
		if ep.listed != nil {
			s.Models = make([]string, 0, len(ep.models))
		}
		for _, m := range ep.models {
			s.Models = append(s.Models, m.ID)
		}
		if ep.readAt != route.Never {
			s.Age = now.Seconds() - ep.readAt
		}
		s.Asked, s.Metered = ep.asked, ep.asked && ep.readAt != route.Never && ep.down == "" && !ep.unmetered
		s.State = p.stateOf(ep, now.Seconds(), &s)
		out[i] = s
	}
	return out
}

func (p *Pool) stateOf(ep *endpoint, now float64, s *Status) string {
	switch {
	case ep.state&route.Draining != 0:
		return "draining"
	case ep.state&route.NotReady != 0:
		return "not ready"
	case ep.state&route.Stalled != 0:
		return "stalled"
	case ep.state&route.Unmetered == 0 && now-ep.readAt > p.config().StaleAfter.Seconds():
		s.Why = fmt.Sprintf("last reading %.1f s ago", now-ep.readAt)
		if ep.readAt == route.Never {
			s.Why = "no reading yet"
		}
		if !ep.asked {
			s.Why = "not asked yet"
		}
		if ep.late != "" {
			s.Why += ": " + ep.late
		}
		return "stale"
	case now < ep.ejectedUntil:
		s.Why = ep.health.why()
		return "ejected"
	case ep.doubt:
		s.Why = "after a pause one request at a time is tried, until one is served"
		return "in doubt"
	}
	return "ready"
}

// Ready reports whether at least one endpoint was asked and may serve.
func (p *Pool) Ready() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.ContainsFunc(p.rows, func(ep *endpoint) bool {
		return ep.asked && ep.state&(route.NotReady|route.Draining) == 0
	})
}
