package fleet

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/prefix"
	"github.com/sluice-gateway/sluice/route"
)

// history is a random life of a pool: requests, readings, failures and reloads. The same seed makes the same life.
type history struct {
	p    *Pool
	r    *rand.Rand
	now  time.Duration
	open []*Lease
	gone []*endpoint
	// tokens are the engines' counters, by endpoint.
	tokens, firsts map[string]float64
	// plain keeps to requests with a prefix, whose ties do not depend on chance.
	plain bool
	// reversed gives the endpoints in another order.
	reversed bool
	trace    []string
}

func newHistory(seed uint64) *history {
	h := &history{p: NewPool("m"), r: rand.New(rand.NewPCG(seed, 1)), tokens: make(map[string]float64), firsts: make(map[string]float64)}
	h.p.Apply(PoolConfig{Name: "m", Endpoints: named(5)})
	return h
}

func (h *history) name() string { return fmt.Sprintf("e%d:8000", h.r.IntN(9)) }

func (h *history) step() {
	if h.r.IntN(3) > 0 {
		h.now += time.Duration(h.r.IntN(300)) * time.Millisecond
	}
	switch k := h.r.IntN(46); {
	case k >= 40:
		h.events()
	case k < 12:
		h.pick()
	case k < 24:
		h.lease()
	case k < 33:
		h.observe()
	case k < 35:
		h.p.ObserveFailure(h.name(), Failure(h.r.IntN(3)), "no answer")
	case k < 36:
		h.p.ObserveModels(h.name(), []string{"", "vllm", "sglang"}[h.r.IntN(3)], []Model{{ID: "m"}, {ID: "a1", Parent: "m"}}[:h.r.IntN(3)])
	case k < 38:
		h.p.Tick(h.now)
	case k < 39:
		h.p.Status(h.now)
	default:
		h.reload()
	}
}

// events lets something be known of an endpoint's cache, or of a prompt.
func (h *history) events() {
	r := prompt(1+h.r.IntN(12), 256*(1+h.r.IntN(40)))
	q := tokensOf(int(r.Blocks[0]>>32), r)
	name := h.name()
	switch h.r.IntN(6) {
	case 0:
		h.p.FollowEvents(name, prefix.Following(h.r.IntN(3)))
	case 1, 2:
		h.p.ObserveBlocks(name, storedAt(q, len(r.Blocks)))
	case 3:
		h.p.ObserveBlocks(name, removed(q, h.r.IntN(len(r.Blocks)), len(r.Blocks)))
	default:
		h.p.LearnPrompt(q)
	}
}

func (h *history) pick() {
	r := prompt(1+h.r.IntN(12), 256+h.r.IntN(40_000))
	r.Streamed, r.Unseen = h.r.IntN(3) > 0, h.r.IntN(3) == 0
	r.MaxOutput = h.r.IntN(3) * 77
	if h.r.IntN(4) == 0 {
		r.Adapter = fmt.Sprintf("a%d", h.r.IntN(4))
	}
	if h.r.IntN(5) == 0 {
		r.Tried = []string{h.name()}
	}
	if h.r.IntN(6) == 0 && !h.plain {
		r.Blocks = nil
	}
	l, d := h.p.Pick(h.now, r)
	name := ""
	if l != nil {
		h.open = append(h.open, l)
		name = l.Endpoint.Name
	}
	h.trace = append(h.trace, fmt.Sprintf("%v %v %s %v %v", h.now, d.Verdict, name, d.Total, d.Near))
}

// lease lets something happen to a request: bytes, or its end, of which some come twice.
func (h *history) lease() {
	if len(h.open) == 0 {
		return
	}
	i := h.r.IntN(len(h.open))
	l := h.open[i]
	switch h.r.IntN(5) {
	case 0, 1:
		l.FirstByte(h.now)
	case 2:
		l.Progress(h.now)
	default:
		h.end(l)
		h.open = slices.Delete(h.open, i, i+1)
	}
}

func (h *history) end(l *Lease) {
	h.gone = append(h.gone, l.ep)
	o := Outcome{Ending: Ending(h.r.IntN(5)), PromptTokens: h.r.IntN(3) * 1000, OutputTokens: h.r.IntN(300)}
	l.Done(h.now, o)
	if h.r.IntN(3) == 0 {
		l.Done(h.now, Outcome{Ending: Failed})
		l.FirstByte(h.now)
	}
}

