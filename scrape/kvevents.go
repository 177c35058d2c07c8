package scrape

import (
	"bytes"
	"encoding/binary"
	"errors"

	"github.com/sluice-gateway/sluice/prefix"
)

// kvKind is what an event says.
type kvKind uint8

const (
	kvOther   kvKind = iota // of a type that is not known
	kvStored                // blocks were computed, or loaded
	kvRemoved               // blocks were evicted
	kvCleared               // the whole cache is empty
)

// kvEvent is one event of an engine's KV cache. Everything in it is good until the next event is read.
type kvEvent struct {
	kind kvKind
	// hashes are the engine's names of the blocks, in the order of the prompt. Of one of 32 bytes the last eight count,
	// which are vLLM's own short form of it.
	hashes []uint64
	// parent is the block before the first, if hasParent; else the first begins a prompt.
	parent    uint64
	hasParent bool
	// tokens are those of all blocks, blockSize of them in each.
	tokens    []uint32
	blockSize int
	// adapter is the name of a LoRA adapter, and adapted says that there is one, by name or by number alone.
	adapter []byte
	adapted bool
	// salt is the cache_salt that the first block depends on, where the engine says it.
	salt []byte
	// extras is what else each block's hash depends on, as the engine wrote it, nil for nothing; it is empty where no block
	// has any.
	extras [][]byte
	// group is the cache group of a hybrid model, -1 without; spec the kind of it, and windowed says that it forgets what is
	// behind a window.
	group    int
	spec     []byte
	windowed bool
	// medium is where the blocks are; remote says that it isn't this engine's.
	medium prefix.Medium
	remote bool
}

// Bounds of one batch of events: a step of a large engine stores some thousand blocks, or some hundred thousand tokens.
const (
	maxEventHashes = 1 << 18
	maxEventTokens = 1 << 22
	maxEvents      = 1 << 17
)

var errEvents = errors.New("its messages are no KV events")

// kvBatch reads batches of events, in room of its own that it uses again. vLLM and SGLang write the same: an array of
// time, events and rank (newer ones: a map of them), each event a map with its type, or as older ones do, an array that
// begins with it.
type kvBatch struct {
	event kvEvent
	u     unpacker
	// rank is the data-parallel rank that the last batch gave, -1 for none.
	rank int
}

// read hands each event of a batch on in order. It reports errEvents for what is no batch; what came before the fault
// has been handed on.
func (b *kvBatch) read(payload []byte, each func(*kvEvent)) error {
	b.u, b.rank = unpacker{p: payload}, -1
	u := &b.u
	switch {
	case u.isArray():
		n := u.array()
		if n < 2 {
			return errEvents
		}
		u.skip()
		b.events(each)
		for i := 2; i < n && !u.bad; i++ {
			if i == 2 {
				b.takeRank()
			} else {
				u.skip()
			}
		}
	case u.isMap():
		for n := u.fields(); n > 0 && !u.bad; n-- {
			switch string(u.bytes()) {
			case "events":
				b.events(each)
			case "data_parallel_rank", "attn_dp_rank":
				b.takeRank()
			default:
				u.skip()
			}
		}
	default:
		return errEvents
	}
	if u.bad {
		return errEvents
	}
	return nil
}

func (b *kvBatch) takeRank() {
	if b.u.null() {
		return
	}
	if n := b.u.integer(); n < 1<<20 {
		b.rank = int(n)
	}
}

func (b *kvBatch) events(each func(*kvEvent)) {
	u := &b.u
	n := u.array()
	if n > maxEvents {
		u.bad = true
	}
	for ; n > 0 && !u.bad; n-- {
		b.event.reset()
		switch {
		case u.isMap():
			b.eventMap()
		case u.isArray():
			b.eventArray()
		default:
			u.skip()
			b.event.kind = kvOther
		}
		if !u.bad {
			each(&b.event)
		}
	}
}

func (e *kvEvent) reset() {
	*e = kvEvent{hashes: e.hashes[:0], tokens: e.tokens[:0], extras: e.extras[:0], group: -1}
}

func kindOf(tag []byte) kvKind {
	switch string(tag) {
	case "BlockStored":
		return kvStored
	case "BlockRemoved":
		return kvRemoved
	case "AllBlocksCleared":
		return kvCleared
	}
	return kvOther
}

func (b *kvBatch) eventMap() {
	u := &b.u
	for n := u.fields(); n > 0 && !u.bad; n-- {
		name := u.bytes()
		if string(name) == "type" {
			b.event.kind = kindOf(u.bytes())
			continue
		}
		b.field(name)
	}
}

