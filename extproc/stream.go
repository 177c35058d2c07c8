package extproc

import (
	"cmp"
	"context"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"

	"github.com/sluice-gateway/sluice/fleet"
	"github.com/sluice-gateway/sluice/front"
	"github.com/sluice-gateway/sluice/openai"
	"github.com/sluice-gateway/sluice/route"
)

// phase is how far a request has come.
type phase uint8

const (
	beginning phase = iota
	sending         // its headers are here, its body is not
	sent            // it is on its way to an endpoint
	answering       // the answer's headers are here
)

// stream is one request, used by its own goroutine only, but for what mu guards.
type stream struct {
	p    *Picker
	grpc grpc.ServerStream
	set  *Options
	in   message

	req    front.Request
	begun  bool
	mode   bodyMode
	phase  phase
	parts  mem.BufferSlice // of the body so far
	size   int
	header http.Header // that the client sent
	// told says that Envoy told its modes, length that the client told the body's length, head that it wants no body.
	told, length, head bool
	answerMode         bodyMode
	lease              *fleet.Lease
	// see says that the answer's body is to be seen; override is what Envoy has to be asked for, of that or else.
	see      bool
	override override
	answer   seen
	status   int
	ending   fleet.Ending

	mu         sync.Mutex
	working    bool // Envoy waits for an answer
	workedFrom time.Duration
	asked      bool // for more time
	awaiting   bool // the answer's headers, from the endpoint
	gaveUp     bool // that
	over       bool
}

// take does with a message what it asks for. The stream goes on unless an error or an immediate answer has ended it.
// What comes twice, as the last piece of a body does with some releases, or late, has been answered.
func (s *stream) take() (on bool, err error) {
	m := &s.in
	if m.unheard {
		return false, status.Error(codes.FailedPrecondition, "observability_mode takes no answers, so nothing can be picked")
	}
	switch m.kind {
	case requestHeaders:
		if s.phase == beginning {
			return s.begin()
		}
	case requestBody:
		if s.phase == sending {
			return s.piece()
		}
	case requestTrailers:
		return s.trailers()
	case responseHeaders:
		if s.phase != answering {
			return true, s.answered()
		}
	case responseBody:
		return true, s.answerPiece()
	case responseTrailers:
		s.endAnswer()
		return true, s.send(&answer{kind: responseTrailers})
	}
	return true, nil
}

// trailers takes the request's trailers, which in full duplex end its body. If there is one, the headers' answer has
// replaced it, and Envoy takes none to the trailers.
func (s *stream) trailers() (on bool, err error) {
	switch {
	case s.phase == sending && s.mode != modeDuplex:
		return s.refuse(openai.InvalidRequest.Errorf("the request has trailers and no body"))
	case s.phase == sending:
		if on, err = s.whole(); err != nil || !on || s.size > 0 {
			return on, err
		}
	case s.phase != sent:
		return true, nil
	}
	return true, s.send(&answer{kind: requestTrailers})
}

// begin takes the request's headers.
func (s *stream) begin() (on bool, err error) {
	m := &s.in
	s.phase, s.mode, s.answerMode, s.told, s.header, s.head = sending, m.request, m.answer, m.announced, m.header, m.method == http.MethodHead
	if !s.told {
		s.mode = modeBuffered // whoever can do more says so
	}
	s.p.metrics.streams.WithLabelValues(s.mode.String()).Inc()
	path := m.path
	u, bad := url.ParseRequestURI(path)
	if bad == nil {
		path = u.Path
	}
	s.p.desk.Begin(&s.req, m.method, path, m.header)
	s.req.Secure = m.scheme == "https"
	if bad == nil && (path == front.PathLive || path == front.PathReady) {
		return s.health(path)
	}
	s.begun = true
	if bad != nil {
		return s.refuse(openai.InvalidRequest.Errorf("the request's path can't be read"))
	}
	if e := s.req.Admit(); e != nil {
		return s.refuse(e)
	}
	if s.req.Path.Operation == "models" {
		list, e := s.req.Models()
		if e != nil {
			return s.refuse(e)
		}
		return s.reply(http.StatusOK, "application/json", list)
	}
	return s.admitted()
}

