package main

import (
	"context"
	"io"
	"net/http"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-gateway/sluice/fleet"
	"github.com/sluice-gateway/sluice/openai"
	"github.com/sluice-gateway/sluice/scrape"
	"github.com/sluice-gateway/sluice/sim"
)

// picking sends each request where a pool picks, and tells it of the answer: all, or that it has ended.
type picking struct {
	pool   *fleet.Pool
	now    func() time.Duration
	next   http.RoundTripper
	unseen bool
}

func (p *picking) RoundTrip(r *http.Request) (*http.Response, error) {
	lease, _ := p.pool.Pick(p.now(), &fleet.Request{Model: "m", PromptBytes: int(r.ContentLength), Streamed: true, Unseen: p.unseen, Seed: 1})
	r = r.Clone(r.Context())
	r.URL.Host = lease.Endpoint.Address()
	resp, err := p.next.RoundTrip(r)
	if err != nil {
		lease.Done(p.now(), fleet.Outcome{Ending: fleet.Refused})
		return nil, err
	}
	resp.Body = &watched{ReadCloser: resp.Body, p: p, lease: lease, usage: openai.NewUsageReader(true)}
	return resp, nil
}

// watched is a body of which the pool is told.
type watched struct {
	io.ReadCloser
	p     *picking
	lease *fleet.Lease
	usage *openai.UsageReader
}

func (w *watched) Read(b []byte) (int, error) {
	n, err := w.ReadCloser.Read(b)
	if n > 0 && !w.p.unseen {
		w.lease.FirstByte(w.p.now())
		w.lease.Progress(w.p.now())
		_, _ = w.usage.Write(b[:n])
	}
	return n, err
}

func (w *watched) Close() error {
	u := w.usage.Usage()
	w.lease.Done(w.p.now(), fleet.Outcome{PromptTokens: u.PromptTokens, OutputTokens: u.OutputTokens})
	return w.ReadCloser.Close()
}

// firstTokens plays traffic at simulated servers that are read each 200 ms, and gives the times to first tokens after a
// while, in order.
func firstTokens(t *testing.T, unseen bool) (times []time.Duration) {
	synctest.Test(t, func(t *testing.T) {
		var network sim.Network
		var servers []sim.ServerOptions
		var endpoints []fleet.Endpoint
		addresses := []string{"10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000", "10.0.0.4:8000"}
		for i, a := range addresses {
			profile, err := sim.ProfileNamed([]string{"l8-h100", "l8-a10g"}[i/2])
			if err != nil {
				t.Fatal(err)
			}
			servers = append(servers, sim.ServerOptions{Engine: sim.EngineConfig{Profile: profile}, Model: "m"})
			endpoints = append(endpoints, fleet.Endpoint{Name: a, Host: a}) // no label says which is which
		}
		farm, err := sim.StartFarm(network.Listen, addresses, servers...)
		if err != nil {
			t.Fatal(err)
		}
		defer farm.Close()
		start := time.Now()
		now := func() time.Duration { return time.Since(start) }
		var f fleet.Fleet
		f.Apply([]fleet.PoolConfig{{Name: "m", Model: "m", Endpoints: endpoints}}, "")
		scraper, err := scrape.New(&f, scrape.Options{Interval: 200 * time.Millisecond, Now: now, DialContext: network.DialContext})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { _ = scraper.Run(ctx) })
		defer running.Wait()
		defer cancel()
		transport := &http.Transport{DialContext: network.DialContext, MaxIdleConnsPerHost: 100}
		defer transport.CloseIdleConnections()
		const length, warm = 40 * time.Second, 15 * time.Second
		mix := sim.Mix{Rate: sim.Steady(15), Prompt: sim.Length{Mean: 600, Sigma: .8}, Output: sim.Length{Mean: 60, Sigma: .8}}
		requests := mix.Generate(1, length)
		var mu sync.Mutex
		player := sim.Player{URL: "http://gateway", Model: "m", Client: &http.Client{Transport: &picking{f.Pools()[0], now, transport, unseen}},
			Sent: func(int) {}, First: func(int) {}, Tokens: func(int) {},
			Ended: func(x sim.Played) {
				mu.Lock()
				defer mu.Unlock()
				if x.Err != nil {
					t.Errorf("request %d: %v", x.Index, x.Err)
				}
				if requests[x.Index].At > warm {
					times = append(times, x.TTFT)
				}
			}}
		time.Sleep(time.Second) // the first readings
		player.Play(ctx, time.Now(), requests)
	})
	slices.Sort(times)
	return times
}

// With real servers' metrics, read each 200 ms, a gateway that sees no answers decides nearly as well as one that does.
func TestUnseenServers(t *testing.T) {
	seen, unseen := firstTokens(t, false), firstTokens(t, true)
	mean := func(times []time.Duration) (sum time.Duration) {
		for _, x := range times {
			sum += x
		}
		return sum / time.Duration(len(times))
	}
	p95 := func(times []time.Duration) time.Duration { return times[len(times)*95/100] }
	t.Logf("means %v and %v, P95 %v and %v", mean(seen), mean(unseen), p95(seen), p95(unseen))
	if len(seen) != len(unseen) || mean(unseen) > mean(seen)*5/4 || p95(unseen) > p95(seen)*5/4 {
		t.Errorf("got means of %v seen and %v unseen, P95 of %v and %v, of %d and %d requests; want them near", mean(seen), mean(unseen), p95(seen), p95(unseen), len(seen), len(unseen))
	}
}
