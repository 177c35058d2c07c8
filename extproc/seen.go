package extproc

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/sluice-gateway/sluice/fleet"
	"github.com/sluice-gateway/sluice/openai"
)

// seen is what is seen of an answer's body, if it is seen.
type seen struct {
	usage *openai.UsageReader // nil where nothing is to be read
	sse   bool
	begun bool
	ended bool
}

// judge takes what the answer's headers tell of where it comes from: whether that is the endpoint that was picked, and
// how the request counts there.
func (s *stream) judge() {
	m, r := &s.in, &s.req
	if m.served != "" {
		how := fleet.Failed
		if ownFault(m.details) {
			how = localEnding(m.details)
		}
		lease, there := r.Pool.Move(s.p.now(), s.lease, m.served, how, &r.Want)
		if !there || lease != s.lease {
			r.Moved("retried")
		}
		s.lease = lease
		if !there {
			s.lease = nil
			return
		}
	}
	switch {
	case ownFault(m.details):
		s.ending = localEnding(m.details)
	case s.status == http.StatusTooManyRequests, s.status == http.StatusServiceUnavailable:
		s.ending = fleet.Full
	case s.status >= http.StatusInternalServerError:
		s.ending = fleet.Failed
	case s.status == http.StatusNotFound && r.Want.Adapter != "":
		r.Pool.Disown(s.lease.Endpoint.Name, r.Want.Adapter)
	}
}

// ownFault reports whether Envoy answers itself, as far as it says why it does.
func ownFault(details string) bool { return details != "" && details != "via_upstream" }

// noEndpoint is how Envoy's details begin where it knows no endpoint to try.
const noEndpoint = "no_healthy_upstream"

// unserved takes what is told of a request that was picked and that no endpoint has answered.
func (s *stream) unserved() {
	switch m := &s.in; {
	case m.served != "": // it was tried
		s.req.Ended.Endpoint = s.lease.Endpoint.Name
	case strings.HasPrefix(m.details, noEndpoint):
		s.p.warnOfRoute(s.req.Pool.Name())
	}
}

// routeWarnings is the time between two warnings that Envoy has nowhere to send what was picked.
const routeWarnings = time.Minute

// warnOfRoute says that Envoy has nowhere to send a pool's requests, once in a while.
func (p *Picker) warnOfRoute(pool string) {
	now, last := int64(p.now()), p.warned.Load()
	if last != 0 && now-last < int64(routeWarnings) || !p.warned.CompareAndSwap(last, max(now, 1)) {
		return
	}
	p.log.Warn("Envoy has no route to a pool's endpoints; if it stays so, its configuration was written before the pool was there: write it anew with sluice envoy", "pool", pool)
}

// localEnding is how a request counts at its endpoint that Envoy has answered itself, by its response code details.
func localEnding(details string) fleet.Ending {
	switch {
	case strings.Contains(details, "connection_failure"), strings.Contains(details, "connection_timeout"):
		return fleet.Refused
	case strings.HasPrefix(details, "upstream_reset"), strings.HasPrefix(details, "upstream_per_try"):
		return fleet.Failed
	case strings.Contains(details, "timeout"):
		return fleet.Aborted
	}
	return fleet.Moved
}

// start prepares for the answer's body.
func (a *seen) start(s *stream) {
	h := s.in.header
	code := h.Get("Content-Encoding")
	if !s.see || s.lease == nil || s.status >= 300 || code != "" && !strings.EqualFold(code, "identity") {
		return
	}
	kind := h.Get("Content-Type")
	if a.sse = strings.HasPrefix(kind, "text/event-stream"); a.sse || strings.HasPrefix(kind, "application/json") {
		a.usage, _ = s.p.readers.Get().(*openai.UsageReader)
		a.usage.Reset(a.sse)
	}
}

// answerPiece takes a piece of the answer's body.
func (s *stream) answerPiece() error {
	m, a := &s.in, &s.answer
	if s.lease != nil && m.size > 0 {
		if !a.begun {
			s.answerBegins()
		}
		s.lease.Progress(s.p.now())
		if a.usage != nil {
			for _, b := range m.body {
				_, _ = a.usage.Write(b.ReadOnlyData()) // never an error
			}
		}
	}
	if m.end {
		s.endAnswer()
	}
	if s.answerMode != modeDuplex {
		return s.send(&answer{kind: responseBody})
	}
	body := m.body
	m.body = nil
	return s.echo(responseBody, body, m.end)
}

// answerBegins notes the first bytes of an answer's body.
func (s *stream) answerBegins() {
	s.answer.begun = true
	s.p.metrics.seen.Inc()
	if s.status >= 300 {
		return // an error comes fast and says nothing of speed
	}
	if s.answer.sse || !s.req.Want.Streamed {
		s.lease.FirstByte(s.p.now())
	}
	if s.answer.sse {
		s.req.FirstByte()
	}
	if s.answer.usage != nil {
		s.req.Store(s.in.body[0].ReadOnlyData(), s.lease)
	}
}

// endAnswer notes that the answer is whole.
func (s *stream) endAnswer() {
	s.answer.ended = true
	if s.answer.usage != nil {
		_ = s.answer.usage.Close() // never an error
	}
}

// settle ends the lease, and says how the request ended.
func (s *stream) settle() {
	e := &s.req.Ended
	o := fleet.Outcome{Ending: s.ending}
	switch {
	case s.gaveUp:
		o.Ending, e.Status = fleet.Moved, openai.UpstreamFailed.Status()
		s.req.Complain(context.WithoutCancel(s.grpc.Context()), "request failed", "its endpoint makes no progress", s.lease.Endpoint.Name, e.Status)
	case e.Status != 0: // answered here
		o.Ending = fleet.Aborted
	case s.phase != answering:
		o.Ending = fleet.Aborted
		e.Status = openai.ClientGone.Status()
		if s.req.Pool != nil {
			s.req.Aborted()
		}
	default:
		// Whether an answer that nobody sees came to its end can't be told: Envoy ends the stream in the same way.
		e.Status, e.Whole = s.status, s.answer.ended || !s.see
		if !e.Whole && o.Ending == fleet.Finished {
			o.Ending = fleet.Aborted
			if s.req.Pool != nil {
				s.req.Aborted()
			}
		}
	}
	if u := s.answer.usage; u != nil {
		if s.lease != nil {
			s.req.BookUsage(u, &o, s.lease.Cached)
		}
		s.p.readers.Put(u)
		s.answer.usage = nil
	}
	if s.lease != nil {
		s.lease.Done(s.p.now(), o)
	}
}

// removed lists the client's headers that don't go on, in the form in which Envoy has them. Those that are set stand in
// their place anyway.
func (s *stream) removed(set []header) []string {
	var list []string
	for name := range s.header {
		if !s.req.Drops(name) || ofEnvoy(name) {
			continue
		}
		lower := strings.ToLower(name)
		replaced := false
		for _, h := range set {
			replaced = replaced || h.name == lower
		}
		if !replaced {
			list = append(list, lower)
		}
	}
	return list
}

// ofEnvoy reports headers that are Envoy's to take away: by which it frames messages, and is told things. The others
// that concern a connection it passes on.
func ofEnvoy(name string) bool {
	switch name {
	case "Connection", "Proxy-Connection", "Keep-Alive", "Transfer-Encoding", "Upgrade", "Trailer":
		return true
	}
	return strings.HasPrefix(name, "X-Envoy-")
}
