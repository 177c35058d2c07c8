package route

import (
	"fmt"
	"math"
	"slices"
)

// The names of scorers as the reference's weights spell them.
const (
	ScorerQueue            = "queue"
	ScorerKVCache          = "kvCache"
	ScorerPrefix           = "prefix"
	ScorerLoRAAffinity     = "loraAffinity"
	ScorerRunningRequests  = "runningRequests"
	ScorerLRU              = "lru"
	ScorerPredictedLatency = "predictedLatency"
	ScorerSessionAffinity  = "sessionAffinity"
)

// scorers is the table of scorers that a weights profile can name: a new scorer is a function, a row here, and a script
// in testdata.
func scorers() []Term {
	return []Term{
		{Name: ScorerQueue, Score: scoreQueue, Absent: 1},
		{Name: ScorerKVCache, Score: scoreKVCache, Absent: 1},
		{Name: ScorerPrefix, Score: scorePrefix},
		{Name: ScorerLoRAAffinity, Score: scoreLoRAAffinity},
		{Name: ScorerRunningRequests, Score: scoreRunning, Absent: 1},
		{Name: ScorerLRU, Score: scoreLRU, Absent: .5},
		{Name: ScorerPredictedLatency, Score: scorePredictedLatency, Absent: 1},
		{Name: ScorerSessionAffinity, Score: scoreSession},
	}
}

// ScorerNames lists the names that Weights accepts, in the order in which their terms are summed.
func ScorerNames() []string {
	var names []string
	for _, t := range scorers() {
		names = append(names, t.Name)
	}
	return names
}

const (
	maxWeight = 1e6
	// tieShare of the greatest possible total is the width of a tie: totals that differ by less differ by rounding. It
	// is a share, so that multiplying all weights changes nothing.
	tieShare = 1e-5
)

// Weights makes the reference's kind of profile: the weighted sum of scores, each 0..1, normalised as llm-d's picker
// does, so that tuned weights carry over. Names not given count 0. A negative, infinite or unknown weight is an error,
// and so is one beyond a million, with which the others would drown.
func Weights(weights map[string]float64) (*Profile, error) {
	p := &Profile{Name: profileWeights, Filters: filters()}
	sum := float32(0)
	for _, t := range scorers() {
		w, ok := weights[t.Name]
		if ok && !(w >= 0 && w <= maxWeight) {
			return nil, fmt.Errorf("cannot use weight %q: %v is not a number from 0 to %v", t.Name, w, maxWeight)
		}
		if t.Weight = float32(w); t.Weight > 0 {
			p.Terms = append(p.Terms, t)
			sum += t.Weight
		}
	}
	p.TieSlack = sum * tieShare
	p.Scattered = weights[ScorerPrefix] == 0 && weights[ScorerPredictedLatency] == 0
	names := ScorerNames()
	for name := range weights {
		if !slices.Contains(names, name) {
			return nil, fmt.Errorf("cannot use weight %q: no such scorer; known are %v", name, names)
		}
	}
	return p, nil
}

// DefaultWeights are the reference's: queue 2, kvCache 2, prefix 3.
func DefaultWeights() map[string]float64 {
	return map[string]float64{ScorerQueue: 2, ScorerKVCache: 2, ScorerPrefix: 3}
}

// RoundRobin makes the profile that takes the endpoints in turn, as a yardstick for the others.
func RoundRobin() *Profile {
	return &Profile{Name: profileRoundRobin, Cost: true, Unit: "places", Filters: filters(), Terms: []Term{{Name: "turn", Weight: 1, Score: turn}}}
}

// turn is relative: how many kept endpoints come before this one, counted from the one whose turn it is. It alone
// depends on the order of rows.
func turn(dst Column, v *View) {
	kept := uint64(0)
	for _, keep := range v.keep {
		if keep {
			kept++
		}
	}
	if kept == 0 {
		return
	}
	place := kept - v.Turn%kept
	for i := range dst {
		dst[i] = float32(place % kept)
		if v.keep[i] {
			place++
		}
	}
}

// scoreQueue is relative: min–max of the engine's queue over the candidates, 1 for the shortest and for all when they
// are equal. What was sent since the reading counts as queued, so that a burst between two readings spreads; where no
// candidate tells its queue, it is all there is to go by.
func scoreQueue(dst Column, v *View) {
	waiting, sent := v.waiting, v.column(v.SentSince)
	for i, w := range waiting {
		if w >= 0 {
			dst[i] = w + sent[i]
		} else {
			dst[i] = nan()
		}
	}
	if !minMaxLeast(dst, v.keep) {
		copy(dst, sent)
		minMaxLeast(dst, v.keep)
	}
}

