package fleet

import (
	"fmt"
	"testing"
	"time"
)

func newTestPool(n int) *Pool {
	p := NewPool("m")
	var eps []Endpoint
	for i := range n {
		eps = append(eps, Endpoint{Name: fmt.Sprintf("10.0.%d.%d:8000", i/256, i%256)})
	}
	p.Apply(PoolConfig{Name: "m", Model: "m", Endpoints: eps})
	for _, e := range eps {
		r := UnknownReading()
		r.Waiting, r.Running, r.KVUse, r.KVTokens = 0, 3, .2, 400_000
		p.Observe(0, 0, e.Name, r, nil)
	}
	return p
}

func BenchmarkPick(b *testing.B) {
	for _, n := range []int{5, 25, 100, 1000} {
		for _, size := range []int{2, 220} {
			b.Run(fmt.Sprintf("endpoints=%d/KB=%d", n, size), func(b *testing.B) {
				p := newTestPool(n)
				const groups = 64
				reqs := make([]Request, groups)
				for g := range reqs {
					reqs[g] = Request{Model: "m", PromptBytes: size << 10, UnitBytes: unitBytes, Streamed: true}
					for k := range size * 4 {
						reqs[g].Blocks = append(reqs[g].Blocks, uint64(g)<<32+uint64(k)+1)
					}
				}
				b.ReportAllocs()
				i := 0
				for b.Loop() {
					l, _ := p.Pick(time.Second, &reqs[i%groups])
					l.FirstByte(time.Second + time.Millisecond)
					l.Done(time.Second+2*time.Millisecond, Outcome{})
					i++
				}
			})
		}
	}
}
