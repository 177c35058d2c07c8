package prefix

import (
	"encoding/binary"
	"fmt"
	"runtime"
	"slices"
	"testing"

	"github.com/cespare/xxhash/v2"
)

// conversation makes a prompt of so many tokens with blocks as openai cuts them, of 4 bytes a token: 64 tokens, 256 and 1024. Each is certain
// at its end.
func conversation(id uint32, tokens int) *Prompt {
	p := &Prompt{Tokens: make([]uint32, tokens)}
	for i := range p.Tokens {
		p.Tokens[i] = uint32(mix(uint64(id)<<32 | uint64(i)))
	}
	for end := 0; end < tokens; {
		switch {
		case end < 4096:
			end += 64
		case end < 16384:
			end += 256
		default:
			end += 1024
		}
		end = min(end, tokens)
		p.Blocks, p.Ends = append(p.Blocks, mix(uint64(id)<<32|uint64(end))), append(p.Ends, int32(end))
	}
	p.inBytes()
	return p
}

// inBytes makes the prompt comparable with others inside of its blocks.
func (p *Prompt) inBytes() {
	text := make([]byte, 4*len(p.Tokens))
	p.Certain = p.Certain[:0]
	for i, t := range p.Tokens {
		binary.LittleEndian.PutUint32(text[4*i:], t)
		p.Certain = append(p.Certain, int32(4*i+4))
	}
	p.Head = func(n int) uint64 {
		start := 0
		if k, _ := slices.BinarySearch(p.Ends, int32((n+3)/4)); k > 0 {
			start = 4 * int(p.Ends[k-1])
		}
		return xxhash.Sum64(text[start:n])
	}
}

// unitsOf are the ends of a conversation's blocks in units of 64 tokens.
func unitsOf(p *Prompt) []int32 {
	var out []int32
	for _, end := range p.Ends {
		out = append(out, (end+63)/64)
	}
	return out
}

// eventOf is the event of all of the prompt's whole blocks.
func eventOf(p *Prompt, size int) Event {
	n := len(p.Tokens) / size
	e := Event{Kind: Stored, BlockSize: size, First: true, Tokens: p.Tokens[:n*size]}
	for k := range n {
		e.Hashes = append(e.Hashes, mix(uint64(p.Tokens[k*size])<<20+uint64(k)))
	}
	return e
}

// BenchmarkApply is the cost of an event for each block: of 32 blocks of 16 tokens at one of 100 endpoints of full caches of 25 000, with the
// removal of as many.
func BenchmarkApply(b *testing.B) {
	const slots, room, run = 100, 25_000, 32
	x := new(Exact)
	ledgers := make([]*Ledger, slots)
	queues := make([][][]uint64, slots)
	id := uint32(0)
	store := func(s int) {
		id++
		e := eventOf(conversation(id, 16*run), 16)
		ledgers[s].Apply([]Event{e})
		queues[s] = append(queues[s], e.Hashes)
	}
	for s := range slots {
		ledgers[s] = x.Open(s)
		ledgers[s].Follow(FollowedFromEmpty)
		ledgers[s].Resize(room * 16)
		for range room / run {
			store(s)
		}
	}
	events := make([]Event, 1000)
	for i := range events {
		id++
		events[i] = eventOf(conversation(id, 16*run), 16)
	}
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		s := i % slots
		e := events[i%len(events)]
		for k := range e.Hashes {
			e.Hashes[k]++ // another prompt, by name
		}
		e.Tokens[0]++
		ledgers[s].Apply([]Event{{Kind: Removed, Hashes: queues[s][0]}, e})
		queues[s] = append(queues[s][1:], append(queues[s][0][:0], e.Hashes...))
		i++
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/(2*run), "ns/block")
}

