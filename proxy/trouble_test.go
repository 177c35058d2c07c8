package proxy

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/fleet"
	"github.com/sluice-gateway/sluice/front"
)

// R09, F05: an error says what failed in words, and names the endpoint only where endpoints are shown.
func TestErrorsSayTheCause(t *testing.T) {
	answers := func(text string, end func(net.Conn)) string {
		return raw(t, func(c net.Conn, _ int, _ *http.Request) {
			_, _ = io.WriteString(c, text)
			end(c)
		})
	}
	plain := startEngine(t, says("no TLS here"))
	secure := httptest.NewUnstartedServer(says("nobody trusts me"))
	secure.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	secure.StartTLS()
	t.Cleanup(secure.Close)
	for said, e := range map[string]fleet.Endpoint{
		"connection refused": {Name: closedPort(t)},
		"connection reset":   {Name: answers("", reset)},
		"connection closed before the end of the answer": {Name: answers("HTTP/1.1 200 OK\r\n", closeConn)},
		"no valid HTTP answer":                           {Name: answers("SSH-2.0-secret\r\n\r\n", closeConn)},
		"it does not speak TLS":                          {Name: plain, TLS: new(tls.Config)},
		"its TLS certificate could not be verified":      {Name: secure.Listener.Addr().String(), TLS: new(tls.Config)},
	} {
		for _, hide := range []bool{false, true} {
			r := newRigAt(t, Options{Options: front.Options{HideEndpoint: hide}})
			r.applyEndpoints([]fleet.Endpoint{e})
			a := r.post(plainBody)
			a.wantError(t, 502, "upstream_error")
			if !strings.Contains(a.body, said) || strings.Contains(a.body, e.Name) == hide || strings.Contains(a.body, "secret") {
				t.Errorf("%s, hidden %v: got %s", said, hide, a.body)
			}
			r.front.Close()
			log := r.log.String()
			for _, want := range []string{`level=INFO msg="request failed"`, "pool=pool", "endpoint=" + e.Name, fmt.Sprintf("cause=%q", said), "status=502",
				"x-request-id=" + a.header.Get(front.HeaderRequestID)} {
				if !strings.Contains(log, want) {
					t.Errorf("%s: got log\n%s\nwant %s", said, log, want)
				}
			}
			if strings.Contains(log, "SSH-2.0") { // X08
				t.Errorf("got bytes of an answer in the log:\n%s", log)
			}
		}
	}

	r := newRigAt(t, Options{})
	for _, c := range []struct {
		req    *http.Request
		status int
		want   string
	}{
		{r.request(http.MethodPost, chatPath, plainBody), 503, "/fleet at the gateway's metrics address"},
		{r.request(http.MethodPost, chatPath, `{"model":"n"}`), 404, `no pool serves \"n\"; GET /v1/models lists what is served`},
		{r.request(http.MethodPost, "/sleep", ""), 404, "--open-path"},
	} {
		if a := r.do(c.req); a.status != c.status || !strings.Contains(a.body, c.want) {
			t.Errorf("got %d %s, want %d that says %s", a.status, a.body, c.status, c.want)
		}
	}
}

// S21: a stream that breaks is logged, with its cause; whole answers and clients' own faults are not.
func TestBrokenAnswersAreLogged(t *testing.T) {
	r := newRigAt(t, Options{}, tornStream(t, closeConn, eventA))
	a := r.post(streamBody)
	r.front.Close()
	for _, want := range []string{`level=INFO msg="answer broke off"`, "pool=pool", "endpoint=" + r.engines[0], `cause="connection closed before the end of the answer"`,
		"status=200", "x-request-id=" + a.header.Get(front.HeaderRequestID)} {
		if log := r.log.String(); !strings.Contains(log, want) {
			t.Errorf("got log\n%s\nwant %s", log, want)
		}
	}
	r = newRig(t, Options{}, says("a"))
	r.post(plainBody).want(t, 200, `{"from":"a"}`)
	r.post("no JSON").wantError(t, 400, "invalid_request")
	r.front.Close()
	if log := r.log.String(); strings.Contains(log, "level=INFO") {
		t.Errorf("got log\n%s\nwant no line above debug", log)
	}
}

func TestInWords(t *testing.T) {
	for want, err := range map[string]error{
		"its host name could not be resolved": &net.OpError{Op: "dial", Err: &net.DNSError{Name: "secret.example", IsNotFound: true}},
		"no connection in time":               &net.OpError{Op: "dial", Err: timeout{}},
		"no valid HTTP answer":                errors.New("malformed HTTP response \"secret\""),
	} {
		if got := inWords(err); got != want {
			t.Errorf("%v: got %q, want %q", err, got, want)
		}
	}
}

type timeout struct{}

func (timeout) Error() string   { return "secret: i/o timeout" }
func (timeout) Timeout() bool   { return true }
func (timeout) Temporary() bool { return true }
