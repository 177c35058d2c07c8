package fleet

import (
	"math"
	"testing"

	"github.com/sluice-gateway/sluice/route"
)

// queue is an engine that computes prompts one after another, a token in so many seconds, and answers each with so many
// tokens. It counts what engines count.
type queue struct {
	token, output float64
	freeAt        float64
	open          []*queued
	counted       Reading
}

type queued struct {
	lease                        *Lease
	sent, firstAt, endAt, prompt float64
	first                        bool
}

// perToken is the time between the tokens of its answers.
const perToken = .01

func newQueue(token, output float64) *queue {
	return &queue{token: token, output: output, counted: counting()}
}

// counting is the reading of an idle engine that counts first tokens and ends, and has counted none.
func counting() Reading {
	r := idle(1000)
	r.Firsts, r.FirstSeconds, r.Finished, r.FinishedPrompt, r.FinishedOutput = 0, 0, 0, 0, 0
	return r
}

func (q *queue) add(l *Lease, now, tokens float64) {
	s := &queued{lease: l, sent: now, prompt: tokens}
	s.firstAt = max(q.freeAt, now) + q.token*tokens
	q.freeAt, s.endAt = s.firstAt, s.firstAt+perToken*(q.output-1)
	q.open = append(q.open, s)
}

// until lets time pass: requests whose answers have come end, and are counted. Leases whose answers are seen hear of first
// tokens.
func (q *queue) until(now float64) {
	left := q.open[:0]
	for _, s := range q.open {
		if !s.first && s.firstAt <= now {
			s.first = true
			q.counted.Firsts++
			q.counted.FirstSeconds += s.firstAt - s.sent
			if !s.lease.unseen {
				s.lease.FirstByte(sec(s.firstAt))
			}
		}
		if s.endAt > now {
			left = append(left, s)
			continue
		}
		q.counted.Finished++
		q.counted.FinishedPrompt += s.prompt
		q.counted.FinishedOutput += q.output
		q.counted.DecodeTokens += q.output
		q.counted.DecodeSeconds += (q.output - 1) * perToken
		s.lease.Done(sec(s.endAt), Outcome{})
	}
	q.open = left
}

// read has the pool read the engine, which is at its first endpoint.
func (q *queue) read(p *Pool, now float64) {
	r := q.counted
	r.Progress, r.PrefillTokens, r.Waiting, r.Running = now, now, 0, 0
	for _, s := range q.open {
		switch {
		case s.first || s == q.open[0] || s.firstAt-q.token*s.prompt <= now:
			r.Running++
		default:
			r.Waiting++
		}
	}
	p.Observe(sec(now), sec(now), "e0:8000", r, nil)
}

// unseen makes a request whose answer nobody sees.
func unseen(bytes int) *Request {
	return &Request{Model: "m", PromptBytes: bytes, Streamed: true, Unseen: true}
}

// onePool makes a pool of one endpoint that counts.
func onePool() *Pool {
	p := NewPool("m")
	p.Apply(PoolConfig{Name: "m", Model: "m", Endpoints: named(1)})
	p.Observe(0, 0, "e0:8000", counting(), nil)
	return p
}

func backlog(p *Pool, now float64) float64 { return p.Status(sec(now))[0].BacklogTokens }

// A prompt leaves the backlog when it should have been computed; what the engine counts decides.
func TestFirstTokensArePredictedAndCounted(t *testing.T) {
	p := onePool()
	pick(t, p, 1, unseen(40_000))
	pick(t, p, 1, unseen(40_000))
	waits := backlog(p, 1)
	step := p.nextStep(p.rows[0])
	took := step.end - step.begin
	want := func(now, backlogged float64, queued int) {
		t.Helper()
		audit(t, p)
		n := 0
		for l := p.rows[0].first; l != nil; l = l.next {
			n++
		}
		if got := backlog(p, now); got != backlogged || n != queued {
			t.Errorf("at %v s: got a backlog of %v and %d on the list, want %v and %d", now, got, n, backlogged, queued)
		}
	}
	look := func(now float64) { pick(t, p, now, short()).Done(sec(now), Outcome{Ending: Aborted}) }
	read := func(now, firsts float64) {
		r := counting()
		r.Running, r.Firsts, r.FirstSeconds, r.Progress = 2, firsts, firsts*took, now
		p.Observe(sec(now), sec(now), "e0:8000", r, nil)
	}
	look(1 + took/2)
	want(1+took/2, waits, 2)
	look(1 + 1.01*took)
	want(1+1.01*took, waits/2, 2) // predicted
	read(1+1.02*took, 0)
	want(1+1.02*took, waits, 2) // the engine has not come so far
	look(1 + 1.03*took)
	want(1+1.03*took, waits, 2)
	read(1+1.2*took, 1)
	want(1+1.2*took, waits/2, 1)
	read(1+1.3*took, 2) // faster than predicted
	want(1+1.3*took, 0, 0)
}

// What has ended before the engine counted it is not taken for another one's first token.
func TestEndsBeforeTheyAreCounted(t *testing.T) {
	p := onePool()
	first, second := pick(t, p, 1, unseen(40_000)), pick(t, p, 1, unseen(40_000))
	first.Done(sec(1.1), Outcome{})
	r := counting()
	r.Firsts, r.FirstSeconds, r.Finished, r.Running = 1, .1, 1, 1
	p.Observe(sec(1.2), sec(1.2), "e0:8000", r, nil)
	if !second.queued {
		t.Error("the second request counts as past its prompt by the first token of the first")
	}
	audit(t, p)
	second.Done(sec(3), Outcome{Ending: Failed})
	r.Progress++
	p.Observe(sec(4), sec(4), "e0:8000", r, nil)
	empty(t, p)
}

