package openai

import (
	"encoding/binary"
	"math/bits"

	"github.com/cespare/xxhash/v2"
)

const (
	// UnitBytes is the unit in which prefix blocks are measured, and the size of a prompt's first ones: about 60 tokens
	// of English, so a few engine blocks of 16.
	UnitBytes = 256
	// MaxBlocks is how many leading blocks of a prompt are hashed: 4 MiB. What lies beyond can't change where a request
	// is best sent, and one body can't fill the index.
	MaxBlocks = smallBlocks + middleBlocks + 1008

	smallBlocks, middleBlocks = 64, 48
	middleUnits, largeUnits   = 4, 16
)

// unitsOf is the size of block k in units of UnitBytes. Blocks grow to 1 KiB after 16 KiB of prompt and to 4 KiB after
// 64 KiB: two prompts that part inside a block share up to 6 % more than is seen, and a prompt of 220 KB has 151 blocks
// where it would have 880.
func unitsOf(k int) int {
	switch {
	case k < smallBlocks:
		return 1
	case k < smallBlocks+middleBlocks:
		return middleUnits
	}
	return largeUnits
}

// Blocks returns the chained hashes of the prompt of the request that s read last, and for each how many units of
// UnitBytes the prompt has up to its end. Block i stands for everything up to its end, so the equal leading blocks of
// two requests are what they share. The trailing run is hashed too, however short: requests may differ in nothing else,
// as with an image's address. Empty for a form and where there is no prompt.
//
// The chain starts from model (the name that is served: an adapter's, or what an alias resolves to) and from the fields
// that change the prompt as a whole: previous_response_id, cache_salt, chat_template, chat_template_kwargs,
// reasoning_effort, reasoning, mm_processor_kwargs and truncate_prompt_tokens, since engines share no cache across
// those. Then come, whatever their order in the body, as one stream of bytes: tools, functions, system, instructions,
// documents, prompt, messages, input, query, texts, text_1, text_2, suffix. That is the order in which chat templates
// place them. response_format and tool_choice stay out: they bind the output, and agents change tool_choice from turn
// to turn while the prefix stays in the engine's cache.
//
// The result is overwritten by the next call and must not be kept after s is Reset.
func (s *Scratch) Blocks(model string) (blocks []uint64, ends []int32) {
	s.blocks, s.ends = s.blocks[:0], s.ends[:0]
	if s.source == nil {
		return s.blocks, s.ends
	}
	h := hasher{s: s, chain: s.seedOf(model)}
	for f := firstPrompt; f < fieldCount; f++ {
		if sp := s.fields[f]; sp.len() > 0 {
			s.tail[h.fill] = byte(f) // keeps "a"+"b" apart in two fields from the same bytes in one
			h.filled(1)
			h.span(sp)
		}
	}
	if h.fill > 0 {
		h.add(s.tail[:h.fill])
	}
	return s.blocks, s.ends
}

// Head returns a function that hashes the bytes of a prompt from the beginning of the block in which byte n-1 lies up to byte
// n, counted from 0 in the stream of which Blocks tells: of two prompts with the same blocks before, it says whether
// they share the first bytes of the next. It is 0 for what lies beyond the prompt or MaxBlocks. The function reads the
// request that s read last; it must not be called after s is Reset.
func (s *Scratch) Head() func(n int) uint64 {
	if s.head == nil {
		s.head = s.hashHead
	}
	return s.head
}

func (s *Scratch) hashHead(n int) uint64 {
	start, ok := startOf(n)
	if !ok || s.source == nil {
		return 0
	}
	s.seed.Reset()
	at, want := int64(0), span{int64(start), int64(n)}
	for f := firstPrompt; f < fieldCount && at < want.end; f++ {
		sp := s.fields[f]
		if sp.len() == 0 {
			continue
		}
		if at >= want.start {
			s.tail[0] = byte(f)
			_, _ = s.seed.Write(s.tail[:1])
		}
		at++
		part := span{sp.start + max(want.start-at, 0), min(sp.end, sp.start+want.end-at)}
		at += sp.len()
		if part.start >= part.end {
			continue
		}
		var base int64
		for _, p := range s.source.parts {
			if q := within(p, base, part); len(q) > 0 {
				_, _ = s.seed.Write(q)
			}
			base += int64(len(p))
		}
	}
	if at < want.end {
		return 0
	}
	return s.seed.Sum64()
}

