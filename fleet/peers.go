package fleet

import "time"

// Replicas of a gateway that share nothing but the endpoints decide worse than one: none knows what the others sent in
// this moment, nor which prefixes they brought where. So a pool can tell what it sends, what begins and what ends, in
// notes, and hears those of its peers. What is heard goes into the same bookkeeping as what was sent, so that the
// decision, what is learned and what counts as others' requests know no difference.

// NoteKind says what happened.
type NoteKind uint8

// The kinds of notes. Numbers are part of the protocol between replicas and do not change.
const (
	// NoteSent: a request was sent to an endpoint.
	NoteSent NoteKind = 1
	// NoteBegun: the first body byte of its answer came.
	NoteBegun NoteKind = 2
	// NoteEnded: it ended there, whatever became of it.
	NoteEnded NoteKind = 3
	// NoteRecount: what was told before counts no longer; the NoteOpen that follow are all requests that are open.
	NoteRecount NoteKind = 4
	// NoteOpen: a request that was sent, and told of, before the NoteRecount.
	NoteOpen NoteKind = 5
	// NoteHolds: the endpoint is believed to hold blocks.
	NoteHolds NoteKind = 6
	// NoteStored: the endpoint keeps a response of the responses API.
	NoteStored NoteKind = 7
)

// Note is one thing that a gateway tells its peers of a pool. Fields that its kind does not name are zero.
type Note struct {
	Kind NoteKind
	// At is when it happened, on the clock of whoever holds the note.
	At time.Duration
	// ID is the request's, growing with every request of a pool from 1; in a NoteRecount that of the latest.
	ID uint64
	// Endpoint is where the request went; all kinds but NoteBegun, NoteEnded and NoteRecount have it.
	Endpoint string

	// Of NoteSent and NoteOpen: the uncached prompt tokens, the tokens that the request adds to the KV cache, the bytes of its prompt, whether
	// its answer is streamed, whether the endpoint held nothing of it, and its adapter.
	Uncached, Held float32
	PromptBytes    int
	Streamed, Cold bool
	Adapter        string
	// Loads says that the endpoint has to load the adapter first, Alone that it has nothing else to do.
	Loads, Alone bool
	// Begun says of a NoteOpen that the request has had its first byte, Prefilled that it is past its prompt.
	Begun, Prefilled bool
	// BegunAt is when that was.
	BegunAt time.Duration
	// Blocks, Ends and UnitBytes are those of the Request. In a NoteHolds, Ends are each block's own units.
	Blocks    []uint64
	Ends      []int32
	UnitBytes int
	// Missed is what the request missed for want of another copy of the beginning MissedKey, in milliseconds, Copied
	// whether it made one; MissedKey is 0 where nobody held any of it.
	MissedKey uint64
	Missed    float32
	Copied    bool
	// Session is the Request's, of NoteSent alone. Replicas hash sessions alike.
	Session uint64

	// Outcome is a NoteEnded's.
	Outcome Outcome
	// Response is the identifier in a NoteStored.
	Response string
}

// heardNotes and heardBlocks bound what is heard under one hold of the pool's lock, for which picks wait: some 0.1 ms.
const heardNotes, heardBlocks = 64, 1 << 10

// maxHeard bounds the open requests of one peer that a pool counts; those beyond are not counted.
const maxHeard = 1 << 15

// heard is what a pool knows of one peer: its open requests, and the greatest request that it has told of.
type heard struct {
	open map[uint64]*Lease
	last uint64
}

// Tell has the pool tell what it does from now on, nil ends it. tell is called with the pool locked: it must not block
// nor call the pool, and the note is valid only until it returns.
func (p *Pool) Tell(tell func(n *Note)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.tell = tell
}

// hush ends what peers count of a pool that has left, and all telling: another one of its name numbers its requests anew, and would be
// taken for it.
func (p *Pool) hush() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.tell != nil {
		p.note = Note{Kind: NoteRecount}
		p.tell(&p.note)
		p.tell = nil
	}
}

// tellSent tells of a request just counted.
func (p *Pool) tellSent(l *Lease, r *Request, c *Choice) {
	if p.tell == nil {
		return
	}
	p.note = Note{Kind: NoteSent, Blocks: r.Blocks, Ends: r.Ends, UnitBytes: r.UnitBytes,
		MissedKey: p.rentKey, Missed: c.Missed, Copied: p.copies(&c.Decision), Session: r.Session}
	p.describe(l)
	p.tell(&p.note)
}