// However fast an engine is, the pool finds out by its counters, under light load and under more than it can take, and
// so it does from a share of answers that are seen.
func TestSpeedIsLearnedUnseen(t *testing.T) {
	for says, c := range map[string]struct{ factor, busy, seen float64 }{
		"as believed": {1, .3, 0}, "slow": {4, .3, 0}, "slow and busy": {4, .9, 0}, "slow and flooded": {4, 1.5, 0},
		"fast": {.25, .3, 0}, "fast and busy": {.25, .9, 0}, "some are seen": {4, .5, .2},
	} {
		p := onePool()
		const prompt = 2500 // tokens: more than a step has
		token := c.factor * alone(&p.rows[0].shape, prompt) / prompt
		q := newQueue(token, 20)
		gap := token * prompt / c.busy
		now, nextRead := 1., 1.
		for i := range 400 {
			now += gap * (.5 + float64(i*7919%100)/100) // neither regular nor random
			for ; nextRead < now; nextRead += .05 {
				q.until(nextRead)
				q.read(p, nextRead)
			}
			q.until(now)
			r := unseen(4 * prompt)
			r.Unseen = float64(i%10) >= 10*c.seen
			q.add(pick(t, p, now, r), now, prompt)
		}
		got := float64(p.kinds[0].rate().Prefill)
		if math.Abs(got/c.factor-1) > .2 {
			t.Errorf("%s: got a factor of %.2f, want %v", says, got, c.factor)
		}
	}
}

// Means come from what the engine counts over finished requests.
func TestMeansAreLearnedUnseen(t *testing.T) {
	p := onePool()
	q := newQueue(1e-5, 700)
	for i := range 200 {
		now := 1 + float64(i)
		q.until(now)
		q.read(p, now)
		q.add(pick(t, p, now, unseen(3000)), now, 1000)
	}
	if b := p.means.bytesPerToken(); math.Abs(b-3) > .05 {
		t.Errorf("got %v bytes a token, want 3", b)
	}
	if o := p.means.output(); math.Abs(o-700) > 20 {
		t.Errorf("got %v tokens of output, want 700", o)
	}
}

// How long an answer was that nobody saw is told by how long it took, so that the next turn is known to be held.
func TestRepliesAreGuessedUnseen(t *testing.T) {
	p := onePool()
	q := newQueue(1e-5, 400)
	for i := range 40 {
		now := 1 + float64(i)/2
		q.until(now)
		q.read(p, now)
		q.add(pick(t, p, now, unseen(3000)), now, 750)
	}
	r := prompt(1, 8192)
	r.Unseen = true
	l := pick(t, p, 30, r)
	l.Done(sec(30+400*perToken), Outcome{})
	if got := p.replies.after(l.leaf, route.HashName("e0:8000"), 8192); got < 300 || got > 450 {
		t.Errorf("got %v tokens held beyond the prompt, want about 400", got)
	}
}

// An endpoint in doubt is trusted again when it has counted a first token, and put aside by ends alone.
func TestHealthUnseen(t *testing.T) {
	p := onePool()
	p.SetEndpoints(named(3))
	for range failsToEject {
		r := unseen(400)
		r.Subset = []string{"e0:8000"}
		pick(t, p, 1, r).Done(sec(1), Outcome{Ending: Failed})
	}
	ep := p.by["e0:8000"]
	if !ep.doubt || ep.errorShare(1) == 0 {
		t.Fatal("three failures in a row are no reason to doubt it")
	}
	r := unseen(400)
	r.Subset = []string{"e0:8000"}
	pick(t, p, 10, r)
	answer := counting()
	answer.Firsts, answer.FirstSeconds, answer.Running = 1, .1, 1
	p.Observe(sec(11), sec(11), "e0:8000", answer, nil)
	if ep.doubt {
		t.Error("it is still in doubt although it has served")
	}
}

// An engine that does not count first tokens says who waits, which is enough to keep the list true.
func TestWithoutCounters(t *testing.T) {
	p := newPool(t, 1)
	var leases []*Lease
	for range 4 {
		leases = append(leases, pick(t, p, 1, unseen(400)))
	}
	read := func(now, waiting float64) {
		r := working(1, now)
		r.Waiting = waiting
		p.Observe(sec(now), sec(now), "e0:8000", r, nil)
	}
	read(100, 3)
	if leases[0].queued || !leases[1].queued {
		t.Error("of four requests, three of them waiting, the first alone should be past its prompt")
	}
	read(200, 0)
	if leases[3].queued {
		t.Error("a request is not past its prompt although its time has passed and nobody waits")
	}
	audit(t, p)
}

// A peer's requests leave the list by our own readings: nobody tells of their first tokens.
func TestPeersRequestsUnseen(t *testing.T) {
	pools, links := peers(2, onePool)
	a, b := pools[0], pools[1]
	l := pick(t, a, 1, unseen(40_000))
	passAll(links)
	if backlog(b, 1) == 0 {
		t.Fatal("the peer's request does not count")
	}
	r := counting()
	r.Firsts, r.FirstSeconds, r.Running = 1, .5, 1
	b.Observe(sec(1.5), sec(1.5), "e0:8000", r, nil)
	audit(t, b)
	if got := backlog(b, 1.5); got != 0 {
		t.Errorf("got a backlog of %v after the engine has counted the first token, want 0", got)
	}
	l.Done(sec(2), Outcome{})
	passAll(links)
	empty(t, a)
	if n := len(b.rows[0].leases); n != 0 {
		t.Errorf("got %d of the peer's requests left, want none", n)
	}
}
