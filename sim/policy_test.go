package sim

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// The formulas of the policies that other projects published, with numbers worked out by hand.
func TestPublishedFormulas(t *testing.T) {
	about := func(what string, got, want float64) {
		t.Helper()
		if !(math.Abs(got-want) <= 1e-6*max(1, math.Abs(want))) {
			t.Errorf("%s: got %v, want %v", what, got, want)
		}
	}
	// The example in Dynamo's design document: 10 blocks, of which 2, 5 and 8 are cached, beside 10, 5 and 9 active
	// ones, cost 18, 10 and 11.
	about("dynamo 1", dynamoCost(0, 160, 32, 10), 18)
	about("dynamo 2", dynamoCost(0, 160, 80, 5), 10)
	about("dynamo 3", dynamoCost(0, 160, 128, 9), 11)
	about("dynamo, 16 tokens under way", dynamoCost(16, 96, 96, 5), 6)

	about("LMetric", lmetricCost(1000, 500, 3), 6000)
	about("LMetric of an empty endpoint", lmetricCost(0, 2000, 0), 2000)
	about("least prefill work", leastPrefillCost(700, 300, 0), 1000)
	if !(leastPrefillCost(700, 300, 1) < leastPrefillCost(700, 300, 2)) {
		t.Error("least prefill work: of equals the fewer requests should cost less")
	}

	// llm-d: of queues 0, 4 and 10 the second scores .6; with a KV use of .5 and a quarter matched 2·.6 + 2·.5 + 3·.25.
	about("llm-d", llmdScore(4, 0, 10, .5, .25), 2.95)
	about("llm-d, equal queues", llmdScore(7, 7, 7, 1, 0), 2)

	// KubeAI: 11 requests at 4 endpoints, with this one 3 on average, times 1.25 is 3.75.
	for load, want := range map[int]bool{2: true, 3: false} {
		if got := ringRoom(load, 11, 4); got != want {
			t.Errorf("bounded hashing, load %d: got room %v, want %v", load, got, want)
		}
	}
	// SMG: both 100−30 > 64 and 100 > 1.5·30; not 90−30; not 300 > 1.5·220.
	smg := smgThresholds{64, 1.5, .3}
	for loads, want := range map[[2]int]bool{{100, 30}: true, {90, 30}: false, {300, 220}: false} {
		if got := smg.imbalanced(loads[0], loads[1]); got != want {
			t.Errorf("SMG, loads %v: got imbalanced %v, want %v", loads, got, want)
		}
	}
	// AIBrix: 4, 0 and 2 are 2 on average with a variance of 8/3.
	about("AIBrix", aibrixLimit([]int{4, 0, 2}), 2+2*1.6329931619)
	// Prequal: 100 endpoints give (1+1) / (.84·3 − 1).
	about("Prequal, reuse", prequalReuse(100), 2/1.52)
	about("Prequal, few endpoints", prequalReuse(8), 1)
	about("Prequal, quantile", prequalQuantile(), .8408964)
	// Preble: 1000 tokens at .02 ms and half a million pairs at 1 ms a million; 100 tokens of output after 2000 of
	// context at .01 and 2·.04 ms.
	p := Profile{PB: .02, PC: 1, DB: .01, DC: .04}
	about("Preble, prefill", prefillSeconds(&p, 1000, 0), .0205)
	about("Preble, decode", decodeSeconds(&p, 100, 2000), .009)
}

// Prequal: a cold endpoint with the least latency; among hot ones the fewest in flight.
func TestHotCold(t *testing.T) {
	anyone := func(int) bool { return true }
	pool := []probe{{endpoint: 0, rif: 9, latency: .1}, {endpoint: 1, rif: 3, latency: .5}, {endpoint: 2, rif: 2, latency: .7}}
	for threshold, want := range map[float64]int{10: 0, 5: 1, 1: 2} {
		if got := hotCold(pool, threshold, anyone); got != want {
			t.Errorf("threshold %v: got %d, want %d", threshold, got, want)
		}
	}
	if got := hotCold(pool, 10, func(i int) bool { return i == 2 }); got != 2 {
		t.Errorf("only the last allowed: got %d", got)
	}
	if got := hotCold(nil, 1, anyone); got != -1 {
		t.Errorf("no probes: got %d, want -1", got)
	}
	var h prequalHistory
	for i := range 70 { // the oldest are overwritten
		h.add(float64(i), float64(i)/10)
	}
	if got := h.at(8); got != 1.4 { // of 6 to 21, the sixteen nearest to 8
		t.Errorf("latency at 8 in flight: got %v, want 1.4", got)
	}
}

// rig is a policy over idle engines, to send requests by hand.
type rig struct {
	w *world
	g gateway
}

func newRig(p Policy, n int) *rig {
	w := &world{o: &Options{}, rng: rand.New(rand.NewPCG(1, 2))}
	for _, cfg := range engines("l8-h100", n) {
		w.engines = append(w.engines, NewEngine(cfg))
	}
	return &rig{w, p.make(w)}
}

// send lets the policy choose for a prompt.
func (r *rig) send(prompt ...Segment) *flight {
	f := &flight{request: &Request{Prompt: prompt, Output: 10, Follows: -1}}
	f.hashes = f.request.appendHashes(nil)
	f.seq = Seq{Prompt: f.request.PromptTokens(), Output: 10}
	f.endpoint = r.g.pick(r.w.now, f)
	return f
}

