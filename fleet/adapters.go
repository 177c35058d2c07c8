package fleet

import (
	"maps"
	"math"
	"slices"

	"github.com/sluice-gateway/sluice/route"
)

// An engine has a few slots for adapters. One that has requests keeps its slot until they have ended, whoever else waits
// for one; one that has none keeps it until another needs it, the least recently used first. Engines tell which adapters
// have requests, late, and not which still have a slot. So the pool follows the slots by what it sends.

// use is what is known of an adapter at one endpoint.
type use struct {
	requests int     // of ours, in flight
	since    float64 // when it last went from none to some
	last     float64 // when it was last seen to be used
}

// usesKept is how many seconds an adapter without requests is remembered: after that it has surely lost its slot, or
// costs nothing to push out.
const usesKept = 600

// adapterUse is the adapters of one endpoint that were used lately.
type adapterUse map[string]*use

func (a adapterUse) of(name string) *use {
	u := a[name]
	if u == nil {
		u = &use{}
		a[name] = u
	}
	return u
}

// begin counts a request for the adapter, end that it has ended.
func (a adapterUse) begin(name string, now float64) {
	u := a.of(name)
	if u.requests == 0 {
		u.since = now
	}
	u.requests++
	u.last = max(u.last, now)
}

func (a adapterUse) end(name string, now float64) {
	if u := a[name]; u != nil {
		u.requests--
		u.last = max(u.last, now)
	}
}

// restart forgets what was in the slots: the engine begins anew. Our requests may still have to end.
func (a adapterUse) restart() {
	maps.DeleteFunc(a, func(_ string, u *use) bool { return u.requests == 0 })
}

// observeAdapters takes in which adapters have requests in the engine, others' among them.
func (ep *endpoint) observeAdapters(now float64, r *Reading) {
	ep.resident, ep.queued = set(r.Resident), set(r.WaitingAdapters)
	for _, name := range r.Resident {
		u := ep.uses.of(name)
		u.last = now
	}
	maps.DeleteFunc(ep.uses, func(name string, u *use) bool {
		return u.requests == 0 && !ep.resident[name] && now-u.last > usesKept
	})
	ep.trimUses(r.MaxAdapters)
}

// trimUses forgets adapters that have lost their slots for certain: as many others as there are slots were used later. Picks go through those
// that are remembered, and thousands may be in use over some minutes.
func (ep *endpoint) trimUses(slots float64) {
	if !(slots >= 1) || float64(len(ep.uses)) <= slots {
		return
	}
	latest := ep.idleSince()
	if float64(len(latest)) <= slots {
		return
	}
	oldest := latest[len(latest)-int(slots)]
	maps.DeleteFunc(ep.uses, func(name string, u *use) bool {
		return u.requests == 0 && !ep.resident[name] && u.last < oldest
	})
}

// idleSince is when each adapter without requests was last used, ascending, good until the next call.
func (ep *endpoint) idleSince() []float64 {
	ep.idle = ep.idle[:0]
	for name, u := range ep.uses {
		if u.requests == 0 && !ep.resident[name] {
			ep.idle = append(ep.idle, u.last)
		}
	}
	slices.Sort(ep.idle)
	return ep.idle
}

// unlist forgets adapters that the endpoint no longer offers.
func (ep *endpoint) unlist() {
	maps.DeleteFunc(ep.uses, func(name string, u *use) bool { return u.requests == 0 && !ep.listed[name] })
}

// gatherAdapters says how each endpoint stands to the adapter. Where no endpoint lists it, nobody is left out: an
// engine may load it when asked.
func (p *Pool) gatherAdapters(now float64, adapter string) {
	v := &p.view
	for i, ep := range p.rows {
		v.LoadEnd[i] = ep.loadEnd
	}
	if adapter == "" {
		clear(v.Adapters)
		return
	}
	v.AdapterLoad = float32(1000 * p.loads.mean())
	offered := slices.ContainsFunc(p.rows, func(ep *endpoint) bool { return ep.listed[adapter] })
	for i, ep := range p.rows {
		s := ep.standing(now, adapter, offered)
		v.Adapters[i], v.SlotIdle[i], v.SlotAhead[i] = s.adapter, s.idle, s.ahead
	}
}

// standing is how an endpoint stands to an adapter.
type standing struct {
	adapter route.Adapter
	// idle is how many seconds ago the adapter was last used that has to leave its slot.
	idle float32
	// ahead is how many requests for other adapters have to end before there is a slot.
	ahead float32
}