// describe fills in the lease's own part of the pool's note.
func (p *Pool) describe(l *Lease) {
	n := &p.note
	n.At, n.ID, n.Endpoint, n.Uncached, n.Held = duration(l.sent), l.id, l.Endpoint.Name, l.uncached, l.held
	n.PromptBytes, n.Streamed, n.Cold, n.Adapter, n.Loads, n.Alone = l.promptSize, l.streamed, l.cold, l.adapter, l.loads, l.alone
}

// tellOf tells that something happened to a lease.
func (p *Pool) tellOf(kind NoteKind, now time.Duration, l *Lease, o Outcome) {
	if p.tell == nil {
		return
	}
	p.note = Note{Kind: kind, At: now, ID: l.id, Outcome: o}
	p.tell(&p.note)
}

// Recount tells everything that the pool has open: a peer that hears it, and from then on every note, knows all there
// is. No other note of this pool comes between. The rules for tell are those of Pool.Tell.
func (p *Pool) Recount(now time.Duration, tell func(n *Note)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.note = Note{Kind: NoteRecount, At: now, ID: p.ids}
	tell(&p.note)
	for _, ep := range p.rows {
		for l := range ep.leases {
			if l.heard {
				continue
			}
			p.note = Note{Kind: NoteOpen, Begun: l.begun, Prefilled: !l.queued, BegunAt: duration(l.firstAt)}
			p.describe(l)
			tell(&p.note)
		}
	}
}

// Recall tells what the endpoint is believed to hold: its latest blocks, at most that many, the oldest first.
func (p *Pool) Recall(now time.Duration, endpoint string, most int, tell func(n *Note)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	ep := p.by[endpoint]
	if ep == nil || p.unitBytes == 0 {
		return
	}
	blocks, units := p.index.Latest(ep.slot, most)
	for len(blocks) > 0 {
		n := min(len(blocks), heardBlocks)
		tell(&Note{Kind: NoteHolds, At: now, Endpoint: endpoint, UnitBytes: p.unitBytes, Blocks: blocks[:n:n], Ends: units[:n:n]})
		blocks, units = blocks[n:], units[n:]
	}
}

// Hear takes over what a peer told, with its times on this fleet's clock, none in the future. Notes may come twice, and
// may be missing if a NoteRecount follows sooner or later. Those of endpoints that the pool has not are ignored:
// configurations differ for a while during a roll-out.
func (p *Pool) Hear(peer string, notes []Note) {
	for len(notes) > 0 {
		n, blocks := 0, 0
		for n < len(notes) && n < heardNotes && blocks < heardBlocks {
			blocks += len(notes[n].Blocks)
			n++
		}
		p.hearSome(peer, notes[:n])
		notes = notes[n:]
	}
}

// hearSome takes over a few notes.
func (p *Pool) hearSome(peer string, notes []Note) {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := p.peers[peer]
	if h == nil {
		h = &heard{open: make(map[uint64]*Lease)}
		if p.peers == nil {
			p.peers = make(map[string]*heard)
		}
		p.peers[peer] = h
	}
	for i := range notes {
		p.hear(h, &notes[i])
	}
}

func (p *Pool) hear(h *heard, n *Note) {
	switch n.Kind {
	case NoteSent:
		p.hearSent(h, n)
	case NoteOpen:
		p.hearOpen(h, n)
	case NoteBegun:
		if l := h.open[n.ID]; l != nil {
			l.begin(n.At)
		}
	case NoteEnded:
		h.last = max(h.last, n.ID) // a note that was overtaken by its end must not count for ever
		if l := h.open[n.ID]; l != nil {
			delete(h.open, n.ID)
			l.leave(n.At.Seconds(), n.Outcome.Ending)
			l.settleAt(n.At.Seconds())
			l.end(n.At.Seconds())
			l.learn(n.At.Seconds(), n.Outcome)
		}
	case NoteRecount:
		p.forget(h)
		h.last = n.ID
	case NoteHolds:
		if ep := p.by[n.Endpoint]; ep != nil && p.measured(n) && len(n.Blocks) == len(n.Ends) {
			p.index.Learn(ep.slot, n.Blocks, n.Ends)
		}
	}
}

// measured reports whether the note's blocks are cut as ours are.
func (p *Pool) measured(n *Note) bool {
	if p.unitBytes == 0 && n.UnitBytes > 0 {
		p.measureIn(n.UnitBytes)
	}
	return n.UnitBytes == p.unitBytes
}

