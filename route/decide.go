package route

import "math"

// huge bounds what counts as a value: anything beyond, infinities included, is as good as not known. Totals of values
// within it stay finite, because weights are bounded too.
const huge = 1e30

// Decide chooses an endpoint for v.Request. It allocates nothing once v's scratch space has grown to the number of
// endpoints, and gives the same answer for the same View. Whatever the readings say, totals of kept endpoints are
// finite.
func (p *Profile) Decide(v *View) Decision {
	return p.of(v).run(v, nil)
}

// of is the profile that decides v: p, or while affinity is lost the one that guards it.
func (p *Profile) of(v *View) *Profile {
	if v.Guard && p.Guarded != nil {
		return p.Guarded
	}
	return p
}

// run is Decide; trace, when given, keeps what each filter and term said.
func (p *Profile) run(v *View, trace *Explanation) Decision {
	v.begin(v.Snapshot.Len())
	d := Decision{Endpoint: -1, Version: v.Snapshot.Version}
	for k := range d.Fallbacks {
		d.Fallbacks[k] = -1
	}
	if left := p.filter(v, trace); left == 0 {
		return d
	}
	v.forget()
	v.most = v.bestMatch()
	d.Blind = v.blind
	for t := range p.Terms {
		term := &p.Terms[t]
		term.Score(v.score, v)
		unknown := v.add(term)
		trace.term(t, v, unknown)
		if unknown > 0 {
			v.addUnknown(term, trace.values(t))
		}
	}
	p.pick(v, &d)
	return d
}

// begin readies the scratch space for n endpoints: all kept, all totals zero.
func (v *View) begin(n int) {
	if cap(v.keep) < n {
		v.keep, v.before, v.all = make([]bool, n), make([]bool, n), make([]bool, n)
		v.score, v.part, v.total = make(Column, n), make(Column, n), make(Column, n)
		v.zero = make(Column, n)
		for k := range v.masked {
			v.masked[k] = make(Column, n)
		}
	}
	v.keep, v.before, v.all = v.keep[:n], v.before[:n], v.all[:n]
	v.score, v.part, v.total = v.score[:n], v.part[:n], v.total[:n]
	v.zero = v.zero[:n]
	for i := range v.keep {
		v.keep[i] = true
	}
	clear(v.total)
	v.aged, v.blind = 0, false
}

// filter applies the profile's filters in order and returns how many endpoints are left.
func (p *Profile) filter(v *View, trace *Explanation) int {
	left := len(v.keep)
	for f := range p.Filters {
		filter := &p.Filters[f]
		copy(v.before, v.keep)
		cleared := filter.Clear(v.keep, v)
		lifted := filter.Soft && cleared > 0 && (cleared == left || v.scarce(filter))
		trace.filter(f, v, lifted)
		if lifted {
			copy(v.keep, v.before)
			continue
		}
		left -= cleared
	}
	return left
}

// scarce reports whether a filter has something against so many of all endpoints that might serve that it must not be
// applied. Those that this request has tried count: a request on its third attempt is no reason to doubt the readings.
func (v *View) scarce(f *Filter) bool {
	if f.Least == 0 {
		return false
	}
	serving := 0
	for i, state := range v.Snapshot.States {
		v.all[i] = state&(NotReady|Draining|Stalled) == 0
		if v.all[i] {
			serving++
		}
	}
	return float32(serving-f.Clear(v.all, v)) < f.Least*float32(serving)
}

// add adds the weighted scores to the totals and returns how many kept endpoints' scores are not known; addUnknown adds
// those. Most decisions have none, so this is the only pass.
func (v *View) add(t *Term) int {
	unknown, weight := 0, t.Weight
	total, keep := v.total[:len(v.score)], v.keep[:len(v.score)]
	for i, s := range v.score {
		if s <= huge && s >= -huge { // false for NaN
			total[i] += weight * s
		} else if keep[i] {
			unknown++
		}
	}
	return unknown
}

// addUnknown puts the mean of the known scores of kept endpoints in place of those not known, so that a missing signal
// neither favours nor condemns an endpoint. It keeps what it put in values, if given.
func (v *View) addUnknown(t *Term, values Column) {
	sum, known := float64(0), 0
	for i, s := range v.score {
		if v.keep[i] && s <= huge && s >= -huge {
			sum += float64(s)
			known++
		}
	}
	mean := t.Absent
	if known > 0 {
		mean = float32(sum / float64(known))
	}
	for i, s := range v.score {
		if s <= huge && s >= -huge {
			continue
		}
		v.total[i] += t.Weight * mean
		if values != nil {
			values[i] = mean
		}
	}
}

// sign turns totals into costs: the least sign·total is the best.
func (p *Profile) sign() float32 {
	if p.Cost {
		return 1
	}
	return -1
}

