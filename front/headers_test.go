package front

import (
	"net/textproto"
	"slices"
	"testing"
)

func TestHeaderNames(t *testing.T) {
	wire := []string{WireRequestID, WireModel, WireServed, WireReason}
	for i, name := range []string{HeaderRequestID, HeaderModel, HeaderServed, HeaderReason} {
		if got := textproto.CanonicalMIMEHeaderKey(wire[i]); got != name {
			t.Errorf("got %q for %q, want %q", got, wire[i], name)
		}
	}
	for _, name := range slices.Concat(wire[1:], []string{WireBaseModel, WireDestination, WireSubset}) {
		if !Reserved(textproto.CanonicalMIMEHeaderKey(name)) {
			t.Errorf("%s may be sent by anyone", name)
		}
	}
	for _, name := range ReservedNames() {
		if name != textproto.CanonicalMIMEHeaderKey(name) || !Reserved(name) {
			t.Errorf("%q is not in canonical form, or not reserved", name)
		}
	}
	for _, prefix := range ReservedPrefixes() {
		if !Reserved(prefix + "A") {
			t.Errorf("%q does not reserve", prefix)
		}
	}
	for _, name := range []string{"X", "X-", "X-Request-Id", "X-Gatewayed", "Accept"} {
		if Reserved(name) {
			t.Errorf("%q is reserved", name)
		}
	}
}
