package prefix

import (
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"
)

const (
	// maxMapped is how many prefix blocks Exact knows the tokens of: 88 bytes each.
	maxMapped = 1 << 18
	// maxHealed is how many engine hashes of prompts are kept to find lost parents by.
	maxHealed = 1 << 16
	// maxClasses is how many sizes of engine blocks a pool may have, minBlock the least of them: the tables cost so many bytes a
	// block. What endpoints with other blocks hold is guessed.
	maxClasses, minBlock = 4, 8
	// chunk is how many blocks are stored or removed under one hold of the lock.
	chunk = 64
)

// Exact knows from the endpoints' own events which blocks of tokens each holds, and of prompts whose tokens are known
// which of those blocks their prefix blocks stand for. Where either is not known, the guess of an Index stands. Its zero
// value is ready; any goroutine may call its methods and those of its ledgers.
//
// Two tables meet in a key, a chained hash of tokens: from prefix blocks to keys, filled by Learn, and from keys to the
// slots that hold them, filled by events.
type Exact struct {
	mu      sync.Mutex
	words   int
	ledgers []*Ledger // by slot, nil where no endpoint is
	// following counts the slots that are followed.
	following int
	// complete has the slots whose events are known from an empty cache on.
	complete []uint64
	classes  []*class

	// The table of keys: one entry for each block that some slot holds, with one bit per slot.
	entries map[uint64]int32
	keys    []uint64
	held    []uint64
	free    []int32

	// The table of prefix blocks, evicted by second chance.
	blocks map[uint64]int32
	mapped []mapped
	hand   int
	inner  ring

	healed, healedBefore map[uint64]uint64 // engine hash to key, two generations

	lanes []lane
}

// class is the endpoints whose engines have blocks of one size.
type class struct {
	size  int
	salt  uint64   // tells its prefix blocks from those of other classes
	slots []uint64 // those followed
}

// mapped is a prefix block whose tokens are known: those up to its end that do not depend on what follows, and the key of the last whole
// engine block among them, 0 where there is none.
type mapped struct {
	block, key uint64
	points     points // the engine blocks that end inside it
	tokens     int32
	entry      int32 // where the key was last found
	used       bool
	turn       uint32 // of the next child
	children   [siblings]int32
	parent     uint64 // the prefix block before it, as far as that knows it
}

// lane is the slots that match by the same rules, as one look-up goes along.
type lane struct {
	class *class // nil for slots that are guessed
	alive []uint64
	live  bool
	last  int32
	units int32
}

// Ledger is what one endpoint's events say it holds. Once closed it takes no more.
type Ledger struct {
	x         *Exact
	slot      int
	closed    bool
	following Following
	class     *class
	tokens    int // that its cache has room for, 0 when unknown
	// held is how many tokens it holds, if known.
	held  atomic.Int64
	known atomic.Bool
	// stored are its blocks by the engine's own hash.
	stored map[uint64]stored
	onGPU  int // copies
	stamp  uint32
	lost   int
}

// stored is a block of an engine: how many copies there are on the GPU, since engines compute the same block twice when
// two requests bring it at once, and whether there is one in the host's memory. Without any it is kept after a gap for
// the sake of its key, by which its children are known.
type stored struct {
	key   uint64
	stamp uint32
	gpu   uint16
	host  bool
}

func (s stored) held() bool { return s.gpu > 0 || s.host }

// Open begins a ledger for the endpoint that now has the slot. It is not followed yet.
func (x *Exact) Open(slot int) *Ledger {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.grow(slot)
	if old := x.ledgers[slot]; old != nil {
		old.close()
	}
	l := &Ledger{x: x, slot: slot, stored: make(map[uint64]stored)}
	x.ledgers[slot] = l
	return l
}

// grow makes room for the slot's bit everywhere.
func (x *Exact) grow(slot int) {
	if x.entries == nil {
		x.entries, x.blocks = make(map[uint64]int32), make(map[uint64]int32)
	}
	for len(x.ledgers) <= slot {
		x.ledgers = append(x.ledgers, nil)
	}
	words := (len(x.ledgers) + 63) / 64
	if words <= x.words {
		return
	}
	x.held = widen(x.held, x.words, words)
	x.complete = append(x.complete, make([]uint64, words-x.words)...)
	for _, c := range x.classes {
		c.slots = append(c.slots, make([]uint64, words-x.words)...)
	}
	x.words = words
}

