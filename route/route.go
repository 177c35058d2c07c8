// Package route is the decision: given one request and what is known about a pool's endpoints, which endpoint serves it
// soonest. It filters, scores and picks, and its answer can be explained column by column.
//
// It promises to be pure: it reads no clock, draws no random number, takes no lock, does no input or output, and
// allocates nothing per decision. Everything that may influence a decision is a field of View, so the same call serves
// production, an explanation afterwards, a replay under another profile, and a simulation.
//
// It refuses to know where readings come from or how a request travels: that is for fleet, scrape and proxy.
package route

import (
	"encoding/json"
	"math"
	"strconv"
)

// Column holds one value per endpoint, in the row order of the Snapshot it belongs to. NaN means not known; in JSON it
// is null.
type Column []float32

// MarshalJSON writes the values in shortest form and null for NaN and infinities, which JSON cannot hold.
func (c Column) MarshalJSON() ([]byte, error) {
	if c == nil {
		return []byte("null"), nil
	}
	out := make([]byte, 0, 2+8*len(c))
	out = append(out, '[')
	for i, x := range c {
		if i > 0 {
			out = append(out, ',')
		}
		if f := float64(x); math.IsNaN(f) || math.IsInf(f, 0) {
			out = append(out, "null"...)
		} else {
			out = strconv.AppendFloat(out, f, 'g', -1, 32)
		}
	}
	return append(out, ']'), nil
}

// UnmarshalJSON reads what MarshalJSON writes; null becomes NaN.
func (c *Column) UnmarshalJSON(data []byte) error {
	var values []*float32
	if err := json.Unmarshal(data, &values); err != nil {
		return err
	}
	if values == nil {
		*c = nil
		return nil
	}
	*c = make(Column, len(values))
	for i, x := range values {
		if x == nil {
			(*c)[i] = float32(math.NaN())
		} else {
			(*c)[i] = *x
		}
	}
	return nil
}

// Request is what one request asks, in the units that the decision works in. It is fixed once parsed.
type Request struct {
	// Model is the name the client asked for: a base model or an adapter.
	Model string `json:"model"`
	// Adapter is the LoRA adapter that Model names, empty when Model is the base model.
	Adapter string `json:"adapter,omitempty"`
	// PromptTokens is the estimated prompt length in tokens, at least 1.
	PromptTokens float32 `json:"promptTokens"`
	// OutputTokens is the expected output length in tokens: the pool's mean, or the request's limit if that is less.
	OutputTokens float32 `json:"outputTokens"`
	// Units is the prompt's length in the units in which prefixes are measured, 0 when it was not cut into prefix
	// blocks.
	Units int `json:"units"`
	// UnitTokens is the estimated number of tokens in a unit.
	UnitTokens float32 `json:"unitTokens"`
	// Missed is the milliseconds that earlier requests with the same beginning would have saved, had one more endpoint
	// held it, as far as another copy has not been paid for by them.
	Missed float32 `json:"missed,omitempty"`
	// Affinity identifies the leading blocks: requests that share a beginning share it. 0 means no prefix to share.
	Affinity uint64 `json:"affinity,string"`
	// Holder names the endpoint that keeps the response that the request continues, empty when it continues none, or
	// that isn't known.
	Holder string `json:"holder,omitempty"`
}

// State is a set of facts about an endpoint that do not depend on the request.
type State uint16

// The facts a State can hold. The zero State is an endpoint that may serve.
const (
	// NotReady marks an endpoint that cannot serve: unreachable or loading. One that was not asked yet is stale
	// instead.
	NotReady State = 1 << iota
	// Draining marks an endpoint that was taken out of traffic on purpose; it finishes what it has.
	Draining
	// Unmetered marks an endpoint that publishes no metrics: it is never stale, and known by live bookkeeping alone.
	Unmetered
	// Stalled marks an endpoint that answers and yet has made no progress with its requests for long.
	Stalled
)

// Adapter says how an endpoint stands to the adapter of the request.
type Adapter int8

// The ways an endpoint can stand to an adapter, from nothing asked to nothing possible.
const (
	// AdapterNone: the request names no adapter, or nothing is known of adapters there.
	AdapterNone Adapter = iota
	// AdapterResident: in GPU memory now, or sent there by us so recently that it will be.
	AdapterResident
	// AdapterWaiting: requested there already and waiting for a slot.
	AdapterWaiting
	// AdapterRoom: not resident, a slot is free.
	AdapterRoom
	// AdapterFull: not resident, and another adapter has to leave its slot first.
	AdapterFull
	// AdapterMissing: the endpoint lists its adapters, and this one is not among them: it would answer 404.
	AdapterMissing
)

