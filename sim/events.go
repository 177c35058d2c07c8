package sim

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/go-zeromq/zmq4"
	"github.com/vmihailenco/msgpack/v5"
)

// publisher sends what happens in the KV cache as vLLM does: one message for a step in which something did, of a topic, a sequence number and
// a MessagePack array of time, events and rank. It lives as long as the engine's life.
type publisher struct {
	topic   []byte
	socket  zmq4.Socket
	replay  zmq4.Socket // nil without replay
	stop    context.CancelFunc
	dialing chan struct{} // closed when a connection is there or given up; nil where the publisher listens

	// The last messages, by sequence number modulo its size, and the next number; the server's lock guards them.
	kept [][]byte
	next uint64
}

const (
	// keptMessages is how many messages can be asked for again, vLLM's default.
	keptMessages = 10000
	// highWater is how many messages may wait for subscribers before new ones are dropped.
	highWater = 100000
	// lastReplayed is the sequence number after the last message of a replay.
	lastReplayed = math.MaxUint64
)

// openEvents begins to publish if the options want it.
func (s *Server) openEvents() error {
	s.engine.cache.changes = s.engine.cache.changes[:0]
	if s.o.KVEvents == "" {
		return nil
	}
	ctx, stop := context.WithCancel(context.Background())
	var options []zmq4.Option
	if s.o.KVConnect {
		options = append(options, zmq4.WithDialerMaxRetries(-1), zmq4.WithAutomaticReconnect(true))
	}
	p := &publisher{topic: []byte(s.o.KVTopic), socket: zmq4.NewPub(ctx, options...), stop: stop}
	if err := p.socket.SetOption(zmq4.OptionHWM, highWater); err != nil {
		p.close()
		return fmt.Errorf("cannot limit the queue of KV events: %w", err)
	}
	if address := s.o.KVEvents; s.o.KVConnect {
		p.dialing = make(chan struct{})
		go func() {
			defer close(p.dialing)
			_ = p.socket.Dial(address) // it tries until the subscriber listens or the context ends
		}()
	} else if err := p.socket.Listen(address); err != nil {
		p.close()
		return fmt.Errorf("cannot publish KV events on %q: %w", address, err)
	}
	if s.o.Replay != "" {
		p.replay = zmq4.NewRouter(ctx)
		if err := p.replay.Listen(s.o.Replay); err != nil {
			p.close()
			return fmt.Errorf("cannot replay KV events on %q: %w", s.o.Replay, err)
		}
		s.ended.Go(func() { s.answerReplays(p) })
		s.o.Replay = boundAddress(p.replay, s.o.Replay) // stays the same over restarts
	}
	if !s.o.KVConnect {
		s.o.KVEvents = boundAddress(p.socket, s.o.KVEvents)
	}
	s.events = p
	return nil
}

// boundAddress is where a socket listens: the port, if any was good, is known by then.
func boundAddress(socket zmq4.Socket, asked string) string {
	if a := socket.Addr(); a != nil && strings.HasSuffix(asked, ":0") {
		return "tcp://" + a.String()
	}
	return asked
}

// closeEvents ends the publishing with the engine's life. Nothing may be sent after.
func (s *Server) closeEvents() {
	if p := s.events; p != nil {
		s.events = nil
		p.close()
	}
}

func (p *publisher) close() {
	p.stop()
	if p.dialing != nil {
		go func() { // it notices the end only after its pause
			<-p.dialing
			_ = p.socket.Close() // as below
		}()
	} else {
		_ = p.socket.Close() // subscribers see the connection end either way
	}
	if p.replay != nil {
		_ = p.replay.Close() // as above
	}
}

// KVEvents is the address on which events of the KV cache are published, empty for none; the second is that of replays.
func (s *Server) KVEvents() (events, replay string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.o.KVEvents, s.o.Replay
}

// publish sends what has happened in the cache since the last time.
func (s *Server) publish() {
	cache, p := s.engine.cache, s.events
	if len(cache.changes) == 0 || p == nil {
		return
	}
	var text bytes.Buffer
	w := eventWriter{msgpack.NewEncoder(&text)}
	w.array(3)
	w.check(w.e.EncodeFloat64(wall(time.Now())))
	w.array(countEvents(cache.changes))
	for rest := cache.changes; len(rest) > 0; {
		n := eventLength(rest)
		s.writeEvent(&w, rest[:n])
		rest = rest[n:]
	}
	w.check(w.e.EncodeInt(0))
	clear(cache.changes) // they refer to sequences
	cache.changes = cache.changes[:0]
	p.send(text.Bytes())
}

func (p *publisher) send(payload []byte) {
	if p.kept == nil {
		p.kept = make([][]byte, keptMessages)
	}
	p.kept[p.next%keptMessages] = payload
	// The queue takes it at once, or drops it when full: subscribers notice the gap.
	_ = p.socket.SendMulti(zmq4.NewMsgFrom(p.topic, sequenceFrame(p.next), payload))
	p.next++
}

func sequenceFrame(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }

