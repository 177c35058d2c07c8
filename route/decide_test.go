package route

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// randomView makes a View of n endpoints in which every scorer has something to say.
func randomView(n int, seed uint64) *View {
	r := rand.New(rand.NewPCG(seed, 1))
	col := func(most float32) Column {
		c := make(Column, n)
		for i := range c {
			c[i] = r.Float32() * most
		}
		return c
	}
	s := &Snapshot{Version: 1, States: make([]State, n), Why: make([]string, n), Kinds: make([]int32, n), ReadAt: make([]float64, n),
		Waiting: col(20), Running: col(100), KVUse: col(1), KVTokens: col(400_000)}
	v := &View{Snapshot: s, Now: 100, Seed: r.Uint64(), StaleAfter: 2,
		Request:  Request{Model: "m", Adapter: "a", PromptTokens: 2000, OutputTokens: 200, Units: 30, UnitTokens: 64, Affinity: r.Uint64()},
		InFlight: col(50), Prefilling: col(5), Backlog: col(9000), Work: col(300), Head: col(100), Context: col(50_000), HeadSince: make([]float64, n), StepEnd: make([]float64, n), Held: col(90_000),
		SentSince: col(3), LastCold: make([]float64, n), EjectedUntil: make([]float64, n), Match: col(30),
		Adapters: make([]Adapter, n), Tried: make([]bool, n),
		Rates: []Rate{{Name: "h100", Step: Step{T0: 6, PA: 4, PB: .02, PC: 1, DB: .01, DC: .04}, Prefill: 1, Decode: 1},
			{Name: "a10g", Step: Step{T0: 32, PA: 16, PB: .33, PC: 9, DB: .06, DC: .3}, Prefill: 1, Decode: 1}}, MeanUncached: 700, MeanOutput: 200}
	for i := range n {
		s.Names = append(s.Names, fmt.Sprintf("10.0.%d.%d:8000", i/256, i%256))
		s.Hashes = append(s.Hashes, HashName(s.Names[i]))
		s.Kinds[i] = int32(i % 2)
		s.ReadAt[i], v.HeadSince[i], v.LastCold[i] = 99+r.Float64(), 99+r.Float64(), 90*r.Float64()
		v.Work[i] += v.Head[i] // a part of it
		v.StepEnd[i] = 100 + .001*float64(i%50)
		v.Adapters[i] = Adapter(r.IntN(int(AdapterMissing)))
	}
	return v
}

func allScorers() *Profile {
	weights := map[string]float64{}
	for i, name := range ScorerNames() {
		weights[name] = float64(i + 1)
	}
	p, err := Weights(weights)
	if err != nil {
		panic(err)
	}
	return p
}

func BenchmarkDecide(b *testing.B) {
	for _, n := range []int{5, 25, 100, 1000} {
		for _, p := range []*Profile{Latency(), allScorers()} {
			b.Run(fmt.Sprintf("endpoints=%d/profile=%s", n, p.Name), func(b *testing.B) {
				v := randomView(n, 7)
				v.Arrivals, v.Occupied = v.Snapshot.Waiting, v.Snapshot.KVUse // later has something to say, too
				b.ReportAllocs()
				for b.Loop() {
					if p.Decide(v).Verdict != Send {
						b.Fatal("no endpoint")
					}
				}
			})
		}
	}
}

// A new beginning goes where the hash says, unless that endpoint holds clearly more already; then where it comes
// second.
func TestNewBeginningsSpreadOverCaches(t *testing.T) {
	p := Latency()
	held := make(Column, 3)
	for i := range uint64(300) {
		v := randomView(3, 1)
		v.Snapshot.Kinds = make([]int32, 3)
		for _, c := range []Column{v.Snapshot.Waiting, v.Snapshot.Running, v.Snapshot.KVUse, v.InFlight, v.Prefilling, v.Backlog, v.Work, v.Head, v.Held, v.Context, v.SentSince, v.Match} {
			clear(c)
		}
		clear(v.Adapters)
		v.Request.Affinity, v.Request.Units, v.Cached, v.StepEnd = mix(i+1), 33, held, nil
		held[p.Decide(v).Endpoint] += 33
	}
	for i, n := range held {
		if n < 90*33 || n > 110*33 {
			t.Errorf("endpoint %d holds %v of 300 beginnings, want about a third", i, n/33)
		}
	}
}
