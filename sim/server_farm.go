package sim

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"sync"
)

// Farm is servers that listen. A crash of one resets its connections and closes its listener until the restart.
type Farm struct {
	// Members are in the order of the options.
	Members []*Member
}

// Member is one server of a farm.
type Member struct {
	*Server
	// Address is host and port, which stay the same over restarts.
	Address string

	listen func(address string) (net.Listener, error)
	mu     sync.Mutex
	open   net.Listener // nil while down
	conns  map[net.Conn]bool
	ended  sync.WaitGroup
}

// Listen is a farm's way to TCP.
func Listen(address string) (net.Listener, error) { return net.Listen("tcp", address) }

// StartFarm starts a server for each of the options, on the address with the same index, or on free ports of 127.0.0.1 where there are fewer. listen is
// Listen or a Network's.
func StartFarm(listen func(address string) (net.Listener, error), addresses []string, options ...ServerOptions) (*Farm, error) {
	f := &Farm{}
	for i, o := range options {
		address := "127.0.0.1:0"
		if i < len(addresses) {
			address = addresses[i]
		}
		m, err := startMember(listen, address, o)
		if err != nil {
			f.Close()
			return nil, err
		}
		f.Members = append(f.Members, m)
	}
	return f, nil
}

// Close ends all servers. Requests in progress are dropped.
func (f *Farm) Close() {
	for _, m := range f.Members {
		m.Server.Close()
		m.ended.Wait()
	}
}

func startMember(listen func(string) (net.Listener, error), address string, o ServerOptions) (*Member, error) {
	l, err := listen(address)
	if err != nil {
		return nil, fmt.Errorf("cannot listen for a simulated server: %w", err)
	}
	s, err := NewServer(o)
	if err != nil {
		_ = l.Close() // the first error is the one to tell
		return nil, err
	}
	m := &Member{Server: s, Address: l.Addr().String(), listen: listen, conns: make(map[net.Conn]bool)}
	s.mu.Lock()
	s.life.onOver = m.drop
	s.life.onBegin = m.reopen
	s.mu.Unlock()
	m.serve(l)
	return m, nil
}

// serve accepts on a listener until it is closed.
func (m *Member) serve(l net.Listener) {
	m.mu.Lock()
	m.open = l
	m.mu.Unlock()
	server := &http.Server{Handler: m.Server, ConnState: m.track}
	m.ended.Go(func() { _ = server.Serve(l) }) // ends with the listener
}

func (m *Member) track(c net.Conn, state http.ConnState) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch state {
	case http.StateNew:
		if m.open == nil { // accepted in the moment of the crash
			reset(c)
			return
		}
		m.conns[c] = true
	case http.StateClosed, http.StateHijacked:
		delete(m.conns, c)
	}
}

// drop closes the listener and resets the connections.
func (m *Member) drop() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.open != nil {
		_ = m.open.Close() // nobody listens any more either way
		m.open = nil
	}
	for c := range m.conns {
		reset(c)
	}
	clear(m.conns)
}

// reset closes a connection so that the peer sees a crash, not an end.
func reset(c net.Conn) {
	if tcp, ok := c.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // without, the peer sees an orderly end: no worse
	}
	_ = c.Close() // it is gone either way
}

// reopen listens again where it was.
func (m *Member) reopen() error {
	m.mu.Lock()
	down := m.open == nil
	m.mu.Unlock()
	if !down {
		return nil
	}
	l, err := m.listen(m.Address)
	if err != nil {
		return fmt.Errorf("cannot listen again at %q: %w", m.Address, err)
	}
	m.serve(l)
	return nil
}

// Network is listeners and connections in memory, for servers and clients in one testing/synctest bubble. The zero value is ready.
type Network struct {
	mu   sync.Mutex
	open map[string]*memoryListener
	last int
}

// Listen opens an address, which may be any text; one that ends in ":0" becomes a new one.
func (n *Network) Listen(address string) (net.Listener, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if host, port, err := net.SplitHostPort(address); err == nil && port == "0" {
		n.last++
		address = net.JoinHostPort(host, fmt.Sprint(n.last))
	}
	if n.open == nil {
		n.open = make(map[string]*memoryListener)
	}
	if n.open[address] != nil {
		return nil, fmt.Errorf("cannot listen: address %q is in use", address)
	}
	l := &memoryListener{network: n, address: address, accept: make(chan net.Conn), closed: make(chan struct{})}
	n.open[address] = l
	return l, nil
}

// DialContext connects to an address that is listened on; it has the form that http.Transport wants.
func (n *Network) DialContext(ctx context.Context, _, address string) (net.Conn, error) {
	n.mu.Lock()
	l := n.open[address]
	n.mu.Unlock()
	if l == nil {
		return nil, fmt.Errorf("cannot connect to %q: connection refused", address)
	}
	client, server := net.Pipe()
	select {
	case l.accept <- server:
		return client, nil
	case <-l.closed:
		return nil, fmt.Errorf("cannot connect to %q: connection refused", address)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

type memoryListener struct {
	network *Network
	address string
	accept  chan net.Conn
	closed  chan struct{}
}

// Accept is net.Listener's.
func (l *memoryListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.accept:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close is net.Listener's.
func (l *memoryListener) Close() error {
	l.network.mu.Lock()
	defer l.network.mu.Unlock()
	if l.network.open[l.address] == l {
		delete(l.network.open, l.address)
		close(l.closed)
	}
	return nil
}

// Addr is net.Listener's.
func (l *memoryListener) Addr() net.Addr { return memoryAddr(l.address) }

type memoryAddr string

// Network is net.Addr's.
func (memoryAddr) Network() string { return "memory" }

// String is net.Addr's.
func (a memoryAddr) String() string { return string(a) }