// admitted takes the headers of a request that wants an endpoint.
func (s *stream) admitted() (on bool, err error) {
	m := &s.in
	if e := s.req.CheckHeader(); e != nil {
		return s.refuse(e)
	}
	if m.hinted {
		s.req.Subset = slices.Clip(m.subset)
		if s.req.Subset == nil {
			s.req.Subset = []string{} // nil would be all
		}
	}
	s.choose()
	if m.end {
		return s.whole()
	}
	if e := s.checkBody(); e != nil {
		return s.refuse(e)
	}
	if s.mode == modeDuplex {
		return true, nil // headers go on with what the body says
	}
	return true, s.send(&answer{kind: requestHeaders, mode: s.override})
}

// choose decides whether the answer's body is to be seen. Beside a request in full duplex Envoy takes no other mode.
func (s *stream) choose() {
	s.see = s.answerMode != modeNone
	if s.told && s.mode == modeBuffered && !s.see && !s.set.SelectOnly {
		stores := s.req.Path.Operation == "responses" && !s.req.Path.Stateful // its identifier stands in the answer
		if stores || s.set.SeeAnswers > 0 && float64(route.HashName(s.req.ID)>>11)/(1<<53) < s.set.SeeAnswers {
			s.see, s.override = true, override{request: s.mode, answer: modeStreamed}
		}
	}
	s.req.Unseen = !s.see
}

// checkBody refuses bodies that could not be taken in, before they come.
func (s *stream) checkBody() *openai.Error {
	if s.mode != modeBuffered && s.mode != modeDuplex {
		s.req.Complain(s.grpc.Context(), "Envoy sends bodies in a way that can't be read whole", "request_body_mode "+s.mode.String(), "", http.StatusInternalServerError)
		return openai.Internal.Errorf("the gateway is set up wrongly: its request_body_mode is %s, and the picker needs BUFFERED or FULL_DUPLEX_STREAMED", s.mode)
	}
	lengths := s.header["Content-Length"]
	s.length = len(lengths) > 0
	if s.length {
		n, err := strconv.ParseInt(lengths[0], 10, 64)
		if limit := s.req.Options().MaxBodyBytes; err == nil && n > limit && limit > 0 {
			return openai.TooLarge.Errorf("request body is over the limit: %d bytes announced, %d allowed", n, limit)
		}
	}
	return nil
}

// piece takes a piece of the request's body, or all of it.
func (s *stream) piece() (on bool, err error) {
	m := &s.in
	if e := s.req.Expect(int64(m.size)); e != nil {
		return s.refuse(e)
	}
	if s.parts == nil {
		s.parts = m.body
	} else {
		s.parts = append(s.parts, m.body...)
	}
	m.body = nil
	s.size += m.size
	if m.end || s.told && s.mode == modeBuffered {
		return s.whole()
	}
	if s.mode == modeDuplex {
		return true, nil
	}
	s.mode = modeStreamed
	return s.refuse(s.checkBody())
}

// whole has the endpoint picked, now that the request is here.
func (s *stream) whole() (on bool, err error) {
	s.startWork()
	if s.parts != nil || !s.in.end || s.in.kind != requestHeaders {
		if e := s.hold(); e != nil {
			return s.refuse(e)
		}
	}
	if s.set.SelectOnly {
		if e := s.req.Understand(); e != nil {
			return s.refuse(e)
		}
		return true, s.pass()
	}
	lease, e := s.req.Decide()
	if e != nil {
		return s.refuse(e)
	}
	s.lease = lease
	return true, s.pass()
}

