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
)

// scorers is the table of scorers that a weights profile can name: a new scorer is a function, a row here, and a
// script in testdata.
func scorers() []Term {
	return []Term{
		{Name: ScorerQueue, Score: scoreQueue, Absent: 1},
		{Name: ScorerKVCache, Score: scoreKVCache, Absent: 1},
		{Name: ScorerPrefix, Score: scorePrefix},
		{Name: ScorerLoRAAffinity, Score: scoreLoRAAffinity},
		{Name: ScorerRunningRequests, Score: scoreRunning, Absent: 1},
		{Name: ScorerLRU, Score: scoreLRU, Absent: .5},
		{Name: ScorerPredictedLatency, Score: scorePredictedLatency, Absent: 1},
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

// Weights makes the reference's kind of profile: the weighted sum of scores, each 0..1, normalised as llm-d's
// picker does, so that tuned weights carry over. Names not given count 0. A negative, infinite or unknown weight is an
// error.
func Weights(weights map[string]float64) (*Profile, error) {
	p := &Profile{Name: "weights", Filters: Filters(), TieSlack: 1e-4}
	for _, t := range scorers() {
		w, ok := weights[t.Name]
		if ok && !(w >= 0 && w <= math.MaxFloat32) {
			return nil, fmt.Errorf("cannot use weight %q: %v is not a finite number of 0 or more", t.Name, w)
		}
		if w > 0 {
			t.Weight = float32(w)
			p.Terms = append(p.Terms, t)
		}
	}
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
	return &Profile{Name: "round-robin", Cost: true, Filters: Filters(), Terms: []Term{{Name: "turn", Weight: 1, Score: turn}}}
}

// turn is relative: how many kept endpoints come before this one, counted from the one whose turn it is.
func turn(dst Column, v *View) {
	kept := uint64(0)
	for i := range dst {
		if v.keep[i] {
			kept++
		}
	}
	at := uint64(0)
	for i := range dst {
		if v.keep[i] {
			dst[i] = float32((at + kept - v.Turn%kept) % kept)
			at++
		}
	}
}

// scoreQueue is relative: min–max of the engine's queue over the candidates, 1 for the shortest and for all when they
// are equal. What was sent since the reading counts as queued, so that a burst between two readings spreads.
func scoreQueue(dst Column, v *View) {
	for i := range dst {
		dst[i] = v.Snapshot.Waiting[i] + at(v.SentSince, i)
	}
	minMaxLeast(dst, v.keep)
}

// scoreRunning is relative: min–max over the candidates of what the engine serves, or what we have there if that is more.
func scoreRunning(dst Column, v *View) {
	for i := range dst {
		dst[i] = v.Snapshot.Running[i]
		if own := at(v.InFlight, i); !(dst[i] >= own) {
			dst[i] = own
		}
	}
	minMaxLeast(dst, v.keep)
}

// minMaxLeast turns counts into scores: 1 for the least, 0 for the greatest, 1 for all when they are equal.
func minMaxLeast(dst Column, keep []bool) {
	least, most := float32(math.Inf(1)), float32(math.Inf(-1))
	for i, x := range dst {
		if keep[i] && x == x {
			least, most = min(least, x), max(most, x)
		}
	}
	if most <= least {
		for i, x := range dst {
			if x == x {
				dst[i] = 1
			}
		}
		return
	}
	span := most - least
	for i, x := range dst {
		dst[i] = (most - x) / span
	}
}

// scoreKVCache is absolute: the free share of the KV cache.
func scoreKVCache(dst Column, v *View) {
	for i, use := range v.Snapshot.KVUse {
		dst[i] = 1 - use
	}
}

// scorePrefix is absolute: the share of the prompt's prefix blocks that the endpoint holds, 0 for a prompt without.
func scorePrefix(dst Column, v *View) {
	blocks := float32(max(v.Request.Blocks, 1))
	for i := range dst {
		dst[i] = at(v.Match, i) / blocks
	}
}

// scoreLoRAAffinity is absolute, with llm-d's steps: 1 where the adapter is resident, .8 where a slot is free, .6 where it
// waits for one, 0 where it would have to push another out. Without an adapter everyone gets 1.
func scoreLoRAAffinity(dst Column, v *View) {
	for i := range dst {
		switch adapterOf(v, i) {
		case AdapterNone, AdapterResident:
			dst[i] = 1
		case AdapterRoom:
			dst[i] = .8
		case AdapterWaiting:
			dst[i] = .6
		default:
			dst[i] = 0
		}
	}
}

// scoreLRU is relative: for a request that no candidate holds a block of, 1 for the endpoint that has gone longest without such
// a request down to 0 for the latest; .5 for everyone else. It spreads cold prompts over all caches.
func scoreLRU(dst Column, v *View) {
	oldest, latest := math.Inf(1), math.Inf(-1)
	for i := range dst {
		dst[i] = .5
		if !v.keep[i] {
			continue
		}
		if at(v.Match, i) > 0 {
			oldest, latest = 0, 0
			break
		}
		if v.LastCold != nil {
			oldest, latest = min(oldest, v.LastCold[i]), max(latest, v.LastCold[i])
		}
	}
	if latest <= oldest {
		for i := range dst {
			dst[i] = .5
		}
		return
	}
	for i := range dst {
		dst[i] = float32((latest - v.LastCold[i]) / (latest - oldest))
	}
}

// scorePredictedLatency is relative: the least predicted time to first token among the candidates divided by this one's.
func scorePredictedLatency(dst Column, v *View) {
	best := float32(math.Inf(1))
	for i := range dst {
		if v.keep[i] {
			dst[i] = 1 + waitMS(v, i) + prefillMS(v, i) + kvWaitMS(v, i) + adapterMS(v, i)
			best = min(best, dst[i])
		}
	}
	for i := range dst {
		if v.keep[i] {
			dst[i] = best / dst[i]
		}
	}
}

// at reads a column that may be nil, which counts as zero.
func at(c Column, i int) float32 {
	if c == nil {
		return 0
	}
	return c[i]
}

func adapterOf(v *View, i int) Adapter {
	if v.Adapters == nil {
		return AdapterNone
	}
	return v.Adapters[i]
}
