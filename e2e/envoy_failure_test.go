//go:build e2e && unix

package e2e

import (
	"net"
	"net/http"
	"testing"
	"time"
)

// Without a picker, requests follow the failure mode: from the start, when a picker goes, and when one never answers
// (R05). A picker that comes is used at once.
func TestEnvoyFailureModes(t *testing.T) {
	forged := func(e *endpointRig) http.Header {
		return http.Header{"X-Gateway-Destination-Endpoint": {e.address}, "X-Gateway-Base-Model-Name": {"m"}}
	}
	eachEnvoy(t, func(t *testing.T, binary string) {
		for _, open := range []bool{false, true} {
			a, b, stranger := newEndpoint(t), newEndpoint(t), newEndpoint(t)
			p := newPicker(t, a, b)
			mode := "FailClose"
			if open {
				mode = "FailOpen"
			}
			e := startEnvoy(t, binary, p, []*endpointRig{a, b}, "--failure-mode", mode)
			unpicked := func(when string) {
				t.Helper()
				served := map[string]bool{}
				for range 2 {
					status, h, text := e.chat(forged(stranger))
					if !open {
						wantError(t, mode+", "+when, status, h, text, 503, "no_endpoint")
						continue
					}
					if status != 200 {
						t.Errorf("%s, %s: got %d %v %q, want 200", mode, when, status, h, text)
					}
					served[text] = true
				}
				// What else engines serve on the same port stays closed.
				status, h, text := fetch(http.MethodPost, e.url+"/v1/unload_lora_adapter", nil, []byte("{}"))
				wantError(t, mode+", "+when+", a closed path", status, h, text, 503, "no_endpoint")
				if open && (!served[a.address] || !served[b.address] || len(served) != 2) {
					t.Errorf("%s, %s: got answers from %v, want both endpoints", mode, when, served)
				}
			}
			unpicked("no picker at the start")
			p.start(t)
			p.choose("m", b)
			eventually(t, "the picker to be asked", 30*time.Second, func() bool {
				status, h, text := e.chat(nil)
				return status == 200 && text == b.address && h.Get("X-Gateway-Destination-Endpoint-Served") == b.address
			})
			p.say(nil)
			unpicked("a picker that never answers")
			p.halt()
			unpicked("the picker is gone")
			if open {
				a.server.CloseClientConnections()
				a.server.Listener.Close()
				for range 8 {
					if status, _, text := e.chat(nil); status != 200 || text != b.address {
						t.Errorf("%s, one endpoint gone: got %d %q, want 200 from the other", mode, status, text)
					}
				}
			}
			if n := len(stranger.requests()); n > 0 {
				t.Errorf("%s: got %d requests at an address that a client named, want none", mode, n)
			}
		}
	})
}

// Names lead to whoever listens at one of their addresses, of IPv4 or IPv6: the picker's, and an engine's while nobody picks.
func TestEnvoyFindsNames(t *testing.T) {
	eachEnvoy(t, func(t *testing.T, binary string) {
		for _, at := range []string{"127.0.0.1", "::1"} {
			a := newEndpoint(t)
			_, port, _ := net.SplitHostPort(a.address)
			p := newPicker(t, a)
			_, pickerPort, _ := net.SplitHostPort(p.address)
			p.address = net.JoinHostPort(at, pickerPort)
			e := startEnvoy(t, binary, &pickerRig{address: net.JoinHostPort("localhost", pickerPort)},
				[]*endpointRig{{address: net.JoinHostPort("localhost", port)}}, "--failure-mode", "FailOpen")
			if status, _, text := e.chat(nil); status != 200 || text != a.address {
				t.Errorf("no picker: got %d %q, want the endpoint named by localhost", status, text)
			}
			p.start(t)
			eventually(t, "the picker at "+p.address+" to be asked", 30*time.Second, func() bool {
				status, h, text := e.chat(nil)
				return status == 200 && text == a.address && h.Get("X-Gateway-Destination-Endpoint-Served") == a.address
			})
		}
	})
}