// hearSent counts a peer's request, and learns of it what Pick learns of ours.
func (p *Pool) hearSent(h *heard, n *Note) {
	if n.ID <= h.last {
		return // it came before
	}
	h.last = n.ID
	l := p.shadow(h, n)
	if l == nil {
		return
	}
	ep, at := l.ep, l.sent
	p.remember(at, p.config(), n.Session, ep.Name)
	if n.Loads {
		ep.loadEnd = max(ep.loadEnd, at) + p.loads.mean()
	}
	if n.Cold {
		ep.lastCold = max(ep.lastCold, at)
		if ep.row >= 0 {
			p.view.LastCold[ep.row] = ep.lastCold
		}
	}
	if n.MissedKey != 0 {
		p.rents.pay(n.MissedKey, at, sane(n.Missed), n.Copied)
	}
	if p.measured(n) && n.grows() {
		ends := p.endsOf(&Request{Blocks: n.Blocks, Ends: n.Ends})
		p.index.Match(n.Blocks, ends, nil, &p.matched)
		p.index.Add(ep.slot, n.Blocks, ends, &p.matched)
		p.expectBlocks(l, n.Blocks)
	}
	p.means.sent(float64(l.uncached))
}

// hearOpen counts a request of which nothing is to be learned.
func (p *Pool) hearOpen(h *heard, n *Note) {
	if h.open[n.ID] != nil {
		return
	}
	l := p.shadow(h, n)
	if l == nil {
		return
	}
	if n.Loads && !n.Begun { // it may have been heard of before, so that nothing is added up
		l.ep.loadEnd = max(l.ep.loadEnd, l.sent+p.loads.mean())
	}
	if n.Begun || n.Prefilled {
		l.begun, l.firstAt = n.Begun, n.BegunAt.Seconds()
		if n.Prefilled {
			l.prefilled()
		}
	}
}

// shadow counts a peer's request at its endpoint, nil if that is not known here.
func (p *Pool) shadow(h *heard, n *Note) *Lease {
	ep := p.by[n.Endpoint]
	if ep == nil || len(h.open) >= maxHeard {
		return nil
	}
	l := &Lease{pool: p, ep: ep, sent: n.At.Seconds(), promptSize: n.PromptBytes,
		uncached: whole(min(sane(n.Uncached), float32(n.PromptBytes+templateTokens))), held: whole(sane(n.Held)),
		streamed: n.Streamed, loads: n.Loads, alone: n.Alone, queued: true, heard: true}
	l.cached = whole(max(float32(float64(n.PromptBytes)/p.means.bytesPerToken())-l.uncached, 0))
	h.open[n.ID] = l
	ep.heard++
	l.takeAdapter(n.Adapter)
	p.count(l)
	return l
}

// grows reports whether Ends are what they should be for Blocks.
func (n *Note) grows() bool {
	if n.Ends == nil {
		return true
	}
	last := int32(0)
	for _, end := range n.Ends {
		if end <= last {
			return false
		}
		last = end
	}
	return len(n.Ends) == len(n.Blocks)
}

// sane makes a number of tokens out of whatever came over the wire.
func sane(tokens float32) float32 {
	if tokens >= 0 { // false for NaN
		return min(tokens, maxTokens)
	}
	return 0
}

// Forget takes a peer's requests out of all counts: it has been lost, and what it has open is corrected by what engines
// say, as any other's. What it told of prefixes stays true.
func (p *Pool) Forget(peer string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if h := p.peers[peer]; h != nil {
		p.forget(h)
		delete(p.peers, peer)
	}
}

func (p *Pool) forget(h *heard) {
	for _, l := range h.open {
		l.settleAt(l.sent)
		l.end(l.sent)
	}
	clear(h.open)
}

// Share has all pools, those there are and those to come, tell what they do, under the rules of Pool.Tell. It is called
// before requests come.
func (f *Fleet) Share(tell func(pool string, n *Note)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.tell = tell
	for _, p := range f.pools {
		f.share(p)
	}
}

func (f *Fleet) share(p *Pool) {
	if f.tell != nil {
		tell, name := f.tell, p.name
		p.Tell(func(n *Note) { tell(name, n) })
	}
}

// Hear takes over what a peer told of the pool of that name; where there is none, it is ignored.
func (f *Fleet) Hear(peer, pool string, notes []Note) {
	for _, p := range f.Pools() {
		if p.name == pool {
			f.hearStored(p.name, notes)
			p.Hear(peer, notes)
		}
	}
}

// Forget takes a lost peer's requests out of the counts of all pools.
func (f *Fleet) Forget(peer string) {
	for _, p := range f.Pools() {
		p.Forget(peer)
	}
}

func duration(seconds float64) time.Duration { return time.Duration(seconds * float64(time.Second)) }
