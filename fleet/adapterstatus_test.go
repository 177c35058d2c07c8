package fleet

import (
	"slices"
	"testing"
	"time"
)

// With two slots: those with requests have them first, then those that were used last; who finds none waits.
func TestAdapterSlotsAreShown(t *testing.T) {
	p := newPool(t, 1)
	name := p.Endpoints()[0].Name
	r := UnknownReading()
	r.MaxAdapters = 2
	p.Observe(sec(0), sec(0), name, r, nil)
	send := func(at float64, adapter string) *Lease {
		q := prompt(1, 4*unitBytes)
		q.Adapter = adapter
		return pick(t, p, at, q)
	}
	wants := func(at float64, resident, waiting []string) {
		t.Helper()
		if s := p.Adapters(sec(at), name); !slices.Equal(s.Resident, resident) || !slices.Equal(s.Waiting, waiting) {
			t.Errorf("after %g s got %+v, want %v in their slots and %v waiting", at, s, resident, waiting)
		}
	}
	a := send(1, "a")
	if s := p.Adapters(sec(1), name); s.Loading <= 0 || s.Loading > time.Second {
		t.Errorf("a is sent for, and loads for %v", s.Loading)
	}
	send(2, "b")
	send(3, "c")
	wants(4, []string{"a", "b"}, []string{"c"})
	a.Done(sec(5), Outcome{Ending: Finished})
	wants(6, []string{"b", "c"}, nil)
	if s := p.Adapters(sec(6), "nobody"); s.Resident != nil || s.Loading != 0 {
		t.Errorf("got %+v of an endpoint that isn't there", s)
	}
}
