package proxy

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gateway/sluice/fleet"
	"github.com/sluice-gateway/sluice/front"
	"github.com/sluice-gateway/sluice/openai"
	"github.com/sluice-gateway/sluice/route"
)

// seen is what an engine got.
type seen struct {
	method, path, host, body string
	length                   int64
	header, trailer          http.Header
}

// watcher is an engine that tells what it got.
func watcher(got *seen) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		*got = seen{r.Method, r.URL.RequestURI(), r.Host, string(body), r.ContentLength, r.Header.Clone(), r.Trailer.Clone()}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, "{}")
	}
}

// B32, H03, H04: the engine gets the bytes that were sent, with their length, whatever their framing was.
func TestBodyPassesUntouched(t *testing.T) {
	bodies := []string{
		`{"z":1.0,"a":1,"model":"m","big":18446744073709551616,"e":1e400,"messages":[]}`,
		"  \n{\"model\":\"m\",\"messages\":null,\"stream\":null,\"logprobs\":null}\n", // B20
		`{"model":"m","prompt":["a","b"]}`, `{"model":"m","prompt":[[1],[2]]}`,        // B17
		`{"model":"m","Model":"other","input":[{"role":"user"}]}`, // B10, B19
		`{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat("ü", 1<<20) + `"}]}`,
	}
	for _, body := range bodies {
		for _, path := range []string{chatPath, "/v1/completions", "/v1/embeddings", "/v1/responses", "/v1/messages", "/v1/chat/completions/?a=b;c"} { // Q05
			var got seen
			r := newRig(t, Options{}, watcher(&got))
			r.do(r.request(http.MethodPost, path, body)).want(t, 200, "{}")
			if got.body != body || got.length != int64(len(body)) || got.path != path {
				t.Errorf("%s: got %d bytes %.60q with length %d at %s, want %d bytes %.60q", path, len(got.body), got.body, got.length, got.path, len(body), body)
			}
			req := r.request(http.MethodPost, path, "")
			req.Body, req.ContentLength = io.NopCloser(strings.NewReader(body)), -1 // chunked
			r.do(req).want(t, 200, "{}")
			if got.body != body || got.length != int64(len(body)) {
				t.Errorf("%s, chunked: got %d bytes with length %d, want %d", path, len(got.body), got.length, len(body))
			}
		}
	}
}

// B12, B13, B24, Z02, Z03, Z06, Q08: what can't be read is the client's error, in OpenAI's form, before any engine
// hears of it.
func TestBadBodies(t *testing.T) {
	r := newRig(t, Options{}, func(http.ResponseWriter, *http.Request) { t.Error("got a request at the engine, want none") })
	for _, body := range []string{``, ` `, `[]`, `true`, `text`, `{"model":"m"`, `{"model":"m"}{}`, "\ufeff{\"model\":\"m\"}", `{"model":1}`, `{"model":null}`,
		`{"model":""}`, `{"model":["m"]}`, `{"model":"m","model":"n"}`, `{}`, `{"messages":[]}`} {
		r.post(body).wantError(t, 400, "invalid_request")
	}
	form := r.request(http.MethodPost, "/v1/audio/transcriptions", "--wrong\r\n")
	form.Header.Set("Content-Type", "multipart/form-data; boundary=right")
	r.do(form).wantError(t, 400, "invalid_request")
	packed := r.request(http.MethodPost, chatPath, "not gzip")
	packed.Header.Set("Content-Encoding", "gzip")
	r.do(packed).wantError(t, 400, "invalid_request")
	packed = r.request(http.MethodPost, chatPath, "what is this")
	packed.Header.Set("Content-Encoding", "compress")
	r.do(packed).wantError(t, 415, "unsupported_encoding") // Z13
}

