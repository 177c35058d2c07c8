package prefix

import (
	"crypto/sha256"
	"math/rand/v2"
	"testing"

	"github.com/fxamacker/cbor/v2"
)

// canonical is the general encoder with vLLM's settings, those of RFC 8949, section 4.2.
func canonical(t testing.TB) cbor.EncMode {
	t.Helper()
	mode, err := cbor.CoreDetEncOptions().EncMode()
	if err != nil {
		t.Fatal(err)
	}
	return mode
}

// generally names a block by way of the general encoder.
func generally(t testing.TB, mode cbor.EncMode, parent *VLLMHash, tokens []uint32, keys VLLMKeys) VLLMHash {
	var extra []any
	if keys.Adapter != "" {
		extra = append(extra, []any{"lora", keys.Adapter, keys.Path})
	}
	if keys.Salt != "" {
		extra = append(extra, keys.Salt)
	}
	data, err := mode.Marshal([]any{parent[:], tokens, extra})
	if err != nil {
		t.Fatal(err)
	}
	return sha256.Sum256(data)
}

// Our encoding is the general encoder's, whatever the sizes of numbers and texts.
func TestVLLMHashesAreCanonical(t *testing.T) {
	mode, r := canonical(t), rand.New(rand.NewPCG(1, 1))
	var hasher VLLMHasher
	parent := VLLMRoot("seed")
	if data, _ := mode.Marshal("seed"); parent != sha256.Sum256(data) {
		t.Error("the root is not the hash of its seed")
	}
	text := func() string { return string(make([]byte, []int{0, 1, 23, 24, 255, 256, 70_000}[r.IntN(7)])) }
	for range 2000 {
		tokens := make([]uint32, []int{0, 1, 16, 23, 24, 256}[r.IntN(6)])
		for i := range tokens {
			tokens[i] = uint32(r.Uint64() >> (32 + r.IntN(32)))
		}
		var keys VLLMKeys
		if keys.Adapter = text(); keys.Adapter != "" {
			keys.Path = text()
		}
		keys.Salt = text()
		got, want := hasher.Next(&parent, tokens, keys), generally(t, mode, &parent, tokens, keys)
		if got != want {
			t.Fatalf("%d tokens, adapter of %d bytes, salt of %d: got %x, want %x", len(tokens), len(keys.Adapter), len(keys.Salt), got[:4], want[:4])
		}
		parent = got
	}
}

// BenchmarkVLLMHash is the cost of a block's name: with our encoding, with the general encoder, and of SHA-256 alone.
func BenchmarkVLLMHash(b *testing.B) {
	mode, parent := canonical(b), VLLMRoot("0")
	tokens := make([]uint32, 16)
	for i := range tokens {
		tokens[i] = uint32(1000 * i)
	}
	b.Run("ours", func(b *testing.B) {
		var hasher VLLMHasher
		for b.Loop() {
			hasher.Next(&parent, tokens, VLLMKeys{})
		}
	})
	b.Run("general", func(b *testing.B) {
		for b.Loop() {
			generally(b, mode, &parent, tokens, VLLMKeys{})
		}
	})
	b.Run("SHA-256", func(b *testing.B) {
		data, err := mode.Marshal([]any{parent[:], tokens, nil})
		if err != nil {
			b.Fatal(err)
		}
		for b.Loop() {
			sha256.Sum256(data)
		}
	})
}
