//go:build doors && unix

package e2e

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"syscall"
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
		for mode, open := range map[string]bool{"FailClose": false, "FailOpen": true} {
			t.Run(mode, func(t *testing.T) {
				t.Parallel()
				a, b, stranger := newEndpoint(t), newEndpoint(t), newEndpoint(t)
				p := newPicker(t, a, b)
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
					if open {
						wantError(t, mode+", "+when+", a closed path", status, h, text, 404, "not_found")
					} else {
						wantError(t, mode+", "+when+", a closed path", status, h, text, 503, "no_endpoint")
					}
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
				checkPaths(t, e, open)
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
			})
		}
	})
}

// checkPaths checks which paths lead where while nobody picks.
func checkPaths(t *testing.T, e *envoyRig, open bool) {
	t.Helper()
	type answer struct {
		status int
		code   string // of the error, empty for none
	}
	closed := answer{503, "no_endpoint"}
	for _, c := range []struct {
		method, path string
		failingOpen  answer
	}{
		{"GET", "/healthz", answer{status: 200}}, {"GET", "/readyz", answer{status: 200}}, {"GET", "/v1/models", answer{status: 200}},
		{"POST", "/v1/completions/", answer{status: 200}}, {"POST", "/rerank?x=1", answer{status: 200}},
		{"GET", "/v1/responses/resp_1", closed}, {"POST", "/v1/responses/resp_1/cancel", closed}, {"GET", "/v1/models/org/name", closed},
		{"GET", "/metrics", answer{404, "not_found"}}, {"GET", "/v1/completions/../../metrics", answer{404, "not_found"}},
		{"GET", "/v1/models/../../metrics", closed}, {"POST", "/v1/models%2F..%2F..%2Fmetrics", answer{404, "not_found"}},
		{"GET", "/", answer{404, "not_found"}}, {"GET", "/v1/completionsx", answer{404, "not_found"}},
	} {
		want := closed
		if open {
			want = c.failingOpen
		}
		status, h, text := fetch(c.method, e.url+c.path, nil, nil)
		if want.code != "" {
			wantError(t, c.path, status, h, text, want.status, want.code)
		} else if status != want.status {
			t.Errorf("%s: got %d %q, want %d", c.path, status, text, want.status)
		}
	}
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

// A picker that is killed takes no running answer along, in either failure mode; what comes then follows the failure mode, and what a
// client says of routing leads nowhere, even one that is trusted. A request that the picker had when it went is answered as others are.
func TestEnvoyOutlivesItsPicker(t *testing.T) {
	eachEnvoy(t, func(t *testing.T, binary string) {
		for _, mode := range []string{"FailClose", "FailOpen"} {
			a := newEndpoint(t)
			p := newPlane(t, planeOptions{binary: binary, endpoints: []string{"--endpoint", "m=" + a.address},
				envoy: []string{"--failure-mode", mode, "--trust-client-headers"}})
			p.startPicker(t)
			p.startEnvoy(t)
			e := &envoyRig{url: p.url}
			eventually(t, "the endpoint to serve", 30*time.Second, func() bool {
				status, h, _ := e.chat(nil)
				return status == 200 && h.Get("X-Gateway-Destination-Endpoint-Served") == a.address
			})
			begun, finish := make(chan bool), make(chan bool)
			a.do(func(w http.ResponseWriter, r *http.Request) {
				if r.Header.Get("X-Wait") != "" {
					if r.Header.Get("X-Wait") == "stream" {
						fmt.Fprint(w, "begun ")
						w.(http.Flusher).Flush()
					}
					begun <- true
					<-finish
				}
				fmt.Fprint(w, "ended")
			})
			ends := make(chan string, 2)
			for _, wait := range []string{"stream", "whole"} {
				go func() {
					status, _, text := e.chat(http.Header{"X-Wait": {wait}})
					ends <- fmt.Sprint(status, " ", text)
				}()
				<-begun
			}
			half, w := io.Pipe() // of a request that is half there
			answered := make(chan *http.Response, 1)
			go func() {
				answer, err := http.Post(p.url+"/v1/chat/completions", "application/json", half)
				if err != nil {
					t.Error(err)
				}
				answered <- answer
			}()
			fmt.Fprint(w, `{"model":"m",`)
			p.stopPicker(t, syscall.SIGKILL)
			forged := http.Header{"X-Gateway-Base-Model-Name": {"m"}, "X-Gateway-Destination-Endpoint": {a.address}, "X-Gateway-Model-Name": {"m"}}
			for _, h := range []http.Header{nil, forged} {
				status, got, text := e.chat(h)
				if mode == "FailClose" {
					wantError(t, "a request after the picker's end", status, got, text, 503, "no_endpoint")
					if !strings.Contains(text, "picker can't be asked") {
						t.Errorf("got %q, want that the picker can't be asked", text)
					}
				} else if status != 200 || text != "ended" {
					t.Errorf("%s: got %d %q after the picker's end, want an endpoint's answer", mode, status, text)
				}
			}
			fmt.Fprint(w, `"messages":[]}`)
			w.Close()
			if answer := <-answered; answer != nil {
				text, _ := io.ReadAll(answer.Body)
				answer.Body.Close()
				if mode == "FailClose" {
					wantError(t, "a request that was half there", answer.StatusCode, answer.Header, string(text), 503, "no_endpoint")
				} else if answer.StatusCode != 200 {
					t.Errorf("%s: got %d %q for a request that was half there, want 200", mode, answer.StatusCode, text)
				}
			}
			close(finish)
			got := []string{<-ends, <-ends}
			slices.Sort(got)
			if want := []string{"200 begun ended", "200 ended"}; !slices.Equal(got, want) {
				t.Errorf("%s: got %q of the answers that ran when the picker was killed, want %q", mode, got, want)
			}
			for _, s := range a.requests() {
				if mode == "FailClose" && s.Header.Get("X-Gateway-Base-Model-Name") != "" {
					t.Errorf("%s: got %v at the endpoint, want nothing that no picker has picked", mode, s)
				}
			}
		}
	})
}

// A pool that Envoy's file lacks is listed, since the picker has it; its requests are told that nobody serves them, and the picker says
// why.
func TestEnvoyLacksAPool(t *testing.T) {
	eachEnvoy(t, func(t *testing.T, binary string) {
		a := newEndpoint(t)
		p := newPlane(t, planeOptions{binary: binary, endpoints: []string{"--endpoint", "m=" + a.address}})
		p.pickArgs = append(p.pickArgs, "--endpoint", "new="+a.address)
		p.startPicker(t)
		p.startEnvoy(t)
		p.waitFor(t, "m")
		eventually(t, "the picker to pick for the new pool, and say that Envoy has no route", 30*time.Second, func() bool {
			status, h, text := fetch(http.MethodPost, p.url+"/v1/chat/completions", nil, []byte(`{"model":"new","messages":[]}`))
			wantError(t, "a pool that the file lacks", status, h, text, 503, "no_endpoint")
			if got := h.Get("X-Gateway-Destination-Endpoint-Served"); got != "" {
				t.Errorf("got %q as who served what nobody did, want none", got)
			}
			return p.stderr.holding(0, "no route", "new")
		})
	})
}
