package extproc

import (
	"errors"
	"fmt"
	"net/http"
	"net/textproto"
	"strings"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/sluice-gateway/sluice/front"
)

// kind is which part of a request or a response a message is about. The first six are also the numbers that tell them
// apart in a ProcessingRequest, less one.
type kind uint8

const (
	noKind kind = iota
	requestHeaders
	responseHeaders
	requestBody
	responseBody
	requestTrailers
	responseTrailers
)

// bodyMode is how Envoy sends a body, in the numbers of ProcessingMode.BodySendMode.
type bodyMode uint8

const (
	modeNone bodyMode = iota
	modeStreamed
	modeBuffered
	modePartial
	modeDuplex
)

// String is the name that Envoy's configuration has for it.
func (m bodyMode) String() string {
	names := [...]string{"NONE", "STREAMED", "BUFFERED", "BUFFERED_PARTIAL", "FULL_DUPLEX_STREAMED"}
	if int(m) < len(names) {
		return names[m]
	}
	return "unknown"
}

// Where an endpoint is told, and asked for, in metadata.
const (
	spaceLB     = "envoy.lb"
	spaceSubset = "envoy.lb.subset_hint"

	spaceAttributes = "envoy.filters.http.ext_proc"
	keyDetails      = "response.code_details"
)

// message is what Envoy sent: the part of a ProcessingRequest that is used here. Its body refers to memory of the
// connection, which is given back by free.
type message struct {
	kind kind
	// path, method, scheme, authority and status are the pseudo headers.
	path, method, scheme, authority, status string
	// header has canonical names. Trailers are only known to have come.
	header http.Header
	// end says that nothing of this direction follows.
	end  bool
	body mem.BufferSlice
	size int

	// announced says that Envoy told its modes, which it does in the first message.
	announced       bool
	request, answer bodyMode
	// unheard says that Envoy takes no answers (observability mode).
	unheard bool

	// hinted says that there is a hint to a subset, which may be empty.
	hinted bool
	subset []string
	served string
	// details is why Envoy answers as it does (response.code_details), empty where it doesn't tell.
	details string
}

// free gives the body's memory back.
func (m *message) free() {
	m.body.Free()
	m.body = nil
}

var errCut = errors.New("the message is cut off")

// cursor reads a message that lies in several buffers.
type cursor struct {
	parts mem.BufferSlice
	part  int
	off   int
	left  int // bytes to the end of what is being read
}

// rest is what is left of the current buffer, nil at the end.
func (c *cursor) rest() []byte {
	for c.left > 0 && c.part < len(c.parts) {
		if p := c.parts[c.part].ReadOnlyData()[c.off:]; len(p) > 0 {
			return p[:min(len(p), c.left)]
		}
		c.part, c.off = c.part+1, 0
	}
	return nil
}

func (c *cursor) advance(n int) { c.off, c.left = c.off+n, c.left-n }

// varint reads a number.
func (c *cursor) varint() (uint64, error) {
	if v, n := protowire.ConsumeVarint(c.rest()); n > 0 {
		c.advance(n)
		return v, nil
	}
	var v uint64
	for shift := 0; shift < 64; shift += 7 { // across buffers, or broken
		p := c.rest()
		if len(p) == 0 {
			return 0, errCut
		}
		c.advance(1)
		v |= uint64(p[0]&0x7f) << shift
		if p[0] < 0x80 {
			if shift == 63 && p[0] > 1 {
				break
			}
			return v, nil
		}
	}
	return 0, errors.New("a number is too long")
}

// tag reads what comes next, and its length where it has one.
func (c *cursor) tag() (field protowire.Number, kind protowire.Type, length int, err error) {
	v, err := c.varint()
	if err != nil {
		return 0, 0, 0, err
	}
	field, kind = protowire.DecodeTag(v)
	if field < protowire.MinValidNumber {
		return 0, 0, 0, errors.New("a field has no valid number")
	}
	if kind != protowire.BytesType {
		return field, kind, 0, nil
	}
	n, err := c.varint()
	if err == nil && n > uint64(c.left) {
		err = errCut
	}
	return field, kind, int(n), err
}

// bytes reads n bytes, which are copied only where they lie in several buffers.
func (c *cursor) bytes(n int) []byte {
	p := c.rest()
	if len(p) >= n {
		c.advance(n)
		return p[:n:n]
	}
	out := make([]byte, 0, n)
	for len(out) < n {
		p = c.rest()
		if len(p) == 0 {
			return out
		}
		p = p[:min(len(p), n-len(out))]
		out = append(out, p...)
		c.advance(len(p))
	}
	return out
}

