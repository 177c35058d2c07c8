package sim

import (
	"encoding/binary"
	"fmt"
	"math"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-zeromq/zmq4"
	"github.com/vmihailenco/msgpack/v5"
)

// eventBench is a server on TCP with a small cache that publishes events.
func eventBench(t *testing.T) *bench {
	t.Helper()
	o := ServerOptions{Engine: EngineConfig{Profile: profile(t, "l8-h100"), KVTokens: 1024}, Model: "tiny", Adapters: []string{"a"}, Seed: 1,
		KVEvents: "tcp://127.0.0.1:0", Replay: "tcp://127.0.0.1:0", KVTopic: "kv@tiny", Speed: 20}
	farm, err := StartFarm(Listen, nil, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(farm.Close)
	return &bench{t, farm, &http.Client{}}
}

// batch is a message with its numbers taken apart.
type batch struct {
	topic    string
	sequence uint64
	events   []map[string]any
}

func readBatch(t *testing.T, frames [][]byte) batch {
	t.Helper()
	if len(frames) != 3 || len(frames[1]) != 8 {
		t.Fatalf("got %d frames, %q, want topic, sequence and payload", len(frames), frames)
	}
	b := batch{topic: string(frames[0]), sequence: binary.BigEndian.Uint64(frames[1])}
	var payload []any
	if err := msgpack.Unmarshal(frames[2], &payload); err != nil {
		t.Fatal(err)
	}
	if _, ok := payload[0].(float64); len(payload) != 3 || !ok {
		t.Fatalf("got %v, want time, events, rank", payload)
	}
	for _, e := range payload[1].([]any) {
		b.events = append(b.events, e.(map[string]any))
	}
	return b
}

func number(v any) uint64 {
	r := reflect.ValueOf(v)
	if r.CanUint() {
		return r.Uint()
	}
	return uint64(r.Int())
}

// replayed asks for all messages from the number on again.
func replayed(t *testing.T, s *Server, from uint64) []batch {
	t.Helper()
	_, address := s.KVEvents()
	dealer := zmq4.NewDealer(t.Context())
	defer dealer.Close()
	if err := dealer.Dial(address); err != nil {
		t.Fatal(err)
	}
	if err := dealer.SendMulti(zmq4.NewMsgFrom(nil, sequenceFrame(from))); err != nil {
		t.Fatal(err)
	}
	var out []batch
	for {
		m, err := dealer.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if len(m.Frames) != 4 || len(m.Frames[0]) != 0 {
			t.Fatalf("got frames %q, want an empty one and those of the message", m.Frames)
		}
		if binary.BigEndian.Uint64(m.Frames[2]) == math.MaxUint64 {
			return out
		}
		out = append(out, readBatch(t, m.Frames[1:]))
	}
}

// Who follows the events knows what the cache holds, also over evictions, and each block's tokens, parent and adapter.
func TestEventsMirrorTheCache(t *testing.T) {
	b := eventBench(t)
	s := b.farm.Members[0].Server
	for i := range 12 {
		model := []string{"tiny", "a"}[i%2]
		b.chat(model, "", strings.Repeat(fmt.Sprintf("prompt %d ", i%9), 40))
	}
	held := make(map[uint64]bool)
	removed, adapters := 0, 0
	for i, m := range replayed(t, s, 0) {
		if m.sequence != uint64(i) || m.topic != "kv@tiny" {
			t.Fatalf("got message %d of %q, want %d of kv@tiny", m.sequence, m.topic, i)
		}
		for _, e := range m.events {
			hashes, _ := e["block_hashes"].([]any)
			switch e["type"] {
			case "BlockStored":
				if parent := e["parent_block_hash"]; parent != nil && !held[number(parent)] {
					t.Errorf("message %d: parent %v is not held", i, parent)
				}
				if n := len(e["token_ids"].([]any)); n != BlockTokens*len(hashes) || n == 0 {
					t.Errorf("message %d: got %d tokens for %d blocks", i, n, len(hashes))
				}
				if e["lora_name"] != nil {
					adapters++
				}
				for _, h := range hashes {
					held[number(h)] = true
				}
			case "BlockRemoved":
				for _, h := range hashes {
					removed++
					if !held[number(h)] {
						t.Errorf("message %d: removes %v, which is not held", i, h)
					}
					delete(held, number(h))
				}
			default:
				t.Errorf("message %d: got type %v", i, e["type"])
			}
		}
	}
	if removed == 0 || adapters == 0 {
		t.Errorf("got %d blocks removed and %d events of adapters, want some of both", removed, adapters)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var want, got []uint64
	for _, h := range s.engine.cache.hash {
		if h != 0 {
			want = append(want, h)
		}
	}
	for h := range held {
		got = append(got, h)
	}
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("the events leave %d blocks, the cache holds %d", len(got), len(want))
	}
}

// A subscriber gets messages as they come; a reset of the cache comes with the next one; a restart counts from 0 on the same addresses.
func TestSubscription(t *testing.T) {
	b := eventBench(t)
	s := b.farm.Members[0].Server
	events, _ := s.KVEvents()
	subscribe := func() <-chan zmq4.Msg {
		sub := zmq4.NewSub(t.Context())
		t.Cleanup(func() { _ = sub.Close() })
		if err := sub.Dial(events); err != nil {
			t.Fatal(err)
		}
		if err := sub.SetOption(zmq4.OptionSubscribe, "kv@"); err != nil {
			t.Fatal(err)
		}
		messages := make(chan zmq4.Msg, 1000)
		go func() {
			for {
				m, err := sub.Recv()
				if err != nil {
					return
				}
				messages <- m
			}
		}()
		return messages
	}
	prompts := 0
	next := func(messages <-chan zmq4.Msg) batch {
		for { // the subscription takes effect at some time
			prompts++
			b.chat("tiny", "", strings.Repeat(fmt.Sprintf("prompt %d ", prompts), 10))
			select {
			case m := <-messages:
				return readBatch(t, m.Frames)
			case <-time.After(50 * time.Millisecond):
			}
		}
	}
	messages := subscribe()
	if m := next(messages); m.topic != "kv@tiny" || len(m.events) == 0 {
		t.Errorf("got %+v, want events", m)
	}
	s.mu.Lock()
	before := s.events.next
	s.mu.Unlock()
	if status, text := b.get("/reset_prefix_cache", "{}"); text != `{"success":true}` {
		t.Fatalf("reset: got %d %s", status, text)
	}
	next(messages)
	if all := replayed(t, s, before); all[0].events[0]["type"] != "AllBlocksCleared" || all[0].events[1]["type"] != "BlockStored" {
		t.Errorf("after the reset: got %v", all[0].events)
	}
	s.Crash()
	if err := s.Restart(0); err != nil {
		t.Fatal(err)
	}
	b.client.CloseIdleConnections()
	next(subscribe())
	if all := replayed(t, s, 0); all[0].sequence != 0 || all[0].events[0]["type"] != "BlockStored" {
		t.Errorf("after the restart: got %+v", all[0])
	}
}
