package extproc

import (
	"time"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/sluice-gateway/sluice/front"
)

// answer is what Envoy is told: the part of a ProcessingResponse that is used here. Sending it gives its body's
// references back.
type answer struct {
	kind kind // noKind for one that only asks for time, or is immediate
	// set and remove change headers. What is set overwrites.
	set    []header
	remove []string
	// add is a header beside those of its name, if it has one.
	add header
	// reroute has Envoy choose the route anew.
	reroute bool
	// body is a piece of a body that goes on in full duplex (streamed), or replaces one that came (replaces): with the
	// answer to headers, all that has come and will.
	body               mem.BufferSlice
	streamed, replaces bool
	end                bool
	// destination is told in metadata, too, and with it the reason for it, unless that is empty.
	destination, reason string
	// mode asks for other parts of the response, unless it is zero.
	mode override
	// wait asks for more time.
	wait time.Duration

	// status, with content, makes an immediate response.
	status  int
	content []byte
	details string
}

type header struct{ name, value string }

// override is a mode_override. It stands for all of the mode, so that it repeats how the request's body is sent. An
// answer's trailers, where it has any, say that it is whole.
type override struct {
	request, answer bodyMode
}

// Fields of ProcessingResponse beside those that kind numbers.
const (
	fieldImmediate = 7
	fieldDynamic   = 8
	fieldMode      = 9
	fieldTimeout   = 10
)

// headRoom is what the part of an answer before the body usually takes, in bytes.
const headRoom = 512

// encode writes a ProcessingResponse. The piece of a body is its last field on every level, so that it is not copied.
func (a *answer) encode() mem.BufferSlice {
	size := a.body.Len()
	p := make([]byte, 0, headRoom+len(a.content))
	if a.wait > 0 {
		return mem.BufferSlice{mem.SliceBuffer(appendTimeout(p, a.wait))}
	}
	if a.destination != "" {
		p = a.appendDestination(p)
	}
	if a.mode != (override{}) {
		p = a.mode.append(p)
	}
	start := len(p)
	switch {
	case a.status != 0:
		p = wrap(a.appendImmediate(p), start, fieldImmediate, 0)
	case a.kind == requestTrailers, a.kind == responseTrailers:
		p = wrap(p, start, protowire.Number(a.kind), 0)
	default:
		p = a.appendCommon(p, size)
		p = wrap(p, start, 1, size)
		p = wrap(p, start, protowire.Number(a.kind), size)
	}
	out := make(mem.BufferSlice, 0, 1+len(a.body))
	out = append(append(out, mem.SliceBuffer(p)), a.body...)
	a.body = nil
	return out
}

// append writes a ProcessingMode.
func (o override) append(p []byte) []byte {
	const send = 1 // HeaderSendMode.SEND
	start := len(p)
	number := func(field protowire.Number, v uint64) {
		p = protowire.AppendVarint(protowire.AppendTag(p, field, protowire.VarintType), v)
	}
	number(2, send) // response_header_mode
	number(3, uint64(o.request))
	number(4, uint64(o.answer))
	number(6, send) // response_trailer_mode
	return wrap(p, start, fieldMode, 0)
}

// wrap makes what stands in p from start on, and behind bytes more that are to follow, the content of a field.
func wrap(p []byte, start int, field protowire.Number, behind int) []byte {
	var space [16]byte
	head := protowire.AppendVarint(protowire.AppendTag(space[:0], field, protowire.BytesType), uint64(len(p)-start+behind))
	p = append(p, head...)
	copy(p[start+len(head):], p[start:])
	copy(p[start:], head)
	return p
}

func appendTimeout(p []byte, d time.Duration) []byte {
	start := len(p)
	if s := d / time.Second; s > 0 {
		p = protowire.AppendVarint(protowire.AppendTag(p, 1, protowire.VarintType), uint64(s))
	}
	if n := d % time.Second; n > 0 {
		p = protowire.AppendVarint(protowire.AppendTag(p, 2, protowire.VarintType), uint64(n))
	}
	return wrap(p, start, fieldTimeout, 0)
}

