package route

import (
	"math"
	"testing"
)

// A long prompt waits a little longer where few requests come rather than delay many.
func TestLongPromptsAvoidBusyQueues(t *testing.T) {
	p := Latency()
	v := randomView(2, 1)
	v.Snapshot.Kinds = []int32{0, 0}
	for _, c := range []Column{v.Snapshot.Waiting, v.Snapshot.Running, v.Snapshot.KVUse, v.InFlight, v.Prefilling, v.Backlog, v.Head, v.Held, v.Context, v.SentSince, v.Match, v.Errors} {
		clear(c)
	}
	v.StepEnd, v.HeadSince = nil, nil
	v.Alone = 1
	v.Request.PromptTokens = 20000
	v.Work = Column{1000, 1100}
	v.Arrivals, v.Occupied = Column{20, 1}, Column{.5, .5}
	if d := p.Decide(v); d.Endpoint != 1 {
		t.Errorf("got endpoint %d, want the one where few requests come", d.Endpoint)
	}
	v.Arrivals = Column{1, 1}
	if d := p.Decide(v); d.Endpoint != 0 {
		t.Errorf("as many come to both: got endpoint %d, want the shorter queue", d.Endpoint)
	}
}

// One wait that is not known says nothing of the shortest: what those who come after wait is known of the others all the same.
func TestLaterWithoutOneWait(t *testing.T) {
	v := evenView(3)
	v.Work = Column{float32(math.NaN()), 1000, 1100}
	v.Arrivals, v.Occupied = Column{1, 20, 1}, Column{.5, .5, .5}
	e := Latency().Explain(v)
	for _, c := range e.Terms {
		if c.Name == "later" && !(c.Values[1] > c.Values[2] && c.Values[2] > 0) {
			t.Errorf("got %v, want more where more come", c.Values)
		}
	}
}
