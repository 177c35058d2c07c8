package route

import "math"

// Decide chooses an endpoint for v.Request. It allocates nothing once v's scratch space has grown to the number of
// endpoints, and gives the same answer for the same View.
func (p *Profile) Decide(v *View) Decision {
	return p.run(v, nil)
}

// run is Decide; trace, when given, keeps what each filter and term said.
func (p *Profile) run(v *View, trace *Explanation) Decision {
	n := v.Snapshot.Len()
	v.grow(n)
	d := Decision{Endpoint: -1, Version: v.Snapshot.Version}
	for k := range d.Fallbacks {
		d.Fallbacks[k] = -1
	}
	if left := p.filter(v, &d, trace); left == 0 {
		return d
	}
	for t := range p.Terms {
		term := &p.Terms[t]
		term.Score(v.score, v)
		known := fill(v.score, v.keep, term.Absent)
		for i, s := range v.score {
			v.total[i] += term.Weight * s
		}
		trace.term(t, v, known)
	}
	p.pick(v, &d)
	return d
}

// grow readies the scratch space for n endpoints: all kept, all totals zero.
func (v *View) grow(n int) {
	if cap(v.keep) < n {
		v.keep, v.before = make([]bool, n), make([]bool, n)
		v.score, v.total = make(Column, n), make(Column, n)
	}
	v.keep, v.before = v.keep[:n], v.before[:n]
	v.score, v.total = v.score[:n], v.total[:n]
	for i := range v.keep {
		v.keep[i] = true
	}
	clear(v.total)
}

// filter applies the profile's filters in order and returns how many endpoints are left.
func (p *Profile) filter(v *View, d *Decision, trace *Explanation) int {
	left := len(v.keep)
	for f := range p.Filters {
		filter := &p.Filters[f]
		copy(v.before, v.keep)
		rest := 0
		for i, kept := range v.keep {
			if kept && filter.Drop(v, i) {
				v.keep[i] = false
			} else if kept {
				rest++
			}
		}
		lifted := filter.Soft && rest == 0 && left > 0
		if lifted {
			copy(v.keep, v.before)
			rest = left
			d.Blind = d.Blind || filter.Name == filterStale
		}
		trace.filter(f, v, lifted)
		left = rest
	}
	return left
}

// fill puts the mean of the known values of kept endpoints in place of the unknown ones, so that a missing signal
// neither favours nor condemns an endpoint. It returns how many values were known.
func fill(score Column, keep []bool, absent float32) int {
	known, unknown, sum := 0, 0, float32(0)
	for i, s := range score {
		switch {
		case !keep[i]:
			score[i] = 0
		case s != s: // NaN
			unknown++
		default:
			known++
			sum += s
		}
	}
	if unknown == 0 {
		return known
	}
	mean := absent
	if known > 0 {
		mean = sum / float32(known)
	}
	for i, s := range score {
		if keep[i] && s != s {
			score[i] = mean
		}
	}
	return known
}

// pick chooses among the kept endpoints by their totals: the best, or of those as good within the tie band the one
// with the highest rendezvous hash (Thaler and Ravishankar, 1998) of the request's beginning and the endpoint's name. So replicas of the gateway that
// share nothing still agree where a new prefix goes, and requests without a prefix spread by their seed.
func (p *Profile) pick(v *View, d *Decision) {
	best := -1
	for i, kept := range v.keep {
		if kept && (best < 0 || p.better(v.total[i], v.total[best])) {
			best = i
		}
	}
	limit := p.band(v.total[best])
	key := v.Request.Affinity
	if key == 0 {
		key = v.Seed
	}
	high, chosen := uint64(0), best
	for i, kept := range v.keep {
		if !kept || p.better(limit, v.total[i]) {
			continue
		}
		d.Near++
		h := mix(key ^ v.Snapshot.Hashes[i])
		if d.Near == 1 || h > high {
			high, chosen = h, i
		}
	}
	d.Verdict, d.Endpoint, d.Total = Send, int32(chosen), v.total[chosen]
	p.fallbacks(v, d)
}

func (p *Profile) better(a, b float32) bool {
	if p.Cost {
		return a < b
	}
	return a > b
}

// band is the worst total that is as good as best.
func (p *Profile) band(best float32) float32 {
	width := float32(math.Abs(float64(best)))*p.TieRatio + p.TieSlack
	if p.Cost {
		return best + width
	}
	return best - width
}

// fallbacks names the next best endpoints after the chosen one; equal totals are ordered by name hash.
func (p *Profile) fallbacks(v *View, d *Decision) {
	for k := range d.Fallbacks {
		next := -1
		for i, kept := range v.keep {
			if !kept || d.names(int32(i)) {
				continue
			}
			if next < 0 || p.better(v.total[i], v.total[next]) ||
				v.total[i] == v.total[next] && v.Snapshot.Hashes[i] > v.Snapshot.Hashes[next] {
				next = i
			}
		}
		if next < 0 {
			return
		}
		d.Fallbacks[k] = int32(next)
	}
}

// names reports whether the decision names row i already.
func (d *Decision) names(i int32) bool {
	if d.Endpoint == i {
		return true
	}
	for _, f := range d.Fallbacks {
		if f == i {
			return true
		}
	}
	return false
}
