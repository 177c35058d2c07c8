package fleet

import (
	"fmt"
	"testing"

	"github.com/sluice-gateway/sluice/route"
)

// L01, L02: how an endpoint stands to an adapter, from what it lists and what it was read to hold.
func TestAdapterStanding(t *testing.T) {
	p := newPool(t, 1)
	ep := p.rows[0]
	models := []Model{{ID: "m"}, {ID: "a", Parent: "m"}, {ID: "b", Parent: "m"}}
	for _, c := range []struct {
		says              string
		max               float64
		resident, waiting []string
		listed            []Model
		adapter           string
		want              route.Adapter
	}{
		{"no adapter asked", 2, nil, nil, models, "", route.AdapterNone},
		{"nothing known of adapters", UnknownReading().MaxAdapters, nil, nil, models, "a", route.AdapterRoom},
		{"resident", 2, []string{"b", "a"}, nil, models, "a", route.AdapterResident},
		{"resident and waiting", 2, []string{"a"}, []string{"a"}, models, "a", route.AdapterResident},
		{"waiting", 1, []string{"b"}, []string{"a"}, models, "a", route.AdapterWaiting},
		{"a free slot", 2, []string{"b"}, nil, models, "a", route.AdapterRoom},
		{"no free slot", 1, []string{"b"}, nil, models, "a", route.AdapterFull},
		{"no slot at all", 0, nil, nil, models, "a", route.AdapterFull},
		{"not listed by anyone", 2, nil, nil, models, "c", route.AdapterRoom},
		{"nothing listed", 2, nil, nil, nil, "c", route.AdapterRoom},
	} {
		clear(ep.uses)
		r := idle(1000)
		r.MaxAdapters, r.Resident, r.WaitingAdapters = c.max, c.resident, c.waiting
		p.Observe(0, 0, ep.Name, r, nil)
		p.ObserveModels(ep.Name, "vllm", c.listed)
		p.mu.Lock()
		p.gatherAdapters(0, c.adapter)
		got := p.view.Adapters[0]
		p.mu.Unlock()
		if got != c.want {
			t.Errorf("%s: got %v, want %v", c.says, got, c.want)
		}
	}
}

// L06: an adapter goes to endpoints that list it; where nobody does, nobody is left out, since an engine may load it
// when asked.
func TestAdapterGoesWhereItIsListed(t *testing.T) {
	p := newPool(t, 3)
	p.ObserveModels("e0:8000", "vllm", []Model{{ID: "m"}})
	p.ObserveModels("e1:8000", "vllm", []Model{{ID: "m"}, {ID: "a", Parent: "m"}}) // e2 has not said
	r := func(adapter string) *Request {
		return &Request{Model: adapter, Adapter: adapter, PromptBytes: 100, Streamed: true}
	}
	if got := where(t, p, 0, 64, r("a")); got["e0:8000"] != 0 {
		t.Errorf("an adapter that e1 lists and e0 doesn't: got %v", got)
	}
	again := r("a")
	again.Tried = []string{"e1:8000"}
	if got := where(t, p, 0, 8, again); got["e2:8000"] != 8 {
		t.Errorf("e1 has failed it: got %v, want e2, which has not said what it has", got)
	}
	got := make(map[string]int)
	for i := range 64 {
		for name := range where(t, p, 0, 1, r(fmt.Sprint("z", i))) {
			got[name]++
		}
	}
	if len(got) != 3 {
		t.Errorf("adapters that nobody lists: got %v, want all three", got)
	}
	if got := where(t, p, 10, 64, short()); len(got) != 3 {
		t.Errorf("the base model: got %v, want all three", got)
	}
}

// L03: a burst for a cold adapter does not load it everywhere: what was sent counts before any reading shows it.
func TestColdAdapterBurstStaysOnFewEndpoints(t *testing.T) {
	p := newPool(t, 8)
	for _, e := range named(8) {
		teachPrefill(t, p, e.Name, 0, 40, .02)
		r := idle(1000)
		r.MaxAdapters = 4
		p.Observe(sec(20), sec(20), e.Name, r, nil)
	}
	r := short()
	r.Adapter = "a"
	if got := burst(t, p, 20.01, repeat(50, func(int) *Request { return r })...); len(got) > 4 {
		t.Errorf("50 requests for a cold adapter within an instant: %v, want at most 4 of 8 endpoints", got)
	}
}

