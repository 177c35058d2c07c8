package sim

import (
	"testing"
	"time"
)

// Where nobody sees the answers, the engines' counters are enough to decide nearly as well, whether kinds are labelled or
// not and however seldom they are read.
func TestUnseen(t *testing.T) {
	length := time.Minute
	if underRace {
		length = 30 * time.Second
	}
	rows, err := SelectRows([]string{"A2", "A5", "A7"})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		says   string
		labels bool
		scrape time.Duration
	}{{"labels", true, 50 * time.Millisecond}, {"no labels, seldom read", false, 200 * time.Millisecond}} {
		e := Experiment{Rows: rows, Policies: []Policy{Latency(), Unseen()}, Labels: c.labels, Scrape: c.scrape, Wire: 2 * time.Millisecond, For: length}
		table, err := e.Run(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range table.Rows {
			for _, m := range []Measure{MeanTTFT, P95} {
				seen, unseen := l.Cells[0].Figures[m].Mean, l.Cells[1].Figures[m].Mean
				if unseen > 1.2*seen { // one seed, and short: the bench holds it to 1.1
					t.Errorf("%s, %s, %s: got %.4f s unseen, want it near %.4f s", l.ID, c.says, measureNames()[m], unseen, seen)
				}
				if unseen == seen {
					t.Errorf("%s, %s: seen and unseen are one", l.ID, c.says)
				}
			}
		}
	}
}

// Kinds that nothing tells apart but their speed are told apart nearly as soon, so that what comes first doesn't wait for slow GPUs.
func TestUnseenAtFirst(t *testing.T) {
	var engines []EngineConfig
	for _, name := range []string{"l8-h100", "l8-a10g"} {
		for range 4 {
			engines = append(engines, EngineConfig{Profile: profile(t, name)})
		}
	}
	mean := func(p Policy) float64 {
		const seeds = 8
		sum := 0.
		for seed := range uint64(seeds) {
			mix := Mix{Rate: Bursts(24, 3, 3, 12), Prompt: Length{Mean: 900, Sigma: .9}, Output: Length{Mean: 200, Sigma: .7}}
			r := Run(Options{Engines: engines, Requests: mix.Generate(seed, 40*time.Second), Policy: p, Wire: 2 * time.Millisecond, Seed: seed})
			sum += r.Mean()
		}
		return sum / seeds
	}
	seen, unseen := mean(Latency()), mean(Unseen())
	t.Logf("mean time to first token, from the first request on: %.4f s seen, %.4f s unseen", seen, unseen)
	if unseen > 1.4*seen {
		t.Errorf("got %.4f s unseen, want it near %.4f s", unseen, seen)
	}
}
