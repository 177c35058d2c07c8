package proxy

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-gateway/sluice/fleet"
	"github.com/sluice-gateway/sluice/front"
	"github.com/sluice-gateway/sluice/openai"
)

// phase is how far an attempt has come.
type phase uint8

const (
	waiting phase = iota // for the first body byte
	begun                // it is there: the answer is this endpoint's
	held                 // it is there, and says to try elsewhere: kept while others are tried
	over                 // given up or ended
)

// cause says why an attempt was given up by its watcher, or how it failed. The words are metric labels.
type cause string

const (
	causeNone    cause = ""
	causeConnect cause = "connect"         // no connection could be made
	causeBroken  cause = "broken"          // the connection broke, or what came was no answer
	causeStatus  cause = "status"          // the engine answered 429, 502, 503 or 504, or does not hold the response or adapter asked for
	causeLost    cause = "lost"            // the endpoint left, went stale or stalled
	causeSlow    cause = "attempt_timeout" // it kept the request for longer than one attempt may take
	causeFirst   cause = "first_byte_timeout"
	causeIdle    cause = "idle_timeout"
	causeRoute   cause = "route_timeout"
	causeCut     cause = "cut" // the gateway is stopping
	causeClient  cause = "client_gone"
)

// final reports causes that end the request rather than move it.
func (k cause) final() bool {
	switch k {
	case causeFirst, causeRoute, causeCut, causeClient:
		return true
	}
	return false
}

// attempt is one request at one endpoint. The call's goroutine sends and reads; a watcher keeps the time limits and
// gives the attempt up when the endpoint is lost, which is the only thing that can end a wait in the transport. The two
// meet under mu.
type attempt struct {
	c      *call
	lease  *fleet.Lease
	final  bool // no further attempt may follow
	cancel context.CancelFunc
	ctx    context.Context
	sent   time.Duration

	lastByte atomic.Int64 // nanoseconds of the gateway's clock

	mu    sync.Mutex
	phase phase
	why   cause
	said  string       // why in words, where those of the cause can be more exact
	next  *fleet.Lease // picked by the watcher before it gave up
	told  bool         // the client is being told the answer

	resp    *http.Response
	options map[string]bool // headers that the answer's Connection names
	sse     bool
	buf     *[]byte
	n       int   // bytes of the first read
	err     error // that came with them
}

// send sends the request to the lease's endpoint and waits for the first body byte, or for the end of an empty answer.
func (c *call) send(lease *fleet.Lease, final bool) *attempt {
	a := &attempt{c: c, lease: lease, final: final, sent: c.g.now()}
	a.ctx, a.cancel = context.WithCancel(c.r.Context())
	a.lastByte.Store(int64(a.sent))
	c.current = a
	c.req.Want.Tried = append(c.req.Want.Tried, lease.Endpoint.Name)
	c.g.late.Add(a, lateAfter)
	out := c.engineRequest(a)
	resp, err := c.g.transports.of(&lease.Endpoint, c.set.ConnectTimeout).RoundTrip(out)
	if err != nil {
		a.fail(err)
		return a
	}
	a.resp = resp
	if resp.StatusCode < http.StatusOK {
		a.fail(errors.New("the endpoint switched protocols, or gave no status"))
		return a
	}
	var ok bool
	if a.options, ok = front.ConnectionOptions(resp.Header["Connection"]); !ok {
		a.fail(errors.New("the endpoint's Connection header names too many options"))
		return a
	}
	a.sse = resp.StatusCode < 300 && readable(resp.Header) && strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream")
	a.takeBuffer()
	for a.n == 0 && a.err == nil {
		a.n, a.err = resp.Body.Read(*a.buf)
	}
	if a.n == 0 && a.err != io.EOF {
		a.fail(a.err)
		return a
	}
	a.begin()
	return a
}

// readable reports whether a body can be read as it is.
func readable(h http.Header) bool {
	e := h.Get("Content-Encoding")
	return e == "" || strings.EqualFold(e, "identity")
}

