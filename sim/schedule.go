package sim

import (
	"slices"
	"time"
)

// begin schedules a step as vLLM's V1 does (vllm/v1/core/sched/scheduler.py): every running sequence in the order of
// admission, decoding ones with one token, prompts with as much as the budget leaves; then, unless blocks ran out,
// those waiting. At most one sequence is in the midst of its prompt, the one admitted last, so that the decoding may
// come first. An engine without work stays idle.
func (e *Engine) begin(now time.Duration) {
	preempted := e.extendDecodes()
	e.decodes = e.decoding()
	budget := e.cfg.Budget - e.decodes
	tokens, pairs := 0, 0.
	spend := func(s *Seq, chunk int) {
		tokens += chunk
		pairs += float64(chunk) * (float64(s.computed) + float64(chunk)/2)
		budget -= chunk
		s.chunk = chunk
		e.nameBlocks(s, (s.computed+chunk)/BlockTokens)
	}
	if len(e.prefill) > 0 && budget > 0 {
		s := e.prefill[0]
		if chunk := min(s.target-s.computed, budget); blocksOf(s.computed+chunk)-len(s.kv) <= e.cache.free {
			e.extend(s, s.computed+chunk)
			spend(s, chunk)
		} else {
			e.preempt(s) // the last of the running, it gives up its own
			preempted = true
		}
	}
	loads := 0
	if !preempted {
		loads = e.admit(now, &budget, spend)
	}
	if e.decodes == 0 && tokens == 0 {
		return
	}
	ms := e.stepMS(tokens, pairs, e.decodes)
	e.stepping, e.beganAt = true, now
	e.endAt = now + time.Duration(ms*1e6) + time.Duration(loads)*e.cfg.AdapterLoad
}

// admit moves sequences from the queue to the running ones while there is budget and room, first come first served;
// only a sequence whose adapter finds no slot lets others pass. It returns how many adapters have to be brought in.
func (e *Engine) admit(now time.Duration, budget *int, spend func(*Seq, int)) (loads int) {
	for s := e.waiting.head; s != nil && *budget > 0 && e.running.n < e.cfg.MaxSeqs; {
		next := s.next
		slot, load := e.slot(s.Adapter)
		if s.Adapter != "" && slot < 0 {
			s = next
			continue
		}
		held, idle := e.cache.match(s.Blocks, (s.target-1)/BlockTokens)
		chunk := min(s.target-held*BlockTokens, *budget)
		if blocksOf(s.target)-held > e.cache.free-idle {
			return loads // the whole prompt must fit, though blocks are taken as it is computed (scheduler_reserve_full_isl)
		}
		e.leaveQueue(s)
		e.running.push(s)
		e.prefill = append(e.prefill, s)
		s.state, s.admitted, s.computed, s.named = seqPrefilling, now, held*BlockTokens, held
		if s.cached < 0 {
			s.cached = s.computed
			e.counters.cachedTokens += float64(s.cached)
		}
		for _, hash := range s.Blocks[:held] {
			s.kv = append(s.kv, e.cache.share(hash))
		}
		e.extend(s, s.computed+chunk)
		if s.Adapter != "" {
			s.adapter = e.occupy(s.Adapter, slot)
		}
		if load {
			loads++
		}
		spend(s, chunk)
		s = next
	}
	return loads
}

func blocksOf(tokens int) int { return (tokens + BlockTokens - 1) / BlockTokens }

// extend gives the sequence blocks for so many tokens; there must be enough.
func (e *Engine) extend(s *Seq, tokens int) {
	s.kv = e.cache.take(s.kv, max(blocksOf(tokens)-len(s.kv), 0))
}

// extendDecodes gives a block to each decoding sequence that begins one in this step. When blocks run out, the sequence
// admitted last gives up its own. It reports whether any did.
func (e *Engine) extendDecodes() (preempted bool) {
	for s := e.turn[e.clock&(BlockTokens-1)]; s != nil; {
		next := s.nextTurn
		for e.cache.free == 0 && s.state == seqDecoding {
			last := e.running.tail
			if last == next {
				next = next.nextTurn
			}
			e.preempt(last)
			preempted = true
		}
		if s.state == seqDecoding {
			e.nameBlocks(s, len(s.kv))
			s.kv = e.cache.take(s.kv, 1)
		}
		s = next
	}
	return preempted
}