// startOf is where the block begins in which byte n-1 of a prompt lies; false beyond all blocks.
func startOf(n int) (int, bool) {
	const small, middle = smallBlocks * UnitBytes, smallBlocks*UnitBytes + middleBlocks*middleUnits*UnitBytes
	const all = middle + (MaxBlocks-smallBlocks-middleBlocks)*largeUnits*UnitBytes
	from, size := 0, UnitBytes
	switch i := n - 1; {
	case i < 0 || i >= all:
		return 0, false
	case i >= middle:
		from, size = middle, largeUnits*UnitBytes
	case i >= small:
		from, size = small, middleUnits*UnitBytes
	}
	return from + (n-1-from)/size*size, true
}

// seedOf hashes what the whole chain depends on, each piece with its length in front.
func (s *Scratch) seedOf(model string) uint64 {
	d := &s.seed
	d.Reset()
	s.seedLen(0, len(model))
	_, _ = d.WriteString(model)
	for f := firstSeed; f < firstPrompt; f++ {
		sp := s.fields[f]
		if sp.len() == 0 {
			continue
		}
		s.seedLen(f, int(sp.len()))
		var base int64
		for _, p := range s.source.parts {
			if q := within(p, base, sp); len(q) > 0 {
				_, _ = d.Write(q)
			}
			base += int64(len(p))
		}
	}
	return d.Sum64()
}

func (s *Scratch) seedLen(f field, n int) {
	binary.LittleEndian.PutUint64(s.tail[:8], uint64(f)<<56|uint64(n))
	_, _ = s.seed.Write(s.tail[:8])
}

// within is the part of a span that lies in p, which starts at base.
func within(p []byte, base int64, sp span) []byte {
	from, to := max(sp.start-base, 0), min(sp.end-base, int64(len(p)))
	if from >= to {
		return nil
	}
	return p[from:to]
}

// hasher cuts a stream of bytes into blocks. Whole blocks are hashed where they lie; only what straddles the border of
// a part or a field is copied to the tail.
type hasher struct {
	s     *Scratch
	chain uint64
	fill  int   // bytes waiting in s.tail
	units int32 // up to the end of the last block
}

func (h *hasher) span(sp span) {
	var base int64
	for _, p := range h.s.source.parts {
		if base >= sp.end {
			return
		}
		h.write(within(p, base, sp))
		base += int64(len(p))
	}
}

func (h *hasher) write(p []byte) {
	for len(p) > 0 && len(h.s.blocks) < MaxBlocks {
		size := unitsOf(len(h.s.blocks)) * UnitBytes
		if h.fill == 0 && len(p) >= size {
			h.add(p[:size])
			p = p[size:]
			continue
		}
		n := copy(h.s.tail[h.fill:size], p)
		p = p[n:]
		h.filled(n)
	}
}

func (h *hasher) filled(n int) {
	if h.fill += n; h.fill == unitsOf(len(h.s.blocks))*UnitBytes {
		h.add(h.s.tail[:h.fill])
		h.fill = 0
	}
}

// add hashes a block on its own and folds it into the chain by two rounds of multiply and rotate. Seeding the hash with
// the chain instead would make each block wait for the one before.
func (h *hasher) add(p []byte) {
	if len(h.s.blocks) >= MaxBlocks {
		return
	}
	x := (bits.RotateLeft64(h.chain, 27) ^ xxhash.Sum64(p)) * 0x9e3779b97f4a7c15
	x ^= x >> 32
	h.chain = x*0xd6e8feb86659fd93 + uint64(len(p))
	h.chain ^= h.chain >> 29
	h.s.blocks = append(h.s.blocks, h.chain)
	h.units += int32((len(p) + UnitBytes - 1) / UnitBytes)
	h.s.ends = append(h.s.ends, h.units)
}
