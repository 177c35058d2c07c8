package proxy

import (
	"cmp"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sluice-gateway/sluice/fleet"
	"github.com/sluice-gateway/sluice/openai"
)

// call is one request on its way through, used by its own goroutine only, except where attempt says otherwise.
type call struct {
	g     *Gateway
	w     http.ResponseWriter
	r     *http.Request
	set   *settings
	start time.Duration

	id   string
	path openai.Path
	open bool // opened by configuration, outside the table

	options map[string]bool // headers that the client's Connection names

	pool   *fleet.Pool
	model  string // the name asked for, empty when none was given
	label  string // model, if it is one that the fleet knows
	want   fleet.Request
	cookie *http.Cookie // that the answer sets

	body    *openai.Body
	media   bool // the prompt holds more than text
	lost    bool // it is about a response, or continues one, of which nobody knows where it is
	unread  bool // the client may be sending a body that nobody wants any longer
	scratch *openai.Scratch

	breaks   int           // endpoints that broke it off before their first byte
	from     time.Duration // when limits on the answer begin
	current  *attempt
	trouble  trouble
	status   int
	served   string
	ended    Ended // filled in as it becomes known
	counted  bool  // in the in-flight gauge
	broken   bool  // the connection must not look as if the answer were whole
	finished bool
}

// pickRetryAfter is told to clients when no endpoint is ready: engines that restart take longer, readings that are late
// do not.
const pickRetryAfter = 2 * time.Second

// serve reads the request, finds its pool and has it answered.
func (c *call) serve() {
	if e := c.checkHeader(); e != nil {
		c.fail(e)
		return
	}
	if e := c.read(); e != nil {
		c.fail(e)
		return
	}
	c.from = c.g.now()
	began := c.from
	if e := c.understand(); e != nil {
		c.fail(e)
		return
	}
	c.g.metrics.enter(c.pool.Name())
	c.counted = true
	lease := c.pick()
	c.g.metrics.decision.WithLabelValues(c.pool.Name()).Observe((c.g.now() - began).Seconds())
	if lease == nil {
		e := openai.NoEndpoint.Errorf("no endpoint of pool %q is ready; try again, or see which are, and why others are not, "+
			"under /fleet at the gateway's metrics address", c.pool.Name())
		e.RetryAfter = pickRetryAfter
		c.fail(e)
		return
	}
	c.wantTokens(lease)
	c.run(lease)
}

// fail answers with an error of the gateway's own, before anything else was written.
func (c *call) fail(e *openai.Error) {
	c.status = e.Status
	if e.Status >= http.StatusInternalServerError {
		c.complain("request failed", cmp.Or(c.trouble.said, e.Code), e.Status)
	}
	if e.Case == openai.ClientGone {
		c.broken = true
		return
	}
	c.leaveUnread()
	openai.WriteError(c.w, e)
}

// unreadPatience is how long a client may go on sending a body that is not wanted, before it is answered.
const unreadPatience = 2 * time.Second

// leaveUnread bounds what net/http does before an answer goes out early: it takes what is left of a body, up to 256
// KiB, because many clients send all of it before they read, and waits for that without end.
func (c *call) leaveUnread() {
	if c.unread {
		_ = http.NewResponseController(c.w).SetReadDeadline(time.Now().Add(unreadPatience))
	}
}

// read takes the body into memory. Nothing is read before the path and the method are known to be good, so that a
// client that waits to be told to go on isn't.
func (c *call) read() *openai.Error {
	if c.r.Body == nil || c.r.Body == http.NoBody {
		if c.path.Body {
			return openai.InvalidRequest.Errorf("the request body is empty; send one JSON object")
		}
		return nil
	}
	src := io.Reader(c.r.Body)
	if c.set.IdleTimeout > 0 {
		p := &patient{r: c.r.Body, control: http.NewResponseController(c.w), limit: c.set.IdleTimeout, began: time.Now()}
		c.g.late.add(p)
		src = p
	}
	body, err := openai.ReadBody(src, c.r.ContentLength, c.set.MaxBodyBytes, c.set.budget)
	if p, ok := src.(*patient); ok {
		p.done(err == nil)
	}
	switch {
	case err == nil:
		c.body, c.unread = body, false
		return nil
	case errors.Is(err, os.ErrDeadlineExceeded):
		c.unread = false // the deadline that has passed stays, and ends all reading
		return openai.InvalidRequest.Errorf("no byte of the request body came for %v", c.set.IdleTimeout)
	case c.r.Context().Err() != nil:
		return openai.ClientGone.Errorf("the client left while it sent the request body")
	}
	return openai.AsError(err)
}

