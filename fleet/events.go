package fleet

import (
	"slices"

	"github.com/sluice-gateway/sluice/prefix"
	"github.com/sluice-gateway/sluice/route"
)

// FollowEvents says how well an endpoint's KV events are known from here on; what they have said so far is forgotten. Call it when events
// begin to come, when some were lost, when the engine has restarted, and with prefix.NotFollowed when there are none any more: the
// endpoint is then guessed by what was sent there, which is never forgotten. Unknown names are ignored.
func (p *Pool) FollowEvents(endpoint string, f prefix.Following) {
	p.mu.Lock()
	ep := p.by[endpoint]
	if ep != nil {
		ep.renewed = true
	}
	p.mu.Unlock()
	if ep != nil {
		ep.ledger.Follow(f)
	}
}

// outdated is the ledger of an engine whose readings say that it was restarted; nil where those who follow its events have begun anew since
// the reading before: they noticed it themselves, and what they have heard since is true.
func (ep *endpoint) outdated() *prefix.Ledger {
	if ep.renewed {
		return nil
	}
	return ep.ledger
}

// ObserveBlocks takes KV events of an endpoint, in the order in which they happened. It does not hold up picks for longer than a few
// microseconds at a time. Events of an endpoint that is not followed, or not there, change nothing.
func (p *Pool) ObserveBlocks(endpoint string, events []prefix.Event) {
	if l := p.ledger(endpoint); l != nil {
		l.Apply(events)
	}
}

// LearnPrompt takes a prompt whose tokens have become known. Its Blocks are those of the Request.
func (p *Pool) LearnPrompt(prompt *prefix.Prompt) { p.exact.Learn(prompt) }

// WantsTokens reports whether to learn the tokens of the prompt with these blocks would tell something new.
func (p *Pool) WantsTokens(blocks []uint64) bool { return p.exact.Wants(blocks) }

func (p *Pool) ledger(endpoint string) *prefix.Ledger {
	p.mu.Lock()
	defer p.mu.Unlock()
	if ep := p.by[endpoint]; ep != nil {
		return ep.ledger
	}
	return nil
}

// settleAfter is how many seconds after a prompt was computed its events have come for certain; until then the endpoint counts as
// holding what it was sent.
const settleAfter = .5

// settling is the leases whose prompts have been computed, in the order of the time from which events tell what is held.
type settling struct {
	due   []settlement
	first int
	spare [][]uint64 // memory of those that are over
}

type settlement struct {
	at     float64
	ep     *endpoint
	blocks []uint64
}

// expect notes what the chosen endpoint is expected to find in its cache, and to hold once it has computed the rest.
func (p *Pool) expect(l *Lease, r *Request) {
	var n int
	var known route.Known
	l.Cached, known, n = p.expected(l.ep, r)
	l.CachedExact = known == route.Exact
	p.expectBlocks(l, r.Blocks[n:])
}

// expected is how many tokens of the prompt an endpoint should find in its cache, how well that is known, and how many of the
// prompt's blocks it holds.
func (p *Pool) expected(ep *endpoint, r *Request) (tokens int, how route.Known, n int) {
	q := &p.view.Request
	if at, ok := slices.BinarySearch(p.endsOf(r), p.match[ep.slot]); ok {
		n = at + 1
	}
	if known := p.exact.Predict(&p.index, ep.slot, r.Blocks, n, r.Head); known.Known {
		if how = route.AtLeast; known.Exact {
			how = route.Exact
		}
		return known.Tokens, how, n
	}
	return max(min(int(p.view.Match[ep.row]*q.UnitTokens), int(q.PromptTokens)-1), 0), route.Guessed, n
}

// forecast writes into a copy of the view what every endpoint should find in its cache.
func (p *Pool) forecast(v *route.View, r *Request) {
	v.Expected, v.Known = make(route.Column, len(p.rows)), make([]route.Known, len(p.rows))
	for i, ep := range p.rows {
		tokens, known, _ := p.expected(ep, r)
		v.Expected[i], v.Known[i] = float32(tokens), known
	}
}

// expectBlocks notes that the lease's endpoint will hold the blocks once it has computed them, whatever its events say until then.
func (p *Pool) expectBlocks(l *Lease, blocks []uint64) {
	if _, followed := l.ep.ledger.Tokens(); !followed || len(blocks) == 0 {
		return
	}
	if k := len(p.settling.spare); k > 0 {
		l.expected, p.settling.spare = p.settling.spare[k-1], p.settling.spare[:k-1]
	}
	l.expected = append(l.expected, blocks...)
	p.index.Expect(l.ep.slot, l.expected)
}

// settleAt lets events tell from a moment after now on what the endpoint holds of the lease's prompt.
func (l *Lease) settleAt(now float64) {
	if l.expected != nil {
		s := &l.pool.settling
		s.due = append(s.due, settlement{now + settleAfter, l.ep, l.expected})
		l.expected = nil
	}
}

// settle ends the expectations whose time has come.
func (p *Pool) settle(now float64) {
	s := &p.settling
	for s.first < len(s.due) && s.due[s.first].at <= now {
		d := &s.due[s.first]
		if d.ep.row >= 0 {
			p.index.Settle(d.ep.slot, d.blocks)
		}
		s.spare = append(s.spare, d.blocks[:0])
		*d = settlement{}
		s.first++
	}
	if s.first > len(s.due)/2 {
		s.due = s.due[:copy(s.due, s.due[s.first:])]
		s.first = 0
	}
}
