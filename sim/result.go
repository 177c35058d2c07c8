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
}

type outcome struct {
	ttft     float64 // seconds; of a request without a first token, how long it had waited
	tpot     float64 // seconds per token after the first of those that came, NaN when there is none
	answered bool
}

// add counts a request that has had so many tokens.
func (r *Result) add(f *flight, now time.Duration, tokens int, failed, finished bool) {
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

// MeanTPOT is the mean over requests of the seconds between tokens. One that did not finish counts with the tokens it had, until
// the world ended or its engine crashed; one without a second token does not count.
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

// TokensPerSecond is how many tokens came from all engines, whatever became of their requests, from the end of the warm-up to the end of
// the time that counts: under overload what the fleet can do, else what was asked.
func (r *Result) TokensPerSecond() float64 { return r.tokensPerSecond }

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
		f.of[m] = Quantile(waits, q)
		f.open[m] = shortest <= f.of[m]
	}
	f.open[MeanTTFT] = !math.IsInf(shortest, 1)
	for i := range curvePoints {
		f.curve = append(f.curve, r.Quantile(float64(i)/(curvePoints-1)))
	}
	return f
}
