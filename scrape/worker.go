package scrape

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sluice-gateway/sluice/fleet"
)

// worker scrapes one endpoint of one pool. But for asking, which may be slow and has a goroutine of its own, everything
// happens in its one goroutine.
type worker struct {
	scraper  *Scraper
	pool     *fleet.Pool
	endpoint fleet.Endpoint
	client   *client
	shared   *sharedPage // nil unless other ranks have the same page
	clash    string      // why its KV events are not followed, though there may be some
	metrics  *endpointMetrics
	log      *slog.Logger
	cancel   context.CancelFunc
	done     chan struct{}

	timeout  time.Duration
	model    string          // the pool's
	requests []*http.Request // one for each path where metrics may be
	path     int
	narrow   narrow
	firstWhy string // why the first path gave nothing
	scanner  *scanner
	read     bool // there was a reading
	answered bool // there was a reading, or an answer of a server without metrics

	withoutUntil time.Duration // until when not to look for metrics again
	readyPath    string
	silentSince  time.Duration

	tokenizes bool // the engine has told the tokens of a prompt; only tokenize's goroutine uses it

	asking   sync.WaitGroup
	findings chan finding
	busy     bool // a question is on its way
	askAt    time.Duration
	askedAt  time.Duration
	found    finding
	engine   string
	told     string // what was found, as last logged
	listed   map[string]bool
	resident []string // adapters in the last reading
	queued   []string

	state    string // as last logged
	failures int
	spare    float64 // log lines that may be written
	spareAt  time.Duration
	lacking  lack
	refused  string
	missing  []string // both together in words, as the fleet has them
	said     bool     // that something is missing, since it last changed
	learned  bool     // there was an answer to a question
}

// Bounds of one worker. Of log lines it has a few at once, then one in ten seconds, however its endpoint flaps.
const (
	never        = time.Duration(math.MaxInt64)
	linesAtOnce  = 4
	linesPerSec  = .1
	askTimeout   = 5 * time.Second
	relistAfter  = time.Second // between two questions that requests are the reason for
	loudFailures = 2           // failed scrapes in a row that are worth a line
)

// start begins to scrape an endpoint.
func (p *Scraper) start(ctx context.Context, pool *fleet.Pool, e fleet.Endpoint, shared *sharedPage, clash string) *worker {
	ctx, cancel := context.WithCancel(ctx)
	w := &worker{scraper: p, pool: pool, endpoint: e, cancel: cancel, shared: shared, clash: clash, done: make(chan struct{}), findings: make(chan finding, 1),
		metrics: p.metrics.endpoint(pool.Name(), e.Name), log: p.opts.Log.With("pool", pool.Name(), "endpoint", e.Name),
		timeout: p.timeout(pool.Config().StaleAfter), silentSince: -1, spare: linesAtOnce, spareAt: p.opts.Now(), state: resultOK,
		found: finding{capacity: math.NaN()}, askAt: never}
	w.client = newClient(e, p.opts.DialContext, w.timeout)
	if e.KVEvents.Port != 0 {
		w.metrics.follow = p.metrics.follow.endpoint(pool.Name(), e.Name)
		p.mu.Lock()
		p.followed[[2]string{pool.Name(), e.Name}] = w.metrics.follow
		p.mu.Unlock()
	}
	go w.run(ctx)
	return w
}

func (w *worker) now() time.Duration { return w.scraper.opts.Now() }

func (w *worker) run(ctx context.Context) {
	defer close(w.done)
	defer w.client.close()
	defer w.asking.Wait()
	w.asking.Go(func() { w.follow(ctx) })
	w.asking.Go(func() { w.tokenize(ctx) })
	address, _ := w.client.metricsAddress()
	for _, path := range w.client.metricsPaths() {
		r, err := w.client.request(address, path, "text/plain")
		if err != nil {
			w.fail(ctx, refused, err.Error())
			return
		}
		w.requests = append(w.requests, r)
	}
	timer := time.NewTimer(untilNext(w.endpoint.Address(), w.now(), w.scraper.opts.Interval))
	defer timer.Stop()
	for {
		w.ask(ctx)
		select {
		case <-ctx.Done():
			return
		case f := <-w.findings:
			w.learn(f)
		case <-timer.C:
			w.turn(ctx)
			timer.Reset(untilNext(w.endpoint.Address(), w.now(), w.scraper.opts.Interval))
		}
	}
}

