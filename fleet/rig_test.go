package fleet

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// unitBytes is the unit of the requests in tests.
const unitBytes = 256

// sec is a time on the fleet's clock.
func sec(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// named makes n endpoints, e0:8000 and so on.
func named(n int) []Endpoint {
	var eps []Endpoint
	for i := range n {
		eps = append(eps, Endpoint{Name: fmt.Sprintf("e%d:8000", i)})
	}
	return eps
}

// idle is the reading of an engine with nothing to do whose counters stand at tokens.
func idle(tokens float64) Reading {
	r := UnknownReading()
	r.Waiting, r.Running, r.KVUse, r.KVTokens = 0, 0, .1, 400_000
	r.PrefillSeconds, r.PrefillTokens, r.DecodeSeconds, r.DecodeTokens, r.CachedTokens = tokens/1e4, tokens, tokens/50, tokens, 0
	r.Progress = tokens
	return r
}

// working is the reading of an engine that serves n requests.
func working(n, tokens float64) Reading {
	r := idle(tokens)
	r.Running = n
	return r
}

// newPool makes a pool of n endpoints that were all read at time 0.
func newPool(t *testing.T, n int) *Pool {
	t.Helper()
	p := NewPool("m")
	p.Apply(PoolConfig{Name: "m", Model: "m", Endpoints: named(n)})
	observeAll(p, 0)
	return p
}

// observeAll reads all endpoints, idle.
func observeAll(p *Pool, now float64) {
	for _, e := range p.Endpoints() {
		p.Observe(sec(now), sec(now), e.Name, idle(1000+now), nil)
	}
}

// prompt makes a streamed request of so many bytes whose blocks belong to conversation id, which is not 0.
func prompt(id, bytes int) *Request {
	r := &Request{Model: "m", PromptBytes: bytes, UnitBytes: unitBytes, Streamed: true}
	for k := range bytes / unitBytes {
		r.Blocks = append(r.Blocks, uint64(id)<<32+uint64(k))
	}
	return r
}

// short makes a streamed request that has no prefix to share.
func short() *Request {
	return &Request{Model: "m", PromptBytes: 200, UnitBytes: unitBytes, Streamed: true}
}

// pick picks at a time in seconds and fails the test if nothing can serve.
func pick(t *testing.T, p *Pool, now float64, r *Request) *Lease {
	t.Helper()
	l, d := p.Pick(sec(now), r)
	if l == nil {
		t.Fatalf("at %v s: got %v, want an endpoint", now, d.Verdict)
	}
	return l
}

// where picks n times, finishing each before the next, and counts the endpoints.
func where(t *testing.T, p *Pool, now float64, n int, r *Request) map[string]int {
	t.Helper()
	got := make(map[string]int)
	for range n {
		l := pick(t, p, now, r)
		got[l.Endpoint.Name]++
		l.Done(sec(now), Outcome{})
	}
	return got
}

// told reports whether the lease was told to move.
func told(l *Lease) bool {
	select {
	case <-l.Lost():
		return true
	default:
		return false
	}
}

// audit recomputes every live column from the requests themselves and compares.
func audit(t *testing.T, p *Pool) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	v, n := &p.view, len(p.rows)
	if v.Snapshot.Len() != n || len(v.InFlight) != n || len(v.Match) != n || len(v.Tried) != n || len(v.Adapters) != n || len(p.by) != n {
		t.Fatalf("%d endpoints, and columns of other lengths", n)
	}
	slots := make(map[int]bool)
	for i, ep := range p.rows {
		if ep.row != i || p.by[ep.Name] != ep || v.Snapshot.Names[i] != ep.Name {
			t.Fatalf("row %d: %s says row %d", i, ep.Name, ep.row)
		}
		slots[ep.slot] = true
		auditRow(t, p, ep)
		auditList(t, ep)
	}
	for _, s := range p.spare {
		if slots[s] || p.index.Held(s) != 0 {
			t.Fatalf("spare slot %d is used or holds %d blocks", s, p.index.Held(s))
		}
		slots[s] = true
	}
	if len(slots) != p.slots {
		t.Fatalf("%d slots were given out, %d are known", p.slots, len(slots))
	}
}