// Close ends the ledger: its endpoint has left.
func (l *Ledger) Close() {
	l.x.mu.Lock()
	defer l.x.mu.Unlock()
	l.close()
}

func (l *Ledger) close() {
	if l.closed {
		return
	}
	l.closed = true
	l.follow(NotFollowed)
	l.x.ledgers[l.slot] = nil
}

// Follow says how well the endpoint's events are known from here on. What it is said to hold is forgotten.
func (l *Ledger) Follow(f Following) {
	l.x.mu.Lock()
	defer l.x.mu.Unlock()
	if !l.closed {
		l.follow(f)
	}
}

// Doubt says that the endpoint may have restarted unnoticed by those who follow its events: what it holds is forgotten.
// Of a nil ledger nothing is.
func (l *Ledger) Doubt() {
	if l == nil {
		return
	}
	l.x.mu.Lock()
	defer l.x.mu.Unlock()
	if !l.closed && l.following != NotFollowed {
		l.follow(FollowedFromNow)
	}
}

// follow makes the endpoint one that is guessed, forgets what it holds, and then lets what is known of its events count.
func (l *Ledger) follow(f Following) {
	if l.following != NotFollowed {
		l.x.following--
	}
	if f != NotFollowed {
		l.x.following++
	}
	l.following = f
	l.count(false)
	l.forget(f == FollowedFromNow)
	l.count(l.following != NotFollowed)
}

// count lets the ledger count in look-ups, or not.
func (l *Ledger) count(yes bool) {
	w, bit := l.slot>>6, uint64(1)<<(l.slot&63)
	l.x.complete[w] &^= bit
	if l.following == FollowedFromEmpty {
		l.x.complete[w] |= bit
	}
	if l.class == nil {
		return
	}
	l.class.slots[w] &^= bit
	if yes {
		l.class.slots[w] |= bit
	}
	l.known.Store(yes)
}

// forget lets the endpoint hold nothing; names keeps what its blocks' hashes stand for.
func (l *Ledger) forget(names bool) {
	l.visit(func(hash uint64, s stored) {
		if !names {
			l.drop(hash, s)
			return
		}
		l.lose(s)
		l.onGPU -= int(s.gpu)
		s.gpu, s.host = 0, false
		l.stored[hash] = s
	})
}

// visit goes through the blocks. It lets go of the lock now and then: a cache has ten thousands of them, and picks wait.
func (l *Ledger) visit(do func(hash uint64, s stored)) {
	n := 0
	for hash, s := range l.stored {
		do(hash, s)
		if n++; n%chunk == 0 {
			l.x.mu.Unlock()
			l.x.mu.Lock()
		}
	}
}

// Resize says how many tokens the endpoint's cache holds; 0 means that it isn't known. Of a nil ledger nothing is.
func (l *Ledger) Resize(tokens int) {
	if l == nil {
		return
	}
	l.x.mu.Lock()
	defer l.x.mu.Unlock()
	l.tokens = tokens
	l.shed()
}

// limit is how many copies of blocks the endpoint can have on its GPU, with room for what reading and events may differ by.
func (l *Ledger) limit() int {
	const most = 1 << 18
	if l.tokens <= 0 || l.class == nil {
		return most
	}
	n := l.tokens / l.class.size
	return min(n+n/4+chunk, most)
}

// hostShare is how many times the GPU's blocks a ledger keeps in all, those in the host's memory included.
const hostShare = 5

// shed forgets the blocks stored longest ago while there are more than can be: removals were lost. It lets go of the lock meanwhile, so that
// its caller must not count on anything from before.
func (l *Ledger) shed() {
	for limit := l.limit(); l.onGPU > limit || len(l.stored) > hostShare*limit; {
		now := l.stamp
		age := func(s stored) int32 { return int32(now - s.stamp) } // stamps may wrap
		ages := make([]int32, 0, len(l.stored))
		l.visit(func(_ uint64, s stored) { ages = append(ages, age(s)) })
		l.x.mu.Unlock()
		slices.Sort(ages)
		l.x.mu.Lock()
		if len(ages) == 0 {
			return
		}
		oldest := ages[len(ages)-1-len(ages)/8]
		l.visit(func(hash uint64, s stored) {
			if age(s) >= oldest {
				l.drop(hash, s)
			}
		})
	}
}

// drop forgets a block altogether.
func (l *Ledger) drop(hash uint64, s stored) {
	l.lose(s)
	l.onGPU -= int(s.gpu)
	delete(l.stored, hash)
}