// adapterPool is n endpoints with so many slots each, nothing in them.
func adapterPool(t *testing.T, n int, slots float64) *Pool {
	t.Helper()
	p := newPool(t, n)
	slotted(p, 0, slots)
	return p
}

// slotted reads all endpoints: no adapter has requests.
func slotted(p *Pool, now, slots float64) {
	for _, e := range p.Endpoints() {
		r := idle(1000 + now)
		r.MaxAdapters = slots
		p.Observe(sec(now), sec(now), e.Name, r, nil)
	}
}

func adapted(name string) Request {
	return Request{Model: name, Adapter: name, PromptBytes: 200, UnitBytes: unitBytes, Streamed: true}
}

// served sends a request for an adapter to an endpoint and has it end a moment later.
func served(t *testing.T, p *Pool, now float64, name, adapter string) {
	t.Helper()
	l := at(t, p, now, name, adapted(adapter))
	l.FirstByte(sec(now + .05))
	l.Done(sec(now+.1), Outcome{OutputTokens: 20})
}

// Engines tell which adapters have requests, not which still have a slot: the pool follows the slots by what it sends.
func TestSlotsAreFollowed(t *testing.T) {
	p := adapterPool(t, 1, 2)
	ep := p.rows[0]
	stands := func(now float64, adapter string, want standing) {
		t.Helper()
		if got := ep.standing(now, adapter, false); got != want {
			t.Errorf("%v s, %s: got %+v, want %+v", now, adapter, got, want)
		}
	}
	stands(0, "a", standing{adapter: route.AdapterRoom})
	served(t, p, 1, "e0:8000", "a")
	served(t, p, 2, "e0:8000", "b")
	slotted(p, 60, 2) // no reading shows them, and nothing has pushed them out
	stands(61, "a", standing{adapter: route.AdapterResident})
	stands(62.1, "c", standing{adapter: route.AdapterFull, idle: 61})
	served(t, p, 63, "e0:8000", "c")
	stands(64, "a", standing{adapter: route.AdapterFull, idle: 61.9})
	stands(64, "b", standing{adapter: route.AdapterResident})
	b, c, c2 := at(t, p, 65, "e0:8000", adapted("b")), at(t, p, 65.1, "e0:8000", adapted("c")), at(t, p, 65.2, "e0:8000", adapted("c"))
	stands(66, "a", standing{adapter: route.AdapterFull, ahead: 1})
	a := at(t, p, 66, "e0:8000", adapted("a"))
	stands(67, "a", standing{adapter: route.AdapterWaiting, ahead: 1})
	stands(67, "c", standing{adapter: route.AdapterResident})
	b.Done(sec(68), Outcome{})
	stands(68, "a", standing{adapter: route.AdapterResident})
	p.Observe(sec(70), sec(70), "e0:8000", idle(1), nil) // restarted, and its slots not known yet
	stands(70, "d", standing{adapter: route.AdapterRoom})
	for _, l := range []*Lease{a, c, c2} {
		l.Done(sec(71), Outcome{})
	}
	empty(t, p)
	slotted(p, 1000, 2)
	if len(ep.uses) != 0 {
		t.Errorf("%d adapters are remembered after a quarter of an hour", len(ep.uses))
	}
}

