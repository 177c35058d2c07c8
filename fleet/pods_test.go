package fleet

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gateway/sluice/route"
)

// Another pod at the address of one that is gone is another endpoint: nothing that was known of the first holds of it, and
// what the first still serves ends as it would have.
func TestAnotherPodAtTheSameAddress(t *testing.T) {
	at := func(name, uid string) []Endpoint {
		return []Endpoint{{Name: "10.0.0.1:8000", Pod: name, UID: uid}, {Name: "10.0.0.2:8000", Pod: "stays", UID: "s"}}
	}
	p := poolOf(at("llama-0", "a"))
	p.ObserveModels("10.0.0.1:8000", "vllm", []Model{{ID: "m"}})
	p.ObserveModels("10.0.0.2:8000", "vllm", []Model{{ID: "m"}})
	var leases []*Lease
	for i := range 8 {
		leases = append(leases, pick(t, p, 1, prompt(i+1, 4096)))
	}
	of := func(uid string) (s Status) {
		for _, s := range p.Status(sec(2)) {
			if s.Endpoint.UID == uid {
				return s
			}
		}
		t.Fatalf("no endpoint has the UID %s", uid)
		return s
	}
	kept := of("s")
	if of("a").InFlight == 0 || of("a").PrefixUnits == 0 || kept.InFlight == 0 {
		t.Fatal("the requests did not spread")
	}
	if pods := p.Snapshot().Pods; !slices.Equal(pods, []string{"llama-0", "stays"}) {
		t.Errorf("got %q, want what explanations call the endpoints", pods)
	}
	before := p.changes.Load()
	p.SetEndpoints(at("llama-0", "b")) // a StatefulSet's pod keeps its name
	audit(t, p)
	if p.changes.Load() == before {
		t.Error("a data plane is not told of it")
	}
	if s := of("b"); s.Asked || s.Metered || s.InFlight != 0 || s.PrefixUnits != 0 || s.Models != nil || s.Age == s.Age {
		t.Errorf("got %+v, want one of which nothing is known", s)
	}
	if diff := cmp.Diff(kept.PrefixUnits, of("s").PrefixUnits); diff != "" || of("s").InFlight != kept.InFlight {
		t.Errorf("the endpoint that stayed lost what was known of it: %s", diff)
	}
	for _, l := range leases {
		told := false
		select {
		case <-l.Lost():
			told = true
		default:
		}
		if told != (l.Endpoint.UID == "a") {
			t.Errorf("a request without a byte at %s was told to move: %t", l.Endpoint.UID, told)
		}
		l.Done(sec(3), Outcome{})
	}
	audit(t, p)
	for _, s := range p.Status(sec(3)) {
		if s.InFlight != 0 {
			t.Errorf("%s has %d requests in flight after all have ended", s.Endpoint.UID, s.InFlight)
		}
	}
}

// A pod that is ending gets nothing more, and what runs there goes on; people are told why.
func TestAPodThatIsEnding(t *testing.T) {
	eps := []Endpoint{{Name: "10.0.0.1:8000", Pod: "a", UID: "a"}, {Name: "10.0.0.2:8000", Pod: "b", UID: "b"}}
	p := poolOf(eps)
	running := pick(t, p, 1, short())
	running.FirstByte(sec(1))
	for i := range eps {
		eps[i].Drain = eps[i].Name == running.Endpoint.Name
	}
	p.SetEndpoints(eps)
	for range 64 {
		if l := pick(t, p, 2, short()); l.Endpoint.Name == running.Endpoint.Name {
			t.Fatal("a pod that is ending was picked")
		}
	}
	for _, s := range p.Status(sec(2)) {
		if s.Endpoint.Drain && (s.State != "draining" || s.Why != "its pod is ending, or is to drain" || s.InFlight != 1) {
			t.Errorf("got %q, %q with %d in flight, want that it drains since its pod is ending, with one request", s.State, s.Why, s.InFlight)
		}
	}
	if got := len(p.Addresses(nil)); got != 2 {
		t.Errorf("a data plane is told of %d addresses, want both: one has a request", got)
	}
}

// What is asked of an endpoint is known apart from what it said.
func TestStatusSaysWhatWasAsked(t *testing.T) {
	p := NewPool("m")
	p.Apply(PoolConfig{Name: "m", Model: "m", Endpoints: named(1)})
	f := func(what string, asked, metered bool, models []string) {
		t.Helper()
		s := p.Status(sec(1))[0]
		if s.Asked != asked || s.Metered != metered || !cmp.Equal(s.Models, models) {
			t.Errorf("%s: got asked %t, metered %t, models %#v; want %t, %t, %#v", what, s.Asked, s.Metered, s.Models, asked, metered, models)
		}
	}
	f("new", false, false, nil)
	p.ObserveFailure("e0:8000", Unreachable, "refused")
	f("unreachable", true, false, nil)
	p.ObserveFailure("e0:8000", NoMetrics, "404")
	f("without metrics", true, false, nil)
	p.Observe(sec(1), sec(1), "e0:8000", idle(1), []string{"kvUse"})
	f("read", true, true, nil)
	p.ObserveModels("e0:8000", "vllm", nil)
	f("lists nothing", true, true, []string{})
	p.ObserveModels("e0:8000", "vllm", []Model{{ID: "m"}})
	f("lists one", true, true, []string{"m"})
	p.ObserveFailure("e0:8000", ScrapeFailed, "slow")
	f("late", true, true, []string{"m"})
	p.ObserveFailure("e0:8000", Unreachable, "refused")
	f("gone", true, false, []string{"m"})
}

// BenchmarkSetEndpoints is what it costs that one among so many comes, and one goes.
func BenchmarkSetEndpoints(b *testing.B) {
	for _, n := range []int{100, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			var eps []Endpoint
			for i := range n + 1 {
				eps = append(eps, Endpoint{Name: fmt.Sprintf("10.0.%d.%d:8000", i/250, i%250), UID: fmt.Sprint(i), Labels: map[string]string{"app": "llama", LabelGPU: "H100"}})
			}
			p := NewPool("m")
			p.Apply(PoolConfig{Name: "m", Model: "m", Profile: route.Latency(), Endpoints: eps[:n]})
			for _, e := range eps {
				p.Observe(sec(1), sec(1), e.Name, idle(1), nil)
				p.ObserveModels(e.Name, "vllm", []Model{{ID: "m"}})
			}
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				p.SetEndpoints(eps[i%2 : n+i%2])
				i++
			}
		})
	}
}
