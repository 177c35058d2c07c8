package route

const (
	// adapterLoadMS is what loading an adapter costs where nothing has been learned of it: a guess of the right size
	// (5–10 ms over the bus, 50–200 ms from a local disk).
	adapterLoadMS = 50
	// A load counts twice: it holds up the request, and everyone whose request is in the engine's step. Pushing out an
	// adapter that was used a moment ago costs evictLoads times a load more, half of that after evictHalf seconds
	// without use: it will have to be loaded again.
	loadCounts, evictLoads, evictHalf = 2, 4, 30
)

// adapterMS is the time until the request's adapter is in a slot: until those that hold all slots have ended, and to
// load it; what the adapter that it pushes out will cost; and the rest of the loads under way, which hold up every
// request.
func adapterMS(dst Column, v *View) {
	clear(dst)
	for i, end := range v.LoadEnd {
		if left := float32(end-v.Now) * 1000; left > 0 && left <= huge {
			dst[i] = left
		}
	}
	if v.Adapters == nil {
		return
	}
	load := v.AdapterLoad
	if !(load > 0) {
		load = adapterLoadMS
	}
	kinds, rates := v.Snapshot.Kinds, v.Rates
	idle, ahead, own, context := v.column(v.SlotIdle), v.column(v.SlotAhead), v.column(v.InFlight), v.column(v.Context)
	for i, a := range v.Adapters {
		switch a {
		case AdapterFull:
			dst[i] += load * (loadCounts + evictLoads*evictHalf/(evictHalf+max(idle[i], 0)))
		case AdapterWaiting, AdapterRoom, AdapterMissing:
			dst[i] += load * loadCounts
		}
		if ahead[i] > 0 {
			r := &rates[kinds[i]]
			dst[i] += ahead[i] * v.MeanOutput * r.Decode * r.Token(own[i], context[i])
		}
	}
}
