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

// What a long prompt takes beyond two seconds counts a quarter: it keeps out of others' way, but not at any price.
func TestLaterOfLongPrompts(t *testing.T) {
	p := Latency()
	terms := func(tokens float32) (prefill, later float64) {
		v := evenView(2)
		v.Work = Column{1000, 1100}
		v.Arrivals, v.Occupied = Column{1, 1}, Column{.5, .5}
		v.Request.PromptTokens = tokens
		for _, c := range p.Explain(v).Terms {
			switch c.Name {
			case "prefill":
				prefill = float64(c.Values[0])
			case "later":
				later = float64(c.Values[0])
			}
		}
		return prefill, later
	}
	short, ofShort := terms(1000)
	long, ofLong := terms(200000)
	if short > 2000 || long < 4000 || ofShort <= 0 {
		t.Fatalf("got prompts of %.0f and %.0f ms, and %.0f of later, want one below 2000, one far above, and some", short, long, ofShort)
	}
	if want := ofShort / short * (2000 + (long-2000)/4); math.Abs(ofLong-want) > 1e-3*want {
		t.Errorf("got %.1f for a prompt of %.0f ms, want %.1f", ofLong, long, want)
	}
}