// Snapshot is what was known about a pool's endpoints at one moment, as columns of equal length with one value per
// endpoint. It never changes once published.
type Snapshot struct {
	// Version grows by one with every snapshot of a pool.
	Version uint64 `json:"version"`
	// Names are the endpoints' addresses, unique in a pool.
	Names []string `json:"names"`
	// Pods are the names of the pods that endpoints are, empty for one that is none; nil where none is. Nothing is decided by them.
	Pods []string `json:"pods,omitempty"`
	// Hashes are HashName of Names: ties are broken by name, so that row order does not matter.
	Hashes []uint64 `json:"-"`
	// States holds the facts that do not depend on the request.
	States []State `json:"states"`
	// Why says in words what made an endpoint NotReady, Draining or Stalled, empty otherwise.
	Why []string `json:"why"`
	// Kinds are indexes into View.Rates.
	Kinds []int32 `json:"kinds"`
	// ReadAt is when the last good reading was taken, in seconds of the clock of View.Now; Never if there was none.
	ReadAt []float64 `json:"readAt"`
	// Waiting is the number of requests queued in the engine, scraped.
	Waiting Column `json:"waiting"`
	// Running is the number of requests being served in the engine, scraped.
	Running Column `json:"running"`
	// KVUse is the used share of the KV cache, 0..1, scraped.
	KVUse Column `json:"kvUse"`
	// KVTokens is the size of the KV cache in tokens.
	KVTokens Column `json:"kvTokens"`
}

// Never stands in ReadAt for an endpoint that has not been read: before any time of the clock, yet a number in JSON.
const Never = -1e12

// Len is the number of endpoints.
func (s *Snapshot) Len() int { return len(s.Names) }