// appendDestination writes the metadata: a Struct of one Struct of strings.
func (a *answer) appendDestination(p []byte) []byte {
	start := len(p)
	p = appendEntry(p, front.WireDestination, a.destination)
	if a.reason != "" {
		p = appendEntry(p, front.WireReason, a.reason)
	}
	p = wrap(p, start, 5, 0) // a Value that is a Struct
	p = wrap(p, start, 2, 0)
	p = wrapKey(p, start, spaceLB)
	p = wrap(p, start, 1, 0)
	return wrap(p, start, fieldDynamic, 0)
}

// appendEntry writes an entry of a Struct, a string.
func appendEntry(p []byte, key, text string) []byte {
	start := len(p)
	p = appendString(p, 3, text)
	p = wrap(p, start, 2, 0) // a map's value
	p = wrapKey(p, start, key)
	return wrap(p, start, 1, 0)
}

// wrapKey puts a map's key in front of its value.
func wrapKey(p []byte, start int, key string) []byte {
	var space [64]byte
	head := appendString(space[:0], 1, key)
	p = append(p, head...)
	copy(p[start+len(head):], p[start:])
	copy(p[start:], head)
	return p
}

func appendString(p []byte, field protowire.Number, s string) []byte {
	return protowire.AppendString(protowire.AppendTag(p, field, protowire.BytesType), s)
}

func appendTrue(p []byte, field protowire.Number) []byte {
	return append(protowire.AppendTag(p, field, protowire.VarintType), 1)
}

// appendCommon writes a CommonResponse up to its body.
func (a *answer) appendCommon(p []byte, size int) []byte {
	if a.replaces && a.kind == requestHeaders {
		p = appendTrue(p, 1) // CONTINUE_AND_REPLACE
	}
	start := len(p)
	if len(a.set)+len(a.remove) > 0 || a.add.name != "" {
		p = wrap(a.appendMutation(p), start, 2, 0)
	}
	if a.reroute {
		p = appendTrue(p, 5)
	}
	start = len(p)
	switch {
	case a.replaces:
		p = wrap(p, start, 1, size) // BodyMutation.body
		p = wrap(p, start, 3, size)
	case a.streamed:
		if a.end {
			p = appendTrue(p, 2)
		}
		p = protowire.AppendVarint(protowire.AppendTag(p, 1, protowire.BytesType), uint64(size))
		p = wrap(p, start, 3, size) // BodyMutation.streamed_response
		p = wrap(p, start, 3, size)
	}
	return p
}

// appendMutation writes a HeaderMutation.
func (a *answer) appendMutation(p []byte) []byte {
	const add, overwrite = 0, 2 // of HeaderAppendAction
	for _, h := range a.set {
		p = appendHeader(p, h, overwrite)
	}
	if a.add.name != "" {
		p = appendHeader(p, a.add, add)
	}
	for _, name := range a.remove {
		p = appendString(p, 2, name)
	}
	return p
}

// appendHeader writes a HeaderValueOption.
func appendHeader(p []byte, h header, action uint64) []byte {
	start := len(p)
	p = appendString(p, 1, h.name)
	p = appendString(p, 3, h.value)
	p = wrap(p, start, 1, 0)
	if action != 0 {
		p = protowire.AppendVarint(protowire.AppendTag(p, 3, protowire.VarintType), action)
	} else {
		p = append(protowire.AppendTag(p, 2, protowire.BytesType), 2, 1<<3, 1) // append: true, by which older Envoys go
	}
	return wrap(p, start, 1, 0)
}

// appendImmediate writes an ImmediateResponse.
func (a *answer) appendImmediate(p []byte) []byte {
	start := len(p)
	p = protowire.AppendVarint(protowire.AppendTag(p, 1, protowire.VarintType), uint64(a.status))
	p = wrap(p, start, 1, 0)
	if len(a.set) > 0 {
		start = len(p)
		p = wrap(a.appendMutation(p), start, 2, 0)
	}
	if len(a.content) > 0 {
		p = protowire.AppendBytes(protowire.AppendTag(p, 3, protowire.BytesType), a.content)
	}
	if a.details != "" {
		p = appendString(p, 5, a.details)
	}
	return p
}