// take reads n bytes as references to the buffers they lie in.
func (c *cursor) take(n int, to mem.BufferSlice) mem.BufferSlice {
	for n > 0 {
		p := c.rest()
		if len(p) == 0 {
			return to
		}
		m := min(len(p), n)
		to = append(to, c.parts[c.part].Slice(c.off, c.off+m))
		c.advance(m)
		n -= m
	}
	return to
}

// skip passes over a field that is not used.
func (c *cursor) skip(field protowire.Number, kind protowire.Type, length int) error {
	switch kind {
	case protowire.VarintType:
		_, err := c.varint()
		return err
	case protowire.Fixed32Type:
		length = 4
	case protowire.Fixed64Type:
		length = 8
	case protowire.BytesType:
	default:
		return fmt.Errorf("field %d is of a kind that nobody sends", field)
	}
	if length > c.left {
		return errCut
	}
	for length > 0 {
		n := min(len(c.rest()), length)
		if n == 0 {
			return errCut
		}
		c.advance(n)
		length -= n
	}
	return nil
}

// Fields of ProcessingRequest beside those that kind numbers.
const (
	fieldMetadata   = 8
	fieldAttributes = 9
	fieldUnheard    = 10
	fieldProtocol   = 11
)

// decode reads a ProcessingRequest. What it keeps of data it refers to.
func (m *message) decode(data mem.BufferSlice) error {
	*m = message{}
	c := cursor{parts: data, left: data.Len()}
	for c.left > 0 {
		field, wire, length, err := c.tag()
		if err == nil {
			err = m.field(&c, field, wire, length)
		}
		if err != nil {
			m.free()
			return fmt.Errorf("cannot read a ProcessingRequest: %w", err)
		}
	}
	return nil
}

func (m *message) field(c *cursor, field protowire.Number, wire protowire.Type, length int) error {
	switch {
	case wire == protowire.VarintType && field == fieldUnheard:
		v, err := c.varint()
		m.unheard = v != 0
		return err
	case wire != protowire.BytesType || field == 1:
	case field <= 7:
		return m.part(c, kind(field-1), length)
	case field == fieldMetadata:
		return m.readMetadata(c.bytes(length))
	case field == fieldAttributes:
		return m.readAttributes(c.bytes(length))
	case field == fieldProtocol:
		return m.readProtocol(c.bytes(length))
	}
	return c.skip(field, wire, length)
}

// part reads what the message is about.
func (m *message) part(c *cursor, k kind, length int) error {
	m.kind = k
	switch k {
	case requestBody, responseBody:
		return m.readBody(c, length)
	case requestHeaders, responseHeaders:
		return m.readHeaders(c.bytes(length))
	}
	c.bytes(length) // trailers
	return nil
}

// readProtocol reads a ProtocolConfiguration.
func (m *message) readProtocol(p []byte) error {
	m.announced = true
	return each(p, func(field protowire.Number, v value) error {
		switch field {
		case 1:
			m.request = bodyMode(v.number)
		case 2:
			m.answer = bodyMode(v.number)
		}
		return nil
	})
}

// readBody reads an HttpBody.
func (m *message) readBody(c *cursor, length int) error {
	after := c.left - length
	c.left = length
	for c.left > 0 {
		field, wire, n, err := c.tag()
		switch {
		case err != nil:
			return err
		case field == 1 && wire == protowire.BytesType:
			m.free()
			m.body, m.size = c.take(n, nil), n
		case field == 2 && wire == protowire.VarintType:
			var v uint64
			if v, err = c.varint(); err != nil {
				return err
			}
			m.end = v != 0
		default:
			if err = c.skip(field, wire, n); err != nil {
				return err
			}
		}
	}
	c.left = after
	return nil
}

// value is what one field holds: bytes or a number.
type value struct {
	bytes  []byte
	number uint64
}

// each calls f with every field of a message that lies in one piece. Fields of fixed length are left out: no message
// that is read here has one.
func each(p []byte, f func(protowire.Number, value) error) error {
	for len(p) > 0 {
		field, wire, n := protowire.ConsumeTag(p)
		if n < 0 {
			return protowire.ParseError(n)
		}
		p = p[n:]
		var v value
		switch wire {
		case protowire.BytesType:
			v.bytes, n = protowire.ConsumeBytes(p)
		case protowire.VarintType:
			v.number, n = protowire.ConsumeVarint(p)
		default:
			if n = protowire.ConsumeFieldValue(field, wire, p); n < 0 {
				return protowire.ParseError(n)
			}
			p = p[n:]
			continue
		}
		if n < 0 {
			return protowire.ParseError(n)
		}
		p = p[n:]
		if err := f(field, v); err != nil {
			return err
		}
	}
	return nil
}

