package fleet

import "math"

// rentLasts is over how many seconds what was missed is forgotten: a copy that is hardly asked for would be evicted
// before it has paid. Between 20 and 200 s it makes no difference that can be measured.
const rentLasts = 60

// rents is what requests have missed for want of another copy of their beginning: a small table by the last block of it
// that some endpoint holds, so that all that share just this beginning pay together. Where two beginnings collide, the
// older is forgotten, which costs some waiting and nothing else.
type rents [512]rent

// rent is milliseconds missed by the time since, in seconds.
type rent struct {
	key   uint64
	ms    float32
	since float64
}

// of is the entry for a beginning.
func (r *rents) of(key uint64) *rent {
	e := &r[(key^key>>32)%uint64(len(r))]
	if e.key != key {
		*e = rent{key: key}
	}
	return e
}

// at is what counts of it at a later time.
func (e *rent) at(now float64) float32 {
	if e.ms == 0 {
		return 0
	}
	return e.ms * float32(math.Exp((e.since-now)/rentLasts))
}

// pay adds what another request missed; one that went where less is held has made the copy, and all begins anew.
func (e *rent) pay(now float64, missed float32, copied bool) {
	if copied {
		e.ms = 0
		return
	}
	e.ms, e.since = e.at(now)+missed, now
}
