package fleet

import (
	"math"

	"github.com/sluice-gateway/sluice/route"
)

// Of a request whose first token nobody sees (the answer comes whole, or passes by a data plane that shows nothing of it)
// it is predicted when its prompt has been computed: engines compute prompts in order, and what a step takes is known.
// Every reading says what came of that. Engines count their first tokens, so that as many requests have left the list
// as were counted, whichever were predicted to. What has been predicted and not been counted is computed still.
const (
	// stepTokens is about how many tokens of prompts an engine computes in one step. Some take four times as many, but
	// a step of theirs takes as long as four of these.
	stepTokens = 2048
	// overdue is how far a step is taken to be that should have ended before the reading and has not.
	overdue = .9
	// mostSteps is over how many steps without a sign the phase is believed.
	mostSteps = 8
	// evidenceFirsts is how many first tokens one piece of evidence comes from.
	evidenceFirsts = 4
	// mostWrong is how many times slower or faster than believed an engine may be by one piece of evidence.
	mostWrong = 8
)

// hidden is what an endpoint needs to follow requests whose first tokens nobody sees.
type hidden struct {
	// next is the first request of the list that is not passed: its first token has neither been seen nor is it
	// predicted to have come. freeAt is when the step ended that those before it were in, as far as is known, and work
	// the milliseconds of all steps so far, at a factor of 1.
	next   *Lease
	freeAt float64
	work   float64
	// unshown is how many requests of the list have a hidden first token.
	unshown int
	// credit is the first tokens that were known before the engine counted them, and part what is left of one where
	// only some of those counted are ours.
	credit, part float64
	fresh        firsts
	base         departure
	taken        departures
	pace         pace
	quiet        float64 // factor on steps without prompts, 0 where it isn't known
	endedAt      float64 // when an unseen answer last ended
	ended        ended
}

// firsts is the requests whose first tokens have become known since the last reading.
type firsts struct {
	n, sent, work  float64 // sums
	oldest, newest float64 // times at which they were sent
	tokens         float64
	waits, own     float64 // sums of the seconds before their steps began and of the steps' work, as predicted
	whole          bool    // each step had all the prompts that waited
	load           bool    // the last had an adapter loaded and was alone
}

// departures is evidence from first tokens that is too little by itself.
type departures struct{ n, seconds, work, tokens float64 }

// departure is a mean time of first tokens, and how much work had been done for them on average.
type departure struct{ at, work float64 }

// hides reports whether nobody sees when the request's first token comes.
func (l *Lease) hides() bool { return !l.streamed }

// prefillStep is one that computes prompts: when it begins and ends, what they and all of it take at a factor of 1, in
// milliseconds, and the request behind it.
type prefillStep struct {
	begin, end float64
	head, work float32
	tokens     float32
	behind     *Lease
}

// nextStep is the step that computes the endpoint's next hidden prompts.
func (p *Pool) nextStep(ep *endpoint) prefillStep {
	v, l := &p.view, ep.next
	var begin float64
	var head float32
	if begin = ep.freeAt; begin < l.sent {
		begin = l.sent + float64(l.rest) // it waits for the end of a step without prompts
	}
	tokens, loads := float32(0), 0.
	for n := 0; l != nil && l.hides() && (n == 0 || l.sent <= begin && tokens < stepTokens && n < maxHeads); n++ {
		head += l.work
		tokens += l.uncached
		if l.loads {
			loads = p.loads.mean()
		}
		l = l.next
	}
	row := ep.row
	decoding := max(v.InFlight[row]-v.Prefilling[row], 0)
	work := head + ep.shape.Launch(head, decoding, v.Context[row]*decoding/max(v.InFlight[row], 1))
	return prefillStep{begin, begin + float64(v.Rates[ep.kind].Prefill*work)/1000 + loads, head, work, tokens, l}
}

// advance passes the requests whose first tokens should have come by now, and says what is computed then and since when;
// nothing, if that is not a hidden prompt.
func (p *Pool) advance(ep *endpoint, now float64) (head float32, since float64) {
	for ep.row >= 0 && ep.next != nil && ep.next.hides() {
		s := p.nextStep(ep)
		if s.end > now {
			return s.head, s.begin
		}
		p.pass(ep, &s)
	}
	return 0, 0
}