// preempt sends a running sequence back to the head of the queue without its blocks.
func (e *Engine) preempt(s *Seq) {
	if s.state == seqDecoding {
		e.nameAll(s, (s.Prompt+e.Produced(s)-1)/BlockTokens)
	} else {
		e.nameAll(s, s.computed/BlockTokens)
	}
	e.remove(s)
	s.state, s.target, s.computed, s.chunk, s.named = seqWaiting, s.Prompt+s.out, 0, 0, 0
	s.expected = s.target
	e.expected += s.expected
	e.waiting.unshift(s)
	e.counters.preemptions++
	e.events = append(e.events, Event{Preempted, s})
}

// slot finds where an adapter is or can go: the index in adapters, which may be one past the end; -1 when every slot is
// in use by others. load says that it has to be brought in.
func (e *Engine) slot(name string) (at int, load bool) {
	if name == "" {
		return -1, false
	}
	idle := -1
	for i, a := range e.adapters {
		if a.name == name {
			return i, false
		}
		if a.users == 0 && idle < 0 {
			idle = i
		}
	}
	if len(e.adapters) < e.cfg.AdapterSlots {
		return len(e.adapters), true
	}
	return idle, true
}

// occupy counts a user of the adapter in the slot that slot found, as the one used last.
func (e *Engine) occupy(name string, at int) *adapter {
	a := &adapter{name: name, rank: e.cfg.AdapterRanks[name]}
	if at < len(e.adapters) {
		if e.adapters[at].name == name {
			a = e.adapters[at]
		}
		e.adapters = slices.Delete(e.adapters, at, at+1)
	}
	e.adapters = append(e.adapters, a)
	a.users++
	return a
}

// activeRanks is how many different ranks the adapters in use have.
func (e *Engine) activeRanks() int {
	n := 0
	for i, a := range e.adapters {
		again := slices.ContainsFunc(e.adapters[:i], func(b *adapter) bool { return b.users > 0 && b.rank == a.rank })
		if a.users > 0 && !again {
			n++
		}
	}
	return n
}

// queue is a list of sequences through their own pointers.
type queue struct {
	head, tail *Seq
	n          int
}

func (q *queue) push(s *Seq) {
	s.prev, s.next = q.tail, nil
	if q.tail != nil {
		q.tail.next = s
	} else {
		q.head = s
	}
	q.tail = s
	q.n++
}

func (q *queue) unshift(s *Seq) {
	s.prev, s.next = nil, q.head
	if q.head != nil {
		q.head.prev = s
	} else {
		q.tail = s
	}
	q.head = s
	q.n++
}

func (q *queue) remove(s *Seq) {
	if s.prev != nil {
		s.prev.next = s.next
	} else {
		q.head = s.next
	}
	if s.next != nil {
		s.next.prev = s.prev
	} else {
		q.tail = s.prev
	}
	s.prev, s.next = nil, nil
	q.n--
}

// endHeap orders decoding sequences by the step they end in.
type endHeap []*Seq

func (h *endHeap) push(s *Seq) {
	*h = append(*h, s)
	s.heapAt = len(*h) - 1
	h.up(s.heapAt)
}

func (h *endHeap) remove(s *Seq) {
	old, i := *h, s.heapAt
	n := len(old) - 1
	old[i] = old[n]
	old[i].heapAt = i
	old[n] = nil
	*h = old[:n]
	if i < n {
		h.up(i)
		h.down(i)
	}
}

func (h endHeap) up(i int) {
	for i > 0 {
		parent := (i - 1) / 2
		if h[parent].end <= h[i].end {
			return
		}
		h.swap(i, parent)
		i = parent
	}
}

func (h endHeap) down(i int) {
	for {
		least := 2*i + 1
		if least >= len(h) {
			return
		}
		if right := least + 1; right < len(h) && h[right].end < h[least].end {
			least = right
		}
		if h[i].end <= h[least].end {
			return
		}
		h.swap(i, least)
		i = least
	}
}

func (h endHeap) swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].heapAt, h[j].heapAt = i, j
}
