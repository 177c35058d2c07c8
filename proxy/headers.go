package proxy

import (
	"crypto/rand"
	"net/http"
	"net/textproto"
	"slices"
	"strings"

	"github.com/sluice-gateway/sluice/fleet"
)

// Headers by which the gateway and its clients speak of routing, in canonical form.
const (
	headerRequestID = "X-Request-Id"
	headerModel     = "X-Gateway-Model-Name"
	headerServed    = "X-Gateway-Destination-Endpoint-Served"
	headerReason    = "X-Gateway-Routing-Reason"
)

// maxRequestID is the longest x-request-id in bytes that is kept.
const maxRequestID = 512

// takeID keeps the client's x-request-id or makes one. It identifies the request to people only: no state goes by it,
// so two requests with one id don't meet.
func (c *call) takeID() {
	if v := c.r.Header[headerRequestID]; len(v) > 0 && v[0] != "" && len(v[0]) <= maxRequestID {
		c.id = v[0]
	} else {
		c.id = rand.Text()
	}
	c.w.Header()[headerRequestID] = []string{c.id}
}

// hop reports headers that concern one connection only.
func hop(name string) bool {
	switch name {
	case "Connection", "Proxy-Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "Te", "Trailer",
		"Transfer-Encoding", "Upgrade":
		return true
	}
	return false
}

// reserved reports headers that only a gateway may send: where a request goes, its priority and its fairness. Those
// that end in -Host-Port and -Hosts-Ports make an engine's sidecar call the address they hold.
func reserved(name string) bool {
	if len(name) < 2 || name[:2] != "X-" {
		return false
	}
	switch name {
	case "X-Prefiller-Host-Port", "X-Encoder-Hosts-Ports", "X-Data-Parallel-Host-Port", "X-Kv-Cache-Source-Host-Port":
		return true
	}
	for _, prefix := range [...]string{"X-Gateway-", "X-Llm-D-", "X-Slo-", "X-Envoy-"} {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}

// named reports whether one of the Connection header's values names the header.
func named(connection []string, name string) bool {
	for _, v := range connection {
		for option := range strings.SplitSeq(v, ",") {
			if textproto.CanonicalMIMEHeaderKey(textproto.TrimString(option)) == name {
				return true
			}
		}
	}
	return false
}

// engineHeader makes the headers for one attempt. It starts from what the client sent each time, so that every attempt
// sees the same, and shares the values, which nobody writes to.
func (c *call) engineHeader(e *fleet.Endpoint) http.Header {
	in := c.r.Header
	h := make(http.Header, len(in)+4)
	connection := in["Connection"]
	for name, values := range in {
		if hop(name) || !c.set.TrustHeaders && reserved(name) || len(connection) > 0 && named(connection, name) {
			continue
		}
		h[name] = values
	}
	delete(h, "Expect") // answered here, by reading the body
	// A stream must be readable to be ended well and counted, and engines compress nothing else worth having.
	delete(h, "Accept-Encoding")
	delete(h, headerModel)
	if c.model != "" {
		h[headerModel] = []string{c.model}
	}
	h[headerRequestID] = []string{c.id}
	if e.APIKey != "" {
		h["Authorization"] = []string{"Bearer " + e.APIKey}
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
	connection := a.resp.Header["Connection"]
	for name, values := range a.resp.Header {
		if hop(name) || reserved(name) || len(connection) > 0 && named(connection, name) {
			continue
		}
		out[name] = values
	}
	if s := out["Server"]; len(s) > 1 {
		out["Server"] = s[:1] // the field is no list
	}
	out[headerRequestID] = []string{c.id}
	if !c.set.HideEndpoint {
		out[headerServed] = []string{a.lease.Endpoint.Name}
		if a.lease.Reason != "" {
			out[headerReason] = []string{a.lease.Reason}
		}
	}
	for name := range a.resp.Trailer {
		out["Trailer"] = append(out["Trailer"], name)
	}
}

// trailers copies what came after the engine's body, announced or not.
func (c *call) trailers(a *attempt) {
	out := c.w.Header()
	announced := out["Trailer"]
	for name, values := range a.resp.Trailer {
		if hop(name) || reserved(name) {
			continue
		}
		if !slices.Contains(announced, name) {
			name = http.TrailerPrefix + name
		}
		out[name] = values
	}
}