// patient bounds the wait for each piece of a body, not for the whole, which a slow line may take any time to send,
// once the body has taken a while.
type patient struct {
	r       io.Reader
	control *http.ResponseController
	limit   time.Duration
	began   time.Time

	mu    sync.Mutex
	slow  bool
	ended bool
}

// late begins to set deadlines. Servers that can't set them, as in tests without a connection, bound nothing.
func (p *patient) late() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.slow = true
	if !p.ended {
		_ = p.control.SetReadDeadline(p.began.Add(p.limit))
	}
}

func (p *patient) Read(buf []byte) (int, error) {
	n, err := p.r.Read(buf)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.slow && err == nil {
		_ = p.control.SetReadDeadline(time.Now().Add(p.limit))
	}
	return n, err
}

// done ends the wait. A whole body leaves no deadline behind for what comes next on the connection.
func (p *patient) done(whole bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended = true
	if p.slow && whole {
		_ = p.control.SetReadDeadline(time.Time{})
	}
}

// understand finds out what the request asks for and which pool serves it.
func (c *call) understand() *openai.Error {
	var req openai.Request
	if c.body != nil && (c.path.Body || c.open) {
		c.scratch, _ = c.g.scratches.Get().(*openai.Scratch)
		var err error
		req, err = openai.Read(c.r.Header.Get("Content-Type"), strings.Join(c.r.Header["Content-Encoding"], ","), c.body, c.scratch)
		if err != nil && !c.open {
			return openai.AsError(err)
		}
	}
	c.model = req.Model
	if c.model == "" {
		c.model = c.r.Header.Get(headerModel)
	}
	keeps, endpoint := c.holder(&req)
	target, e := c.target(keeps)
	if e != nil {
		return e
	}
	c.pool = target.Pool
	c.want = fleet.Request{Model: c.model, Adapter: target.Adapter, PromptBytes: promptBytes(&req), MaxOutput: max(req.OutputLimit, 0),
		Streamed: req.Stream}
	c.media = req.MediaBytes > 0 || req.Form
	if c.scratch != nil && req.PromptBytes > 0 {
		c.want.Blocks, c.want.Ends = c.scratch.Blocks(c.model)
		c.want.UnitBytes, c.want.Head = openai.UnitBytes, c.scratch.Head()
	}
	switch c.path.Operation {
	case "chat_completions", "completions", "responses", "messages":
	default:
		c.want.MaxOutput = 1 // nothing is generated token by token
	}
	c.want.Record = c.set.Record != nil && c.set.Sample != nil && c.set.Sample(c.id)
	c.session()
	if keeps == c.pool {
		c.want.Holder = endpoint
	}
	return nil
}

// mediaBytes is what media in a prompt count for at most: an image costs about as many tokens as this much text,
// however many bytes it has.
const mediaBytes = 8 << 10

func promptBytes(r *openai.Request) int {
	return int(r.PromptBytes - r.MediaBytes + min(r.MediaBytes, mediaBytes))
}

// target finds the pool: the one that keeps the response that the request is about, if there is one, else that for the
// model. A request that only continues a response names a model, and the pool goes by that.
func (c *call) target(keeps *fleet.Pool) (fleet.Target, *openai.Error) {
	f := c.g.fleet
	if keeps != nil && c.path.Stateful {
		return fleet.Target{Pool: keeps}, nil
	}
	target, ok := f.Lookup(c.model)
	if ok {
		c.label = c.model
	}
	pools := f.Pools()
	switch {
	case !c.set.SelectModel && len(pools) > 0:
		if target.Pool == pools[0] {
			return target, nil
		}
		return fleet.Target{Pool: pools[0]}, nil
	case ok:
		return target, nil
	case c.model == "" && !c.path.Body && len(pools) == 1:
		return fleet.Target{Pool: pools[0]}, nil
	}
	if p := f.Fallback(); p != nil {
		return fleet.Target{Pool: p}, nil
	}
	if c.model == "" {
		e := openai.InvalidRequest.Errorf("%s", openai.NoModelMessage)
		e.Param = "model"
		return fleet.Target{}, e
	}
	f.Miss()
	return fleet.Target{}, openai.ModelNotFound.Errorf("no pool serves %.100q; GET /v1/models lists what is served", c.model)
}