// View is a Snapshot plus what held when this request arrived: everything that filters and scorers may read. A View
// also carries Decide's scratch space, so it must not be used by two goroutines at once; reuse it to avoid allocation.
// Columns that are nil count as all zero.
type View struct {
	Snapshot *Snapshot `json:"snapshot"`
	Request  Request   `json:"request"`
	// Now is seconds on a monotonic clock with an arbitrary origin.
	Now float64 `json:"now"`
	// Seed varies from request to request; it decides what nothing else decides.
	Seed uint64 `json:"seed,string"`
	// Turn counts a pool's decisions; round robin follows it.
	Turn uint64 `json:"turn"`
	// StaleAfter is the age in seconds beyond which a reading is too old; 0 means never.
	StaleAfter float64 `json:"staleAfter"`

	// InFlight is the number of requests this gateway sent there and that have not finished.
	InFlight Column `json:"inFlight"`
	// Prefilling is how many of those have not reached their first token.
	Prefilling Column `json:"prefilling"`
	// Backlog is the sum of the uncached prompt tokens of those.
	Backlog Column `json:"backlog"`
	// Work is what computing those takes by the kind's shape, in milliseconds at a factor of 1.
	Work Column `json:"work"`
	// Head is the part of Work that the engine computes now, as far as we can tell.
	Head Column `json:"head"`
	// HeadSince is when the engine can have begun with Head at the earliest: it was sent, and the step before was seen
	// to end.
	HeadSince []float64 `json:"headSince"`
	// StepEnd is when the step should end in which the engine only decodes, in seconds; 0 where it isn't known, or it
	// computes prompts.
	StepEnd []float64 `json:"stepEnd,omitempty"`
	// Held is the tokens that our requests in flight add to the KV cache: uncached prompt, never a shared prefix.
	Held Column `json:"held"`
	// Context is the tokens of context of our requests in flight, halfway through their output.
	Context Column `json:"context"`
	// SentSince is how many requests were sent there after the last reading was taken, and have not finished.
	SentSince Column `json:"sentSince"`
	// LastCold is when a request without any prefix match was last sent there, in seconds; 0 means never.
	LastCold []float64 `json:"lastCold"`
	// EjectedUntil is the time in seconds until which an endpoint that failed is left alone; 0 means not ejected.
	EjectedUntil []float64 `json:"ejectedUntil"`
	// LastByte is when bytes of an answer last came from there, in seconds; 0 means never.
	LastByte []float64 `json:"lastByte,omitempty"`
	// Errors is the share of the latest requests that the endpoint failed, 0 to 1, forgotten over seconds.
	Errors Column `json:"errors,omitempty"`
	// Cached is how many units of prompt the endpoint is believed to hold in all.
	Cached Column `json:"cached,omitempty"`
	// Match is how much of the request's beginning the endpoint holds, in units.
	Match Column `json:"match"`
	// Expected is how many tokens of the prompt each endpoint should find in its cache, Known how well that is known.
	// Both are for explanations: no rule reads them, and they are nil but in a View that was copied for a record.
	Expected Column  `json:"expected,omitempty"`
	Known    []Known `json:"known,omitempty"`
	// Adapters says how each endpoint stands to the request's adapter.
	Adapters []Adapter `json:"adapters"`
	// SlotIdle is how many seconds ago the adapter was last used that would have to leave its slot, and SlotAhead how
	// many requests for other adapters have to end before there is a slot.
	SlotIdle  Column `json:"slotIdle,omitempty"`
	SlotAhead Column `json:"slotAhead,omitempty"`
	// LoadEnd is when the adapters that are being loaded should be there, in seconds.
	LoadEnd []float64 `json:"loadEnd,omitempty"`
	// AdapterLoad is how long loading one takes, in milliseconds; 0 means not known.
	AdapterLoad float32 `json:"adapterLoad,omitempty"`
	// Home is the row of the endpoint that the request's session is at, plus 1; 0 means none. SessionMS is what leaving
	// it costs, in milliseconds.
	Home      int32   `json:"home,omitempty"`
	SessionMS float32 `json:"sessionMs,omitempty"`
	// Tried marks endpoints that failed this request before.
	Tried []bool `json:"tried"`
	// Outside marks endpoints that are not of the subset to which the request may go; nil where it may go to all.
	Outside []bool `json:"outside,omitempty"`
	// Rates are the learned rates, indexed by Snapshot.Kinds.
	Rates []Rate `json:"rates"`
	// Arrivals is how many requests a second are sent there, and Occupied the share of the time in which it has prompts
	// to compute, 0 to 1; both averaged over the last half minute.
	Arrivals Column `json:"arrivals,omitempty"`
	Occupied Column `json:"occupied,omitempty"`
	// Busy is the share of the endpoints that have prompts to compute, smoothed over a hundred decisions, 0 to 1.
	Busy float32 `json:"busy,omitempty"`
	// Guard says that the pool has lost its affinity, so that a profile with a Guarded one decides by that.
	Guard bool `json:"guard,omitempty"`
	// Alone is how sure it is that no one else sends to these endpoints, 0 to 1.
	Alone float32 `json:"alone,omitempty"`
	// MeanUncached and MeanOutput are the pool's means per request, in tokens.
	MeanUncached float32 `json:"meanUncached"`
	MeanOutput   float32 `json:"meanOutput"`

	// Scratch space of Decide, each as long as the Snapshot: what the filters have left, and left before the last of
	// them, and would have left of all; a term's values, a part of such a value, and the sum of all terms.
	keep, before, all  []bool
	score, part, total Column
	// queue is the shortest wait that waitMS found, which laterMS and prefillMS go by.
	queue float32
	// most is bestMatch among the endpoints that the filters kept.
	most float32
	// zero stands in for columns that are nil; it is never written.
	zero Column
	// waiting, running and use are the scraped columns, with the readings that are too old taken out.
	waiting, running, use Column
	// blind says that every kept endpoint's reading is too old to be used, aged how many are.
	blind bool
	aged  int
	// masked is where the columns are kept from which readings are taken out.
	masked [3]Column
}

// Verdict is what a decision comes to.
type Verdict uint8

// The verdicts a decision can have.
const (
	// NoEndpoint: no endpoint may serve the request.
	NoEndpoint Verdict = iota
	// Send: the request goes to Decision.Endpoint.
	Send
)

// String names the verdict as logs and records do.
func (v Verdict) String() string {
	if v == Send {
		return "send"
	}
	return "no endpoint"
}

// MaxFallbacks is how many endpoints a Decision names after its first choice.
const MaxFallbacks = 2

