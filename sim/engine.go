package sim

import (
	"math"
	"time"

	"github.com/sluice-gateway/sluice/fleet"
)

// EngineConfig is what an engine is and how it is set up.
type EngineConfig struct {
	Profile Profile
	// Budget is how many tokens a step computes at most, MaxSeqs how many sequences run at once, KVTokens the size of
	// the KV cache; 0 means vLLM's defaults for the GPU (8192 and 1024 on those of 70 GB and more but the A100, else
	// 2048 and 256) and the profile's.
	Budget, MaxSeqs, KVTokens int
	// AdapterSlots is how many adapters fit on the GPU; 0 means none are served.
	AdapterSlots int
	// AdapterLoad is how long bringing one in holds up the step. What is published for an adapter of some 80 MB: 5 to
	// 10 ms from the host's memory, 50 to 200 ms from a local disk, .5 to 3 s from an object store.
	AdapterLoad time.Duration
	// AdapterStep is the share by which each rank among the adapters in use makes a step longer; .02 to .06 by what is
	// published. AdapterRanks are adapters' ranks; all that are not in it have one and the same.
	AdapterStep  float64
	AdapterRanks map[string]int
}

// Engine is one model server. It reads no clock and starts no goroutine: the owner submits sequences, asks when the
// current step ends, and calls Step then. It must not be used by two goroutines at once.
//
// Every decoding sequence takes one token a step. So a sequence is not visited in each step: the step it ends in is
// known when it starts to decode, and it needs a block each 16th step. A step costs a few operations plus those for
// what begins or ends in it, however many sequences run; nothing is approximated.
type Engine struct {
	cfg   EngineConfig
	cache *blocks

	waiting, running queue
	prefill          []*Seq     // of the running, those not yet decoding, in order
	turn             [16]*Seq   // of the decoding, those that need a block when clock%16 is the index
	ends             endHeap    // of the decoding, by the step they end in
	clock            int64      // steps done
	context          int        // tokens of context of the decoding
	expected         int        // tokens to compute of the waiting, as their own say
	adapters         []*adapter // resident, least recently used first
	events           []Event
	scratch          []int64

	stepping bool
	beganAt  time.Duration
	endAt    time.Duration
	decodes  int // sequences decoding in the current step

	slow      float64
	frozen    bool
	frozeAt   time.Duration
	down      bool
	loadUntil time.Duration
	blind     bool

	counters counters
	given    int64 // tokens of all answers, over all its lives
}

// counters are what an engine counts since it started, in the units of fleet.Reading.
type counters struct {
	prefillSeconds, prefillTokens, decodeSeconds, decodeTokens, cachedTokens float64
	firsts, firstSeconds, finished, finishedPrompt, finishedOutput           float64
	preemptions, steps                                                       int64
}

type adapter struct {
	name  string
	rank  int
	users int
}

// Seq is one request inside an engine. The caller fills in the exported fields, keeps them until the sequence is
// finished, and may then use the Seq again: it keeps its memory.
type Seq struct {
	// Prompt and Output are tokens; Output includes the one that ends it, and is at least 1.
	Prompt, Output int
	// Blocks are chained hashes of the full blocks of the prompt, and of the output if they are to be found by a later
	// request; blocks beyond it hold content that nobody else has. No hash may be 0.
	Blocks []uint64
	// Private is how many of the last Blocks nobody else will ask for. They are remembered only when the sequence
	// itself may want them again, since remembering and forgetting takes most of the time.
	Private int
	// Adapter is the LoRA adapter, empty for the base model.
	Adapter string
	// Tag is the caller's own.
	Tag int

	state              seqState
	prev, next         *Seq // in waiting or running
	prevTurn, nextTurn *Seq
	turnOf             int8
	heapAt             int
	kv                 []int32
	named              int   // leading blocks that have been made findable
	target, computed   int   // tokens to compute before the next token comes; of those done
	chunk              int   // of those, being computed in this step
	out                int   // tokens out when it joined the decoding
	joined, end        int64 // steps at which it joins and at which its last token comes
	adapter            *adapter
	arrived            time.Duration
	admitted, first    time.Duration
	cached, expected   int
}

