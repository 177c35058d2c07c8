package fleet

import (
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/sluice-gateway/sluice/route"
)

// Request is what a front door knows of a request that it wants an endpoint for.
type Request struct {
	// Model is the name asked for, Adapter the adapter it names, if it does.
	Model, Adapter string
	// PromptBytes is the size of everything that reaches the prompt.
	PromptBytes int
	// Blocks are its prefix blocks, chained hashes; Ends says for each how many units of UnitBytes bytes the prompt has
	// up to its end, nil that each is one unit. They are read during Pick only.
	Blocks    []uint64
	Ends      []int32
	UnitBytes int
	// Head hashes the bytes of the prompt from the beginning of the prefix block that byte n-1 is in up to byte n: by
	// it is seen what the prompt shares with others inside a block. Nil if that can't be told. It is called during Pick
	// only.
	Head func(n int) uint64
	// MaxOutput is the request's own limit in tokens, 0 for none.
	MaxOutput int
	// Streamed says that the first body byte is the first token. In an answer that comes whole it is the last.
	Streamed bool
	// Unseen says that nobody sees the answer: FirstByte and Progress are not called, and the Outcome has no counts. What
	// is learned of it comes from the engine's own counters.
	Unseen bool
	// Session identifies the client's session by a hash, 0 for none.
	Session uint64
	// Holder names the endpoint that keeps the response that the request continues or is about, empty for none.
	Holder string
	// Subset are the addresses that the request may go to ("10.0.0.1:8000"), nil for all.
	Subset []string
	// Tried names endpoints that failed this request before.
	Tried []string
	// Suspect says that an endpoint has failed while it served this request. A second one that does proves nothing: it
	// may be the request that makes them fail.
	Suspect bool
	// Seed decides what nothing else decides; 0 draws one at random. A simulation gives its own, to be the same each
	// time.
	Seed uint64
	// Record asks for a copy of the view, to explain or replay the decision.
	Record bool
}

// affinityBlocks is how many leading blocks requests must share to be one in a tie: enough to tell conversations apart,
// few enough that a conversation stays one as it grows.
const affinityBlocks = 4

// Lease is one request counted at one endpoint. Its methods may be called from any goroutine. Done must be called;
// calling it again does nothing, so that every way out may.
type Lease struct {
	// Endpoint is where the request goes.
	Endpoint Endpoint
	// Reason is what was decided in a few words, for a header or a log.
	Reason string
	// Cached is how many tokens of the prompt are expected to be in the endpoint's cache. CachedExact says that the
	// endpoint's own events and the prompt's tokens tell it, up to the next prefix block; else it is an estimate, or
	// what the prompt shares with others.
	Cached      int
	CachedExact bool
	// Fallbacks are the addresses of the next best endpoints, in order and empty where there are fewer, for a data plane
	// that retries by itself: none is the endpoint's own, and each takes the request as it is made for the endpoint, with
	// its key and its rank. Pool.Move takes the news that it did.
	Fallbacks [route.MaxFallbacks]string

	pool       *Pool
	ep         *endpoint
	id         uint64
	prev, next *Lease
	sent       float64
	promptSize int
	uncached   float32 // tokens to compute, behind the cached ones
	cached     float32
	work       float32 // what computing them takes by the kind's shape, in milliseconds at a factor of 1
	held       float32
	leaf       uint64  // last block of the prompt
	beyond     float32 // tokens of the prompt after it
	rest       float32 // seconds of a step without prompts that were left when it was sent
	streamed   bool    // and its first token is seen
	unseen     bool    // Request.Unseen
	lone       bool    // no other was before its first token when it was sent
	passed     bool    // its first token is predicted to have come
	cold       bool    // the endpoint held nothing of it
	heard      bool    // a peer's; it has no Endpoint and no lost
	queued     bool    // in the endpoint's list of requests before their first token
	begun      bool
	told       bool
	done       bool
	adapter    string
	loads      bool    // the adapter was not there
	alone      bool    // and nothing else was
	suspect    bool    // Request.Suspect
	probe      bool    // sent to an endpoint in doubt
	firstAt    float64 // when its first token came, or is predicted to
	stepsAt    float64 // what the endpoint's pace was at then
	began      float64 // when the step begins that computes its prompt, as first predicted; the step's work, and whether it has all that waited
	own        float32
	whole      bool
	before     float64 // the endpoint's work before and after that step
	after      float64
	lost       chan struct{}
	expected   []uint64 // blocks that the endpoint has been sent and may not have computed yet
}

