package proxy

import (
	"crypto/rand"
	"net/http"
	"net/textproto"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-gateway/sluice/fleet"
	"github.com/sluice-gateway/sluice/openai"
)

// Headers by which the gateway and its clients speak of routing, in canonical form.
const (
	headerRequestID = "X-Request-Id"
	headerModel     = "X-Gateway-Model-Name"
	headerServed    = "X-Gateway-Destination-Endpoint-Served"
	headerReason    = "X-Gateway-Routing-Reason"
	// headerRank names a data-parallel rank to vLLM and SGLang.
	headerRank = "X-Data-Parallel-Rank"
)

// maxRequestID is the longest x-request-id in bytes that is kept.
const maxRequestID = 128

// takeID keeps the client's x-request-id or makes one. It identifies the request to people only: no state goes by it,
// so two requests with one id don't meet.
func (c *call) takeID() {
	if v := c.r.Header[headerRequestID]; len(v) > 0 && usableID(v[0]) {
		c.id = v[0]
	} else {
		c.id = rand.Text()
	}
	c.w.Header()[headerRequestID] = []string{c.id}
}

// usableID reports whether an id is short and made of the characters of UUIDs, of trace ids, of base64 and of ids like
// req_1: what goes into answers, engines' logs and records must not be a client's free text.
func usableID(id string) bool {
	if id == "" || len(id) > maxRequestID {
		return false
	}
	for i := range len(id) {
		switch b := id[i]; {
		case 'a' <= b && b <= 'z', 'A' <= b && b <= 'Z', '0' <= b && b <= '9', strings.IndexByte("._:/+=@-", b) >= 0:
		default:
			return false
		}
	}
	return true
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
	case headerRank, "X-Prefiller-Host-Port", "X-Encoder-Hosts-Ports", "X-Data-Parallel-Host-Port", "X-Kv-Cache-Source-Host-Port":
		return true
	}
	for _, prefix := range [...]string{"X-Gateway-", "X-Llm-D-", "X-Slo-", "X-Envoy-"} {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}

// maxOptions bounds what a Connection header may name; nobody names more than a handful.
const maxOptions = 64

// options is the set of headers that a Connection header names, in canonical form. It reports false when there are more
// than maxOptions.
func options(connection []string) (map[string]bool, bool) {
	var named map[string]bool
	n := 0
	for _, v := range connection {
		for option := range strings.SplitSeq(v, ",") {
			if n++; n > maxOptions {
				return nil, false
			}
			option = textproto.TrimString(option)
			if option == "" || strings.EqualFold(option, "close") || strings.EqualFold(option, "keep-alive") {
				continue // what nearly every client says, without a set for it
			}
			if named == nil {
				named = make(map[string]bool)
			}
			named[textproto.CanonicalMIMEHeaderKey(option)] = true
		}
	}
	return named, true
}

// checkHeader refuses headers by which the gateway could read a request in another way than its engine, and lists of
// connection options that are long for no good reason.
func (c *call) checkHeader() *openai.Error {
	var ok bool
	if c.options, ok = options(c.r.Header["Connection"]); !ok {
		return openai.InvalidRequest.Errorf("the Connection header names more than %d options", maxOptions)
	}
	for _, name := range [...]string{"Content-Type", "Content-Encoding"} {
		values := c.r.Header[name]
		for _, v := range values {
			if v != values[0] {
				e := openai.InvalidRequest.Errorf("%s is given twice with different values", name)
				e.Param = name
				return e
			}
		}
	}
	return nil
}

// engineHeader makes the headers for one attempt. It starts from what the client sent each time, so that every attempt
// sees the same, and shares the values, which nobody writes to.
func (c *call) engineHeader(e *fleet.Endpoint) http.Header {
	in := c.r.Header
	h := make(http.Header, len(in)+4)
	for name, values := range in {
		if hop(name) || !c.set.TrustHeaders && reserved(name) || c.options[name] {
			continue
		}
		h[name] = values
	}
	if values := h["Content-Type"]; len(values) > 1 {
		h["Content-Type"] = values[:1] // checkHeader has seen that they are equal
	}
	delete(h, "Expect") // answered here, by reading the body
	// A stream must be readable to be ended well and counted, and engines compress nothing else worth having.
	delete(h, "Accept-Encoding")
	delete(h, headerModel)
	if c.model != "" {
		h[headerModel] = []string{c.model}
	}
	h[headerRequestID] = []string{c.id}
	if e.Ranks > 0 {
		h[headerRank] = []string{strconv.Itoa(rankAt(e))}
	}
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

// rankAt is how the endpoint's rank is named in a request to its address: vLLM counts from 0 at each address
// (vllm/v1/engine/input_processor.py), SGLang over the whole deployment.
func rankAt(e *fleet.Endpoint) int {
	if e.Engine == "sglang" {
		return e.Rank
	}
	return e.Rank - e.FirstRank
}

// noUserAgent keeps the transport from naming itself; it is never written to.
var noUserAgent = []string{""}

// answerHeader copies the engine's headers to the client's answer.
func (c *call) answerHeader(a *attempt) {
	out := c.w.Header()
	for name, values := range a.resp.Header {
		if hop(name) || reserved(name) || a.options[name] {
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
	out[headerRequestID] = []string{c.id}
	if !c.set.HideEndpoint {
		out[headerServed] = []string{a.lease.Endpoint.Name}
		if a.lease.Reason != "" {
			out[headerReason] = []string{a.lease.Reason}
		}
	}
	if c.cookie != nil {
		out["Set-Cookie"] = append(slices.Clip(out["Set-Cookie"]), c.cookie.String())
	}
	for name := range a.resp.Trailer {
		if !passes(name) {
			continue
		}
		out["Trailer"] = append(out["Trailer"], name)
	}
}

// passes reports whether an engine's trailer goes on to the client.
func passes(name string) bool { return !hop(name) && !reserved(name) && name != headerRequestID }

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
