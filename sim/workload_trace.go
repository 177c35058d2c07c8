package sim

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"time"
)

// Replay is requests with the statistics of a recorded trace: they come at their times, whether what they follow has
// been answered or not, as those of a trace do.
type Replay struct {
	// Rate is of requests.
	Rate Rate
	// First is the first prompt of a conversation or, with Documents, the document; Add what each further prompt adds
	// to all before, or asks of the document.
	First, Add, Output Length
	// More is the chance that another request follows, in [0, 1).
	More float64
	// Gap is the time between a conversation's requests in seconds.
	Gap Length
	// Documents makes requests ask the same document again instead of going on.
	Documents bool
}

// Conversations has the statistics of Mooncake's conversation trace (FAST'25) at so many times its speed: 3.40
// requests/s, prompts of 12,035 tokens (median 6,909, P99 85,401), outputs of 343, 36.6 % of blocks seen before, half
// of the gaps under 123 s.
func Conversations(speed float64) Replay {
	return Replay{Rate: Steady(3.40 * speed), First: Length{9950, 1.15}, Add: Length{3700, 1.2}, Output: Length{343, .5}, More: .38, Gap: Length{190 / speed, .95}}
}

// Questions has the statistics of Mooncake's synthetic trace at so many times its speed: 3.9 requests/s, prompts of
// 15,325 tokens (median 11,587, P99 66,458), outputs of 149 (median 69), 64 % of blocks seen before.
func Questions(speed float64) Replay {
	return Replay{Rate: Steady(3.9 * speed), First: Length{13800, .75}, Add: Length{1500, .75}, Output: Length{149, 1.24}, More: .71, Gap: Length{60 / speed, 1}, Documents: true}
}

const (
	// replayContext ends a conversation that has become longer, and bounds documents, in tokens.
	replayContext = 120000
	// replayBefore is for how many mean gaps before the beginning conversations have begun.
	replayBefore = 5
)

// Generate draws the requests that arrive until the end, in order.
func (c Replay) Generate(seed uint64, end time.Duration) []Request {
	rng := rand.New(rand.NewPCG(seed, 9))
	before := replayBefore * c.Gap.Mean
	starts := c.Rate.scaled(1-c.More).Arrivals(rng, end.Seconds()+before, 0)
	var out []Request
	for i, t := range starts {
		t -= before
		id := mix(seed<<32 + uint64(i)<<12)
		prompt := []Segment{{id, c.First.drawUpTo(rng, replayContext)}}
		for turn := uint64(1); ; turn++ {
			asked := prompt
			if c.Documents {
				asked = append(slices.Clip(prompt), Segment{mix(id + 2*turn), c.Add.drawUpTo(rng, replayContext)})
			}
			output := c.Output.draw(rng)
			if t >= 0 && t < end.Seconds() {
				out = append(out, Request{At: seconds(t), Follows: -1, Prompt: asked, Reply: mix(id + 2*turn + 1), Output: output})
			}
			t += c.Gap.Mean * math.Exp(c.Gap.Sigma*rng.NormFloat64()-c.Gap.Sigma*c.Gap.Sigma/2)
			if rng.Float64() >= c.More || t >= end.Seconds() {
				break
			}
			if !c.Documents {
				prompt = append(slices.Clip(prompt), Segment{mix(id + 2*turn + 1), output}, Segment{mix(id + 2*turn), c.Add.drawUpTo(rng, replayContext)})
				if tokensOf(prompt) > replayContext {
					break
				}
			}
		}
	}
	slices.SortStableFunc(out, func(a, b Request) int { return cmp.Compare(a.At, b.At) })
	return out
}

func tokensOf(prompt []Segment) int {
	r := Request{Prompt: prompt}
	return r.PromptTokens()
}
