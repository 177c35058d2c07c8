package fleet

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
)

// teachPrefill sends n streamed requests of 1000 tokens, one after the other, to the endpoint, which takes ms
// milliseconds a token.
func teachPrefill(t *testing.T, p *Pool, name string, now float64, n int, ms float64) float64 {
	t.Helper()
	var others []string
	for _, e := range p.Endpoints() {
		if e.Name != name {
			others = append(others, e.Name)
		}
	}
	for range n {
		l := pick(t, p, now, &Request{Model: "m", PromptBytes: 4000, UnitBytes: unitBytes, Streamed: true, Tried: others})
		now += ms // 1000 tokens
		l.FirstByte(sec(now))
		l.Done(sec(now), Outcome{})
	}
	return now
}

// kinds lists the names of each kind's endpoints.
func kinds(p *Pool) map[string][]string {
	got := make(map[string][]string)
	for _, s := range p.Status(0) {
		got[s.Kind] = append(got[s.Kind], s.Endpoint.Name)
	}
	return got
}

// Two kinds of GPU that nobody labelled are told apart by their speed, and each kind's rate is found, in every order of
// arrival and with noise of ±30 % on every request.
func TestKindsAreToldApartBySpeed(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 3))
		p := newPool(t, 8)
		now := 0.
		for range 60 {
			for _, i := range r.Perm(8) {
				ms := []float64{.02, .33}[i/4] * (.7 + .6*r.Float64())
				now = teachPrefill(t, p, fmt.Sprintf("e%d:8000", i), now, 1, ms)
				observeAll(p, now)
			}
		}
		if got := kinds(p); len(got) != 2 {
			t.Fatalf("seed %d: got kinds %v, want two", seed, got)
		}
		for i, s := range p.Status(sec(now)) {
			if want := []float64{.02, .33}[i/4]; math.Abs(float64(s.Rate.PromptTokenMS())/want-1) > .15 {
				t.Errorf("seed %d: %s (%s): got %v ms a token, want %v", seed, s.Endpoint.Name, s.Kind, s.Rate.PromptTokenMS(), want)
			}
		}
		audit(t, p)
	}
}

// Endpoints of one kind stay one kind, whatever the luck of the mix: rates that drift apart lose affinity.
func TestOneKindStaysTogether(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 4))
		p := newPool(t, 8)
		now := 0.
		for i := range 400 {
			// The first endpoint gets most of the traffic, the last next to none.
			now = teachPrefill(t, p, fmt.Sprintf("e%d:8000", min(int(r.ExpFloat64()*2), 7)), now, 1, .1*(.7+.6*r.Float64()))
			observeAll(p, now)
			if got := kinds(p); got["speed 2"] != nil {
				t.Fatalf("seed %d, after %d requests: got kinds %v, want one", seed, i, got)
			}
		}
		rates := make(map[float32]bool)
		for _, s := range p.Status(sec(now)) {
			rates[s.Rate.PromptTokenMS()] = true
		}
		if len(rates) != 1 {
			t.Errorf("seed %d: got rates %v, want one for all", seed, rates)
		}
	}
}

// However many kinds there are, no two share a name, for then they would share their rate.
func TestManyKindsHaveManyNames(t *testing.T) {
	p := newPool(t, 30)
	for i, ep := range p.rows {
		ep.speed.prefillTokens, ep.speed.prefillExpected, ep.speed.prefillSeconds = splitEvidence, 1, math.Pow(2, float64(i))
	}
	p.regroup()
	if got := kinds(p); len(got) != 30 {
		t.Errorf("got kinds %v, want 30", got)
	}
}

// Labels win over measurement: what is labelled alike shares its rate, what is labelled apart does not, and what is not
// labelled joins none of them. Engines are kinds of their own.
func TestLabelsWin(t *testing.T) {
	for _, unlabelled := range []int{0, 4} { // in the first row and in the last
		p := NewPool("m")
		eps := named(5)
		for i := range eps {
			if i != unlabelled {
				eps[i].Labels = map[string]string{LabelNvidiaGPU: []string{"A10G", "H100"}[i%2]}
			}
		}
		p.Apply(PoolConfig{Name: "m", Endpoints: eps})
		observeAll(p, 0)
		now := 0.
		for i := range eps {
			now = teachPrefill(t, p, eps[i].Name, now, 30, []float64{.1, .1, .5, .1, .1}[i])
			observeAll(p, now)
		}
		byName := make(map[string]string)
		rate := make(map[string]float32)
		for _, s := range p.Status(sec(now)) {
			byName[s.Endpoint.Name], rate[s.Endpoint.Name] = s.Kind, s.Rate.PromptTokenMS()
		}
		if a, b := byName["e1:8000"], byName["e3:8000"]; a != b || rate["e1:8000"] != rate["e3:8000"] {
			t.Errorf("labelled alike: kinds %q and %q", a, b)
		}
		if a, b := byName["e2:8000"], byName["e1:8000"]; a == b {
			t.Errorf("labelled apart: both are kind %q", a)
		}
		alone := byName[eps[unlabelled].Name]
		for name, k := range byName {
			if k == alone && name != eps[unlabelled].Name {
				t.Errorf("the endpoint without a label joined %s in kind %q", name, k)
			}
		}
		p.ObserveModels("e1:8000", "sglang", nil)
		if s := p.Status(0); s[1].Kind == s[3].Kind {
			t.Errorf("two engines on one GPU share the kind %q", s[1].Kind)
		}
	}
}