// Choice is what a Pick decided, whether an endpoint may serve or none.
type Choice struct {
	route.Decision
	// View is a copy of what was decided from, nil unless Request.Record asked for it. It is the caller's.
	View *route.View
}

// Pick decides where the request goes and counts it there, in one step. The Lease is nil when the decision's verdict is
// not Send.
func (p *Pool) Pick(now time.Duration, r *Request) (*Lease, Choice) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.dirty {
		p.rebuild()
	}
	cfg := p.config()
	v := &p.view
	p.settle(now.Seconds())
	p.gather(now.Seconds(), cfg, r)
	c := Choice{Decision: cfg.Profile.Decide(v)}
	if r.Record {
		copied := v.Clone()
		p.forecast(&copied, r)
		c.View = &copied
	}
	v.Turn++ // after the copy, which has to give the same decision again
	if c.Verdict != route.Send {
		return nil, c
	}
	if p.rentKey != 0 {
		p.rents.pay(p.rentKey, now.Seconds(), c.Missed, p.copies(&c.Decision))
	}
	l := p.reserve(now.Seconds(), r, int(c.Endpoint))
	p.remember(now.Seconds(), cfg, r.Session, l.Endpoint.Name)
	l.Reason = cfg.Profile.Reason(v, c.Decision)
	p.fallBack(l, cfg.Profile, c.Decision)
	p.tellSent(l, r, &c)
	return l, c
}

// copies reports whether the decision has the beginning rentKey computed where it is not held. That the chosen endpoint
// holds less of the request than another says less: the other may have an answer that the request goes on from, which
// nobody else asks for.
func (p *Pool) copies(d *route.Decision) bool {
	return d.Copied && p.match[p.rows[d.Endpoint].slot] < p.best
}

// gather reads everything impure into the view.
func (p *Pool) gather(now float64, cfg *PoolConfig, r *Request) {
	v := &p.view
	v.Now, v.Seed, v.StaleAfter = now, r.Seed, cfg.StaleAfter.Seconds()
	if v.Seed == 0 {
		v.Seed = rand.Uint64()
	}
	unitTokens := float32(float64(r.UnitBytes) / p.means.bytesPerToken())
	output := float32(p.means.output())
	if r.MaxOutput > 0 {
		output = min(output, float32(r.MaxOutput))
	}
	v.Request = route.Request{Model: r.Model, Adapter: r.Adapter, Holder: r.Holder, UnitTokens: unitTokens,
		PromptTokens: max(float32(float64(r.PromptBytes)/p.means.bytesPerToken()), 1), OutputTokens: output}
	if r.UnitBytes > 0 && r.UnitBytes != p.unitBytes {
		p.measureIn(r.UnitBytes)
	}
	if n := len(r.Blocks); n > 0 {
		v.Request.Units = int(p.endsOf(r)[n-1])
		v.Request.Affinity = r.Blocks[min(n, affinityBlocks)-1]
	}
	v.MeanUncached, v.MeanOutput = float32(p.means.uncached()), float32(p.means.output())
	p.gatherMatch(now, r)
	p.gatherAdapters(now, r.Adapter)
	p.gatherSteps(now)
	p.gatherFlow(now)
	p.gatherSession(now, cfg, r.Session)
	p.gatherSubset(r.Subset)
	for i, ep := range p.rows {
		v.Tried[i] = len(r.Tried) > 0 && slices.Contains(r.Tried, ep.Name)
		v.Errors[i], v.LastByte[i] = float32(ep.errorShare(now)), time.Duration(ep.lastByte.Load()).Seconds()
	}
}

// endsOf is r.Ends, made up where it is nil.
func (p *Pool) endsOf(r *Request) []int32 {
	if r.Ends != nil {
		return r.Ends
	}
	for len(p.ends) < len(r.Blocks) {
		p.ends = append(p.ends, int32(len(p.ends)+1))
	}
	return p.ends[:len(r.Blocks)]
}

