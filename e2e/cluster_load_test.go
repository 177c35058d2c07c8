//go:build cluster && linux

package e2e

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// How many requests come in a second, each whether those before it are answered or not, and how many tokens the streamed
// half of them asks for: with the speed of the servers that are asked, two to five seconds.
const (
	loadRate                = 15
	loadSpeed               = "0.2"
	loadFewest, loadMost    = 60, 150
	loadPatience            = 45 * time.Second
	loadHolds, loadParallel = 5 * time.Second, 64
)

// load sends requests at a steady rate and takes down those that do not end well.
type load struct {
	t           *testing.T
	url, model  string
	client      *http.Client
	stop        context.CancelFunc
	all         sync.WaitGroup
	mu          sync.Mutex
	sent, ended int
	lost        []string
	slowest     time.Duration  // until the first byte of an answer
	served      map[string]int // by the endpoint that served
}

// startLoad sends requests for a model until the test ends, or halt is called.
func startLoad(t *testing.T, url, model string) *load {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	transport := &http.Transport{DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		return shared.dial(ctx, network, address)
	},
		MaxIdleConnsPerHost: loadParallel, IdleConnTimeout: loadHolds}
	l := &load{t: t, url: url, model: model, stop: cancel, client: &http.Client{Transport: transport, Timeout: loadPatience}, served: make(map[string]int)}
	l.all.Go(func() {
		tick := time.NewTicker(time.Second / loadRate)
		defer tick.Stop()
		for i := 0; ; i++ {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				l.all.Go(func() { l.one(i) })
			}
		}
	})
	t.Cleanup(l.halt)
	return l
}

// halt ends the load, when what is under way has ended.
func (l *load) halt() {
	l.stop()
	l.all.Wait()
	l.client.CloseIdleConnections()
}

// one sends a request, reads its answer to the end and takes down how it went.
func (l *load) one(i int) {
	l.mu.Lock()
	l.sent++
	l.mu.Unlock()
	tokens, stream := 3, i%2 == 0
	if stream {
		tokens = loadFewest + i*7%(loadMost-loadFewest)
	}
	began := time.Now()
	endpoint, first, err := l.ask(fmt.Sprintf(`{"model": %q, "stream": %v, "max_tokens": %d, "ignore_eos": true, "messages": [{"role": "user", "content": "question %d"}]}`,
		l.model, stream, tokens, i))
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended++
	l.slowest = max(l.slowest, first)
	l.served[endpoint]++
	if err != nil {
		l.lost = append(l.lost, fmt.Sprintf("at %s, stream %v, served by %q, after %.1f s: %v", began.Format("15:04:05.000"), stream, endpoint, time.Since(began).Seconds(), err))
	}
}

// ask is one request. An answer is whole when a stream has said that it is done, or a body has come as long as it was said to be.
func (l *load) ask(body string) (endpoint string, first time.Duration, err error) {
	began := time.Now()
	response, err := l.client.Post(l.url+"/v1/chat/completions", "application/json", strings.NewReader(body))
	first = time.Since(began)
	if err != nil {
		return "", first, err
	}
	defer response.Body.Close()
	endpoint = response.Header.Get("X-Gateway-Destination-Endpoint-Served")
	text, err := io.ReadAll(response.Body)
	switch {
	case err != nil:
		return endpoint, first, fmt.Errorf("status %d, and after %d bytes %w", response.StatusCode, len(text), err)
	case response.StatusCode != http.StatusOK:
		return endpoint, first, fmt.Errorf("status %d: %.300s", response.StatusCode, text)
	case strings.HasPrefix(response.Header.Get("Content-Type"), "text/event-stream") && !strings.HasSuffix(string(text), "data: [DONE]\n\n"):
		return endpoint, first, fmt.Errorf("a stream of %d bytes without an end", len(text))
	}
	return endpoint, first, nil
}

// during does something under load, and fails the test for each request that is lost meanwhile.
func (l *load) during(what string, do func()) {
	l.t.Helper()
	l.mu.Lock()
	ended, lost := l.ended, len(l.lost)
	l.slowest = 0
	l.mu.Unlock()
	began := time.Now()
	do()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.t.Logf("%s: %.0f s, %d requests answered, %d of them lost, none waited for its answer longer than %.2f s", what, time.Since(began).Seconds(), l.ended-ended, len(l.lost)-lost, l.slowest.Seconds())
	for i, text := range l.lost[lost:] {
		if i == 10 {
			l.t.Errorf("%s: and %d more are lost", what, len(l.lost)-lost-i)
			break
		}
		l.t.Errorf("%s: got a lost request, want none: %s", what, text)
	}
	if l.ended == ended {
		l.t.Errorf("%s: got no answer at all, want some", what)
	}
}

// from is how many requests each endpoint has served.
func (l *load) from() map[string]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.served)
}
