package fleet

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/prefix"
	"github.com/sluice-gateway/sluice/route"
)

// engineBlock is the tokens in a block of the engines of these tests, unitTokens those in a prefix block.
const engineBlock, unitTokens = 16, unitBytes / 4

// tokensOf is the prompt of a request of conversation id, of 4 bytes a token.
func tokensOf(id int, r *Request) *prefix.Prompt {
	q := &prefix.Prompt{Blocks: slices.Clone(r.Blocks), Tokens: make([]uint32, r.PromptBytes/4)}
	for i := range q.Tokens {
		q.Tokens[i] = uint32(id)<<16 | uint32(i)
	}
	for k := range r.Blocks {
		q.Ends = append(q.Ends, int32((k+1)*unitTokens))
	}
	return q
}

// storedAt is the event of the first units of a prompt; names says apart what engines hash otherwise.
func storedAt(q *prefix.Prompt, units int) []prefix.Event {
	e := prefix.Event{Kind: prefix.Stored, BlockSize: engineBlock, First: true, Tokens: q.Tokens[:units*unitTokens], Adapter: q.Adapter}
	for at := 0; at < len(e.Tokens); at += engineBlock {
		e.Hashes = append(e.Hashes, uint64(e.Tokens[at])<<8|1)
	}
	return []prefix.Event{e}
}

// removed is the event of the blocks of the last of so many units.
func removed(q *prefix.Prompt, from, to int) []prefix.Event {
	all := storedAt(q, to)[0].Hashes
	return []prefix.Event{{Kind: prefix.Removed, Hashes: all[from*unitTokens/engineBlock:]}}
}

// followed is a pool of n endpoints whose events are followed from an empty cache on, and have shown their block size.
func followed(t *testing.T, n int) *Pool {
	t.Helper()
	p := newPool(t, n)
	for _, e := range p.Endpoints() {
		p.FollowEvents(e.Name, prefix.FollowedFromEmpty)
		p.ObserveBlocks(e.Name, storedAt(tokensOf(999, prompt(999, unitBytes)), 1))
	}
	return p
}

// What others sent to an endpoint is known from its events, and what it evicts is known to be gone.
func TestEventsReplaceTheGuess(t *testing.T) {
	p := followed(t, 3)
	r := prompt(1, 20*unitBytes)
	q := tokensOf(1, r)
	if !p.WantsTokens(r.Blocks) {
		t.Error("a new prompt's tokens are not wanted")
	}
	p.LearnPrompt(q)
	if p.WantsTokens(r.Blocks) {
		t.Error("tokens are wanted that are known")
	}
	p.ObserveBlocks("e2:8000", storedAt(q, 20))
	l := pick(t, p, 1, r)
	if l.Endpoint.Name != "e2:8000" || !l.CachedExact || l.Cached != 20*unitTokens-engineBlock {
		t.Errorf("got %s with %d tokens cached, exact %v; want e2 with all but the last block", l.Endpoint.Name, l.Cached, l.CachedExact)
	}
	l.FirstByte(sec(1.1))
	l.Done(sec(1.2), Outcome{})
	p.ObserveBlocks("e2:8000", removed(q, 5, 20))
	if p.gatherMatch(3, r); p.view.Match[2] != 5 {
		t.Errorf("after the eviction of all but 5 units: got %v", p.view.Match)
	}
	p.ObserveBlocks("nobody", storedAt(q, 20)) // changes nothing
	p.FollowEvents("nobody", prefix.NotFollowed)
	audit(t, p)
}

