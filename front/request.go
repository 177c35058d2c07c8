package front

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/sluice-gateway/sluice/fleet"
	"github.com/sluice-gateway/sluice/openai"
	"github.com/sluice-gateway/sluice/route"
)

// Request is one request from its headers to its end. A door takes it through Begin, Admit, CheckHeader, ReadBody or
// HoldBody, and Decide, sends it, and calls End, at the latest when nothing more of it will be seen. Fields are for
// reading, except where they say otherwise. One goroutine at a time may use it.
type Request struct {
	// ID is its x-request-id: the client's, where that is usable, else a new one. It identifies the request to people
	// only: no state goes by it, so two requests with one id don't meet.
	ID string
	// Start is when it began, on the desk's clock.
	Start time.Duration
	// Path is what its path asks for; Open says that the path is opened by configuration, outside the table.
	Path openai.Path
	Open bool
	// Secure says that the client's connection is encrypted. The door sets it, before Decide.
	Secure bool
	// Unseen says that the door doesn't see the answer's body, Subset to which addresses the request may go, as in
	// fleet.Request. The door sets both, before Decide.
	Unseen bool
	Subset []string

	// Body is what goes to an engine, nil for nothing, and from Free on. Until Decide it is what the client sent;
	// Rewritten says that it is not from then on: it names another model, and has lost its coding if it came with one, so
	// that its length is another.
	Body      *openai.Body
	Rewritten bool

	// Pool serves it; nil until Decide has found one.
	Pool *fleet.Pool
	// Asked is the name asked for, empty where none was given; Label is the same if it is known, for metrics. Model is the
	// name that the request goes on under.
	Asked, Label, Model string
	// Objective is the one that it names, and Priority what that says; empty and 0 for none, or where its client isn't trusted.
	Objective string
	Priority  int64
	// Want is what the pool is asked for. A door adds whom it has Tried, and whether the request is Suspect.
	Want fleet.Request
	// Cookie is one that the answer sets, nil for none.
	Cookie *http.Cookie
	// Lost says that it is about a response, or continues one, of which nobody knows where it is.
	Lost bool

	// Ended is what is known of its end. The door sets Status, Endpoint, Whole, and what BookUsage and FirstByte don't.
	Ended Ended

	desk     *Desk
	set      *settings
	method   string
	url      string // its path
	header   http.Header
	options  map[string]bool // headers that the client's Connection names
	media    bool            // the prompt holds more than text
	scratch  *openai.Scratch
	rule     *rule // that gave it its Model, nil for none
	counted  bool  // in the in-flight gauge
	expected int64 // bytes of a body that is coming
	over     bool
}

// RetryAfter is told to clients when no endpoint is ready: engines that restart take longer, readings that are late do
// not.
const RetryAfter = 2 * time.Second

// Begin takes a request in. path is decoded and without query; header has names in canonical form and is not written
// to, nor may others write to it while the request lasts. r must be zero.
func (d *Desk) Begin(r *Request, method, path string, header http.Header) {
	r.desk, r.set, r.method, r.url, r.header = d, d.settings.Load(), method, path, header
	r.Start = d.now()
	r.takeID()
}

// Options are those that the request goes by, with defaults filled in. They must not be written to.
func (r *Request) Options() *Options { return &r.set.Options }

// Admit looks the path and the method up, and says what the client is told where they are not open.
func (r *Request) Admit() *openai.Error {
	path, ok := openai.PathOf(r.url)
	if !ok && r.set.open[r.url] {
		path, ok, r.Open = openai.Path{Operation: "opened"}, true, true
	}
	r.Path = path
	if !ok {
		r.Path.Operation = "closed"
		return openai.PathNotFound.Errorf("%.100q is closed: only paths for inference are open, as those of the OpenAI API; whoever starts the gateway by its flags opens others with --open-path, and in a gateway of an InferenceGatewayConfig they stay closed", r.url)
	}
	if allow := r.allow(); allow != nil && !slices.Contains(allow, r.method) {
		e := openai.MethodNotAllowed.Errorf("%.100q takes %s", r.url, strings.Join(allow, " or "))
		e.Allow = strings.Join(allow, ", ")
		return e
	}
	return nil
}

// allow lists the methods of a path.
func (r *Request) allow() []string {
	switch {
	case r.Open:
		return nil
	case r.Path.Body:
		return []string{http.MethodPost}
	case r.Path.Stateful && (strings.HasSuffix(r.url, "/cancel") || strings.HasSuffix(r.url, "/cancel/")):
		return []string{http.MethodPost}
	case r.Path.Stateful:
		return []string{http.MethodGet, http.MethodHead, http.MethodDelete}
	}
	return []string{http.MethodGet, http.MethodHead}
}

// ReadBody takes the body into memory, as openai.ReadBody does, whose errors it returns.
func (r *Request) ReadBody(src io.Reader, contentLength int64) (err error) {
	r.Body, err = openai.ReadBody(src, contentLength, r.set.MaxBodyBytes, r.set.budget)
	return err
}

