package sim

import (
	"slices"
	"testing"
	"time"
)

// flooded adds prompts that nobody shares at a moment: so many seconds of work for every engine, computed alone.
func flooded(requests []Request, engines []EngineConfig, at time.Duration, seconds float64) []Request {
	const tokens = 4000
	out := slices.Clone(requests)
	first := slices.IndexFunc(out, func(r Request) bool { return r.Follows < 0 && r.At > at })
	var flood []Request
	for i, e := range engines {
		each := e.Profile.StepMS(tokens, tokens*tokens/2, 0, 0) / 1000
		for k := range int(seconds / each) {
			id := mix(uint64(i)<<32 + uint64(k) + 1e9)
			flood = append(flood, Request{At: at, Follows: -1, Prompt: []Segment{{id, tokens}}, Reply: mix(id), Output: 20})
		}
	}
	for i := range out {
		if out[i].Follows >= first {
			out[i].Follows += len(flood)
		}
	}
	return slices.Insert(out, first, flood...)
}

// From empty caches and 5 s of backlog at every engine, at a load that the fleet can carry, the gateway is back to what
// it was within 10 s: what arrives after that waits no longer than had nothing happened.
func TestRecoversFromLostCaches(t *testing.T) {
	rows, err := SelectRows([]string{"A5", "A7", "B1", "B3", "B4", "B5"})
	if err != nil {
		t.Fatal(err)
	}
	const at = 60 * time.Second
	for _, row := range rows {
		o := Options{Engines: row.Engines, Labels: true, Requests: row.Requests(1, 100*time.Second), Policy: Latency(),
			Wire: 2 * time.Millisecond, Warm: at + 10*time.Second, Until: at + 40*time.Second, End: 160 * time.Second, Seed: 1}
		calm := Run(o)
		o.Requests = flooded(o.Requests, o.Engines, at, 5)
		for i := range o.Engines {
			o.Faults = append(o.Faults, Fault{At: at, Endpoint: i, Kind: Emptied})
		}
		hit := Run(o)
		t.Logf("%s: mean %.4f s, P95 %.4f s, hits %.2f; undisturbed %.4f s, %.4f s, %.2f", row.ID, hit.Mean(), hit.Quantile(.95), hit.HitRate(),
			calm.Mean(), calm.Quantile(.95), calm.HitRate())
		if hit.Mean() > 1.5*calm.Mean() {
			t.Errorf("%s: 10 s later the mean is %.4f s, undisturbed %.4f s", row.ID, hit.Mean(), calm.Mean())
		}
	}
}
