package fleet

import "math"

// rentLasts is over how many seconds what was missed is forgotten: a beginning that is asked for too rarely to pay for a
// copy within that time goes without one. Over 60 s every beginning gets one some time.
const rentLasts = 30

// rents is what requests have missed for want of another copy of their beginning: a small table by the last block of it
// that some endpoint holds, so that all that share just this beginning pay together. Where two beginnings collide, the
// one that has missed more stays, which costs the other some waiting and nothing else.
type rents [512]rent

// rent is milliseconds missed by the time since, in seconds.
type rent struct {
	key   uint64
	ms    float32
	since float64
}

func (r *rents) seat(key uint64) *rent { return &r[(key^key>>32)%uint64(len(r))] }

// at is what the requests of a beginning have missed, as far as it counts now.
func (r *rents) at(key uint64, now float64) float32 {
	if e := r.seat(key); e.key == key {
		return e.at(now)
	}
	return 0
}

// pay adds what another request missed; one that made a copy lets all begin anew.
func (r *rents) pay(key uint64, now float64, missed float32, copied bool) {
	e := r.seat(key)
	switch {
	case e.key != key && (copied || missed <= e.at(now)):
	case copied:
		e.ms = 0
	case e.key != key:
		*e = rent{key, missed, now}
	default:
		e.ms, e.since = e.at(now)+missed, now
	}
}

func (e *rent) at(now float64) float32 {
	if e.ms == 0 {
		return 0
	}
	return e.ms * float32(math.Exp((e.since-now)/rentLasts))
}