func (ep *endpoint) standing(now float64, name string, offered bool) standing {
	slots := ep.reading.MaxAdapters
	u := ep.uses[name]
	switch {
	case offered && ep.listed != nil && !ep.listed[name]:
		return standing{adapter: route.AdapterMissing}
	case math.IsNaN(slots) && u != nil, ep.resident[name] && (u == nil || u.requests == 0):
		return standing{adapter: route.AdapterResident}
	case math.IsNaN(slots):
		return standing{adapter: route.AdapterRoom}
	case slots < 1:
		return standing{adapter: route.AdapterFull}
	}
	return ep.inSlots(now, name, int(min(slots, 1<<20)))
}

// inSlots is the standing at an endpoint with so many slots, at least 1.
func (ep *endpoint) inSlots(now float64, name string, slots int) standing {
	u := ep.uses[name]
	c := ep.census(name, u)
	ahead := float32(c.used+1-slots) * float32(c.fewest)
	switch {
	case u != nil && u.requests > 0 && c.before < slots:
		return standing{adapter: route.AdapterResident}
	case u != nil && u.requests > 0:
		return standing{route.AdapterWaiting, 0, float32(c.before+1-slots) * float32(c.fewest)}
	case c.used >= slots && ep.queued[name]:
		return standing{route.AdapterWaiting, 0, ahead}
	case c.used >= slots:
		return standing{route.AdapterFull, 0, ahead}
	case u != nil && c.used+c.later < slots:
		return standing{adapter: route.AdapterResident}
	case c.known < slots:
		return standing{adapter: route.AdapterRoom}
	}
	return standing{adapter: route.AdapterFull, idle: float32(max(now-c.victim(ep, slots), 0))}
}

// slotCensus counts an endpoint's other adapters.
type slotCensus struct {
	known  int // in all
	used   int // that have requests
	before int // of those, that had them before this one
	fewest int // requests that one of those has at least
	later  int // without requests, and used later than this one
}

func (ep *endpoint) census(name string, own *use) slotCensus {
	c := slotCensus{fewest: math.MaxInt32}
	for other, u := range ep.uses {
		if other == name {
			continue
		}
		c.known++
		switch {
		case u.requests > 0 || ep.resident[other]:
			c.used++
			c.fewest = min(c.fewest, max(u.requests, 1))
			if own != nil && u.since <= own.since {
				c.before++
			}
		case own != nil && u.last > own.last:
			c.later++
		}
	}
	return c
}

// victim is when the adapter was last used that leaves its slot next: of those without requests that still have one, the
// least recently used.
func (c *slotCensus) victim(ep *endpoint, slots int) float64 {
	latest := ep.idleSince()
	if len(latest) == 0 {
		return math.Inf(1)
	}
	return latest[max(len(latest)-(slots-c.used), 0)]
}

// loads is what has been learned of the time that an adapter takes to be loaded, in seconds.
type loads struct{ seconds, n float64 }

const (
	// The prior is a load from a local disk that counts as so many. A load within these bounds is believed.
	priorLoad, priorLoads = .05, 4
	loadsDecay            = .95
	maxLoad               = 30
)

func (l *loads) mean() float64 { return (l.seconds + priorLoad*priorLoads) / (l.n + priorLoads) }

func (l *loads) learn(seconds float64) {
	seconds = min(max(seconds, 0), maxLoad)
	l.seconds, l.n = l.seconds*loadsDecay+seconds, l.n*loadsDecay+1
}

// useAdapter counts a request for an adapter at its endpoint, and what loading it holds up.
func (p *Pool) useAdapter(l *Lease, now float64, adapter string, row int) {
	if l.takeAdapter(adapter); adapter == "" {
		return
	}
	if s := p.view.Adapters[row]; s == route.AdapterRoom || s == route.AdapterFull {
		l.loads = true
		l.alone = len(l.ep.leases) == 0 && p.view.SlotAhead[row] == 0
		l.ep.loadEnd = max(l.ep.loadEnd, now) + p.loads.mean()
	}
}

// takeAdapter counts the request at the adapter, if it names one.
func (l *Lease) takeAdapter(adapter string) {
	if l.adapter = adapter; adapter != "" {
		l.ep.uses.begin(adapter, l.sent)
	}
}

// leaveAdapter undoes takeAdapter when the request has ended.
func (l *Lease) leaveAdapter(now float64) {
	if l.adapter != "" {
		l.ep.uses.end(l.adapter, now)
	}
}

// learnLoad learns from the first token of a request that had an adapter loaded at an endpoint with nothing else to do;
// of others' nothing is said that would tell loading from waiting.
func (p *Pool) learnLoad(l *Lease) {
	if l.alone && l.ep.row >= 0 {
		rate := float64(p.view.Rates[l.ep.kind].Prefill) / 1000
		p.loads.learn(l.firstAt - l.sent - float64(l.work)*rate)
	}
}
