package scrape

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/sluice-gateway/sluice/prefix"
)

// recorded reads the messages of a vLLM, of which the last two frames are sequence and payload.
func recorded(t testing.TB, name string) [][][]byte {
	t.Helper()
	f, err := os.Open(filepath.Join("testdata", "kvevents", "vllm-0.32-"+name+".jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var messages [][][]byte
	for in := bufio.NewScanner(f); in.Scan(); {
		var line struct {
			Frames []string `json:"frames_hex"`
		}
		if err := json.Unmarshal(in.Bytes(), &line); err != nil {
			t.Fatal(err)
		}
		var frames [][]byte
		for _, h := range line.Frames {
			frame, err := hex.DecodeString(h)
			if err != nil {
				t.Fatal(err)
			}
			frames = append(frames, frame)
		}
		messages = append(messages, frames)
	}
	return messages
}

func recordings() []string { return []string{"byteshash", "inthash", "replay"} }

// inWords writes an event down in words.
func inWords(e *kvEvent) string {
	var s strings.Builder
	fmt.Fprintf(&s, "%d hashes %x parent %x %v block %d group %d", e.kind, e.hashes, e.parent, e.hasParent, e.blockSize, e.group)
	if n := len(e.tokens); n > 0 {
		fmt.Fprintf(&s, " %d tokens %d…%d", n, e.tokens[0], e.tokens[n-1])
	}
	fmt.Fprintf(&s, " adapter %q %v salt %q spec %q elsewhere %v extras %x", e.adapter, e.adapted, e.salt, e.spec, e.medium != prefix.GPU || e.remote, e.extras)
	return s.String()
}

// What a general decoder reads from the recordings is what ours reads.
func TestReadRecordedEvents(t *testing.T) {
	var b kvBatch
	events := 0
	for _, name := range recordings() {
		for i, frames := range recorded(t, name) {
			payload := frames[len(frames)-1]
			if len(payload) == 0 {
				continue // the end of a replay
			}
			var want []any
			if err := msgpack.Unmarshal(payload, &want); err != nil {
				t.Fatal(err)
			}
			list, n := want[1].([]any), 0
			err := b.read(payload, func(e *kvEvent) {
				m := list[n].(map[string]any)
				n++
				events++
				tag := map[kvKind]string{kvStored: "BlockStored", kvRemoved: "BlockRemoved", kvCleared: "AllBlocksCleared"}[e.kind]
				if tag != m["type"] || e.medium != prefix.GPU || e.remote || !e.full() {
					t.Errorf("%s %d: got kind %d, medium %v, full %v, want %v", name, i, e.kind, e.medium, e.full(), m["type"])
				}
				if e.kind != kvStored {
					return
				}
				hashes, tokens := m["block_hashes"].([]any), m["token_ids"].([]any)
				if len(e.hashes) != len(hashes) || len(e.tokens) != len(tokens) || fmt.Sprint(e.blockSize) != fmt.Sprint(m["block_size"]) || e.group != 0 {
					t.Errorf("%s %d: got %s, want %v", name, i, inWords(e), m)
				}
				for k, h := range hashes {
					if short(h) != e.hashes[k] {
						t.Errorf("%s %d: hash %d: got %x, want %x", name, i, k, e.hashes[k], h)
					}
				}
				for k, v := range tokens {
					if fmt.Sprint(v) != fmt.Sprint(e.tokens[k]) {
						t.Errorf("%s %d: token %d: got %d, want %v", name, i, k, e.tokens[k], v)
					}
				}
				if parent := m["parent_block_hash"]; (parent != nil) != e.hasParent || parent != nil && short(parent) != e.parent {
					t.Errorf("%s %d: got parent %x, want %x", name, i, e.parent, parent)
				}
				if adapter := m["lora_name"]; (adapter != nil) != e.adapted || adapter != nil && adapter != string(e.adapter) {
					t.Errorf("%s %d: got adapter %q, want %v", name, i, e.adapter, adapter)
				}
			})
			if err != nil || n != len(list) || b.rank != 0 {
				t.Errorf("%s %d: got %d events, rank %d, error %v, want %d of rank 0", name, i, n, b.rank, err, len(list))
			}
		}
	}
	if events < 10 {
		t.Errorf("got %d events, want those of three recordings", events)
	}
}

// short is a hash as a general decoder has it, in its short form.
func short(h any) uint64 {
	switch h := h.(type) {
	case []byte:
		return binary.BigEndian.Uint64(h[len(h)-8:])
	case uint64:
		return h
	case int64:
		return uint64(h)
	}
	return 0
}

// pack writes a value as engines do.
func pack(t testing.TB, v any) []byte {
	t.Helper()
	var b bytes.Buffer
	e := msgpack.NewEncoder(&b)
	e.UseCompactInts(true)
	if err := e.Encode(v); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// Older engines and SGLang write arrays; unknown fields and types, other media, and groups of other attention are read
// over.
func TestReadOtherForms(t *testing.T) {
	type list = []any
	type object = map[string]any
	tokens := list{1, 2, 3, 4}
	for name, c := range map[string]struct {
		batch any
		want  []string
	}{
		"old vLLM": {list{1.5, list{list{"BlockStored", list{uint64(7)}, nil, tokens, 4, nil}, list{"BlockRemoved", list{7}}, list{"AllBlocksCleared"}}}, []string{
			`1 hashes [7] parent 0 false block 4 group -1 4 tokens 1…4 adapter "" false salt "" spec "" elsewhere false extras []`,
			`2 hashes [7] parent 0 false block 0 group -1 adapter "" false salt "" spec "" elsewhere false extras []`,
			`3 hashes [] parent 0 false block 0 group -1 adapter "" false salt "" spec "" elsewhere false extras []`}},
		"array with all fields of vLLM": {list{1.5, list{list{"BlockStored", list{7}, 6, tokens, 4, 1, "GPU", "a", list{list{"a"}}, 2, "sliding_window", 128}}, 3}, []string{
			`1 hashes [7] parent 6 true block 4 group 2 4 tokens 1…4 adapter "a" true salt "" spec "sliding_window" elsewhere false extras [91a161]`}},
		"SGLang with metadata": {list{1.5, list{list{"BlockStored", list{-2}, -1, tokens, 4, nil, "CPU_PINNED", object{"cache_salt": "s"}}}, 3}, []string{
			`1 hashes [fffffffffffffffe] parent ffffffffffffffff true block 4 group -1 4 tokens 1…4 adapter "" false salt "s" spec "" elsewhere true extras []`}},
		"SGLang with pairs of tokens": {list{1.5, list{list{"BlockStored", list{7}, nil, list{list{1, 2}, list{2, 3}}, 2, nil}}}, []string{
			`1 hashes [7] parent 0 false block 2 group -1 2 tokens 1…2 adapter "" false salt "" spec "" elsewhere false extras []`}},
		"a map of everything": {object{"ts": 1.5, "data_parallel_rank": 1, "new": list{1}, "events": list{
			object{"type": "BlockMigrated", "block_hashes": list{1}, "to": object{"x": 1}},
			object{"type": "BlockStored", "block_hashes": list{bytes.Repeat([]byte{1}, 32)}, "locality": "REMOTE", "token_ids": list{}, "new": object{"a": list{nil}}}}}, []string{
			`0 hashes [1] parent 0 false block 0 group -1 adapter "" false salt "" spec "" elsewhere false extras []`,
			`1 hashes [101010101010101] parent 0 false block 0 group -1 adapter "" false salt "" spec "" elsewhere true extras []`}},
		"what is no event": {list{1.5, list{3, nil, "x"}}, []string{
			`0 hashes [] parent 0 false block 0 group -1 adapter "" false salt "" spec "" elsewhere false extras []`,
			`0 hashes [] parent 0 false block 0 group -1 adapter "" false salt "" spec "" elsewhere false extras []`,
			`0 hashes [] parent 0 false block 0 group -1 adapter "" false salt "" spec "" elsewhere false extras []`}},
	} {
		var b kvBatch
		var got []string
		if err := b.read(pack(t, c.batch), func(e *kvEvent) { got = append(got, inWords(e)) }); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: got\n%s\nwant\n%s", name, strings.Join(got, "\n"), strings.Join(c.want, "\n"))
		}
	}
}

func TestReadNoEvents(t *testing.T) {
	for name, payload := range map[string][]byte{
		"nothing":            {},
		"a text":             []byte("\xa5hello"),
		"half a batch":       recorded(t, "inthash")[0][2][:100],
		"only a time":        pack(t, []any{1.5}),
		"a boastful array":   {0x92, 0xc0, 0xdd, 0xff, 0xff, 0xff, 0xff},
		"a boastful list":    append([]byte{0x92, 0xc0, 0x91, 0x81, 0xac}, "block_hashes\xdd\x7f\xff\xff\xff"...),
		"a nested something": bytes.Repeat([]byte{0x91}, 1000),
		"a reserved byte":    {0x92, 0xc1, 0x90},
	} {
		var b kvBatch
		if err := b.read(payload, func(*kvEvent) {}); err == nil {
			t.Errorf("%s: got no error", name)
		}
	}
}

// Every block of the recordings has the name that vLLM's algorithm gives it, as far as its parent's whole name is known.
func TestRecordedHashes(t *testing.T) {
	root := prefix.VLLMRoot("0") // the recorded engines ran with PYTHONHASHSEED=0
	var hasher prefix.VLLMHasher
	var b kvBatch
	matched := 0
	for _, name := range recordings() {
		names := make(map[uint64]prefix.VLLMHash)
		for _, frames := range recorded(t, name) {
			_ = b.read(frames[len(frames)-1], func(e *kvEvent) {
				parent, known := root, true
				if e.hasParent {
					parent, known = names[e.parent], true
					if _, known = names[e.parent]; !known {
						return
					}
				}
				if e.kind != kvStored {
					return
				}
				for k, h := range e.hashes {
					var keys prefix.VLLMKeys
					if e.adapted { // the recorded engines were given the adapters as ./NAME
						keys.Adapter, keys.Path = string(e.adapter), "./"+string(e.adapter)
					} else if k < len(e.extras) && e.extras[k] != nil {
						u := unpacker{p: e.extras[k]}
						if u.array() == 1 {
							keys.Salt = string(u.bytes())
						}
					}
					parent = hasher.Next(&parent, e.tokens[k*e.blockSize:(k+1)*e.blockSize], keys)
					if parent.Short() != h {
						t.Errorf("%s: got name %x, want %x", name, parent.Short(), h)
					}
					names[h] = parent
					matched++
				}
			})
		}
	}
	if matched != 99 {
		t.Errorf("got %d blocks, want all 99 of three recordings", matched)
	}
}

func FuzzEvents(f *testing.F) {
	for _, name := range recordings() {
		for _, frames := range recorded(f, name) {
			f.Add(frames[len(frames)-1])
		}
	}
	f.Add(pack(f, []any{1.5, []any{[]any{"BlockStored", []any{7}, 6, []any{1, 2}, 2, 1, "GPU", map[string]any{"cache_salt": "s"}, nil}}}))
	f.Fuzz(func(t *testing.T, payload []byte) {
		var b kvBatch
		err := b.read(payload, func(e *kvEvent) {
			if len(e.hashes) > maxEventHashes || len(e.tokens) > maxEventTokens || len(e.hashes)+len(e.tokens) > len(payload) {
				t.Fatalf("got %d hashes and %d tokens from %d bytes", len(e.hashes), len(e.tokens), len(payload))
			}
		})
		if err == nil && b.u.at > len(payload) {
			t.Fatal("read beyond the end")
		}
	})
}

func BenchmarkReadEvents(b *testing.B) {
	frames := recorded(b, "byteshash")[3]
	payload := frames[len(frames)-1]
	b.Run("ours", func(b *testing.B) {
		var batch kvBatch
		events := 0
		b.SetBytes(int64(len(payload)))
		b.ReportAllocs()
		for b.Loop() {
			_ = batch.read(payload, func(*kvEvent) { events++ })
		}
		b.ReportMetric(float64(events)/b.Elapsed().Seconds(), "events/s")
	})
	b.Run("msgpack", func(b *testing.B) {
		b.SetBytes(int64(len(payload)))
		b.ReportAllocs()
		for b.Loop() {
			var out []any
			_ = msgpack.Unmarshal(payload, &out)
		}
	})
}
