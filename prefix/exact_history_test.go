package prefix

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// plain is Exact and its ledgers as one would write them without caring for cost: contents are strings.
type plain struct {
	guess   *naive
	slots   []plainSlot
	learned map[string]string // size and prefix block to the content that it stands for
	tokens  map[string]int
	inner   map[string][]plainPoint
	before  map[string]uint64
	sizes   map[int]bool
	healed  map[uint64]string
}

// plainPoint is an engine block that ends inside a prefix block: what it is with all before it, the tokens up to its end, and those from the
// prefix block's beginning that a prompt must have to share it for certain.
type plainPoint struct {
	content string
	tokens  int
	begins  []uint32
}

// plainSlot is what one endpoint's events say.
type plainSlot struct {
	following Following
	size      int // 0 before the first event
	held      map[uint64]*plainBlock
}

type plainBlock struct {
	content string
	gpu     int
	host    bool
}

func newPlain(slots int) *plain {
	p := &plain{guess: newNaive(slots), slots: make([]plainSlot, slots), learned: make(map[string]string), tokens: make(map[string]int),
		inner: make(map[string][]plainPoint), before: make(map[string]uint64), sizes: make(map[int]bool), healed: make(map[uint64]string)}
	for s := range p.slots {
		p.slots[s].held = make(map[uint64]*plainBlock)
	}
	return p
}

func (p *plain) follow(slot int, f Following) {
	s := &p.slots[slot]
	s.following = f
	for hash, b := range s.held {
		if b.gpu, b.host = 0, false; f != FollowedFromNow {
			delete(s.held, hash)
		}
	}
}

func (p *plain) parent(slot int, e *Event) (string, bool) {
	if e.First {
		return fmt.Sprint(e.Adapter, "/", e.BlockSize), true
	}
	if b := p.slots[slot].held[e.Parent]; b != nil {
		return b.content, true
	}
	if content, ok := p.healed[e.Parent]; ok {
		return content, true
	}
	for s := range p.slots {
		if b := p.slots[s].held[e.Parent]; b != nil && p.slots[s].size == p.slots[slot].size {
			return b.content, true
		}
	}
	return "", false
}

func (p *plain) apply(slot int, e *Event) {
	s := &p.slots[slot]
	if s.following == NotFollowed || e.Medium == Elsewhere {
		return
	}
	switch e.Kind {
	case Cleared:
		p.follow(slot, FollowedFromEmpty)
	case Removed:
		for _, hash := range e.Hashes {
			b := s.held[hash]
			switch {
			case b == nil || b.gpu == 0 && !b.host:
				continue
			case e.Medium == Host:
				b.host = false
			default:
				b.gpu = max(b.gpu-1, 0)
			}
			if b.gpu == 0 && !b.host {
				delete(s.held, hash)
			}
		}
	case Stored:
		if len(e.Tokens) > 0 && s.size == 0 && e.Medium == GPU {
			s.size, p.sizes[e.BlockSize] = e.BlockSize, true
		}
		if len(e.Tokens) > 0 && s.size != e.BlockSize {
			return
		}
		content, ok := p.parent(slot, e)
		for k, hash := range e.Hashes {
			if len(e.Tokens) > 0 {
				content += fmt.Sprint(";", e.Extra[k], e.Tokens[k*e.BlockSize:(k+1)*e.BlockSize])
				if ok && s.held[hash] == nil {
					s.held[hash] = &plainBlock{content: content}
				}
			}
			switch b := s.held[hash]; {
			case b == nil || len(e.Tokens) > 0 && !ok:
			case e.Medium == Host:
				b.host = true
			default:
				b.gpu++
			}
		}
	}
}

func learnedKey(size int, block uint64) string { return fmt.Sprint(size, "/", block) }

func (p *plain) learn(q *Prompt) {
	for size := range p.sizes {
		content, extra := fmt.Sprint(q.Adapter, "/", size), q.Salt
		whole := []string{}
		for at := 0; at+size <= len(q.Tokens); at += size {
			content += fmt.Sprint(";", extra, q.Tokens[at:at+size])
			whole, extra = append(whole, content), ""
		}
		for k, end := range q.Ends {
			key := learnedKey(size, q.Blocks[k])
			p.learned[key], p.tokens[key] = "", int(end)
			if n := int(end) / size; n > 0 {
				p.learned[key] = whole[n-1]
			}
			start := 0
			if k > 0 {
				start, p.before[key] = int(q.Ends[k-1]), q.Blocks[k-1]
			}
			p.inner[key] = nil
			for e := start/size + 1; e*size <= int(end); e++ {
				p.inner[key] = append(p.inner[key], plainPoint{whole[e-1], e * size, q.Tokens[start : (q.Certain[e*size-1]+1)/2]})
			}
		}
		if q.EngineBlock == size {
			for k, hash := range q.EngineHashes {
				p.healed[hash] = whole[k]
			}
		}
	}
}

