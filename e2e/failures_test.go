//go:build doors && unix

package e2e

import (
	"net"
	"slices"
	"syscall"
	"testing"
	"time"
)

// working returns an engine that has requests in flight.
func working(t *testing.T, engines []*engine) *engine {
	t.Helper()
	var found *engine
	eventually(t, "an engine to be at work", 20*time.Second, func() bool {
		for _, e := range engines {
			if r, ok := e.read(); ok && r["requests_processing"] > 0 {
				found = e
				return true
			}
		}
		return false
	})
	return found
}

// serving returns the engine that the gateway named in an answer.
func serving(t *testing.T, engines []*engine, address string) *engine {
	t.Helper()
	for _, e := range engines {
		if e.address == address {
			return e
		}
	}
	t.Fatalf("got %q as the endpoint that served, want one of %s", address, addresses(engines))
	return nil
}

// begins waits until a request has got a byte of an answer, and returns that event.
func (s *story) begins(within time.Duration) event {
	s.t.Helper()
	first := func(e event) bool { return e.Event == "first" }
	all := s.wait("a request to get a byte", within, func(all []event) bool { return slices.ContainsFunc(all, first) })
	return all[slices.IndexFunc(all, first)]
}

// TestKilledEndpoint kills an engine under load, which also serves a long stream at
// that moment. Only streams that had begun there may end early, and they end as
// they should. S21.
func TestKilledEndpoint(t *testing.T) { throughAll(t, killedEndpoint) }

func killedEndpoint(t *testing.T, d door) {
	engines, g := neighbours(t, d, 4)
	client := startClient(t, "load", g.url, "--requests", "120", "--concurrency", "12", "--tokens", "60")
	client.waitEnds(nil, 30, time.Minute)
	long := startClient(t, "stream", g.url, "--tokens", "6000")
	begun := long.begins(time.Minute)
	client.waitEnds(client.events(), 10, time.Minute)
	victim := serving(t, engines, begun.Endpoint)
	victim.signal(syscall.SIGKILL)

	story := long.finish(time.Minute)
	end := story[len(story)-1]
	if !d.broken(end) {
		t.Errorf("got a long stream that was %q after %d chunks (%s %s %s), want it ended by an error event, or through Envoy by a reset",
			end.Outcome, end.Chunks, end.Error, end.Code, end.Message)
	}
	all := client.finish(2 * time.Minute)
	broken := d.wantNoneLost(t, all)
	got := tally(all)
	t.Logf("killed %s under 120 requests: %+v, and the long stream after %d chunks", victim.name, got, end.Chunks)
	if got.OK+broken != 120 {
		t.Errorf("got %+v, want 120 of which all ended well but the %d streams that had begun at the killed engine", got, broken)
	}
	if broken > 12 {
		t.Errorf("got %d broken streams, want at most the 12 that were in flight", broken)
	}
	g.wantNothingCounted(t)
}

// TestFrozenEndpoint stops an engine as a hung driver would: it holds its
// connections and says nothing. What has no byte yet moves elsewhere; the engine
// gets traffic again when it wakes. Nobody can tell Envoy to move a request that
// waits for an answer's headers, so there it takes a limit on each attempt; one whose
// headers Envoy has sent on stays, and goes on when the engine wakes.
func TestFrozenEndpoint(t *testing.T) { throughBoth(t, frozenEndpoint) }

func frozenEndpoint(t *testing.T, d door) {
	var limit, bound []string
	if d.envoy {
		limit, bound = []string{"--attempt-timeout", "5s"}, []string{"headers"}
	}
	engines, g := neighbours(t, d, 4, limit...)
	client := startClient(t, "load", g.url, "--concurrency", "12", "--tokens", "40", "--timeout", "120")
	client.waitEnds(nil, 30, time.Minute)
	victim := working(t, engines)
	victim.signal(syscall.SIGSTOP)
	before := client.events()

	during := client.waitEnds(before, 60, time.Minute)
	waiting := unanswered(before)
	among := func(open []int) (n int) {
		for _, w := range waiting {
			if slices.Contains(open, w) {
				n++
			}
		}
		return n
	}
	now := client.wait("requests sent before the freeze to get a byte from another engine", time.Minute, func(all []event) bool { return among(unanswered(all, bound...)) == 0 })
	t.Logf("froze %s with %d requests that had no byte, %d of which got no more than headers: %+v before, %+v while frozen", victim.name, len(waiting), among(unanswered(now)), tally(before), tally(during))

	victim.signal(syscall.SIGCONT)
	base := victim.mustRead(t).prompts()
	// What it held when it was stopped is at most 12 prompts of some 30 tokens.
	eventually(t, "the engine to get new requests after it woke", time.Minute, func() bool {
		r, ok := victim.read()
		return ok && r.prompts() > base+20*30
	})
	all := client.finish(time.Minute)
	broken := d.wantNoneLost(t, all)
	t.Logf("woke %s: %+v in the end", victim.name, tally(all))
	if broken > 12 {
		t.Errorf("got %d broken streams, want at most the 12 that were in flight", broken)
	}
	g.wantNothingCounted(t)
}

// TestNoEndpoint kills all engines, so that calls are refused with an error from the
// gateway's table, and starts one again at its old address.
func TestNoEndpoint(t *testing.T) { throughBoth(t, noEndpoint) }

func noEndpoint(t *testing.T, d door) {
	engines, g := neighbours(t, d, 4)
	for _, e := range engines {
		e.signal(syscall.SIGKILL)
		<-e.exited
	}
	all := startClient(t, "load", g.url, "--requests", "6", "--concurrency", "2").finish(time.Minute)
	for _, e := range all {
		switch {
		case e.Event != "end":
		case e.Status == 502 && e.Code == "upstream_error":
		case e.Status == 503 && e.Code == "no_endpoint" && e.RetryAfter != "":
		default:
			t.Errorf("request %d: got %s %d %q with Retry-After %q (%s), want 502 upstream_error, or 503 no_endpoint with Retry-After", e.N, e.Error, e.Status, e.Code, e.RetryAfter, e.Message)
		}
	}
	if got := tally(all); got.Failed != 6 {
		t.Errorf("got %+v, want all 6 refused", got)
	}

	_, port, err := net.SplitHostPort(engines[0].address)
	if err != nil {
		t.Fatal(err)
	}
	startEngines(t, 1, 4, "--alias", chatModel, "--port", port)
	client := startClient(t, "load", g.url, "--concurrency", "1")
	client.waitEnds(nil, 5, time.Minute)
	after := client.finish(time.Minute)
	t.Logf("%d calls were refused and %d answered after an engine came back", tally(after).Failed, tally(after).OK)
}
