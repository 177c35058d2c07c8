//go:build doors && unix

package e2e

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// say writes bytes to a connection and reads one answer.
func say(t *testing.T, address, request string) (status int, h http.Header, text string) {
	t.Helper()
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	if err := c.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(c, request); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Errorf("%.60q: got no answer: %v", request, err)
		return 0, nil, ""
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Error(err)
	}
	if resp.StatusCode == 400 || resp.StatusCode == 431 {
		resp.Header.Set("X-Request-Id", "what can't be read has none")
	}
	return resp.StatusCode, resp.Header, string(body)
}

// What can't be read as HTTP, or could be read in two ways, is refused in the API's form, whether there is a picker or not.
func TestEnvoyRefusesWhatIsNotHTTP(t *testing.T) {
	eachEnvoy(t, func(t *testing.T, binary string) {
		a := newEndpoint(t)
		p := newPicker(t, a).start(t)
		e := startEnvoy(t, binary, p, []*endpointRig{a})
		const post = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"
		address := strings.TrimPrefix(e.url, "http://")
		for _, request := range []string{
			post + "x name: 1\r\nContent-Length: 2\r\n\r\n{}",
			post + "x-name: a\x00b\r\nContent-Length: 2\r\n\r\n{}",
			post + "Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
			post + "Content-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nG",
			post + "Transfer-Encoding: identity\r\n\r\n",
			post + "Transfer-Encoding: xchunked\r\n\r\n",
			"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}",
			"POST /v1/chat/completions#f HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}",
			"POST * HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}",
			"\x16\x03\x01\x02\x00\x01\x00 \r\n\r\n",
		} {
			status, h, text := say(t, address, request)
			wantError(t, fmt.Sprintf("%.60q", request), status, h, text, 400, "invalid_request")
		}
		status, h, text := say(t, address, post+strings.Repeat("x-long: "+strings.Repeat("a", 1000)+"\r\n", 200)+"\r\n")
		wantError(t, "headers that are too large", status, h, text, 431, "invalid_request")
		if n := len(a.requests()); n > 0 {
			t.Errorf("got %d requests at the endpoint, want none", n)
		}

		many := ""
		for i := range 300 {
			many += fmt.Sprintf("x-h%d: v\r\n", i)
		}
		if status, _, text := say(t, address, post+many+"Content-Length: 2\r\n\r\n{}"); status != 200 || len(a.requests()) != 1 {
			t.Errorf("300 headers: got %d %q, want 200 from the endpoint", status, text)
		}
		a.do(func(w http.ResponseWriter, _ *http.Request) {
			for i := range 300 {
				w.Header().Set(fmt.Sprint("X-H", i), "v")
			}
		})
		if status, h, text := e.chat(nil); status != 200 || h.Get("X-H299") != "v" {
			t.Errorf("300 headers of an answer: got %d %q, want 200", status, text)
		}
		a.do(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })
		if status, _, text := say(t, address, "POST /v1/chat/completions HTTP/1.0\r\nContent-Length: 2\r\n\r\n{}"); status != 200 {
			t.Errorf("HTTP/1.0: got %d %q, want 200", status, text)
		}
		p.halt()
		status, h, text = say(t, address, post+"x name: 1\r\nContent-Length: 2\r\n\r\n{}")
		wantError(t, "no HTTP, without a picker", status, h, text, 400, "invalid_request")
	})
}

// A response that an engine stores is found where it was made, however bodies pass: nobody else is asked for it.
func TestEnvoyFindsStoredResponses(t *testing.T) {
	eachEnvoy(t, func(t *testing.T, binary string) {
		for _, duplex := range []bool{false, true} {
			a, b := newEndpoint(t), newEndpoint(t)
			for _, e := range []*endpointRig{a, b} {
				e.do(func(w http.ResponseWriter, r *http.Request) {
					w.Header().Set("Content-Type", "application/json")
					if r.Method == http.MethodPost {
						fmt.Fprintf(w, `{"id":"resp_%d","object":"response"}`, len(e.requests()))
						return
					}
					fmt.Fprintf(w, `{"at":%q}`, e.address)
				})
			}
			_, url := startThrough(t, binary, "--endpoint", "m="+a.address+","+b.address, fmt.Sprintf("--full-duplex=%t", duplex))
			body := []byte(`{"model":"m","input":"x"}`)
			var h http.Header
			var text string
			eventually(t, "an endpoint to serve", 30*time.Second, func() (ok bool) {
				var status int
				status, h, text = fetch(http.MethodPost, url+"/v1/responses", nil, body)
				return status == 200
			})
			_, id, _ := strings.Cut(text, `"id":"`)
			id, _, _ = strings.Cut(id, `"`)
			for range 4 {
				status, _, text := fetch(http.MethodGet, url+"/v1/responses/"+id, nil, nil)
				if want := fmt.Sprintf(`{"at":%q}`, h.Get("X-Gateway-Destination-Endpoint-Served")); status != 200 || text != want {
					t.Errorf("full duplex %t: got %d %s, want %s", duplex, status, text, want)
				}
			}
			for _, e := range []*endpointRig{a, b} {
				for _, r := range e.requests() {
					if strings.HasPrefix(r.Path, "/v1/responses/") && e.address != h.Get("X-Gateway-Destination-Endpoint-Served") {
						t.Errorf("full duplex %t: got a request for %s at %s, want it at the other endpoint", duplex, r.Path, e.address)
					}
				}
			}
		}
	})
}