// hold gives the body to the request.
func (s *stream) hold() *openai.Error {
	body := s.parts
	if s.mode == modeDuplex {
		body.Ref() // it is sent back, too
		body = slices.Clone(body)
	} else {
		s.parts = nil
	}
	parts := make([][]byte, len(body))
	for i, b := range body {
		parts[i] = b.ReadOnlyData()
	}
	return s.req.HoldBody(parts, body.Free)
}

// pass lets the request go on.
func (s *stream) pass() error {
	a := answer{kind: requestHeaders, reroute: true, set: make([]header, 0, 8)}
	s.headers(&a)
	if s.req.Rewritten {
		s.parts.Free()
		s.parts = copied(s.req.Body)
		if s.length {
			a.set = append(a.set, header{"content-length", strconv.FormatInt(s.req.Body.Len(), 10)})
		}
	}
	body := s.parts
	s.parts = nil
	blocks, ends := s.blocks()
	s.req.Free()
	s.req.Want.Blocks, s.req.Want.Ends = blocks, ends
	s.phase = sent
	defer s.await()
	switch {
	case s.in.kind == requestHeaders:
		a.mode = s.override
		return s.send(&a)
	case s.mode != modeDuplex:
		a.kind, a.replaces, a.body = requestBody, s.req.Rewritten, body
		return s.send(&a)
	}
	if s.in.kind == requestTrailers {
		// Sent back in pieces, a body that trailers follow reaches its endpoint twice where the route has retries: Envoy
		// holds the pieces for them, and passes what it holds on once more with the trailers.
		a.replaces, a.body = len(body) > 0, body
		return s.send(&a)
	}
	if err := s.send(&a); err != nil {
		body.Free()
		return err
	}
	return s.echo(requestBody, body, true)
}

// copied is what goes on in place of what came. It lies in memory that others hold, so it is copied, which is a small
// part of what Envoy does with it.
func copied(body *openai.Body) mem.BufferSlice {
	var out mem.BufferSlice
	r := body.Reader()
	defer func() { _ = r.Close() }()
	pool := mem.DefaultBufferPool()
	for left := body.Len(); left > 0; {
		p := pool.Get(int(min(left, maxEcho)))
		n, err := io.ReadFull(r, *p)
		out, left = append(out, mem.NewBuffer(p, pool)), left-int64(n)
		if err != nil {
			break // the body is in memory: there is nothing that could fail
		}
	}
	return out
}

// blocks are the prompt's, kept for Pool.Move, which may be told only where there is somewhere to move to.
func (s *stream) blocks() ([]uint64, []int32) {
	if s.lease == nil || s.lease.Fallbacks[0] == "" {
		return nil, nil
	}
	return slices.Clone(s.req.Want.Blocks), slices.Clone(s.req.Want.Ends)
}

// maxEcho is the longest piece of a body that is sent back, in bytes: with its frame it is to stay below 64 KiB.
const maxEcho = 62 << 10

// echo sends a body back in pieces of the buffers it came in, which are given back. last says that nothing follows it.
func (s *stream) echo(k kind, body mem.BufferSlice, last bool) error {
	for n, i := 0, 0; i < len(body) || n == 0 && last; n++ {
		a := answer{kind: k, streamed: true}
		for size := 0; i < len(body) && (size == 0 || size+body[i].Len() <= maxEcho); {
			b := body[i]
			if b.Len() > maxEcho {
				a.body, body[i] = append(a.body, b.Slice(0, maxEcho)), b.Slice(maxEcho, b.Len())
				b.Free()
				break
			}
			a.body, size = append(a.body, b), size+b.Len()
			i++
		}
		a.end = last && i == len(body)
		if err := s.send(&a); err != nil {
			body[i:].Free()
			return err
		}
	}
	return nil
}

