package sim

import (
	"testing"
	"time"
)

// watcher compares what the gateway expects to be cached with what the engine finds.
type watcher struct {
	*production
	t                    *testing.T
	exact, close, others int
}

func (w *watcher) first(now time.Duration, f *flight) {
	got, want := f.lease.Cached, f.seq.Cached()
	switch {
	case !f.lease.CachedExact:
		w.others++
	case got-BlockTokens <= want && want < got+prefixBlockTokens(got):
		w.exact, w.close = w.exact+1, w.close+1
	default:
		w.exact++
	}
	w.production.first(now, f)
}

// prefixBlockTokens is how many tokens the prefix block after so many has, and a block of the engine.
func prefixBlockTokens(after int) int {
	return (prefixUnits(after/(unitBlocks*BlockTokens))*unitBlocks + 1) * BlockTokens
}

// What the gateway expects of caches whose events it follows is what the engines find, where prompts come again: 60 prompts
// on caches that hold a third of them. Of a prompt that is being evicted one more block may be gone before the gateway hears of it.
func TestEngineFindsWhatEventsPromised(t *testing.T) {
	var w *watcher
	policy := ExactLatency()
	make := policy.make
	policy.make = func(world *world) gateway {
		w = &watcher{production: make(world).(*production), t: t}
		return w
	}
	var requests []Request
	for i := range 1500 {
		id := uint64(i*i%61 + 1)
		requests = append(requests, Request{At: time.Duration(i) * 40 * time.Millisecond, Follows: -1, Output: 20, Reply: 1000 + uint64(i),
			Prompt: []Segment{{id % 3, 400}, {100 + id, 1500}}})
	}
	p, err := ProfileNamed("l8-h100")
	if err != nil {
		t.Fatal(err)
	}
	Run(Options{Engines: []EngineConfig{{Profile: p, KVTokens: 16000}, {Profile: p, KVTokens: 16000}, {Profile: p, KVTokens: 16000}}, Requests: requests,
		Policy: policy, Seed: 1})
	t.Logf("%d of %d exact predictions were right, %d were estimates", w.close, w.exact, w.others)
	if w.exact < 1200 || float64(w.close) < .97*float64(w.exact) {
		t.Errorf("%d of %d exact predictions were right, %d were estimates", w.close, w.exact, w.others)
	}
}

// The same world gives the same figures when prefixes come from events.
func TestWorldWithEventsRepeats(t *testing.T) {
	run := func() float64 {
		return Run(Options{Engines: engines("q32-h100x2", 3), Requests: Agents(Steady(1)).Generate(3, 20*time.Second), Policy: ExactLatency(), Replicas: 2, Seed: 3}).CachedTokens
	}
	if a, b := run(), run(); a != b || a == 0 {
		t.Errorf("got %v and %v tokens from caches", a, b)
	}
}