// Decision is the outcome as a value: small, comparable, and sufficient to act on.
type Decision struct {
	Verdict Verdict `json:"verdict"`
	// Blind says that every remaining endpoint was stale, so that the choice rests on live bookkeeping alone.
	Blind bool `json:"blind,omitempty"`
	// Endpoint is the chosen row of the snapshot, -1 when there is none.
	Endpoint int32 `json:"endpoint"`
	// Fallbacks are the next best rows in order, -1 where there are fewer.
	Fallbacks [MaxFallbacks]int32 `json:"fallbacks"`
	// Near is how many endpoints were as good as the best within the profile's tie band, the best included.
	Near int32 `json:"near"`
	// Total is the chosen endpoint's total: milliseconds in a cost profile, else the weighted sum of scores.
	Total float32 `json:"total"`
	// Missed is the milliseconds that this request would save, did one more endpoint hold as much of its beginning as the
	// one that holds most: the mean over those that don't. A pool sums it up in Request.Missed. 0 in profiles that are
	// not costs.
	Missed float32 `json:"missed,omitempty"`
	// Copied says that the chosen endpoint holds less of the request's beginning than another that may serve, and so
	// makes a copy of it.
	Copied bool `json:"copied,omitempty"`
	// Version is the snapshot's.
	Version uint64 `json:"version"`
}

// Profile is a complete, comparable description of how to choose. It never changes once made; see Latency, Weights and
// RoundRobin.
type Profile struct {
	Name    string
	Filters []Filter
	Terms   []Term
	// Cost says that totals are costs and the least wins; otherwise the greatest does.
	Cost bool
	// Copies says that Decision.Missed is wanted: the profile has the prefill term, which makes copies of beginnings
	// that are missed.
	Copies bool
	// Guarded decides instead while View.Guard is set, nil for none.
	Guarded *Profile
	// Unit is what totals and values are in, for explanations; empty for scores.
	Unit string
	// TieRatio and TieSlack make the band of near ties: totals within best·(1 ± TieRatio) ± TieSlack are as good as the
	// best, and a rendezvous hash chooses among them. In a cost profile the band is for replicas of the gateway to
	// agree, and vanishes as View.Alone goes to 1.
	TieRatio, TieSlack float32
	// Scattered says that no term goes by what endpoints have cached, so that the request's seed chooses among near ties,
	// not its beginning.
	Scattered bool
}

// Term is a named, weighted scorer. The name is the configuration key and the metric label.
type Term struct {
	Name   string
	Weight float32
	Score  Scorer
	// Absent is the value that stands for an unknown one when every endpoint's is unknown; where some are known, their
	// mean stands for the rest.
	Absent float32
	// Rare says that the term is nothing most of the time, and left out of what people read where it is.
	Rare bool
}

// Scorer writes one value for each endpoint of v into dst: 0 worst to 1 best in a profile of scores, milliseconds ≥ 0
// in a cost profile, NaN if it cannot tell (infinite values count as that). It has no state and writes every value of
// dst; those of endpoints that a filter has cleared are ignored and must not influence the others. It looks at no other
// scorer, but that prefill and later go by what wait has found, which comes before them.
type Scorer func(dst Column, v *View)

// Filter clears the endpoints that must not serve the request.
type Filter struct {
	// Name is the filter's key in explanations and metrics.
	Name string
	// Clear sets keep to false for the rows that must not serve and returns how many of those were true. It never sets
	// one to true, and its answer for a row does not depend on other rows.
	Clear func(keep []bool, v *View) int
	// Soft says that the filter is lifted when it would leave no endpoint, or a smaller share than Least of all
	// that might serve: a doubtful endpoint beats none, and many beat a few that take everyone's requests.
	Soft  bool
	Least float32
	// Says completes "left out: " in explanations.
	Says string
}

// column returns c, or zeros when c is nil.
func (v *View) column(c Column) Column {
	if c == nil {
		c = v.zero
	}
	return c[:len(v.keep)]
}

// HashName hashes an endpoint's name for tie breaking (FNV-1a, then mixed so that similar names differ in all bits).
func HashName(name string) uint64 {
	h := uint64(14695981039346656037)
	for i := 0; i < len(name); i++ {
		h = (h ^ uint64(name[i])) * 1099511628211
	}
	return mix(h)
}

// mix is the finalizer of splitmix64 (Steele, Lea and Flood, OOPSLA 2014): every input bit reaches every output bit.
func mix(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}
