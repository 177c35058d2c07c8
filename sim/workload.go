package sim

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/sluice-gateway/sluice/route"
)

// Segment is a run of text that requests may share: whoever has the same ID in the same place after the same beginning
// has the same tokens.
type Segment struct {
	ID     uint64
	Tokens int
}

// Request is one request of a workload.
type Request struct {
	// At is when it arrives; for one that follows another, how long after the end of that.
	At time.Duration
	// Follows is the index in the workload of the request whose end this one waits for, -1 for none. If that fails,
	// this one never comes.
	Follows int
	// Prompt is what it says, in order; Reply identifies what will be answered, for a later prompt to repeat.
	Prompt []Segment
	Reply  uint64
	// User is the place in Prompt of what the user said first; before it come system prompt and tools.
	User int
	// Output is the length of the answer in tokens, at least 1.
	Output int
	// Adapter is the LoRA adapter, empty for none.
	Adapter string
}

// PromptTokens is the length of the prompt.
func (r *Request) PromptTokens() int {
	n := 0
	for _, s := range r.Prompt {
		n += s.Tokens
	}
	return n
}

// appendHashes appends the chained hashes of the full blocks of prompt and answer; an adapter's blocks are of no use to
// another.
func (r *Request) appendHashes(dst []uint64) []uint64 {
	var c chain
	if r.Adapter != "" {
		c.hash = route.HashName(r.Adapter)
	}
	for _, s := range r.Prompt {
		dst = c.add(dst, s)
	}
	return c.add(dst, Segment{r.Reply, r.Output})
}

// chain cuts segments into blocks: every hash depends on all before it.
type chain struct {
	hash uint64
	fill int
}

func (c *chain) add(dst []uint64, s Segment) []uint64 {
	for at := 0; at < s.Tokens; {
		n := min(BlockTokens-c.fill, s.Tokens-at)
		c.hash = mix(c.hash ^ mix(s.ID+uint64(at)*0x9e3779b97f4a7c15) + uint64(n))
		at += n
		if c.fill += n; c.fill == BlockTokens {
			c.fill = 0
			dst = append(dst, max(c.hash, 1))
		}
	}
	return dst
}

// mix is the finalizer of splitmix64 (Steele, Lea and Flood, OOPSLA 2014).
func mix(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}

// Rate is how many requests, or sessions, come per second at a time in seconds, and the most that it ever is.
type Rate struct {
	At  func(seconds float64) float64
	Max float64
}

// Steady is a constant rate: a Poisson process.
func Steady(rate float64) Rate { return Rate{func(float64) float64 { return rate }, rate} }

// Bursts has the mean rate in all, and for the first `on` of each period in seconds the given multiple of it; factor·on
// must not exceed period.
func Bursts(mean, factor, on, period float64) Rate {
	rest := mean * (period - factor*on) / (period - on)
	return Rate{func(t float64) float64 {
		if math.Mod(t, period) < on {
			return mean * factor
		}
		return rest
	}, max(mean*factor, rest)}
}

// scaled is the rate times a factor.
func (r Rate) scaled(by float64) Rate {
	return Rate{func(t float64) float64 { return by * r.At(t) }, by * r.Max}
}

// Ramp goes from one rate to another over the first seconds, and stays.
func Ramp(from, to, seconds float64) Rate {
	return Rate{func(t float64) float64 { return from + (to-from)*min(t/seconds, 1) }, max(from, to)}
}

// Diurnal swings around the mean as a sine of the given period in seconds, by the share swing of it, beginning at the
// mean and rising.
func Diurnal(mean, swing, period float64) Rate {
	return Rate{func(t float64) float64 { return mean * (1 + swing*math.Sin(2*math.Pi*t/period)) }, mean * (1 + swing)}
}

// Arrivals draws arrival times until the end: by thinning, so that any rate gives a Poisson process. With a cv
// (coefficient of variation) above 1 the times come in clumps: gaps are Gamma distributed in the time that the rate
// stretches; 0 and 1 mean Poisson.
func (r Rate) Arrivals(rng *rand.Rand, end, cv float64) []float64 {
	var at []float64
	gap := func() float64 { return rng.ExpFloat64() }
	if cv > 1 {
		shape := 1 / (cv * cv)
		gap = func() float64 { return gamma(rng, shape) / shape }
	}
	for t := gap() / r.Max; t < end; t += gap() / r.Max {
		if rng.Float64()*r.Max < r.At(t) {
			at = append(at, t)
		}
	}
	return at
}

// gamma draws from the Gamma distribution of a shape of at most 1, mean shape (Ahrens and Dieter, 1974).
func gamma(rng *rand.Rand, shape float64) float64 {
	for {
		u, v := rng.Float64()*(1+shape/math.E), rng.ExpFloat64()
		if u <= 1 {
			if x := math.Pow(u, 1/shape); x <= v {
				return x
			}
		} else if x := -math.Log((1 + shape/math.E - u) / shape); (1-shape)*math.Log(x) <= v {
			return x
		}
	}
}

// Length is a lognormal number of tokens.
type Length struct {
	Mean, Sigma float64
}

