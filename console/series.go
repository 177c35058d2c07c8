package console

import (
	"math"
	"sync"
	"time"
)

// Sample is one request that has ended.
type Sample struct {
	// ID is the request's x-request-id, Endpoint the name of the endpoint that answered, empty when none did.
	ID, Endpoint string
	// TTFT is the time to the first token. 0 means that there was none to see: in a request that is not OK it never
	// came, which counts as worse than any that did; in one that is OK the answer came whole, and is left out of the
	// percentiles.
	TTFT time.Duration
	// Tokens are the output tokens, Prompt those of the prompt, Cached those of the prompt that the engine took from
	// its cache.
	Tokens, Prompt, Cached int
	// Expected are the prompt tokens that were expected to be in its cache.
	Expected int
	// OK says that the answer is whole.
	OK bool
}

// Sizes of a Series. A point is made of the samples of its second and the spread-1 seconds before, so that plots are
// calm.
const (
	window   = 120 // seconds that are shown
	spread   = 5
	outcomes = 2048 // samples that are kept by ID
	// seats bounds the endpoints that one second tells apart.
	seats = 4096
)

// The bins of TTFT: each 2 % wider than the one before, so a percentile is within 1 % of the true one; from .1 ms to
// some 100 minutes. The first takes everything below, the last everything above. One more counts requests that never
// had a first token.
const (
	bins    = 900
	binBase = .1 // milliseconds
	binStep = 1.02
)

// Series is a sliding window over the requests that ended in the last two minutes. Its memory is bounded whatever the
// rate. Methods may be called by any goroutine, with times of one clock; a time before the last one counts as the last
// one.
type Series struct {
	mu      sync.Mutex
	seconds [window + spread]second
	newest  int64 // number of the newest second, which has begun

	ended [outcomes]Sample
	next  int
	byID  map[string]int
}

// second is what ended within one second.
type second struct {
	number   int64 // counted from the clock's origin, from 1: 0 is a second that was not used yet
	requests int
	failed   int
	tokens   int
	first    [bins]uint32
	never    uint32
	cache    map[string]tokens
}

// tokens counts prompt tokens at one endpoint.
type tokens struct{ prompt, cached, expected int }

// NewSeries makes an empty Series.
func NewSeries() *Series { return &Series{byID: make(map[string]int)} }

// Add counts a request that ended now.
func (s *Series) Add(now time.Duration, x Sample) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.advance(now)
	c.requests++
	if !x.OK {
		c.failed++
	}
	c.tokens += x.Tokens
	switch {
	case x.TTFT > 0:
		c.first[binOf(x.TTFT)]++
	case !x.OK:
		c.never++
	}
	if _, known := c.cache[x.Endpoint]; x.Prompt > 0 && (known || len(c.cache) < seats) {
		if c.cache == nil {
			c.cache = make(map[string]tokens)
		}
		t := c.cache[x.Endpoint]
		c.cache[x.Endpoint] = tokens{t.prompt + x.Prompt, t.cached + x.Cached, t.expected + x.Expected}
	}
	if x.ID != "" {
		s.remember(x)
	}
}

// advance makes the second of now the newest.
func (s *Series) advance(now time.Duration) *second {
	s.newest = max(s.newest, int64(max(now, 0)/time.Second)+1)
	c := &s.seconds[s.newest%int64(len(s.seconds))]
	if c.number != s.newest {
		*c = second{number: s.newest}
	}
	return c
}

func (s *Series) remember(x Sample) {
	if old := s.ended[s.next].ID; s.byID[old] == s.next {
		delete(s.byID, old)
	}
	s.ended[s.next], s.byID[x.ID] = x, s.next
	s.next = (s.next + 1) % outcomes
}

// outcome is how the request of that ID ended, if that is still known.
func (s *Series) outcome(id string) (Sample, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i, ok := s.byID[id]
	if !ok {
		return Sample{}, false
	}
	return s.ended[i], true
}

func binOf(d time.Duration) int {
	ms := float64(d) / float64(time.Millisecond)
	return min(max(int(math.Log(ms/binBase)/math.Log(binStep))+1, 0), bins-1)
}

