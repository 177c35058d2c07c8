package peer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/sluice-gateway/sluice/fleet"
)

// teller tells one peer.
type teller struct {
	p      *Peers
	name   string
	lag    atomic.Int64 // nanoseconds
	stream grpc.BidiStreamingClient[Told, Heard]
	seq    uint64
	at     uint64 // the number of the next note
	wake   chan struct{}
	buffer []entry
	asked  atomic.Int64 // when the open question was asked, on the clock, 0 for none
}

// errSelf and errTwice say why an address is not talked to: it is this replica's, or another one of a peer that is told
// already.
var (
	errSelf  = errors.New("it is this replica")
	errTwice = errors.New("the peer is told by another address")
)

// awayFor is how long a peer may be away before that is worth a warning: replicas start and restart at different times.
const awayFor = 5 * time.Second

// talk tells the peer at an address whatever happens, until ctx ends. Only changes are logged.
func (p *Peers) talk(ctx context.Context, e fleet.Endpoint) {
	said, away := "", time.Duration(-1) // since when the peer is away, below 0 while it isn't
	for {
		err := p.tellOne(ctx, e, func(name string) {
			p.o.Log.Info("peer is told what this replica does", "peer", name, "address", e.Name)
			said, away = "", -1
		})
		if ctx.Err() != nil {
			return
		}
		now := p.o.Now()
		if away < 0 {
			away = now
		}
		level := slog.LevelInfo
		if now-away >= awayFor {
			level = slog.LevelWarn
		}
		wait := retryEvery
		if errors.Is(err, errSelf) || errors.Is(err, errTwice) {
			wait = findEvery // the address may become another one's
		} else if text := level.String() + err.Error(); text != said {
			p.o.Log.Log(ctx, level, "peer is not told what this replica does", "address", e.Name, "error", err)
			said = text
		}
		if !pause(ctx, wait) {
			return
		}
	}
}

// tellOne connects, says hello, recounts and then tells all notes, until an error or until ctx ends.
func (p *Peers) tellOne(ctx context.Context, e fleet.Endpoint, connected func(name string)) error {
	creds := insecure.NewCredentials()
	if p.o.TLS != nil {
		config, err := p.o.TLS.client(e.Host)
		if err != nil {
			return err
		}
		creds = credentials.NewTLS(config)
	}
	conn, err := grpc.NewClient("passthrough:///"+e.Name, grpc.WithTransportCredentials(creds), grpc.WithDisableServiceConfig(),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: retryEvery, Multiplier: 1, MaxDelay: retryEvery}, MinConnectTimeout: lostAfter}))
	if err != nil {
		return fmt.Errorf("cannot use the peer's address: %w", err)
	}
	defer func() { _ = conn.Close() }() // what was not sent is not missed
	work, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	patience := time.AfterFunc(lostAfter, func() { cancel(fmt.Errorf("cannot talk to peer: no hello within %s", lostAfter)) })
	defer patience.Stop()
	defer context.AfterFunc(ctx, func() {
		time.AfterFunc(beatEvery, func() { cancel(ctx.Err()) }) // a last word may take a moment
	})()
	t := &teller{p: p, wake: make(chan struct{}, 1)}
	if t.stream, err = NewSharingClient(conn).Tell(work); err == nil {
		err = t.stream.Send(&Told{Hello: p.hello()})
	}
	var heard *Heard
	if err == nil || errors.Is(err, io.EOF) {
		heard, err = t.stream.Recv()
	}
	if err == nil {
		err = check(heard.GetHello())
	}
	if err != nil {
		return reason(work, err, p.o.TLS != nil, false)
	}
	patience.Stop()
	if err := p.begin(t, heard.GetHello()); err != nil {
		return err
	}
	defer p.end(t, heard.GetHello())
	connected(t.name)
	go t.answers(cancel)
	return reason(work, t.run(ctx, work, heard.GetRecall()), p.o.TLS != nil, true)
}

// reason makes an error say what to do about it. Without a hello from a peer that was reached, it may be that one does not believe the
// other's certificate: who does not believe ours may hang up before we hear why.
func reason(work context.Context, err error, secure, greeted bool) error {
	cause := context.Cause(work)
	if cause != nil {
		err = cause
	}
	switch {
	case err == nil:
		return nil
	case !secure:
		return fmt.Errorf("cannot tell peer (without TLS): %w", err)
	case greeted, cause != nil, strings.Contains(err.Error(), "Error while dialing"): // the text is all that gRPC leaves of it
		return fmt.Errorf("cannot tell peer: %w", err)
	}
	return fmt.Errorf("cannot tell peer (with TLS: all replicas need certificates of one authority, see --peer-cert, --peer-key and --peer-ca): %w", err)
}