// An unlabelled endpoint that was not measured yet joins no labelled kind, whichever row it is in.
func TestUnmeasuredJoinsNoLabel(t *testing.T) {
	for _, unlabelled := range []int{0, 2} {
		p := NewPool("m")
		eps := named(3)
		for i := range eps {
			if i != unlabelled {
				eps[i].Labels = map[string]string{LabelGPU: "H100"}
			}
		}
		p.Apply(PoolConfig{Name: "m", Endpoints: eps})
		if got := kinds(p); len(got) != 2 {
			t.Errorf("row %d without a label: got kinds %v, want two", unlabelled, got)
		}
	}
}

// A new endpoint starts with what is known of the others, not with the prior.
func TestNewEndpointStartsFromTheOthers(t *testing.T) {
	p := newPool(t, 2)
	now := teachPrefill(t, p, "e0:8000", 0, 40, .5)
	observeAll(p, now)
	now = teachPrefill(t, p, "e1:8000", now, 40, .5)
	p.SetEndpoints(named(3))
	for _, s := range p.Status(sec(now)) {
		if s.Rate.PromptTokenMS() < .4 || s.Rate.PromptTokenMS() > .55 {
			t.Errorf("%s: got %v ms a token, want about .5", s.Endpoint.Name, s.Rate.PromptTokenMS())
		}
	}
}

// Without streams the engines' own counters teach: speeds, and which endpoints are of one kind.
func TestEngineCountersTeach(t *testing.T) {
	p := newPool(t, 4)
	for i := range 40 {
		now := float64(i + 1)
		for k, e := range named(4) {
			ms := []float64{.02, .4}[k/2]
			r := working(1, 0)
			r.PrefillTokens = 2000 + 1000*now
			r.PrefillSeconds = r.PrefillTokens * ms / 1000
			r.DecodeTokens = 2000 + 100*now
			r.DecodeSeconds = r.DecodeTokens * ms / 10
			p.Observe(sec(now), sec(now), e.Name, r, nil)
		}
	}
	for k, s := range p.Status(sec(40)) {
		ms := []float64{.02, .4}[k/2]
		if math.Abs(float64(s.Rate.PromptTokenMS())/ms-1) > .15 || math.Abs(float64(s.Rate.OutputTokenMS())/(ms*100)-1) > .3 {
			t.Errorf("%s (%s): got %v ms a prompt token and %v an output token, want %v and %v", s.Endpoint.Name, s.Kind, s.Rate.PromptTokenMS(), s.Rate.OutputTokenMS(), ms, ms*100)
		}
	}
	if got := kinds(p); len(got) != 2 {
		t.Errorf("got kinds %v, want two", got)
	}
}

// Waiting behind others is no slow hardware: only the time since the last first token there counts.
func TestQueueingTeachesNoSlowness(t *testing.T) {
	p := newPool(t, 1)
	now := 0.
	for range 30 {
		var open []*Lease
		for range 10 {
			open = append(open, pick(t, p, now, &Request{Model: "m", PromptBytes: 4000, UnitBytes: unitBytes, Streamed: true}))
		}
		for _, l := range open {
			now += .05
			l.FirstByte(sec(now))
			l.Done(sec(now), Outcome{})
		}
		observeAll(p, now)
	}
	if got := p.Status(sec(now))[0].Rate.PromptTokenMS(); math.Abs(float64(got)-.05) > .005 {
		t.Errorf("got %v ms a token, want .05", got)
	}
}

// A stream's time between tokens is learned from its own beginning and end.
func TestDecodeIsLearned(t *testing.T) {
	p := newPool(t, 1)
	for i := range 40 {
		now := float64(i * 10)
		observeAll(p, now)
		l := pick(t, p, now, short())
		l.FirstByte(sec(now + 1))
		l.Done(sec(now+1+5), Outcome{OutputTokens: 101})
	}
	if got := p.Status(0)[0].Rate.OutputTokenMS(); math.Abs(float64(got)-50) > 2 {
		t.Errorf("got %v ms a token, want 50", got)
	}
	if got := p.means.output(); math.Abs(got-145) > 3 { // 101 + 99·.98^40
		t.Errorf("got a mean output of %v tokens, want 145", got)
	}
}

