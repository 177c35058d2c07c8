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

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
)

// What Envoy answers by itself has the form of the API's errors; what the picker answers stays as it is.
func TestEnvoyAnswersInTheAPIsForm(t *testing.T) {
	eachEnvoy(t, func(t *testing.T, binary string) {
		a := newEndpoint(t)
		p := newPicker(t, a).start(t)
		e := startEnvoy(t, binary, p, []*endpointRig{a}, "--max-body-bytes", "100000", "--idle-timeout", "2s", "--max-attempts", "2")
		post := func(n int) (int, http.Header, string) {
			return fetch(http.MethodPost, e.url+"/v1/chat/completions", nil, make([]byte, n))
		}
		if status, _, text := post(100000); status != 200 {
			t.Errorf("a body at the limit: got %d %q, want 200", status, text)
		}
		a.do(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
		status, h, text := e.chat(nil)
		wantError(t, "an endpoint that resets", status, h, text, 502, "upstream_error")

		a.do(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
		status, h, text = e.chat(nil)
		wantError(t, "an endpoint that is silent for too long", status, h, text, 504, "timeout")

		p.say(func(seen) *extprocv3.ProcessingResponse { return picked("nobody", a.address) })
		status, h, text = e.chat(nil)
		wantError(t, "a pool that Envoy doesn't know", status, h, text, 503, "no_endpoint")

		for _, code := range []int{400, 403, 413, 429, 500, 502, 503, 504} {
			p.say(func(seen) *extprocv3.ProcessingResponse { return refused(code, "as it is") })
			if status, h, text := e.chat(nil); status != code || text != "as it is" || h.Get("Retry-After") != "7" || h.Get("Content-Type") != "application/json" {
				t.Errorf("the picker's own answer %d: got %d %v %q, want it untouched", code, status, h, text)
			}
		}
		p.choose("m", a)
		for _, code := range []int{400, 401, 403, 404, 413, 500, 503} {
			a.do(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code); fmt.Fprint(w, "as it is") })
			if status, _, text := e.chat(nil); status != code || text != "as it is" {
				t.Errorf("the endpoint's own answer %d: got %d %q, want it untouched", code, status, text)
			}
		}
		p.pools(pool("m"))
		eventually(t, "the endpoint to be forgotten", 20*time.Second, func() bool { return !strings.Contains(e.members(), a.address) })
		status, h, text = e.chat(nil)
		wantError(t, "a pool without endpoints", status, h, text, 503, "no_endpoint")
	})
}

// A bound on the whole request is final; one on a try moves the request on (R06).
func TestEnvoyTimeouts(t *testing.T) {
	eachEnvoy(t, func(t *testing.T, binary string) {
		a, b := newEndpoint(t), newEndpoint(t)
		p := newPicker(t, a, b).start(t)
		hang := func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
		tries := startEnvoy(t, binary, p, []*endpointRig{a, b}, "--attempt-timeout", "500ms")
		a.do(hang)
		if status, _, text := tries.chat(nil); status != 200 || text != b.address {
			t.Errorf("a try that takes too long: got %d %q, want 200 from the next endpoint", status, text)
		}
		total := startEnvoy(t, binary, p, []*endpointRig{a, b}, "-f", writeGateway(t, "routeTimeout: 500ms", "", a, b))
		was := len(b.requests())
		status, h, text := total.chat(nil)
		wantError(t, "a request that takes too long", status, h, text, 504, "timeout")
		if n := len(b.requests()) - was; n > 0 {
			t.Errorf("got %d retries after the whole time had passed, want none", n)
		}
	})
}

// writeGateway writes a gateway file with one pool m of these endpoints, with more in the scheduler and in each endpoint.
func writeGateway(t *testing.T, scheduler, each string, endpoints ...*endpointRig) string {
	t.Helper()
	var b strings.Builder
	fmt.Fprintf(&b, "apiVersion: inference.sagemaker.aws.amazon.com/v1alpha1\nkind: InferenceGatewayConfig\nmetadata: {name: local}\n"+
		"spec:\n  bbr: {enabled: true}\n  schedulers:\n  - name: m\n    modelName: m\n    modelSelector: {}\n    %s\n---\n"+
		"apiVersion: gateway.sluice.dev/v1alpha1\nkind: Endpoints\nmetadata: {name: local}\nspec:\n  endpoints:\n", scheduler)
	for _, e := range endpoints {
		fmt.Fprintf(&b, "  - address: %q\n    %s\n", e.address, each)
	}
	return writeFile(t, "gateway.yaml", b.String())
}

