package fleet

import (
	"testing"

	"github.com/sluice-gateway/sluice/route"
)

// prefixed makes a request that shares its first blocks with all others of a group and ends differently.
func prefixed(group, id int) *Request {
	r := prompt(group, 16000)
	own := prompt(1_000_000+id, 1000)
	r.PromptBytes += own.PromptBytes
	r.Blocks = append(r.Blocks, own.Blocks...)
	return r
}

// A beginning that is asked for more than its one holder can serve at once gets copies, after a while; one that nobody
// waits for stays where it is.
func TestMissedBeginningsAreCopied(t *testing.T) {
	for name, c := range map[string]struct {
		together int // requests at once
		most     int
		least    int
	}{
		"one at a time":    {1, 1, 1},
		"several together": {3, 4, 2},
	} {
		p := newPool(t, 4)
		at, id, used := 1.0, 0, make(map[string]bool)
		for range 200 {
			var leases []*Lease
			for range c.together {
				id++
				l := pick(t, p, at, prefixed(1, id))
				leases = append(leases, l)
				used[l.Endpoint.Name] = true
			}
			for i, l := range leases {
				l.FirstByte(sec(at + .02*float64(i+1)))
				l.Done(sec(at+.1), Outcome{})
			}
			at += .2
			observeAll(p, at)
		}
		audit(t, p)
		if n := len(used); n < c.least || n > c.most {
			t.Errorf("%s: %d endpoints hold the prefix, want %d to %d", name, n, c.least, c.most)
		}
	}
}

// What was missed adds up, fades, and is spent by a copy; another beginning in the same place starts from nothing.
func TestRent(t *testing.T) {
	var r rents
	r.pay(7, 1, 30, false)
	r.pay(7, 1, 12, false)
	if got := r.at(7, 1); got != 42 {
		t.Errorf("after two payments: got %v ms, want 42", got)
	}
	if got := r.at(7, 1+rentLasts); got < 15 || got > 16 {
		t.Errorf("after %v s: got %v ms, want 42/e", rentLasts, got)
	}
	other := 7 + uint64(len(r))
	if r.pay(other, 1, 10, false); r.at(7, 1) != 42 || r.at(other, 1) != 0 {
		t.Errorf("a beginning in the same place that has missed less: got %v and %v ms, want 42 and 0", r.at(7, 1), r.at(other, 1))
	}
	if r.pay(7, 2, 5, true); r.at(7, 2) != 0 {
		t.Errorf("after a copy: got %v ms, want 0", r.at(7, 2))
	}
	if r.pay(other, 2, 5, false); r.at(other, 2) != 5 || r.at(7, 2) != 0 {
		t.Errorf("then the other may stay: got %v ms, want 5", r.at(other, 2))
	}
}

// What was missed is spent where the beginning is computed anew, and not where an answer is missing that one of those who
// begin alike goes on from.
func TestOnlyCopiesSpendWhatWasMissed(t *testing.T) {
	p := newPool(t, 2)
	observeAll(p, 0)
	pick(t, p, 1, prompt(1, 4*unitBytes)).Done(sec(2), Outcome{})
	d := route.Decision{Copied: true}
	p.best = 4
	for match, want := range map[int32]bool{4: false, 3: true, 0: true} {
		p.match[p.rows[0].slot] = match
		if got := p.copies(&d); got != want {
			t.Errorf("%d of 4 units held: got %v, want %v", match, got, want)
		}
	}
	if p.copies(&route.Decision{}) {
		t.Error("an endpoint that holds as much as any makes no copy")
	}
}
