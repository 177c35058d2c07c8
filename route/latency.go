package route

const (
	// decodeShare is how much of the expected decode time counts: what it slows others down by. Experiments settled on
	// 5 %.
	decodeShare = .05
	// kvWaitFactor is how much longer than on average the KV cache takes to come free when it is needed.
	kvWaitFactor = 2
	// Computing again what is held elsewhere counts congestion · b²/(1−b) times more where the share b of the pool is
	// busy, at most maxCongestion times.
	congestion, maxCongestion = 2, 60
	// decodeSlots is the batch size at which an endpoint decodes at about half its unloaded speed.
	decodeSlots = 256
	// headProgress caps how much of the oldest prefill may be assumed done before its first token is seen.
	headProgress = .9
)

// Latency makes the default profile: the least expected cost in milliseconds, with no weights to tune. Its terms are
// the request's own time to first token there (wait, prefill, kvWait, adapter), a share of its decode time, and what an
// endpoint that fails requests makes them lose (errors).
func Latency() *Profile {
	return &Profile{
		Name: profileLatency, Cost: true, Copies: true, Unit: "ms", TieRatio: .1, TieSlack: 2, Filters: filters(),
		Terms: []Term{
			{Name: "wait", Weight: 1, Score: waitMS},
			{Name: "prefill", Weight: 1, Score: prefillMS},
			{Name: "kvWait", Weight: 1, Score: kvWaitMS},
			{Name: "adapter", Weight: 1, Score: adapterMS},
			{Name: "decode", Weight: 1, Score: decodeMS},
			{Name: "session", Weight: 1, Score: sessionMS, Rare: true},
			{Name: "errors", Weight: 1, Score: errorsMS, Rare: true},
		},
	}
}

// waitMS is the time until the engine can begin with this request: prefill of what we sent there before and of what
// others queued there, less the progress of what it computes now; or the rest of its step if that is decoding only.
func waitMS(dst Column, v *View) {
	kinds, rates := v.Snapshot.Kinds, v.Rates
	waiting, own, backlog := v.waiting, v.column(v.Prefilling), v.column(v.Backlog)
	for i := range dst {
		tokens := backlog[i]
		if others := waiting[i] - own[i]; others > 0 && others <= huge { // false for NaN
			tokens += others * v.MeanUncached
		}
		dst[i] = tokens * rates[kinds[i]].Prefill
	}
	head := v.column(v.Head)
	for i, since := range v.HeadSince {
		if own[i] <= 0 {
			continue
		}
		done := float32(v.Now-since) * 1000
		if most := headProgress * head[i] * rates[kinds[i]].Prefill; done > most {
			done = most
		}
		if done > 0 {
			dst[i] = max(dst[i]-done, 0)
		}
	}
	for i, end := range v.StepEnd {
		if left := float32(end-v.Now) * 1000; left > 0 && left <= huge {
			dst[i] += left
		}
	}
}

// uncached is the prompt tokens that an endpoint holding match units would have to compute, at least 1: the last token
// always is.
func (r *Request) uncached(match float32) float32 {
	return max(r.PromptTokens-match*r.UnitTokens, 1)
}

// prefillMS is the time to compute the uncached prompt tokens on that kind of endpoint. What that is more than where
// most of the prompt is held is computed again for nothing. Those who come after pay for it too, the more the busier
// the pool: counting it only once, an overloaded pool loses its hits to small differences in waiting, and more load for
// it.
//
// On the other hand earlier requests may have paid: they missed, by waiting where the beginning is held, what another
// copy would have saved them. So a copy is made when its absence has cost as much as it does, as one rents until the
// rent has come to the price; knowing nothing of the future that is at most twice as dear as knowing all (ski rental:
// Karlin and others, 1988).
func prefillMS(dst Column, v *View) {
	kinds, rates, match := v.Snapshot.Kinds, v.Rates, v.column(v.Match)
	least, price := v.Request.uncached(v.bestMatch()), v.recompute()
	for i := range dst {
		rate := rates[kinds[i]].Prefill
		dst[i] = least*rate + v.again(match[i], least, rate, price)
	}
}

// again is what computing held tokens again costs at an endpoint that holds match units, beyond what has been paid.
func (v *View) again(match, least, rate, price float32) float32 {
	ms := (v.Request.uncached(match) - least) * rate * price
	if v.Request.Missed > 0 {
		ms -= v.Request.Missed
	}
	return max(ms, 0)
}

// recompute is how many times computing something again counts.
func (v *View) recompute() float32 {
	if !(v.Busy > 0) {
		return 1
	}
	busy := min(v.Busy, 1)
	return 1 + min(congestion*busy*busy/max(1-busy, .01), maxCongestion)
}

// bestMatch is the most units that a kept endpoint holds.
func (v *View) bestMatch() float32 {
	most := float32(0)
	for i, m := range v.Match {
		if m > most && v.keep[i] {
			most = m
		}
	}
	return most
}

// missed is what a request of this total would save, did every kept endpoint hold as much of its beginning as the one
// that holds most.
func (v *View) missed(total float32) float32 {
	most := v.bestMatch()
	if most == 0 {
		return 0
	}
	least, ideal, price := v.Request.uncached(most), total, v.recompute()
	for i, m := range v.Match {
		again := v.again(m, least, v.Rates[v.Snapshot.Kinds[i]].Prefill, price)
		if v.keep[i] && v.total[i]-again < ideal {
			ideal = v.total[i] - again
		}
	}
	return total - ideal
}

// kvWaitMS is the expected wait for room in the KV cache. Only what requests add counts, their uncached tokens and
// their output: charging a shared prefix once per request makes the endpoint that holds it look full and drives its
// traffic away. A running request frees what it added within as many steps as it has tokens of output.
func kvWaitMS(dst Column, v *View) {
	s := v.Snapshot
	waiting, running, use := v.waiting, v.running, v.use
	held, own, match := v.column(v.Held), v.column(v.InFlight), v.column(v.Match)
	steps := kvWaitFactor * v.MeanOutput / max(v.MeanUncached+v.MeanOutput, 1) // per token and running request
	for i, size := range s.KVTokens {
		used := held[i]
		scraped := size * kvShare(use[i])
		if queued := waiting[i] * v.MeanUncached; queued > 0 && queued <= huge {
			scraped += queued
		}
		if scraped > used { // false for NaN
			used = scraped
		}
		dst[i] = 0
		over := used + v.Request.uncached(match[i]) + v.Request.OutputTokens - size
		if size > 0 && over > 0 {
			dst[i] = steps * v.Rates[s.Kinds[i]].Decode * over / max(busy(own[i], running[i]), 1)
		}
	}
}

// decodeMS is the share of the request's decode time that counts, on an endpoint that slows down as it fills.
func decodeMS(dst Column, v *View) {
	kinds, rates := v.Snapshot.Kinds, v.Rates
	running, own := v.running, v.column(v.InFlight)
	share := decodeShare * v.Request.OutputTokens
	for i := range dst {
		dst[i] = share * rates[kinds[i]].Decode * (1 + busy(own[i], running[i])/decodeSlots)
	}
}

// busy is how many requests an endpoint serves: what it says, or what we have there if that is more.
func busy(own, running float32) float32 {
	if running <= huge { // false for NaN
		return max(own, running)
	}
	return own
}