// An adapter goes where it is; one that is nowhere goes to a free slot, else to where the slot is given up by the adapter
// that has been idle for the longest, and last to where every slot has requests.
func TestAdapterGoesWhereItCostsLeast(t *testing.T) {
	p := adapterPool(t, 3, 1)
	served(t, p, 1, "e0:8000", "hot")
	served(t, p, 2, "e1:8000", "warm")
	goes := func(now float64, adapter, want string) {
		t.Helper()
		slotted(p, now, 1)
		r := adapted(adapter)
		if got := where(t, p, now, 1, &r); got[want] != 1 {
			t.Errorf("%v s, %s: went to %v, want %s", now, adapter, got, want)
		}
	}
	goes(10, "hot", "e0:8000")
	goes(10, "warm", "e1:8000")
	goes(11, "new", "e2:8000")
	served(t, p, 80, "e0:8000", "hot")
	served(t, p, 101, "e1:8000", "warm")
	goes(102, "other", "e2:8000") // new has been idle for longer than hot and warm
	l := at(t, p, 103, "e2:8000", adapted("other"))
	goes(104, "third", "e0:8000") // other has a request, hot was used before warm
	l.Done(sec(105), Outcome{})
}

// A load holds up every request that comes after it; how long it takes is learned.
func TestLoadsAreCharged(t *testing.T) {
	p := adapterPool(t, 2, 4)
	at(t, p, 1, "e0:8000", adapted("a")).Done(sec(1), Outcome{Ending: Aborted})
	if got := where(t, p, 1.01, 8, short()); got["e0:8000"] != 0 {
		t.Errorf("requests for the base model: got %v, want all at the endpoint that loads nothing", got)
	}
	for i := range 20 {
		now := 10 + float64(i)
		l := at(t, p, now, "e0:8000", adapted(string(rune('b'+i))))
		l.FirstByte(sec(now + .8))
		l.Done(sec(now+.9), Outcome{OutputTokens: 5})
	}
	if got := p.loads.mean(); got < .6 || got > .8 {
		t.Errorf("loads took .8 s: learned %v s", got)
	}
	if rate := p.view.Rates[0].PromptTokenMS(); rate > .2 {
		t.Errorf("loads were taken for slow prefill: %v ms a token", rate)
	}
}

// L06: an adapter that an engine no longer lists is forgotten there, and one that is listed at last is found.
func TestUnloadedAdapterIsForgotten(t *testing.T) {
	p := adapterPool(t, 2, 2)
	for _, e := range named(2) {
		p.ObserveModels(e.Name, "vllm", []Model{{ID: "m"}, {ID: "a", Parent: "m"}})
	}
	served(t, p, 1, "e0:8000", "a")
	p.ObserveModels("e0:8000", "vllm", []Model{{ID: "m"}})
	r := adapted("a")
	if got := where(t, p, 2, 16, &r); got["e0:8000"] != 0 {
		t.Errorf("went to %v, want only the endpoint that still lists it", got)
	}
	if len(p.rows[0].uses) != 0 {
		t.Error("an adapter that was unloaded is remembered")
	}
	p.ObserveModels("e0:8000", "vllm", []Model{{ID: "m"}, {ID: "a", Parent: "m"}})
	if s := p.rows[0].standing(3, "a", true); s.adapter != route.AdapterRoom {
		t.Errorf("loaded again it stands as %v, want room", s.adapter)
	}
}

// However many adapters pass through an endpoint, what is remembered of them is what its slots need, and each stands as it would with all remembered.
func TestFewAdaptersAreRemembered(t *testing.T) {
	p := adapterPool(t, 1, 4)
	ep := p.rows[0]
	busy := at(t, p, 1, "e0:8000", adapted("busy"))
	for i := range 1000 {
		now := 1 + float64(i)/100
		at(t, p, now, "e0:8000", adapted(fmt.Sprint(i))).Done(sec(now), Outcome{Ending: Aborted})
	}
	adapters := []string{"busy", "0", "500", "995", "996", "997", "998", "999", "new"}
	var before []standing
	for _, a := range adapters {
		before = append(before, ep.standing(20, a, false))
	}
	r := idle(5000)
	r.MaxAdapters = 4
	p.Observe(sec(20), sec(20), ep.Name, r, nil)
	if n := len(ep.uses); n > 5 {
		t.Errorf("got %d adapters remembered with 4 slots, one of them busy", n)
	}
	for i, a := range adapters {
		if got := ep.standing(20, a, false); got != before[i] {
			t.Errorf("%s: got %+v, want %+v as before", a, got, before[i])
		}
	}
	busy.Done(sec(21), Outcome{})
}