type seqState uint8

const (
	seqIdle seqState = iota
	seqWaiting
	seqPrefilling
	seqDecoding
)

// Cached is how many tokens of the prompt were found in the cache when the sequence was first admitted.
func (s *Seq) Cached() int { return s.cached }

// EventKind says what happened to a sequence.
type EventKind uint8

const (
	// FirstToken came.
	FirstToken EventKind = iota
	// Finished: the last token came. An output of one token has both events.
	Finished
	// Preempted for want of blocks: it waits, first in line, and computes everything again.
	Preempted
)

// Event is what happened to a sequence in a step.
type Event struct {
	Kind EventKind
	Seq  *Seq
}

// NewEngine makes an idle engine with an empty cache.
func NewEngine(cfg EngineConfig) *Engine {
	p := &cfg.Profile
	if cfg.Budget == 0 {
		cfg.Budget = p.Budget()
	}
	if cfg.MaxSeqs == 0 {
		cfg.MaxSeqs = p.maxSeqs()
	}
	if cfg.KVTokens == 0 {
		cfg.KVTokens = p.KVTokens
	}
	return &Engine{cfg: cfg, cache: newBlocks(max(cfg.KVTokens/BlockTokens, 1)), slow: 1}
}

// Config is how the engine is set up, defaults filled in.
func (e *Engine) Config() EngineConfig { return e.cfg }

// Submit queues a sequence, and starts a step if the engine is idle. It reports false, and does nothing, when the
// engine is down or loading or can never hold the prompt. An output that would not fit beside its prompt is cut.
func (e *Engine) Submit(now time.Duration, s *Seq) bool {
	room := len(e.cache.refs)*BlockTokens - s.Prompt
	if e.Loading(now) || room < 1 || s.Prompt < 1 || s.Adapter != "" && e.cfg.AdapterSlots == 0 {
		return false
	}
	s.Output = min(max(s.Output, 1), room)
	s.state, s.target, s.computed, s.chunk, s.out, s.named, s.cached, s.first = seqWaiting, s.Prompt, 0, 0, 0, 0, -1, 0
	s.kv, s.arrived = s.kv[:0], now
	s.expected = e.uncached(s.Blocks, s.target)
	e.expected += s.expected
	e.waiting.push(s)
	if !e.stepping && !e.frozen {
		e.begin(now)
	}
	return true
}

// Next is when the current step ends; false when there is none, because the engine is idle, frozen or down.
func (e *Engine) Next() (time.Duration, bool) { return e.endAt, e.stepping && !e.frozen }

// Step ends the current step and starts the next one at now, if there is work. The events are valid until the next
// call. Which tokens came besides is a matter of Produced.
func (e *Engine) Step(now time.Duration) []Event {
	e.events = e.events[:0]
	if !e.stepping || e.frozen {
		return nil
	}
	e.stepping = false
	e.counters.steps++
	e.endDecodes(now)
	e.endPrefills(now)
	e.begin(now)
	return e.events
}

// Produced is how many output tokens the sequence has by the end of the last step.
func (e *Engine) Produced(s *Seq) int {
	if s.state == seqDecoding {
		return s.out + int(e.clock-s.joined)
	}
	return s.out
}

// Abort takes a sequence out, wherever it is: its client has gone. It reports false if the engine doesn't have it.
func (e *Engine) Abort(s *Seq) bool {
	switch s.state {
	case seqIdle:
		return false
	case seqWaiting:
		e.leaveQueue(s)
		s.state = seqIdle
	default:
		e.remove(s)
	}
	return true
}

func (e *Engine) leaveQueue(s *Seq) {
	e.waiting.remove(s)
	e.expected -= s.expected
}

// endDecodes gives every decoding sequence its token and ends those that have all.
func (e *Engine) endDecodes(now time.Duration) {
	e.clock++
	n := e.decoding()
	e.context += n
	e.counters.decodeTokens += float64(n)
	e.counters.decodeSeconds += float64(n) * (now - e.beganAt).Seconds()
	e.given += int64(n)
	for len(e.ends) > 0 && e.ends[0].end <= e.clock {
		e.finish(now, e.ends[0])
	}
}