// Where a prompt parts from a known one inside a prefix block, what both share up to there is expected in the cache, if its bytes can be compared.
func TestPartingInsideABlock(t *testing.T) {
	head := func(tokens []uint32) func(int) uint64 { // the bytes of a prompt, of 4 for each token
		return func(n int) uint64 {
			h := uint64(17)
			for _, token := range tokens[(n-1)/unitBytes*unitTokens : (n+3)/4] {
				h = h*31 + uint64(token)
			}
			return h
		}
	}
	p := followed(t, 2)
	r := prompt(1, 20*unitBytes)
	q := tokensOf(1, r)
	q.Head = head(q.Tokens)
	for i := range q.Tokens {
		q.Certain = append(q.Certain, int32(4*i+4))
	}
	p.LearnPrompt(q)
	p.ObserveBlocks("e1:8000", storedAt(q, 20))
	tokens := slices.Clone(q.Tokens)
	for i := 10*unitTokens + 40; i < len(tokens); i++ {
		tokens[i] += 1 << 8
	}
	for i, c := range []struct {
		head func(int) uint64
		want int
	}{{nil, 10 * unitTokens}, {head(tokens), 10*unitTokens + 32}} {
		other := prompt(1, 20*unitBytes)
		for k := 10; k < 20; k++ {
			other.Blocks[k] += uint64(i+1) << 20
		}
		other.Head = c.head
		l := pick(t, p, 1, other)
		if l.Endpoint.Name != "e1:8000" || l.Cached != c.want {
			t.Errorf("got %s with %d tokens cached, want e1 with %d", l.Endpoint.Name, l.Cached, c.want)
		}
		l.Done(sec(1), Outcome{})
	}
	audit(t, p)
}

// A request counts as held where it was sent until its events have had time to come, and not longer if they do not.
func TestSentCountsUntilEventsTell(t *testing.T) {
	p := followed(t, 2)
	r := prompt(1, 20*unitBytes)
	p.LearnPrompt(tokensOf(1, r))
	l := pick(t, p, 1, r)
	row := l.ep.row
	if l.Cached != 0 || !l.CachedExact {
		t.Errorf("nobody holds anything: got %d cached, exact %v", l.Cached, l.CachedExact)
	}
	for _, now := range []float64{1, 5, 60} { // however long it queues
		second := pick(t, p, now, r)
		if second.Endpoint.Name != l.Endpoint.Name {
			t.Errorf("at %v s the second went to %s, the first is at %s", now, second.Endpoint.Name, l.Endpoint.Name)
		}
		second.Done(sec(now), Outcome{Ending: Aborted})
	}
	l.FirstByte(sec(61))
	p.Tick(sec(61.4))
	p.gatherMatch(61.4, r)
	if got := p.view.Match[row]; got != 20 {
		t.Errorf("before the events had time to come: got %v units, want 20", got)
	}
	p.Tick(sec(61.6))
	p.gatherMatch(61.6, r)
	if got := p.view.Match[row]; got != 0 {
		t.Errorf("no event came: got %v units, want none", got)
	}
	l.Done(sec(62), Outcome{})
	p.Tick(sec(70))
	if n := len(p.settling.due); n != 0 || len(l.expected) != 0 {
		t.Errorf("%d expectations are left", n)
	}
}

// E27: what an endpoint held is forgotten when it leaves, restarts or can't be reached, and who gets its slot holds nothing.
func TestNothingIsHeldAfterTheEndpointIsGone(t *testing.T) {
	r := prompt(1, 20*unitBytes)
	q := tokensOf(1, r)
	for name, lose := range map[string]func(*Pool){
		"left": func(p *Pool) {
			p.SetEndpoints(named(1))
			p.SetEndpoints(append(named(1), Endpoint{Name: "e7:8000"}))
		},
		"restarted":   func(p *Pool) { p.Observe(sec(2), sec(2), "e1:8000", idle(5), nil) },
		"unreachable": func(p *Pool) { p.ObserveFailure("e1:8000", Unreachable, "refused") },
		"cleared":     func(p *Pool) { p.ObserveBlocks("e1:8000", []prefix.Event{{Kind: prefix.Cleared}}) },
		"gap":         func(p *Pool) { p.FollowEvents("e1:8000", prefix.FollowedFromNow) },
		"lost":        func(p *Pool) { p.FollowEvents("e1:8000", prefix.NotFollowed) },
	} {
		t.Run(name, func(t *testing.T) {
			p := followed(t, 2)
			observeAll(p, 1)
			p.LearnPrompt(q)
			gone := p.by["e1:8000"].ledger
			gone.Apply(storedAt(q, 20))
			p.gatherMatch(1, r)
			if got := p.view.Match[1]; got != 20 {
				t.Fatalf("got %v units before, want 20", got)
			}
			lose(p)
			if name == "left" {
				gone.Apply(storedAt(q, 20)) // late
				p.FollowEvents("e7:8000", prefix.FollowedFromEmpty)
			}
			p.gatherMatch(3, r)
			if got := p.view.Match[1]; got != 0 {
				t.Errorf("got %v units after, want none", got)
			}
		})
	}
}