// holds reports whether the slot's events say that it has a content.
func (s *plainSlot) holds(content string) bool {
	for _, b := range s.held {
		if b.content == content && (b.gpu > 0 || b.host) {
			return true
		}
	}
	return false
}

// run is how many tokens the slot holds up to the end of the last engine block inside a prefix block, of those that pass; before the first
// of them it is those before it, and it reports whether that is the last.
func (p *plain) run(slot int, block uint64, passes func(plainPoint) bool) (tokens int, all bool) {
	s := &p.slots[slot]
	assumed := slices.Contains(p.guess.order[slot], block) && (s.following != FollowedFromEmpty || p.guess.fresh[slot][block])
	for i, q := range p.inner[learnedKey(s.size, block)] {
		if !passes(q) || !assumed && !s.holds(q.content) {
			return q.tokens - s.size, false
		}
		tokens, _ = q.tokens, i
	}
	return tokens, true
}

// within is how many tokens the slot holds of a prompt of which it holds the first n blocks.
func (p *plain) within(slot int, q *Prompt, n int) int {
	s, tokens := &p.slots[slot], 0
	any := func(plainPoint) bool { return true }
	if n > 0 {
		block := q.Blocks[n-1]
		tokens = p.tokens[learnedKey(s.size, block)] / s.size * s.size
		if some, all := p.run(slot, block, any); !all {
			return some
		}
	}
	if n == len(q.Blocks) {
		return tokens
	}
	if _, ok := p.learned[learnedKey(s.size, q.Blocks[n])]; ok {
		some, _ := p.run(slot, q.Blocks[n], any)
		return max(tokens, some)
	}
	for key := range p.learned {
		var size int
		var block uint64
		_, _ = fmt.Sscanf(key, "%d/%d", &size, &block)
		if parent, ok := p.before[key]; n == 0 || size != s.size || !ok || parent != q.Blocks[n-1] {
			continue
		}
		some, _ := p.run(slot, block, func(x plainPoint) bool {
			mine := q.Tokens[q.Ends[n-1]:]
			return len(mine) >= len(x.begins) && slices.Equal(mine[:len(x.begins)], x.begins)
		})
		tokens = max(tokens, some)
	}
	return tokens
}

// match is how many units the slot holds, and what is known of the tokens.
func (p *plain) match(slot int, q *Prompt) (units int32, known Prediction) {
	s, blocks := &p.slots[slot], q.Blocks
	followed := s.following != NotFollowed && s.size > 0
	n, total := 0, int32(0)
	for k, block := range blocks {
		total += int32(sizeOf(block))
		guessed := slices.Contains(p.guess.order[slot], block)
		content, known := p.learned[learnedKey(s.size, block)]
		have := guessed
		if followed && known {
			if content == "" {
				continue
			}
			have = guessed && (s.following != FollowedFromEmpty || p.guess.fresh[slot][block])
			have = have || s.holds(content)
		}
		if !have {
			break
		}
		units, n = total, k+1
	}
	if !followed || len(blocks) == 0 {
		return units, Prediction{}
	}
	learned := func(k int) bool { _, ok := p.learned[learnedKey(s.size, blocks[k])]; return ok }
	next := n == len(blocks) || learned(n)
	switch {
	case n == 0 && !next:
		return units, Prediction{}
	case n > 0 && !learned(n-1):
		return units, Prediction{}
	}
	tokens := p.within(slot, q, n)
	if learned(len(blocks) - 1) {
		tokens = min(tokens, p.tokens[learnedKey(s.size, blocks[len(blocks)-1])]-1)
	}
	return units, Prediction{true, tokens / s.size * s.size, next}
}

// life drives both with the same events.
type life struct {
	t       *testing.T
	ops     []byte
	x       *Exact
	guess   *Index
	ledgers []*Ledger
	plain   *plain
	m       Matched
	dst     []int32
}

func (h *life) next() int {
	if len(h.ops) == 0 {
		return 0
	}
	b := h.ops[0]
	h.ops = h.ops[1:]
	return int(b)
}

