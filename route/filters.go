package route

const filterStale = "stale"

// Filters are the filters every profile begins with, in the order they apply. The soft ones come last, so that they
// are lifted only for endpoints that could serve.
func Filters() []Filter {
	return []Filter{
		{Name: "notReady", Drop: notReady, Says: "not ready"},
		{Name: "draining", Drop: draining, Says: "draining"},
		{Name: "tried", Drop: tried, Says: "tried already for this request"},
		{Name: "adapter", Drop: cannotLoad, Says: "does not offer the adapter"},
		{Name: filterStale, Drop: stale, Soft: true, Says: "reading too old"},
		{Name: "ejected", Drop: ejected, Soft: true, Says: "failed a moment ago"},
	}
}

func notReady(v *View, i int) bool { return v.Snapshot.States[i]&NotReady != 0 }

func draining(v *View, i int) bool { return v.Snapshot.States[i]&Draining != 0 }

func tried(v *View, i int) bool { return v.Tried != nil && v.Tried[i] }

func cannotLoad(v *View, i int) bool {
	return v.Adapters != nil && v.Adapters[i] == AdapterMissing
}

// stale leaves out an endpoint whose last good reading is older than the limit. An endpoint that publishes no metrics
// has none to be old.
func stale(v *View, i int) bool {
	return v.StaleAfter > 0 && v.Snapshot.States[i]&Unmetered == 0 && v.Now-v.Snapshot.ReadAt[i] > v.StaleAfter
}

func ejected(v *View, i int) bool {
	return v.EjectedUntil != nil && v.Now < v.EjectedUntil[i]
}
