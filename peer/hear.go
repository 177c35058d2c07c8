package peer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// hearing is a peer that is heard.
type hearing struct {
	name string
	// stop ends the conversation, ended says that it has left nothing behind.
	stop, ended chan struct{}
}

// message is what came from a peer.
type message struct {
	told *Told
	err  error
}

// youth is how long after its start a replica asks those that connect for what endpoints hold.
const youth = 30 * time.Second

// Tell hears a peer: it is the server's side of the protocol, called by gRPC.
func (p *Peers) Tell(stream grpc.BidiStreamingServer[Told, Heard]) error {
	messages := receive(stream)
	told, err := next(messages, nil)
	if err == nil {
		err = check(told.GetHello())
	}
	if err != nil {
		return status.Error(codes.FailedPrecondition, err.Error())
	}
	hello, own := told.GetHello(), p.hello()
	if hello.GetInstance() == p.instance {
		return stream.Send(&Heard{Hello: own})
	}
	h, err := p.listen(stream.Context(), hello)
	if err != nil {
		return status.Error(codes.ResourceExhausted, err.Error())
	}
	key := fmt.Sprintf("%x", hello.GetInstance())
	defer func() {
		p.fleet.Forget(key)
		p.unlisten(hello.GetInstance(), h)
	}()
	if err := stream.Send(&Heard{Hello: own, Recall: p.o.Now()-p.start < youth}); err != nil {
		return err
	}
	p.o.Log.Info("peer is heard", "peer", h.name)
	err = p.converse(stream, messages, h, key)
	p.o.Log.Info("peer is not heard any more; what it has open is known by readings alone", "peer", h.name, "why", err)
	if errors.Is(err, io.EOF) {
		return nil
	}
	return status.Error(codes.Aborted, err.Error())
}

// converse hears notes until the peer leaves, is lost, or connects anew.
func (p *Peers) converse(stream grpc.BidiStreamingServer[Told, Heard], messages <-chan message, h *hearing, key string) error {
	for seq := uint64(1); ; seq++ {
		told, err := next(messages, h.stop)
		if err != nil {
			return err
		}
		if told.GetSeq() != seq {
			return fmt.Errorf("cannot follow peer: message %d came, not %d", told.GetSeq(), seq)
		}
		hear(p.fleet, key, told, p.o.Now())
		p.metrics.heard.Add(float64(len(told.GetNotes())))
		if told.GetAnswer() {
			if err := stream.Send(&Heard{Seq: seq}); err != nil {
				return err
			}
		}
	}
}

// receive reads a stream until it ends.
func receive(stream grpc.BidiStreamingServer[Told, Heard]) <-chan message {
	messages := make(chan message)
	go func() {
		for {
			told, err := stream.Recv()
			select {
			case messages <- message{told, err}:
			case <-stream.Context().Done():
				return
			}
			if err != nil {
				return
			}
		}
	}()
	return messages
}

// next waits for a message, not for ever.
func next(messages <-chan message, stop <-chan struct{}) (*Told, error) {
	late := time.NewTimer(lostAfter)
	defer late.Stop()
	select {
	case m := <-messages:
		return m.told, m.err
	case <-late.C:
		return nil, fmt.Errorf("cannot hear peer: nothing came for %s", lostAfter)
	case <-stop:
		return nil, errors.New("the peer has connected anew")
	}
}

// listen makes room for a peer. One that has connected anew, before it was clear that its connection had broken, is heard
// on the new one.
func (p *Peers) listen(ctx context.Context, hello *Hello) (*hearing, error) {
	h := &hearing{name: called(hello), stop: make(chan struct{}), ended: make(chan struct{})}
	for {
		p.mu.Lock()
		old := p.heard[hello.GetInstance()]
		if old == nil {
			full := len(p.heard) >= maxPeers
			if !full {
				p.heard[hello.GetInstance()] = h
			}
			p.mu.Unlock()
			if full {
				return nil, fmt.Errorf("cannot hear more than %d peers", maxPeers)
			}
			return h, nil
		}
		select {
		case old.stop <- struct{}{}:
		default:
		}
		p.mu.Unlock()
		select {
		case <-old.ended:
		case <-time.After(tellEvery):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (p *Peers) unlisten(instance uint64, h *hearing) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.heard, instance)
	close(h.ended)
}
