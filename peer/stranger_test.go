package peer

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"github.com/sluice-gateway/sluice/fleet"
	"github.com/sluice-gateway/sluice/prefix"
)

// stranger speaks the protocol as an instance of its own making, and has been greeted.
func stranger(t *testing.T, l net.Listener, instance uint64) (grpc.BidiStreamingClient[Told, Heard], error) {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	stream, err := NewSharingClient(conn).Tell(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&Told{Hello: &Hello{Version: version, Instance: instance}}); err != nil {
		t.Fatal(err)
	}
	_, err = stream.Recv()
	return stream, err
}

// A message that is missing ends the conversation, so that the peer recounts.
func TestMissingMessageIsNoticed(t *testing.T) {
	l := listen(t)
	start(t, l, nil)
	stream, err := stranger(t, l, 5)
	if err != nil {
		t.Fatal(err)
	}
	for _, seq := range []uint64{1, 3} {
		if err := stream.Send(&Told{Seq: seq, Answer: true}); err != nil {
			t.Fatal(err)
		}
	}
	if heard, err := stream.Recv(); err != nil || heard.GetSeq() != 1 {
		t.Errorf("got %v, %v, want the first message answered", heard, err)
	}
	if _, err := stream.Recv(); err == nil || !strings.Contains(err.Error(), "message 3 came, not 2") {
		t.Errorf("got %v, want the missing message named", err)
	}
}

// Only so many peers are heard, and who has left makes room.
func TestPeersAreFew(t *testing.T) {
	l := listen(t)
	r := start(t, l, nil)
	var first grpc.BidiStreamingClient[Told, Heard]
	for i := range uint64(maxPeers) {
		stream, err := stranger(t, l, 10+i)
		if err != nil {
			t.Fatalf("peer %d: %v", i, err)
		}
		if i == 0 {
			first = stream
		}
	}
	if _, err := stranger(t, l, 1000); err == nil || !strings.Contains(err.Error(), "more than") {
		t.Errorf("got %v for one more, want that it is too many", err)
	}
	if err := first.CloseSend(); err != nil {
		t.Fatal(err)
	}
	r.until("one has left", func() bool {
		r.peers.mu.Lock()
		defer r.peers.mu.Unlock()
		return len(r.peers.heard) < maxPeers
	})
	if _, err := stranger(t, l, 1000); err != nil {
		t.Errorf("got %v with room again", err)
	}
}

// Who connects, greets as HTTP/2 does and never begins a conversation is sent away: there is no bound for those.
func TestIdleConnectionsEnd(t *testing.T) {
	l := listen(t)
	start(t, l, nil)
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	const emptySettings = "\x00\x00\x00\x04\x00\x00\x00\x00\x00"
	if _, err := io.WriteString(conn, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"+emptySettings); err != nil {
		t.Fatal(err)
	}
	if err := conn.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, conn); err != nil {
		t.Errorf("got %v, want that the connection ends", err)
	}
}

// A message with more notes than any peer sends is refused before it takes memory.
func TestGiantMessageIsRefused(t *testing.T) {
	many, long := &Told{Seq: 1, Answer: true}, &Told{Seq: 1, Names: []string{strings.Repeat("n", maxMessage)}}
	for range maxNotes + 1 {
		many.Notes = append(many.Notes, &Note{})
	}
	for want, told := range map[string]*Told{"notes, at most": many, "larger than max": long} {
		l := listen(t)
		start(t, l, nil)
		stream, err := stranger(t, l, 5)
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.Send(told); err != nil && err != io.EOF { // that says that the refusal is to be received
			t.Fatal(err)
		}
		if _, err := stream.Recv(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

// What a giant message costs is some of its bytes, not hundreds for each.
func TestGiantMessageTakesNoMemory(t *testing.T) {
	data := bytes.Repeat([]byte{4<<3 | 2, 0}, maxMessage/2) // empty notes
	var told Told
	if err := newCodec().Unmarshal(mem.BufferSlice{mem.SliceBuffer(data)}, &told); err == nil || len(told.GetNotes()) > 0 {
		t.Errorf("got %v and %d notes, want none of them read", err, len(told.GetNotes()))
	}
}

// The largest batches that are sent are heard: of notes with all that they can have, of many, and of one with the blocks of a prompt
// larger than any.
func TestLargestBatchesAreHeard(t *testing.T) {
	blocks, ends := make([]uint64, 300_000), make([]int32, 300_000)
	for i := range blocks {
		blocks[i], ends[i] = math.MaxUint64, math.MaxInt32-int32(len(ends)-i)
	}
	full := fleet.Note{Kind: fleet.NoteOpen, ID: math.MaxUint64, Endpoint: strings.Repeat("e", 60), Uncached: 1, Held: 1, PromptBytes: math.MaxInt32, Streamed: true,
		Cold: true, Adapter: strings.Repeat("a", 60), Begun: true, Prefilled: true, UnitBytes: math.MaxInt32, MissedKey: math.MaxUint64, Missed: 1, Copied: true,
		Response: strings.Repeat("r", 60), Loads: true, Alone: true, Session: math.MaxUint64,
		Outcome: fleet.Outcome{PromptTokens: math.MaxInt32, OutputTokens: math.MaxInt32}}
	for _, size := range []int{0, 1, 100, 1023, 32_767, len(blocks)} {
		var r record
		at := r.join(make(chan struct{}, 1))
		full.Blocks, full.Ends = blocks[:size], ends[:size]
		for range 3000 {
			r.add(strings.Repeat("p", 60), &full)
		}
		entries, _, _, lost := r.read(at, nil)
		if lost > 0 {
			entries, _, _, _ = r.read(at+uint64(lost), nil)
		}
		if len(entries) == 0 || cut(entries) != len(entries) {
			t.Fatalf("notes of %d blocks: %d are a batch, or %d", size, len(entries), cut(entries))
		}
		b := newBatch(math.MaxUint64, 24*time.Hour)
		for i := range entries {
			entries[i].note.Endpoint = fmt.Sprintf("%060d", i)
			b.add(entries[i].pool, &entries[i].note)
		}
		if got := proto.Size(b.told); got > maxMessage {
			t.Errorf("notes of %d blocks: a batch of %d has %d bytes, of which %d are heard", size, len(entries), got, maxMessage)
		}
	}
}

// A replica that starts is told of endpoints that hold all they can, in messages that it hears.
func TestManyHeldBlocksAreRecalled(t *testing.T) {
	la, lb := listen(t), listen(t)
	a := start(t, la, nil, lb.Addr().String())
	for at := 0; at < prefix.MaxUnits; at += 1 << 13 {
		q := &fleet.Request{Model: "m", PromptBytes: 1 << 21, UnitBytes: 256}
		for k := range 1 << 13 {
			q.Blocks = append(q.Blocks, uint64(at+k+1)<<20)
		}
		lease, _ := a.pool().Pick(a.now(), q)
		lease.Done(a.now(), fleet.Outcome{})
	}
	sum := func(r *replica) (n int) {
		for _, s := range r.pool().Status(r.now()) {
			n += s.PrefixUnits
		}
		return n
	}
	b := start(t, lb, nil, la.Addr().String())
	b.until("all prefixes", func() bool { return sum(b) == sum(a) })
}