// A restart whose new events came before the reading that shows it, as engines publish before they serve, leaves them as good as they are.
func TestRestartSeenByEventsFirst(t *testing.T) {
	r := prompt(1, 20*unitBytes)
	q := tokensOf(1, r)
	p := followed(t, 2)
	observeAll(p, 1)
	p.LearnPrompt(q)
	p.FollowEvents("e1:8000", prefix.FollowedFromEmpty)
	p.ObserveBlocks("e1:8000", storedAt(q, 8))
	p.ObserveFailure("e1:8000", Unreachable, "refused")
	p.Observe(sec(2), sec(2), "e1:8000", idle(5), nil)
	p.gatherMatch(3, r)
	if got := p.view.Match[1]; got != 8 {
		t.Errorf("got %v units, want the 8 that were stored since", got)
	}
	if l := pick(t, p, 3, r); l.Endpoint.Name != "e1:8000" || !l.CachedExact {
		t.Errorf("got %s, exact %v, want e1 and exact", l.Endpoint.Name, l.CachedExact)
	}
	p.Observe(sec(4), sec(4), "e1:8000", idle(1), nil) // once more, and the events don't tell
	if p.gatherMatch(5, r); p.view.Match[1] != 0 {
		t.Errorf("after a restart that only readings show: got %v units, want none", p.view.Match[1])
	}
}

// Events that began late, or of which some were lost, prove what is held and not what isn't: there the guess stands.
func TestGuessStandsWhereEventsBeganLate(t *testing.T) {
	p := newPool(t, 2)
	r := prompt(1, 20*unitBytes)
	q := tokensOf(1, r)
	l := pick(t, p, 1, r)
	row, name := l.ep.row, l.Endpoint.Name
	l.FirstByte(sec(1))
	l.Done(sec(1), Outcome{})
	p.FollowEvents(name, prefix.FollowedFromNow)
	p.ObserveBlocks(name, storedAt(tokensOf(999, prompt(999, unitBytes)), 1))
	p.LearnPrompt(q)
	p.gatherMatch(5, r)
	if got := p.view.Match[row]; got != 20 {
		t.Errorf("it was sent there before the events began: got %v units, want 20", got)
	}
	p.ObserveBlocks(name, []prefix.Event{{Kind: prefix.Cleared}})
	p.gatherMatch(5, r)
	if got := p.view.Match[row]; got != 0 {
		t.Errorf("its cache is empty: got %v units", got)
	}
	p.FollowEvents(name, prefix.NotFollowed)
	p.gatherMatch(5, r)
	if got := p.view.Match[row]; got != 20 {
		t.Errorf("without events the guess stands again: got %v units", got)
	}
}