// tokensIn makes the 16 tokens of a prefix block. One that leaves the way that others take has the first ten of theirs.
func tokensIn(block uint64) []uint32 {
	out := make([]uint32, 16)
	group, shared, k := block>>48, block>>40&0xff, block&0xff
	for i := range out {
		from := block
		if i < 10 && block>>40 != 0 && k == shared {
			from = group%3<<32 | k
		}
		out[i] = uint32(mix(from)<<8) | uint32(i)
	}
	return out
}

// prompt draws a prompt: 16 tokens a prefix block, each of two bytes, and certain with the first byte of the next one in the block.
func (h *life) prompt() *Prompt {
	blocks := chain(h.next()%6, h.next()%8, 1+h.next()%8)
	q := &Prompt{Adapter: []string{"", "", "a"}[h.next()%3], Salt: []string{"", "", "s"}[h.next()%3]}
	for k, block := range blocks {
		q.Tokens = append(q.Tokens, tokensIn(block)...)
		for i := range 16 {
			q.Certain = append(q.Certain, int32(32*k+min(2*i+3, 32)))
		}
		id := mix(block)
		if q.Adapter+q.Salt != "" {
			id = mix(id + hashBlock(nil, q.Adapter+"/"+q.Salt))
		}
		q.Blocks, q.Ends = append(q.Blocks, id), append(q.Ends, int32(16*(k+1)))
	}
	q.Head = func(n int) uint64 {
		if n < 1 || n > 2*len(q.Tokens) {
			return 0
		}
		return hashBlock(q.Tokens[(n-1)/32*16:(n+1)/2], "")
	}
	return q
}

// hashes are an engine's own hashes of a prompt's blocks: engines of the same seed agree.
func hashes(q *Prompt, size, seed int) []uint64 {
	hash := mix(hashBlock(nil, q.Adapter+"/"+q.Salt) + uint64(size*4+seed))
	var out []uint64
	for at := 0; at+size <= len(q.Tokens); at += size {
		hash = nextKey(hash, hashBlock(q.Tokens[at:at+size], ""))
		out = append(out, hash)
	}
	return out
}

// event draws one that a slot's engine may send: of a prompt's blocks from somewhere on, or of some of them.
func (h *life) event(slot int) *Event {
	q, size := h.prompt(), []int{16, 8, 32}[slot%5%3]
	all := hashes(q, size, slot%2)
	e := &Event{Kind: Stored, BlockSize: size, Adapter: q.Adapter, Medium: []Medium{GPU, GPU, GPU, Host, Elsewhere}[h.next()%5]}
	from := h.next() % (len(all) + 1) / (1 + h.next()%3)
	switch op := h.next() % 16; {
	case op == 0:
		e.Kind = Cleared
	case op < 5:
		e.Kind, e.Hashes = Removed, all[from:]
	case op < 7:
		e.Hashes = all[from:] // a copy, without tokens
	default:
		e.Hashes, e.Tokens, e.First = all[from:], q.Tokens[from*size:len(all)*size], from == 0
		e.Extra = make([]string, len(all)-from)
		if from > 0 {
			e.Parent = all[from-1]
		} else if len(e.Extra) > 0 {
			e.Extra[0] = q.Salt
		}
	}
	return e
}

func (h *life) step() {
	slot := (h.next()<<8 | h.next()) % len(h.ledgers)
	switch op := h.next() % 32; {
	case op == 0:
		h.ledgers[slot].Close()
		h.guess.Clear(slot)
		h.plain.guess.clear(slot)
		h.ledgers[slot] = h.x.Open(slot)
		h.plain.slots[slot] = plainSlot{held: make(map[uint64]*plainBlock)}
	case op < 3:
		f := Following(h.next() % 3)
		h.ledgers[slot].Follow(f)
		h.plain.follow(slot, f)
	case op == 3:
		limit := h.next() % 24
		h.guess.Resize(slot, limit)
		h.plain.guess.resize(slot, limit)
	case op < 8:
		q := h.prompt()
		if seed := h.next() % 4; seed < 2 {
			q.EngineBlock = []int{16, 8, 32}[h.next()%3]
			q.EngineHashes = hashes(q, q.EngineBlock, seed)
		}
		h.x.Learn(q)
		h.plain.learn(q)
	case op < 14:
		h.send(slot, h.prompt())
	case op < 16:
		blocks := h.prompt().Blocks
		h.guess.Settle(slot, blocks)
		for _, b := range blocks {
			delete(h.plain.guess.fresh[slot], b)
		}
	default:
		e := h.event(slot)
		h.ledgers[slot].Apply([]Event{*e})
		h.plain.apply(slot, e)
	}
}

