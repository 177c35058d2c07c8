package sim

import (
	"math"
	"slices"
	"testing"
	"time"
)

// Replays have the statistics of the traces they stand for.
func TestReplaysAreLikeTheirTraces(t *testing.T) {
	f := func(name string, c Replay, rate, mean, median, output, hit float64) {
		t.Helper()
		var lengths []float64
		answers, held, all := 0., 0., 0.
		seen := make(map[uint64]bool)
		const length = 40 * time.Minute
		requests := c.Generate(1, length)
		last := time.Duration(0)
		for _, r := range requests {
			if r.At < last || r.At >= length || r.Follows >= 0 {
				t.Fatalf("%s: a request at %v after %v, follows %d", name, r.At, last, r.Follows)
			}
			last = r.At
			answers += float64(r.Output)
			lengths = append(lengths, float64(r.PromptTokens()))
			hashes := r.appendHashes(nil)[:r.PromptTokens()/BlockTokens]
			leading := true
			for _, h := range hashes {
				if leading = leading && seen[h]; leading {
					held++
				}
				seen[h] = true
			}
			all += float64(len(hashes))
		}
		slices.Sort(lengths)
		sum := 0.
		for _, x := range lengths {
			sum += x
		}
		n := float64(len(requests))
		about := func(what string, got, want, tolerance float64) {
			t.Helper()
			if !(math.Abs(got/want-1) <= tolerance) {
				t.Errorf("%s, %s: got %.4g, want about %.4g", name, what, got, want)
			}
		}
		about("requests a second", n/length.Seconds(), rate, .05)
		about("mean prompt", sum/n, mean, .1)
		about("median prompt", Quantile(lengths, .5), median, .12)
		about("mean output", answers/n, output, .06)
		about("blocks seen before", held/all, hit, .1)
	}
	f("conversation", Conversations(1), 3.40, 12035, 6909, 343, .366)
	f("synthetic", Questions(1), 3.9, 15325, 11587, 149, .64)
}

// Zipf's popularity: of 100 prefixes the first has its share of 1/H(100), 19 %.
func TestZipf(t *testing.T) {
	requests := Mix{Rate: Steady(100), Prompt: Length{10, .1}, Output: Length{1, .1}, Prefixes: 100, PrefixTokens: 16, Zipf: 1}.Generate(1, 100*time.Second)
	counts := make(map[uint64]int)
	for _, r := range requests {
		counts[r.Prompt[0].ID]++
	}
	most := 0
	for _, n := range counts {
		most = max(most, n)
	}
	if got := float64(most) / float64(len(requests)); math.Abs(got-.193) > .015 || len(counts) < 95 {
		t.Errorf("got %.3f of requests with the first of %d prefixes, want about .193 of 100", got, len(counts))
	}
}