func (p *Pool) gatherMatch(now float64, r *Request) {
	if cap(p.match) < p.slots {
		p.match = make([]int32, p.slots)
	}
	p.match = p.match[:p.slots]
	ends := p.endsOf(r)
	p.exact.Match(&p.index, r.Blocks, ends, p.match, &p.matched)
	best, last, seen := int32(0), 0, int32(-1)
	for i, ep := range p.rows {
		match := p.match[ep.slot]
		p.view.Cached[i], p.view.Match[i] = float32(p.index.Held(ep.slot)), float32(match)
		tokens, exact := ep.ledger.Tokens()
		if exact && r.UnitBytes > 0 {
			p.view.Cached[i] = float32(tokens) / p.view.Request.UnitTokens
		}
		if match > 0 {
			if match != seen { // most hold the same
				last, _ = slices.BinarySearch(ends, match)
				seen = match
			}
			p.view.Match[i] += p.beyond(r, last, i)
		}
		best = max(best, match)
	}
	p.best = best
	p.rentKey = 0
	if last, ok := slices.BinarySearch(ends, best); ok {
		p.rentKey = r.Blocks[last]
		p.view.Request.Missed = p.rents.at(p.rentKey, now)
	}
}

// reserve counts the request at the chosen endpoint and notes what its cache will hold. It counts in whole tokens: sums
// of whole numbers are exact in any order, so that columns cannot drift and the same history gives the same decisions.
func (p *Pool) reserve(now float64, r *Request, row int) *Lease {
	v, ep := &p.view, p.rows[row]
	p.ids++
	uncached := whole(max(v.Request.PromptTokens-v.Match[row]*v.Request.UnitTokens, 1))
	l := &Lease{Endpoint: ep.Endpoint, pool: p, ep: ep, id: p.ids, sent: now, promptSize: r.PromptBytes, uncached: uncached,
		cached: whole(max(v.Request.PromptTokens-uncached, 0)), held: uncached + whole(v.Request.OutputTokens),
		rest: float32(max(v.StepEnd[row]-now, 0)), streamed: r.Streamed && !r.Unseen, unseen: r.Unseen, cold: v.Match[row] == 0, queued: true, suspect: r.Suspect,
		lost: make(chan struct{})}
	if n := len(r.Blocks); n > 0 && p.best < int32(v.Request.Units) {
		l.leaf, l.beyond = r.Blocks[n-1], max(v.Request.PromptTokens-float32(v.Request.Units)*v.Request.UnitTokens, 0)
	}
	if l.hides() && l.rest == 0 && ep.next == nil {
		l.rest = p.halfStep(ep)
	}
	p.probe(l, now)
	p.useAdapter(l, now, r.Adapter, row)
	p.count(l)
	if l.cold {
		ep.lastCold, v.LastCold[row] = now, now
	}
	p.index.Add(ep.slot, r.Blocks, p.endsOf(r), &p.matched)
	p.expect(l, r)
	p.means.sent(float64(uncached))
	p.watch(now, row)
	return l
}

// halfStep is how many seconds are left on average of a step in which the endpoint only decodes, 0 where it does not.
func (p *Pool) halfStep(ep *endpoint) float32 {
	v, row := &p.view, ep.row
	if v.InFlight[row] == 0 {
		return 0
	}
	return v.Rates[ep.kind].Decode * ep.shape.Token(v.InFlight[row], v.Context[row]) / 2000
}

// count adds a lease to what its endpoint has, in the order in which requests were sent there.
func (p *Pool) count(l *Lease) {
	ep := l.ep
	l.work = ep.workOf(l)
	ep.flow.arrivals += 1 / flowLasts
	ep.leases[l] = struct{}{}
	l.lone = ep.first == nil
	before := ep.last
	for before != nil && before.sent > l.sent {
		before = before.prev // a peer's, of which we hear a moment later
	}
	l.prev, l.next = before, ep.first
	if before != nil {
		l.next, before.next = before.next, l
	} else {
		ep.first = l
	}
	if l.next != nil {
		l.next.prev = l
	} else {
		ep.last = l
	}
	if l.hides() {
		ep.unshown++
	}
	if ep.next == l.next {
		ep.next = l
	}
	if n := l.next; n != nil && n.passed { // a peer's, that was before those
		l.passed, l.firstAt, l.stepsAt, l.before, l.after = true, n.firstAt, n.stepsAt, n.before, n.before
	}
	if ep.row < 0 {
		return
	}
	v, row := &p.view, ep.row
	v.InFlight[row]++
	if l.unread() {
		v.SentSince[row]++
	}
	if !l.passed {
		v.Prefilling[row]++
		v.Backlog[row] += l.uncached
		v.Work[row] += l.work
	}
	v.Held[row] += l.held
	v.Context[row] += l.context()
}

