package route

const (
	// decodeShare is how much of the expected decode time counts: what it slows others down by. Experiments settled on
	// 5 %.
	decodeShare = .05
	// decodeOthers is how much of the time counts that a request takes from those that decode beside it, next to its
	// own.
	decodeOthers = .5
	// Computing again what is held elsewhere counts againFactor times, since those who come after wait for it too; and
	// congestion · b²/(1−b) times more where the share b of the pool is busy, at most maxCongestion times.
	againFactor, congestion, maxCongestion = 2, 2, 60
	// copierShare is the least share of computing held tokens again that counts, whatever earlier requests have paid.
	copierShare = .4
	// laterFactor is how many times the delay counts of those who come later: the endpoints they go to instead have queues
	// as well.
	laterFactor = 3
	// What a prompt takes beyond longPrompt, in milliseconds, counts longShare times there: the longest would wait behind
	// all others of their kind.
	longPrompt, longShare = 2000, .25
	// leastFree is the least share of the time that an endpoint is taken to be free: without a bound a full one costs
	// any amount.
	leastFree = .1
	// headProgress caps how much of the oldest prefill may be assumed done before its first token is seen.
	headProgress = .9
)

// Latency makes the default profile: the least expected cost in milliseconds, with no weights to tune. Its terms are
// the request's own time to first token there (wait, prefill, launch, kvWait, adapter), what its prompt costs those who
// come after (later), a share of its decode time and of what that costs the others (decode), and what an endpoint that
// fails requests makes them lose (errors); where the request has a session, also what leaving its endpoint costs
// (session).
func Latency() *Profile {
	return &Profile{
		Guarded: guarded(), Name: profileLatency, Cost: true, Copies: true, Unit: "ms", TieRatio: .1, TieSlack: 2, Filters: filters(),
		Terms: []Term{
			{Name: "wait", Weight: 1, Score: waitMS}, // before prefill and later, which go by what it finds
			{Name: "prefill", Weight: 1, Score: prefillMS},
			{Name: "later", Weight: 1, Score: laterMS},
			{Name: "launch", Weight: 1, Score: launchMS},
			{Name: "kvWait", Weight: 1, Score: kvWaitMS},
			{Name: "adapter", Weight: 1, Score: adapterMS},
			{Name: "decode", Weight: 1, Score: decodeMS},
			{Name: "session", Weight: 1, Score: sessionMS, Rare: true},
			{Name: "errors", Weight: 1, Score: errorsMS, Rare: true},
		},
	}
}

// guardedName is what decides is called while affinity is lost.
const guardedName = "guarded"

// guarded makes the profile that decides while affinity is lost: the reference's default weights.
func guarded() *Profile {
	p, err := Weights(DefaultWeights())
	if err != nil {
		panic(err) // they are constants
	}
	p.Name = guardedName
	return p
}

// waitMS is the time until the step begins in which the engine can compute this request: prefill of what we sent there
// before and of what others queued there, and the rest of the step under way. A step that computes prompts is at most
// headProgress done until its first token shows; of one whose end is not known, half is to come.
func waitMS(dst Column, v *View) {
	kinds, rates := v.Snapshot.Kinds, v.Rates
	waiting, running := v.waiting, v.running
	prefilling, own, work, head, context := v.column(v.Prefilling), v.column(v.InFlight), v.column(v.Work), v.column(v.Head), v.column(v.Context)
	for i := range dst {
		r := &rates[kinds[i]]
		ms := work[i]
		if others := waiting[i] - prefilling[i]; others > 0 && others <= huge { // false for NaN
			ms += others * r.Compute(v.MeanUncached, 0)
		}
		ms *= r.Prefill
		batch := busy(own[i], running[i])
		switch {
		case head[i] > 0 && v.HeadSince != nil:
			step := r.Prefill * (head[i] + r.Launch(head[i], batch, context[i]))
			done := min(max(float32(v.Now-v.HeadSince[i])*1000, 0), headProgress*step)
			ms = max(ms+step-r.Prefill*head[i]-done, step-done)
		case v.StepEnd != nil && v.StepEnd[i] > v.Now:
			if left := float32(v.StepEnd[i]-v.Now) * 1000; left <= huge {
				ms += left
			}
		case batch > 0 && (v.StepEnd == nil || v.StepEnd[i] == 0):
			ms += r.Decode * r.Token(batch, context[i]) / 2
		}
		dst[i] = ms
	}
	v.queue = v.least(dst)
}

// least is the least of the kept endpoints' values that are known, 0 where none is.
func (v *View) least(c Column) float32 {
	least := float32(huge)
	for i, ms := range c {
		if v.keep[i] && ms < least { // false for NaN
			least = ms
		}
	}
	if least == huge {
		return 0
	}
	return least
}

// uncached is the prompt tokens that an endpoint holding match units would have to compute, at least 1: the last token
// always is.
func (r *Request) uncached(match float32) float32 {
	return max(r.PromptTokens-match*r.UnitTokens, 1)
}

// prefillMS is the time to compute the uncached prompt tokens on that kind of endpoint. What that is more than where
// most of the prompt is held is computed again for nothing, delays those who come after, and costs the pool more the
// busier it is: counting it only once, an overloaded pool loses its hits to small differences in waiting, and more load
// for it.
//
// On the other hand earlier requests may have paid: they missed, by waiting where the beginning is held, what another
// copy would have saved them. So a copy is made when its absence has cost as much as it does, as one rents until the
// rent has come to the price; knowing nothing of the future that is at most twice as dear as knowing all (ski rental:
// Karlin and others, 1988). But it is one request that waits for the copy: it goes elsewhere only if it saves itself
// copierShare of that, so that copies are made when holders are behind, and not for a few milliseconds.
func prefillMS(dst Column, v *View) {
	kinds, match := v.Snapshot.Kinds, v.column(v.Match)
	least, price := v.Request.uncached(v.most), v.recompute()
	for i := range dst {
		r := &v.Rates[kinds[i]]
		dst[i] = v.Request.compute(r, least) + v.again(i, match[i], least, price)
	}
}

