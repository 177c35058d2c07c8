package sim

import (
	"math"
	"slices"
	"time"
)

// Result is what became of the requests that arrived after the warm-up.
type Result struct {
	counted []outcome
	ttft    []float64
	// Unfinished requests had arrived and not ended when the world did; Failed ones broke after their first byte or
	// found no endpoint.
	Unfinished, Failed int
	// Moved is how often a request without a byte went to another endpoint, Preemptions how often an engine took blocks
	// away; both of all requests.
	Moved, Preemptions int
	// Served is how many requests each endpoint began to answer.
	Served []int
	// Steps is how many steps all engines did.
	Steps int64
	// CachedTokens of PromptTokens were found in the engines' caches.
	CachedTokens, PromptTokens float64
	tokensPerSecond            float64
	busy                       []float64     // seconds of steps of each endpoint
	shocked                    time.Duration // when the engines were flooded, 0 for never
}

type outcome struct {
	ttft     float64 // seconds; of a request without a first token, how long it had waited
	tpot     float64 // seconds per token after the first of those that came, NaN when there is none
	e2e      float64 // seconds to the last token; of a request that did not finish, how long it had taken
	answered bool
	finished bool
	arrived  time.Duration
}

// add counts a request that has had so many tokens.
func (r *Result) add(f *flight, now time.Duration, tokens int, failed, finished bool) {
	o := outcome{tpot: math.NaN(), e2e: (now - f.arrived).Seconds(), answered: f.first != 0, finished: finished, arrived: f.arrived}
	if o.answered {
		o.ttft = (f.first - f.arrived).Seconds()
		r.PromptTokens += float64(f.seq.Prompt)
		r.CachedTokens += float64(f.seq.Cached())
		for len(r.Served) <= f.endpoint {
			r.Served = append(r.Served, 0)
		}
		r.Served[f.endpoint]++
	} else {
		o.ttft = (now - f.arrived).Seconds()
	}
	if o.answered && tokens > 1 {
		o.tpot = (now - f.first).Seconds() / float64(tokens-1)
	}
	if failed {
		r.Failed++
	} else if !finished {
		r.Unfinished++
	}
	r.counted = append(r.counted, o)
}

// sort makes the times ready for Quantile: requests without a first token come last, as infinite.
func (r *Result) sort() {
	for _, o := range r.counted {
		if o.answered {
			r.ttft = append(r.ttft, o.ttft)
		} else {
			r.ttft = append(r.ttft, math.Inf(1))
		}
	}
	slices.Sort(r.ttft)
}

// Counted is how many requests the figures are of.
func (r *Result) Counted() int { return len(r.counted) }

// Quantile is the time to first token in seconds below which the share q of all counted requests stay; infinite when
// that many never had one.
func (r *Result) Quantile(q float64) float64 {
	return Quantile(r.ttft, q)
}

// Quantile interpolates between sorted values: the value below which the share q, 0..1, of them stay; NaN of none.
func Quantile(sorted []float64, q float64) float64 {
	if len(sorted) == 0 {
		return math.NaN()
	}
	at := q * float64(len(sorted)-1)
	i := int(at)
	part := at - float64(i)
	if part == 0 || sorted[i] == math.Inf(1) {
		return sorted[i]
	}
	return sorted[i] + part*(sorted[i+1]-sorted[i])
}

// Mean is the mean time to first token in seconds; a request without one counts with how long it had waited, so that it
// is a lower bound.
func (r *Result) Mean() float64 {
	sum := 0.
	for _, o := range r.counted {
		sum += o.ttft
	}
	return sum / float64(len(r.counted))
}

// MeanTPOT is the mean over requests of the seconds between tokens. One that did not finish counts with the tokens it
// had, until the world ended or its engine crashed; one without a second token does not count.
func (r *Result) MeanTPOT() float64 {
	sum, n := 0., 0
	for _, o := range r.counted {
		if o.tpot >= 0 {
			sum += o.tpot
			n++
		}
	}
	return sum / float64(n)
}

