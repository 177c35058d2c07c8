package front

import (
	"crypto/rand"
	"net/textproto"
	"strconv"
	"strings"

	"github.com/sluice-gateway/sluice/fleet"
	"github.com/sluice-gateway/sluice/openai"
)

// Headers by which the gateway, its clients and its engines speak of routing, in canonical form.
const (
	HeaderRequestID = "X-Request-Id"
	HeaderModel     = "X-Gateway-Model-Name"
	HeaderServed    = "X-Gateway-Destination-Endpoint-Served"
	HeaderReason    = "X-Gateway-Routing-Reason"
	HeaderObjective = "X-Llm-D-Inference-Objective"
	// headerOlderObjective is the name that HeaderObjective had before.
	headerOlderObjective = "X-Gateway-Inference-Objective"
	// HeaderRank names a data-parallel rank to vLLM and SGLang.
	HeaderRank = "X-Data-Parallel-Rank"
)

// The same headers, and those by which only Envoy and a picker speak, in the form that HTTP/2 and Envoy's metadata
// have.
const (
	WireRequestID   = "x-request-id"
	WireModel       = "x-gateway-model-name"
	WireBaseModel   = "x-gateway-base-model-name"
	WireDestination = "x-gateway-destination-endpoint"
	WireSubset      = "x-gateway-destination-endpoint-subset"
	WireServed      = "x-gateway-destination-endpoint-served"
	WireReason      = "x-gateway-routing-reason"
)

// A Header is one line of a head.
type Header struct{ Name, Value string }

// maxRequestID is the longest x-request-id in bytes that is kept.
const maxRequestID = 128

// takeID keeps the client's x-request-id or makes one.
func (r *Request) takeID() {
	if v := r.header[HeaderRequestID]; len(v) > 0 && usableID(v[0]) {
		r.ID = v[0]
	} else {
		r.ID = rand.Text()
	}
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

// Hop reports headers that concern one connection only.
func Hop(name string) bool {
	switch name {
	case "Connection", "Proxy-Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "Te", "Trailer",
		"Transfer-Encoding", "Upgrade":
		return true
	}
	return false
}

// ReservedPrefixes are how the names of headers begin that only a gateway may send, in canonical form: to Envoy, where
// a request goes, its priority and its fairness.
func ReservedPrefixes() [4]string { return [...]string{"X-Envoy-", "X-Gateway-", "X-Llm-D-", "X-Slo-"} }

// ReservedNames are the other headers that only a gateway may send, in canonical form. Those that end in -Host-Port and
// -Hosts-Ports make an engine's sidecar call the address they hold.
func ReservedNames() [5]string {
	return [...]string{HeaderRank, "X-Prefiller-Host-Port", "X-Encoder-Hosts-Ports", "X-Data-Parallel-Host-Port", "X-Kv-Cache-Source-Host-Port"}
}

// Reserved reports headers that only a gateway may send.
func Reserved(name string) bool {
	if len(name) < 2 || name[:2] != "X-" {
		return false
	}
	for _, reserved := range ReservedNames() {
		if name == reserved {
			return true
		}
	}
	for _, prefix := range ReservedPrefixes() {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}

// maxOptions bounds what a Connection header may name; nobody names more than a handful.
const maxOptions = 64

// ConnectionOptions is the set of headers that a Connection header names, in canonical form. It reports false when
// there are too many.
func ConnectionOptions(connection []string) (map[string]bool, bool) {
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

// CheckHeader refuses headers by which the gateway could read a request in another way than its engine, and lists of
// connection options that are long for no good reason. It is called before the body is taken.
func (r *Request) CheckHeader() *openai.Error {
	var ok bool
	if r.options, ok = ConnectionOptions(r.header["Connection"]); !ok {
		return openai.InvalidRequest.Errorf("the Connection header names more than %d options", maxOptions)
	}
	for _, name := range [...]string{"Content-Type", "Content-Encoding"} {
		values := r.header[name]
		for _, v := range values {
			if v != values[0] {
				e := openai.InvalidRequest.Errorf("%s is given twice with different values", name)
				e.Param = name
				return e
			}
		}
	}
	// Envoy makes one line of two.
	if kind, _, _ := strings.Cut(r.header.Get("Content-Type"), ";"); strings.Contains(kind, ",") {
		e := openai.InvalidRequest.Errorf("Content-Type names more than one type")
		e.Param = "Content-Type"
		return e
	}
	return nil
}

// Drops reports whether a header that the client sent does not go on to an engine: it concerns the connection, is a
// gateway's to send, or is one of those that EngineHeaders gives. Nor does Expect, which is answered by taking the
// body, or Accept-Encoding: a stream must be readable to be ended well and counted, and engines compress nothing else
// worth having. Of a body that Decide has rewritten, the coding and digests are gone.
func (r *Request) Drops(name string) bool {
	switch name {
	case HeaderModel, "Expect", "Accept-Encoding":
		return true
	case "Content-Encoding", "Content-Digest", "Content-Md5", "Digest":
		if r.Rewritten {
			return true
		}
	}
	return Hop(name) || !r.set.TrustHeaders && Reserved(name) || r.options[name]
}

// EngineHeaders appends the headers that the gateway itself sends to an endpoint, in place of any that the client sent.
func (r *Request) EngineHeaders(e *fleet.Endpoint, to []Header) []Header {
	if r.Model != "" {
		to = append(to, Header{HeaderModel, r.Model})
	}
	to = append(to, Header{HeaderRequestID, r.ID})
	if e.Ranks > 0 {
		to = append(to, Header{HeaderRank, strconv.Itoa(rankAt(e))})
	}
	if e.APIKey != "" {
		to = append(to, Header{"Authorization", "Bearer " + e.APIKey})
	}
	return to
}

// rankAt is how the endpoint's rank is named in a request to its address: vLLM counts from 0 at each address
// (vllm/v1/engine/input_processor.py), SGLang over the whole deployment.
func rankAt(e *fleet.Endpoint) int {
	if e.Engine == "sglang" {
		return e.Rank
	}
	return e.Rank - e.FirstRank
}

// AnswerHeaders appends the headers that the gateway itself sends with an endpoint's answer, in place of any that came
// with it. Its Cookie is beside what the engine sets.
func (r *Request) AnswerHeaders(l *fleet.Lease, to []Header) []Header {
	to = append(to, Header{HeaderRequestID, r.ID})
	if r.set.HideEndpoint {
		return to
	}
	to = append(to, Header{HeaderServed, l.Endpoint.Name})
	if l.Reason != "" {
		to = append(to, Header{HeaderReason, l.Reason})
	}
	return to
}
