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
	// Unfinished requests had arrived and not ended when the world did; Failed ones broke after their first byte or found no endpoint.
	Unfinished, Failed int
	// Moved is how often a request without a byte went to another endpoint, Preemptions how often an engine took blocks away; both of all requests.
	Moved, Preemptions int
	// Served is how many requests each endpoint began to answer.
	Served []int
	// Steps is how many steps all engines did.
	Steps int64
	// CachedTokens of PromptTokens were found in the engines' caches.
	CachedTokens, PromptTokens float64
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

// Quantile is the time to first token in seconds below which the share q of all counted requests stay; infinite when that many never had one.
func (r *Result) Quantile(q float64) float64 {
	if len(r.ttft) == 0 {
		return math.NaN()
	}
	at := q * float64(len(r.ttft)-1)
	i := int(at)
	part := at - float64(i)
	if part == 0 || r.ttft[i] == math.Inf(1) {
		return r.ttft[i]
	}
	return r.ttft[i] + part*(r.ttft[i+1]-r.ttft[i])
}

// Mean is the mean time to first token in seconds; a request without one counts with how long it had waited, so that it is a lower bound.
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

// Good is the share of counted requests whose time to first token and between tokens stay within the limits, in seconds.
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

// merge adds another seed's requests.
func (r *Result) merge(o *Result) {
	r.counted = append(r.counted, o.counted...)
	r.Unfinished += o.Unfinished
	r.Failed += o.Failed
	r.Moved += o.Moved
	r.Preemptions += o.Preemptions
	r.Steps += o.Steps
	for i, n := range o.Served {
		for len(r.Served) <= i {
			r.Served = append(r.Served, 0)
		}
		r.Served[i] += n
	}
	r.CachedTokens += o.CachedTokens
	r.PromptTokens += o.PromptTokens
	r.ttft = r.ttft[:0]
	r.sort()
}