// pass takes a step as done. What was predicted of a request first is what its engine is measured by.
func (p *Pool) pass(ep *endpoint, s *prefillStep) {
	v, row, pace := &p.view, ep.row, ep.pace.at(s.end)
	before := ep.work
	ep.work += float64(s.work)
	ep.freeAt = s.end
	for l := ep.next; l != s.behind; l = l.next {
		l.passed, l.firstAt, l.stepsAt, l.before, l.after = true, s.end, pace, before, ep.work
		if l.began == 0 {
			l.began, l.own, l.whole = s.begin, s.work, s.behind == nil || s.behind.sent > s.begin
		}
		v.Prefilling[row] = max(v.Prefilling[row]-1, 0)
		v.Backlog[row] = max(v.Backlog[row]-l.uncached, 0)
		v.Work[row] = max(v.Work[row]-l.work, 0)
	}
	ep.next = s.behind
	if ep.next == nil {
		v.Prefilling[row], v.Backlog[row], v.Work[row] = 0, 0, 0
	}
}

// passTo passes the steps up to that of the lease, whenever they should end.
func (p *Pool) passTo(l *Lease) {
	for ep := l.ep; ep.row >= 0 && !l.passed && ep.next != nil && ep.next.hides(); {
		s := p.nextStep(ep)
		p.pass(ep, &s)
	}
}

// showed takes the request off the list, whose first token has come by the time at.
func (p *Pool) showed(l *Lease, at float64) {
	ep, f := l.ep, &l.ep.fresh
	p.passTo(l)
	if l.firstAt > at {
		l.firstAt, l.stepsAt = at, ep.pace.at(at)
	}
	if f.n == 0 {
		f.oldest, f.newest, f.whole = l.sent, l.sent, true
	}
	f.n++
	f.sent, f.work, f.tokens = f.sent+l.sent, f.work+l.after, f.tokens+float64(l.uncached)
	f.oldest, f.newest = min(f.oldest, l.sent), max(f.newest, l.sent)
	f.load = l.loads && l.alone
	f.waits, f.own, f.whole = f.waits+l.began-l.sent, f.own+float64(l.own), f.whole && l.whole && l.began > 0 && !l.loads
	l.settleAt(l.firstAt)
	ep.lastFirst = max(ep.lastFirst, l.firstAt)
	l.prefilled()
}

// leave takes the end of a request into account that is still on the list: where it was served it has had a first token,
// which the engine has counted or will. A seen first token counts as such, too.
func (l *Lease) leave(now float64, how Ending) {
	if !l.queued || l.ep.row < 0 {
		return
	}
	if how == Finished || l.hides() && l.passed && (how == Aborted || how == Moved) {
		l.ep.credit++
		if l.hides() {
			l.pool.showed(l, now)
		}
	}
}

// confirm holds what was predicted of an endpoint against a reading of it.
func (p *Pool) confirm(ep *endpoint, r *Reading, at float64) {
	old := &ep.reading
	n, seconds := r.Firsts-old.Firsts, r.FirstSeconds-old.FirstSeconds
	if ep.unshown == 0 && ep.fresh.n == 0 || ep.row < 0 || ep.readAt == route.Never {
		ep.credit, ep.part, ep.fresh, ep.base = 0, 0, firsts{}, departure{}
		return
	}
	p.advance(ep, at)
	ours := p.census.share()
	var counted int
	if n >= 0 { // false for NaN
		left := n*ours - ep.credit
		ep.credit = max(-left, 0)
		left = max(left, 0) + ep.part
		counted = int(left)
		ep.part = left - float64(counted)
	} else {
		counted = p.admitted(ep, r, at, ours)
	}
	faster := p.showSome(ep, counted, at)
	p.bound(ep, r, at)
	p.resume(ep, at, faster)
	p.learnDepartures(ep, n, seconds)
}

// admitted is how many requests of the list have had their first tokens, as far as an engine says that does not count
// those: whoever is not in its queue any more, and has had its time.
func (p *Pool) admitted(ep *endpoint, r *Reading, at, ours float64) int {
	sent, passed := 0, 0
	for l := ep.first; l != nil && l.sent < at; l = l.next {
		sent++
		if l.passed {
			passed++
		}
	}
	if w := r.Waiting * ours; w > 0 {
		sent = max(sent-int(math.Ceil(w)), 0)
	}
	return min(sent, passed)
}

