package sim

import (
	"testing"
	"time"
)

// picked is a gateway whose choices are kept.
type picked struct {
	gateway
	picks *[]choice
}

type choice struct {
	at       time.Duration
	endpoint int
}

func (r picked) pick(now time.Duration, f *flight) int {
	i := r.gateway.pick(now, f)
	*r.picks = append(*r.picks, choice{now, i})
	return i
}

// recording is a policy whose choices are appended to picks.
func recording(p Policy, picks *[]choice) Policy {
	return Policy{Name: p.Name, make: func(w *world) gateway { return picked{p.make(w), picks} }}
}

// shares counts the choices between two times by endpoint, as shares.
func shares(picks []choice, from, to time.Duration, n int) []float64 {
	out, all := make([]float64, n), 0
	for _, c := range picks {
		if c.at >= from && c.at < to && c.endpoint >= 0 {
			out[c.endpoint]++
			all++
		}
	}
	for i := range out {
		out[i] /= float64(max(all, 1))
	}
	return out
}

// E44: an endpoint that joins a busy fleet with an empty queue and a cold cache is not stampeded, the others see no surge, and
// nobody waits longer for it. Counting at the pick is enough of a slow start: there is no ramp.
func TestEndpointJoins(t *testing.T) {
	const join = 15 * time.Second
	for name, mix := range map[string]Mix{
		"unlike prompts": {Rate: Steady(300), Prompt: Length{300, .8}, Output: Length{60, .8}},
		"prefixes":       {Rate: Steady(300), Prompt: Length{100, .8}, Output: Length{60, .8}, Prefixes: 40, PrefixTokens: 1500},
	} {
		requests := mix.Generate(1, 19*time.Second)
		for _, p := range []Policy{Latency(), Weights()} {
			var picks []choice
			after := func(from, to time.Duration) *Result {
				picks = nil
				return Run(Options{Engines: engines("l8-h100", 8), Requests: requests, Policy: recording(p, &picks), Seed: 1, Warm: from, Until: to, End: time.Minute,
					Faults: []Fault{{0, 7, Crashed, join.Seconds()}}})
			}
			before, then := after(10*time.Second, join), after(join, join+3*time.Second)
			if then.Failed > 0 || then.Quantile(.99) > 1.3*before.Quantile(.99)+.02 {
				t.Errorf("%s, %s: P99 %.3f s before it joins, %.3f s in the 3 s after, %d failed", name, p.Name, before.Quantile(.99), then.Quantile(.99), then.Failed)
			}
			old := shares(picks, 10*time.Second, join, 8)
			for at := join; at < join+2*time.Second; at += 200 * time.Millisecond {
				now := shares(picks, at, at+200*time.Millisecond, 8)
				if now[7] > .5 {
					t.Errorf("%s, %s: %v after it has joined it gets %.0f %% of the requests", name, p.Name, at-join, 100*now[7])
				}
			}
			now := shares(picks, join, join+time.Second, 8)
			t.Logf("%s, %s: P99 %.3f, then %.3f; shares before %.2f, in the first second %.2f", name, p.Name, before.Quantile(.99), then.Quantile(.99), old, now)
			for i := range 7 {
				if now[i] > 1.4*old[i]+.03 {
					t.Errorf("%s, %s: endpoint %d had %.2f of the requests and gets %.2f when another joins", name, p.Name, i, old[i], now[i])
				}
			}
		}
	}
}

// E13: an endpoint that answers every request with an error at once, or every other, loses few of them.
func TestFailingEndpointLosesFew(t *testing.T) {
	requests := Mix{Rate: Steady(60), Prompt: Length{600, .8}, Output: Length{100, .8}}.Generate(1, 40*time.Second)
	for _, share := range []float64{1, .5} {
		run := func(p Policy) int {
			return Run(Options{Engines: engines("l8-h100", 4), Requests: requests, Policy: p, Seed: 1, End: time.Minute,
				Faults: []Fault{{10 * time.Second, 2, Failing, share}}}).Failed
		}
		latency, weights, least := run(Latency()), run(Weights()), run(LeastRequests())
		t.Logf("of 1800 requests while one of 4 fails %.0f %%: latency loses %d, weights %d, least requests %d", 100*share, latency, weights, least)
		if latency > 40 || share == 1 && weights > 40 {
			t.Errorf("one of 4 fails %.0f %% of its requests: latency loses %d, weights %d", 100*share, latency, weights)
		}
		if least < 200 {
			t.Errorf("least requests loses %d only: the endpoint is no sink", least)
		}
	}
}
