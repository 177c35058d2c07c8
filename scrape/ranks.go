package scrape

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/sluice-gateway/sluice/fleet"
)

// sharedPage is the metrics page of an address with several data-parallel ranks: it has the series of all of them and
// is fetched once for all, since writing it is what costs the engine.
type sharedPage struct {
	mu      sync.Mutex
	request *http.Request // whose answer it is
	sent    time.Duration
	answer  answer
	err     error
}

// sharing is the page that an endpoint shares with the other ranks of its address, nil where it has no ranks.
func (p *Scraper) sharing(pool *fleet.Pool, e *fleet.Endpoint) *sharedPage {
	if e.Ranks == 0 {
		return nil
	}
	for at, w := range p.workers {
		if at.pool == pool && w.shared != nil && w.endpoint.Address() == e.Address() {
			return w.shared
		}
	}
	return new(sharedPage)
}

// use reserves the page until the function that it returns is called: its bytes are overwritten by the next answer.
func (s *sharedPage) use() (done func()) {
	s.mu.Lock()
	return s.mu.Unlock
}

// get returns the answer to a worker's request and when it was asked for. Ranks take their turns together, so that
// whoever comes first asks.
func (s *sharedPage) get(ctx context.Context, w *worker, request *http.Request) (answer, time.Duration, error) {
	same := s.request != nil && s.request.URL.Path == request.URL.Path
	if sent := w.now(); !same || sent-s.sent >= w.scraper.opts.Interval/2 {
		s.request, s.sent = request, sent
		s.answer, s.err = w.client.get(ctx, request, maxPage, s.answer.body)
		w.metrics.took(w.now() - sent)
		if ctx.Err() == context.Canceled {
			s.request = nil // only this rank has left
		}
	}
	return s.answer, s.sent, s.err
}