// turn is one scrape, or, of a server without metrics, one look whether it serves.
func (w *worker) turn(ctx context.Context) {
	config := w.pool.Config()
	w.timeout, w.model = w.scraper.timeout(config.StaleAfter), config.Model
	ctx, cancel := context.WithTimeout(ctx, w.timeout)
	defer cancel()
	sent := w.now()
	if sent < w.withoutUntil {
		w.without(ctx, w.firstWhy)
		return
	}
	whole := w.requests[w.path]
	request := whole
	if w.narrow.on(w.path, sent) {
		request = w.narrow.request
	}
	var buf *[]byte // a shared page has its own
	if w.shared != nil {
		defer w.shared.use()()
	} else {
		buf = w.scraper.pages.Get().(*[]byte)
		defer w.scraper.pages.Put(buf)
	}
	a, sent, err := w.get(ctx, request, buf)
	if request != whole && w.falls(a, err) {
		w.narrow.until = w.now() + w.scraper.opts.AskInterval
		a, sent, err = w.get(ctx, whole, buf)
	}
	if err != nil {
		w.lost(ctx, err)
		return
	}
	w.silentSince = -1
	path := w.requests[w.path].URL.Path
	switch {
	case a.status == http.StatusOK:
		w.page(ctx, sent, a.body)
	case a.status == http.StatusServiceUnavailable:
		w.fail(ctx, refused, path+" says that it is not ready (status 503)")
	case a.status/100 == 3:
		w.fail(ctx, broken, fmt.Sprintf("%s redirects to %q, which is not followed", path, a.location))
	case a.status == http.StatusUnauthorized, a.status == http.StatusForbidden:
		w.unusable(ctx, w.client.keyWords(path, a.status))
	case a.status/100 == 5 && a.status != http.StatusNotImplemented, a.status == http.StatusTooManyRequests:
		w.fail(ctx, broken, fmt.Sprintf("%s answers with status %d", path, a.status))
	default:
		w.unusable(ctx, path+" answers with "+w.client.statusWords(a.status))
	}
}

// get sends the request, unless another rank of the address has just done so, and says when that was.
func (w *worker) get(ctx context.Context, r *http.Request, buf *[]byte) (answer, time.Duration, error) {
	if w.shared != nil {
		return w.shared.get(ctx, w, r)
	}
	sent := w.now()
	a, err := w.client.get(ctx, r, maxPage, *buf)
	*buf = a.body
	w.metrics.took(w.now() - sent)
	return a, sent, err
}

// page takes a metrics page that was asked for at the moment sent.
func (w *worker) page(ctx context.Context, sent time.Duration, page []byte) {
	w.metrics.bytes.Set(float64(len(page)))
	if !w.understand(page) {
		path := w.requests[w.path].URL.Path
		switch looks := looksLike(page); {
		case w.read || looks == "HTML":
			w.fail(ctx, broken, fmt.Sprintf("%s is %s, not a metrics page of a known engine", path, looks))
		default:
			w.unusable(ctx, fmt.Sprintf("%s is %s, not a metrics page of a known engine", path, looks))
		}
		return
	}
	w.narrow.learn(w, len(page))
	r, missing := w.scanner.reading(w.found.capacity)
	w.lacks(missing, w.found.refused)
	w.pool.Observe(w.now(), sent, w.endpoint.Name, r, w.missing)
	w.read, w.withoutUntil = true, 0
	w.well(resultOK, "")
	w.compare(r)
}

// understand scans a page by the configured dialect, or the one that the page speaks, and reports whether anything was
// found.
func (w *worker) understand(page []byte) bool {
	if w.scanner != nil {
		w.scanner.model = w.model
		if w.scanner.scan(page) > 0 {
			return true
		}
	}
	configured, spoken := dialectOf(w.endpoint.Engine), detect(page)
	d := configured
	if d == nil {
		d = spoken
	}
	if d == nil || spoken == nil {
		return false
	}
	if w.scanner == nil || w.scanner.d != d {
		w.scanner = newScanner(d)
		w.scanner.model = w.model
		if w.endpoint.Ranks > 0 {
			w.scanner.rank = strconv.Itoa(w.endpoint.Rank)
		}
		w.scanner.scan(page)
		w.mismatch(spoken.engine)
		w.askAt = 0
	}
	return true
}

