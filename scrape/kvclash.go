package scrape

import (
	"fmt"

	"github.com/sluice-gateway/sluice/fleet"
)

// clashes says of endpoints whose KV events, or whose replay of them, would come from where another's come from, why
// they are not followed: which of the two publishes there is not known, and to take another's cache for its own is
// worse than to guess. Of those that share a port the one that is followed already is, else the first.
func (p *Scraper) clashes(pools []*fleet.Pool) map[place]string {
	owner, out := make(map[string]string), make(map[place]string)
	claim := func(pool *fleet.Pool, e *fleet.Endpoint) {
		k := &e.KVEvents
		if k.Port == 0 {
			return
		}
		ports := []struct {
			what string
			port int
		}{{"KV events", k.Port}, {"replay of KV events", k.ReplayPort}}
		if k.ReplayPort == 0 {
			ports = ports[:1]
		}
		for _, x := range ports {
			at := withPort(e.Address(), x.port+e.Rank)
			if first, taken := owner[x.what+at]; taken && first != e.Name { // one endpoint may be in several pools
				out[place{pool, e.Name}] = fmt.Sprintf("%s is where the %s of %s come from: give each endpoint a port of its own", at, x.what, first)
				return
			}
		}
		for _, x := range ports {
			owner[x.what+withPort(e.Address(), x.port+e.Rank)] = e.Name
		}
	}
	for _, followed := range []bool{true, false} {
		for _, pool := range pools {
			for _, e := range pool.Endpoints() {
				w := p.workers[place{pool, e.Name}]
				if followed == (w != nil && w.clash == "" && sameReach(&e, &w.endpoint)) {
					claim(pool, &e)
				}
			}
		}
	}
	return out
}