// B23, B25, X11: a form's model is read wherever it stands, and the form passes as it came. Z13: so does an encoded
// body.
func TestFormsAndEncodedBodies(t *testing.T) {
	var form bytes.Buffer
	parts := multipart.NewWriter(&form)
	file, _ := parts.CreateFormFile("file", "a.wav")
	_, _ = file.Write(bytes.Repeat([]byte{0, 1, 2, 255}, 200_000))
	_ = parts.WriteField("model", "m")
	_ = parts.Close()
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	_, _ = io.WriteString(z, plainBody)
	_ = z.Close()

	var got seen
	r := newRig(t, Options{}, watcher(&got))
	req := r.request(http.MethodPost, "/v1/audio/transcriptions", form.String())
	req.Header.Set("Content-Type", parts.FormDataContentType())
	r.do(req).want(t, 200, "{}")
	if got.body != form.String() || got.header.Get("Content-Type") != parts.FormDataContentType() {
		t.Errorf("got %d bytes of type %s, want the form", len(got.body), got.header.Get("Content-Type"))
	}
	req = r.request(http.MethodPost, chatPath, packed.String())
	req.Header.Set("Content-Encoding", "gzip")
	r.do(req).want(t, 200, "{}")
	if got.body != packed.String() || got.header.Get("Content-Encoding") != "gzip" {
		t.Errorf("got %d bytes with encoding %q, want the packed body", len(got.body), got.header.Get("Content-Encoding"))
	}
}

// B34, B06: limits are the configured ones, and say so.
func TestBodyLimits(t *testing.T) {
	var got seen
	r := newRig(t, Options{Options: front.Options{MaxBodyBytes: 8 << 20, BodyBudget: 3 << 20}}, watcher(&got))
	six := `{"model":"m","prompt":"` + strings.Repeat("x", 6<<20) + `"}`
	a := r.post(six)
	a.wantError(t, 429, "overloaded") // the budget is smaller than the body
	if a.header.Get("Retry-After") == "" {
		t.Errorf("got headers %v, want a Retry-After", a.header)
	}
	r.g.Apply(Options{Options: front.Options{SelectModel: true, MaxBodyBytes: 8 << 20}})
	r.post(six).want(t, 200, "{}")
	nine := `{"model":"m","prompt":"` + strings.Repeat("x", 9<<20) + `"}`
	a = r.post(nine)
	a.wantError(t, 413, "request_too_large")
	if !strings.Contains(a.body, fmt.Sprint(8<<20)) {
		t.Errorf("got %q, want the limit in it", a.body)
	}
	req := r.request(http.MethodPost, chatPath, "")
	req.Body, req.ContentLength = io.NopCloser(strings.NewReader(nine)), -1
	if a := r.do(req); a.err == nil { // the gateway may hang up on what it doesn't read
		a.wantError(t, 413, "request_too_large")
	}
}

// A client that waits to be told to send its body is told so only when the request is good so far.
func TestExpectContinue(t *testing.T) {
	var got seen
	r := newRig(t, Options{Options: front.Options{MaxBodyBytes: 1000}}, watcher(&got))
	ask := func(method, path string, length int) (string, *bufio.Reader, io.Writer) {
		c := r.dial()
		_, _ = fmt.Fprintf(c, "%s %s HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n", method, path, length)
		in := bufio.NewReader(c)
		line, err := in.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		return line, in, c
	}
	f := func(method, path string, length int, want string) {
		t.Helper()
		if line, _, _ := ask(method, path, length); !strings.HasPrefix(line, want) {
			t.Errorf("%s %s with %d bytes: got %q, want %s", method, path, length, line, want)
		}
	}
	f(http.MethodPost, "/v1/load_lora_adapter", 10, "HTTP/1.1 404")
	f(http.MethodPut, chatPath, 10, "HTTP/1.1 405")
	f(http.MethodPost, chatPath, 1001, "HTTP/1.1 413")
	line, in, out := ask(http.MethodPost, chatPath, len(plainBody))
	if !strings.HasPrefix(line, "HTTP/1.1 100") {
		t.Fatalf("got %q, want 100", line)
	}
	_, _ = io.WriteString(out, plainBody)
	_, _ = in.ReadString('\n') // the empty line after 100
	if line, _ = in.ReadString('\n'); !strings.HasPrefix(line, "HTTP/1.1 200") || got.header.Get("Expect") != "" {
		t.Errorf("got %q and Expect %q at the engine, want 200 and none", line, got.header.Get("Expect"))
	}
}

