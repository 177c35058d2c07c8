package fleet

import "testing"

// A request that was retried elsewhere counts where it is, and so peers see it.
func TestMove(t *testing.T) {
	pools, links := peers(2, func() *Pool { return newPool(t, 3) })
	a, b := pools[0], pools[1]
	r := prompt(1, 8000)
	r.Session = 7
	l := pick(t, a, 1, r)
	to := l.Fallbacks[0]
	moved, ok := a.Move(sec(1.1), l, to, Failed, r)
	if !ok || moved == l || moved.Endpoint.Name != to {
		t.Fatalf("got %v and %v, want a lease at %s", moved, ok, to)
	}
	passAll(links)
	for _, p := range pools {
		audit(t, p)
		from, at := p.by[l.Endpoint.Name], p.by[to]
		if len(from.leases) != 0 || len(at.leases) != 1 || p.view.Backlog[at.row] != moved.uncached {
			t.Errorf("got %d where it was and %d where it is with a backlog of %v, want 0 and 1", len(from.leases), len(at.leases), p.view.Backlog[at.row])
		}
	}
	if e := a.by[l.Endpoint.Name].errorShare(1.1); e == 0 {
		t.Error("the failure counts for nothing")
	}
	moved.FirstByte(sec(1.2))
	moved.Done(sec(1.3), Outcome{PromptTokens: 2000, OutputTokens: 10})
	passAll(links)
	empty(t, a)
	if n := len(b.by[to].leases); n != 0 {
		t.Errorf("got %d of the peer's requests left, want none", n)
	}
	if next := pick(t, a, 1.4, r); next.Endpoint.Name != to {
		t.Errorf("the conversation goes to %s, want %s where it is held", next.Endpoint.Name, to)
	}
}

// Where nothing moved, or nobody knows where to, counters are right all the same.
func TestMoveNowhere(t *testing.T) {
	p := newPool(t, 2)
	r := short()
	l := pick(t, p, 1, r)
	if same, ok := p.Move(sec(1.1), l, l.Endpoint.Name, Failed, r); same != l || !ok || l.done {
		t.Errorf("served where it was sent: got %v, %v, want the same lease", same, ok)
	}
	if lease, ok := p.Move(sec(1.1), l, "10.9.9.9:1", Failed, r); lease != nil || ok || !l.done {
		t.Errorf("served by a stranger: got %v, %v, want none and the first ended", lease, ok)
	}
	if lease, ok := p.Move(sec(1.2), l, l.Fallbacks[0], Failed, r); lease != nil || ok {
		t.Errorf("moved after its end: got %v, %v, want none", lease, ok)
	}
	empty(t, p)
	l = pick(t, p, 2, r)
	to := l.Fallbacks[0]
	p.SetEndpoints([]Endpoint{{Name: to}}) // the first has left meanwhile
	moved, ok := p.Move(sec(2.1), l, to, Failed, r)
	if !ok {
		t.Fatal("got no lease from an endpoint that has left to one that is there")
	}
	moved.Done(sec(2.2), Outcome{})
	empty(t, p)
}

// At an address with ranks the request is at the rank that it names.
func TestMoveToRank(t *testing.T) {
	p := poolOf(ranked(4, "10.0.0.1:8000", "[fd00::1]:8000"))
	for range 16 {
		r := short()
		l := pick(t, p, 1, r)
		moved, ok := p.Move(sec(1.1), l, l.Fallbacks[0], Refused, r)
		if !ok || moved.Endpoint.Address() != l.Fallbacks[0] || moved.Endpoint.Rank != l.Endpoint.Rank {
			t.Fatalf("from %s: got %+v, want the same rank at %s", l.Endpoint.Name, moved, l.Fallbacks[0])
		}
		if same, _ := p.Move(sec(1.1), moved, moved.Endpoint.Address(), Refused, r); same != moved {
			t.Fatal("served at its own address it is another lease")
		}
		moved.Done(sec(1.2), Outcome{})
	}
	empty(t, p)
}