// engineRequest makes the request for one attempt, with a reader of its own over the body.
func (c *call) engineRequest(a *attempt) *http.Request {
	e := &a.lease.Endpoint
	out := c.r.WithContext(a.ctx)
	out.URL = &url.URL{Scheme: "http", Host: e.Address(), Path: c.r.URL.Path, RawPath: c.r.URL.RawPath, RawQuery: c.r.URL.RawQuery,
		ForceQuery: c.r.URL.ForceQuery}
	if e.TLS != nil {
		out.URL.Scheme = "https" // as the endpoint is spoken to, not as the client came
	}
	out.Header = c.engineHeader(e)
	out.Host = e.Host
	out.RequestURI, out.Close, out.TransferEncoding = "", false, nil
	out.Trailer = nil
	out.Body, out.GetBody, out.ContentLength = nil, nil, 0
	if c.req.Body == nil || c.req.Body.Len() == 0 {
		return out
	}
	out.ContentLength = c.req.Body.Len()
	if len(c.r.Trailer) > 0 {
		out.ContentLength = -1 // only a chunked body has trailers
		out.Trailer = make(http.Header, len(c.r.Trailer))
		for name, values := range c.r.Trailer {
			if !front.Hop(name) && (c.req.Options().TrustHeaders || !front.Reserved(name)) {
				out.Trailer[name] = values
			}
		}
	}
	reader := bodies(c.req.Body, out)
	out.Body = reader()
	out.GetBody = func() (io.ReadCloser, error) { return reader(), nil }
	return out
}

// begin makes the answer this endpoint's.
func (a *attempt) begin() {
	a.lastByte.Store(int64(a.c.g.now()))
	a.turn(waiting, begun)
}

// turn takes the attempt from one phase to the next, unless the watcher gave it up a moment ago.
func (a *attempt) turn(from, to phase) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.phase == from {
		a.phase = to
	}
}

// fail settles that the attempt has failed before its first body byte, and why.
func (a *attempt) fail(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.phase = over
	if a.c.r.Context().Err() != nil {
		a.why = causeClient // whatever it was that noticed first
	}
	if a.why != causeNone {
		return
	}
	a.why, a.said = causeBroken, inWords(err)
	var dial *net.OpError
	if errors.As(err, &dial) && dial.Op == "dial" {
		a.why = causeConnect
	}
}

// end gives up or ends the attempt: its work at the engine is cancelled, its memory and its lease are returned. Only
// the first call counts.
func (a *attempt) end(o fleet.Outcome) {
	a.mu.Lock()
	a.phase = over
	next := a.next
	a.next = nil
	a.mu.Unlock()
	a.cancel()
	if a.resp != nil {
		_ = a.resp.Body.Close() // what is left unread is not wanted
	}
	a.giveBuffer()
	a.lease.Done(a.c.g.now(), o)
	if next != nil {
		next.Done(a.c.g.now(), fleet.Outcome{Ending: fleet.Moved})
	}
	if a.c.current == a {
		a.c.current = nil
	}
}

// outcome is how a failed attempt counts for its endpoint.
func (k cause) outcome() fleet.Outcome {
	switch k {
	case causeConnect:
		return fleet.Outcome{Ending: fleet.Refused}
	case causeBroken, causeFirst, causeIdle:
		return fleet.Outcome{Ending: fleet.Failed}
	case causeClient, causeCut, causeRoute:
		return fleet.Outcome{Ending: fleet.Aborted}
	}
	return fleet.Outcome{Ending: fleet.Moved}
}

// run makes attempts until one has begun its answer or no endpoint is left.
func (c *call) run(lease *fleet.Lease) {
	var held *attempt // an answer that says to try elsewhere, passed on if nobody else has a better one
	defer func() {
		if held != nil {
			held.end(fleet.Outcome{Ending: fleet.Moved})
		}
	}()
	var last cause
	for n := 1; lease != nil; n++ {
		a := c.send(lease, n >= c.set.MaxAttempts)
		k, next := c.settle(a)
		if k == causeNone {
			if held != nil {
				held.end(fleet.Outcome{Ending: fleet.Moved})
				held = nil
			}
			c.deliver(a)
			return
		}
		if last = k; k == causeStatus {
			if held != nil {
				held.end(fleet.Outcome{Ending: fleet.Moved})
			}
			held = a
		}
		if k.final() {
			c.fail(k.error(c))
			return
		}
		if lease = next; lease != nil {
			c.req.Moved(string(k))
		}
	}
	if held != nil {
		a := held
		held = nil
		c.deliver(a)
		return
	}
	c.fail(last.error(c))
}