// showSome takes so many hidden requests off the list, the first first, and reports whether some of them were not
// predicted to be past their prompts.
func (p *Pool) showSome(ep *endpoint, n int, at float64) (faster bool) {
	for l := ep.first; l != nil && n > 0 && l.sent < at; {
		next := l.next
		if l.hides() {
			n--
			faster = faster || !l.passed
			p.showed(l, at)
			if !l.heard {
				p.serves(l)
			}
		}
		l = next
	}
	return faster
}

// bound takes off the list what can't be there: more than the engine has. What was sent since the reading before may
// not have arrived when this one was taken. So no error in counting lasts.
func (p *Pool) bound(ep *endpoint, r *Reading, at float64) {
	there := r.Waiting + r.Running
	if !(there >= 0) {
		return
	}
	sent := 0
	for l := ep.first; l != nil && l.sent < ep.readAt; l = l.next {
		sent++
	}
	p.showSome(ep, sent-int(there), at)
	if there == 0 {
		ep.credit, ep.part = 0, 0
	}
}

// resume goes on from what is known at a reading: who was passed and has not been counted is computed still, and has the
// last part of its step before it.
func (p *Pool) resume(ep *endpoint, at float64, faster bool) {
	late := ep.first
	if late == nil || !late.passed || late.firstAt > at {
		if faster {
			ep.freeAt = (ep.readAt + at) / 2
		}
		return
	}
	ep.work = late.before
	v, row := &p.view, ep.row
	for l := late; l != nil && l.passed; l = l.next {
		l.passed, l.firstAt = false, 0
		v.Prefilling[row]++
		v.Backlog[row] += l.uncached
		v.Work[row] += l.work
	}
	ep.next, ep.freeAt = late, at
	s := p.nextStep(ep)
	ep.freeAt = at - overdue*(s.end-s.begin)
}

// learnDepartures learns how fast prompts are computed from the engine's count of first tokens and the sum of the times to
// them, which give the mean time at which they came. How prompts share steps is not known, so that the time of one alone
// tells only if it was; but where an engine was busy all the while the times between departures do.
func (p *Pool) learnDepartures(ep *endpoint, n, seconds float64) {
	f, base := ep.fresh, ep.base
	ep.fresh = firsts{}
	switch {
	case f.n == 0 && n == 0:
		return
	case f.n != n || !(seconds > 0):
		ep.base = departure{} // some are not ours, or will be counted with the next reading
		return
	}
	mean := departure{at: (seconds + f.sent) / n, work: f.work / n}
	ep.base = mean
	switch {
	case f.load && n == 1:
		p.loads.learn(seconds - f.own/1000*float64(p.view.Rates[ep.kind].Prefill))
	case f.whole:
		p.learnSteps(ep, departures{n, seconds - f.waits, f.own, f.tokens})
	case base.at > 0 && f.oldest <= base.at && f.newest <= ep.readAt:
		p.learnSteps(ep, departures{n, mean.at - base.at, mean.work - base.work, f.tokens})
	}
}

// learnSteps learns from so many seconds in which so many milliseconds of work at a factor of 1 were done. When a step
// began is not known well enough for the time of each, but of an endpoint that little is known of any time tells more than none.
func (p *Pool) learnSteps(ep *endpoint, d departures) {
	t := &ep.taken
	t.n, t.seconds, t.work, t.tokens = t.n+d.n, t.seconds+d.seconds, t.work+d.work, t.tokens+d.tokens
	if t.n < evidenceFirsts && ep.speed.firsts >= regroupEvery || !(t.work > 0) {
		return
	}
	expected := t.work / 1000
	believed := expected * float64(p.view.Rates[ep.kind].Prefill)
	p.learnPrefill(ep, min(max(t.seconds, believed/mostWrong), believed*mostWrong), expected, t.tokens, int(t.n))
	*t = departures{}
}

// pace is how an endpoint's answers go on: the tokens that one that decodes all the time has had by the time to, and the
// seconds between two.
type pace struct{ tokens, to, seconds float64 }

func (c *pace) at(t float64) float64 {
	if c.seconds == 0 {
		return 0
	}
	return c.tokens + (t-c.to)/c.seconds
}

