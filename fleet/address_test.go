package fleet

import (
	"slices"
	"testing"

	"github.com/sluice-gateway/sluice/route"
)

// ranked makes the endpoints of so many ranks at each address.
func ranked(ranks int, addresses ...string) []Endpoint {
	var out []Endpoint
	for _, a := range addresses {
		out = appendRanks(out, Endpoint{Name: a, Ranks: ranks})
	}
	return out
}

// poolOf makes a pool of these endpoints, all read at time 0.
func poolOf(endpoints []Endpoint) *Pool {
	p := NewPool("m")
	p.Apply(PoolConfig{Name: "m", Model: "m", Endpoints: endpoints})
	observeAll(p, 0)
	return p
}

// E42: what a subset names by address is found by it, however an IPv6 address is spelled, with all its ranks.
func TestSubset(t *testing.T) {
	plain := []Endpoint{{Name: "10.0.0.1:8000"}, {Name: "10.0.0.2:8000"}, {Name: "[fd00::1]:8000"}, {Name: "[fd00::2]:8000"}}
	for says, c := range map[string]struct {
		endpoints []Endpoint
		subset    []string
		want      []string // nobody where it is empty
	}{
		"none named":        {plain, nil, []string{"10.0.0.1:8000", "10.0.0.2:8000", "[fd00::1]:8000", "[fd00::2]:8000"}},
		"empty":             {plain, []string{}, nil},
		"one":               {plain, []string{"10.0.0.2:8000"}, []string{"10.0.0.2:8000"}},
		"IPv6":              {plain, []string{"[fd00::2]:8000"}, []string{"[fd00::2]:8000"}},
		"IPv6, long":        {plain, []string{"[FD00:0:0:0::1]:8000"}, []string{"[fd00::1]:8000"}},
		"IPv4 as IPv6":      {plain, []string{"[::ffff:10.0.0.1]:8000"}, []string{"10.0.0.1:8000"}},
		"strangers":         {plain, []string{"10.0.0.1:9000", "10.9.9.9:8000", "nonsense", ""}, nil},
		"some known":        {plain, []string{"10.9.9.9:8000", "10.0.0.1:8000", "10.0.0.1:8000"}, []string{"10.0.0.1:8000"}},
		"all ranks of one":  {ranked(2, "10.0.0.1:8000", "[fd00::1]:8000"), []string{"[fd00:0::1]:8000"}, []string{"[fd00::1]:8000@0", "[fd00::1]:8000@1"}},
		"a rank's own name": {ranked(2, "10.0.0.1:8000"), []string{"10.0.0.1:8000@1"}, nil},
	} {
		p := poolOf(c.endpoints)
		got := make(map[string]bool)
		for range 64 {
			r := short()
			r.Subset = c.subset
			l, choice := p.Pick(sec(1), r)
			if (l != nil) != (choice.Verdict == route.Send) {
				t.Fatalf("%s: got lease %v with verdict %v", says, l, choice.Verdict)
			}
			if l != nil {
				got[l.Endpoint.Name] = true
			}
		}
		if len(got) != len(c.want) || slices.ContainsFunc(c.want, func(n string) bool { return !got[n] }) {
			t.Errorf("%s: got %v, want %v", says, got, c.want)
		}
		if l := pick(t, p, 2, short()); l.Endpoint.Name == "" {
			t.Errorf("%s: the next request is still bound to the subset", says)
		}
	}
}

// A record has the subset that held, so that a replay decides alike.
func TestSubsetIsRecorded(t *testing.T) {
	p := poolOf(named(3))
	r := short()
	r.Subset, r.Record = []string{"e1:8000"}, true
	_, c := p.Pick(sec(1), r)
	if !slices.Equal(c.View.Outside, []bool{true, false, true}) || route.Latency().Decide(c.View) != c.Decision {
		t.Errorf("got outside %v and another decision from the record, want e1 alone", c.View.Outside)
	}
	pick(t, p, 1, short())
	if !slices.Equal(c.View.Outside, []bool{true, false, true}) {
		t.Error("the next request has changed what was recorded")
	}
}

// Fallbacks are other addresses, each once, that understand the request as it was made for the chosen endpoint.
func TestFallbacks(t *testing.T) {
	keyed := named(4)
	keyed[0].APIKey, keyed[1].APIKey = "one", "one"
	mixed := append(ranked(3, "a:1"), ranked(2, "b:1")...)
	for says, c := range map[string]struct {
		endpoints []Endpoint
		want      func(l *Lease) int // how many fallbacks
	}{
		"alone":          {named(1), func(*Lease) int { return 0 }},
		"two":            {named(2), func(*Lease) int { return 1 }},
		"many":           {named(9), func(*Lease) int { return 2 }},
		"ranks of one":   {ranked(8, "a:1"), func(*Lease) int { return 0 }},
		"ranks of two":   {ranked(8, "a:1", "b:1"), func(*Lease) int { return 1 }},
		"ranks of three": {ranked(8, "a:1", "[fd00::1]:1", "c:1"), func(*Lease) int { return 2 }},
		"keys":           {keyed, func(*Lease) int { return 1 }},
		"unlike ranks": {mixed, func(l *Lease) int {
			if l.Endpoint.Rank == 2 {
				return 0 // the other address has no such rank
			}
			return 1
		}},
	} {
		p := poolOf(c.endpoints)
		for i := range 40 {
			l, d := p.Pick(sec(1), prompt(i+1, 4000))
			n := 0
			for k, f := range l.Fallbacks {
				if f == "" {
					continue
				}
				n++
				ep := p.places.first(f)
				if ep == nil || f == l.Endpoint.Address() || k > 0 && f == l.Fallbacks[k-1] || ep.APIKey != l.Endpoint.APIKey {
					t.Fatalf("%s: %s has fallbacks %q", says, l.Endpoint.Name, l.Fallbacks)
				}
				if row := d.Fallbacks[k]; l.Endpoint.Ranks == 0 && l.Endpoint.APIKey == "" && len(c.endpoints) == 9 && p.rows[row].Name != f {
					t.Errorf("%s: got fallback %d %s, want the decision's %s", says, k, f, p.rows[row].Name)
				}
			}
			if want := c.want(l); n != want {
				t.Fatalf("%s: %s has fallbacks %q, want %d", says, l.Endpoint.Name, l.Fallbacks, want)
			}
		}
		audit(t, p)
	}
}