// pick chooses among the kept endpoints by their totals: the best, or of those as good within the tie band the one with
// the highest rendezvous hash (Thaler and Ravishankar, 1998) of the request's beginning and the endpoint's name. So
// replicas of the gateway that share nothing still agree where a new prefix goes, and requests without a prefix spread
// by their seed.
func (p *Profile) pick(v *View, d *Decision) {
	sign, key, hashes := p.sign(), p.tieKey(v), v.Snapshot.Hashes
	top := v.top(sign, key)
	ratio, slack := p.band(v)
	limit := p.limit(v.total[top[0]], ratio, slack)
	high, next, chosen, second := uint64(0), uint64(0), top[0], int32(-1)
	for i, total := range v.total {
		if sign*total > limit || !v.keep[i] {
			continue
		}
		d.Near++
		switch h := mix(key ^ hashes[i]); {
		case d.Near == 1:
			high, chosen = h, int32(i)
		case h > high:
			next, second = high, chosen
			high, chosen = h, int32(i)
		case second < 0 || h > next:
			next, second = h, int32(i)
		}
	}
	chosen = v.settle(chosen, second, sign, limit)
	d.Verdict, d.Endpoint, d.Total = Send, chosen, v.total[chosen]
	if p.Copies {
		d.Missed = v.missed(d.Total)
		d.Copied = v.Match != nil && v.Match[chosen] < v.most
	}
	k := 0
	for _, i := range top {
		if i != chosen && k < MaxFallbacks {
			d.Fallbacks[k] = i
			k++
		}
	}
}

// settle chooses among near ties, of which the hash puts first before second: a session stays at its endpoint, and a
// new beginning avoids one that is crowded.
func (v *View) settle(first, second int32, sign, limit float32) int32 {
	if home := v.Home - 1; home >= 0 && int(home) < len(v.keep) && v.SessionMS > 0 && v.keep[home] && sign*v.total[home] <= limit {
		return home
	}
	if second >= 0 && v.crowded(first, second) {
		return second
	}
	return first
}

// crowded reports that a prompt of which nobody holds anything is better put where the hash comes second: the first
// holds clearly more already. Of two choices the emptier one keeps caches evenly filled (Azar and others, 1994) where a
// hash alone piles a third of all prefixes on a fifth of the endpoints; and gateways that share nothing see much the
// same, so that they still mostly agree.
func (v *View) crowded(first, second int32) bool {
	const more, slack = 1.25, 16
	return v.Cached != nil && v.Request.Units > 0 && v.Cached[first] > more*v.Cached[second]+slack && v.most == 0
}

// band is the profile's for this view. A request gains nothing from an endpoint that is not the best but agreement.
func (p *Profile) band(v *View) (ratio, slack float32) {
	if !p.Cost || !(v.Alone > 0) {
		return p.TieRatio, p.TieSlack
	}
	share := 1 - min(v.Alone, 1)
	return share * p.TieRatio, share * p.TieSlack
}

// limit is the greatest sign·total that is as good as best.
func (p *Profile) limit(best, ratio, slack float32) float32 {
	return p.sign()*best + max(best, -best)*ratio + slack
}

// tieKey is what the rendezvous goes by: the request's beginning, or its seed when it has none to share or the profile
// doesn't go by it.
func (p *Profile) tieKey(v *View) uint64 {
	if v.Request.Affinity != 0 && !p.Scattered {
		return v.Request.Affinity
	}
	return v.Seed
}

// top returns the best rows in order, one more than there are fallbacks, -1 where there are fewer. Equal totals are
// ordered by rendezvous hash, so that what one endpoint leaves when it fails spreads over the others.
func (v *View) top(sign float32, key uint64) [MaxFallbacks + 1]int32 {
	var top [MaxFallbacks + 1]int32
	n, last := 0, float32(math.Inf(1)) // last is the greatest cost that still has a place
	for i, total := range v.total {
		if sign*total > last || !v.keep[i] {
			continue
		}
		k := n
		for k > 0 && v.precedes(i, int(top[k-1]), sign, key) {
			k--
		}
		if k == len(top) {
			continue
		}
		n = min(n+1, len(top))
		copy(top[k+1:n], top[k:])
		top[k] = int32(i)
		if n == len(top) {
			last = sign * v.total[top[n-1]]
		}
	}
	for k := n; k < len(top); k++ {
		top[k] = -1
	}
	return top
}

// precedes reports whether row a comes before row b in top.
func (v *View) precedes(a, b int, sign float32, key uint64) bool {
	costA, costB := sign*v.total[a], sign*v.total[b]
	if costA == costB {
		return mix(key^v.Snapshot.Hashes[a]) > mix(key^v.Snapshot.Hashes[b])
	}
	return costA < costB
}
