package sim

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/sluice-gateway/sluice/fleet"
	"github.com/sluice-gateway/sluice/route"
)

// Policy is a way to choose endpoints: the gateway's own, or a yardstick for it.
type Policy struct {
	Name string
	make func(w *world) gateway
}

// gateway is one replica of what chooses, and the events it learns from.
type gateway interface {
	// pick chooses an endpoint for the flight and counts it there, or says -1.
	pick(now time.Duration, f *flight) int
	first(now time.Duration, f *flight)
	// progress says that a step of the endpoint has ended, and every sequence decoding there has a token.
	progress(now time.Duration, endpoint int)
	done(now time.Duration, f *flight, how ending)
	// observe is a scrape; ok is false when there was no metrics page to read.
	observe(now time.Duration, endpoint int, r fleet.Reading, ok bool)
	tick(now time.Duration)
	// lost says that the gateway would rather have the flight elsewhere.
	lost(f *flight) bool
}

type ending uint8

const (
	endFinished ending = iota
	endRefused
	endBroken
	endMoved
	endRejected // the engine would never take it: an answer with status 400, which is the client's
)

const (
	// How the front door sees a prompt: so many bytes a token, and prefix blocks in units of 256 bytes, which are 4 blocks of the engine.
	bytesPerToken = 4
	unitBytes     = 256
	unitBlocks    = unitBytes / (bytesPerToken * BlockTokens)
)

// prefixUnits is how many units the prefix block after so many units has: blocks grow along the prompt.
func prefixUnits(after int) int {
	switch {
	case after < 64:
		return 1
	case after < 256:
		return 4
	}
	return 16
}

// Production is the gateway's own pool under a profile, such as route.Latency.
func Production(name string, profile func() *route.Profile) Policy {
	return Policy{name, func(w *world) gateway { return newProduction(w, profile()) }}
}

// Latency is the default profile.
func Latency() Policy { return Production("latency", route.Latency) }

// Weights is the reference's default weights: queue 2, kvCache 2, prefix 3.
func Weights() Policy {
	return Production("weights 2/2/3", func() *route.Profile {
		p, err := route.Weights(route.DefaultWeights())
		if err != nil {
			panic(err) // the defaults are valid, or nothing is
		}
		return p
	})
}

// production drives a fleet.Pool as proxy and scrape do.
type production struct {
	pool   *fleet.Pool
	names  []string
	rng    *rand.Rand
	prefix []uint64
	ends   []int32
	tried  []string
	// streams are the requests after their first token, by endpoint.
	streams [][]*flight
	exact   *exactPrefixes // nil where prefixes are guessed
}

func newProduction(w *world, profile *route.Profile) *production {
	p := &production{pool: fleet.NewPool("sim"), rng: rand.New(rand.NewPCG(w.rng.Uint64(), 4))}
	p.streams = make([][]*flight, len(w.engines))
	var endpoints []fleet.Endpoint
	for i, e := range w.engines {
		name := fmt.Sprintf("10.0.%d.%d:8000", i/250, i%250+1)
		p.names = append(p.names, name)
		ep := fleet.Endpoint{Name: name, Host: name}
		if w.o.Labels {
			ep.Labels = map[string]string{fleet.LabelGPU: e.cfg.Profile.GPU}
		}
		endpoints = append(endpoints, ep)
	}
	p.pool.Apply(fleet.PoolConfig{Name: "sim", Model: "sim", Profile: profile, Endpoints: endpoints})
	return p
}

func (p *production) pick(now time.Duration, f *flight) int {
	prompt := f.request.PromptTokens()
	p.prefix, p.ends = p.prefix[:0], p.ends[:0]
	for end := prefixUnits(0); end*unitBlocks*BlockTokens <= prompt; end += prefixUnits(end) {
		p.prefix, p.ends = append(p.prefix, f.hashes[end*unitBlocks-1]), append(p.ends, int32(end))
	}
	p.tried = p.tried[:0]
	for _, i := range f.tried {
		p.tried = append(p.tried, p.names[i])
	}
	lease, d := p.pool.Pick(now, &fleet.Request{Model: "sim", Adapter: f.request.Adapter, PromptBytes: prompt * bytesPerToken, Blocks: p.prefix,
		Ends: p.ends, UnitBytes: unitBytes, Streamed: true, Tried: p.tried, Seed: p.rng.Uint64() | 1})
	f.lease = lease
	if p.exact != nil {
		p.exact.learn(p, f)
	}
	if lease == nil {
		return -1
	}
	return int(d.Endpoint)
}

func (p *production) first(now time.Duration, f *flight) {
	f.lease.FirstByte(now)
	f.stream = len(p.streams[f.endpoint])
	p.streams[f.endpoint] = append(p.streams[f.endpoint], f)
}

