package scrape

import (
	"context"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/fleet"
	"github.com/sluice-gateway/sluice/prefix"
)

// D08: of endpoints that are said to publish at one port, one is followed, in whatever pools it is, and the others are
// guessed until each has a port of its own.
func TestSharedPortOfEventsIsFollowedOnce(t *testing.T) {
	p, other := publish(t, "127.0.0.1:0", "127.0.0.1:0"), publish(t, "127.0.0.1:0", "127.0.0.1:0")
	p.say(1, true)
	other.say(1, true)
	a, b, c := ep("127.0.0.1:1"), ep("127.0.0.1:2"), ep("127.0.0.1:3")
	at := fleet.KVEvents{Port: portOf(t, p.address), ReplayPort: portOf(t, p.replay)}
	own := fleet.KVEvents{Port: portOf(t, other.address), ReplayPort: portOf(t, other.replay)}
	a.KVEvents, b.KVEvents = at, at
	c.KVEvents = fleet.KVEvents{Port: own.Port, ReplayPort: at.ReplayPort}
	f := new(fleet.Fleet)
	apply := func(second ...fleet.Endpoint) {
		f.Apply([]fleet.PoolConfig{{Name: "p", Model: "m", Endpoints: []fleet.Endpoint{a, b, c}}, {Name: "q", Model: "n", Endpoints: second}}, "")
	}
	apply(a)
	s, err := New(f, Options{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	until := func(pool, endpoint string, want prefix.Following, why string) {
		t.Helper()
		for end := time.Now().Add(30 * time.Second); ; runtime.Gosched() {
			got, ok := s.Followed(pool, endpoint)
			if ok && got.Following == want && strings.Contains(got.Why, why) {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("%s in %s: got %+v, want %v and %q", endpoint, pool, got, want, why)
			}
		}
	}
	until("p", a.Name, prefix.FollowedFromEmpty, "")
	until("q", a.Name, prefix.FollowedFromEmpty, "")
	until("p", b.Name, prefix.NotFollowed, "is where the KV events of 127.0.0.1:1 come from")
	until("p", c.Name, prefix.NotFollowed, "is where the replay of KV events of 127.0.0.1:1 come from")
	b.KVEvents = own
	apply()
	until("p", b.Name, prefix.FollowedFromEmpty, "")
	until("p", c.Name, prefix.NotFollowed, "is where the KV events of 127.0.0.1:2 come from")
	until("p", a.Name, prefix.FollowedFromEmpty, "")
}