// lose lets the endpoint hold a block no longer.
func (l *Ledger) lose(s stored) {
	if s.held() {
		l.x.release(s.key, l.slot)
		l.held.Add(-int64(l.class.size))
	}
}

// Apply takes events in the order in which they happened. Those that make no sense, blocks whose parent is not known,
// and removals of what is not known change nothing.
func (l *Ledger) Apply(events []Event) {
	for i := range events {
		switch e := &events[i]; {
		case e.Medium == Elsewhere:
		case e.Kind == Stored && len(e.Tokens) == 0:
			l.each(e.Hashes, func(hash uint64) { l.copied(hash, e.Medium) })
		case e.Kind == Stored:
			l.store(e)
		case e.Kind == Removed:
			l.each(e.Hashes, func(hash uint64) { l.remove(hash, e.Medium) })
		case e.Kind == Cleared:
			l.cleared()
		}
	}
}

// each does something for each hash, giving others a turn now and then.
func (l *Ledger) each(hashes []uint64, do func(uint64)) {
	for part := range slices.Chunk(hashes, chunk) {
		l.x.mu.Lock()
		if l.closed || l.following == NotFollowed {
			part = nil
		}
		for _, hash := range part {
			do(hash)
		}
		l.shed()
		l.x.mu.Unlock()
	}
}

// cleared begins anew with an empty cache: from here on everything is known.
func (l *Ledger) cleared() {
	l.x.mu.Lock()
	defer l.x.mu.Unlock()
	if !l.closed && l.following != NotFollowed {
		l.follow(FollowedFromEmpty)
	}
}

// store takes blocks in that come with their tokens.
func (l *Ledger) store(e *Event) {
	if e.BlockSize < 1 || len(e.Tokens) != len(e.Hashes)*e.BlockSize || e.Extra != nil && len(e.Extra) != len(e.Hashes) {
		return
	}
	var own [chunk]uint64
	parent, found := uint64(0), false
	for from := 0; from < len(e.Hashes); from += chunk {
		part := e.Hashes[from:min(from+chunk, len(e.Hashes))]
		for i := range part {
			k, extra := from+i, ""
			if e.Extra != nil {
				extra = e.Extra[k]
			}
			own[i] = hashBlock(e.Tokens[k*e.BlockSize:(k+1)*e.BlockSize], extra)
		}
		l.x.mu.Lock()
		if l.closed || l.following == NotFollowed || !l.join(e.BlockSize, e.Medium) {
			l.x.mu.Unlock()
			return
		}
		if from == 0 {
			parent, found = l.parent(e)
		}
		for i, hash := range part {
			if !found {
				l.lost += len(e.Hashes)
				break
			}
			parent = nextKey(parent, own[i])
			l.add(hash, parent, e.Medium)
		}
		l.shed()
		l.x.mu.Unlock()
		if !found {
			return
		}
	}
}

// join puts the ledger in the class of engines with blocks of this size; one that changes it begins anew. Only the GPU's
// blocks decide: offloaded ones may be of another size, by which they cannot be found.
func (l *Ledger) join(size int, m Medium) bool {
	x := l.x
	if l.class != nil && l.class.size == size {
		return true
	}
	if m != GPU {
		return false
	}
	i := slices.IndexFunc(x.classes, func(c *class) bool { return c.size == size })
	if i < 0 {
		if len(x.classes) == maxClasses || size < minBlock {
			return false
		}
		i = len(x.classes)
		x.classes = append(x.classes, &class{size: size, salt: mix(uint64(size)), slots: make([]uint64, x.words)})
	}
	if l.class != nil {
		l.count(false)
		l.forget(false)
	}
	l.class = x.classes[i]
	l.count(l.following != NotFollowed)
	return !l.closed && l.following != NotFollowed
}

// parent finds the key before an event's first block: among the endpoint's own blocks, in prompts whose hashes were computed, or
// at endpoints that hash alike.
func (l *Ledger) parent(e *Event) (uint64, bool) {
	if e.First {
		return rootKey(e.Adapter, e.BlockSize), true
	}
	if s, ok := l.stored[e.Parent]; ok {
		return s.key, true
	}
	if key, ok := l.x.healed[e.Parent]; ok {
		return key, true
	}
	if key, ok := l.x.healedBefore[e.Parent]; ok {
		return key, true
	}
	for _, other := range l.x.ledgers {
		if other == nil || other.class != l.class {
			continue
		}
		if s, ok := other.stored[e.Parent]; ok {
			return s.key, true
		}
	}
	return 0, false
}

