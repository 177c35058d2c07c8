//go:build doors && unix

package e2e

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"
)

// replaceFile moves a text to a file's place.
func replaceFile(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file+".new", []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(file+".new", file); err != nil {
		t.Fatal(err)
	}
}

// All that a configuration says of the front door holds in an Envoy that runs, once the file is said to be taken over: tokens
// that are asked for, of whom, and no longer; limits of bodies and of time. Streams run on meanwhile, and connections that were
// open before go by the new rules. What Envoy can't do is refused as a whole.
func TestServeThroughEnvoyTakesOverTheFrontDoor(t *testing.T) {
	eachEnvoy(t, func(t *testing.T, binary string) {
		c := newCertificate(t, t.TempDir(), "issuer.example.com")
		first, second := newIssuerRig(t, c), newIssuerRig(t, c)
		a := newEndpoint(t)
		file := writeGateway(t, "", "", a)
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		plain := string(raw)
		p, url := startThrough(t, binary, "-f", file, "--tls-roots", c.cert, "--failure-mode", "FailOpen")
		e := &envoyRig{url: url}
		bearer := func(i *issuerRig, scope string) http.Header {
			return http.Header{"Authorization": {"Bearer " + i.token(t, map[string]any{"iss": "https://issuer.example.com", "aud": "gateway",
				"exp": time.Now().Add(time.Hour).Unix(), "scope": scope})}}
		}
		until := func(what string, h http.Header, want int) {
			t.Helper()
			eventually(t, what, 30*time.Second, func() bool { status, _, _ := e.chat(h); return status == want })
		}
		takeOver := func(text string) {
			t.Helper()
			from := len(p.stderr.since(0))
			replaceFile(t, file, text)
			eventually(t, "the file to be taken over", 30*time.Second, func() bool { return p.stderr.holding(from, "configuration taken over") })
		}
		with := func(more string) string { return strings.Replace(plain, "  schedulers:", more+"\n  schedulers:", 1) }
		auth := func(i *issuerRig, claims string) string {
			return fmt.Sprintf(`  auth: {jwt: {provider: {name: idp, issuer: "https://issuer.example.com", remoteJWKS: {uri: %q}, audiences: [gateway]%s}}}`, i.url+"/keys", claims)
		}
		until("the endpoint to serve", nil, 200)

		begun, finish := make(chan bool, 1), make(chan bool)
		a.do(func(w http.ResponseWriter, r *http.Request) {
			if r.Method != http.MethodPost || r.Header.Get("X-Wait") == "" {
				return
			}
			fmt.Fprint(w, "begun ")
			w.(http.Flusher).Flush()
			begun <- true
			<-finish
			fmt.Fprint(w, "ended")
		})
		ends := make(chan string, 1)
		go func() {
			status, _, text := e.chat(http.Header{"X-Wait": {"yes"}})
			ends <- fmt.Sprint(status, " ", text)
		}()
		<-begun
		kept := new(http.Transport) // of a client whose connection was there before
		defer kept.CloseIdleConnections()
		onKept := func() int {
			answer, err := (&http.Client{Transport: kept, Timeout: time.Minute}).Post(url+"/v1/chat/completions", "application/json", strings.NewReader(`{"model":"m","messages":[]}`))
			if err != nil {
				t.Fatal(err)
			}
			defer answer.Body.Close()
			_, _ = io.Copy(io.Discard, answer.Body)
			return answer.StatusCode
		}
		if got := onKept(); got != 200 {
			t.Errorf("got %d without tokens being asked for, want 200", got)
		}

		takeOver(with(auth(first, "")))
		until("a token to be asked for", nil, 401)
		if got := onKept(); got != 401 {
			t.Errorf("got %d without a token on a connection of before, want 401", got)
		}
		until("the issuer's keys", bearer(first, "infer"), 200)
		if status, h, text := e.chat(bearer(second, "infer")); status != 401 {
			t.Errorf("got %d %v %q for another's token, want 401", status, h, text)
		}
		takeOver(with(auth(first, ", requiredClaims: [{name: scope, valueType: StringArray, values: [infer]}]")))
		until("a claim to be asked for", bearer(first, "other"), 403)
		until("the issuer's keys", bearer(first, "infer"), 200)
		takeOver(with(auth(second, "")))
		until("the second issuer's keys", bearer(second, "other"), 200)
		if status, h, text := e.chat(bearer(first, "infer")); status != 401 {
			t.Errorf("got %d %v %q for a token of the issuer of before, want 401", status, h, text)
		}

		from := len(p.stderr.since(0))
		replaceFile(t, file, strings.Replace(plain, "---", "  - {name: other, modelName: other, modelSelector: {matchLabels: {more: \"yes\"}}}\n---", 1))
		eventually(t, "a file that Envoy can't go by to be refused", 30*time.Second, func() bool {
			return p.stderr.holding(from, "the running one stays") && p.stderr.holding(from, "cannot fail open with 2 pools")
		})
		if status, h, text := e.chat(nil); status != 401 {
			t.Errorf("got %d %v %q without a token after a file that was refused, want 401", status, h, text)
		}

		takeOver(strings.Replace(plain, "enabled: true", "enabled: true, maxRequestBodyBytes: 100", 1))
		until("no token to be asked for", nil, 200)
		eventually(t, "the limit of bodies", 30*time.Second, func() bool {
			status, _, _ := fetch(http.MethodPost, url+"/v1/chat/completions", nil, fmt.Appendf(nil, `{"model":"m","messages":[],"x":%q}`, strings.Repeat("x", 200)))
			return status == 413
		})
		close(finish)
		if got := <-ends; got != "200 begun ended" {
			t.Errorf("got %q of the request that ran all the time, want its end", got)
		}
		a.do(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodPost {
				<-r.Context().Done()
			}
		})
		takeOver(strings.Replace(plain, "modelSelector: {}", "modelSelector: {}\n    routeTimeout: 1s", 1))
		impatient := http.Client{Transport: kept, Timeout: 5 * time.Second} // a request by the routes of before would wait for ever
		eventually(t, "the limit of time", 30*time.Second, func() bool {
			answer, err := impatient.Post(url+"/v1/chat/completions", "application/json", strings.NewReader(`{"model":"m","messages":[]}`))
			if err != nil {
				return false
			}
			defer answer.Body.Close()
			return answer.StatusCode == http.StatusGatewayTimeout
		})
	})
}
