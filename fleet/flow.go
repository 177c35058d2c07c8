package fleet

import "math"

// flowLasts is over how many seconds an endpoint's flow is averaged: long enough not to take a burst for a rate, short
// enough for endpoints to change roles with the traffic.
const flowLasts = 30.

// flow is what comes to an endpoint, ours and what peers tell: requests a second, and the share of the time in which it
// has prompts to compute; both exponential means, which begin at 0.
type flow struct {
	arrivals, occupied float64
}

// gatherFlow brings the flows up to date. Whether an endpoint has prompts to compute is looked at when something is
// decided.
func (p *Pool) gatherFlow(now float64) {
	v, keep := &p.view, math.Exp(min(p.flowAt-now, 0)/flowLasts)
	p.flowAt = max(p.flowAt, now)
	for i, ep := range p.rows {
		f := &ep.flow
		f.arrivals *= keep
		f.occupied *= keep
		if ep.next != nil {
			f.occupied += 1 - keep
		}
		v.Arrivals[i], v.Occupied[i] = float32(f.arrivals), float32(f.occupied)
	}
}
