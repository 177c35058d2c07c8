package openai

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/http"
	"strconv"
	"time"
)

// A Case is one way in which a request can fail before or instead of an engine's own answer. Each has one status, type
// and code, in one table, whichever front door meets it.
type Case int

// The cases, in the order of their status.
const (
	InvalidRequest   Case = iota // the body is not one JSON object, or its model can't be read
	NoToken                      // no token, or one that is not valid
	Forbidden                    // the token does not allow this
	ModelNotFound                // no pool serves the model
	PathNotFound                 // the path is not one that the gateway opens
	MethodNotAllowed             // the path is open, the method is not
	TooLarge                     // the body is over the limit
	UnsupportedMedia             // a content coding that we can't read
	Overloaded                   // pool exhausted, band full, no memory for the body; always with RetryAfter
	ClientGone                   // the client left first; nobody reads the answer, logs and metrics do
	Internal                     // our own fault
	UpstreamFailed               // the endpoint failed and no other could take the request, or its answer broke
	NoEndpoint                   // the pool has no ready endpoint; always with RetryAfter
	ShuttingDown                 // the gateway stops before the answer's end; always with RetryAfter
	TimedOut                     // the deadline passed in the queue or before the first byte
)

// NoModelMessage is the sentence that clients and their scripts know from the reference gateway; it stands in the
// message of every ModelNotFound but those with NoSchedulerMessage.
const NoModelMessage = "no matching model: set the model in the request body or the x-gateway-model-name header"

// NoSchedulerMessage is the sentence of a ModelNotFound where the gateway has no pool at all, so that naming another model would not
// help: in a cluster, where every scheduler of a document is refused.
const NoSchedulerMessage = "no matching model: none of this gateway's schedulers is at work; kubectl sluice doctor says why"

type caseRow struct {
	status int
	kind   string
	code   string
}

// row is the table. Types are those OpenAI's clients branch on; codes are the gateway's.
func (c Case) row() caseRow {
	const request, server = "invalid_request_error", "server_error"
	rows := [...]caseRow{
		InvalidRequest:   {http.StatusBadRequest, request, "invalid_request"},
		NoToken:          {http.StatusUnauthorized, request, "invalid_api_key"},
		Forbidden:        {http.StatusForbidden, request, "permission_denied"},
		ModelNotFound:    {http.StatusNotFound, request, "model_not_found"},
		PathNotFound:     {http.StatusNotFound, request, "not_found"},
		MethodNotAllowed: {http.StatusMethodNotAllowed, request, "method_not_allowed"},
		TooLarge:         {http.StatusRequestEntityTooLarge, request, "request_too_large"},
		UnsupportedMedia: {http.StatusUnsupportedMediaType, request, "unsupported_encoding"},
		Overloaded:       {http.StatusTooManyRequests, "rate_limit_error", "overloaded"},
		ClientGone:       {499, request, "client_closed_request"},
		Internal:         {http.StatusInternalServerError, server, "internal_error"},
		UpstreamFailed:   {http.StatusBadGateway, server, "upstream_error"},
		NoEndpoint:       {http.StatusServiceUnavailable, server, "no_endpoint"},
		ShuttingDown:     {http.StatusServiceUnavailable, server, "shutting_down"},
		TimedOut:         {http.StatusGatewayTimeout, server, "timeout"},
	}
	if c < 0 || int(c) >= len(rows) {
		c = Internal
	}
	return rows[c]
}

// Status is the HTTP status of the case; 499 for a client that left.
func (c Case) Status() int { return c.row().status }

// Errorf makes the error of this case with a message for the client. A message never holds text from a prompt. For
// ModelNotFound the reference's sentence is put in front of a message that lacks it and is not NoSchedulerMessage.
func (c Case) Errorf(format string, args ...any) *Error {
	row := c.row()
	e := &Error{Case: c, Status: row.status, Type: row.kind, Code: row.code, Message: fmt.Sprintf(format, args...)}
	if c == ModelNotFound {
		e.Param = "model"
		switch e.Message {
		case NoSchedulerMessage:
		case "", NoModelMessage:
			e.Message = NoModelMessage
		default:
			e.Message = NoModelMessage + " (" + e.Message + ")"
		}
	}
	return e
}

// An Error is what a client is told. Make one with Case.Errorf; Param, Allow and RetryAfter may be set afterwards.
type Error struct {
	Case       Case
	Status     int
	Type       string
	Code       string
	Param      string        // the request field at fault, empty for none
	Message    string        // for people: what, where, and what to do
	Allow      string        // the value of the Allow header; empty for none
	RetryAfter time.Duration // zero means that no Retry-After header is sent; rounded up to whole seconds
}

// Error is the code and the message, for logs.
func (e *Error) Error() string { return e.Code + ": " + e.Message }

// AsError gives any error of this package, or one that wraps it, its place in the table: an Error is itself,
// ErrTooLarge and http.MaxBytesError are 413, ErrBudget is 429 with a Retry-After of one second. Anything else met
// while reading a body means that the client stopped sending and is 400.
func AsError(err error) *Error {
	var e *Error
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &e):
		return e
	case errors.Is(err, ErrTooLarge), errors.As(err, &tooLarge):
		return TooLarge.Errorf("%v", err)
	case errors.Is(err, ErrBudget):
		e = Overloaded.Errorf("the gateway holds as many request bodies as its memory budget allows; try again")
		e.RetryAfter = time.Second
		return e
	}
	return InvalidRequest.Errorf("the request body ended early or could not be read")
}

type errorBody struct {
	Error errorObject `json:"error"`
}

type errorObject struct {
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Code    string  `json:"code"`
}

// JSON is the error object as OpenAI's clients read it, {"error":{…}}, without a line end. Param is null when empty.
func (e *Error) JSON() []byte {
	o := errorObject{Message: e.Message, Type: e.Type, Code: e.Code}
	if e.Param != "" {
		o.Param = &e.Param
	}
	p, err := json.Marshal(errorBody{o})
	if err != nil { // strings always marshal
		return []byte(`{"error":{"message":"","type":"server_error","param":null,"code":"internal_error"}}`)
	}
	return p
}

// retryAfter is the value of the Retry-After header, at least "1", or empty when none is to be sent.
func (e *Error) retryAfter() string {
	if e.RetryAfter <= 0 {
		return ""
	}
	return strconv.FormatInt(int64(math.Ceil(e.RetryAfter.Seconds())), 10)
}

// Header is what goes before JSON in an answer, without its length.
func (e *Error) Header() http.Header {
	h := http.Header{"Content-Type": {"application/json"}}
	if s := e.retryAfter(); s != "" {
		h.Set("Retry-After", s)
	}
	if e.Allow != "" {
		h.Set("Allow", e.Allow)
	}
	return h
}

// WriteError answers w with e. Nothing may have been written to w before; headers already set on w stay.
func WriteError(w http.ResponseWriter, e *Error) {
	p := e.JSON()
	h := w.Header()
	maps.Copy(h, e.Header())
	h.Set("Content-Length", strconv.Itoa(len(p)))
	h.Del("Content-Encoding")
	w.WriteHeader(e.Status)
	_, _ = w.Write(p) // a client that left needs no answer
}

// SSEError is e as the last event of a stream that broke, to be written after a complete line. It starts with an empty
// line, so that an event whose own empty line is missing ends before it and doesn't swallow it; an empty line more
// means nothing in SSE.
func SSEError(e *Error) []byte {
	p := append([]byte("\nevent: error\ndata: "), e.JSON()...)
	return append(p, "\n\n"...)
}