// Good is the share of counted requests whose time to first token and between tokens stay within the limits, in
// seconds.
func (r *Result) Good(ttft, tpot float64) float64 {
	n := 0
	for _, o := range r.counted {
		if o.answered && o.ttft <= ttft && !(o.tpot > tpot) {
			n++
		}
	}
	return float64(n) / float64(len(r.counted))
}

// HitRate is the share of prompt tokens that were found in a cache.
func (r *Result) HitRate() float64 { return r.CachedTokens / max(r.PromptTokens, 1) }

// TokensPerSecond is how many tokens came from all engines, whatever became of their requests, from the end of the
// warm-up to the end of the time that counts: under overload what the fleet can do, else what was asked.
func (r *Result) TokensPerSecond() float64 { return r.tokensPerSecond }

// Lost is the share of counted requests that failed or did not finish.
func (r *Result) Lost() float64 { return float64(r.Failed+r.Unfinished) / float64(len(r.counted)) }

// Imbalance is the longest time that an endpoint was busy, as a multiple of the mean: 1 when all worked for as long.
func (r *Result) Imbalance() float64 {
	most, sum := 0., 0.
	for _, s := range r.busy {
		most, sum = max(most, s), sum+s
	}
	return most * float64(len(r.busy)) / sum
}

// Measure is a figure of a run.
type Measure uint8

// The figures of a run: times in seconds to the first token (the first four), between tokens, and to the last token.
const (
	MeanTTFT Measure = iota
	P50
	P95
	P99
	TPOT
	TPOT50
	TPOT95
	TPOT99
	E2E
	E2E50
	E2E95
	E2E99
	// Good is the share of requests within the objective, Tokens in output tokens a second, Hits and Lost are shares,
	// Imbalance is a ratio, Recovery is in seconds, NaN where nothing was to recover from.
	Good
	Tokens
	Hits
	Imbalance
	Lost
	Recovery
	measures
)

// Objective is what a request has to keep to count as good, in seconds; 0 means the default.
type Objective struct {
	TTFT, TPOT float64
}

// DefaultObjective is a first token within 2 s and another each 50 ms.
func DefaultObjective() Objective { return Objective{2, .05} }

// figures are what one run comes to. A quantile beyond the answered requests counts those without an answer by how long
// they have waited.
type figures struct {
	of [measures]float64
	// open says that a request without a first token, or end, had waited for less than the figure, which is so a lower
	// bound.
	open [measures]bool
	// curve is the time to first token of each share of the requests in steps of 1/(curvePoints-1); infinite where
	// there was none.
	curve []float64
	// windows are the times to first token around a shock.
	windows windows
}

const curvePoints = 201

func (r *Result) figures(o Objective) figures {
	f := figures{of: [measures]float64{Good: r.Good(o.TTFT, o.TPOT), Tokens: r.TokensPerSecond(), Hits: r.HitRate(), Imbalance: r.Imbalance(), Lost: r.Lost()},
		windows: r.windows()}
	f.of[Recovery] = f.windows.recovery()
	f.times(MeanTTFT, r.counted, func(o *outcome) (float64, bool) { return o.ttft, o.answered })
	f.times(TPOT, r.counted, func(o *outcome) (float64, bool) { return o.tpot, true })
	f.times(E2E, r.counted, func(o *outcome) (float64, bool) { return o.e2e, o.finished })
	for i := range curvePoints {
		f.curve = append(f.curve, r.Quantile(float64(i)/(curvePoints-1)))
	}
	return f
}

// times sets a mean and the three quantiles after it. Where a time is not over, it is a lower bound; NaN does not
// count.
func (f *figures) times(mean Measure, counted []outcome, of func(*outcome) (seconds float64, over bool)) {
	var all []float64
	shortest, sum := math.Inf(1), 0.
	for i := range counted {
		x, over := of(&counted[i])
		if math.IsNaN(x) {
			continue
		}
		all = append(all, x)
		sum += x
		if !over {
			shortest = min(shortest, x)
		}
	}
	slices.Sort(all)
	f.of[mean], f.open[mean] = sum/float64(len(all)), !math.IsInf(shortest, 1)
	for i, q := range [...]float64{.5, .95, .99} {
		m := mean + 1 + Measure(i)
		f.of[m] = Quantile(all, q)
		f.open[m] = shortest <= f.of[m]
	}
}
