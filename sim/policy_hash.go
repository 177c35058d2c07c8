package sim

import (
	"slices"
	"time"
)

// boundedHashing is consistent hashing with bounded loads (Mirrokni, Thorup and Zadimoghaddam, 2018) as KubeAI's
// PrefixHash has it: the first 100 characters of what the user said first, 256 places of each endpoint on the ring, and
// on along the ring while an endpoint's requests in flight would be above 1.25 times the mean. KubeAI hashes with
// xxhash; any good hash does. A prefix that requests share counts as said by the user, which favours it: a system
// prompt's would be left out.
func boundedHashing() Policy {
	return Policy{"bounded hashing", "bounded-hashing", func(w *world) gateway {
		p := &hashRing{open: newOpen(w)}
		for i := range w.engines {
			for replica := range ringPlaces {
				p.ring = append(p.ring, ringPlace{mix(uint64(i)<<32 + uint64(replica) + 1), i})
			}
		}
		slices.SortFunc(p.ring, func(a, b ringPlace) int {
			if a.at < b.at {
				return -1
			}
			return 1
		})
		return p
	}}
}

const (
	ringPlaces = 256
	ringFactor = 1.25
	ringPrefix = 100 // characters
)

type ringPlace struct {
	at       uint64
	endpoint int
}

type hashRing struct {
	open
	ring []ringPlace
}

// ringKey is what is hashed of a request.
func ringKey(r *Request) uint64 {
	key, tokens := uint64(0), (ringPrefix+bytesPerToken-1)/bytesPerToken
	for _, s := range r.Prompt[min(r.User, len(r.Prompt)-1):] {
		n := min(s.Tokens, tokens)
		key = mix(key ^ mix(s.ID) + uint64(n))
		if tokens -= n; tokens == 0 {
			break
		}
	}
	return key
}

func (p *hashRing) pick(_ time.Duration, f *flight) int {
	start, _ := slices.BinarySearchFunc(p.ring, ringKey(f.request), func(x ringPlace, key uint64) int {
		if x.at < key {
			return -1
		}
		return 1
	})
	total := 0
	for _, n := range p.open.open {
		total += n
	}
	fallback := -1
	for k := range p.ring {
		i := p.ring[(start+k)%len(p.ring)].endpoint
		if !untried(f, i) {
			continue
		}
		if fallback < 0 {
			fallback = i
		}
		if ringRoom(p.open.open[i], total, len(p.open.open)) {
			return p.take(i)
		}
	}
	return p.take(fallback)
}

// ringRoom says whether an endpoint with so many requests may have another, when all so many endpoints have total.
func ringRoom(load, total, endpoints int) bool {
	return total == 0 || float64(load+1) <= float64(total+1)/float64(endpoints)*ringFactor
}