// context is the tokens that it has in the cache halfway through its output, those included that it shares.
func (l *Lease) context() float32 { return l.cached + whole((l.uncached+l.held)/2) }

// workOf is what computing the request's prompt takes there at a factor of 1, in 64ths of a millisecond: their sums are
// exact, too.
func (ep *endpoint) workOf(l *Lease) float32 {
	return whole(64*ep.shape.Compute(l.uncached, l.cached)) / 64
}

func whole(tokens float32) float32 { return float32(math.Round(float64(tokens))) }

// prefilled takes the lease off the list of requests before their first token.
func (l *Lease) prefilled() {
	if !l.queued {
		return
	}
	l.queued = false
	p, ep := l.pool, l.ep
	if l.prev != nil {
		l.prev.next = l.next
	} else {
		ep.first = l.next
	}
	if l.next != nil {
		l.next.prev = l.prev
	} else {
		ep.last = l.prev
	}
	if ep.next == l {
		ep.next = l.next
	}
	l.prev, l.next = nil, nil
	if l.hides() {
		ep.unshown--
	}
	if ep.row < 0 || l.passed {
		return
	}
	v := &p.view
	v.Prefilling[ep.row] = max(v.Prefilling[ep.row]-1, 0)
	v.Backlog[ep.row] = max(v.Backlog[ep.row]-l.uncached, 0)
	v.Work[ep.row] = max(v.Work[ep.row]-l.work, 0)
	if ep.next == nil {
		v.Prefilling[ep.row], v.Backlog[ep.row], v.Work[ep.row] = 0, 0, 0 // sums beyond 16 million are rounded
	}
}

// unread reports whether the endpoint's last reading cannot have seen this request. One that was sent in the same
// instant as the scrape counts as not seen, so that a burst in that instant spreads.
func (l *Lease) unread() bool { return l.sent >= l.ep.readAt }

// FirstByte notes the first body byte of the answer: the first token, where the answer is streamed.
func (l *Lease) FirstByte(now time.Duration) {
	p := l.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	if l.begun || l.done {
		return
	}
	l.begin(now)
	p.tellOf(NoteBegun, now, l, Outcome{})
}

// begin takes the first byte into account. A peer's may be heard of after later ones.
func (l *Lease) begin(now time.Duration) {
	if l.begun {
		return
	}
	p := l.pool
	l.begun, l.firstAt = true, now.Seconds()
	l.settleAt(l.firstAt)
	if !l.heard || int64(now) > l.ep.lastByte.Load() {
		l.ep.saw(now)
	}
	if !l.heard {
		p.serves(l)
	}
	l.leave(l.firstAt, Finished)
	if !l.streamed {
		l.prefilled()
		return
	}
	ep := l.ep
	for first := ep.first; first != nil && first.sent <= l.sent && !first.streamed; first = ep.first {
		first.leave(l.firstAt, Finished) // engines prefill in order: what was sent before is past it too
		first.prefilled()                // where the endpoint has left
	}
	switch {
	case l.loads:
		p.learnLoad(l)
	case l.queued && (l.lone || ep.unshown == 0):
		p.learnFirst(l)
	}
	l.prefilled()
	ep.lastFirst = max(ep.lastFirst, l.firstAt)
}

// Progress notes that body bytes arrive; it takes no lock.
func (l *Lease) Progress(now time.Duration) { l.ep.saw(now) }

// Lost is closed when the endpoint is no longer one to wait at (gone, not ready, stale, stalled) while the request has
// had no byte from it.
func (l *Lease) Lost() <-chan struct{} { return l.lost }

