package route

const filterStale = "stale"

// filters are the filters every profile begins with, in the order they apply. The soft ones come last, so that they are
// lifted only for endpoints that could serve, and of those the surest first: an endpoint that is left for want of a
// better one is rather stale than stalled.
func filters() []Filter {
	return []Filter{
		{Name: "notReady", Clear: clearNotReady, Says: "not ready"},
		{Name: "draining", Clear: clearDraining, Says: "draining"},
		{Name: "tried", Clear: clearTried, Says: "tried already for this request"},
		{Name: "adapter", Clear: clearAdapterMissing, Says: "does not offer the adapter"},
		{Name: "stalled", Clear: clearStalled, Soft: true, Says: "has requests and makes no progress"},
		{Name: filterStale, Clear: clearStale, Soft: true, Says: "reading too old"},
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

func clearTried(keep []bool, v *View) (cleared int) {
	for i, tried := range v.Tried {
		if tried && keep[i] {
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

// clearStale leaves out endpoints whose last good reading is older than the limit. An endpoint that publishes no
// metrics has none to be old.
func clearStale(keep []bool, v *View) (cleared int) {
	if v.StaleAfter <= 0 {
		return 0
	}
	states := v.Snapshot.States
	for i, at := range v.Snapshot.ReadAt {
		if v.Now-at > v.StaleAfter && states[i]&Unmetered == 0 && keep[i] {
			keep[i] = false
			cleared++
		}
	}
	return cleared
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