func (h *history) observe() {
	name, nan := h.name(), math.NaN()
	h.tokens[name] += float64(h.r.IntN(4) * 500)
	if h.r.IntN(20) == 0 {
		h.tokens[name] = 0
	}
	r := working(float64(h.r.IntN(4)), h.tokens[name])
	r.PrefillSeconds = h.tokens[name] * []float64{.0001, .001}[len(name)%2]
	r.Waiting, r.KVUse = float64(h.r.IntN(3)), h.r.Float64()
	r.KVTokens = []float64{nan, 3000, 400_000, math.Inf(1), -1}[h.r.IntN(5)]
	if h.r.IntN(3) == 0 {
		r.DecodeTokens, r.Running = nan, nan
	}
	if h.r.IntN(2) == 0 {
		h.firsts[name] += float64(h.r.IntN(5))
		r.Firsts, r.FirstSeconds = h.firsts[name], h.firsts[name]*.1
		r.Finished, r.FinishedPrompt, r.FinishedOutput = h.firsts[name], h.firsts[name]*900, h.firsts[name]*90
	}
	r.MaxAdapters, r.Resident = 2, []string{"a0", "a1", "a2"}[:h.r.IntN(4)]
	age := time.Duration(h.r.IntN(3)) * 40 * time.Millisecond
	h.p.Observe(h.now, max(h.now-age, 0), name, r, nil)
}

func (h *history) reload() {
	var eps []Endpoint
	for i, e := range named(9) {
		if h.r.IntN(3) > 0 {
			e.Drain = h.r.IntN(5) == 0
			if i%3 == 0 && h.r.IntN(2) == 0 {
				e.Labels = map[string]string{LabelGPU: "H100"}
			}
			eps = append(eps, e)
		}
	}
	if h.reversed {
		slices.Reverse(eps)
	}
	h.p.SetEndpoints(append(eps, eps...))
}

// E31, E33, E35: whatever happens to requests, endpoints and readings, every column is what the requests themselves add
// up to, and when the last one has ended, nothing is counted anywhere, not even at endpoints that have left.
func TestColumnsNeverDrift(t *testing.T) {
	for seed := range uint64(40) {
		h := newHistory(seed)
		for range 800 {
			h.step()
			audit(t, h.p)
		}
		for _, l := range h.open {
			h.end(l)
			audit(t, h.p)
		}
		empty(t, h.p)
		for _, ep := range h.gone {
			if len(ep.leases) != 0 || ep.first != nil || ep.last != nil {
				t.Errorf("seed %d: %s keeps requests", seed, ep.Name)
			}
		}
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

// The same history gives the same decisions: nothing depends on the order of a map or on the wall clock.
func TestSameHistorySameDecisions(t *testing.T) {
	for seed := range uint64(20) {
		var traces [3][]string
		for i := range traces {
			h := newHistory(seed)
			h.plain = true
			for range 800 {
				h.step()
			}
			traces[i] = h.trace
		}
		for i := range traces[0] {
			if traces[0][i] != traces[1][i] || traces[0][i] != traces[2][i] {
				t.Fatalf("seed %d, decision %d: got %q, then %q, then %q", seed, i, traces[0][i], traces[1][i], traces[2][i])
			}
		}
	}
}

// The order in which endpoints are configured decides nothing.
func TestRowOrderDoesNotMatter(t *testing.T) {
	for seed := range uint64(20) {
		a, b := newHistory(seed), newHistory(seed)
		a.plain, b.plain, b.reversed = true, true, true
		for i := range 800 {
			a.step()
			b.step()
			if x, y := a.chosen(), b.chosen(); x != y {
				t.Fatalf("seed %d, step %d: one order chose %q, the other %q", seed, i, x, y)
			}
		}
	}
}

// chosen is the last decision without its total, which depends on the order of a sum.
func (h *history) chosen() string {
	if len(h.trace) == 0 {
		return ""
	}
	f := strings.Fields(h.trace[len(h.trace)-1])
	return strings.Join(f[:len(f)-2], " ")
}

// P07: everything at once from many goroutines, and in the end nothing is counted. Run it under the race detector.
func TestManyGoroutines(t *testing.T) {
	var f Fleet
	config := PoolConfig{Name: "m", Model: "m", Endpoints: named(6)}
	f.Apply([]PoolConfig{config}, "")
	var workers, writers sync.WaitGroup
	stop := make(chan struct{})
	for w := range 4 {
		workers.Go(func() {
			r := rand.New(rand.NewPCG(uint64(w), 2))
			for i := range 1500 {
				now := sec(float64(i) / 100)
				target, ok := f.Lookup("m")
				if !ok {
					t.Error("the model is not known")
					return
				}
				q := prompt(1+r.IntN(20), 1000+r.IntN(9000))
				q.Record = i%50 == 0
				l, _ := target.Pool.Pick(now, q)
				if l == nil {
					continue
				}
				if r.IntN(2) == 0 {
					l.FirstByte(now)
					l.Progress(now)
				}
				told(l)
				l.Done(now, Outcome{Ending: Ending(r.IntN(5)), OutputTokens: r.IntN(100)})
			}
		})
	}
	write := func(act func(i int, p *Pool)) {
		writers.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				act(i, f.Pools()[0])
			}
		})
	}
	write(func(i int, p *Pool) { p.Observe(sec(15), sec(15), named(6)[i%6].Name, working(1, float64(i)), nil) })
	write(func(i int, p *Pool) {
		p.ObserveModels(named(6)[i%6].Name, "vllm", []Model{{ID: "m"}, {ID: fmt.Sprint("a", i%3), Parent: "m"}})
		f.Names()
		p.Models()
	})
	write(func(i int, p *Pool) {
		c := config
		c.Endpoints = named(3 + i%4)
		f.Apply([]PoolConfig{c}, "m")
		p.Status(0)
	})
	write(func(i int, p *Pool) {
		p.Tick(sec(15))
		p.ObserveFailure(named(6)[i%6].Name, Failure(i%3), "no answer")
		p.Snapshot()
		p.Ready()
		p.Config()
	})
	workers.Wait()
	close(stop)
	writers.Wait()
	f.Apply([]PoolConfig{config}, "")
	empty(t, f.Pools()[0])
}

