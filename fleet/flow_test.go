package fleet

import (
	"math"
	"testing"
)

// Arrivals and occupation follow what is sent, and are forgotten over half a minute.
func TestFlowFollowsTraffic(t *testing.T) {
	p := newPool(t, 1)
	for at := 0.; at < 150; at += .25 {
		l := pick(t, p, at, short())
		pick(t, p, at+.125, short()).Done(sec(at+.125), Outcome{Ending: Aborted}) // looks while the first is computed
		l.Done(sec(at+.126), Outcome{Ending: Aborted})
	}
	p.gatherFlow(150)
	if got := p.view.Arrivals[0]; math.Abs(float64(got)-8) > .5 {
		t.Errorf("got %v arrivals a second, want 8", got)
	}
	if got := p.view.Occupied[0]; math.Abs(float64(got)-.5) > .05 {
		t.Errorf("got %v of the time occupied, want half", got)
	}
	p.gatherFlow(150 + 2*flowLasts)
	if got := p.view.Arrivals[0]; got > 1.2 {
		t.Errorf("a minute later: got %v arrivals a second, want it forgotten", got)
	}
}
