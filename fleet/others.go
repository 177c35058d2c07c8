package fleet

import "github.com/sluice-gateway/sluice/route"

// Near ties are settled by agreement between replicas of the gateway, which costs a few per cent of the time to first
// token and is worth several times that where replicas share nothing but the endpoints. So the pool finds out whether
// there are any: requests that engines have and that it did not send are others'.
const (
	// othersMemory is over how many readings of each endpoint the share of others is averaged.
	othersMemory = 100
	// othersEvidence is how many requests, summed over readings, must have been seen before anything is concluded.
	othersEvidence = 200
	// Below othersFew of all requests being others', they count as none: readings are taken a moment apart from our own
	// count. From othersMany on, agreement is worth its whole price.
	othersFew, othersMany = .1, .4
)

// census is how many requests engines had when they were read, and how many of ours there were then.
type census struct{ there, ours float64 }

// count takes a reading of one of n endpoints at which we had so many requests.
func (c *census) count(r *Reading, ours, n int) {
	if there := r.Running + r.Waiting; there >= 0 { // false for NaN
		keep := 1 - 1/float64(othersMemory*max(n, 1))
		c.there, c.ours = c.there*keep+there, c.ours*keep+float64(ours)
	}
}

// alone is how sure it is that there are no others, 0 to 1.
func (c *census) alone() float32 {
	if c.there < othersEvidence {
		return 0
	}
	others := 1 - c.ours/c.there
	return float32(min(max((othersMany-others)/(othersMany-othersFew), 0), 1))
}

// share is the share of the requests that are ours, as far as is known.
func (c *census) share() float64 {
	if c.there < othersEvidence || c.ours >= (1-othersFew)*c.there {
		return 1
	}
	return c.ours / c.there
}

// observeOthers counts a reading, and says in the view what follows.
func (p *Pool) observeOthers(ep *endpoint, r *Reading) {
	if ep.readAt == route.Never {
		return // what was there before we came says nothing
	}
	p.census.count(r, len(ep.leases), len(p.rows))
	p.view.Alone = p.census.alone()
}
