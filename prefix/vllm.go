package prefix

import (
	"crypto/sha256"
	"encoding/binary"
)

// VLLMHash is the name that vLLM gives to a block of tokens under its hash algorithm sha256_cbor (vllm/utils/hashing.py
// and vllm/v1/core/kv_cache_utils.py): the SHA-256 of the canonical CBOR (RFC 8949, section 4.2) of the parent's name,
// the block's tokens and what else they depend on. So the name stands for the whole beginning up to the block's end.
type VLLMHash [sha256.Size]byte

// DefaultVLLMSeed is the seed of engines that run without PYTHONHASHSEED.
const DefaultVLLMSeed = "vllm-none-hash"

// VLLMRoot is the parent of a prompt's first block in engines whose PYTHONHASHSEED is the seed.
func VLLMRoot(seed string) VLLMHash {
	return sha256.Sum256(cborString(nil, seed))
}

// Short is the form of 64 bits that KV events have by default.
func (h *VLLMHash) Short() uint64 { return binary.BigEndian.Uint64(h[len(h)-8:]) }

// Major types of CBOR.
const (
	cborNumber = 0 << 5
	cborBytes  = 2 << 5
	cborText   = 3 << 5
	cborArray  = 4 << 5
	cborNull   = 0xf6
)

// VLLMHasher names blocks. It holds room that it uses again, and isn't for concurrent use; the zero VLLMHasher is ready.
// The encoding is our own because it is three lines of CBOR: the general encoder takes twice as long over it as SHA-256 does.
type VLLMHasher struct{ room []byte }

// VLLMKeys are what else than its tokens a block's name depends on, besides images.
type VLLMKeys struct {
	// Adapter names the LoRA adapter, empty for none, and Path is where its engine loaded it from (root in /v1/models).
	Adapter, Path string
	// Salt is the request's cache_salt, which counts for the first block of a prompt only.
	Salt string
}

// Next is the name of the block of these tokens after the parent.
func (x *VLLMHasher) Next(parent *VLLMHash, tokens []uint32, keys VLLMKeys) VLLMHash {
	b := cborHead(x.room[:0], cborArray, 3)
	b = append(cborHead(b, cborBytes, uint64(len(parent))), parent[:]...)
	b = cborHead(b, cborArray, uint64(len(tokens)))
	for _, t := range tokens {
		b = cborHead(b, cborNumber, uint64(t))
	}
	n := uint64(0)
	if keys.Adapter != "" {
		n++
	}
	if keys.Salt != "" {
		n++
	}
	if n == 0 {
		b = append(b, cborNull)
	} else {
		b = cborHead(b, cborArray, n)
	}
	if keys.Adapter != "" {
		b = cborString(cborString(cborString(cborHead(b, cborArray, 3), "lora"), keys.Adapter), keys.Path)
	}
	if keys.Salt != "" {
		b = cborString(b, keys.Salt)
	}
	x.room = b
	return sha256.Sum256(b)
}

func cborString(b []byte, s string) []byte {
	return append(cborHead(b, cborText, uint64(len(s))), s...)
}

// cborHead writes the head of a value: its major type, and its number or length in the fewest bytes.
func cborHead(b []byte, major byte, n uint64) []byte {
	switch {
	case n < 24:
		return append(b, major|byte(n))
	case n < 1<<8:
		return append(b, major|24, byte(n))
	case n < 1<<16:
		return append(b, major|25, byte(n>>8), byte(n))
	case n < 1<<32:
		return binary.BigEndian.AppendUint32(append(b, major|26), uint32(n))
	}
	return binary.BigEndian.AppendUint64(append(b, major|27), n)
}