// H12, H13, H15, H18, H20, X02: gateway headers of clients are removed, everything else arrives, at every attempt
// alike.
func TestRequestHeaders(t *testing.T) {
	var first, second seen
	r := newRig(t, Options{}, func(w http.ResponseWriter, r *http.Request) {
		first = seen{header: r.Header.Clone()}
		_, _ = io.Copy(io.Discard, r.Body)
		w.WriteHeader(http.StatusServiceUnavailable)
	}, watcher(&second))
	send := map[string]string{
		"Authorization": "Bearer t", "X-Session-Id": "s", "Traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "Tracestate": "a=b", "Baggage": "c=d",
		"X-Request-Id": "mine", "X-Auth": "\xe4\xb8\xad\xff", "Idempotency-Key": "k", "Openai-Organization": "o", "User-Agent": "client/1",
		"X-Gateway-Destination-Endpoint": "10.0.0.1:1", "X-Gateway-Destination-Endpoint-Subset": "a", "X-Gateway-Base-Model-Name": "b",
		"X-Gateway-Inference-Objective": "critical", "X-Gateway-Inference-Fairness-Id": "f", "X-Llm-D-Slo-Ttft-Ms": "9.3e12", "X-Gateway-Model-Name": "other",
		"X-Prefiller-Host-Port": "10.0.0.1:1", "X-Envoy-Original-Path": "/x", "X-Slo-Ttft-Ms": "1",
		"Connection": "keep-alive, X-Hop", "X-Hop": "1", "Keep-Alive": "timeout=5", "Proxy-Authorization": "p", "Te": "trailers", "Accept-Encoding": "gzip",
	}
	gone := []string{"X-Gateway-Destination-Endpoint", "X-Gateway-Destination-Endpoint-Subset", "X-Gateway-Base-Model-Name", "X-Gateway-Inference-Objective",
		"X-Gateway-Inference-Fairness-Id", "X-Llm-D-Slo-Ttft-Ms", "X-Prefiller-Host-Port", "X-Envoy-Original-Path", "X-Slo-Ttft-Ms", "X-Hop", "Keep-Alive",
		"Proxy-Authorization", "Te", "Accept-Encoding", "Connection"}
	want := http.Header{"Content-Type": {"application/json"}, "Content-Length": {fmt.Sprint(len(plainBody))}}
	req := r.request(http.MethodPost, chatPath, plainBody)
	for k, v := range send {
		req.Header.Set(k, v)
		want.Set(k, v)
	}
	for _, k := range gone {
		want.Del(k)
	}
	want.Set(front.HeaderModel, "m")
	a := r.do(req)
	a.want(t, 200, "{}")
	if diff := cmp.Diff(want, second.header); diff != "" {
		t.Errorf("headers at the engine (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(first.header, second.header); diff != "" {
		t.Errorf("headers at the second attempt (-first +second):\n%s", diff)
	}
	if a.header.Get("X-Request-Id") != "mine" || second.host != r.engines[1] {
		t.Errorf("got request id %q and host %q, want the client's id and the endpoint's host", a.header.Get("X-Request-Id"), second.host)
	}
}

// A trusted client's routing headers arrive; they still can't choose an address.
func TestTrustedHeaders(t *testing.T) {
	var got seen
	r := newRig(t, Options{Options: front.Options{TrustHeaders: true}}, watcher(&got))
	req := r.request(http.MethodPost, chatPath, plainBody)
	req.Header.Set("X-Gateway-Inference-Objective", "critical")
	req.Header.Set("X-Gateway-Destination-Endpoint", "10.0.0.1:1")
	a := r.do(req)
	a.want(t, 200, "{}")
	if got.header.Get("X-Gateway-Inference-Objective") != "critical" || a.header.Get(front.HeaderServed) != r.engines[0] {
		t.Errorf("got %v served by %s, want the objective at %s", got.header, a.header.Get(front.HeaderServed), r.engines[0])
	}
}

// The endpoint's own key and host replace the client's.
func TestEndpointKeyAndHost(t *testing.T) {
	var got seen
	r := newRig(t, Options{Options: front.Options{HideEndpoint: true}}, watcher(&got))
	r.applyEndpoints([]fleet.Endpoint{{Name: r.engines[0], Host: "engine.example:8000", APIKey: "secret"}})
	req := r.request(http.MethodPost, chatPath, plainBody)
	req.Header.Set("Authorization", "Bearer client")
	a := r.do(req)
	a.want(t, 200, "{}")
	if got.header.Get("Authorization") != "Bearer secret" || got.host != "engine.example:8000" {
		t.Errorf("got %q at host %q, want the endpoint's key and host", got.header.Get("Authorization"), got.host)
	}
	if a.header.Get(front.HeaderServed) != "" || a.header.Get(front.HeaderReason) != "" {
		t.Errorf("got headers %v, want the endpoint hidden", a.header)
	}
	if strings.Contains(r.log.String(), "secret") || strings.Contains(r.log.String(), "client") {
		t.Errorf("got a key in the log:\n%s", r.log) // X08
	}
}

// H14, H22: one Server header, hop headers and an engine's claims about routing removed, the rest as it is.
func TestAnswerHeaders(t *testing.T) {
	r := newRig(t, Options{}, func(w http.ResponseWriter, _ *http.Request) {
		h := w.Header()
		h["Server"] = []string{"uvicorn", "second"}
		h.Set("X-Request-Id", "engine's")
		h.Set("X-Custom", "1")
		h.Set("Keep-Alive", "timeout=5")
		h.Set("X-Gateway-Destination-Endpoint-Served", "forged")
		h.Add("Set-Cookie", "a=1")
		h.Add("Set-Cookie", "b=2")
		_, _ = io.WriteString(w, "{}")
	})
	a := r.post(plainBody)
	if diff := cmp.Diff([]string{"uvicorn"}, a.header.Values("Server")); diff != "" {
		t.Errorf("Server (-want +got):\n%s", diff)
	}
	if a.header.Get("X-Custom") != "1" || len(a.header.Values("Set-Cookie")) != 2 || a.header.Get("Keep-Alive") != "" {
		t.Errorf("got headers %v, want the engine's without those of its connection", a.header)
	}
	if diff := cmp.Diff(r.engines[:1], a.header.Values(front.HeaderServed)); diff != "" {
		t.Errorf("served (-want +got):\n%s", diff)
	}
	if id := a.header.Values("X-Request-Id"); len(id) != 1 || len(id[0]) < 20 || a.header.Get(front.HeaderReason) == "" {
		t.Errorf("got id %q and reason %q, want a new id and some reason", id, a.header.Get(front.HeaderReason))
	}
}

// Z14: trailers pass both ways, announced or not.
func TestTrailers(t *testing.T) {
	var got seen
	r := newRig(t, Options{}, func(w http.ResponseWriter, req *http.Request) {
		watcher(&got)(w, req)
		_ = http.NewResponseController(w).Flush()
		w.Header().Set(http.TrailerPrefix+"X-Late", "1")
	})
	req := r.request(http.MethodPost, chatPath, "")
	req.Body, req.ContentLength = io.NopCloser(strings.NewReader(plainBody)), -1
	req.Trailer = http.Header{"X-Sum": {"42"}, "X-Gateway-Base-Model-Name": {"forged"}}
	a := r.do(req)
	a.want(t, 200, "{}")
	if diff := cmp.Diff(http.Header{"X-Sum": {"42"}}, got.trailer); diff != "" || got.body != plainBody {
		t.Errorf("trailers at the engine (-want +got):\n%s", diff)
	}
	if a.trailer.Get("X-Late") != "1" {
		t.Errorf("got trailers %v, want X-Late", a.trailer)
	}
	r = newRig(t, Options{}, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Trailer", "X-Sum")
		_, _ = io.WriteString(w, "{}")
		_ = http.NewResponseController(w).Flush()
		w.Header().Set("X-Sum", "7")
	})
	if a := r.post(plainBody); a.trailer.Get("X-Sum") != "7" {
		t.Errorf("got trailers %v, want X-Sum", a.trailer)
	}
}

