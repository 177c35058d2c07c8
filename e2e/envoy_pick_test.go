//go:build doors && unix

package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/fleet"
)

// The endpoint that the picker names serves, and the picker is told which one did.
func TestEnvoyServesWhereThePickerSays(t *testing.T) {
	eachEnvoy(t, func(t *testing.T, binary string) {
		a, b, c := newEndpoint(t), newEndpoint(t), newEndpoint(t)
		p := newPicker(t, a, b, c).start(t)
		e := startEnvoy(t, binary, p, []*endpointRig{a, b, c})
		for range 3 {
			for _, first := range []*endpointRig{a, b, c} {
				p.choose("m", first, a, b, c)
				status, h, text := e.chat(nil)
				if status != 200 || text != first.address || p.lastServed() != first.address || h.Get("X-Gateway-Destination-Endpoint-Served") != first.address {
					t.Fatalf("got %d from %q, told of %q, with %v, want 200 from %s", status, text, p.lastServed(), h, first.address)
				}
			}
		}
	})
}

// Where an endpoint fails before it answers, each retry goes to the next that the picker named, in that order, whatever
// the failure (R09), and never outside the pool.
func TestEnvoyFallsBackInOrder(t *testing.T) {
	fails := map[string]http.HandlerFunc{
		"reset": func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
	}
	for _, code := range []int{429, 502, 503, 504} {
		fails[fmt.Sprint(code)] = func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
	}
	eachEnvoy(t, func(t *testing.T, binary string) {
		a, b, c, d, stranger := newEndpoint(t), newEndpoint(t), newEndpoint(t), newEndpoint(t), newEndpoint(t)
		gone := dead(t)
		members := []*endpointRig{a, b, c, d, gone}
		p := newPicker(t, members...).start(t)
		e := startEnvoy(t, binary, p, members)
		body := strings.Repeat("0123456789abcdef", 1<<17) // 2 MiB: over the limit of a connection's buffer (B05)
		for what, fail := range fails {
			a.do(fail)
			b.do(fail)
			p.choose("m", gone, a, stranger, b, d, c)
			was := len(d.requests())
			header := http.Header{"X-Gateway-Foo": {"1"}, "X-Kept": {"1"}}
			status, _, text := fetch(http.MethodPost, e.url+"/v1/chat/completions", header, []byte(body))
			if status != 200 || text != d.address || p.lastServed() != d.address {
				t.Errorf("%s: got %d %.80q, told of %q, want 200 from the fourth, %s", what, status, text, p.lastServed(), d.address)
			}
			served := d.requests()[was:]
			if len(served) != 1 {
				t.Fatalf("%s: got %d requests at the endpoint that serves, want 1", what, len(served))
			}
			for _, tried := range []*endpointRig{a, b} {
				last := tried.requests()[len(tried.requests())-1]
				// Every try sees the same (H20), and the body once (B05).
				if last.Body != body || served[0].Body != body {
					t.Errorf("%s: got a body of %d bytes at a try and %d at the last, want %d", what, len(last.Body), len(served[0].Body), len(body))
				}
				for _, r := range []seen{last, served[0]} {
					if r.Header.Get("X-Gateway-Foo") != "" || r.Header.Get("X-Kept") != "1" || r.Header.Get("X-Gateway-Destination-Endpoint") != "" || r.Header.Get("X-Gateway-Model-Name") != "m" {
						t.Errorf("%s: got headers %v at a try, want what was kept, and nothing that was removed", what, r.Header)
					}
				}
			}
		}
		if n := len(stranger.requests()); n > 0 {
			t.Errorf("got %d requests outside the pool, want none", n)
		}
	})
}

