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
	// OutputTokens are those of finished requests, between the first arrival that counts and the last end.
	OutputTokens float64
	from, to     time.Duration
}

type outcome struct {
	ttft     float64 // seconds; of a request without a first token, how long it had waited
	tpot     float64 // seconds per token after the first, NaN when there is none
	answered bool
}

func (r *Result) add(f *flight, now time.Duration, failed, finished bool) {
	o := outcome{tpot: math.NaN(), answered: f.first != 0}
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
	if len(r.counted) == 0 {
		r.from = f.arrived
	}
	r.from, r.to = min(r.from, f.arrived), max(r.to, now)
	if finished {
		r.OutputTokens += float64(f.seq.Output)
	}
	if finished && f.seq.Output > 1 {
		o.tpot = (now - f.first).Seconds() / float64(f.seq.Output-1)
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
	return quantile(r.ttft, q)
}

// quantile interpolates between sorted values; NaN of none.
func quantile(sorted []float64, q float64) float64 {
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

// MeanTPOT is the mean over finished requests of the seconds between tokens.
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

// TokensPerSecond is what finished requests were answered, from the first arrival that counts to the last end: under
// overload less than what was asked.
func (r *Result) TokensPerSecond() float64 { return r.OutputTokens / (r.to - r.from).Seconds() }

// Lost is the share of counted requests that failed or did not finish.
func (r *Result) Lost() float64 { return float64(r.Failed+r.Unfinished) / float64(len(r.counted)) }

// Measure is a figure of a run.
type Measure uint8

// Times to first token in seconds, and the other figures of a run.
const (
	MeanTTFT Measure = iota
	P50
	P95
	P99
	// TPOT is in seconds between tokens, Tokens in output tokens a second, Hits and Lost are shares.
	TPOT
	Tokens
	Hits
	Lost
	measures
)

// figures are what one run comes to. A quantile beyond the answered requests counts those without an answer by how long
// they have waited.
type figures struct {
	of [measures]float64
	// open says that a request without a first token had waited for less than the figure, which is so a lower bound.
	open [measures]bool
	// curve is the time to first token of each share of the requests in steps of 1/(curvePoints-1); infinite where
	// there was none.
	curve []float64
}

const curvePoints = 201

func (r *Result) figures() figures {
	f := figures{of: [measures]float64{MeanTTFT: r.Mean(), TPOT: r.MeanTPOT(), Tokens: r.TokensPerSecond(), Hits: r.HitRate(), Lost: r.Lost()}}
	waits, shortest := make([]float64, len(r.counted)), math.Inf(1)
	for i, o := range r.counted {
		waits[i] = o.ttft
		if !o.answered {
			shortest = min(shortest, o.ttft)
		}
	}
	slices.Sort(waits)
	for m, q := range map[Measure]float64{P50: .5, P95: .95, P99: .99} {
		f.of[m] = quantile(waits, q)
		f.open[m] = shortest <= f.of[m]
	}
	f.open[MeanTTFT] = !math.IsInf(shortest, 1)
	for i := range curvePoints {
		f.curve = append(f.curve, r.Quantile(float64(i)/(curvePoints-1)))
	}
	return f
}