// How many bytes make a token is learned from the engines' own counts, by size and not by request.
func TestBytesPerTokenIsLearned(t *testing.T) {
	p := newPool(t, 1)
	r := rand.New(rand.NewPCG(1, 5))
	for range 50 {
		bytes := 100 + r.IntN(20_000)
		l := pick(t, p, 0, &Request{Model: "m", PromptBytes: bytes, UnitBytes: unitBytes, Streamed: true})
		o := Outcome{PromptTokens: int(float64(bytes) / 2.5)}
		if r.IntN(3) == 0 {
			o.PromptTokens = 0 // an engine that does not say
		}
		l.Done(0, o)
	}
	q := prompt(1, 25_600)
	q.Record = true
	_, c := p.Pick(0, q)
	got := c.View.Request
	if math.Abs(float64(got.PromptTokens)-10_240) > 150 || math.Abs(float64(got.UnitTokens)-102.4) > 1.5 {
		t.Errorf("got %v tokens in %d units of %v, want 10240 in units of 102.4", got.PromptTokens, got.Units, got.UnitTokens)
	}
}

// A rate follows the engine: a machine that becomes slower is seen to be, whatever it was before.
func TestRateFollowsChange(t *testing.T) {
	p := NewPool("m")
	eps := named(1)
	eps[0].Labels = map[string]string{LabelGPU: "H100"}
	p.Apply(PoolConfig{Name: "m", Endpoints: eps})
	observeAll(p, 0)
	now := 0.
	for _, ms := range []float64{.05, .2, .02} {
		for range 500 {
			now = teachPrefill(t, p, "e0:8000", now, 1, ms)
			observeAll(p, now)
		}
		if got := p.Status(sec(now))[0].Rate.PromptTokenMS(); math.Abs(float64(got)/ms-1) > .2 {
			t.Errorf("after 500 requests at %v ms a token: got %v", ms, got)
		}
	}
}

// Where there are several kinds, one that was not measured starts from everyone's evidence together.
func TestUnmeasuredKindStartsFromEveryone(t *testing.T) {
	p := NewPool("m")
	eps := named(3)
	eps[0].Labels = map[string]string{LabelGPU: "H100"}
	eps[1].Labels = map[string]string{LabelGPU: "A10G"}
	p.Apply(PoolConfig{Name: "m", Endpoints: eps})
	observeAll(p, 0)
	now := teachPrefill(t, p, "e0:8000", 0, 200, .5)
	observeAll(p, now)
	now = teachPrefill(t, p, "e1:8000", now, 200, .7)
	p.SetEndpoints(eps)
	if got := p.Status(sec(now))[2].Rate.PromptTokenMS(); got < .5 || got > .7 {
		t.Errorf("got %v ms a token, want between .5 and .7", got)
	}
}

// What was learned on a row of the table is no factor on the neutral shape: an unmeasured endpoint starts from the times
// of the others, not from their factors.
func TestUnmeasuredKindStartsFromTimes(t *testing.T) {
	p := NewPool("m")
	eps := named(2)
	eps[0].Labels = map[string]string{LabelGPU: "H100", LabelTP: "8"}
	p.Apply(PoolConfig{Name: "m", Endpoints: eps})
	p.ObserveModels(eps[0].Name, "vllm", []Model{{ID: "chat", Raw: []byte(`{"id":"chat","root":"Qwen/Qwen3-32B"}`)}})
	observeAll(p, 0)
	now := teachPrefill(t, p, eps[0].Name, 0, 200, .02)
	for range 50 {
		observeAll(p, now)
		r := short()
		r.Tried = []string{eps[1].Name}
		l := pick(t, p, now, r)
		l.FirstByte(sec(now + .1))
		l.Done(sec(now+.1+.7), Outcome{OutputTokens: 101}) // 7 ms a token
		now++
	}
	p.SetEndpoints(eps)
	s := p.Status(sec(now))
	if s[0].Rate.Source != "q32-h100x8" || s[1].Rate.Source != "" {
		t.Fatalf("shapes from %q and %q, want the table's row and none", s[0].Rate.Source, s[1].Rate.Source)
	}
	if got := s[1].Rate.OutputTokenMS(); got < 7 || got > 9 {
		t.Errorf("got %v ms between tokens, want about the 7 measured at the other", got)
	}
}

// What endpoints are called whose own evidence is too little: that they are alike, where nothing has told any apart.
func TestNamesWithoutEvidence(t *testing.T) {
	p := newPool(t, 3)
	kinds := func() string {
		var names []string
		for _, s := range p.Status(0) {
			names = append(names, s.Kind)
		}
		return strings.Join(names, ", ")
	}
	for range 200 { // rates are learned, and short prompts tell nothing apart
		for _, ep := range p.rows {
			p.learnPrefill(ep, .001, .001, 10, 1)
		}
	}
	if got, want := kinds(), "all alike so far, all alike so far, all alike so far"; got != want {
		t.Errorf("short prompts: got %s, want %s", got, want)
	}
	for range 100 {
		p.learnPrefill(p.rows[0], .1, .1, 1000, 1)
		p.learnPrefill(p.rows[1], 1, .1, 1000, 1)
	}
	if got, want := kinds(), "speed 1, speed 2, too little seen yet"; got != want {
		t.Errorf("two told apart: got %s, want %s", got, want)
	}
}