// answerReplays sends messages again, from the number that is asked for on, until the publisher is closed.
func (s *Server) answerReplays(p *publisher) {
	for {
		m, err := p.replay.Recv()
		if err != nil {
			return
		}
		if len(m.Frames) < 3 || len(m.Frames[2]) != 8 {
			continue // not a request
		}
		id, from := m.Frames[0], binary.BigEndian.Uint64(m.Frames[2])
		s.mu.Lock()
		next := p.next
		if oldest := next - min(next, keptMessages); from < oldest {
			from = oldest
		}
		var payloads [][]byte
		for n := from; n < next; n++ {
			payloads = append(payloads, p.kept[n%keptMessages])
		}
		s.mu.Unlock()
		for i, payload := range payloads {
			if p.replay.SendMulti(zmq4.NewMsgFrom(id, nil, p.topic, sequenceFrame(from+uint64(i)), payload)) != nil {
				return
			}
		}
		if p.replay.SendMulti(zmq4.NewMsgFrom(id, nil, nil, sequenceFrame(lastReplayed), nil)) != nil {
			return
		}
	}
}

// eventLength is how many of the leading changes are one event: a run of blocks that one sequence stored.
func eventLength(changes []blockChange) int {
	n := 1
	for first := changes[0]; first.seq != nil && n < len(changes); n++ {
		if c := changes[n]; c.seq != first.seq || c.index != first.index+n {
			break
		}
	}
	return n
}

func countEvents(changes []blockChange) int {
	events := 0
	for ; len(changes) > 0; events++ {
		changes = changes[eventLength(changes):]
	}
	return events
}

// writeEvent writes one event with the fields of vLLM's in their order.
func (s *Server) writeEvent(w *eventWriter, run []blockChange) {
	first := run[0]
	switch {
	case first.hash == 0:
		w.fields(1)
		w.text("type", "AllBlocksCleared")
		return
	case first.seq == nil:
		w.fields(4)
		w.text("type", "BlockRemoved")
		w.hashes(run)
		w.text("medium", "GPU")
		w.number("group_idx", 0)
		return
	}
	c := s.calls[first.seq.Tag]
	w.fields(11)
	w.text("type", "BlockStored")
	w.hashes(run)
	w.key("parent_block_hash")
	if first.index == 0 {
		w.check(w.e.EncodeNil())
	} else {
		w.check(w.e.EncodeUint(c.seq.Blocks[first.index-1]))
	}
	w.key("token_ids")
	tokens := c.tokens[first.index*BlockTokens : (first.index+len(run))*BlockTokens]
	w.array(len(tokens))
	for _, t := range tokens {
		w.check(w.e.EncodeUint(uint64(t)))
	}
	w.number("block_size", BlockTokens)
	s.writeAdapter(w, c, run)
	w.number("group_idx", 0)
	w.text("kv_cache_spec_kind", "full_attention")
}

// writeAdapter writes the fields from lora_id to extra_keys: what else than tokens the blocks' hashes depend on.
func (s *Server) writeAdapter(w *eventWriter, c *call, run []blockChange) {
	adapter := c.seq.Adapter
	w.key("lora_id")
	if adapter == "" {
		w.check(w.e.EncodeNil())
	} else {
		i := slices.IndexFunc(s.adapters, func(a loadedAdapter) bool { return a.name == adapter })
		w.check(w.e.EncodeInt(int64(i + 1)))
	}
	w.text("medium", "GPU")
	w.key("lora_name")
	if adapter == "" {
		w.check(w.e.EncodeNil())
	} else {
		w.check(w.e.EncodeString(adapter))
	}
	w.key("extra_keys")
	w.array(len(run))
	for _, b := range run {
		var keys []string
		if adapter != "" {
			keys = append(keys, adapter)
		}
		if c.salt != "" && b.index == 0 {
			keys = append(keys, c.salt)
		}
		if keys == nil {
			w.check(w.e.EncodeNil())
			continue
		}
		w.array(len(keys))
		for _, k := range keys {
			w.check(w.e.EncodeString(k))
		}
	}
}

// eventWriter writes MessagePack to memory, which can't fail.
type eventWriter struct{ e *msgpack.Encoder }

func (w *eventWriter) check(err error) {
	if err != nil {
		panic(err) // a fault of this file: memory takes anything
	}
}

func (w *eventWriter) array(n int)         { w.check(w.e.EncodeArrayLen(n)) }
func (w *eventWriter) fields(n int)        { w.check(w.e.EncodeMapLen(n)) }
func (w *eventWriter) key(name string)     { w.check(w.e.EncodeString(name)) }
func (w *eventWriter) text(name, v string) { w.key(name); w.check(w.e.EncodeString(v)) }
func (w *eventWriter) number(name string, v int64) {
	w.key(name)
	w.check(w.e.EncodeInt(v))
}

func (w *eventWriter) hashes(run []blockChange) {
	w.key("block_hashes")
	w.array(len(run))
	for _, b := range run {
		w.check(w.e.EncodeUint(b.hash))
	}
}