// mismatch says when an engine is another than the configuration expects.
func (w *worker) mismatch(spoken string) {
	expected := w.endpoint.Engine
	if dialectOf(expected) == nil {
		expected = w.pool.Config().Engine
	}
	if expected != "" && expected != spoken {
		w.log.Warn("engine is not the configured one", "configured", expected, "engine", spoken)
	}
}

// looksLike names what was served instead of metrics.
func looksLike(page []byte) string {
	switch text := strings.TrimSpace(string(page[:min(len(page), 64)])); {
	case text == "":
		return "empty"
	case text[0] == '<':
		return "HTML"
	case text[0] == '{', text[0] == '[':
		return "JSON"
	}
	return "some text"
}

// unusable goes on to the next path where metrics may be, in the next turn, and after the last one takes the server for
// one without metrics.
func (w *worker) unusable(ctx context.Context, why string) {
	if w.path == 0 || w.read {
		w.firstWhy = why
	}
	if !w.read && w.path+1 < len(w.requests) {
		w.path++
		return
	}
	w.path = 0
	w.without(ctx, w.firstWhy)
}

// without asks a server that shows no metrics whether it serves.
func (w *worker) without(ctx context.Context, why string) {
	path, status, err := w.client.ready(ctx, w.readyPath)
	switch {
	case err != nil:
		w.lost(ctx, err)
	case path != "":
		if w.now() >= w.withoutUntil {
			w.withoutUntil = w.now() + w.scraper.opts.AskInterval
		}
		w.readyPath, w.read = path, false
		why = "no metrics: " + why
		w.lacks(lack{labels: []string{"metrics_page"}, words: []string{"metrics page"}}, "")
		w.pool.ObserveFailure(w.endpoint.Name, fleet.NoMetrics, why)
		w.well(resultNoMetrics, why)
	case status == http.StatusServiceUnavailable:
		w.fail(ctx, refused, "it says that it is not ready (status 503)")
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		w.fail(ctx, refused, w.client.keyWords(modelsPath, status))
	case status/100 == 5:
		w.fail(ctx, late, fmt.Sprintf("%s answers with status %d", modelsPath, status))
	default:
		w.fail(ctx, refused, fmt.Sprintf("%s; and %s answers with status %d, so it is no model server that serves", why, modelsPath, status))
	}
	if path == "" {
		w.readyPath = ""
	}
}

// lost takes a request that got no answer. Metrics on a port of their own may be gone while the engine serves, and so may those of a
// server that closes the connection when asked for them. One that always closes it, for as long as a reading counts, serves nobody.
func (w *worker) lost(ctx context.Context, err error) {
	if ctx.Err() == context.Canceled {
		return
	}
	far, why := w.client.classify(err, w.timeout)
	mute := far == shut
	if far == silent || mute {
		if w.silentSince < 0 {
			w.silentSince = w.now()
		}
		if w.now()-w.silentSince >= w.pool.Config().StaleAfter {
			far = refused
		}
	} else {
		w.silentSince = -1
	}
	if _, same := w.client.metricsAddress(); far == refused && (!same || mute) && w.now() >= w.withoutUntil {
		w.firstWhy = why
		w.withoutUntil = w.now() + w.scraper.opts.AskInterval
		w.without(ctx, why)
		return
	}
	w.fail(ctx, far, why)
}

// fail tells the fleet of a failure. One that accepts connections and never answered is merely late, too: after a
// restart of the gateway in a bad moment, a fleet whose metrics hang is routed to blindly and not refused.
func (w *worker) fail(ctx context.Context, far reach, why string) {
	if ctx.Err() == context.Canceled {
		return
	}
	w.failures++
	failure, result := fleet.ScrapeFailed, resultFailed
	if far == refused {
		failure, result = fleet.Unreachable, resultUnreachable
		w.askAt = never // when it is back it is asked at once
	}
	w.pool.ObserveFailure(w.endpoint.Name, failure, why)
	w.metrics.results[result].Inc()
	if w.state == result || result == resultFailed && (w.failures < loudFailures || w.state == resultUnreachable) || !w.mayLog() {
		return
	}
	w.state = result
	if result == resultUnreachable {
		w.log.Warn("endpoint is unreachable", "why", why)
	} else {
		w.log.Warn("endpoint gives no readings", "why", why)
	}
}

