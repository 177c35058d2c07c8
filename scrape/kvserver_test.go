package scrape

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/fleet"
	"github.com/sluice-gateway/sluice/prefix"
	"github.com/sluice-gateway/sluice/sim"
)

// portOf is the port of an address like tcp://127.0.0.1:5557.
func portOf(t *testing.T, address string) int {
	t.Helper()
	_, port, err := net.SplitHostPort(strings.TrimPrefix(address, "tcp://"))
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// A pool knows what a server holds from its events: what it computed before the gateway came, what it computes, what
// it forgets with a restart; and goes back to guessing while there are none.
func TestFollowServer(t *testing.T) {
	farm, err := sim.StartFarm(sim.Listen, nil, sim.ServerOptions{Engine: sim.EngineConfig{Profile: sim.Profiles()[0], KVTokens: 1 << 14}, Model: "m", Seed: 1,
		KVEvents: "tcp://127.0.0.1:0", Replay: "tcp://127.0.0.1:0", KVTopic: "kv@m", Speed: 20})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(farm.Close)
	server := farm.Members[0]
	send := func(text string) {
		resp, err := http.Post("http://"+server.Address+"/v1/completions", "application/json",
			strings.NewReader(fmt.Sprintf(`{"model":"m","max_tokens":1,"prompt":%q}`, strings.Repeat(text, 60))))
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("got %v, %v", resp, err)
		}
		resp.Body.Close()
	}
	send("before ")
	events, replay := server.Server.KVEvents()
	e := ep(server.Address)
	e.KVEvents = fleet.KVEvents{Port: portOf(t, events), ReplayPort: portOf(t, replay)}
	f := new(fleet.Fleet)
	f.Apply([]fleet.PoolConfig{{Name: "p", Model: "m", Endpoints: []fleet.Endpoint{e}}}, "")
	s, err := New(f, Options{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	var at fleet.Status
	var how Followed
	until := func(what string, ok func() bool) {
		t.Helper()
		for end := time.Now().Add(30 * time.Second); ; runtime.Gosched() {
			at = f.Pools()[0].Status(s.opts.Now())[0]
			how, _ = s.Followed("p", e.Name)
			if ok() {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("%s: got %d tokens, followed %+v", what, at.HeldTokens, how)
			}
		}
	}
	until("what was computed before", func() bool { return how.Following == prefix.FollowedFromEmpty && at.HeldTokens > 0 })
	before := at.HeldTokens
	send("after ")
	until("what is computed", func() bool { return at.HeldTokens > before && how.Events > 1 && how.PerSecond > 0 })
	server.Server.Crash()
	until("without events", func() bool { return how.Following == prefix.NotFollowed && at.HeldTokens == 0 })
	if err := server.Server.Restart(0); err != nil {
		t.Fatal(err)
	}
	send("again ")
	until("after a restart", func() bool {
		return how.Following != prefix.NotFollowed && at.HeldTokens > 0
	})
}
