package scrape

import "encoding/binary"

// unpacker walks over MessagePack (github.com/msgpack/msgpack/blob/master/spec.md) in memory. A fault is remembered, and
// from then on everything is empty: its user looks once, at the end.
type unpacker struct {
	p    []byte
	at   int
	bad  bool
	deep int
}

// deepest bounds nesting, as a stack must be.
const deepest = 32

// take returns the next n bytes.
func (u *unpacker) take(n uint64) []byte {
	if u.bad || n > uint64(len(u.p)-u.at) {
		u.bad = true
		return nil
	}
	p := u.p[u.at : u.at+int(n)]
	u.at += int(n)
	return p
}

// peek is the next byte, which tells what comes; 0xc1, which stands for nothing, at the end.
func (u *unpacker) peek() byte {
	if u.bad || u.at >= len(u.p) {
		return 0xc1
	}
	return u.p[u.at]
}

// size reads a big-endian number of n bytes.
func (u *unpacker) size(n uint64) uint64 {
	p := u.take(n)
	switch len(p) {
	case 1:
		return uint64(p[0])
	case 2:
		return uint64(binary.BigEndian.Uint16(p))
	case 4:
		return uint64(binary.BigEndian.Uint32(p))
	case 8:
		return binary.BigEndian.Uint64(p)
	}
	return 0
}

// null takes a nil, if one is next.
func (u *unpacker) null() bool {
	if u.peek() != 0xc0 {
		return false
	}
	u.at++
	return true
}

// isArray, isMap and isText say what comes next.
func (u *unpacker) isArray() bool {
	b := u.peek()
	return b&0xf0 == 0x90 || b == 0xdc || b == 0xdd
}

func (u *unpacker) isMap() bool {
	b := u.peek()
	return b&0xf0 == 0x80 || b == 0xde || b == 0xdf
}

func (u *unpacker) isText() bool {
	b := u.peek()
	return b&0xe0 == 0xa0 || b >= 0xd9 && b <= 0xdb
}

// array reads the head of an array, and how many values follow: never more than there are bytes.
func (u *unpacker) array() int { return u.many(0x90, 0xdc) }

// fields reads the head of a map, and how many pairs follow.
func (u *unpacker) fields() int { return u.many(0x80, 0xde) }

// many reads the head of a kind of which a few are counted in the byte short, and more in two bytes after long, or in four after the next one.
func (u *unpacker) many(short, long byte) int {
	n := uint64(0)
	switch b := u.head(); {
	case b&0xf0 == short:
		n = uint64(b & 0x0f)
	case b == long:
		n = u.size(2)
	case b == long+1:
		n = u.size(4)
	default:
		u.bad = true
	}
	return u.count(n)
}

func (u *unpacker) count(n uint64) int {
	if u.bad || n > uint64(len(u.p)-u.at) {
		u.bad = true
		return 0
	}
	return int(n)
}

func (u *unpacker) head() byte {
	if p := u.take(1); p != nil {
		return p[0]
	}
	return 0xc1
}

// bytes reads a text or binary value, in place.
func (u *unpacker) bytes() []byte {
	switch b := u.head(); {
	case b&0xe0 == 0xa0:
		return u.take(uint64(b & 0x1f))
	case b == 0xd9, b == 0xc4:
		return u.take(u.size(1))
	case b == 0xda, b == 0xc5:
		return u.take(u.size(2))
	case b == 0xdb, b == 0xc6:
		return u.take(u.size(4))
	}
	u.bad = true
	return nil
}

// integer reads a whole number; a negative one as its two's complement.
func (u *unpacker) integer() uint64 {
	switch b := u.head(); {
	case b < 0x80:
		return uint64(b)
	case b >= 0xe0:
		return uint64(int64(int8(b)))
	case b >= 0xcc && b <= 0xcf:
		return u.size(1 << (b - 0xcc))
	case b == 0xd0:
		return uint64(int64(int8(u.size(1))))
	case b == 0xd1:
		return uint64(int64(int16(u.size(2))))
	case b == 0xd2:
		return uint64(int64(int32(u.size(4))))
	case b == 0xd3:
		return u.size(8)
	}
	u.bad = true
	return 0
}

// skip passes over one value of any kind.
func (u *unpacker) skip() {
	if u.deep++; u.deep > deepest {
		u.bad = true
	}
	defer func() { u.deep-- }()
	values := 0
	switch b := u.peek(); {
	case u.bad, b == 0xc1:
		u.bad = true
	case u.isArray():
		values = u.array()
	case u.isMap():
		values = 2 * u.fields()
	case u.isText(), b >= 0xc4 && b <= 0xc6:
		u.bytes()
	case b == 0xc0, b == 0xc2, b == 0xc3:
		u.at++
	default:
		u.skipNumber()
	}
	for ; values > 0 && !u.bad; values-- {
		u.skip()
	}
}

// skipNumber passes over a number, or over an extension, which carries a byte of type.
func (u *unpacker) skipNumber() {
	switch b := u.peek(); {
	case b == 0xca:
		u.take(5)
	case b == 0xcb:
		u.take(9)
	case b >= 0xc7 && b <= 0xc9:
		u.at++
		u.take(u.size(1<<(b-0xc7)) + 1)
	case b >= 0xd4 && b <= 0xd8:
		u.take(2 + 1<<(b-0xd4))
	default:
		u.integer()
	}
}
