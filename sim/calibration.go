package sim

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"
)

// Calibration is how far simulated engines are from measured ones.
type Calibration struct {
	// Profiles are all that there are, in the order of the table.
	Profiles []Calibrated `json:"profiles"`
}

// Calibrated is one profile's errors over the points that were measured of its model, GPU, precision, engine and number
// of GPUs.
type Calibrated struct {
	Profile string `json:"profile"`
	// Grade is what the profile's coefficients rest on.
	Grade string `json:"grade"`
	// All are all points, HeldOut those that coefficients were not fitted to: every second one in the order of their
	// ids.
	All     Errors `json:"all"`
	HeldOut Errors `json:"heldOut"`
}

// Errors are shares of the measured value, without their sign: .1 is 10 % too high or too low. NaN without points.
type Errors struct {
	Points   int
	TTFT50   float64 // median of the times to first token
	TTFT90   float64 // what nine of ten stay below
	TPOT50   float64
	TPOT90   float64
	TTFTBias float64 // median with its sign
	TPOTBias float64
}

// promptsPerClient is how many requests a benchmark sends for each that is under way at a time. InferenceMAX sends ten,
// with lengths of 80 to 100 % at random, all clients beginning at once, and reports means over all of them; the figures
// of the other source agree with the same, at fixed lengths.
const promptsPerClient = 10

// run lets the point happen in a world and returns mean times to first token and between tokens in milliseconds.
func (p *point) run(profile Profile) (ttft, tpot float64) {
	rng := rand.New(rand.NewPCG(uint64(p.input), uint64(p.output)))
	length := func(n int) int {
		if p.fixed {
			return n
		}
		return n - rng.IntN(n/5+1)
	}
	requests := make([]Request, promptsPerClient*p.concurrency)
	for i := range requests {
		requests[i] = Request{Follows: -1, Prompt: []Segment{{mix(uint64(i) + 1), length(p.input)}}, Output: length(p.output)}
	}
	// InferenceMAX sets a budget of 8192 tokens; the other source does not say, and agrees with 2048.
	cfg := EngineConfig{Profile: profile, Budget: 8192}
	if p.fixed {
		cfg.Budget = 2048
	}
	r := Run(Options{Engines: []EngineConfig{cfg}, Requests: requests, Concurrency: p.concurrency, Policy: RoundRobin(), Scrape: time.Hour})
	return 1000 * r.Mean(), 1000 * r.MeanTPOT()
}

// Calibrate reads measured points as in AIConfigurator's silicon_sample.csv (columns id, backend, model_path, system,
// precision, mode, isl, osl, batch_size, tp_size, silicon_ttft_ms, silicon_tpot_ms and more), runs those that some
// profile is of as the closed loops that they were, and compares. It returns the context's error if that ends first.
func Calibrate(ctx context.Context, r io.Reader) (*Calibration, error) {
	points, err := readPoints(r)
	if err != nil {
		return nil, err
	}
	c := &Calibration{}
	var workers sync.WaitGroup
	slots := make(chan bool, runtime.GOMAXPROCS(0))
	profiles := Profiles()
	ratios := make([][]ratioOf, len(profiles))
	for i := range profiles {
		mine := pointsOf(points, &profiles[i])
		ratios[i] = make([]ratioOf, len(mine))
		for k := range mine {
			workers.Go(func() {
				slots <- true
				defer func() { <-slots }()
				if ctx.Err() == nil {
					ttft, tpot := mine[k].run(profiles[i])
					ratios[i][k] = ratioOf{ttft/mine[k].ttft - 1, tpot/mine[k].tpot - 1, mine[k].heldOut}
				}
			})
		}
	}
	workers.Wait()
	for i := range profiles {
		c.Profiles = append(c.Profiles, Calibrated{profiles[i].Name, profiles[i].Grade, errorsOf(ratios[i], true), errorsOf(ratios[i], false)})
	}
	return c, ctx.Err()
}

// ratioOf is how much too long the times of one point are, as a share.
type ratioOf struct {
	ttft, tpot float64
	heldOut    bool
}

func errorsOf(ratios []ratioOf, all bool) Errors {
	var ttft, tpot, ttfts, tpots []float64
	for _, r := range ratios {
		if all || r.heldOut {
			ttft, tpot = append(ttft, math.Abs(r.ttft)), append(tpot, math.Abs(r.tpot))
			ttfts, tpots = append(ttfts, r.ttft), append(tpots, r.tpot)
		}
	}
	for _, s := range [][]float64{ttft, tpot, ttfts, tpots} {
		slices.Sort(s)
	}
	return Errors{len(ttft), Quantile(ttft, .5), Quantile(ttft, .9), Quantile(tpot, .5), Quantile(tpot, .9), Quantile(ttfts, .5), Quantile(tpots, .5)}
}

// String is the table: medians of the errors, with nine of ten in brackets.
func (c *Calibration) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%-18s %-16s %31s   %31s\n", "", "", "all points", "held out")
	fmt.Fprintf(&b, "%-18s %-16s %5s %12s %12s   %5s %12s %12s\n", "profile", "rests on", "n", "TTFT", "TPOT", "n", "TTFT", "TPOT")
	for _, p := range c.Profiles {
		fmt.Fprintf(&b, "%-18s %-16s %s   %s\n", p.Profile, p.Grade, p.All.text(), p.HeldOut.text())
	}
	return b.String()
}

func (e Errors) text() string {
	if e.Points == 0 {
		return fmt.Sprintf("%5s %12s %12s", "–", "–", "–")
	}
	of := func(median, ninety float64) string { return fmt.Sprintf("%.1f%% (%.0f%%)", 100*median, 100*ninety) }
	return fmt.Sprintf("%5d %12s %12s", e.Points, of(e.TTFT50, e.TTFT90), of(e.TPOT50, e.TPOT90))
}

// MarshalJSON writes what is not known as null.
func (e Errors) MarshalJSON() ([]byte, error) {
	figures := map[string]any{"points": e.Points}
	for name, x := range map[string]float64{"ttftMedian": e.TTFT50, "ttftP90": e.TTFT90, "tpotMedian": e.TPOT50, "tpotP90": e.TPOT90,
		"ttftBias": e.TTFTBias, "tpotBias": e.TPOTBias} {
		if figures[name] = any(x); math.IsNaN(x) {
			figures[name] = nil
		}
	}
	return json.Marshal(figures)
}
