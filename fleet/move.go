package fleet

import "time"

// Move takes the news that a request was served at another address of the pool than l's: whoever carries it has retried
// it there. l ends as how says, and the request, r as it was picked with, is counted where it is, which nothing
// decided. That lease must be Done as any. It is l itself where l's endpoint did serve it.
//
// There is no lease where the pool has no such address, or where l was Done before.
func (p *Pool) Move(now time.Duration, l *Lease, address string, how Ending, r *Request) (*Lease, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if l.done {
		return nil, false
	}
	to := p.places.first(address)
	for ep := to; ep != nil; ep = ep.twin {
		if ep == l.ep {
			return l, true
		}
		if ep.Rank == l.Endpoint.Rank {
			to = ep // the request says so
		}
	}
	l.finish(now, Outcome{Ending: how})
	if to == nil {
		return nil, false
	}
	if p.dirty {
		p.rebuild()
	}
	p.settle(now.Seconds())
	p.gather(now.Seconds(), p.config(), r)
	p.rentKey = 0 // nothing was decided that misses or copies anything
	moved := p.reserve(now.Seconds(), r, to.row)
	moved.Reason = "fallback of " + l.Endpoint.Name
	p.remember(now.Seconds(), p.config(), r.Session, moved.Endpoint.Name)
	p.tellSent(moved, r, &Choice{})
	return moved, true
}