// maxLength keeps the tail within what every profile's cache can hold.
const maxLength = 12000

func (l Length) draw(rng *rand.Rand) int { return l.drawUpTo(rng, maxLength) }

func (l Length) drawUpTo(rng *rand.Rand, limit float64) int {
	x := l.Mean * math.Exp(l.Sigma*rng.NormFloat64()-l.Sigma*l.Sigma/2)
	return int(min(max(math.Round(x), 1), limit))
}

// Mix is independent requests, of which groups may share a prefix.
type Mix struct {
	Rate Rate
	// CV is the coefficient of variation of the gaps; 0 means Poisson.
	CV             float64
	Prompt, Output Length
	// Prefixes is how many different prefixes of PrefixTokens there are, their popularity by a squared uniform; 0 for
	// none.
	Prefixes, PrefixTokens int
	// Zipf, if above 0, makes prefixes popular by Zipf's law with this exponent instead.
	Zipf float64
	// Adapters are asked for with the popularity of a squared uniform, the first the most; empty for none.
	Adapters []string
}

// Generate draws the requests that arrive until the end, in order.
func (m Mix) Generate(seed uint64, end time.Duration) []Request {
	rng := rand.New(rand.NewPCG(seed, 1))
	prefix := m.popularity(rng)
	var out []Request
	for i, t := range m.Rate.Arrivals(rng, end.Seconds(), m.CV) {
		id := mix(seed<<32 + uint64(i) + 1)
		r := Request{At: seconds(t), Follows: -1, Reply: mix(id + 1), Output: m.Output.draw(rng)}
		if m.Prefixes > 0 {
			r.Prompt = append(r.Prompt, Segment{mix(seed ^ uint64(prefix()+1)<<20), m.PrefixTokens})
		}
		r.Prompt = append(r.Prompt, Segment{id, m.Prompt.draw(rng)})
		if n := len(m.Adapters); n > 0 {
			r.Adapter = m.Adapters[popular(rng, n)]
		}
		out = append(out, r)
	}
	return out
}

// popularity draws prefixes.
func (m *Mix) popularity(rng *rand.Rand) func() int {
	if m.Zipf <= 0 {
		return func() int { return popular(rng, m.Prefixes) }
	}
	var sums []float64
	sum := 0.
	for k := range m.Prefixes {
		sum += math.Pow(float64(k+1), -m.Zipf)
		sums = append(sums, sum)
	}
	return func() int {
		i, _ := slices.BinarySearch(sums, rng.Float64()*sum)
		return min(i, m.Prefixes-1)
	}
}

// popular draws below n, small numbers more often: the square of a uniform.
func popular(rng *rand.Rand, n int) int {
	u := rng.Float64()
	return int(u * u * float64(n))
}

// Sessions are conversations: each turn repeats everything before it, and comes when its client has thought about the
// last answer. With a long system prompt, many turns and no time to think they are agents.
type Sessions struct {
	// Rate is of new sessions.
	Rate Rate
	// System is how long the system prompt is, Systems how many different ones there are.
	System, Systems int
	// Turns is how many; User is what each adds, Output what is answered.
	Turns, User, Output Length
	// Think is the mean of the exponential time between an answer and the next turn, in seconds.
	Think float64
	// Context ends a session that has become longer, in tokens; 0 means maxLength.
	Context int
}

// Chat is people's conversations: a short system prompt, some turns, half a minute of thought.
func Chat(rate Rate) Sessions {
	return Sessions{Rate: rate, System: 200, Systems: 4, Turns: Length{5, .6}, User: Length{120, 1}, Output: Length{200, .7}, Think: 20}
}

// Agents is programs' conversations: a long system prompt with tools, many turns with tool answers, hardly a pause.
func Agents(rate Rate) Sessions {
	return Sessions{Rate: rate, System: 3000, Systems: 8, Turns: Length{12, .5}, User: Length{400, 1}, Output: Length{100, .8}, Think: 2, Context: 24000}
}

// Generate draws the sessions that begin until the end, their first requests in order of arrival, each session's turns
// after one another.
func (c Sessions) Generate(seed uint64, end time.Duration) []Request {
	rng := rand.New(rand.NewPCG(seed, 2))
	var out []Request
	for i, t := range c.Rate.Arrivals(rng, end.Seconds(), 0) {
		segments := []Segment{{mix(seed ^ uint64(popular(rng, max(c.Systems, 1))+1)<<20), c.System}}
		at, follows, total := seconds(t), -1, c.System
		for turn := range c.Turns.draw(rng) {
			id := mix(seed<<32 + uint64(i)<<12 + uint64(turn))
			user, output := c.User.draw(rng), c.Output.draw(rng)
			total += user + output
			if turn > 0 && total > cmp.Or(c.Context, maxLength) {
				break
			}
			segments = append(segments, Segment{id, user})
			out = append(out, Request{At: at, Follows: follows, Prompt: slices.Clone(segments), User: 1, Reply: mix(id + 1), Output: output})
			segments = append(segments, Segment{mix(id + 1), output})
			at, follows = seconds(rng.ExpFloat64()*c.Think), len(out)-1
		}
	}
	return out
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
