package fleet

import (
	"crypto/tls"
	"net/netip"

	"github.com/sluice-gateway/sluice/route"
)

// A data plane that is not this process knows endpoints by their addresses: it is told which to try, says among which to
// choose, and reports which served. An address may be several endpoints, the ranks of one engine.

// places finds the endpoints at an address: the first of them, which the others follow by their twin.
type places map[string]*endpoint

func placesOf(rows []*endpoint) places {
	a := make(places, len(rows))
	for i := len(rows) - 1; i >= 0; i-- { // so that each list is in row order
		ep := rows[i]
		ep.twin = a[ep.Address()]
		a[ep.Address()] = ep
	}
	return a
}

// first is the first endpoint at an address, nil if there is none. IPv6 has several spellings of an address.
func (a places) first(address string) *endpoint {
	if ep := a[address]; ep != nil {
		return ep
	}
	parsed, err := netip.ParseAddrPort(address)
	if err != nil {
		return nil
	}
	var room [64]byte
	return a[string(netip.AddrPortFrom(parsed.Addr().Unmap(), parsed.Port()).AppendTo(room[:0]))]
}

// Address is one address of a pool as a data plane has to know it.
type Address struct {
	// Endpoint says how to reach it. Of several ranks there it is the first.
	Endpoint Endpoint
	// Stalled says that it has requests and makes no progress, with all of its ranks: whoever waits there should go
	// elsewhere. Whatever else keeps new requests away (drained, stale, ejected) is no reason to end those that run.
	Stalled bool
}

// Addresses appends the pool's addresses to the list, each once, in the order of the configuration.
func (p *Pool) Addresses(to []Address) []Address {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, ep := range p.rows {
		if p.places[ep.Address()] != ep {
			continue
		}
		a := Address{Endpoint: ep.Endpoint, Stalled: true}
		for rank := ep; rank != nil; rank = rank.twin {
			a.Stalled = a.Stalled && rank.state&route.Stalled != 0
		}
		to = append(to, a)
	}
	return to
}

// Version grows whenever anything changes that Pools and Pool.Addresses say: pools, their addresses, how those are
// reached, or whether one is stalled. Read before those, it tells for the price of one load that nothing is new since.
// It may grow without a change.
func (f *Fleet) Version() uint64 { return f.changes.Load() }

// way is what connections to an endpoint depend on besides its address.
type way struct {
	host, key string
	tls       *tls.Config
	h2c       bool
}

func (e *Endpoint) reachedBy() way { return way{e.Host, e.APIKey, e.TLS, e.H2C} }

// gatherSubset marks who is not at one of the addresses, nil for all.
func (p *Pool) gatherSubset(subset []string) {
	p.view.Outside = nil
	if subset == nil {
		return
	}
	p.outside = p.outside[:0]
	for range p.rows {
		p.outside = append(p.outside, true)
	}
	for _, address := range subset {
		for ep := p.places.first(address); ep != nil; ep = ep.twin {
			p.outside[ep.row] = false
		}
	}
	p.view.Outside = p.outside
}

// fallBack names the addresses that a request may be sent to if the chosen endpoint fails, best first.
func (p *Pool) fallBack(l *Lease, profile *route.Profile, d route.Decision) {
	n := 0
	add := func(row int32) (fits bool) {
		ep := p.rows[row]
		if !l.fits(ep) {
			return false
		}
		l.Fallbacks[n] = ep.Address()
		n++
		return true
	}
	fit := true
	for _, row := range d.Fallbacks {
		fit = fit && (row < 0 || add(row))
	}
	if fit {
		return
	}
	// Ranks and keys differ: who is next among those that fit is another decision, as if all others had failed.
	v := &p.view
	for n < len(l.Fallbacks) {
		for i, ep := range p.rows {
			v.Tried[i] = v.Tried[i] || !l.fits(ep)
		}
		next := profile.Decide(v)
		if next.Verdict != route.Send {
			return
		}
		add(next.Endpoint)
	}
}

// fits reports whether the endpoint may be the next fallback: another address than those the request has, and one that
// understands the request as it was made for the chosen endpoint, since no one changes it on the way. A key must not
// reach an endpoint that it isn't for.
func (l *Lease) fits(ep *endpoint) bool {
	address := ep.Address()
	for _, has := range l.Fallbacks {
		if has == address {
			return false
		}
	}
	return address != l.Endpoint.Address() && ep.APIKey == l.Endpoint.APIKey &&
		(l.Endpoint.Ranks == 0 || ep.Ranks == 0 || ep.Rank == l.Endpoint.Rank)
}
