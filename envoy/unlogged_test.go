package envoy

import "testing"

// The gateway's own requests are left out of the access log, and nobody else's: without an agent of its own, none are.
func TestOwnRequestsAreUnlogged(t *testing.T) {
	b := &builder{}
	b.o.AccessLog = "/dev/stdout"
	if f := b.accessLog()[0].GetFilter(); f != nil {
		t.Errorf("got %v, want every request logged", f)
	}
	b.o.OwnAgent = "sluice/a secret"
	h := b.accessLog()[0].GetFilter().GetHeaderFilter().GetHeader()
	if h.GetName() != "user-agent" || !h.GetInvertMatch() || h.GetStringMatch().GetExact() != "sluice/a secret" {
		t.Errorf("got %v, want all but that agent", h)
	}
}
