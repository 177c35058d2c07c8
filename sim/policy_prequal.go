package sim

import (
	"math"
	"slices"
	"time"
)

// prequal is Prequal (Wydrowski, Kleinberg, Rumble and others, "Load is not what you should balance", NSDI'24), with
// its published defaults: probes of the requests in flight (RIF) and of the latency at that RIF, 3 probes a request to
// endpoints at random, at most 16 kept for at most a second, and the hot-cold lexicographic rule. The latency is the
// time to first token: that of whole answers says little of the endpoint where lengths differ a thousandfold. Probes
// take no time, which favours it.
func prequal() Policy {
	return Policy{"Prequal", "prequal", func(w *world) gateway {
		return &prequalGateway{open: newOpen(w), engines: w.engines, sent: make([]prequalHistory, len(w.engines))}
	}}
}

const (
	prequalProbes, prequalPool = 3, 16
	prequalAge                 = time.Second
	prequalRemove              = 1 // probes given up with each request
	prequalDelta               = 1 // by how much more probes come in than are used up
	prequalWindow              = 128
	prequalSamples             = 16
)

// prequalQuantile is 2^-0.25 of the RIFs seen: an endpoint above it is hot.
func prequalQuantile() float64 { return math.Pow(2, -.25) }

type prequalGateway struct {
	open
	engines []*Engine
	pool    []probe
	rifs    []float64 // of the last probes, in a ring
	next    int
	sent    []prequalHistory
}

// probe is what an endpoint answered.
type probe struct {
	endpoint int
	rif      float64
	latency  float64 // seconds
	at       time.Duration
	uses     int
}

// prequalHistory is how long requests took, by the RIF they found.
type prequalHistory struct {
	rif, latency [64]float64
	n            int
}

func (h *prequalHistory) add(rif, latency float64) {
	h.rif[h.n%len(h.rif)], h.latency[h.n%len(h.rif)] = rif, latency
	h.n++
}

// at is the median latency of the requests that found about so many in flight; 0 when there is none to tell.
func (h *prequalHistory) at(rif float64) float64 {
	n := min(h.n, len(h.rif))
	if n == 0 {
		return 0
	}
	order := make([]int, n)
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		return int(math.Abs(h.rif[a]-rif)) - int(math.Abs(h.rif[b]-rif))
	})
	var near []float64
	for _, i := range order[:min(n, prequalSamples)] {
		near = append(near, h.latency[i])
	}
	slices.Sort(near)
	return near[len(near)/2]
}

// prequalReuse is how often a probe may be used, for so many endpoints: (1+δ) / ((1 − pool/endpoints)·probes −
// removed), at least 1. Where the pool could hold every endpoint the formula has no value; there each is used once,
// since new ones come with every request.
func prequalReuse(endpoints int) float64 {
	rate := (1-prequalPool/float64(endpoints))*prequalProbes - prequalRemove
	if rate <= 0 {
		return 1
	}
	return max(1, (1+prequalDelta)/rate)
}

// hotCold chooses among probes: a cold one with the least latency, if all are hot the one with the least RIF; -1 of
// none.
func hotCold(pool []probe, threshold float64, may func(int) bool) int {
	best := -1
	for i, p := range pool {
		if !may(p.endpoint) {
			continue
		}
		if best < 0 {
			best = i
			continue
		}
		b := pool[best]
		hot, bestHot := p.rif > threshold, b.rif > threshold
		if hot == bestHot && (hot && p.rif < b.rif || !hot && p.latency < b.latency) || !hot && bestHot {
			best = i
		}
	}
	return best
}

func (p *prequalGateway) pick(now time.Duration, f *flight) int {
	p.pool = slices.DeleteFunc(p.pool, func(x probe) bool { return now-x.at > prequalAge || float64(x.uses) >= prequalReuse(len(p.engines)) })
	chosen := -1
	if len(p.pool) >= min(2, len(p.engines)) { // else at random
		if i := hotCold(p.pool, p.threshold(), func(e int) bool { return untried(f, e) }); i >= 0 {
			p.pool[i].rif++
			p.pool[i].uses++
			chosen = p.pool[i].endpoint
		}
	}
	if chosen < 0 {
		chosen = least(p.rng, f, len(p.engines), func(int) float64 { return 0 })
	}
	if chosen >= 0 {
		f.found = p.rif(chosen)
	}
	p.probe(now)
	return p.take(chosen)
}

func (p *prequalGateway) rif(i int) float64 {
	return float64(p.engines[i].Running() + p.engines[i].Waiting())
}

func (p *prequalGateway) threshold() float64 {
	seen := slices.Clone(p.rifs)
	slices.Sort(seen)
	return Quantile(seen, prequalQuantile())
}

// probe asks some endpoints how they are. A newer probe of an endpoint takes the place of the older; a pool that is
// full loses its oldest.
func (p *prequalGateway) probe(now time.Duration) {
	if len(p.pool) >= min(prequalPool, len(p.engines)) {
		oldest := 0
		for i := range p.pool {
			if p.pool[i].at < p.pool[oldest].at {
				oldest = i
			}
		}
		p.pool = slices.Delete(p.pool, oldest, oldest+1)
	}
	for _, e := range p.rng.Perm(len(p.engines))[:min(prequalProbes, len(p.engines))] {
		if p.engines[e].Loading(now) {
			continue
		}
		rif := p.rif(e)
		x := probe{endpoint: e, rif: rif, latency: p.sent[e].at(rif), at: now}
		p.note(rif)
		p.pool = slices.DeleteFunc(p.pool, func(old probe) bool { return old.endpoint == e })
		if len(p.pool) == prequalPool {
			p.pool = p.pool[1:]
		}
		p.pool = append(p.pool, x)
	}
}

func (p *prequalGateway) note(rif float64) {
	if len(p.rifs) < prequalWindow {
		p.rifs = append(p.rifs, rif)
		return
	}
	p.rifs[p.next%prequalWindow] = rif
	p.next++
}

func (p *prequalGateway) first(now time.Duration, f *flight) {
	p.sent[f.endpoint].add(f.found, (now - f.arrived).Seconds())
}