// eventArray reads the older form. The fields after medium are vLLM's; SGLang has a map of metadata in the place of the
// adapter's name.
func (b *kvBatch) eventArray() {
	u := &b.u
	n := u.array() - 1
	if n < 0 || !u.isText() {
		u.bad = true
		return
	}
	b.event.kind = kindOf(u.bytes())
	stored := [...]string{"block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name", "extra_keys",
		"group_idx", "kv_cache_spec_kind", "kv_cache_spec_sliding_window"}
	removed := [...]string{"block_hashes", "medium", "group_idx"}
	names := stored[:]
	switch b.event.kind {
	case kvRemoved:
		names = removed[:]
	case kvCleared, kvOther:
		names = nil
	}
	for i := range n {
		if u.bad {
			return
		}
		switch {
		case i >= len(names):
			u.skip()
		case names[i] == "lora_name" && u.isMap():
			for n := u.fields(); n > 0 && !u.bad; n-- {
				b.field(u.bytes())
			}
		default:
			b.field([]byte(names[i]))
		}
	}
}

// field reads the value of a field by its name. One whose value is nil is as if absent.
func (b *kvBatch) field(name []byte) {
	e, u := &b.event, &b.u
	if u.null() {
		return
	}
	switch string(name) {
	case "block_hashes":
		n := u.array()
		if n > maxEventHashes {
			u.bad = true
		}
		for ; n > 0 && !u.bad; n-- {
			e.hashes = append(e.hashes, b.hash())
		}
	case "parent_block_hash":
		e.parent, e.hasParent = b.hash(), true
	case "token_ids":
		n := u.array()
		if n > maxEventTokens {
			u.bad = true
		}
		b.tokens(n)
	case "block_size":
		if n := u.integer(); n <= maxEventTokens {
			e.blockSize = int(n)
		}
	case "extra_keys":
		b.extras()
	default:
		b.rareField(name)
	}
}

// mediumOf reads vLLM's and SGLang's names of places.
func mediumOf(name []byte) prefix.Medium {
	switch string(name) {
	case "GPU":
		return prefix.GPU
	case "CPU", "CPU_PINNED":
		return prefix.Host
	}
	return prefix.Elsewhere
}

func (b *kvBatch) rareField(name []byte) {
	e, u := &b.event, &b.u
	switch string(name) {
	case "lora_id":
		// SGLang and older engines count from 0 or 1, and have nil for none.
		u.skip()
		e.adapted = true
	case "lora_name":
		e.adapter, e.adapted = u.bytes(), true
	case "medium":
		e.medium = mediumOf(u.bytes())
	case "locality":
		e.remote = bytes.EqualFold(u.bytes(), []byte("remote"))
	case "cache_salt":
		e.salt = u.bytes()
	case "group_idx":
		if n := u.integer(); n < 1<<20 {
			e.group = int(n)
		}
	case "kv_cache_spec_kind":
		e.spec = u.bytes()
	case "kv_cache_spec_sliding_window":
		u.skip()
		e.windowed = true
	default:
		u.skip()
	}
}

// hash reads a block's name: a number, negative in SGLang half of the time, or bytes.
func (b *kvBatch) hash() uint64 {
	if h := b.u.peek(); h >= 0xc4 && h <= 0xc6 || b.u.isText() {
		p := b.u.bytes()
		var last [8]byte
		p = p[max(len(p)-len(last), 0):]
		copy(last[len(last)-len(p):], p)
		return binary.BigEndian.Uint64(last[:])
	}
	return b.u.integer()
}

// tokens reads n token ids: most of all bytes that come, so without a call for each. SGLang's pairs, of two successive
// tokens for speculative decoding, count by their first.
func (b *kvBatch) tokens(n int) {
	e, u := &b.event, &b.u
	p, at := u.p, u.at
	for ; n > 0 && !u.bad; n-- {
		switch {
		case at < len(p) && p[at] < 0x80:
			e.tokens = append(e.tokens, uint32(p[at]))
			at++
		case at+2 < len(p) && p[at] == 0xcd:
			e.tokens = append(e.tokens, uint32(p[at+1])<<8|uint32(p[at+2]))
			at += 3
		default:
			u.at = at
			e.tokens = append(e.tokens, b.token())
			at = u.at
		}
	}
	u.at = at
}

func (b *kvBatch) token() uint32 {
	u := &b.u
	if !u.isArray() {
		return uint32(u.integer())
	}
	n := u.array()
	t := uint32(u.integer())
	for i := 1; i < n && !u.bad; i++ {
		u.skip()
	}
	return t
}

// extras reads what else than tokens each block's hash depends on: names of adapters and salts as texts, images as
// tuples.
func (b *kvBatch) extras() {
	e, u := &b.event, &b.u
	if !u.isArray() {
		u.skip()
		return
	}
	n := u.array()
	if n > maxEventHashes {
		u.bad = true
	}
	any := false
	for ; n > 0 && !u.bad; n-- {
		if u.null() {
			e.extras = append(e.extras, nil)
			continue
		}
		from := u.at
		u.skip()
		if u.bad {
			return
		}
		any = true
		e.extras = append(e.extras, u.p[from:u.at])
	}
	if !any {
		e.extras = e.extras[:0]
	}
}

// full reports whether the blocks' group is one of full attention, whose leading blocks are what a prompt can be
// continued from.
func (e *kvEvent) full() bool {
	return !e.windowed && (len(e.spec) == 0 || bytes.HasSuffix(e.spec, []byte("full_attention")) || string(e.spec) == "mla_attention")
}
