package fleet

import "sync/atomic"

// Engines load and unload adapters while they run, and are asked what they list every few seconds. What requests meet
// tells sooner: a 404 for an adapter that an endpoint should have, and a name that nobody has yet.

// Disown takes the news that an endpoint does not know an adapter that it was sent a request for: it is not sent there
// again before the endpoint lists it again, which it is asked for soon.
func (p *Pool) Disown(name, adapter string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	ep := p.by[name]
	if ep == nil {
		return
	}
	ep.relist.Store(true)
	if ep.listed != nil {
		delete(ep.listed, adapter)
		ep.unlist()
	}
}

// Miss takes the news that a client named what no pool serves: all endpoints are asked soon what they list.
func (f *Fleet) Miss() {
	for _, p := range f.Pools() {
		p.missed.Add(1)
	}
}

// misses is how often a name was missed, as far as an endpoint's list is concerned.
type misses struct {
	relist atomic.Bool
	seen   atomic.Uint64
}

// Relist reports whether an endpoint should be asked what it lists before it is time, once for each reason.
func (p *Pool) Relist(name string) bool {
	p.mu.Lock()
	ep := p.by[name]
	p.mu.Unlock()
	if ep == nil {
		return false
	}
	missed := p.missed.Load()
	seen, disowned := ep.seen.Swap(missed), ep.relist.Swap(false)
	return seen != missed || disowned
}