// BenchmarkExactMatch looks prompts up that two of the endpoints hold, as conversations of 100 000 and 1 000 tokens.
func BenchmarkExactMatch(b *testing.B) {
	for _, slots := range []int{5, 100} {
		for _, tokens := range []int{1_000, 100_000} {
			b.Run(fmt.Sprintf("slots=%d/tokens=%d", slots, tokens), func(b *testing.B) {
				x, guess := new(Exact), new(Index)
				var ledgers []*Ledger
				for s := range slots {
					guess.Resize(s, 6250)
					l := x.Open(s)
					l.Follow(FollowedFromEmpty)
					ledgers = append(ledgers, l)
				}
				var m Matched
				dst := make([]int32, slots)
				prompts := make([]*Prompt, 32)
				units := make([][]int32, len(prompts))
				for i := range prompts {
					p := conversation(uint32(i+1), tokens)
					prompts[i], units[i] = p, unitsOf(p)
					for k := range 2 {
						s := (i + k) % slots
						ledgers[s].Apply([]Event{eventOf(p, 16)})
						x.Match(guess, p.Blocks, units[i], dst, &m)
						guess.Add(s, p.Blocks, units[i], &m)
					}
					x.Learn(p)
				}
				b.ReportAllocs()
				i := 0
				for b.Loop() {
					p := prompts[i%len(prompts)]
					x.Match(guess, p.Blocks, units[i%len(prompts)], dst, &m)
					i++
				}
				if got := dst[(i-1)%len(prompts)%slots]; got != units[0][len(units[0])-1] {
					b.Fatalf("got %d units, want all", got)
				}
			})
		}
	}
}

// BenchmarkLearn is the cost of a prompt's tokens, which nothing is known of yet.
func BenchmarkLearn(b *testing.B) {
	x := new(Exact)
	l := x.Open(0)
	l.Follow(FollowedFromEmpty)
	l.Apply([]Event{eventOf(conversation(1, 64), 16)})
	p := conversation(2, 100_000)
	for b.Loop() {
		for k := range p.Blocks {
			p.Blocks[k]++
		}
		x.Learn(p)
	}
}

// BenchmarkForget is what an endpoint of 25 000 blocks costs the others when it leaves.
func BenchmarkForget(b *testing.B) {
	x := new(Exact)
	e := eventOf(conversation(1, 400_000), 16)
	for b.Loop() {
		b.StopTimer()
		l := x.Open(0)
		l.Follow(FollowedFromEmpty)
		l.Apply([]Event{e})
		b.StartTimer()
		l.Close()
	}
}

// BenchmarkExactMemory reports bytes for each block that a slot holds, every block being held by one slot.
func BenchmarkExactMemory(b *testing.B) {
	for _, slots := range []int{5, 100} {
		b.Run(fmt.Sprintf("slots=%d", slots), func(b *testing.B) {
			const each = 6400
			for b.Loop() {
				var before, after runtime.MemStats
				runtime.GC()
				runtime.ReadMemStats(&before)
				x := new(Exact)
				for s := range slots {
					l := x.Open(s)
					l.Follow(FollowedFromEmpty)
					l.Apply([]Event{eventOf(conversation(uint32(s), 16*each), 16)})
				}
				runtime.GC()
				runtime.ReadMemStats(&after)
				b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/float64(len(x.entries)), "B/block")
			}
		})
	}
}

// BenchmarkPredict is what it costs to see where a prompt parts from eight others inside a prefix block, whose bytes are hashed.
func BenchmarkPredict(b *testing.B) {
	for _, tokens := range []int{1_000, 100_000} {
		b.Run(fmt.Sprintf("tokens=%d", tokens), func(b *testing.B) {
			x, guess := new(Exact), new(Index)
			l := x.Open(0)
			l.Follow(FollowedFromEmpty)
			l.Apply([]Event{eventOf(conversation(0, 64), 16)})
			prompt := func(id uint32) *Prompt {
				p := conversation(1, tokens)
				last := len(p.Blocks) - 1
				p.Blocks[last] += uint64(id)
				for i := p.Ends[last-1] + (p.Ends[last]-p.Ends[last-1])*3/4; int(i) < tokens; i++ {
					p.Tokens[i] += id
				}
				p.inBytes()
				return p
			}
			for id := range uint32(siblings) {
				p := prompt(id)
				x.Learn(p)
				l.Apply([]Event{eventOf(p, 16)})
			}
			q := prompt(siblings)
			want := int(q.Ends[len(q.Ends)-2])
			want += (tokens - want) * 3 / 4 / 16 * 16
			b.ReportAllocs()
			for b.Loop() {
				if p := x.Predict(guess, 0, q.Blocks, len(q.Blocks)-1, q.Head); p.Tokens != want {
					b.Fatalf("got %+v, want %d tokens", p, want)
				}
			}
		})
	}
}