// observePace takes the engine's time between tokens.
func (p *Pool) observePace(ep *endpoint, r *Reading, at float64) {
	old, c := &ep.reading, &ep.pace
	tokens, seconds := r.DecodeTokens-old.DecodeTokens, r.DecodeSeconds-old.DecodeSeconds
	if firsts := r.Firsts - old.Firsts; firsts >= 0 { // false for NaN
		tokens -= firsts
	}
	if tokens > 0 && seconds/tokens >= minDecodeToken {
		c.seconds = seconds / tokens
	}
	if c.seconds > 0 && c.to > 0 {
		c.tokens += (at - c.to) / c.seconds
	}
	c.to = at
}

// guess is the outcome of a request whose answer nobody saw, with about as many tokens as came in its time.
func (l *Lease) guess(now float64, o Outcome) Outcome {
	if l.unseen && o.Ending == Finished && o.OutputTokens == 0 && l.firstAt > 0 && l.ep.pace.seconds > 0 {
		o.OutputTokens = 1 + int(math.Round(max(l.ep.pace.at(now)-l.stepsAt, 0)))
	}
	return o
}

// ended is requests with unseen answers that have finished since the engine last counted any, and the bytes of their
// prompts; and what the engine counts as finished since the first of them.
type ended struct {
	n, bytes                 float64
	counted, prompt, outputs float64
}

// observeEnded learns the pool's means from what the engine counts over finished requests, as far as their answers are
// not seen here.
func (p *Pool) observeEnded(ep *endpoint, r *Reading) {
	old, e := &ep.reading, &ep.ended
	n := r.Finished - old.Finished
	if !(n >= 0) { // false for NaN
		*e = ended{}
		return
	}
	e.counted, e.prompt, e.outputs = e.counted+n, e.prompt+r.FinishedPrompt-old.FinishedPrompt, e.outputs+r.FinishedOutput-old.FinishedOutput
	if e.n == 0 || e.counted == 0 {
		if e.n == 0 {
			*e = ended{}
		}
		return
	}
	bytes := int(e.bytes / e.n)
	o := Outcome{PromptTokens: int(math.Round(e.prompt / e.counted)), OutputTokens: int(math.Round(e.outputs / e.counted))}.plausible(bytes)
	for range int(min(e.n, 1/(1-meanDecay))) {
		p.means.finished(bytes, o)
	}
	*e = ended{}
}

// quietStep is how long a step without prompts takes there, as the engine's time between tokens told when it computed
// none, 0 where it never did.
func (p *Pool) quietStep(ep *endpoint) float64 {
	v, row := &p.view, ep.row
	return ep.quiet * float64(ep.shape.Token(v.InFlight[row], v.Context[row])) / 1000
}

// observeQuiet learns quietStep of a reading before which no prompts were computed.
func (p *Pool) observeQuiet(ep *endpoint, r *Reading) {
	old := &ep.reading
	tokens, seconds := r.DecodeTokens-old.DecodeTokens, r.DecodeSeconds-old.DecodeSeconds
	if ep.row < 0 || r.Firsts != old.Firsts || r.Waiting != 0 || ep.first != nil || !(tokens > 0) || !(seconds/tokens >= minDecodeToken) {
		return
	}
	v := &p.view
	factor := seconds / tokens * 1000 / float64(ep.shape.Token(v.InFlight[ep.row], v.Context[ep.row]))
	if ep.quiet == 0 {
		ep.quiet = factor
	}
	ep.quiet += (factor - ep.quiet) / 8
}

// sawEnd takes the end of an answer that nobody sees for what it tells: a step has ended just then.
func (p *Pool) sawEnd(ep *endpoint, now float64) {
	if ep.row < 0 {
		return
	}
	ep.endedAt = now
	ep.lastByte.Store(max(ep.lastByte.Load(), int64(duration(now))))
	p.advance(ep, now)
	if ep.next == nil || !ep.next.hides() {
		return
	}
	s := p.nextStep(ep)
	switch {
	case s.tokens > stepTokens: // several steps, perhaps
	case now < (s.begin+s.end)/2:
		ep.freeAt = now
	default:
		s.end = now
		p.pass(ep, &s)
	}
}

// stepEnd is when a step without prompts should end, 0 where it can't be told.
func (p *Pool) stepEnd(ep *endpoint, now float64) float64 {
	from, step := max(ep.endedAt, ep.freeAt), p.quietStep(ep)
	if from == 0 || step == 0 || now-from > mostSteps*step {
		return 0
	}
	return from + (math.Floor(max(now-from, 0)/step)+1)*step
}