func (e *Engine) decoding() int { return len(e.ends) }

// endPrefills notes what was computed; prompts that are complete give a token and join the decoding.
func (e *Engine) endPrefills(now time.Duration) {
	left := e.prefill[:0]
	for _, s := range e.prefill {
		s.computed += s.chunk
		s.chunk = 0
		if s.computed < s.target {
			left = append(left, s)
			continue
		}
		s.out++
		e.counters.decodeTokens++
		e.given++
		s.state, s.joined, s.end = seqDecoding, e.clock, e.clock+int64(s.Output-s.out)
		if s.first == 0 {
			s.first = now
			e.counters.prefillSeconds += (now - s.admitted).Seconds()
			e.counters.prefillTokens += float64(s.Prompt - s.cached)
			e.counters.firsts++
			e.counters.firstSeconds += (now - s.arrived).Seconds()
			e.events = append(e.events, Event{FirstToken, s})
		}
		e.joinDecoding(s)
		if s.end == e.clock {
			e.finish(now, s)
		}
	}
	e.prefill = left
}

// joinDecoding puts the sequence where its next block and its end will be looked for.
func (e *Engine) joinDecoding(s *Seq) {
	s.turnOf = int8((s.joined - int64(s.target)) & (BlockTokens - 1))
	s.prevTurn, s.nextTurn = nil, e.turn[s.turnOf]
	if s.nextTurn != nil {
		s.nextTurn.prevTurn = s
	}
	e.turn[s.turnOf] = s
	e.ends.push(s)
	e.context += s.target + 1
}

// leaveDecoding undoes joinDecoding.
func (e *Engine) leaveDecoding(s *Seq) {
	if s.prevTurn != nil {
		s.prevTurn.nextTurn = s.nextTurn
	} else {
		e.turn[s.turnOf] = s.nextTurn
	}
	if s.nextTurn != nil {
		s.nextTurn.prevTurn = s.prevTurn
	}
	e.ends.remove(s)
	e.context -= s.target + 1 + int(e.clock-s.joined)
}

func (e *Engine) finish(now time.Duration, s *Seq) {
	e.nameBlocks(s, (s.Prompt+s.Output-1)/BlockTokens)
	s.out = s.Output
	e.leaveDecoding(s)
	e.vacate(s)
	s.state = seqIdle
	e.counters.finished++
	e.counters.finishedPrompt += float64(s.Prompt)
	e.counters.finishedOutput += float64(s.Output)
	e.events = append(e.events, Event{Finished, s})
}

// remove takes a running sequence out of everything.
func (e *Engine) remove(s *Seq) {
	if s.state == seqDecoding {
		s.out += int(e.clock - s.joined)
		e.leaveDecoding(s)
	} else {
		for i, other := range e.prefill {
			if other == s {
				e.prefill = append(e.prefill[:i], e.prefill[i+1:]...)
				break
			}
		}
	}
	e.vacate(s)
	s.state = seqIdle
}

// vacate gives back a running sequence's place, blocks and adapter.
func (e *Engine) vacate(s *Seq) {
	e.running.remove(s)
	e.cache.release(s.kv)
	s.kv = s.kv[:0]
	if s.adapter != nil {
		s.adapter.users--
		s.adapter = nil
	}
}

// nameBlocks makes the leading full blocks findable, those that others may ask for; all of them where somebody listens.
func (e *Engine) nameBlocks(s *Seq, full int) {
	if !e.cache.watched {
		full = min(full, len(s.Blocks)-s.Private)
	}
	e.nameAll(s, full)
}

func (e *Engine) nameAll(s *Seq, full int) {
	for full = min(full, len(s.Blocks), len(s.kv)); s.named < full; s.named++ {
		if hash := s.Blocks[s.named]; e.cache.name(s.kv[s.named], hash) {
			e.cache.note(blockChange{hash, s, s.named})
		}
	}
}