// add counts one more copy of a block.
func (l *Ledger) add(hash, key uint64, m Medium) {
	s, known := l.stored[hash]
	if known && s.key != key { // another content by the same name: the name was taken over
		l.drop(hash, s)
		s = stored{}
	}
	if !s.held() {
		l.x.hold(key, l.slot)
		l.held.Add(int64(l.class.size))
	}
	if m == Host {
		s.host = true
	} else if s.gpu < 1<<16-1 {
		s.gpu++
		l.onGPU++
	}
	l.stamp++
	s.key, s.stamp = key, l.stamp
	l.stored[hash] = s
}

// copied notes another copy of a block that came without its tokens.
func (l *Ledger) copied(hash uint64, m Medium) {
	if s, ok := l.stored[hash]; ok {
		l.add(hash, s.key, m)
	}
}

// remove counts one copy less.
func (l *Ledger) remove(hash uint64, m Medium) {
	s, ok := l.stored[hash]
	if !ok || !s.held() {
		return
	}
	left := s
	switch {
	case m == Host:
		left.host = false
	case s.gpu > 0:
		left.gpu--
		l.onGPU--
	}
	if !left.held() {
		l.lose(s)
		delete(l.stored, hash)
		return
	}
	l.stored[hash] = left
}

// Tokens is how many tokens the endpoint holds; false when its events do not tell. It takes no lock.
func (l *Ledger) Tokens() (tokens int, ok bool) {
	if !l.known.Load() {
		return 0, false
	}
	return int(l.held.Load()), true
}

// hold sets the slot's bit for a key.
func (x *Exact) hold(key uint64, slot int) {
	e, ok := x.entries[key]
	if !ok {
		if n := len(x.free); n > 0 {
			e, x.free = x.free[n-1], x.free[:n-1]
		} else {
			e = int32(len(x.keys))
			x.keys = append(x.keys, 0)
			for range x.words {
				x.held = append(x.held, 0)
			}
		}
		x.keys[e] = key
		x.entries[key] = e
	}
	x.held[int(e)*x.words+slot>>6] |= 1 << (slot & 63)
}

// release takes the slot's bit off a key, and frees the entry with its last bit.
func (x *Exact) release(key uint64, slot int) {
	e, ok := x.entries[key]
	if !ok {
		return
	}
	row := x.held[int(e)*x.words : (int(e)+1)*x.words]
	row[slot>>6] &^= 1 << (slot & 63)
	for _, have := range row {
		if have != 0 {
			return
		}
	}
	delete(x.entries, key)
	x.keys[e] = 0
	x.free = append(x.free, e)
}

// Learn takes the tokens of a prompt.
func (x *Exact) Learn(p *Prompt) {
	n := min(len(p.Blocks), len(p.Ends))
	for k := range n {
		if p.Ends[k] < 0 || int(p.Ends[k]) > len(p.Tokens) || k > 0 && p.Ends[k] < p.Ends[k-1] {
			n = k
			break
		}
	}
	if n == 0 {
		return
	}
	x.mu.Lock()
	classes := slices.Clone(x.classes)
	x.mu.Unlock()
	for _, c := range classes {
		keys := keysOf(p, c.size, int(p.Ends[n-1]))
		x.learn(p, n, c, keys)
		if p.EngineBlock == c.size {
			x.heal(p.EngineHashes, keys)
		}
	}
}

// learn remembers the prompt's first n blocks for a class, giving others a turn after each.
func (x *Exact) learn(p *Prompt, n int, c *class, keys []uint64) {
	var points []point
	for k := range n {
		m := mapped{block: p.Blocks[k] ^ c.salt, tokens: p.Ends[k], entry: -1}
		if whole := int(p.Ends[k]) / c.size; whole > 0 {
			m.key = keys[whole-1]
		}
		x.mu.Lock()
		at, ok := x.remembered(&m, p.within(k, c.size))
		if !ok {
			x.mu.Unlock() // hashing takes a while
			points = p.inside(k, c.size, keys, points)
			x.mu.Lock()
			at = x.remember(m, points)
		}
		if k > 0 {
			if before, ok := x.blocks[p.Blocks[k-1]^c.salt]; ok {
				x.family(before, at)
			}
		}
		x.mu.Unlock()
	}
}