// begin takes note of a peer that is told from now on.
func (p *Peers) begin(t *teller, h *Hello) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if h.GetInstance() == p.instance {
		return errSelf
	}
	if p.told[h.GetInstance()] != nil {
		return errTwice
	}
	t.name = called(h)
	p.told[h.GetInstance()] = t
	t.at = p.log.join(t.wake)
	return nil
}

func (p *Peers) end(t *teller, h *Hello) {
	p.log.leave(t.wake)
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.told, h.GetInstance())
}

// called is a peer's name for people.
func called(h *Hello) string { return fmt.Sprintf("%.100s %x", h.GetName(), h.GetInstance()>>48) }

// answers takes what the peer says to heart beats.
func (t *teller) answers(cancel context.CancelCauseFunc) {
	for {
		if _, err := t.stream.Recv(); err != nil {
			cancel(fmt.Errorf("the peer has ended the conversation: %w", err))
			return
		}
		if asked := t.asked.Swap(0); asked != 0 {
			t.lag.Store(int64(t.p.o.Now()) - asked)
		}
	}
}

// run recounts and tells until ctx ends, then takes leave.
func (t *teller) run(ctx, work context.Context, recall bool) error {
	if err := t.recount(recall); err != nil {
		return err
	}
	beat := time.NewTicker(beatEvery)
	defer beat.Stop()
	for {
		asks := false
		select {
		case <-work.Done():
			return context.Cause(work)
		case <-ctx.Done():
			return t.leave(work)
		case <-t.wake:
		case <-beat.C:
			asks = true
		}
		if err := t.send(asks); err != nil {
			return err
		}
		if !pause(work, tellEvery) {
			return context.Cause(work)
		}
	}
}

// leave tells what is left and then that nothing more comes, and waits until that has arrived.
func (t *teller) leave(work context.Context) error {
	if err := t.send(false); err != nil {
		return err
	}
	err := t.stream.CloseSend()
	<-work.Done()
	return err
}

// send tells all notes there are. Where some were lost, everything is told anew.
func (t *teller) send(asks bool) error {
	now := t.p.o.Now()
	if asked := t.asked.Load(); asked != 0 && now-time.Duration(asked) > lostAfter {
		return fmt.Errorf("cannot tell peer: no answer for %s", lostAfter)
	}
	for {
		var full bool
		var lost int
		t.buffer, t.at, full, lost = t.p.log.read(t.at, t.buffer[:0])
		if lost > 0 {
			t.p.metrics.lost.Add(float64(lost))
			if err := t.recount(false); err != nil {
				return err
			}
			continue
		}
		if len(t.buffer) == 0 && !asks {
			return nil
		}
		t.seq++
		b := newBatch(t.seq, t.p.o.Now())
		for i := range t.buffer {
			b.add(t.buffer[i].pool, &t.buffer[i].note)
		}
		if asks && t.asked.CompareAndSwap(0, int64(b.now)) {
			b.told.Answer = true
		}
		asks = false
		if err := t.stream.Send(b.told); err != nil {
			return err
		}
		t.p.metrics.told.Add(float64(len(t.buffer)))
		if !full {
			return nil
		}
	}
}

// recallBlocks bounds how many blocks of all endpoints together a new peer is told.
const recallBlocks = 1 << 18

// recount tells everything that is open, and what endpoints hold if the peer wants to know.
func (t *teller) recount(recall bool) error {
	t.at = t.p.log.end() // what comes from here on is told after the recount, of which it may be part
	t.p.metrics.recounts.Inc()
	for _, pool := range t.p.fleet.Pools() {
		var open []entry
		pool.Recount(t.p.o.Now(), func(n *fleet.Note) { open = append(open, entry{pool.Name(), *n}) })
		if err := t.sendAll(open); err != nil {
			return err
		}
		if !recall {
			continue
		}
		endpoints := pool.Endpoints()
		for _, e := range endpoints {
			var held []entry
			pool.Recall(t.p.o.Now(), e.Name, recallBlocks/len(endpoints), func(n *fleet.Note) { held = append(held, entry{pool.Name(), *n}) })
			if err := t.sendAll(held); err != nil {
				return err
			}
		}
	}
	return nil
}

// sendAll tells entries, in as many messages as it takes.
func (t *teller) sendAll(entries []entry) error {
	for len(entries) > 0 {
		n := cut(entries)
		t.seq++
		b := newBatch(t.seq, t.p.o.Now())
		for i := range entries[:n] {
			b.add(entries[i].pool, &entries[i].note)
		}
		if err := t.stream.Send(b.told); err != nil {
			return err
		}
		entries = entries[n:]
	}
	return nil
}