// binMS is the middle of a bin in milliseconds.
func binMS(b int) float64 { return binBase * math.Pow(binStep, float64(b)-.5) }

// points are the values of a Series at the ends of whole seconds, oldest first. NaN means that nothing ended, +Inf that
// the request at this percentile never had a first token.
type points struct {
	// P50 and P95 are of TTFT in milliseconds, Tokens is output tokens a second, Cached the share of prompt tokens
	// taken from cache, Rate requests ended a second, Failed those of them that are not whole.
	P50    []figure `json:"p50"`
	P95    []figure `json:"p95"`
	Tokens []figure `json:"tokens"`
	Cached []figure `json:"cached"`
	// Expected is the share of prompt tokens that were expected to be in caches.
	Expected []figure `json:"expected"`
	Rate     []figure `json:"rate"`
	Failed   []figure `json:"failed"`
	// Never tells the points whose P95 is that of a request without a first token.
	Never []bool `json:"never"`
}

// window returns the last two minutes up to the last whole second, and what share of its prompt tokens each endpoint
// took from cache in them.
func (s *Series) window(now time.Duration) (points, map[string]float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.advance(now)
	var p points
	sum := new(total)
	cache := make(map[string]tokens)
	for n := s.newest - window - spread + 1; n < s.newest; n++ {
		sum.add(s.at(n), 1)
		sum.add(s.at(n-spread), -1)
		if n < s.newest-window {
			continue
		}
		sum.write(&p, n > 0)
		if c := s.at(n); c != nil {
			for name, t := range c.cache {
				sum := cache[name]
				cache[name] = tokens{prompt: sum.prompt + t.prompt, cached: sum.cached + t.cached}
			}
		}
	}
	shares := make(map[string]float64, len(cache))
	for name, t := range cache {
		shares[name] = float64(t.cached) / float64(t.prompt)
	}
	return p, shares
}

// at is second n, nil when nothing is kept of it.
func (s *Series) at(n int64) *second {
	if n <= 0 || n <= s.newest-int64(len(s.seconds)) {
		return nil
	}
	if c := &s.seconds[n%int64(len(s.seconds))]; c.number == n {
		return c
	}
	return nil
}

// total is a sum of seconds.
type total struct {
	requests, failed, tokens int
	prompt, cached, expected int
	first                    [bins]int64
	withFirst, never         int64
}

// add adds a second, or takes it away where sign is -1.
func (t *total) add(c *second, sign int) {
	if c == nil {
		return
	}
	t.requests += sign * c.requests
	t.failed += sign * c.failed
	t.tokens += sign * c.tokens
	for _, x := range c.cache {
		t.prompt += sign * x.prompt
		t.cached += sign * x.cached
		t.expected += sign * x.expected
	}
	for b, n := range c.first {
		t.first[b] += int64(sign) * int64(n)
		t.withFirst += int64(sign) * int64(n)
	}
	t.never += int64(sign) * int64(c.never)
}

// write appends the point that the sum makes. Before the clock's origin nothing was counted, which is not the same as
// counting nothing.
func (t *total) write(p *points, counted bool) {
	perSecond := func(n int) figure {
		if !counted {
			return figure(math.NaN())
		}
		return figure(float64(n) / spread)
	}
	p95 := t.percentile(.95)
	p.P50 = append(p.P50, figure(t.percentile(.5)))
	p.P95 = append(p.P95, figure(p95))
	p.Never = append(p.Never, math.IsInf(p95, 1))
	p.Tokens = append(p.Tokens, perSecond(t.tokens))
	p.Cached = append(p.Cached, figure(float64(t.cached)/float64(t.prompt)))
	p.Expected = append(p.Expected, figure(float64(t.expected)/float64(t.prompt)))
	p.Rate = append(p.Rate, perSecond(t.requests))
	p.Failed = append(p.Failed, perSecond(t.failed))
}

// percentile is the least value that a share q of the requests do not exceed.
func (t *total) percentile(q float64) float64 {
	all := t.withFirst + t.never
	if all == 0 {
		return math.NaN()
	}
	rank := max(int64(math.Ceil(q*float64(all))), 1)
	for b, n := range t.first {
		if rank -= n; rank <= 0 {
			return binMS(b)
		}
	}
	return math.Inf(1)
}
