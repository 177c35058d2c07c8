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