// pick has an endpoint chosen and the request counted there; nil when none is left. It may be called by the watcher of
// an attempt while the call waits for that attempt.
func (c *call) pick() *fleet.Lease {
	now := c.g.now()
	lease, choice := c.pool.Pick(now, &c.want)
	if choice.View != nil && (lease != nil || c.current == nil) { // a watcher that finds nobody asks again and again
		c.set.Record(c.record(choice, lease))
	}
	if lease != nil {
		c.g.metrics.decisions.add(c.pool.Name(), lease.Endpoint.Name)
	}
	return lease
}

// free gives up the body and the working memory as soon as no further attempt can need them: a stream may go on for an
// hour.
func (c *call) free() {
	if c.scratch != nil {
		c.want.Blocks = nil
		c.scratch.Reset()
		c.g.scratches.Put(c.scratch)
		c.scratch = nil
	}
	if c.body != nil {
		c.body.Free()
		c.body = nil
	}
}

// finish lowers every counter, once, whatever happened before.
func (c *call) finish() {
	if c.finished {
		return
	}
	c.finished = true
	if a := c.current; a != nil {
		a.end(fleet.Outcome{Ending: fleet.Aborted})
	}
	c.free()
	pool := ""
	if c.pool != nil {
		pool = c.pool.Name()
	}
	m, took := c.g.metrics, c.g.now()-c.start
	if c.status == 0 {
		c.status = http.StatusInternalServerError // a panic is on its way up
	}
	m.requests.WithLabelValues(pool, c.path.Operation, codeLabel(c.status)).Inc()
	m.duration.WithLabelValues(pool, c.path.Operation).Observe(took.Seconds())
	if c.counted {
		m.leave(pool)
	}
	if c.set.Ended != nil {
		e := &c.ended
		e.ID, e.Pool, e.Model, e.Endpoint, e.Status, e.Duration = c.id, pool, c.model, c.served, c.status, took
		c.set.Ended(*e)
	}
	if log := c.g.log; log.Enabled(c.r.Context(), slog.LevelDebug) {
		log.LogAttrs(c.r.Context(), slog.LevelDebug, "request", slog.String("x-request-id", c.id), slog.String("modelName", c.model),
			slog.String("pool", pool), slog.String("operation", c.path.Operation), slog.String("endpoint", c.served), slog.Int("status", c.status),
			slog.Duration("took", took))
	}
}

// allow lists the methods of a path.
func (c *call) allow() []string {
	switch {
	case c.open:
		return nil
	case c.path.Body:
		return []string{http.MethodPost}
	case c.path.Stateful && (strings.HasSuffix(c.r.URL.Path, "/cancel") || strings.HasSuffix(c.r.URL.Path, "/cancel/")):
		return []string{http.MethodPost}
	case c.path.Stateful:
		return []string{http.MethodGet, http.MethodHead, http.MethodDelete}
	}
	return []string{http.MethodGet, http.MethodHead}
}

// admit looks the path and the method up, and answers when they are not open.
func (c *call) admit() bool {
	path, ok := openai.PathOf(c.r.URL.Path)
	if !ok && c.set.open[c.r.URL.Path] {
		path, ok, c.open = openai.Path{Operation: "opened"}, true, true
	}
	c.path = path
	if !ok {
		c.path.Operation = "closed"
		c.fail(openai.PathNotFound.Errorf("%.100q is closed: the gateway opens the paths of the OpenAI API, and of engines' own paths those that are listed "+
			"in its configuration, each with the flag --open-path", c.r.URL.Path))
		return false
	}
	if allow := c.allow(); allow != nil && !slices.Contains(allow, c.r.Method) {
		c.w.Header().Set("Allow", strings.Join(allow, ", "))
		c.fail(openai.MethodNotAllowed.Errorf("%.100q takes %s", c.r.URL.Path, strings.Join(allow, " or ")))
		return false
	}
	return true
}