// Stuck reports whether the request waits for nothing, if its answer has not begun: its endpoint makes no progress, or
// has given no sign of life for as long as one may be without progress (PoolConfig.StallAfter), and another may serve.
// An endpoint that has left the pool, or has no metrics, is not taken to be so. It is for a front door that cannot move
// the request, and so has to be surer than Lost is.
func (l *Lease) Stuck(now time.Duration) bool {
	p, t := l.pool, now.Seconds()
	p.mu.Lock()
	defer p.mu.Unlock()
	ep, limit := l.ep, p.config().StallAfter.Seconds()
	if l.done || l.begun || ep.row < 0 || ep.state&route.Unmetered != 0 || t-l.sent <= limit || !p.refuge(t) {
		return false
	}
	alive := time.Duration(ep.lastByte.Load()).Seconds()
	if !math.IsNaN(ep.readAt) {
		alive = max(alive, ep.readAt)
	}
	return ep.stalled || t-alive > limit
}

// Ending says how a request at an endpoint ended.
type Ending uint8

const (
	// Finished: the engine answered, whatever its status below 500.
	Finished Ending = iota
	// Aborted: the client went away.
	Aborted
	// Moved: this endpoint was given up for another before its first byte, without proof of a fault.
	Moved
	// Failed: the endpoint answered with a server error, or broke the connection.
	Failed
	// Refused: no connection could be made.
	Refused
	// Full: the endpoint answered that it takes no more, or no more yet (429, 503). That is no fault.
	Full
)

// Outcome is what is known when a request ends at an endpoint. Zero counts mean not known.
type Outcome struct {
	Ending Ending
	// PromptTokens and OutputTokens are from the engine's usage; OutputTokens may be counted events.
	PromptTokens, OutputTokens int
}

// Done ends the lease. Only the first call counts.
func (l *Lease) Done(now time.Duration, o Outcome) {
	p := l.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	if l.done {
		return
	}
	l.finish(now, o)
}

// finish is Done with the pool locked.
func (l *Lease) finish(now time.Duration, o Outcome) {
	p, t := l.pool, now.Seconds()
	l.leave(t, o.Ending)
	l.settleAt(t)
	l.end(t)
	o = l.guess(t, o)
	if l.unseen && o.Ending == Finished {
		p.sawEnd(l.ep, t)
	}
	l.learn(t, o)
	p.tellOf(NoteEnded, now, l, o)
	p.judge(l, t, o.Ending)
}

// end lowers every counter that the lease raised.
func (l *Lease) end(now float64) {
	p, ep := l.pool, l.ep
	l.done = true
	l.prefilled()
	delete(ep.leases, l)
	l.leaveAdapter(now)
	if l.heard {
		ep.heard--
	}
	if ep.row < 0 {
		return
	}
	v := &p.view
	v.InFlight[ep.row] = float32(len(ep.leases))
	v.Held[ep.row] = max(v.Held[ep.row]-l.held, 0)
	v.Context[ep.row] = max(v.Context[ep.row]-l.context(), 0)
	if len(ep.leases) == 0 {
		v.Held[ep.row], v.Context[ep.row] = 0, 0 // sums beyond 16 million are rounded
	}
	if l.unread() {
		v.SentSince[ep.row] = max(v.SentSince[ep.row]-1, 0)
	}
}

// learn takes from an end what it says of requests and of speeds.
func (l *Lease) learn(now float64, o Outcome) {
	if o.Ending != Finished {
		return
	}
	p, ep := l.pool, l.ep
	o = o.plausible(l.promptSize)
	if l.unseen && ep.reading.Finished >= 0 { // the engine tells it better
		ep.ended.n++
		ep.ended.bytes += float64(l.promptSize)
	} else {
		p.means.finished(l.promptSize, o)
	}
	if l.leaf != 0 && o.OutputTokens > 0 && ep.row >= 0 {
		p.replies.add(l.leaf, p.view.Snapshot.Hashes[ep.row], l.beyond+float32(o.OutputTokens))
	}
	if l.streamed && l.begun && o.OutputTokens > 1 {
		p.learnDecode(ep, now-l.firstAt, float64(o.OutputTokens-1), l.context())
	}
}

// InFlight is the number of this gateway's requests counted at all endpoints.
func (p *Pool) InFlight() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for _, ep := range p.rows {
		n += len(ep.leases) - ep.heard
	}
	return n
}