// Endpoints that come and go are known without a restart; what runs at one that goes ends whole.
func TestEnvoyHearsOfEndpoints(t *testing.T) {
	eachEnvoy(t, func(t *testing.T, binary string) {
		a, b := newEndpoint(t), newEndpoint(t)
		p := newPicker(t, a).start(t)
		e := startEnvoy(t, binary, p, []*endpointRig{a})
		begun, finish := make(chan bool), make(chan bool)
		var once sync.Once
		a.do(func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w, "begun ")
			w.(http.Flusher).Flush()
			once.Do(func() { close(begun) })
			<-finish
			fmt.Fprint(w, "ended")
		})
		ends := make(chan string, 1)
		go func() {
			status, _, text := e.chat(nil)
			ends <- fmt.Sprint(status, " ", text)
		}()
		<-begun
		p.pools(pool("m", b))
		eventually(t, "the one that has gone to be forgotten", 20*time.Second, func() bool { return !strings.Contains(e.members(), a.address) })
		e.knows(t, b)
		p.choose("m", a, b) // the one that has gone is passed over
		if status, _, text := e.chat(nil); status != 200 || text != b.address {
			t.Errorf("got %d %q, want 200 from the endpoint that came", status, text)
		}
		close(finish)
		if got := <-ends; got != "200 begun ended" {
			t.Errorf("got %q of the request that ran where the endpoint went, want its end", got)
		}
	})
}

// pool is a pool's configuration for the fleet.
func pool(model string, endpoints ...*endpointRig) fleet.PoolConfig {
	return fleet.PoolConfig{Name: model, Model: model, Endpoints: members(endpoints...), StallAfter: time.Second}
}

// Where the picker's list is used up, Envoy chooses by itself, and not an endpoint that makes no progress.
func TestEnvoySparesAStalledEndpoint(t *testing.T) {
	eachEnvoy(t, func(t *testing.T, binary string) {
		a, b := newEndpoint(t), newEndpoint(t)
		p := newPicker(t, a, b).start(t)
		p.pools(pool("m", a, b))
		e := startEnvoy(t, binary, p, []*endpointRig{a, b})
		// The engine answers its scrapes, and computes nothing.
		in := p.fleet.Pools()[0]
		idle := fleet.Reading{Running: 1}
		in.Observe(0, 0, a.address, idle, nil)
		if l, _ := in.Pick(time.Second, &fleet.Request{Model: "m", Subset: []string{a.address}}); l == nil {
			t.Fatal("got no lease, want one at the endpoint that stalls")
		}
		in.Observe(10*time.Second, 10*time.Second, b.address, fleet.Reading{}, nil)
		in.Observe(10*time.Second, 10*time.Second, a.address, idle, nil)
		eventually(t, "Envoy to hear of the stall", 20*time.Second, func() bool {
			return strings.Contains(e.members(), a.address+"::health_flags::/failed_eds_health")
		})
		p.choose("m", dead(t))
		for range 10 {
			if status, _, text := e.chat(nil); status != 200 || text != b.address {
				t.Fatalf("got %d %q, want 200 from the endpoint that works, %s", status, text, b.address)
			}
		}
	})
}

// More requests at once than Envoy's own limits allow all get through.
func TestEnvoyHasNoLimitOfItsOwn(t *testing.T) {
	const n = 1200
	eachEnvoy(t, func(t *testing.T, binary string) {
		a := newEndpoint(t)
		p := newPicker(t, a).start(t)
		e := startEnvoy(t, binary, p, []*endpointRig{a})
		arrived, release := make(chan bool, n), make(chan bool)
		a.do(func(http.ResponseWriter, *http.Request) { arrived <- true; <-release })
		answers := make(chan int, n)
		for i := range n {
			go func() {
				status, _, _ := e.chat(nil)
				answers <- status
			}()
			if i < 50 {
				continue // so many are on their way at a time
			}
			select {
			case <-arrived:
			case status := <-answers:
				close(release)
				t.Fatalf("got an early answer %d, want all %d requests at the endpoint", status, n)
			}
		}
		for range 50 {
			<-arrived
		}
		close(release)
		for range n {
			if status := <-answers; status != 200 {
				t.Fatalf("got %d, want 200", status)
			}
		}
	})
}
