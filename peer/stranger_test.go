package peer

import (
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
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

// A message with more notes than any peer sends is not taken apart.
func TestGiantMessageIsRefused(t *testing.T) {
	l := listen(t)
	start(t, l, nil)
	stream, err := stranger(t, l, 5)
	if err != nil {
		t.Fatal(err)
	}
	told := &Told{Seq: 1, Answer: true}
	for range maxNotes + 1 {
		told.Notes = append(told.Notes, &Note{})
	}
	if err := stream.Send(told); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err == nil || !strings.Contains(err.Error(), "notes, at most") {
		t.Errorf("got %v, want that there are too many notes", err)
	}
}
