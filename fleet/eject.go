package fleet

import (
	"fmt"
	"math"

	"github.com/sluice-gateway/sluice/route"
)

// What an endpoint that fails costs is told to the decision in two ways. Its share of failures is a cost, so that one
// that fails some of its requests gets fewer. And one that fails several in a row, or says that it is full, is put aside
// for a while. After that it is in doubt: one request at a time goes there until one is served.
const (
	// failsToEject is how many server errors in a row put an endpoint aside; a refused connection does at once.
	failsToEject = 3
	// fullFor is how many seconds one that says that it is full is left alone: as long as clients are commonly told to.
	fullFor = 1
	// most is the greatest share of the endpoints that are put aside at once. If more fail, it may be the requests, or
	// the network, and those that are left would fall to everyone's requests.
	most = .5
	// errorMemory is over how many requests failures are averaged, errorHalf after how many seconds without any half of
	// it is forgotten.
	errorMemory = 20
	errorHalf   = 5
)

// health is what an endpoint's answers tell of it.
type health struct {
	fails        int // server errors in a row
	full         bool
	ejectedUntil float64
	doubt        bool // it was put aside, and nothing sent since was served
	doubtAt      float64
	errors       float64 // share of failures at errorsAt
	errorsAt     float64
}

// errorShare is the share of failures at the time now.
func (h *health) errorShare(now float64) float64 {
	if h.errors == 0 {
		return 0
	}
	share := h.errors * math.Exp2(-(now-h.errorsAt)/errorHalf)
	if share < .001 {
		h.errors = 0
		return 0
	}
	return share
}

// note adds a request, failed or served, to the share of failures.
func (h *health) note(now float64, failed bool) {
	share := h.errorShare(now)
	if failed {
		share += (1 - share) / errorMemory
	} else {
		share -= share / errorMemory
	}
	h.errors, h.errorsAt = share, now
}

// why says what an endpoint was put aside for.
func (h *health) why() string {
	said := fmt.Sprintf("%d failures in a row", h.fails)
	if h.full {
		said = "it said that it is full"
	}
	return said + "; after this pause one request at a time is tried"
}

// probe marks a request that is sent to an endpoint in doubt: nobody else is until it is known how it went, or for as
// long as the endpoint was put aside before.
func (p *Pool) probe(l *Lease, now float64) {
	h := &l.ep.health
	if !h.doubt || now < h.ejectedUntil {
		return // the latter: it is there for want of a better one
	}
	l.probe = true
	p.leaveAlone(l.ep, now+h.pause())
}

func (h *health) pause() float64 {
	if h.full {
		return fullFor
	}
	return ejection(h.fails)
}

// ejection is how many seconds an endpoint stays aside after so many failures in a row: one second, doubling up to
// thirty, so that a fault that passes is forgotten soon and one that stays costs little.
func ejection(fails int) float64 {
	return math.Min(math.Ldexp(1, min(max(fails, 1)-1, 10)), 30)
}

func (p *Pool) leaveAlone(ep *endpoint, until float64) {
	ep.ejectedUntil = until
	if ep.row >= 0 {
		p.view.EjectedUntil[ep.row] = until
	}
}

// putAside leaves an endpoint alone for a while, unless too many are already.
func (p *Pool) putAside(ep *endpoint, now float64) {
	if !ep.doubt && !p.maySpare(ep, now) {
		return
	}
	ep.doubt, ep.doubtAt = true, now
	p.leaveAlone(ep, now+ep.pause())
}

// maySpare reports whether the pool can do without this endpoint besides those that are put aside.
func (p *Pool) maySpare(ep *endpoint, now float64) bool {
	serving, aside := 0, 1
	for _, other := range p.rows {
		if other.state&(route.NotReady|route.Draining) != 0 {
			continue
		}
		serving++
		if other != ep && (other.doubt || now < other.ejectedUntil) {
			aside++
		}
	}
	return float64(aside) <= most*float64(serving)
}

// serves takes the news that an endpoint in doubt has served a request that was sent since the doubt began.
func (p *Pool) serves(l *Lease) {
	if ep := l.ep; ep.doubt && l.sent >= ep.doubtAt {
		ep.doubt, ep.full = false, false
		p.leaveAlone(ep, 0)
	}
}

// judge takes how a request ended for what it tells of its endpoint.
func (p *Pool) judge(l *Lease, now float64, how Ending) {
	ep := l.ep
	aside := now < ep.ejectedUntil && !l.probe // one fault ends many requests, and is one fault
	switch how {
	case Finished:
		ep.note(now, false)
		p.serves(l)
		if !ep.doubt {
			ep.fails = 0
		}
	case Full:
		if !aside {
			ep.full = true
			p.putAside(ep, now)
		}
	case Failed, Refused:
		if aside || l.suspect && how == Failed {
			break
		}
		ep.note(now, true)
		ep.fails++
		ep.full = false
		if how == Refused || ep.fails >= failsToEject {
			p.putAside(ep, now)
		}
	case Aborted, Moved:
		if l.probe && ep.doubt {
			p.leaveAlone(ep, now) // it proved nothing: the next one may
		}
	}
}