// settle decides what becomes of an attempt after its wait: causeNone means that its answer is delivered; otherwise its
// lease is done, and next is where the request goes from here, nil for nowhere.
func (c *call) settle(a *attempt) (k cause, next *fleet.Lease) {
	a.mu.Lock()
	started, why := a.phase == begun, a.why
	c.trouble = trouble{a.lease.Endpoint.Name, why.words(a.said)}
	next, a.next = a.next, nil
	a.mu.Unlock()
	if !started {
		c.countAbort(why)
		a.end(why.outcome())
		if why == causeBroken {
			c.req.Want.Suspect = true
			c.breaks++
		}
		switch {
		case why.final() && next != nil:
			next.Done(c.g.now(), fleet.Outcome{Ending: fleet.Moved})
			next = nil
		case !why.final() && next == nil && !a.final && c.breaks < maxBreaks:
			next = c.req.Pick(c.current != nil)
		}
		return why, next
	}
	return c.moveOn(a)
}

// moveOn sends a request elsewhere whose answer has a status that says to, if there is anywhere else: settle's results.
func (c *call) moveOn(a *attempt) (k cause, next *fleet.Lease) {
	if a.resp.StatusCode == http.StatusNotFound && c.req.Want.Adapter != "" {
		c.req.Pool.Disown(a.lease.Endpoint.Name, c.req.Want.Adapter)
	}
	if a.final || !c.elsewhere(a.resp.StatusCode) {
		return causeNone, nil
	}
	ending := statusEnding(a.resp.StatusCode)
	if ending == fleet.Finished {
		ending = fleet.Moved
	}
	if ending == fleet.Failed {
		c.req.Want.Suspect = true
	}
	if next = c.req.Pick(c.current != nil); next == nil {
		return causeNone, nil
	}
	a.lease.Done(c.g.now(), fleet.Outcome{Ending: ending})
	a.turn(begun, held)
	return causeStatus, next
}

// maxBreaks is how many engines may break a request off before their first byte until it is answered with an error: it
// may be the request that makes them crash, and must not get to all of them.
const maxBreaks = 2

// statusEnding is how an answer with this status counts for its endpoint. Whoever says that it is full, or still loading,
// has no fault.
func statusEnding(status int) fleet.Ending {
	switch {
	case status == http.StatusTooManyRequests, status == http.StatusServiceUnavailable:
		return fleet.Full
	case status >= http.StatusInternalServerError:
		return fleet.Failed
	}
	return fleet.Finished
}

// elsewhere reports whether a status says that another endpoint may do better: this one is full, loading or itself a
// gateway without an endpoint; or it doesn't know a response that another one stored, or an adapter that the pool should have.
func (c *call) elsewhere(status int) bool {
	switch status {
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	case http.StatusNotFound:
		return c.req.Path.Stateful || c.req.Lost || c.req.Want.Adapter != ""
	}
	return false
}

func (c *call) countAbort(k cause) {
	if k == causeClient {
		c.req.Aborted()
	}
}

// error is what a client is told when no attempt has begun.
func (k cause) error(c *call) *openai.Error {
	switch k {
	case causeClient:
		return openai.ClientGone.Errorf("the client left before the answer began")
	case causeFirst:
		return openai.TimedOut.Errorf("no endpoint of pool %q sent a first byte within %v", c.req.Pool.Name(), c.set.FirstByteTimeout)
	case causeRoute:
		return openai.TimedOut.Errorf("the request took longer than the %v that pool %q allows", c.req.Options().RouteTimeouts[c.req.Pool.Name()], c.req.Pool.Name())
	case causeCut:
		e := openai.ShuttingDown.Errorf("the gateway is stopping; try again at another, or once it is back")
		e.RetryAfter = front.RetryAfter
		return e
	}
	last := "the last"
	if !c.req.Options().HideEndpoint {
		last += ", " + c.trouble.endpoint + ","
	}
	return openai.UpstreamFailed.Errorf("no endpoint of pool %q could take the request (%d tried); %s failed before its first byte: %s",
		c.req.Pool.Name(), len(c.req.Want.Tried), last, c.trouble.said)
}