// Naming fallbacks allocates nothing.
func TestPickAllocations(t *testing.T) {
	for says, c := range map[string]struct {
		endpoints []Endpoint
		subset    []string
	}{
		"plain": {named(25), nil}, "subset": {named(25), []string{"e3:8000", "e4:8000"}}, "ranks": {ranked(8, "a:1", "b:1", "c:1"), nil},
	} {
		p := poolOf(c.endpoints)
		r := short()
		r.Subset, r.Seed = c.subset, 1
		once := func() {
			l, _ := p.Pick(sec(1), r)
			l.Done(sec(1), Outcome{})
		}
		once()
		if n := testing.AllocsPerRun(100, once); n > 3 { // the lease, its channel, its reason
			t.Errorf("%s: got %v allocations a pick, want 3", says, n)
		}
	}
}

// The version tells of every change that a data plane has to know, and of nothing that happens all the time.
func TestVersion(t *testing.T) {
	f := new(Fleet)
	apply := func(endpoints ...Endpoint) func() {
		return func() { f.Apply([]PoolConfig{{Name: "m", Model: "m", Endpoints: endpoints}}, "") }
	}
	apply(named(3)...)()
	p := f.Pools()[0]
	observeAll(p, 0)
	set := func(endpoints ...Endpoint) func() { return func() { p.SetEndpoints(endpoints) } }
	read := func(at, running float64) func() {
		return func() { p.Observe(sec(at), sec(at), "e0:8000", working(running, 2000), nil) }
	}
	send := func() {
		r := short()
		r.Subset = []string{"e0:8000"}
		pick(t, p, 2, r)
	}
	served := func() {
		l := pick(t, p, 1, short())
		l.FirstByte(sec(1.1))
		l.Done(sec(1.2), Outcome{})
	}
	for _, step := range []struct {
		says    string
		do      func()
		changes bool
		stalled bool // of e0
	}{
		{"the same endpoints again", set(named(3)...), false, false},
		{"a request", served, false, false},
		{"a reading", read(2, 1), false, false},
		{"a request that stays", send, false, false},
		{"it has stalled", read(100, 1), true, true},
		{"it is still stalled", read(101, 1), false, true},
		{"nothing left to serve", read(102, 0), true, false},
		{"no reading", func() { p.ObserveFailure("e1:8000", Unreachable, "refused") }, false, false},
		{"one has left", set(named(2)...), true, false},
		{"another has come", set(named(3)...), true, false},
		{"HTTP/2", set(append(named(2), Endpoint{Name: "e2:8000", H2C: true})...), true, false},
		{"a pool more", func() { f.Apply([]PoolConfig{{Name: "m", Model: "m", Endpoints: named(3)}, {Name: "n"}}, "") }, true, false},
	} {
		was := f.Version()
		step.do()
		if got := f.Version() != was; got != step.changes {
			t.Errorf("%s: got a change %v, want %v", step.says, got, step.changes)
		}
		if all := p.Addresses(nil); all[0].Endpoint.Name != "e0:8000" || all[0].Stalled != step.stalled {
			t.Errorf("%s: got %+v first, want e0 stalled %v", step.says, all[0], step.stalled)
		}
	}
}

// Ranks are one address, which is stalled when all of them are.
func TestAddressesOfRanks(t *testing.T) {
	p := poolOf(ranked(2, "10.0.0.1:8000", "[fd00::1]:8000"))
	stall := func(name string) {
		r := short()
		for _, e := range p.Endpoints() {
			if e.Name != name {
				r.Tried = append(r.Tried, e.Name)
			}
		}
		pick(t, p, 1, r)
		p.Observe(sec(1), sec(1), name, working(1, 2000), nil)
		p.Observe(sec(100), sec(100), name, working(1, 2000), nil)
	}
	want := func(stalled bool) {
		t.Helper()
		all := p.Addresses(nil)
		if len(all) != 2 || all[0].Endpoint.Address() != "10.0.0.1:8000" || all[1].Endpoint.Address() != "[fd00::1]:8000" || all[1].Stalled != stalled || all[0].Stalled {
			t.Errorf("got %+v, want two addresses, the second stalled %v", all, stalled)
		}
	}
	want(false)
	stall("[fd00::1]:8000@0")
	want(false)
	stall("[fd00::1]:8000@1")
	want(true)
	room := p.Addresses(nil)
	if n := testing.AllocsPerRun(10, func() { room = p.Addresses(room[:0]) }); n != 0 {
		t.Errorf("got %v allocations with room for the answer, want none", n)
	}
}
