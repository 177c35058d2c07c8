package fleet

import (
	"math"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/route"
)

// decoding gives an endpoint of p a stream whose tokens come each 20 ms until the time end, and returns it.
func decoding(t *testing.T, p *Pool, end float64) *Lease {
	t.Helper()
	l := pick(t, p, 0, short())
	for at := .02; at <= end+1e-9; at += .02 {
		if at < .03 {
			l.FirstByte(sec(at))
		} else {
			l.Progress(sec(at))
		}
		l.Progress(sec(at + .0005)) // another stream's token of the same step
	}
	return l
}

// What an engine is doing follows from when bytes come and when requests were sent.
func TestStepsShowWhatAnEngineDoes(t *testing.T) {
	p := newPool(t, 1)
	row := func(at float64) (head float32, since, stepEnd float64) {
		pick(t, p, at, short()).Done(sec(at), Outcome{Ending: Aborted}) // gathers, and counts for nothing afterwards
		v := &p.view
		p.gatherSteps(at)
		return v.Head[0], v.HeadSince[0], v.StepEnd[0]
	}
	near := func(a, b float64) bool { return math.Abs(a-b) < .002 }

	if head, since, end := row(0); head != 0 || since != 0 || end != 0 {
		t.Errorf("idle: got head %v since %v, step end %v, want nothing", head, since, end)
	}
	stream := decoding(t, p, 1)
	if _, _, end := row(1.005); !near(end, 1.02) {
		t.Errorf("decoding only: step ends at %v, want 1.02", end)
	}
	late := pick(t, p, 1.01, prompt(1, 4000))
	if head, _, end := row(1.011); head != 0 || !near(end, 1.02) {
		t.Errorf("sent during a step: head %v, step end %v; want it to wait for 1.02", head, end)
	}
	stream.Progress(sec(1.02))
	if head, since, end := row(1.03); head != late.work || !near(since, 1.02) || end != 0 {
		t.Errorf("after that step: head %v since %v, step end %v; want %v since 1.02", head, since, end, late.work)
	}
	if head, since, _ := row(1.02 + phaseLasts + .1); head != late.work || !near(since, 1.01) {
		t.Errorf("long without bytes: head %v since %v; want %v since it was sent, 1.01", head, since, late.work)
	}
	late.FirstByte(sec(2.2))
	late.Done(sec(2.3), Outcome{})
	stream.Done(sec(2.3), Outcome{})
	if head, since, end := row(2.4); head != 0 || since != 0 || end != 0 {
		t.Errorf("idle again: got head %v since %v, step end %v, want nothing", head, since, end)
	}
}

// Of endpoints alike in all else, the one whose step ends first is chosen, whatever the seed.
func TestRequestsGoWhereAStepEndsFirst(t *testing.T) {
	p := newPool(t, 2)
	profile := route.Latency()
	profile.TieRatio, profile.TieSlack = 0, 0
	cfg := p.Config()
	cfg.Profile = profile
	p.Apply(cfg)
	first := decoding(t, p, 1)
	var second *Lease
	for second == nil {
		if l := pick(t, p, .0, short()); l.Endpoint.Name != first.Endpoint.Name {
			second = l
		} else {
			l.Done(0, Outcome{Ending: Aborted})
		}
	}
	for at := .03; at < 1; at += .02 { // half a step behind
		second.Progress(sec(at))
	}
	second.FirstByte(sec(1.01))
	got := where(t, p, 1.012, 32, short())
	if n := got[first.Endpoint.Name]; n != 32 {
		t.Errorf("got %v, want all at %s, whose step ends in 8 ms", got, first.Endpoint.Name)
	}
}

// Prompts computed between steps of decoding hardly move the idea of how long one takes.
func TestStepLengthIsOfDecoding(t *testing.T) {
	p := newPool(t, 1)
	l := decoding(t, p, 2)
	at := 2.0
	for i := range 40 {
		at += .02
		if i%8 == 0 {
			at += .3
		}
		l.Progress(sec(at))
	}
	if got := time.Duration(l.ep.step.Load()); got < 18*time.Millisecond || got > 24*time.Millisecond {
		t.Errorf("got a step of %v, want about 20 ms", got)
	}
}

// The time before the first byte, and any pause that no step takes, say nothing of how long a step is.
func TestPausesAreNoSteps(t *testing.T) {
	p := newPool(t, 1)
	l := pick(t, p, 600, short())
	l.FirstByte(sec(600))
	for i := range 5 {
		l.Progress(sec(600 + .02*float64(i+1)))
	}
	l.Progress(sec(640)) // a client that took its time, or a prompt of a minute
	if step := time.Duration(p.rows[0].step.Load()); step < 15*time.Millisecond || step > 25*time.Millisecond {
		t.Errorf("got a step of %v, want the 20 ms between tokens", step)
	}
}