func (p *production) progress(now time.Duration, i int) {
	if s := p.streams[i]; len(s) > 0 {
		s[0].lease.Progress(now) // every stream has bytes; the pool asks only for the first
	}
}

func (p *production) done(now time.Duration, f *flight, how ending) {
	o := fleet.Outcome{Ending: fleet.Finished, PromptTokens: f.seq.Prompt, OutputTokens: f.seq.Output}
	switch how {
	case endRefused:
		o = fleet.Outcome{Ending: fleet.Refused}
	case endBroken:
		o = fleet.Outcome{Ending: fleet.Failed}
	case endMoved:
		o = fleet.Outcome{Ending: fleet.Moved}
	case endRejected:
		o = fleet.Outcome{Ending: fleet.Finished}
	}
	f.lease.Done(now, o)
	s := p.streams[f.endpoint]
	if i := f.stream; i < len(s) && s[i] == f {
		s[i] = s[len(s)-1]
		s[i].stream = i
		p.streams[f.endpoint] = s[:len(s)-1]
	}
}

func (p *production) observe(now time.Duration, i int, r fleet.Reading, ok bool) {
	if ok {
		p.pool.Observe(now, now, p.names[i], r, nil)
	} else {
		p.pool.ObserveFailure(p.names[i], fleet.ScrapeFailed, "no metrics")
	}
}

func (p *production) tick(now time.Duration) { p.pool.Tick(now) }

func (p *production) lost(f *flight) bool {
	select {
	case <-f.lease.Lost():
		return true
	default:
		return false
	}
}

// deaf hears nothing of what becomes of requests.
type deaf struct{}

func (deaf) progress(time.Duration, int)                     {}
func (deaf) first(time.Duration, *flight)                    {}
func (deaf) done(time.Duration, *flight, ending)             {}
func (deaf) observe(time.Duration, int, fleet.Reading, bool) {}
func (deaf) tick(time.Duration)                              {}
func (deaf) lost(*flight) bool                               { return false }
func untried(f *flight, i int) bool                          { return len(f.tried) == 0 || !slices.Contains(f.tried, i) }

// RoundRobin takes the endpoints in turn.
func RoundRobin() Policy {
	return Policy{"round robin", func(w *world) gateway { return &roundRobin{n: len(w.engines)} }}
}

type roundRobin struct {
	deaf
	n, turn int
}

func (p *roundRobin) pick(_ time.Duration, f *flight) int {
	for range p.n {
		i := p.turn % p.n
		p.turn++
		if untried(f, i) {
			return i
		}
	}
	return -1
}

// LeastRequests takes the endpoint with the fewest of this gateway's requests, at random among equals.
func LeastRequests() Policy {
	return Policy{"least requests", func(w *world) gateway {
		return &leastRequests{open: make([]int, len(w.engines)), rng: rand.New(rand.NewPCG(w.rng.Uint64(), 5))}
	}}
}

type leastRequests struct {
	deaf
	open []int
	rng  *rand.Rand
}

func (p *leastRequests) pick(_ time.Duration, f *flight) int {
	costs := func(i int) float64 { return float64(p.open[i]) }
	best := least(p.rng, f, len(p.open), costs)
	if best >= 0 {
		p.open[best]++
	}
	return best
}

func (p *leastRequests) done(_ time.Duration, f *flight, _ ending) { p.open[f.endpoint]-- }

// least is the endpoint not tried that costs least, at random among equals; -1 when none is left.
func least(rng *rand.Rand, f *flight, n int, cost func(int) float64) int {
	best, lowest, equals := -1, math.Inf(1), 0
	for i := range n {
		if !untried(f, i) {
			continue
		}
		switch c := cost(i); {
		case best < 0 || c < lowest:
			best, lowest, equals = i, c, 1
		case c == lowest:
			if equals++; rng.IntN(equals) == 0 {
				best = i
			}
		}
	}
	return best
}

// Greedy knows every engine's exact state, and takes the endpoint with the least true time to first token and 5 % of the time to decode. It doesn't know
// the future, and what a choice costs others only by that share: it is a yardstick, not a bound.
func Greedy() Policy {
	return Policy{"all-knowing greedy", func(w *world) gateway {
		return &greedy{engines: w.engines, rng: rand.New(rand.NewPCG(w.rng.Uint64(), 6)), output: 200}
	}}
}

type greedy struct {
	deaf
	engines []*Engine
	rng     *rand.Rand
	output  float64 // mean
}

func (p *greedy) pick(now time.Duration, f *flight) int {
	return least(p.rng, f, len(p.engines), func(i int) float64 {
		e := p.engines[i]
		running := float64(e.Running())
		return e.Forecast(now, &f.seq) + .05*p.output*e.stepMS(0, 0, e.decoding())*(1+running/256)
	})
}

func (p *greedy) done(_ time.Duration, f *flight, _ ending) {
	p.output += .02 * (float64(f.seq.Output) - p.output)
}
