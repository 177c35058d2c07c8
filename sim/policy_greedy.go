package sim

import (
	"math/rand/v2"
	"time"
)

// Greedy knows every engine's exact state, and takes the endpoint with the least true time to first token and 5 % of
// the time to decode. It doesn't know the future, and what a choice costs others only by that share: it is a yardstick,
// not a bound.
func Greedy() Policy {
	return Policy{"all-knowing greedy", "greedy", func(w *world) gateway {
		return &greedy{engines: w.engines, rng: rand.New(rand.NewPCG(w.rng.Uint64(), 6)), output: 200}
	}}
}

type greedy struct {
	deaf
	engines []*Engine
	rng     *rand.Rand
	output  float64 // mean
}

func (p *greedy) pick(now time.Duration, f *flight) int {
	return least(p.rng, f, len(p.engines), func(i int) float64 {
		e := p.engines[i]
		running := float64(e.Running())
		return e.Forecast(now, &f.seq) + .05*p.output*e.stepMS(0, 0, e.decoding())*(1+running/256)
	})
}

func (p *greedy) done(_ time.Duration, f *flight, _ ending) {
	p.output += .02 * (float64(f.seq.Output) - p.output)
}
