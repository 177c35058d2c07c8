package route

const (
	// decodeShare is how much of the expected decode time counts: what it slows others down by. Experiments settled on 5 %.
	decodeShare = .05
	// kvWaitSteps is how many decode steps one running request must go on, on average, for each of its tokens of KV cache to
	// come free per missing token; from the experiments that the latency rule was fitted in.
	kvWaitSteps = 9
	// decodeSlots is the batch size at which an endpoint decodes at about half its unloaded speed.
	decodeSlots = 256
	// adapterLoadMS is what bringing an adapter from host memory into a free slot costs, adapterEvictMS what pushing another
	// out adds, in milliseconds: guesses of the right size (5–10 ms over the bus, 50–200 ms from a local disk).
	adapterLoadMS  = 50
	adapterEvictMS = 100
	// headProgress caps how much of the oldest prefill may be assumed done before its first token is seen.
	headProgress = .9
)

// Latency makes the default profile: the least expected cost in milliseconds, with no weights to tune. Its terms are the request's own
// time to first token there (wait, prefill, kvWait, adapter) and a share of its decode time.
func Latency() *Profile {
	return &Profile{
		Name: "latency", Cost: true, TieRatio: .1, TieSlack: 2, Filters: Filters(),
		Terms: []Term{
			{Name: "wait", Weight: 1, Score: perRow(waitMS)},
			{Name: "prefill", Weight: 1, Score: perRow(prefillMS)},
			{Name: "kvWait", Weight: 1, Score: perRow(kvWaitMS)},
			{Name: "adapter", Weight: 1, Score: perRow(adapterMS)},
			{Name: "decode", Weight: 1, Score: perRow(decodeMS)},
		},
	}
}

// perRow makes an absolute scorer of a function of one row.
func perRow(ms func(v *View, i int) float32) Scorer {
	return func(dst Column, v *View) {
		for i := range dst {
			if v.keep[i] {
				dst[i] = ms(v, i)
			}
		}
	}
}

// waitMS is the time until the engine can begin with this request: prefill of what we sent there before and of what others queued
// there, less the progress of the oldest.
func waitMS(v *View, i int) float32 {
	rate := v.Rates[v.Snapshot.Kinds[i]].Prefill
	own := at(v.Prefilling, i)
	tokens := at(v.Backlog, i)
	if others := v.Snapshot.Waiting[i] - own; others > 0 { // false for NaN
		tokens += others * v.MeanUncached
	}
	wait := tokens * rate
	if own > 0 && v.HeadSince != nil {
		done := float32(v.Now-v.HeadSince[i]) * 1000
		wait -= min(max(done, 0), headProgress*at(v.Head, i)*rate)
	}
	return max(wait, 0)
}

// uncached is the prompt tokens that the endpoint would have to compute, at least 1: the last token always is.
func uncached(v *View, i int) float32 {
	return max(v.Request.PromptTokens-at(v.Match, i)*v.Request.BlockTokens, 1)
}

// prefillMS is the time to compute the uncached prompt tokens on that kind of endpoint.
func prefillMS(v *View, i int) float32 {
	return uncached(v, i) * v.Rates[v.Snapshot.Kinds[i]].Prefill
}

// kvWaitMS is the expected wait for room in the KV cache. Only what requests add counts, their uncached tokens and their output: charging a
// shared prefix once per request makes the endpoint that holds it look full and drives its traffic away.
func kvWaitMS(v *View, i int) float32 {
	size := v.Snapshot.KVTokens[i]
	if !(size > 0) {
		return 0
	}
	used := at(v.Held, i)
	if waiting := v.Snapshot.Waiting[i]; waiting == waiting {
		if scraped := v.Snapshot.KVUse[i]*size + waiting*v.MeanUncached; scraped > used {
			used = scraped
		}
	}
	over := used + uncached(v, i) + v.Request.OutputTokens - size
	if over <= 0 {
		return 0
	}
	return kvWaitSteps * v.Rates[v.Snapshot.Kinds[i]].Decode * over / max(busy(v, i), 1)
}

// adapterMS is the time to bring the request's adapter into a slot.
func adapterMS(v *View, i int) float32 {
	switch adapterOf(v, i) {
	case AdapterNone, AdapterResident:
		return 0
	case AdapterFull:
		return adapterLoadMS + adapterEvictMS
	default:
		return adapterLoadMS
	}
}

// decodeMS is the share of the request's decode time that counts, on an endpoint that slows down as it fills.
func decodeMS(v *View, i int) float32 {
	step := v.Rates[v.Snapshot.Kinds[i]].Decode
	return decodeShare * v.Request.OutputTokens * step * (1 + busy(v, i)/decodeSlots)
}

// busy is how many requests the endpoint serves: what it says, or what we have there if that is more.
func busy(v *View, i int) float32 {
	own := at(v.InFlight, i)
	if running := v.Snapshot.Running[i]; running > own {
		return running
	}
	return own
}
