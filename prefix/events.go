package prefix

import (
	"encoding/binary"

	"github.com/cespare/xxhash/v2"
)

// Medium is where an engine keeps a block.
type Medium uint8

const (
	// GPU is the memory that the engine computes in.
	GPU Medium = iota
	// Host is the memory of the machine: bringing a block back from there costs far less than computing it.
	Host
	// Elsewhere is any other place. What is only there does not count as held.
	Elsewhere
)

// EventKind says what happened to blocks of an engine's cache.
type EventKind uint8

const (
	// Stored: the blocks can be found from here on.
	Stored EventKind = iota
	// Removed: one copy of each of the blocks is gone from the medium.
	Removed
	// Cleared: the cache is empty.
	Cleared
)

// Event is a change of an engine's KV cache, as vLLM and SGLang publish them. Only one group of the cache is followed,
// that of full attention, in which a block is of use only with all before it.
type Event struct {
	Kind EventKind
	// Hashes are the engine's own of the blocks, a run of one prompt when stored. Of longer hashes the last 8 bytes count,
	// big endian, which is what vLLM shortens them to itself.
	Hashes []uint64
	// Parent is the hash of the block before the first of Hashes; First says that there is none.
	Parent uint64
	First  bool
	// Tokens are those of all the blocks, BlockSize for each.
	Tokens    []uint32
	BlockSize int
	// Adapter is the name of the LoRA adapter, empty for the base model.
	Adapter string
	// Extra is, for each block, what its content depends on besides the tokens and the adapter: the cache salt as it is (engines
	// give it to the first block only), anything else in a form that no salt has. Nil means nothing for any.
	Extra  []string
	Medium Medium
}

// Prompt is a prompt whose tokens have become known.
type Prompt struct {
	// Blocks are the prefix blocks of the request, as Match gets them.
	Blocks []uint64
	// Ends says for each of Blocks how many leading tokens do not depend on what follows it, growing; the last one is the length of
	// the whole prompt if the last block is the prompt's end. Blocks beyond the length of Ends, as of a prompt that holds
	// images from there on, are left to guessing.
	Ends []int32
	// Tokens are those of the prompt from its beginning, at least as many as the last of Ends.
	Tokens []uint32
	// Certain says for each of Tokens, as far as it goes, up to which byte of the prompt whoever shares its beginning has the token too,
	// whatever follows; not decreasing, and at most where the last block ends. Head hashes the bytes of the prompt from the
	// beginning of the prefix block that byte n-1 is in up to byte n. By them prompts are compared that part inside a
	// prefix block; nil where that can't be.
	Certain []int32
	Head    func(n int) uint64
	// Adapter and Salt are those of the request.
	Adapter, Salt string
	// EngineHashes are an engine's own hashes of the prompt's whole blocks of EngineBlock tokens, where they can be computed: by
	// them events that began late find their parents. Nil where they can't.
	EngineHashes []uint64
	EngineBlock  int
}

// Following says how well an endpoint's events are known.
type Following uint8

const (
	// NotFollowed: there are no events, or no longer. What the endpoint holds is guessed from what was sent there.
	NotFollowed Following = iota
	// FollowedFromNow: events come, and what was cached before them is not known: they began late, or some were lost. What was
	// stored is held; of the rest the guess stands.
	FollowedFromNow
	// FollowedFromEmpty: all events since the cache was empty are known. What was not stored is not held.
	FollowedFromEmpty
)

// Keys are chained hashes of blocks of tokens: our own, so that they agree between engines, whatever each hashes with. Adapters go by name.

// rootKey is the parent of first blocks.
func rootKey(adapter string, blockSize int) uint64 {
	return mix(xxhash.Sum64String(adapter) + uint64(blockSize)*0x9e3779b97f4a7c15)
}

// nextKey folds a block's own hash into the chain.
func nextKey(parent, block uint64) uint64 { return mix(parent*0x9e3779b97f4a7c15 ^ block) }

// hashBlock hashes a block without what is before it.
func hashBlock(tokens []uint32, extra string) uint64 {
	h := uint64(0)
	if extra != "" {
		h = mix(xxhash.Sum64String(extra) + uint64(len(extra)))
	}
	var buffer [512]byte
	for len(tokens) > 0 {
		n := min(len(tokens), len(buffer)/4)
		for i, t := range tokens[:n] {
			binary.LittleEndian.PutUint32(buffer[4*i:], t)
		}
		h = h*0xd6e8feb86659fd93 ^ xxhash.Sum64(buffer[:4*n])
		tokens = tokens[n:]
	}
	return h
}

// mix is the finalizer of splitmix64 (Steele, Lea and Flood, OOPSLA 2014).
func mix(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}