// readHeaders reads an HttpHeaders.
func (m *message) readHeaders(p []byte) error {
	m.header = make(http.Header, 24)
	return each(p, func(field protowire.Number, v value) error {
		switch field {
		case 1:
			return each(v.bytes, func(field protowire.Number, v value) error {
				if field == 1 {
					return m.readHeader(v.bytes)
				}
				return nil
			})
		case 3:
			m.end = v.number != 0
		}
		return nil
	})
}

// readHeader reads a HeaderValue. Envoy fills raw_value; older ones, and tests, value.
func (m *message) readHeader(p []byte) error {
	var key, text, raw []byte
	err := each(p, func(field protowire.Number, v value) error {
		switch field {
		case 1:
			key = v.bytes
		case 2:
			text = v.bytes
		case 3:
			raw = v.bytes
		}
		return nil
	})
	if err != nil {
		return err
	}
	if len(raw) == 0 {
		raw = text
	}
	if len(key) > 0 && key[0] == ':' {
		if to := m.pseudo(string(key)); to != nil {
			*to = string(raw)
		}
		return nil
	}
	name := textproto.CanonicalMIMEHeaderKey(string(key))
	m.header[name] = append(m.header[name], string(raw))
	return nil
}

func (m *message) pseudo(name string) *string {
	switch name {
	case ":path":
		return &m.path
	case ":method":
		return &m.method
	case ":scheme":
		return &m.scheme
	case ":authority":
		return &m.authority
	case ":status":
		return &m.status
	}
	return nil
}

// readMetadata reads a Metadata for the two entries of the endpoint-picker protocol.
func (m *message) readMetadata(p []byte) error {
	return entries(p, func(space, fields []byte) error {
		name := string(space)
		if name != spaceLB && name != spaceSubset {
			return nil
		}
		return entries(fields, func(key, v []byte) error {
			switch {
			case name == spaceLB && string(key) == front.WireServed:
				texts, err := texts(v)
				if len(texts) > 0 {
					m.served = texts[0]
				}
				return err
			case name == spaceSubset && string(key) == front.WireSubset:
				texts, err := texts(v)
				m.hinted, m.subset = true, nil
				for _, t := range texts {
					m.subset = append(m.subset, addresses(t)...)
				}
				return err
			}
			return nil
		})
	})
}

// readAttributes reads an entry of the attributes.
func (m *message) readAttributes(p []byte) error {
	var space, fields []byte
	err := each(p, func(field protowire.Number, v value) error {
		switch field {
		case 1:
			space = v.bytes
		case 2:
			fields = v.bytes
		}
		return nil
	})
	if err != nil || string(space) != spaceAttributes {
		return err
	}
	return entries(fields, func(key, v []byte) error {
		if string(key) != keyDetails {
			return nil
		}
		texts, err := texts(v)
		if len(texts) > 0 {
			m.details = texts[0]
		}
		return err
	})
}

// entries calls f with each entry of the map that is a message's first field.
func entries(p []byte, f func(key, v []byte) error) error {
	return each(p, func(field protowire.Number, v value) error {
		if field != 1 {
			return nil
		}
		var key, val []byte
		err := each(v.bytes, func(field protowire.Number, v value) error {
			switch field {
			case 1:
				key = v.bytes
			case 2:
				val = v.bytes
			}
			return nil
		})
		if err != nil {
			return err
		}
		return f(key, val)
	})
}

// texts are the strings of a Value: its own, or those of its list.
func texts(p []byte) ([]string, error) {
	var out []string
	err := each(p, func(field protowire.Number, v value) error {
		switch field {
		case 3:
			out = []string{string(v.bytes)}
		case 6:
			out = nil
			return each(v.bytes, func(field protowire.Number, v value) error {
				if field != 1 {
					return nil
				}
				return each(v.bytes, func(field protowire.Number, v value) error {
					if field == 3 {
						out = append(out, string(v.bytes))
					}
					return nil
				})
			})
		}
		return nil
	})
	return out, err
}

// addresses takes a list apart that is separated by commas.
func addresses(list string) []string {
	var out []string
	for a := range strings.SplitSeq(list, ",") {
		if a = strings.TrimSpace(a); a != "" {
			out = append(out, a)
		}
	}
	return out
}