func auditRow(t *testing.T, p *Pool, ep *endpoint) {
	t.Helper()
	v, i := &p.view, ep.row
	var held, context, since, prefilling, backlog, work float32
	for l := range ep.leases {
		held += l.held
		context += l.context()
		if l.sent >= ep.readAt {
			since++
		}
		if l.queued && !l.passed {
			prefilling++
			backlog += l.uncached
			work += l.work
		}
		if l.ep != ep || l.done || l.queued && l.begun && l.streamed {
			t.Fatalf("%s: a lease that should have left: %+v", ep.Name, l)
		}
	}
	if p.dirty {
		since = v.SentSince[i] // counted afresh before it is next used
	}
	got := []float64{float64(v.InFlight[i]), float64(v.Held[i]), float64(v.SentSince[i]), float64(v.Prefilling[i]), float64(v.Backlog[i]), float64(v.Work[i]), float64(v.Context[i]),
		v.LastCold[i], v.EjectedUntil[i]}
	want := []float64{float64(len(ep.leases)), float64(held), float64(since), float64(prefilling), float64(backlog), float64(work), float64(context),
		ep.lastCold, ep.ejectedUntil}
	if !slices.Equal(got, want) {
		t.Fatalf("%s: in flight, held, sent since, prefilling, backlog, work, context, last cold, ejected until: got %v, want %v", ep.Name, got, want)
	}
	if k := int(ep.kind); k >= len(p.kinds) || k >= len(v.Rates) || !(v.Rates[k].Prefill > 0) || !(v.Rates[k].Decode > 0) {
		t.Fatalf("%s: kind %d of %d, rates %v", ep.Name, k, len(p.kinds), v.Rates)
	}
}

// auditList checks that the requests before their first token are linked both ways, in the order sent, and are all
// there are.
func auditList(t *testing.T, ep *endpoint) {
	t.Helper()
	n := 0
	var last *Lease
	for l := ep.first; l != nil; last, l = l, l.next {
		_, counted := ep.leases[l]
		if l.prev != last || !l.queued || !counted || last != nil && l.sent < last.sent {
			t.Fatalf("%s: broken list at %+v", ep.Name, l)
		}
		n++
	}
	queued := 0
	for l := range ep.leases {
		if l.queued {
			queued++
		} else if l.prev != nil || l.next != nil {
			t.Fatalf("%s: a lease off the list still points into it", ep.Name)
		}
	}
	if ep.last != last || n != queued {
		t.Fatalf("%s: %d leases in the list, %d queued", ep.Name, n, queued)
	}
}

// empty checks that nothing is counted anywhere.
func empty(t *testing.T, p *Pool) {
	t.Helper()
	audit(t, p)
	v := &p.view
	for i, ep := range p.rows {
		if v.InFlight[i] != 0 || v.Held[i] != 0 || v.Prefilling[i] != 0 || v.Backlog[i] != 0 || ep.first != nil || ep.last != nil {
			t.Errorf("%s: something is left: in flight %v, held %v, prefilling %v, backlog %v", ep.Name, v.InFlight[i], v.Held[i], v.Prefilling[i], v.Backlog[i])
		}
		if !p.dirty && v.SentSince[i] != 0 {
			t.Errorf("%s: sent since: got %v, want 0", ep.Name, v.SentSince[i])
		}
	}
	for _, ep := range p.rows {
		for name, u := range ep.uses {
			if u.requests != 0 {
				t.Errorf("%s: %d requests for adapter %s are left", ep.Name, u.requests, name)
			}
		}
	}
	if n := p.InFlight(); n != 0 {
		t.Errorf("got %d in flight, want none", n)
	}
}