// What a client says of routing reaches nobody (H12, H13), unless clients are trusted; what it says of itself does.
func TestEnvoyHeaders(t *testing.T) {
	const model = "X-Gateway-Model-Name"
	removed := []string{"X-Gateway-Destination-Endpoint", "X-Gateway-Destination-Endpoint-Subset", "X-Gateway-Base-Model-Name", "X-Gateway-Inference-Objective",
		"X-Gateway-Inference-Fairness-Id", "X-Gateway-Model-Name-Rewrite", "X-Gateway-M", "X-Llm-D-Anything", "X-Slo-Ttft-Ms", "X-Data-Parallel-Rank",
		"X-Prefiller-Host-Port", "X-Encoder-Hosts-Ports", "X-Data-Parallel-Host-Port", "X-Kv-Cache-Source-Host-Port"}
	envoys := []string{"X-Envoy-Original-Path", "X-Envoy-Retry-On", "X-Envoy-Max-Retries", "X-Envoy-Upstream-Rq-Timeout-Ms", "X-Envoy-External-Address"}
	kept := []string{"X-Session-Id", "Traceparent", "Authorization", "X-Gatewayed"}
	eachEnvoy(t, func(t *testing.T, binary string) {
		a := newEndpoint(t)
		p := newPicker(t, a).start(t)
		header := http.Header{model: {"theirs"}, "X-Request-Id": {"mine:1"}, "Traceparent": {"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}}
		for _, name := range append(append(removed, envoys...), kept...) {
			if header[name] == nil {
				header[name] = []string{"theirs"}
			}
		}
		for _, trust := range []bool{false, true} {
			e := startEnvoy(t, binary, p, []*endpointRig{a}, fmt.Sprintf("--trust-client-headers=%t", trust))
			status, h, text := e.chat(header)
			if status != 200 || h.Get("X-Request-Id") != "mine:1" {
				t.Fatalf("trust %t: got %d %v %q, want 200 with the client's x-request-id", trust, status, h, text)
			}
			asked, sent := p.lastAsked().Header, a.requests()[len(a.requests())-1].Header
			for _, name := range removed {
				if got := asked.Get(name) != ""; got != trust {
					t.Errorf("trust %t: got %s at the picker %t, want %t", trust, name, got, trust)
				}
			}
			for _, name := range envoys {
				if asked.Get(name) == "theirs" || sent.Get(name) != "" {
					t.Errorf("trust %t: got %s %q at the picker and %q at the endpoint, want neither", trust, name, asked.Get(name), sent.Get(name))
				}
			}
			for _, name := range kept {
				if asked.Get(name) != header.Get(name) || sent.Get(name) != header.Get(name) {
					t.Errorf("trust %t: got %s %q at the picker and %q at the endpoint, want %q", trust, name, asked.Get(name), sent.Get(name), header.Get(name))
				}
			}
			if asked.Get(model) != "theirs" || sent.Get(model) != "m" || sent.Get("X-Gateway-Destination-Endpoint") != "" || sent.Get("X-Gateway-Base-Model-Name") != "" || sent.Get("X-Request-Id") != "mine:1" {
				t.Errorf("trust %t: got %v at the endpoint, want the picker's model and nothing of where it goes", trust, sent)
			}
		}
	})
}

// An answer's headers: one Server (H14), nothing that speaks of routing but the gateway's own words.
func TestEnvoyAnswersHeaders(t *testing.T) {
	eachEnvoy(t, func(t *testing.T, binary string) {
		a := newEndpoint(t)
		p := newPicker(t, a).start(t)
		e := startEnvoy(t, binary, p, []*endpointRig{a})
		a.do(func(w http.ResponseWriter, _ *http.Request) {
			for _, name := range []string{"X-Gateway-Destination-Endpoint-Served", "X-Gateway-Destination-Endpoint", "X-Envoy-Upstream-Canary", "X-Llm-D-Y", "X-Slo-Z"} {
				w.Header().Set(name, "theirs")
			}
			w.Header().Set("Server", "uvicorn")
			w.Header().Set("X-Mine", "1")
		})
		_, h, _ := e.chat(nil)
		if len(h["Server"]) != 1 || h.Get("Server") != "uvicorn" || h.Get("X-Mine") != "1" || h.Get("X-Gateway-Destination-Endpoint-Served") != a.address {
			t.Errorf("got %v, want one Server, the endpoint's own headers and the one that served", h)
		}
		for name, values := range h {
			if values[0] == "theirs" || strings.HasPrefix(name, "X-Envoy-") {
				t.Errorf("got %s: %v, want none of it", name, values)
			}
		}
	})
}

// Bytes that are no UTF-8 in a header arrive as they are (H17).
func TestEnvoyPassesBytesInHeaders(t *testing.T) {
	eachEnvoy(t, func(t *testing.T, binary string) {
		a := newEndpoint(t)
		p := newPicker(t, a).start(t)
		e := startEnvoy(t, binary, p, []*endpointRig{a})
		c, err := net.Dial("tcp", strings.TrimPrefix(e.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		const token = "Bearer \xe5\xaf\x86\xff\x80"
		fmt.Fprintf(c, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: %s\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}", token)
		answer, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(answer.Body)
		if answer.StatusCode != 200 {
			t.Fatalf("got %d %q, want 200", answer.StatusCode, text)
		}
		if asked, sent := p.lastAsked().Header.Get("Authorization"), a.requests()[0].Header.Get("Authorization"); asked != token || sent != token {
			t.Errorf("got %q at the picker and %q at the endpoint, want %q", asked, sent, token)
		}
	})
}
