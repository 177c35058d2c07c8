package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-gateway/sluice/fleet"
	"github.com/sluice-gateway/sluice/route"
)

// Policy is a way to choose endpoints: the gateway's own, or a yardstick for it.
type Policy struct {
	// Name is for tables, Short for the command line.
	Name, Short string
	make        func(w *world) gateway
}

// Policies lists every policy: the simplest first, then those of other projects and papers, the gateway's own, and last
// the yardstick that knows everything.
func Policies() []Policy {
	return []Policy{RoundRobin(), random(), LeastRequests(), powerOfTwo(), prequal(), boundedHashing(), llmd(), llmdPrecise(), Weights(), smg(), smgLibrary(),
		aibrix(), preble(), dynamo(), lmetric(), leastPrefill(), ExactLatency(), Latency(), Greedy()}
}

// SelectPolicies finds policies by their short names, in the order given; "all" means all of them.
func SelectPolicies(names []string) ([]Policy, error) {
	all := Policies()
	selectable := append(slices.Clone(all), Unseen()) // which is not one of all: it is compared with latency alone
	var out []Policy
	for _, name := range names {
		if name == "all" {
			out = append(out, all...)
			continue
		}
		i := slices.IndexFunc(selectable, func(p Policy) bool { return p.Short == name })
		if i < 0 {
			var known []string
			for _, p := range selectable {
				known = append(known, p.Short)
			}
			return nil, fmt.Errorf("cannot find policy %q: known are all, %s", name, strings.Join(known, ", "))
		}
		out = append(out, selectable[i])
	}
	return out, nil
}

// gateway is one replica of what chooses, and the events it learns from.
type gateway interface {
	// pick chooses an endpoint for the flight and counts it there, or says -1.
	pick(now time.Duration, f *flight) int
	first(now time.Duration, f *flight)
	// progress says that a step of the endpoint has ended, in which the gateway's streams there had a token each.
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
	endFailed   // an answer with status 500
	endRejected // the engine would never take it: an answer with status 400, which is the client's
)

const (
	// How the front door sees a prompt: so many bytes a token, and prefix blocks in units of 256 bytes, which are 4
	// blocks of the engine.
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
	return Policy{name, name, func(w *world) gateway { return newProduction(w, profile()) }}
}

// Latency is the default profile.
func Latency() Policy { return Production("latency", route.Latency) }

// Unseen is the default profile behind a data plane that shows nothing of the answers, so that only their ends and the
// engines' counters are known.
func Unseen() Policy {
	return Policy{"latency, answers unseen", "latency-unseen", func(w *world) gateway {
		p := newProduction(w, route.Latency())
		p.unseen = true
		return p
	}}
}

// Weights is the reference's default weights in the gateway's own code: queue 2, kvCache 2, prefix 3. Unlike llm-d, it
// counts what it sent since the last reading as queued.
func Weights() Policy {
	p := Production("weights 2/2/3", func() *route.Profile {
		p, err := route.Weights(route.DefaultWeights())
		if err != nil {
			panic(err) // the defaults are valid, or nothing is
		}
		return p
	})
	p.Short = "weights"
	return p
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
	// unseen says that nobody sees the answers.
	unseen bool
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
			ep.Labels = map[string]string{fleet.LabelGPU: e.cfg.Profile.GPU, fleet.LabelTP: strconv.Itoa(e.cfg.Profile.TP)}
		}
		endpoints = append(endpoints, ep)
	}
	model := w.engines[0].cfg.Profile.Model
	if precision := w.engines[0].cfg.Profile.Precision; precision != "bf16" {
		model += "-" + precision
	}
	p.pool.Apply(fleet.PoolConfig{Name: "sim", Model: model, Profile: profile, Endpoints: endpoints})
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
		Ends: p.ends, UnitBytes: unitBytes, Streamed: true, Unseen: p.unseen, Tried: p.tried, Seed: p.rng.Uint64() | 1})
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
	if p.unseen {
		return
	}
	f.lease.FirstByte(now)
	f.stream = len(p.streams[f.endpoint])
	p.streams[f.endpoint] = append(p.streams[f.endpoint], f)
}

func (p *production) progress(now time.Duration, i int) {
	if s := p.streams[i]; len(s) > 0 {
		s[0].lease.Progress(now) // of a step's bytes the pool asks only for the first
	}
}

func (p *production) done(now time.Duration, f *flight, how ending) {
	o := fleet.Outcome{Ending: fleet.Finished, PromptTokens: f.seq.Prompt, OutputTokens: f.seq.Output}
	switch how {
	case endRefused:
		o = fleet.Outcome{Ending: fleet.Refused}
	case endBroken, endFailed:
		o = fleet.Outcome{Ending: fleet.Failed}
	case endMoved:
		o = fleet.Outcome{Ending: fleet.Moved}
	case endRejected:
		o = fleet.Outcome{Ending: fleet.Finished}
	}
	if p.unseen {
		o.PromptTokens, o.OutputTokens = 0, 0
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
