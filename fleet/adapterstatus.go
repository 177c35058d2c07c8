package fleet

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"time"
)

// AdapterStatus is the adapters in an endpoint's slots, as far as the gateway can follow them by what it sends: each list
// in the order of names.
type AdapterStatus struct {
	// Resident have a slot, Waiting have requests and none.
	Resident, Waiting []string
	// Loading is for how long adapters are still being loaded, 0 when none are.
	Loading time.Duration
}

// Adapters describes the adapter slots of an endpoint; of one that isn't there, nothing.
func (p *Pool) Adapters(now time.Duration, endpoint string) AdapterStatus {
	p.mu.Lock()
	defer p.mu.Unlock()
	ep := p.by[endpoint]
	if ep == nil {
		return AdapterStatus{}
	}
	s := AdapterStatus{Loading: max(time.Duration((ep.loadEnd-now.Seconds())*float64(time.Second)), 0)}
	slots := math.MaxInt32
	if m := ep.reading.MaxAdapters; m >= 0 {
		slots = int(min(m, math.MaxInt32))
	}
	for i, name := range ep.inOrder() {
		u := ep.uses[name]
		switch used := ep.resident[name] || u.requests > 0; {
		case i < slots:
			s.Resident = append(s.Resident, name)
		case used:
			s.Waiting = append(s.Waiting, name)
		}
	}
	slices.Sort(s.Resident)
	slices.Sort(s.Waiting)
	return s
}

// inOrder lists an endpoint's adapters in the order in which they have slots: those with requests by when these began, then the
// others, the latest used first.
func (ep *endpoint) inOrder() []string {
	names := slices.Collect(maps.Keys(ep.uses)) // what the engine says is resident is among them
	slices.SortFunc(names, func(a, b string) int {
		x, y := ep.uses[a], ep.uses[b]
		usedX, usedY := x.requests > 0 || ep.resident[a], y.requests > 0 || ep.resident[b]
		switch {
		case usedX != usedY && usedX:
			return -1
		case usedX != usedY:
			return 1
		case usedX:
			return cmp.Or(cmp.Compare(x.since, y.since), cmp.Compare(a, b))
		}
		return cmp.Or(cmp.Compare(y.last, x.last), cmp.Compare(a, b))
	})
	return names
}
