package fleet

import "math"

// Reading is what one scrape learned about one endpoint. NaN means that the engine does not say.
type Reading struct {
	// Waiting and Running are requests, KVUse is 0..1, KVTokens the size of the KV cache in tokens.
	Waiting, Running, KVUse, KVTokens float64
	// MaxAdapters is the number of adapter slots, NaN where nothing is known of adapters.
	MaxAdapters float64
	// Resident and WaitingAdapters name adapters in GPU memory, and those waiting for a slot.
	Resident, WaitingAdapters []string
	// The engine's own counters since it started: time spent on and tokens of computed prompt, time and tokens of
	// output, prompt tokens taken from cache. They fall only when the engine restarts.
	PrefillSeconds, PrefillTokens, DecodeSeconds, DecodeTokens, CachedTokens float64
	// First tokens that the engine has given since it started, and the seconds that passed before each of them, summed
	// up. Both move when a first token comes.
	Firsts, FirstSeconds float64
	// Requests that the engine has finished since it started, and the tokens of their prompts and answers.
	Finished, FinishedPrompt, FinishedOutput float64
	// Progress is whatever the engine counts that moves for as long as it works, with every step of it rather than with
	// the end of an answer. NaN where it has none: nothing can then be said of a stall.
	Progress float64
}

// UnknownReading is a Reading in which nothing is known, to fill in.
func UnknownReading() Reading {
	nan := math.NaN()
	return Reading{Waiting: nan, Running: nan, KVUse: nan, KVTokens: nan, MaxAdapters: nan,
		PrefillSeconds: nan, PrefillTokens: nan, DecodeSeconds: nan, DecodeTokens: nan, CachedTokens: nan, Progress: nan,
		Firsts: nan, FirstSeconds: nan, Finished: nan, FinishedPrompt: nan, FinishedOutput: nan}
}

// Failure says why a scrape gave no reading.
type Failure uint8

const (
	// ScrapeFailed is a time-out, a server error or an unusable page: the last reading ages, and nothing else is
	// concluded, since a busy engine answers late.
	ScrapeFailed Failure = iota
	// Unreachable is a refused connection, or an answer that says the engine is not ready: the endpoint can't serve.
	Unreachable
	// NoMetrics is a server that works and has no metrics page: it is routed to by live bookkeeping alone.
	NoMetrics
)