// keysOf are the keys of the whole blocks of a size among so many of the prompt's tokens.
func keysOf(p *Prompt, size, tokens int) []uint64 {
	key, extra := rootKey(p.Adapter, size), p.Salt
	keys := make([]uint64, 0, tokens/size)
	for from := 0; from+size <= tokens; from += size {
		key = nextKey(key, hashBlock(p.Tokens[from:from+size], extra))
		keys, extra = append(keys, key), ""
	}
	return keys
}

// remembered says where the same is known of a prefix block already, with so many points that will stay for a while.
func (x *Exact) remembered(m *mapped, points int) (int32, bool) {
	at, ok := x.blocks[m.block]
	if !ok {
		return 0, false
	}
	old := &x.mapped[at]
	return at, m.key == old.key && m.tokens == old.tokens && int(old.points.n) == points && !x.inner.aged(old.points)
}

// remember puts a prefix block in the table, with what ends inside it; what has not been used for a while makes room.
func (x *Exact) remember(m mapped, inside []point) int32 {
	at, ok := x.blocks[m.block]
	switch {
	case ok:
		old := &x.mapped[at]
		m.children, m.turn, m.parent, m.used = old.children, old.turn, old.parent, old.used
	case len(x.mapped) < maxMapped:
		at = int32(len(x.mapped))
		x.mapped = append(x.mapped, mapped{})
	default:
		for x.mapped[x.hand].used {
			x.mapped[x.hand].used = false
			x.hand = (x.hand + 1) % len(x.mapped)
		}
		at = int32(x.hand)
		delete(x.blocks, x.mapped[at].block)
		x.hand = (x.hand + 1) % len(x.mapped)
	}
	m.points = x.inner.put(inside)
	x.mapped[at], x.blocks[m.block] = m, at
	return at
}

// heal remembers what engine hashes stand for.
func (x *Exact) heal(hashes, keys []uint64) {
	for from := 0; from < min(len(hashes), len(keys)); from += chunk {
		x.mu.Lock()
		if x.healed == nil || len(x.healed) >= maxHealed {
			x.healed, x.healedBefore = make(map[uint64]uint64), x.healed
		}
		for k := from; k < min(from+chunk, len(hashes), len(keys)); k++ {
			x.healed[hashes[k]] = keys[k]
		}
		x.mu.Unlock()
	}
}

// Wants reports whether knowing the tokens of a prompt with these blocks would tell something: some endpoint is followed, and the last block is new.
func (x *Exact) Wants(blocks []uint64) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.following == 0 || len(blocks) == 0 {
		return false
	}
	last := blocks[len(blocks)-1]
	for _, c := range x.classes {
		if _, ok := x.blocks[last^c.salt]; !ok {
			return true
		}
	}
	return false
}

// Prediction is what an engine is expected to find in its cache of a prompt.
type Prediction struct {
	// Known says that Tokens holds: how many of the leading tokens the endpoint holds at least, in whole blocks of the engine
	// and never all of a prompt, since engines compute the last token at least.
	Known  bool
	Tokens int
	// Exact says that it holds no more, as far as prompts are known that begin like this one: the tokens of the next prefix block
	// are known too, and not all held.
	Exact bool
}

// Predict says what the slot holds of the tokens of a prompt of which it holds the first n blocks, as Match with guess found. Where the
// next one is not known, head tells how much of it prompts share that are: it hashes the prompt's bytes as Prompt.Head
// does; nil if that can't be told.
func (x *Exact) Predict(guess *Index, slot int, blocks []uint64, n int, head func(n int) uint64) Prediction {
	x.mu.Lock()
	defer x.mu.Unlock()
	if slot >= len(x.ledgers) || x.ledgers[slot] == nil || len(blocks) == 0 {
		return Prediction{}
	}
	l := x.ledgers[slot]
	if l.following == NotFollowed || l.class == nil {
		return Prediction{}
	}
	p := Prediction{Known: true, Exact: true}
	if n < len(blocks) {
		_, p.Exact = x.blocks[blocks[n]^l.class.salt]
	}
	if n == 0 && !p.Exact {
		return Prediction{}
	}
	if n > 0 {
		if _, ok := x.blocks[blocks[n-1]^l.class.salt]; !ok {
			return Prediction{}
		}
	}
	p.Tokens = x.holding(&request{guess, slot, blocks, head, maxHeads}, n, l.class)
	if at, ok := x.blocks[blocks[len(blocks)-1]^l.class.salt]; ok {
		p.Tokens = min(p.Tokens, max(int(x.mapped[at].tokens)-1, 0)/l.class.size*l.class.size)
	}
	return p
}