// headers are what an engine, or who is in front of one, is told beside what the client sent, and what of that is not.
func (s *stream) headers(a *answer) {
	r := &s.req
	model := ""
	if r.Pool != nil {
		model = r.Pool.Config().Model
	}
	if s.lease != nil {
		for _, h := range r.EngineHeaders(&s.lease.Endpoint, nil) {
			if h.Name != front.HeaderRequestID || s.header.Get(h.Name) != h.Value {
				a.set = append(a.set, header{strings.ToLower(h.Name), h.Value})
			}
		}
		model = cmp.Or(model, r.Pool.Name())
		a.destination, a.reason = destination(s.lease), s.lease.Reason
		a.set = append(a.set, header{front.WireDestination, a.destination})
	} else if r.Model != "" {
		a.set = append(a.set, header{front.WireModel, r.Model})
	}
	if model != "" {
		a.set = append(a.set, header{front.WireBaseModel, model})
	}
	a.remove = s.removed(a.set)
}

// destination lists where the request may go, best first.
func destination(l *fleet.Lease) string {
	list := l.Endpoint.Address()
	for _, f := range l.Fallbacks {
		if f != "" {
			list += "," + f
		}
	}
	return list
}

// answered takes the answer's headers.
func (s *stream) answered() error {
	if !s.awaited() {
		return nil // the client has been told already
	}
	m := &s.in
	s.phase = answering
	s.status, _ = strconv.Atoi(m.status)
	a := answer{kind: responseHeaders}
	if s.lease != nil {
		s.judge()
	}
	switch {
	case s.lease != nil && !ownFault(m.details):
		for _, h := range s.req.AnswerHeaders(s.lease, nil) {
			a.set = append(a.set, header{strings.ToLower(h.Name), h.Value})
		}
		s.req.Ended.Endpoint = s.lease.Endpoint.Name
	case s.begun:
		if s.lease != nil {
			s.unserved()
		}
		a.set = append(a.set, header{front.WireRequestID, s.req.ID})
	}
	if c := s.req.Cookie; c != nil {
		a.add = header{"set-cookie", c.String()}
	}
	s.answer.start(s)
	if m.end {
		s.endAnswer()
	}
	return s.send(&a)
}

// end lowers every counter, once, whatever happened before.
func (s *stream) end() {
	s.mu.Lock()
	s.working, s.awaiting, s.over = false, false, true // nobody may send any more
	s.mu.Unlock()
	s.in.free()
	s.parts.Free()
	s.parts = nil
	if s.begun {
		s.settle()
		s.req.End(context.WithoutCancel(s.grpc.Context()))
	}
}

// refuse answers the client with an error of the gateway's own.
func (s *stream) refuse(e *openai.Error) (on bool, err error) {
	if e.Status >= http.StatusInternalServerError {
		s.req.Complain(s.grpc.Context(), "request failed", e.Code, "", e.Status)
	}
	a := s.refusal(e)
	s.req.Ended.Status = e.Status
	return false, s.send(&a)
}

// refusal is an error of the gateway's own as an answer.
func (s *stream) refusal(e *openai.Error) answer {
	a := answer{details: e.Code}
	for name, values := range e.Header() {
		a.set = append(a.set, header{strings.ToLower(name), values[0]})
	}
	s.local(&a, e.Status, e.JSON())
	return a
}

// reply answers the client with something of the gateway's own.
func (s *stream) reply(status int, contentType string, body []byte) (on bool, err error) {
	a := answer{details: "gateway", set: []header{{"content-type", contentType}}}
	s.local(&a, status, body)
	s.req.Ended.Status = status
	return false, s.send(&a)
}

// local makes an answer one that the client gets at once.
func (s *stream) local(a *answer, status int, body []byte) {
	a.status, a.content = status, body
	if s.head {
		a.content = nil
	}
	a.set = append(a.set, header{front.WireRequestID, s.req.ID})
}

// health answers whoever watches the gateway.
func (s *stream) health(path string) (on bool, err error) {
	if path == front.PathLive {
		return s.reply(http.StatusOK, "text/plain; charset=utf-8", []byte("ok\n"))
	}
	body, ok := s.p.readiness()
	status := http.StatusOK
	if !ok {
		status = http.StatusServiceUnavailable
	}
	return s.reply(status, "application/json", body)
}
