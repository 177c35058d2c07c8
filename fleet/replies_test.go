package fleet

import (
	"math"
	"testing"

	"github.com/sluice-gateway/sluice/prefix"
	"github.com/sluice-gateway/sluice/route"
)

// The next turn of a conversation finds the last answer where it was given, and nowhere else.
func TestAnswersAreHeldWhereTheyWereGiven(t *testing.T) {
	p := newPool(t, 2)
	observeAll(p, 0)
	l := pick(t, p, 1, prompt(1, 4*unitBytes+100))
	l.FirstByte(sec(1.1))
	l.Done(sec(2), Outcome{OutputTokens: 100})
	next := prompt(1, 7*unitBytes)
	next.Record = true
	again, c := p.Pick(sec(3), next)
	again.Done(sec(3), Outcome{Ending: Aborted})
	want := 4 + (25+100)/c.View.Request.UnitTokens // 25 tokens of the prompt are beyond its last block
	if got := c.View.Match[l.ep.row]; math.Abs(float64(got-want)) > .01 {
		t.Errorf("where it was given: got a match of %v units, want %v", got, want)
	}
	if got := c.View.Match[1-l.ep.row]; got != 0 {
		t.Errorf("elsewhere: got a match of %v units, want none", got)
	}
}

// A block that several prompts end in, such as a system prompt's last, tells nothing of what follows it.
func TestAnswersToCommonPromptsTellNothing(t *testing.T) {
	p := newPool(t, 1)
	observeAll(p, 0)
	pick(t, p, 1, prompt(1, 8*unitBytes)).Done(sec(2), Outcome{OutputTokens: 100})
	common := prompt(1, 4*unitBytes+100) // all of its blocks are held
	pick(t, p, 3, common).Done(sec(4), Outcome{OutputTokens: 100})
	other := prompt(1, 4*unitBytes+900)
	other.Blocks[4], other.Blocks[5], other.Blocks[6], other.Record = 1, 2, 3, true
	l, c := p.Pick(sec(5), other)
	l.Done(sec(5), Outcome{Ending: Aborted})
	if got := c.View.Match[0]; got != 4 {
		t.Errorf("got a match of %v units, want 4", got)
	}
}

// A request that does not say how long its units are counts nothing in them, whatever was answered before.
func TestAnswersWithoutUnitsCountNothing(t *testing.T) {
	p := newPool(t, 1)
	observeAll(p, 0)
	r := prompt(1, 4*unitBytes+100)
	pick(t, p, 1, r).Done(sec(2), Outcome{OutputTokens: 100})
	r.UnitBytes, r.Record = 0, true
	l, c := p.Pick(sec(3), r)
	l.Done(sec(4), Outcome{Ending: Aborted})
	if got := c.View.Match[0]; got != 4 {
		t.Errorf("got a match of %v units, want the 4 blocks", got)
	}
}

// A beginning that others share tells nothing of what follows it either, when it was new to the first that had it: one
// of the others ends where that one's answer does not yet.
func TestAnswersToOneOfManyTellNothing(t *testing.T) {
	p := newPool(t, 1)
	observeAll(p, 0)
	pick(t, p, 1, prompt(1, 4*unitBytes+100)).Done(sec(2), Outcome{OutputTokens: 100})
	match := func(at float64, bytes int) float32 {
		r := prompt(1, 4*unitBytes+bytes)
		for i := 4; i < len(r.Blocks); i++ {
			r.Blocks[i] = uint64(at*100) + uint64(i)
		}
		r.Record = true
		l, c := p.Pick(sec(at), r)
		l.Done(sec(at), Outcome{Ending: Aborted})
		return c.View.Match[0]
	}
	if got := match(3, 900); !(got > 4) {
		t.Errorf("what may go on from the answer: got a match of %v units, want more than 4", got)
	}
	if got := match(4, 200); got != 4 { // 50 tokens where the first has 125
		t.Errorf("what ends before it: got a match of %v units, want 4", got)
	}
	if got := match(5, 900); got != 4 {
		t.Errorf("what may go on, when others are known to begin alike: got a match of %v units, want 4", got)
	}
	again := prompt(1, 4*unitBytes+100)
	pick(t, p, 6, again).Done(sec(7), Outcome{OutputTokens: 100})
	if got := match(8, 900); got != 4 {
		t.Errorf("after another answer: got a match of %v units, want 4", got)
	}
}

// Events tell of an answer only once its tokens are known; until then it counts as without events.
func TestAnswersCountWhereEventsAreFollowed(t *testing.T) {
	p := newPool(t, 1)
	observeAll(p, 0)
	p.FollowEvents(p.rows[0].Name, prefix.FollowedFromEmpty)
	l := pick(t, p, 1, prompt(1, 4*unitBytes+100))
	l.FirstByte(sec(1.1))
	l.Done(sec(2), Outcome{OutputTokens: 100})
	next := prompt(1, 7*unitBytes)
	next.Record = true
	l, c := p.Pick(sec(3), next)
	l.Done(sec(3), Outcome{Ending: Aborted})
	if got := c.View.Match[0]; !(got > 4) {
		t.Errorf("got a match of %v units, want more than the 4 of the prompt", got)
	}
	if got := c.View.Known[0]; got != route.Guessed {
		t.Errorf("got %v, want what it should find to be said to be a guess", got)
	}
}