// scoreRunning is relative: min–max over the candidates of what the engine serves, or what we have there if that is
// more.
func scoreRunning(dst Column, v *View) {
	running, own := v.running, v.column(v.InFlight)
	for i := range dst {
		dst[i] = busy(own[i], running[i])
	}
	minMaxLeast(dst, v.keep)
}

// minMaxLeast turns counts into scores: 1 for the least, 0 for the greatest, 1 for all when they are equal. It reports
// whether any kept count is known; if none is, all stay unknown.
func minMaxLeast(dst Column, keep []bool) bool {
	least, most := float32(math.Inf(1)), float32(math.Inf(-1))
	for i, x := range dst {
		if !keep[i] || !(x <= huge) {
			continue
		}
		if x < least {
			least = x
		}
		if x > most {
			most = x
		}
	}
	if most < least {
		return false
	}
	scale := float32(0)
	if most > least {
		scale = 1 / (most - least)
	}
	for i, x := range dst {
		dst[i] = 1 - (x-least)*scale
	}
	return true
}

// scoreKVCache is absolute: the free share of the KV cache.
func scoreKVCache(dst Column, v *View) {
	for i, use := range v.use {
		dst[i] = 1 - kvShare(use)
	}
}

// kvShare is a KV use as scraped, or NaN where that can't be one: negative, infinite, or a percentage.
func kvShare(use float32) float32 {
	if use >= 0 && use < 1.1 {
		return min(use, 1)
	}
	return nan()
}

func nan() float32 { return float32(math.NaN()) }

// scorePrefix is absolute: the share of the prompt, in units, that the endpoint holds, 0 for a prompt without.
func scorePrefix(dst Column, v *View) {
	units := float32(max(v.Request.Units, 1))
	for i, match := range v.column(v.Match) {
		dst[i] = min(match/units, 1)
	}
}

// scoreLoRAAffinity is absolute, with llm-d's steps: 1 where the adapter is resident, .8 where a slot is free, .6 where
// it waits for one, 0 where it would have to push another out. Without an adapter everyone gets 1.
func scoreLoRAAffinity(dst Column, v *View) {
	steps := [8]float32{AdapterNone: 1, AdapterResident: 1, AdapterRoom: .8, AdapterWaiting: .6}
	if v.Adapters == nil {
		for i := range dst {
			dst[i] = 1
		}
	}
	for i, a := range v.Adapters {
		dst[i] = steps[a&7]
	}
}

// scoreLRU is relative: for a request that no candidate holds a block of, 1 for an endpoint that never had such a
// request, and of the others 1 for the one that has gone longest without down to 0 for the latest; .5 for everyone
// else. It spreads cold prompts over all caches. Never stands apart, since next to it all other times would look the
// same.
func scoreLRU(dst Column, v *View) {
	oldest, latest := v.coldSpan()
	if latest < oldest {
		for i := range dst {
			dst[i] = .5
		}
		return
	}
	scale := 0.
	if latest > oldest {
		scale = 1 / (latest - oldest)
	}
	for i, cold := range v.LastCold {
		dst[i] = float32((latest - cold) * scale)
		if cold == 0 {
			dst[i] = 1
		}
	}
}

// coldSpan returns when a request without a match was last sent to those candidates that ever had one, at the earliest
// and at the latest; latest is before oldest when none had, or when a candidate holds a block of this request.
func (v *View) coldSpan() (oldest, latest float64) {
	oldest, latest = math.Inf(1), math.Inf(-1)
	for i, match := range v.Match {
		if match > 0 && v.keep[i] {
			return oldest, latest
		}
	}
	for i, cold := range v.LastCold {
		if !v.keep[i] || cold == 0 {
			continue
		}
		if cold < oldest {
			oldest = cold
		}
		if cold > latest {
			latest = cold
		}
	}
	return oldest, latest
}

// scorePredictedLatency is relative: the least predicted time to first token among the candidates divided by this
// one's.
func scorePredictedLatency(dst Column, v *View) {
	for i := range dst {
		dst[i] = 1
	}
	for _, part := range [...]Scorer{waitMS, prefillMS, launchMS, kvWaitMS, adapterMS} {
		part(v.part, v)
		for i, ms := range v.part {
			dst[i] += ms
		}
	}
	best := float32(math.Inf(1))
	for i, ms := range dst {
		if ms < best && v.keep[i] {
			best = ms
		}
	}
	for i, ms := range dst {
		dst[i] = best / ms
	}
}