// send puts a request to a slot.
func (h *life) send(slot int, q *Prompt) {
	blocks := q.Blocks
	h.match(q)
	h.guess.Add(slot, blocks, sized(blocks), &h.m)
	h.plain.guess.add(slot, blocks)
	h.guess.Expect(slot, blocks)
	for _, b := range blocks {
		if slices.Contains(h.plain.guess.order[slot], b) {
			h.plain.guess.fresh[slot][b] = true
		}
	}
}

// match compares what is held of a prompt.
func (h *life) match(q *Prompt) {
	h.t.Helper()
	blocks := q.Blocks
	h.x.Match(h.guess, blocks, sized(blocks), h.dst, &h.m)
	for s, got := range h.dst {
		want, known := h.plain.match(s, q)
		n, found := slices.BinarySearch(sized(blocks), got)
		if found {
			n++
		}
		if got != want {
			h.t.Fatalf("slot %d, %+v: got %d units of %x, want %d", s, h.plain.slots[s], got, blocks, want)
		}
		if p := h.x.Predict(h.guess, s, blocks, n, q.Head); p != known {
			h.t.Fatalf("slot %d: got %+v of %x, want %+v", s, p, blocks, known)
		}
	}
}

// sound checks the insides against each other, and what is held against the plain one.
func (h *life) sound() {
	h.t.Helper()
	x := h.x
	bits := 0
	for s, l := range x.ledgers {
		if l == nil {
			continue
		}
		copies, keys, tokens := 0, make(map[uint64]bool), int64(0)
		for _, b := range l.stored {
			copies += int(b.gpu)
			if b.held() {
				keys[b.key] = true
				tokens += int64(l.class.size)
				if at, ok := x.entries[b.key]; !ok || x.held[int(at)*x.words+s>>6]>>(s&63)&1 == 0 {
					h.t.Fatalf("slot %d holds key %x, and its bit is not set", s, b.key)
				}
			}
		}
		bits += len(keys)
		if copies != l.onGPU || copies > l.limit() {
			h.t.Fatalf("slot %d counts %d copies, has %d, may have %d", s, l.onGPU, copies, l.limit())
		}
		if got, ok := l.Tokens(); ok && int64(got) != tokens {
			h.t.Fatalf("slot %d says it holds %d tokens, want %d", s, got, tokens)
		}
	}
	set := 0
	for e, key := range x.keys {
		row := fmt.Sprintf("%b", x.held[e*x.words:(e+1)*x.words])
		if at, ok := x.entries[key]; strings.Contains(row, "1") && (!ok || int(at) != e) {
			h.t.Fatalf("entry %d with key %x is held and can't be found", e, key)
		}
		set += strings.Count(row, "1")
	}
	if set != bits || len(x.entries)+len(x.free) != len(x.keys) {
		h.t.Fatalf("%d bits are set for %d keys held; %d entries in use, %d free, of %d", set, bits, len(x.entries), len(x.free), len(x.keys))
	}
}

func exactScript(t *testing.T, slots int, ops []byte) {
	h := &life{t: t, ops: ops, x: new(Exact), guess: new(Index), plain: newPlain(slots), dst: make([]int32, slots)}
	for s := range slots {
		h.ledgers = append(h.ledgers, h.x.Open(s))
		h.guess.Resize(s, 40)
		h.plain.guess.resize(s, 40)
		h.ledgers[s].Follow(Following(s % 3))
		h.plain.follow(s, Following(s%3))
	}
	for len(h.ops) > 0 {
		h.step()
	}
	h.sound()
}

// Whatever is sent, stored, removed, lost, learned and forgotten, in any order: what is held is what a plain model says.
func TestRandomEvents(t *testing.T) {
	for _, slots := range []int{1, 3, 7, 65} {
		t.Run(fmt.Sprintf("slots=%d", slots), func(t *testing.T) {
			for seed := range uint64(40) {
				r := rand.New(rand.NewPCG(seed, uint64(slots)))
				ops := make([]byte, 4000)
				for i := range ops {
					ops[i] = byte(r.Uint32())
				}
				exactScript(t, slots, ops)
			}
		})
	}
}

func FuzzExact(f *testing.F) {
	f.Add(uint8(2), []byte{0, 0, 20, 1, 2, 3, 0, 0, 0, 0, 0, 9, 0, 0, 5, 1, 2, 3, 0, 0, 0, 0, 9, 1, 2, 3, 0, 0})
	f.Add(uint8(65), []byte{0, 64, 1, 2, 0, 64, 20, 1, 2, 3, 0, 0, 3, 1, 0, 9})
	f.Fuzz(func(t *testing.T, slots uint8, ops []byte) {
		exactScript(t, max(int(slots), 1), ops[:min(len(ops), 2000)])
	})
}
