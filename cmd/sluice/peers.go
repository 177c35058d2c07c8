package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/sluice-gateway/sluice/console"
	"github.com/sluice-gateway/sluice/peer"
)

// peerOptions are the flags about other replicas of the gateway.
type peerOptions struct {
	peers                []string
	listen               string
	cert, key, authority string
}

// peerListen is where peers are heard, unless said otherwise.
const peerListen = "127.0.0.1:8082"

func peerFlags(f *pflag.FlagSet, o *peerOptions) {
	f.StringSliceVar(&o.peers, "peers", nil, "the gateway's replicas, as `HOST:PORT`, that tell each other what they do; a name may have several addresses, and this replica's may be among them")
	f.StringVar(&o.listen, "peer-listen", peerListen, "`ADDR` to hear peers on, with --peers; whoever reaches it can lead requests astray: keep it on loopback, or use --peer-cert")
	f.StringVar(&o.cert, "peer-cert", "", "certificate `FILE` by which peers know this replica, for the host of --peers")
	f.StringVar(&o.key, "peer-key", "", "key `FILE` of --peer-cert")
	f.StringVar(&o.authority, "peer-ca", "", "`FILE` with the authority that signed the certificates of all replicas")
}

// check reports whether the flags can be used.
func (o *peerOptions) check() error {
	for _, p := range o.peers {
		host, port, err := net.SplitHostPort(p)
		if n, wrong := strconv.ParseUint(port, 10, 16); err != nil || wrong != nil || n == 0 || host == "" || strings.ContainsAny(host, " \t/@") {
			return fmt.Errorf("cannot use --peers %q: it is HOST:PORT, the port that of --peer-listen, 1 to 65535", p)
		}
	}
	if len(o.peers) == 0 && o.listen != peerListen {
		return errors.New("cannot use --peer-listen without --peers: nobody would be heard; name the replicas with --peers, this one may be among them")
	}
	if len(o.peers) == 0 && (o.cert != "" || o.key != "" || o.authority != "") {
		return errors.New("cannot use --peer-cert, --peer-key or --peer-ca without --peers")
	}
	return nil
}

// newPeers has the fleet tell what it does to the replicas that the flags name; without any there is nobody to tell.
func (s *server) newPeers() error {
	if len(s.o.peer.peers) == 0 {
		return nil
	}
	secure, err := peer.LoadTLS(s.o.peer.cert, s.o.peer.key, s.o.peer.authority)
	if err != nil {
		return fmt.Errorf("cannot use --peer-cert, --peer-key and --peer-ca: %w", err)
	}
	name, err := os.Hostname()
	if err != nil {
		name = "unnamed"
	}
	s.peers = peer.New(s.fleet, peer.Options{Peers: s.o.peer.peers, TLS: secure, Name: name, Now: s.now, Log: s.log, Registerer: s.registry})
	return nil
}

// listenPeers opens the listener for peers, if there are any.
func (s *server) listenPeers() (err error) {
	if s.peers == nil {
		return nil
	}
	if s.hearing, err = net.Listen("tcp", s.o.peer.listen); err != nil {
		return fmt.Errorf("cannot listen for peers (choose another address with --peer-listen): %w", err)
	}
	if s.o.peer.cert == "" && !s.hearing.Addr().(*net.TCPAddr).IP.IsLoopback() {
		s.log.Warn("the address for peers is reachable from other machines and asks nobody who they are; whoever reaches it can lead requests astray: use --peer-cert, --peer-key and --peer-ca",
			"address", s.hearing.Addr().String())
	}
	return nil
}

// peersNow lists the peers that are told or heard, none without --peers.
func (s *server) peersNow() []console.Peer {
	out := []console.Peer{}
	if s.peers == nil {
		return out
	}
	for _, p := range s.peers.Status() {
		out = append(out, console.Peer{Name: p.Name, Told: p.Told, Heard: p.Heard, LagSeconds: p.Lag.Seconds()})
	}
	return out
}

// servePeers writes which peers are told and heard.
func (s *server) servePeers(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	_ = enc.Encode(s.peersNow()) // an error means that the reader has gone
}