// Expect counts n more bytes of a body that comes piece by piece, until HoldBody takes it whole or Free gives it up.
func (r *Request) Expect(n int64) *openai.Error {
	if limit := r.set.MaxBodyBytes; limit > 0 && r.expected+n > limit {
		return openai.AsError(fmt.Errorf("%w: more than the %d bytes allowed", openai.ErrTooLarge, limit))
	}
	if err := r.set.budget.Reserve(n); err != nil {
		return openai.AsError(err)
	}
	r.expected += n
	return nil
}

// HoldBody takes a body that is in memory already, as openai.Budget.Hold does. Where it can't, done has been called.
func (r *Request) HoldBody(parts [][]byte, done func()) *openai.Error {
	r.set.budget.Release(r.expected)
	r.expected = 0
	body, err := r.set.budget.Hold(parts, r.set.MaxBodyBytes, done)
	if err != nil {
		return openai.AsError(err)
	}
	r.Body = body
	return nil
}

// Decide finds out what the request asks for and which pool serves it, has an endpoint chosen and the request counted
// there, or says what the client is told instead.
func (r *Request) Decide() (*fleet.Lease, *openai.Error) {
	began := r.desk.now()
	if e := r.Understand(); e != nil {
		return nil, e
	}
	m := r.desk.metrics
	m.enter(r.Pool.Name())
	r.counted = true
	lease := r.Pick(false)
	m.decision.WithLabelValues(r.Pool.Name()).Observe((r.desk.now() - began).Seconds())
	if lease == nil {
		where := "under /fleet at the gateway's metrics address"
		if r.set.InCluster {
			where = "by `kubectl sluice top`, or " + where
		}
		e := openai.NoEndpoint.Errorf("no endpoint of pool %q is ready; try again, or see which are, and why others are not, %s", r.Pool.Name(), where)
		e.RetryAfter = RetryAfter
		return nil, e
	}
	r.wantTokens(lease)
	return lease, nil
}

// fields reads what routing needs to know of the body, nothing where there is none to read.
func (r *Request) fields() (req openai.Request, e *openai.Error) {
	if r.Body == nil || !r.Path.Body && !r.Open {
		return req, nil
	}
	r.scratch, _ = r.desk.scratches.Get().(*openai.Scratch)
	req, err := openai.Read(r.header.Get("Content-Type"), strings.Join(r.header["Content-Encoding"], ","), r.Body, r.scratch)
	if err != nil && !r.Open {
		return req, openai.AsError(err)
	}
	return req, nil
}

// Understand finds out what the request asks for and which pool serves it, or says what the client is told instead. It
// is the first part of Decide, for a door that decides nothing.
func (r *Request) Understand() *openai.Error {
	if r.Body == nil && r.Path.Body {
		return openai.InvalidRequest.Errorf("the request body is empty; send one JSON object")
	}
	req, e := r.fields()
	if e != nil {
		return e
	}
	if r.Asked = req.Model; r.Asked == "" {
		r.Asked = r.header.Get(HeaderModel)
	}
	if e := r.rewrite(req.Model != ""); e != nil {
		return e
	}
	keeps, endpoint := r.holder(&req)
	target, e := r.target(keeps)
	if e != nil {
		return e
	}
	r.Pool = target.Pool
	r.Want = fleet.Request{Model: r.Model, Adapter: target.Adapter, PromptBytes: promptBytes(&req), MaxOutput: max(req.OutputLimit, 0),
		Streamed: req.Stream, Unseen: r.Unseen, Subset: r.Subset}
	r.media = req.MediaBytes > 0 || req.Form
	if r.scratch != nil && req.PromptBytes > 0 {
		r.Want.Blocks, r.Want.Ends = r.scratch.Blocks(r.Model)
		r.Want.UnitBytes, r.Want.Head = openai.UnitBytes, r.scratch.Head()
	}
	if !r.generates() {
		r.Want.MaxOutput = 1 // nothing is generated token by token
	}
	r.Want.Record = r.set.Record != nil && r.set.Sample != nil && r.set.Sample(r.ID)
	r.session()
	r.objective()
	if keeps == r.Pool {
		r.Want.Holder = endpoint
	}
	return nil
}

// generates reports whether the operation is one that generates tokens.
func (r *Request) generates() bool {
	switch r.Path.Operation {
	case "chat_completions", "completions", "responses", "messages":
		return true
	}
	return false
}

// mediaBytes is what media in a prompt count for at most: an image costs about as many tokens as this much text,
// however many bytes it has.
const mediaBytes = 8 << 10

func promptBytes(r *openai.Request) int {
	return int(r.PromptBytes - r.MediaBytes + min(r.MediaBytes, mediaBytes))
}

