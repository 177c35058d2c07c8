// Package peer carries what replicas of the gateway tell each other: each tells every other one what it sends, what
// begins and what ends, so that all decide like one.
//
// It promises that telling holds up nobody: a peer that is slow or away loses notes, and is told everything that is
// open once it is back. What it hears is taken out of the counts when the peer is lost, within seconds. It refuses to
// decide anything: what a note means is the fleet's.
//
// Whoever can connect to it can lead requests astray: it listens on loopback, or asks for certificates (see LoadTLS).
package peer

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	"github.com/sluice-gateway/sluice/fleet"
)

const (
	// version is the protocol's.
	version = 1
	// tellEvery is the least time between two batches to a peer; the first note after a pause goes at once. It is the time in
	// which two replicas may choose the same endpoint.
	tellEvery = 2 * time.Millisecond
	// beatEvery is how often a peer is told that nothing happens, lostAfter after how long without a word it is lost.
	beatEvery, lostAfter = time.Second, 3 * time.Second
	// retryEvery is the time between two attempts to reach a peer, findEvery between two look-ups of names.
	retryEvery, findEvery = time.Second, 5 * time.Second
	// maxPeers bounds how many peers are heard.
	maxPeers = 64
	// maxMessage bounds what is received, in bytes.
	maxMessage = 1 << 20
	// maxNotes bounds the notes of a message, of which peers of this version send batchNotes.
	maxNotes = 4 * batchNotes
)

// Options say who the peers are. All but Peers, TLS and Registerer must be given.
type Options struct {
	// Peers are HOST:PORT of the replicas; a name may have several addresses, and this replica may be among them.
	Peers []string
	// TLS is nil for plain connections.
	TLS *TLS
	// Name is what peers call this replica in their logs.
	Name string
	// Now is the fleet's clock.
	Now func() time.Duration
	Log *slog.Logger
	// Registerer takes the metrics; nil for none.
	Registerer prometheus.Registerer
}

// Peers is this replica's part of the conversation.
type Peers struct {
	UnimplementedSharingServer
	fleet    *fleet.Fleet
	o        Options
	instance uint64
	start    time.Duration
	log      record
	metrics  *metrics

	mu sync.Mutex
	// told are the peers that are told, by instance, heard those that are heard.
	told  map[uint64]*teller
	heard map[uint64]*hearing
}

// New has the fleet tell its notes; Run carries them. Call it before requests come.
func New(f *fleet.Fleet, o Options) *Peers {
	p := &Peers{fleet: f, o: o, instance: rand.Uint64() | 1, start: o.Now(), told: make(map[uint64]*teller), heard: make(map[uint64]*hearing)}
	p.metrics = newMetrics(o.Registerer, p)
	f.Share(p.log.add)
	return p
}

// Run listens for peers and tells them what happens here, until ctx ends; then peers are told that this replica leaves.
// It closes the listener.
func (p *Peers) Run(ctx context.Context, listener net.Listener) error {
	server := grpc.NewServer(grpc.Creds(p.serverCredentials()), grpc.MaxRecvMsgSize(maxMessage), grpc.ForceServerCodecV2(newCodec()), grpc.MaxConcurrentStreams(4),
		grpc.ConnectionTimeout(lostAfter), grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionIdle: lostAfter}))
	RegisterSharingServer(server, p)
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	var tellers sync.WaitGroup
	tellers.Go(func() { p.find(ctx, &tellers) })
	var err error
	select {
	case err = <-ended:
		err = fmt.Errorf("cannot go on listening for peers: %w", err)
	case <-ctx.Done():
	}
	server.Stop()
	if err == nil {
		tellers.Wait()
	}
	return err
}

func (p *Peers) serverCredentials() credentials.TransportCredentials {
	if p.o.TLS == nil {
		return insecure.NewCredentials()
	}
	return credentials.NewTLS(p.o.TLS.server())
}

// find keeps a teller for each address of the peers' names.
func (p *Peers) find(ctx context.Context, tellers *sync.WaitGroup) {
	var resolver fleet.Resolver
	var configured []fleet.Endpoint
	for _, host := range p.o.Peers {
		configured = append(configured, fleet.Endpoint{Host: host})
	}
	running, faults := make(map[string]context.CancelFunc), make(map[string]error)
	for {
		round, cancel := context.WithTimeout(ctx, findEvery)
		found, now := resolver.Resolve(round, configured)
		cancel()
		if ctx.Err() != nil {
			return
		}
		for host, err := range now {
			if faults[host] == nil {
				p.o.Log.Warn("peers cannot be looked up; those known stay", "peers", host, "error", err)
			}
		}
		faults = now
		wanted := make(map[string]bool)
		for _, e := range found {
			wanted[e.Name] = true
			if running[e.Name] == nil {
				var end context.Context
				end, running[e.Name] = context.WithCancel(ctx)
				tellers.Go(func() { p.talk(end, e) })
			}
		}
		for name, stop := range running {
			if !wanted[name] {
				stop()
				delete(running, name)
			}
		}
		if !pause(ctx, findEvery) {
			return
		}
	}
}

// pause waits and reports whether ctx still goes on.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

func (p *Peers) hello() *Hello {
	return &Hello{Version: version, Instance: p.instance, Name: p.o.Name}
}

// check reports whether a peer's hello is one that can be talked to.
func check(h *Hello) error {
	switch {
	case h == nil || h.GetInstance() == 0:
		return fmt.Errorf("cannot talk to peer: it did not say hello")
	case h.GetVersion() != version:
		return fmt.Errorf("cannot talk to peer %.100q: it speaks version %d of the protocol, this replica version %d", h.GetName(), h.GetVersion(), version)
	}
	return nil
}

// Status is what is known of one peer.
type Status struct {
	// Name is what the peer calls itself.
	Name string
	// Told says that the peer hears us, Heard that we hear it.
	Told, Heard bool
	// Lag is the latest time to the peer and back, 0 before it is known.
	Lag time.Duration
}

// Status describes the peers that are told or heard, by name.
func (p *Peers) Status() []Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	by := make(map[uint64]Status)
	for id, t := range p.told {
		by[id] = Status{Name: t.name, Told: true, Lag: time.Duration(t.lag.Load())}
	}
	for id, h := range p.heard {
		s := by[id]
		s.Name, s.Heard = h.name, true
		by[id] = s
	}
	var out []Status
	for _, s := range by {
		out = append(out, s)
	}
	slices.SortFunc(out, func(a, b Status) int { return cmp.Compare(a.Name, b.Name) })
	return out
}