// Match is guess.Match, with what the events of followed endpoints say in place of the guess wherever the tokens of a
// block are known. What was sent to a followed endpoint and has not been computed there yet (Expect, Settle) counts as held.
func (x *Exact) Match(guess *Index, blocks []uint64, ends, dst []int32, m *Matched) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.following == 0 || len(x.classes) == 0 {
		guess.Match(blocks, ends, dst, m)
		return
	}
	x.grow(len(guess.slots) - 1)
	guess.grow(len(x.ledgers) - 1)
	m.at = m.at[:0]
	clear(dst)
	x.enter()
	last := int32(-1)
	for k, block := range blocks {
		var guessed, fresh []uint64
		if e, ok := guess.find(block, last); ok {
			if last = e; len(m.at) == k {
				m.at = append(m.at, e)
			}
			guessed, fresh = guess.held[int(e)*x.words:int(e+1)*x.words], guess.fresh[int(e)*x.words:int(e+1)*x.words]
		}
		live := false
		for i := range x.lanes {
			if n := &x.lanes[i]; n.live {
				x.pass(n, block, ends[k], guessed, fresh, dst)
				live = live || n.live
			}
		}
		if !live {
			return
		}
	}
	for i := range x.lanes {
		for w, alive := range x.lanes[i].alive {
			give(dst, w, alive, x.lanes[i].units)
		}
	}
}

// enter lays out the lanes: one for the slots that are guessed, one for each class.
func (x *Exact) enter() {
	for len(x.lanes) <= len(x.classes) {
		x.lanes = append(x.lanes, lane{})
	}
	for i := range x.lanes {
		n := &x.lanes[i]
		for len(n.alive) < x.words {
			n.alive = append(n.alive, 0)
		}
		n.last, n.units, n.live = -1, 0, true
	}
	rest := x.lanes[0].alive
	for w := range rest {
		rest[w] = ^uint64(0)
	}
	for i, c := range x.classes {
		n := &x.lanes[i+1]
		n.class, n.live = c, false
		for w, have := range c.slots {
			n.alive[w] = have
			rest[w] &^= have
			n.live = n.live || have != 0
		}
	}
}

// pass takes a lane past a block: the slots that do not hold it hold the units before it.
func (x *Exact) pass(n *lane, block uint64, end int32, guessed, fresh []uint64, dst []int32) {
	var exact []uint64
	known, nothing := false, false // nothing: no whole engine block ends up to here, so that every slot has all there is
	if n.class != nil {
		if at := x.lookUp(block^n.class.salt, n.last); at >= 0 {
			m := &x.mapped[at]
			m.used, n.last = true, at
			known, nothing = true, m.key == 0
			exact = x.row(m.key, &m.entry)
		}
	}
	left := uint64(0)
	for w, alive := range n.alive {
		if alive == 0 {
			continue
		}
		have := uint64(0)
		if guessed != nil {
			have = guessed[w]
		}
		if known {
			have &^= x.complete[w]
			if fresh != nil {
				have |= fresh[w]
			}
			if exact != nil {
				have |= exact[w]
			}
			if nothing {
				have = ^uint64(0)
			}
		}
		give(dst, w, alive&^have, n.units)
		n.alive[w] = alive & have
		left |= alive & have
	}
	if !nothing {
		n.units = end
	}
	n.live = left != 0
}

// give gives units to slots.
func give(dst []int32, w int, slots uint64, units int32) {
	for ; slots != 0 && units > 0; slots &= slots - 1 {
		if s := w<<6 + bits.TrailingZeros64(slots); s < len(dst) {
			dst[s] = units
		}
	}
}

// lookUp finds a prefix block, beside the last one first: those of a prompt were learned together.
func (x *Exact) lookUp(block uint64, last int32) int32 {
	if next := last + 1; last >= 0 && int(next) < len(x.mapped) && x.mapped[next].block == block {
		return next
	}
	if at, ok := x.blocks[block]; ok {
		return at
	}
	return -1
}

// row is the slots that hold a key, nil if none does. entry is where it was last found.
func (x *Exact) row(key uint64, entry *int32) []uint64 {
	if key == 0 {
		return nil
	}
	if *entry < 0 || int(*entry) >= len(x.keys) || x.keys[*entry] != key {
		e, ok := x.entries[key]
		if !ok {
			return nil
		}
		*entry = e
	}
	return x.held[int(*entry)*x.words : int(*entry+1)*x.words]
}
