package fleet

import (
	"fmt"
	"strings"
	"testing"
)

func TestStoredResponsesAreBounded(t *testing.T) {
	var s stored
	here := holder{"pool", "e"}
	for i := range maxStored + 10 {
		s.put(fmt.Sprint(i), here)
	}
	if len(s.holders) != maxStored || s.get("9") != (holder{}) || s.get("10") != here || s.get(fmt.Sprint(maxStored+9)) != here {
		t.Errorf("got %d remembered and %q for the tenth, want %d and the oldest forgotten", len(s.holders), s.get("9"), maxStored)
	}
}

// Q01: a response is found through every gateway, and what continues it goes to its endpoint, however long the queue
// there, unless that has left or has been tried.
func TestContinuedResponsesGoToTheirHolder(t *testing.T) {
	var a, b Fleet
	for _, f := range []*Fleet{&a, &b} {
		f.Apply([]PoolConfig{{Name: "m", Model: "m", Endpoints: named(3)}}, "")
		observeAll(f.Pools()[0], 0)
	}
	var notes []Note
	a.Share(func(pool string, n *Note) { keep(&notes)(n) })
	l := pick(t, a.Pools()[0], 1, short())
	a.Stored(sec(1), "resp_1", l)
	b.Hear("a", "m", notes)
	b.Hear("a", "unknown", []Note{{Kind: NoteStored, Endpoint: "e", Response: "resp_2"}})
	p, at := b.Holder("resp_1")
	if p != b.Pools()[0] || at != l.Endpoint.Name {
		t.Fatalf("got %v and %q, want %q", p, at, l.Endpoint.Name)
	}
	if p, at := b.Holder("resp_2"); p != nil || at != "" {
		t.Errorf("got %v and %q for a pool that is not there", p, at)
	}
	q := short()
	q.Holder = at
	for range 20 {
		if got := pick(t, p, 1, q).Endpoint.Name; got != at {
			t.Fatalf("got %s, want %s, which keeps the response", got, at)
		}
	}
	q.Tried = []string{at}
	if got := pick(t, p, 1, q).Endpoint.Name; got == at {
		t.Errorf("got %s, which was tried", got)
	}
	q.Tried, q.Holder = nil, "gone:1"
	pick(t, p, 1, q)
}

// What a peer says of pools that are not here is not kept.
func TestStoredElsewhereIsIgnored(t *testing.T) {
	var f Fleet
	f.Apply([]PoolConfig{{Name: "m", Model: "m", Endpoints: named(1)}}, "")
	note := []Note{{Kind: NoteStored, Endpoint: "e0:8000", Response: "resp_1"}}
	f.Hear("peer", "other", note)
	if n := len(f.stored.holders); n != 0 {
		t.Errorf("got %d responses of a pool that is not here, want none", n)
	}
	f.Hear("peer", "m", note)
	f.Hear("peer", "m", []Note{{Kind: NoteStored, Endpoint: "e0:8000", Response: strings.Repeat("x", maxResponse+1)}})
	if n := len(f.stored.holders); n != 1 {
		t.Errorf("got %d responses, want the one whose name is not too long", n)
	}
	if p, endpoint := f.Holder("resp_1"); p == nil || endpoint != "e0:8000" {
		t.Errorf("got %v at %q, want the pool and e0", p, endpoint)
	}
}
