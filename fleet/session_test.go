package fleet

import (
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/route"
)

func sessionPool(t *testing.T, n int, profile *route.Profile) *Pool {
	t.Helper()
	p := newPool(t, n)
	p.Apply(PoolConfig{Name: "m", Model: "m", Profile: profile, Endpoints: named(n),
		Session: &SessionConfig{Cost: 50 * time.Millisecond, TTL: 10 * time.Minute}})
	return p
}

func withSession(key uint64) *Request {
	r := short()
	r.Session = key
	return r
}

// A session stays at its endpoint while that is worth it, moves when the endpoint is gone or busy for longer than the
// session is worth, and stays at the new place.
func TestSessionStaysAndMoves(t *testing.T) {
	weights, err := route.Weights(map[string]float64{route.ScorerQueue: 2, route.ScorerSessionAffinity: 3})
	if err != nil {
		t.Fatal(err)
	}
	for _, profile := range []*route.Profile{route.Latency(), weights} {
		p := sessionPool(t, 8, profile)
		homes := make(map[string]bool)
		for key := uint64(1); key <= 40; key++ {
			got := where(t, p, 0, 10, withSession(key))
			if len(got) != 1 {
				t.Errorf("%s: ten requests of session %d went to %v, want one endpoint", profile.Name, key, got)
			}
			for name := range got {
				homes[name] = true
			}
		}
		if len(homes) < 6 {
			t.Errorf("%s: 40 sessions are at %v, want nearly all endpoints", profile.Name, homes)
		}
		first := pick(t, p, 1, withSession(1)).Endpoint.Name
		var rest []Endpoint
		for _, e := range named(8) {
			if e.Name != first {
				rest = append(rest, e)
			}
		}
		p.SetEndpoints(rest)
		second := pick(t, p, 1, withSession(1)).Endpoint.Name
		p.SetEndpoints(named(8))
		observeAll(p, 1)
		if got := where(t, p, 1.5, 10, withSession(1)); got[second] != 10 {
			t.Errorf("%s: %s is back, session 1 had moved to %s, and went to %v", profile.Name, first, second, got)
		}
	}
	p := sessionPool(t, 2, route.Latency())
	home := pick(t, p, 0, withSession(7)).Endpoint.Name
	for range 20 {
		at(t, p, .1, home, *prompt(3, 40_000)) // a second of prefill each
	}
	if got := pick(t, p, .2, withSession(7)); got.Endpoint.Name == home {
		t.Error("a session waits 20 s for the endpoint that it would be 50 ms better off at")
	}
}

// Sessions are forgotten after a while, and are never more than so many.
func TestSessionsAreBounded(t *testing.T) {
	var s sessions
	for key := uint64(1); key <= 3*maxSessions; key++ {
		s.went(key, "e", float64(key)/1e6, 60)
	}
	if len(s.by) != maxSessions || s.order.Len() != maxSessions {
		t.Errorf("got %d and %d sessions, want %d", len(s.by), s.order.Len(), maxSessions)
	}
	if s.home(1, 1, 60) != "" || s.home(3*maxSessions, 1, 60) != "e" {
		t.Error("the latest is forgotten, or the first is not")
	}
	if s.home(3*maxSessions, 61, 60) != "" {
		t.Error("a session is remembered for longer than its time")
	}
	s.went(1, "e", 100, 60)
	if len(s.by) != 1 {
		t.Errorf("got %d sessions after a minute without any, want the new one", len(s.by))
	}
	p := newPool(t, 4) // without a policy sessions are nothing
	where(t, p, 0, 10, withSession(1))
	if p.sessions.by != nil {
		t.Error("a pool without a policy remembers sessions")
	}
}