// well takes a success of one of two kinds.
func (w *worker) well(result, why string) {
	if w.failures > 0 || !w.answered {
		w.askAt = 0
	}
	w.failures, w.answered, w.silentSince = 0, true, -1
	w.metrics.results[result].Inc()
	if w.state == result || !w.mayLog() {
		return
	}
	w.state = result
	if result == resultNoMetrics {
		w.log.Warn("endpoint has no metrics and is routed to by bookkeeping alone", "why", why)
	} else {
		w.log.Info("endpoint gives readings again")
	}
}

// mayLog spends one of the lines that the endpoint has.
func (w *worker) mayLog() bool {
	now := w.now()
	w.spare = min(w.spare+linesPerSec*(now-w.spareAt).Seconds(), linesAtOnce)
	w.spareAt = now
	if w.spare < 1 {
		return false
	}
	w.spare--
	return true
}

// lacks notes what the engine does not say, and what it refuses in words.
func (w *worker) lacks(l lack, refused string) {
	if !slices.Equal(l.labels, w.lacking.labels) || refused != w.refused {
		w.lacking, w.refused, w.said = l, refused, false
		w.missing = slices.Clone(l.words)
		if refused != "" {
			w.missing = append(w.missing, refused)
		}
		w.metrics.lacks(l.labels)
	}
	if w.said || !w.learned {
		return // some of it is found by asking
	}
	w.said = true
	if w.refused != "" && w.mayLog() {
		w.log.Info("endpoint refuses a question", "why", w.refused)
	}
	if len(l.words) > 0 && w.scanner != nil {
		w.scraper.sayLack(w.pool, w.scanner.d.engine, strings.Join(l.words, ", "))
	}
}

// ask sends the question what the endpoint serves, if it is time and none is on its way.
func (w *worker) ask(ctx context.Context) {
	if w.askAt != never && w.now()-w.askedAt >= relistAfter && w.pool.Relist(w.endpoint.Name) {
		w.askAt = 0
	}
	if w.busy || w.now() < w.askAt {
		return
	}
	w.askedAt = w.now()
	w.busy = true
	w.askAt = w.now() + w.scraper.opts.AskInterval
	engine := ""
	if w.scanner != nil {
		engine = w.scanner.d.engine
	}
	w.asking.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, askTimeout)
		defer cancel()
		w.findings <- w.client.ask(ctx, engine)
	})
}

// learn takes the answer.
func (w *worker) learn(f finding) {
	w.busy, w.learned = false, true
	if f.err != nil {
		return // the next scrape says what is wrong with it
	}
	if !f.listed {
		f.models = w.found.models
	}
	if math.IsNaN(f.capacity) {
		f.capacity = w.found.capacity
	}
	w.found = f
	w.engine = w.endpoint.Engine
	if w.engine == "" && w.scanner != nil {
		w.engine = w.scanner.d.engine
	}
	for _, e := range []string{f.engine, w.pool.Config().Engine} {
		if w.engine == "" {
			w.engine = e
		}
	}
	w.listed = make(map[string]bool, len(f.models))
	names := make([]string, len(f.models))
	for i, m := range f.models {
		w.listed[m.ID], names[i] = true, m.ID
	}
	w.pool.ObserveModels(w.endpoint.Name, w.engine, f.models)
	if told := w.engine + " " + strings.Join(names, ",") + " " + f.refused; told != w.told && w.mayLog() {
		w.told = told
		w.log.Info("endpoint found", "engine", w.engine, "models", names)
	}
}

// compare asks at once when the metrics begin to name an adapter that the list of models doesn't.
func (w *worker) compare(r fleet.Reading) {
	if slices.Equal(w.resident, r.Resident) && slices.Equal(w.queued, r.WaitingAdapters) {
		return
	}
	w.resident, w.queued = r.Resident, r.WaitingAdapters
	unlisted := func(n string) bool { return !w.listed[n] }
	if slices.ContainsFunc(r.Resident, unlisted) || slices.ContainsFunc(r.WaitingAdapters, unlisted) {
		w.askAt = 0
	}
}
