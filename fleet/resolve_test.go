package fleet

import (
	"context"
	"errors"
	"net/netip"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// E42, D06: names become endpoints with addresses, IPv6 in brackets, one family each, sorted, and a name server that
// fails takes nothing away.
func TestResolve(t *testing.T) {
	down := false
	answers := map[string][]string{
		"vllm.svc": {"10.0.0.2", "10.0.0.1", "10.0.0.1", "fd00::1"},
		"six.svc":  {"fd00::2"},
		"none.svc": {},
		"4in6.svc": {"::ffff:10.0.0.9"},
	}
	r := Resolver{Lookup: func(_ context.Context, network, host string) ([]netip.Addr, error) {
		found, ok := answers[host]
		if down || !ok || network != "ip" {
			return nil, errors.New("no such host")
		}
		var out []netip.Addr
		for _, a := range found {
			out = append(out, netip.MustParseAddr(a))
		}
		return out, nil
	}}
	resolve := func(hosts ...string) (names []string, faults map[string]error) {
		var configured []Endpoint
		for _, h := range hosts {
			configured = append(configured, Endpoint{Host: h, Engine: "vllm"})
		}
		out, faults := r.Resolve(context.Background(), configured)
		for _, e := range out {
			if e.Engine != "vllm" || e.Host == "" {
				t.Errorf("%s: lost its settings: %+v", e.Name, e)
			}
			names = append(names, e.Name)
		}
		return names, faults
	}
	all := []string{"10.9.9.9:80", "[fd00::9]:81", "vllm.svc:8000", "six.svc:8000", "4in6.svc:1"}
	want := []string{"10.9.9.9:80", "[fd00::9]:81", "10.0.0.1:8000", "10.0.0.2:8000", "[fd00::2]:8000", "10.0.0.9:1"}
	got, faults := resolve(all...)
	if diff := cmp.Diff(want, got); diff != "" || len(faults) != 0 {
		t.Errorf("%s faults %v", diff, faults)
	}
	down = true
	if got, faults = resolve(all...); !cmp.Equal(want, got) || len(faults) != 3 {
		t.Errorf("the name server is down: got %v and faults %v, want what it said before and a fault for each name", got, faults)
	}
	var remembered []string
	for _, e := range r.Remembered([]Endpoint{{Host: "vllm.svc:8000"}, {Host: "new.svc:1"}, {Host: "10.9.9.8:80"}}) {
		remembered = append(remembered, e.Name)
	}
	if diff := cmp.Diff([]string{"10.0.0.1:8000", "10.0.0.2:8000", "10.9.9.8:80"}, remembered); diff != "" {
		t.Errorf("without asking: %s", diff)
	}
	got, faults = resolve("gone.svc:1", "no-port", "10.1.1.1:1")
	if !cmp.Equal([]string{"10.1.1.1:1"}, got) || len(faults) != 2 {
		t.Errorf("got %v and faults %v, want the one that can be used and two faults", got, faults)
	}
	for _, name := range []string{"gone.svc:1", "no-port"} {
		if err := faults[name]; err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("fault %v does not name %s", err, name)
		}
	}
	down = false
	if got, faults = resolve("none.svc:1"); len(got) != 0 || len(faults) != 1 {
		t.Errorf("a name without addresses: got %v and faults %v", got, faults)
	}
}

// D02: the ranks of an address are as many as it says, numbered from its first, and no more are made up; M12: their
// address is the bare one.
func TestResolveRanks(t *testing.T) {
	r := Resolver{}
	out, faults := r.Resolve(context.Background(), []Endpoint{{Host: "10.0.0.1:80", Ranks: 2}, {Host: "[fd00::1]:80", Ranks: 2, FirstRank: 2}, {Host: "10.0.0.3:80"}})
	var got []string
	for _, e := range out {
		got = append(got, e.Name+" "+e.Address()+" "+strconv.Itoa(e.Rank))
	}
	want := []string{"10.0.0.1:80@0 10.0.0.1:80 0", "10.0.0.1:80@1 10.0.0.1:80 1", "[fd00::1]:80@2 [fd00::1]:80 2", "[fd00::1]:80@3 [fd00::1]:80 3",
		"10.0.0.3:80 10.0.0.3:80 0"}
	if diff := cmp.Diff(want, got); diff != "" || len(faults) != 0 {
		t.Errorf("%s faults %v", diff, faults)
	}
}