// twoPools has pools "a" and "b" with models of these names, an engine each.
func twoPools(t *testing.T, o Options, fallback string) *rig {
	t.Helper()
	r := newRig(t, o, says("a"), says("b"))
	configs := []fleet.PoolConfig{
		{Name: "a", Model: "a", Profile: route.RoundRobin(), Endpoints: []fleet.Endpoint{{Name: r.engines[0]}}, Adapters: []string{"tuned"}},
		{Name: "b", Model: "b", Profile: route.RoundRobin(), Endpoints: []fleet.Endpoint{{Name: r.engines[1]}}},
	}
	r.f.Apply(configs, fallback)
	for i, p := range r.f.Pools() {
		p.ObserveFailure(r.engines[i], fleet.NoMetrics, "none in tests")
	}
	return r
}

// The model selects the pool: in the body, else in the header, else there is the default or an error with the
// reference's sentence.
func TestModelSelection(t *testing.T) {
	r := twoPools(t, Options{}, "")
	model := func(body, header string) answer {
		t.Helper()
		req := r.request(http.MethodPost, chatPath, body)
		if header != "" {
			req.Header.Set(front.HeaderModel, header)
		}
		return r.do(req)
	}
	model(`{"model":"a"}`, "").want(t, 200, `{"from":"a"}`)
	model(`{"model":"b"}`, "a").want(t, 200, `{"from":"b"}`)
	model(`{"model":"tuned"}`, "b").want(t, 200, `{"from":"a"}`)
	model(`{"prompt":"x"}`, "b").want(t, 200, `{"from":"b"}`)
	a := model(`{"model":"c"}`, "a")
	a.wantError(t, 404, "model_not_found")
	if !strings.Contains(a.body, openai.NoModelMessage) {
		t.Errorf("got %q, want the sentence %q", a.body, openai.NoModelMessage)
	}
	model(`{"prompt":"x"}`, "").wantError(t, 400, "invalid_request")

	r = twoPools(t, Options{}, "b")
	model(`{"model":"c"}`, "").want(t, 200, `{"from":"b"}`)
	model(`{"prompt":"x"}`, "").want(t, 200, `{"from":"b"}`)

	r = twoPools(t, Options{}, "")
	r.g.Apply(Options{}) // without selection everything is the first pool's
	model(`{"model":"b"}`, "").want(t, 200, `{"from":"a"}`)
	model(`{"model":"c"}`, "").want(t, 200, `{"from":"a"}`)
	model(`{"prompt":"x"}`, "").want(t, 200, `{"from":"a"}`)
}