// Policies that look for prefixes send a prompt to where its beginning went, as long as the rest of their rule lets
// them.
func TestPoliciesFollowPrefixes(t *testing.T) {
	f := func(p Policy, ends bool) {
		t.Helper()
		r := newRig(p, 4)
		for group := range 3 {
			shared, at := Segment{uint64(group + 1), 4000}, [2]int{}
			for i := range at {
				f := r.send(shared, Segment{mix(uint64(10*group + i + 10)), 100})
				r.g.first(r.w.now, f)
				if ends {
					r.g.done(r.w.now, f, endFinished)
				}
				at[i] = f.endpoint
			}
			if at[0] != at[1] {
				t.Errorf("%s, prefix %d: got endpoint %d, then %d", p.Name, group, at[0], at[1])
			}
		}
	}
	for _, p := range []Policy{boundedHashing(), llmd(), smg(), smgLibrary(), aibrix(), preble(), Latency(), Weights()} {
		f(p, true)
	}
	f(leastPrefill(), false) // the engines are idle: what they hold is what is on its way
}

// A crowd at one endpoint goes elsewhere by each rule's own threshold: AIBrix's 16, Preble's twice the load.
func TestPoliciesLeaveCrowds(t *testing.T) {
	f := func(p Policy, want int) {
		t.Helper()
		r := newRig(p, 2)
		first := r.send(Segment{1, 2000})
		n := 1
		for ; n < 200 && r.send(Segment{1, 2000}).endpoint == first.endpoint; n++ {
		}
		if n != want {
			t.Errorf("%s: got %d requests at one endpoint of two, want %d", p.Name, n, want)
		}
	}
	f(aibrix(), 17)     // 17 − 0 is more than 16
	f(smg(), 65)        // 65 − 0 is more than 64
	f(smgLibrary(), 33) // 33 − 0 is more than 32
	f(preble(), 2)      // prefill 37.6 ms, decode 29.8 ms each: 97 ms is more than twice 37.6
}

// What a ledger counts comes back to nothing, whatever becomes of requests.
func TestLedger(t *testing.T) {
	r := newRig(lmetric(), 1)
	l := &r.g.(*costing).ledger
	a := r.send(Segment{1, 160}, Segment{2, 10})
	b := r.send(Segment{1, 160}, Segment{3, 20})
	if got := fmt.Sprint(l.open, l.pending, len(l.active[0])); got != "[2] [190] 11" { // 170 and, of 180, 20 not on their way; 10 blocks shared and one more
		t.Errorf("got %s", got)
	}
	r.g.first(0, a)
	r.g.done(0, b, endBroken)
	if got := fmt.Sprint(l.open, l.pending, len(l.active[0])); got != "[1] [0] 10" {
		t.Errorf("one answered, one broken: got %s", got)
	}
	r.g.done(0, a, endFinished)
	if got := fmt.Sprint(l.open, l.pending, len(l.active[0])); got != "[0] [0] 0" {
		t.Errorf("at the end: got %s", got)
	}
}

// A guess forgets what was not used for longest, and of a prompt its end first.
func TestGuess(t *testing.T) {
	g := newGuess(32, 128) // 4 blocks of 2
	a, b := []uint64{1, 2, 3, 4, 5, 6, 7}, []uint64{1, 2, 13, 14}
	g.add(a)
	if got := g.match(a); got != 96 {
		t.Errorf("got %d tokens, want 96: 3 whole blocks", got)
	}
	if got := g.match(b); got != 32 {
		t.Errorf("got %d tokens of another with the same beginning, want 32", got)
	}
	g.add([]uint64{21, 22, 23, 24})
	if got, other := g.match(a), g.match([]uint64{21, 22, 23, 24}); got != 64 || other != 64 {
		t.Errorf("one block too many: got %d and %d tokens, want 64 and 64", got, other)
	}
	for range 2000 {
		g.add(a)
	}
	if len(g.queue) > 4*len(g.at)+1024 {
		t.Errorf("got a queue of %d for %d blocks", len(g.queue), len(g.at))
	}
}

// Preble's load is of the last three minutes; what would be evicted costs by how often it was asked for.
func TestPrebleWindow(t *testing.T) {
	var l prebleLoad
	l.add(0, 1)
	l.add(time.Minute, 2)
	l.expire(prebleWindow + time.Second)
	if l.seconds != 2 || len(l.sent) != 1 {
		t.Errorf("got %+v, want the second alone", l)
	}
	r := newRig(preble(), 1)
	p := r.g.(*prebleGateway)
	p.holds[0].room = 20
	r.send(Segment{1, 160}) // 10 blocks
	r.send(Segment{1, 160})
	if got := p.eviction(0, 160); got != 0 {
		t.Errorf("room for 10 blocks more: got %v", got)
	}
	// 2 of 10 blocks have to go, each used by both of 2 requests: 32 tokens.
	if got, want := p.eviction(0, 192), 32*p.engines[0].cfg.Profile.PB/1e3; math.Abs(got-want) > 1e-9 {
		t.Errorf("2 blocks too many: got %v s, want %v", got, want)
	}
}

func TestSelectPolicies(t *testing.T) {
	all, err := SelectPolicies([]string{"all"})
	if err != nil || len(all) != len(Policies()) {
		t.Fatalf("got %d, %v", len(all), err)
	}
	for _, p := range all {
		one, err := SelectPolicies([]string{p.Short})
		if err != nil || len(one) != 1 || one[0].Name != p.Name {
			t.Errorf("%s: got %v, %v", p.Short, one, err)
		}
	}
}