// compute is the time to compute so many of the prompt's last tokens.
func (r *Request) compute(rate *Rate, uncached float32) float32 {
	return rate.Prefill * rate.Compute(uncached, r.PromptTokens-uncached)
}

// laterMS is what computing the prompt costs those who come after, of what is held elsewhere apart: that is
// in prefill, where it can be paid for.
func laterMS(dst Column, v *View) {
	kinds, least := v.Snapshot.Kinds, v.Request.uncached(v.most)
	for i := range dst {
		ms := v.Request.compute(&v.Rates[kinds[i]], least)
		if ms > longPrompt {
			ms = longPrompt + longShare*(ms-longPrompt)
		}
		dst[i] = v.later(i) * ms
	}
}

// later is how many milliseconds others are delayed by each millisecond of prompt: those who come there, at the rate at
// which they have come, and whom they delay (first policy iteration of dispatching to queues in order of arrival:
// Hyytiä, Penttinen and Aalto, EJOR 2012). They come for as long as they would wait anywhere, which is the shortest
// wait, and no longer: once the wait there is above that, they see it and go elsewhere. So where all endpoints have
// queues, long prompts gather where few requests come, and go on doing so although the wait there is longer, and short
// prompts have the others to themselves.
func (v *View) later(i int) float32 {
	if v.Arrivals == nil || v.Occupied == nil || !(v.Arrivals[i] > 0) {
		return 0
	}
	free := float32(leastFree)
	if f := 1 - v.Occupied[i]; f > free { // false for NaN
		free = f
	}
	return laterFactor * v.Arrivals[i] / 1000 / free * v.queue
}

// again is what computing held tokens again costs at an endpoint that holds match units, beyond what has been paid.
func (v *View) again(i int, match, least, price float32) float32 {
	r := &v.Rates[v.Snapshot.Kinds[i]]
	more := v.Request.compute(r, v.Request.uncached(match)) - v.Request.compute(r, least)
	ms := more * (price + v.later(i))
	if v.Request.Missed > 0 {
		ms = max(ms-againFactor*v.Request.Missed, copierShare*more) // in the same coin: paid when it has cost as much once
	}
	return max(ms, 0)
}

// launchMS is what the step costs that computes the request besides its tokens: the step itself, and the requests that
// decode in it.
func launchMS(dst Column, v *View) {
	kinds, match, work, head := v.Snapshot.Kinds, v.column(v.Match), v.column(v.Work), v.column(v.Head)
	running, own, context := v.running, v.column(v.InFlight), v.column(v.Context)
	for i := range dst {
		r, uncached := &v.Rates[kinds[i]], v.Request.uncached(match[i])
		together := max(work[i]-head[i], 0) + r.Compute(uncached, v.Request.PromptTokens-uncached)
		dst[i] = r.Prefill * r.Launch(together, busy(own[i], running[i]), context[i])
	}
}

// recompute is how many times computing something again counts.
func (v *View) recompute() float32 {
	if !(v.Busy > 0) {
		return againFactor
	}
	busy := min(v.Busy, 1)
	return againFactor + min(congestion*busy*busy/max(1-busy, .01), maxCongestion)
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

// missed is what a request of this total would save, did one more endpoint hold as much of its beginning as the one
// that holds most: the mean over the kept ones that don't. What it would save did all of them is two to three times as
// much, and pays for copies that don't come back.
func (v *View) missed(total float32) float32 {
	if v.most == 0 {
		return 0
	}
	least, price := v.Request.uncached(v.most), v.recompute()
	sum, without := float32(0), float32(0)
	for i, m := range v.Match {
		if !v.keep[i] || m >= v.most {
			continue
		}
		without++
		if saves := total - v.total[i] + v.again(i, m, least, price); saves > 0 {
			sum += saves
		}
	}
	return sum / max(without, 1)
}

// kvWaitMS is the expected wait for room in the KV cache. Only what requests add counts, their uncached tokens and
// their output: charging a shared prefix once per request makes the endpoint that holds it look full and drives its
// traffic away. A full cache comes free within as many steps as a request has tokens of output, whoever holds it.
func kvWaitMS(dst Column, v *View) {
	s := v.Snapshot
	waiting, running, use := v.waiting, v.running, v.use
	held, own, match, context := v.column(v.Held), v.column(v.InFlight), v.column(v.Match), v.column(v.Context)
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
			r, batch := &v.Rates[s.Kinds[i]], busy(own[i], running[i])
			dst[i] = v.MeanOutput * r.Decode * r.Token(batch, context[i]) * over / size
		}
	}
}

// decodeMS is the share of the request's decode time that counts, and what it slows the others down by meanwhile.
func decodeMS(dst Column, v *View) {
	kinds := v.Snapshot.Kinds
	running, own, context := v.running, v.column(v.InFlight), v.column(v.Context)
	share := decodeShare * v.Request.OutputTokens
	adds := v.Request.PromptTokens + v.Request.OutputTokens/2
	for i := range dst {
		r, batch := &v.Rates[kinds[i]], busy(own[i], running[i])
		dst[i] = share * r.Decode * (r.Token(batch, context[i]) + decodeOthers*batch*(r.DB+r.DC*adds*1e-3))
	}
}

// busy is how many requests an endpoint serves: what it says, or what we have there if that is more.
func busy(own, running float32) float32 {
	if running <= huge { // false for NaN
		return max(own, running)
	}
	return own
}