// A record is what was decided from: deciding it again gives the same, whatever has happened at the pool since.
func TestRecordedViewDecidesTheSame(t *testing.T) {
	for _, profile := range []*route.Profile{route.Latency(), route.RoundRobin()} {
		p := newPool(t, 4)
		p.Apply(PoolConfig{Name: "m", Profile: profile, Endpoints: named(4)})
		for i := range 40 {
			q := prompt(1+i%7, 3000)
			q.Record = true
			l, c := p.Pick(sec(float64(i)/100), q)
			for range i % 3 {
				pick(t, p, float64(i)/100, q)
			}
			if got := profile.Decide(c.View); got != c.Decision {
				t.Errorf("%s, pick %d: decided again: got %+v, want %+v", profile.Name, i, got, c.Decision)
			}
			if i%5 == 0 {
				l.FirstByte(sec(float64(i)/100 + .05))
				l.Done(sec(1), Outcome{OutputTokens: 100})
			}
		}
	}
}

// That nobody may serve can be explained as well, and is copied only when asked.
func TestRefusalIsRecorded(t *testing.T) {
	p := newPool(t, 2)
	p.ObserveFailure("e0:8000", Unreachable, "connection refused")
	p.ObserveFailure("e1:8000", Unreachable, "no route to it")
	q := prompt(1, 3000)
	if l, c := p.Pick(0, q); l != nil || c.View != nil {
		t.Errorf("got lease %v and view %v, want none", l, c.View)
	}
	q.Record = true
	l, c := p.Pick(0, q)
	if l != nil || c.View == nil {
		t.Fatalf("got lease %v and view %v, want the view alone", l, c.View)
	}
	var text strings.Builder
	e := route.Latency().Explain(c.View)
	if err := e.WriteText(&text, c.View); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"No endpoint may serve", "e0:8000, not ready: connection refused", "e1:8000, not ready: no route to it"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("got %s, want it to say %q", text.String(), want)
		}
	}
	if e.Decision != c.Decision {
		t.Errorf("got %+v decided again, want %+v", e.Decision, c.Decision)
	}
	empty(t, p)
}
