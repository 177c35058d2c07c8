package proxy

import (
	"cmp"
	"errors"
	"io"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/sluice-gateway/sluice/fleet"
	"github.com/sluice-gateway/sluice/front"
	"github.com/sluice-gateway/sluice/openai"
)

// call is one request on its way through, used by its own goroutine only, except where attempt says otherwise.
type call struct {
	g   *Gateway
	w   http.ResponseWriter
	r   *http.Request
	req front.Request
	set *Options // with defaults filled in; those of both doors are the request's own

	unread   bool          // the client may be sending a body that nobody wants any longer
	breaks   int           // endpoints that broke it off before their first byte
	from     time.Duration // when limits on the answer begin
	current  *attempt
	trouble  trouble
	broken   bool // the connection must not look as if the answer were whole
	finished bool
}

// serve reads the request, finds its pool and has it answered.
func (c *call) serve() {
	e := c.req.CheckHeader()
	if e == nil {
		e = c.read()
	}
	if e != nil {
		c.fail(e)
		return
	}
	c.from = c.g.now()
	lease, e := c.req.Decide()
	if e != nil {
		c.fail(e)
		return
	}
	c.run(lease)
}

// fail answers with an error of the gateway's own, before anything else was written.
func (c *call) fail(e *openai.Error) {
	c.req.Ended.Status = e.Status
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
		return nil
	}
	src := io.Reader(c.r.Body)
	if c.set.IdleTimeout > 0 {
		p := &patient{r: c.r.Body, control: http.NewResponseController(c.w), limit: c.set.IdleTimeout, began: time.Now()}
		c.g.late.Add(p, lateAfter)
		src = p
	}
	err := c.req.ReadBody(src, c.r.ContentLength)
	if p, ok := src.(*patient); ok {
		p.done(err == nil)
	}
	switch {
	case err == nil:
		c.unread = false
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

// finish lowers every counter, once, whatever happened before.
func (c *call) finish() {
	if c.finished {
		return
	}
	c.finished = true
	if a := c.current; a != nil {
		a.end(fleet.Outcome{Ending: fleet.Aborted})
	}
	c.req.End(c.r.Context())
}
