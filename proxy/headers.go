package proxy

import (
	"net/http"
	"slices"

	"github.com/sluice-gateway/sluice/fleet"
	"github.com/sluice-gateway/sluice/front"
)

// engineHeader makes the headers for one attempt. It starts from what the client sent each time, so that every attempt
// sees the same, and shares the values, which nobody writes to.
func (c *call) engineHeader(e *fleet.Endpoint) http.Header {
	in := c.r.Header
	h := make(http.Header, len(in)+4)
	for name, values := range in {
		if !c.req.Drops(name) {
			h[name] = values
		}
	}
	if values := h["Content-Type"]; len(values) > 1 {
		h["Content-Type"] = values[:1] // CheckHeader has seen that they are equal
	}
	var room [4]front.Header
	for _, own := range c.req.EngineHeaders(e, room[:0]) {
		h[own.Name] = []string{own.Value}
	}
	if _, ok := h["User-Agent"]; !ok {
		h["User-Agent"] = noUserAgent
	}
	if _, ok := h["Idempotency-Key"]; !ok {
		// An empty list sends nothing and lets the transport try again when it meets a kept connection that the engine
		// has just closed.
		h["Idempotency-Key"] = nil
	}
	return h
}

// noUserAgent keeps the transport from naming itself; it is never written to.
var noUserAgent = []string{""}

// answerHeader copies the engine's headers to the client's answer.
func (c *call) answerHeader(a *attempt) {
	out := c.w.Header()
	for name, values := range a.resp.Header {
		if front.Hop(name) || front.Reserved(name) || a.options[name] {
			continue
		}
		out[name] = values
	}
	if s := out["Server"]; len(s) > 1 {
		out["Server"] = s[:1] // the field is no list
	}
	if _, ok := out["Content-Type"]; !ok {
		out["Content-Type"] = nil // or else the server guesses one
	}
	var room [3]front.Header
	for _, own := range c.req.AnswerHeaders(a.lease, room[:0]) {
		out[own.Name] = []string{own.Value}
	}
	if c.req.Cookie != nil {
		out["Set-Cookie"] = append(slices.Clip(out["Set-Cookie"]), c.req.Cookie.String())
	}
	for name := range a.resp.Trailer {
		if !passes(name) {
			continue
		}
		out["Trailer"] = append(out["Trailer"], name)
	}
}

// passes reports whether an engine's trailer goes on to the client.
func passes(name string) bool {
	return !front.Hop(name) && !front.Reserved(name) && name != front.HeaderRequestID
}

// trailers copies what came after the engine's body, announced or not.
func (c *call) trailers(a *attempt) {
	out := c.w.Header()
	announced := out["Trailer"]
	for name, values := range a.resp.Trailer {
		if !passes(name) {
			continue
		}
		if !slices.Contains(announced, name) {
			name = http.TrailerPrefix + name
		}
		out[name] = values
	}
}