// X06, O03: what is not in the table of paths is closed, and says how it is opened; methods are those of the path.
func TestPathsAndMethods(t *testing.T) {
	var got seen
	r := newRig(t, Options{Options: front.Options{OpenPaths: []string{"/version"}}}, watcher(&got))
	for _, path := range []string{"/", "/metrics", "/v1/load_lora_adapter", "/sleep", "/reset_prefix_cache", "/v1", "/v1/chat/completions/x", "/v1/models/../x", "/%2e%2e/x", "/version/"} {
		a := r.do(r.request(http.MethodPost, path, plainBody))
		a.wantError(t, 404, "not_found")
		if !strings.Contains(a.body, "--open-path, and in a gateway of an InferenceGatewayConfig they stay closed") {
			t.Errorf("got %q, want how it is opened, and where it can't be", a.body)
		}
	}
	a := r.do(r.request(http.MethodGet, chatPath, ""))
	a.wantError(t, 405, "method_not_allowed")
	if a.header.Get("Allow") != "POST" {
		t.Errorf("got Allow %q, want POST", a.header.Get("Allow"))
	}
	r.do(r.request(http.MethodPost, "/v1/models", "{}")).wantError(t, 405, "method_not_allowed")
	r.do(r.request(http.MethodGet, "/version", "")).want(t, 200, "{}")
	if got.method != http.MethodGet || got.path != "/version" {
		t.Errorf("got %s %s at the engine, want GET /version", got.method, got.path)
	}
	r.do(r.request(http.MethodPost, "/version", "any text")).want(t, 200, "{}")
	if got.body != "any text" {
		t.Errorf("got %q at the engine, want the text", got.body)
	}
}
