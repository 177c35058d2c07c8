package route

const (
	filterStale = "stale"
	// leastFresh is the share of endpoints that must be fresh for the others to be left out. Where most give no
	// readings, the readings are at fault: leaving the endpoints out one after another would send everything to the
	// last that can be read.
	leastFresh = .5
)

// filters are the filters every profile begins with, in the order they apply. The soft ones come last, so that they are
// lifted only for endpoints that could serve, and of those the surest first: an endpoint that is left for want of a
// better one is rather stale than stalled.
func filters() []Filter {
	return []Filter{
		{Name: "notReady", Clear: clearNotReady, Says: "not ready"},
		{Name: "draining", Clear: clearDraining, Says: "draining"},
		{Name: "subset", Clear: clearOutside, Says: "outside the subset that the request may go to"},
		{Name: "tried", Clear: clearTried, Says: "tried already for this request"},
		{Name: "adapter", Clear: clearAdapterMissing, Says: "does not offer the adapter"},
		{Name: "holder", Clear: clearNotHolder, Soft: true, Says: "does not keep the response that the request continues"},
		{Name: "stalled", Clear: clearStalled, Soft: true, Says: "has requests and makes no progress"},
		{Name: filterStale, Clear: clearStale, Soft: true, Least: leastFresh, Says: "reading too old"},
		{Name: "ejected", Clear: clearEjected, Soft: true, Says: "failed a moment ago"},
	}
}

func clearNotReady(keep []bool, v *View) int { return clearState(keep, v, NotReady) }

func clearDraining(keep []bool, v *View) int { return clearState(keep, v, Draining) }

func clearStalled(keep []bool, v *View) int { return clearState(keep, v, Stalled) }

func clearState(keep []bool, v *View, state State) (cleared int) {
	for i, s := range v.Snapshot.States {
		if s&state != 0 && keep[i] {
			keep[i] = false
			cleared++
		}
	}
	return cleared
}

func clearTried(keep []bool, v *View) int { return clearMarked(keep, v.Tried) }

func clearOutside(keep []bool, v *View) int { return clearMarked(keep, v.Outside) }

func clearMarked(keep, marked []bool) (cleared int) {
	for i, m := range marked {
		if m && keep[i] {
			keep[i] = false
			cleared++
		}
	}
	return cleared
}

// clearNotHolder leaves out who does not keep the response that the request continues. Where the holder has left or was
// tried, any endpoint's answer is as good: that the response is not known.
func clearNotHolder(keep []bool, v *View) (cleared int) {
	if v.Request.Holder == "" {
		return 0
	}
	for i, name := range v.Snapshot.Names {
		if name != v.Request.Holder && keep[i] {
			keep[i] = false
			cleared++
		}
	}
	return cleared
}

func clearAdapterMissing(keep []bool, v *View) (cleared int) {
	for i, a := range v.Adapters {
		if a == AdapterMissing && keep[i] {
			keep[i] = false
			cleared++
		}
	}
	return cleared
}

// clearStale leaves out endpoints whose last good reading is older than the limit, unless their answers flow: whoever
// answers serves, whatever became of its metrics.
func clearStale(keep []bool, v *View) (cleared int) {
	for i := range keep {
		if keep[i] && v.old(i) && !v.answers(i) {
			keep[i] = false
			cleared++
		}
	}
	return cleared
}

// old reports whether row i's last good reading is too old to be used. An endpoint that publishes no metrics has none
// to be old.
func (v *View) old(i int) bool {
	return v.StaleAfter > 0 && v.Now-v.Snapshot.ReadAt[i] > v.StaleAfter && v.Snapshot.States[i]&Unmetered == 0
}

// answers reports whether bytes of an answer have come from row i since readings would be too old.
func (v *View) answers(i int) bool {
	return v.LastByte != nil && v.LastByte[i] > 0 && v.Now-v.LastByte[i] <= v.StaleAfter
}

// forget takes the readings that are too old out of the columns that scorers read: of those endpoints only what was
// sent there is known.
func (v *View) forget() {
	s, n := v.Snapshot, len(v.keep)
	v.waiting, v.running, v.use = s.Waiting[:n], s.Running[:n], s.KVUse[:n]
	kept := 0
	for i, keep := range v.keep {
		if keep {
			kept++
			if v.old(i) {
				v.aged++
			}
		}
	}
	if v.aged == 0 {
		return
	}
	v.blind = v.aged == kept
	for k, c := range [...]*Column{&v.waiting, &v.running, &v.use} {
		masked := v.masked[k][:n]
		copy(masked, *c)
		for i := range masked {
			if v.old(i) {
				masked[i] = nan()
			}
		}
		*c = masked
	}
}

func clearEjected(keep []bool, v *View) (cleared int) {
	for i, until := range v.EjectedUntil {
		if v.Now < until && keep[i] {
			keep[i] = false
			cleared++
		}
	}
	return cleared
}