// target finds the pool: the one that keeps the response that the request is about, if there is one, else that for the
// model. A request that only continues a response names a model, and the pool goes by that.
func (r *Request) target(keeps *fleet.Pool) (fleet.Target, *openai.Error) {
	f := r.desk.fleet
	if keeps != nil && r.Path.Stateful {
		return fleet.Target{Pool: keeps}, nil
	}
	target, ok := f.Lookup(r.Model)
	if r.rule != nil {
		r.labelRuled()
	} else if ok {
		r.Label = r.Asked
	}
	pools := f.Pools()
	switch {
	case !r.set.SelectModel && len(pools) > 0:
		if target.Pool == pools[0] {
			return target, nil
		}
		return fleet.Target{Pool: pools[0]}, nil
	case ok:
		return target, nil
	case r.Model == "" && !r.Path.Body && len(pools) == 1:
		return fleet.Target{Pool: pools[0]}, nil
	}
	if p := r.ruledPool(); p != nil {
		f.Miss() // an adapter may have been loaded a moment ago
		return fleet.Target{Pool: p}, nil
	}
	if p := f.Fallback(); p != nil {
		return fleet.Target{Pool: p}, nil
	}
	return fleet.Target{}, r.unmatched(len(pools))
}

// unmatched says why there is no pool for a request, where there are so many.
func (r *Request) unmatched(pools int) *openai.Error {
	switch {
	case pools == 0:
		return openai.ModelNotFound.Errorf("%s", openai.NoSchedulerMessage)
	case r.Model == "":
		e := openai.InvalidRequest.Errorf("%s", openai.NoModelMessage)
		e.Param = "model"
		return e
	}
	r.desk.fleet.Miss()
	return openai.ModelNotFound.Errorf("no pool serves %.100q; GET /v1/models lists what is served", r.Model)
}

// Pick has an endpoint chosen and the request counted there; nil when none is left. waiting says that the request is
// with an endpoint still and asks for a better place: finding none is no news then, and is not recorded. Another
// goroutine may call it while the request's own waits.
func (r *Request) Pick(waiting bool) *fleet.Lease {
	lease, choice := r.Pool.Pick(r.desk.now(), &r.Want)
	if choice.View != nil && (lease != nil || !waiting) {
		r.set.Record(r.record(choice, lease))
	}
	if lease != nil {
		r.desk.metrics.decisions.add(r.Pool.Name(), lease.Endpoint.Name)
	}
	return lease
}

// record puts a decision into the form that replay reads; lease is nil where none was made.
func (r *Request) record(choice fleet.Choice, lease *fleet.Lease) *route.Record {
	rec := r.Pool.Config().Profile.Record(choice.View, choice.Decision)
	rec.ID, rec.Time, rec.Pool = r.ID, time.Now().UTC().Format(time.RFC3339Nano), r.Pool.Name()
	rec.Objective, rec.Priority = r.Objective, r.Priority
	if lease != nil {
		rec.Cached, rec.CachedExact = lease.Cached, lease.CachedExact
	}
	return &rec
}

// Free gives up the body and the working memory, as soon as no further attempt can need them: a stream may go on for an
// hour. Calling it again does nothing.
func (r *Request) Free() {
	if r.scratch != nil {
		r.Want.Blocks, r.Want.Ends, r.Want.Head = nil, nil, nil
		r.scratch.Reset()
		r.desk.scratches.Put(r.scratch)
		r.scratch = nil
	}
	if r.Body != nil {
		r.Body.Free()
		r.Body = nil
	}
	r.set.budget.Release(r.expected)
	r.expected = 0
}

// End counts and reports the request's end, once, and frees it. Its leases are the door's to end before.
func (r *Request) End(ctx context.Context) {
	if r.over {
		return
	}
	r.over = true
	r.Free()
	pool := ""
	if r.Pool != nil {
		pool = r.Pool.Name()
	}
	e := &r.Ended
	e.ID, e.Pool, e.Model, e.Duration = r.ID, pool, r.Asked, r.desk.now()-r.Start
	e.Status = cmp.Or(e.Status, http.StatusInternalServerError) // 0 where a panic is on its way up
	m := r.desk.metrics
	m.requests.WithLabelValues(pool, r.Path.Operation, codeLabel(e.Status)).Inc()
	m.duration.WithLabelValues(pool, r.Path.Operation).Observe(e.Duration.Seconds())
	if r.counted {
		m.leave(pool)
	}
	if r.set.Ended != nil {
		r.set.Ended(*e)
	}
	if log := r.desk.log; log.Enabled(ctx, slog.LevelDebug) {
		attrs := []slog.Attr{slog.String(WireRequestID, r.ID), slog.String("modelName", r.Asked),
			slog.String("pool", pool), slog.String("operation", r.Path.Operation), slog.String("endpoint", e.Endpoint), slog.Int("status", e.Status),
			slog.Duration("took", e.Duration)}
		if r.Model != r.Asked {
			attrs = append(attrs, slog.String("modelRewrite", r.Model))
		}
		if r.Objective != "" {
			attrs = append(attrs, slog.String("objective", r.Objective), slog.Int64("priority", r.Priority))
		}
		log.LogAttrs(ctx, slog.LevelDebug, "request", attrs...)
	}
}