// SetSlow makes steps that begin from here on take factor times as long; 1 is normal.
func (e *Engine) SetSlow(factor float64) { e.slow = factor }

// SetBlind takes the metrics away, or gives them back.
func (e *Engine) SetBlind(blind bool) { e.blind = blind }

// Freeze stops the engine in the middle of its step while its process still answers; thawed, the step goes on.
func (e *Engine) Freeze(now time.Duration, frozen bool) {
	switch {
	case frozen && !e.frozen:
		e.frozeAt = now
	case !frozen && e.frozen:
		e.endAt += now - e.frozeAt
	}
	e.frozen = frozen
	if !frozen && !e.stepping && !e.Loading(now) {
		e.begin(now)
	}
}

// Crash loses everything: sequences, cache and counters. It returns the lost sequences, oldest running first, valid
// until the next call. The engine is down until Load.
func (e *Engine) Crash() []*Seq {
	var lost []*Seq
	for _, q := range []*queue{&e.running, &e.waiting} {
		for q.head != nil {
			s := q.head
			lost = append(lost, s)
			s.out = e.Produced(s)
			q.remove(s)
			s.state, s.adapter, s.kv = seqIdle, nil, s.kv[:0]
		}
	}
	e.cache.clear()
	e.prefill, e.ends, e.adapters = e.prefill[:0], e.ends[:0], e.adapters[:0]
	e.turn = [16]*Seq{}
	e.expected = 0
	e.context, e.counters, e.stepping, e.frozen, e.down = 0, counters{}, false, false, true
	return lost
}

// Load starts a crashed engine: it serves from ready on.
func (e *Engine) Load(ready time.Duration) { e.down, e.loadUntil = false, ready }

// Loading reports whether the engine can't serve yet, or not any more.
func (e *Engine) Loading(now time.Duration) bool { return e.down || now < e.loadUntil }

// Waiting is how many sequences are queued.
func (e *Engine) Waiting() int { return e.waiting.n }

// Running is how many sequences are being served.
func (e *Engine) Running() int { return e.running.n }

// Each calls visit for every running sequence, the first admitted first.
func (e *Engine) Each(visit func(*Seq)) {
	for s := e.running.head; s != nil; s = s.next {
		visit(s)
	}
}

// Preemptions is how often a sequence lost its blocks since the engine started.
func (e *Engine) Preemptions() int64 { return e.counters.preemptions }

// Steps is how many steps were done since the engine started.
func (e *Engine) Steps() int64 { return e.counters.steps }

// Reading is what a scrape of the metrics page would learn; false when there is none to be had.
func (e *Engine) Reading(now time.Duration) (fleet.Reading, bool) {
	if e.blind || e.Loading(now) {
		return fleet.UnknownReading(), false
	}
	n := len(e.cache.refs)
	r := fleet.Reading{Waiting: float64(e.waiting.n), Running: float64(e.running.n), KVUse: float64(n-e.cache.free) / float64(n),
		KVTokens: float64(n * BlockTokens), MaxAdapters: math.NaN(), PrefillSeconds: e.counters.prefillSeconds, PrefillTokens: e.counters.prefillTokens,
		DecodeSeconds: e.counters.decodeSeconds, DecodeTokens: e.counters.decodeTokens, CachedTokens: e.counters.cachedTokens,
		Firsts: e.counters.firsts, FirstSeconds: e.counters.firstSeconds, Finished: e.counters.finished,
		FinishedPrompt: e.counters.finishedPrompt, FinishedOutput: e.counters.finishedOutput, Progress: float64(e.counters.steps)}
	if e.cfg.AdapterSlots == 0 {
		return r, true
	}
	r.MaxAdapters = float64(e.cfg.AdapterSlots)
	for _, a := range e.adapters {
		if a.users > 0 { // vLLM tells which adapters run, not which are still in their slots
			r.Resident = append(r.Resident, a.name)
		}
	}
	for s := e.waiting.head; s != nil; s = s.next {
		if s.Adapter != "" {
			r.WaitingAdapters = append(r.WaitingAdapters, s.Adapter)
		}
	}
	return r, true
}