// E37, E38: tokens do not say all that a block depends on. A salt and an adapter make other blocks of them; of a prompt with
// images only what comes before is known, and the rest is a guess that nobody calls exact.
func TestSaltsAdaptersAndImagesStayApart(t *testing.T) {
	p := followed(t, 2)
	plain, salted, adapted, image := prompt(1, 10*unitBytes), prompt(2, 10*unitBytes), prompt(3, 10*unitBytes), prompt(4, 10*unitBytes)
	tokens := tokensOf(1, plain)
	learn := func(r *Request, salt, adapter string, known int) {
		q := *tokens
		q.Blocks, q.Salt, q.Adapter, q.Ends = r.Blocks, salt, adapter, q.Ends[:known]
		p.LearnPrompt(&q)
	}
	learn(plain, "", "", 10)
	learn(salted, "s", "", 10)
	learn(adapted, "", "a", 10)
	learn(image, "", "", 4)
	p.ObserveBlocks("e0:8000", storedAt(tokens, 10))
	for _, c := range []struct {
		name string
		r    *Request
		want float32
	}{{"plain", plain, 10}, {"other salt", salted, 0}, {"adapter", adapted, 0}, {"image after 4 units", image, 4}} {
		if p.gatherMatch(1, c.r); p.view.Match[0] != c.want {
			t.Errorf("%s: got %v units, want %v", c.name, p.view.Match[0], c.want)
		}
	}
	l := pick(t, p, 1, image)
	l.FirstByte(sec(1))
	l.Done(sec(1), Outcome{})
	again := pick(t, p, 1, image)
	if again.CachedExact || again.Cached == 0 {
		t.Errorf("an image's blocks: got %d tokens, exact %v", again.Cached, again.CachedExact)
	}
	again.Done(sec(1), Outcome{})
}

// P03: an endpoint's events are bounded by its cache, whatever they say.
func TestEventsAreBounded(t *testing.T) {
	p := followed(t, 1)
	const room = 400_000 // tokens, of idle
	for id := range 100 {
		r := prompt(id+1, 20_000*4)
		p.ObserveBlocks("e0:8000", storedAt(tokensOf(id+1, r), 20_000*4/unitBytes)) // none is ever removed
	}
	if got, ok := p.rows[0].ledger.Tokens(); !ok || got > room*3/2 || got < room/2 {
		t.Errorf("2 million tokens were stored in a cache of %d: got %d", room, got)
	}
}

// The guess is never larger than the engine's own cache, in its own tokens.
func TestGuessIsNoLargerThanTheCache(t *testing.T) {
	p := newPool(t, 1)
	for i := range 300 {
		r := prompt(i+1, 40*unitBytes)
		l := pick(t, p, float64(i), r)
		l.FirstByte(sec(float64(i)))
		l.Done(sec(float64(i)), Outcome{PromptTokens: r.PromptBytes / 2, OutputTokens: 10}) // two bytes a token
		reading := idle(float64(2000 + i))
		reading.KVTokens = 50_000
		p.Observe(sec(float64(i)), sec(float64(i)), "e0:8000", reading, nil)
		if tokens := float64(p.index.Held(0)) * unitBytes / p.means.bytesPerToken(); tokens > 50_000*1.01 {
			t.Fatalf("after %d requests the index believes in %.0f tokens of 50000", i, tokens)
		}
	}
}

// Events, prompts and picks come from many goroutines.
func TestEventsFromManyGoroutines(t *testing.T) {
	p := followed(t, 4)
	var all sync.WaitGroup
	for g := range 4 {
		all.Go(func() {
			for i := range 60 {
				id := 1 + (g+i)%7
				r := prompt(id, 20*unitBytes)
				q := tokensOf(id, r)
				name := named(5)[(g+i)%5].Name
				switch i % 6 {
				case 0:
					p.LearnPrompt(q)
				case 1, 2:
					p.ObserveBlocks(name, storedAt(q, 20))
				case 3:
					p.ObserveBlocks(name, removed(q, 3, 20))
				case 4:
					p.FollowEvents(name, prefix.Following(i/6%3))
				case 5:
					p.SetEndpoints(named(3 + i%3))
				}
				if l, _ := p.Pick(sec(float64(i)), r); l != nil {
					l.FirstByte(sec(float64(i)))
					l.Done(sec(float64(i)), Outcome{})
				}
			}
		})
	}
	all.Wait()
	p.Tick(sec(100))
	audit(t, p)
}

// BenchmarkPickWithEvents picks among endpoints whose events are followed, each prompt being held by two of them: as long as 1 000 and 100 000
// tokens, in blocks as a front door cuts them.
func BenchmarkPickWithEvents(b *testing.B) {
	for _, n := range []int{5, 100} {
		for _, tokens := range []int{1_000, 100_000} {
			b.Run(fmt.Sprintf("endpoints=%d/tokens=%d", n, tokens), func(b *testing.B) {
				p := newTestPool(n)
				names := p.Endpoints()
				for _, e := range names {
					p.FollowEvents(e.Name, prefix.FollowedFromEmpty)
				}
				requests := make([]Request, 8)
				for i := range requests {
					r := Request{Model: "m", PromptBytes: 4 * tokens, UnitBytes: unitBytes, Streamed: true}
					q := &prefix.Prompt{Tokens: make([]uint32, tokens)}
					for at := range q.Tokens {
						q.Tokens[at] = uint32(i)<<20 | uint32(at)
					}
					for end := 0; end+unitTokens <= tokens; {
						end = min(end+unitTokens*growth(end), tokens/unitTokens*unitTokens)
						r.Blocks, r.Ends = append(r.Blocks, uint64(i)<<32|uint64(end)), append(r.Ends, int32(end/unitTokens))
						q.Ends = append(q.Ends, int32(end))
						if end+unitTokens > tokens {
							break
						}
					}
					q.Blocks = r.Blocks
					for k := range 2 {
						p.ObserveBlocks(names[(i+k)%n].Name, storedAt(q, tokens/unitTokens))
					}
					p.LearnPrompt(q)
					requests[i] = r
				}
				b.ReportAllocs()
				i := 0
				for b.Loop() {
					// As engines answer, and seldom: did first tokens come at once, holding a prompt would be learned to be worth nothing.
					now := time.Second + time.Duration(i)*time.Second
					l, _ := p.Pick(now, &requests[i%len(requests)])
					if l.Cached < tokens/unitTokens*unitTokens-engineBlock || !l.CachedExact {
						b.Fatalf("got %d of %d tokens, exact %v", l.Cached, tokens, l.CachedExact)
					}
					l.FirstByte(now + 100*time.Millisecond)
					l.Done(now+200*time.Millisecond, Outcome{})
					i++
				}
			})
		}
	}
}

// growth is how many units the prefix block after so many tokens has.
func growth(tokens int) int {
	switch {
	case tokens < 64*unitTokens:
		return 1
	case tokens < 256*unitTokens:
		return 4
	}
	return 16
}

// A recorded view says of every endpoint what it should find, and which of that is a guess.
func TestRecordedViewsSayWhatIsExact(t *testing.T) {
	p := followed(t, 2)
	p.FollowEvents("e1:8000", prefix.NotFollowed)
	r := prompt(1, 20*unitBytes)
	q := tokensOf(1, r)
	p.LearnPrompt(q)
	p.ObserveBlocks("e0:8000", storedAt(q, 10))
	r.Record = true
	l, c := p.Pick(sec(1), r)
	if v := c.View; v.Expected[0] != 10*unitTokens || v.Known[0] != route.Exact || v.Expected[1] != 0 || v.Known[1] != route.Guessed {
		t.Errorf("got %v tokens, %v; want those of e0's events, and nothing known of e1", v.Expected, v.Known)
	}
	beyond := *r
	beyond.Blocks = append(append([]uint64(nil), r.Blocks[:10]...), prompt(2, 10*unitBytes).Blocks...)
	if _, c := p.Pick(sec(1), &beyond); c.View.Known[0] != route.AtLeast || c.View.Expected[0] != 10*unitTokens {
		t.Errorf("got %v tokens, %v, of a prompt that goes on otherwise; want those of e0's events at least", c.View.Expected, c.View.Known)
	}
	if i := c.Endpoint; float32(l.Cached) != c.View.Expected[i] || l.CachedExact != (c.View.Known[i] == route.Exact) {
		t.Errorf("the lease has %d, exact %v, and the view %v, %v", l.Cached, l.CachedExact, c.View.Expected[i], c.View.Known[i])
	}
}
