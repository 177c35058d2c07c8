package extproc

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	filter "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/sluice-gateway/sluice/fleet"
	"github.com/sluice-gateway/sluice/front"
	"github.com/sluice-gateway/sluice/openai"
)

// both runs a test in both modes in which a body can be read whole.
func both(t *testing.T, f func(t *testing.T, mode filter.ProcessingMode_BodySendMode)) {
	for _, mode := range []filter.ProcessingMode_BodySendMode{buffered, duplex} {
		t.Run(mode.String(), func(t *testing.T) { f(t, mode) })
	}
}

// The protocol's row "destination endpoint": the same list in the header and in metadata, the fallbacks in order behind
// the one that is picked (R09), no other address, and the route chosen anew.
func TestPick(t *testing.T) {
	both(t, func(t *testing.T, mode filter.ProcessingMode_BodySendMode) {
		r := newRig(t, Options{})
		e := r.envoy(mode)
		c, destination, back := e.picked(good, "x-request-id", "it")
		set := setBy(c.GetHeaderMutation())
		list := strings.Split(destination, ",")
		slices.Sort(list)
		if set[front.WireDestination] != destination || !slices.Equal(list, []string{"10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000"}) {
			t.Errorf("got %q in the header and %q in metadata, want both the same with every endpoint once", set[front.WireDestination], destination)
		}
		if set[front.WireModel] != "m" || set[front.WireBaseModel] != "m" || !c.GetClearRouteCache() {
			t.Errorf("got %v, route chosen anew %v", set, c.GetClearRouteCache())
		}
		if _, ok := set["x-request-id"]; ok {
			t.Error("a good x-request-id is set again")
		}
		if mode == duplex && back != good || mode == buffered && back != "" {
			t.Errorf("got the body %q", back)
		}
		first, _, _ := strings.Cut(destination, ",")
		if n := inFlight(r, first); n != 1 {
			t.Errorf("got %d in flight at %s, want 1", n, first)
		}
		e.responds("200", first, "via_upstream")
		h := e.recv().GetResponseHeaders().GetResponse().GetHeaderMutation()
		if set := setBy(h); set[front.WireServed] != first || set["x-request-id"] != "it" || set[front.WireReason] == "" {
			t.Errorf("got %v in the answer", set)
		}
		e.end()
		if got := r.last(1); got.ID != "it" || got.Status != 200 || !got.Whole || got.Endpoint != first || got.Model != "m" {
			t.Errorf("got the end %+v", got)
		}
		r.atRest()
	})
}

func inFlight(r *rig, endpoint string) int {
	r.t.Helper()
	for _, p := range r.fleet.Pools() {
		for _, s := range p.Status(r.picker.now()) {
			if s.Endpoint.Name == endpoint {
				return s.InFlight
			}
		}
	}
	r.t.Fatalf("there is no endpoint %s", endpoint)
	return 0
}

// In full duplex nothing goes on before the body is here, its bytes are the client's (B32), and pieces are small. One
// that trailers follow (Z14) goes back whole, or it would reach its endpoint twice where Envoy retries (B05).
func TestFullDuplexEchoes(t *testing.T) {
	r := newRig(t, Options{})
	e := r.envoy(duplex)
	text := `{ "z":1.0,"model" : "m", "n": 12345678901234567890, "prompt":"` + strings.Repeat("déjà vu ", 40_000) + `"}`
	e.headers(false, "POST", "/v1/completions", "content-type", "application/json")
	for p := text; len(p) > 0; {
		n := min(len(p), 90_001)
		e.body(p[:n], false)
		p = p[n:]
	}
	e.trailers()
	m := e.recv()
	c := m.GetRequestHeaders().GetResponse()
	if got := string(c.GetBodyMutation().GetBody()); got != text || c.GetStatus() != pb.CommonResponse_CONTINUE_AND_REPLACE || destinationIn(m) == "" {
		t.Errorf("got %d bytes back with status %s, want the %d that were sent in place of what came", len(got), c.GetStatus(), len(text))
	}
	e.end()
	e = r.envoy(duplex)
	if _, _, back := e.picked(text); back != text {
		t.Errorf("got %d bytes back, want the %d that were sent", len(back), len(text))
	}
	e.end()
	e = r.envoy(duplex)
	e.headers(false, "DELETE", "/v1/responses/resp_1")
	e.trailers()
	if m := e.recv(); m.GetRequestHeaders().GetResponse().GetStatus() != pb.CommonResponse_CONTINUE || destinationIn(m) == "" {
		t.Errorf("got %v for trailers without a body", m)
	}
	if m := e.recv(); m.GetRequestTrailers() == nil {
		t.Errorf("got %v, want the trailers' answer", m)
	}
	e.end()
	r.atRest()
}

// A body's last message that comes twice (B03), and whatever else follows the end, changes nothing.
func TestNothingAfterTheEnd(t *testing.T) {
	both(t, func(t *testing.T, mode filter.ProcessingMode_BodySendMode) {
		r := newRig(t, Options{})
		e := r.envoy(mode)
		e.picked(good)
		e.body(good, true)
		e.body("", true)
		e.chat()
		e.end()
		r.atRest()
	})
}

// Trailers behind a buffered body come as a message of their own, and the body's isn't marked as the last then.
func TestBufferedWithTrailers(t *testing.T) {
	r := newRig(t, Options{})
	e := r.envoy(buffered)
	e.chat()
	e.recv()
	e.body(good, false)
	if m := e.recv(); destinationIn(m) == "" {
		t.Errorf("got %v, want a destination", m)
	}
	e.trailers()
	if m := e.recv(); m.GetRequestTrailers() == nil {
		t.Errorf("got %v, want the trailers' answer", m)
	}
	e.end()
	e = r.envoy(buffered)
	e.headers(false, "GET", "/v1/responses/resp_1")
	e.recv()
	e.trailers()
	if status, _, _ := e.refused(); status != 400 {
		t.Errorf("got %d for trailers without a body, want 400", status)
	}
	r.atRest()
}

// Without a body the headers' answer has everything.
func TestNoBody(t *testing.T) {
	both(t, func(t *testing.T, mode filter.ProcessingMode_BodySendMode) {
		r := newRig(t, Options{})
		e := r.envoy(mode)
		e.headers(true, "GET", "/v1/responses/resp_1")
		m := e.recv()
		if set := setBy(m.GetRequestHeaders().GetResponse().GetHeaderMutation()); set[front.WireDestination] == "" || set[front.WireDestination] != destinationIn(m) {
			t.Errorf("got %v", m)
		}
		e.end()
		r.atRest()
	})
}

// Malformed bodies (B12, B13), two models (B11), no body: 400 in OpenAI's form, and the process lives.
func TestBadBodies(t *testing.T) {
	both(t, func(t *testing.T, mode filter.ProcessingMode_BodySendMode) {
		r := newRig(t, Options{})
		n := 0
		for _, body := range []string{"", "[]", "true", "text", `{"model":"m"`, `{"model":"m","model":"n"}`, `{"model":1}`, `{"messages":[]}`} {
			e := r.envoy(mode)
			e.chat()
			if mode == buffered {
				e.recv()
			}
			e.body(body, true)
			status, set, text := e.refused()
			if status != 400 || !strings.HasPrefix(text, `{"error":{`) || set["content-type"] != "application/json" || set["x-request-id"] == "" {
				t.Errorf("%q: got %d, %v, %s", body, status, set, text)
			}
			if n++; r.last(n).Status != 400 {
				t.Errorf("%q: got the end %+v", body, r.last(n))
			}
		}
		e := r.envoy(mode)
		e.headers(true, "POST", "/v1/completions")
		if status, _, text := e.refused(); status != 400 || !strings.Contains(text, "empty") {
			t.Errorf("got %d, %s for no body", status, text)
		}
		r.atRest()
	})
}

// Refusals of every kind reach the client, also after the headers went on (B29), with what tells it when to come again.
func TestRefusals(t *testing.T) {
	both(t, func(t *testing.T, mode filter.ProcessingMode_BodySendMode) {
		full := newRig(t, Options{Options: front.Options{MaxBodyBytes: 1 << 20, BodyBudget: 100}})
		empty := newRig(t, Options{}, pool("pool", "m"))
		for _, c := range []struct {
			name, body string
			rig        *rig
			status     int
			code       string
			again      bool
		}{
			{"no memory for bodies", good + strings.Repeat(" ", 100), full, 429, "overloaded", true},
			{"over the limit", good + strings.Repeat(" ", 1<<20), full, 413, "request_too_large", false},
			{"no endpoint", good, empty, 503, "no_endpoint", true},
			{"unknown model", `{"model":"other"}`, empty, 404, "model_not_found", false},
		} {
			e := c.rig.envoy(mode)
			e.chat()
			if mode == buffered {
				e.recv()
			}
			e.body(c.body, true)
			status, set, text := e.refused()
			if status != c.status || !strings.Contains(text, `"code":"`+c.code+`"`) || (set["retry-after"] != "") != c.again {
				t.Errorf("%s: got %d, %v, %s", c.name, status, set, text)
			}
			if c.status == 404 && !strings.Contains(text, openai.NoModelMessage) {
				t.Errorf("%s: got %s, want the sentence", c.name, text)
			}
			c.rig.atRest()
		}
		e := full.envoy(mode)
		e.chat("content-length", "2000000")
		if status, _, _ := e.refused(); status != 413 {
			t.Errorf("got %d for a long body that is only announced, want 413", status)
		}
		for path, want := range map[string]int{"/metrics": 404, "/v1/completions": 405, "no path": 400, "/v1/%zz": 400} {
			e := full.envoy(mode)
			e.headers(true, "GET", path)
			status, set, _ := e.refused()
			if status != want || (set["allow"] != "") != (want == 405) {
				t.Errorf("%s: got %d, %v, want %d", path, status, set, want)
			}
		}
		full.atRest()
	})
}

// A body over the limit is refused at the piece that goes over it, not when all of it is here.
func TestLimitByPieces(t *testing.T) {
	r := newRig(t, Options{Options: front.Options{MaxBodyBytes: 1000}})
	e := r.envoy(duplex)
	e.chat()
	e.body(strings.Repeat("x", 900), false)
	e.body(strings.Repeat("x", 200), false)
	if status, _, _ := e.refused(); status != 413 {
		t.Errorf("got %d, want 413", status)
	}
	r.atRest()
}

// Bodies beyond gRPC's own limit of 4 MB (B34).
func TestLargeBody(t *testing.T) {
	both(t, func(t *testing.T, mode filter.ProcessingMode_BodySendMode) {
		r := newRig(t, Options{})
		text := `{"model":"m","prompt":"` + strings.Repeat("0123456789", 600_000) + `"}`
		e := r.envoy(mode)
		_, destination, back := e.picked(text)
		if destination == "" || mode == duplex && back != text {
			t.Errorf("got %q and %d bytes back, want all %d", destination, len(back), len(text))
		}
		e.end()
		r.atRest()
	})
}

// Modes in which a body can't be read whole are refused, with the setting's name.
func TestWrongModes(t *testing.T) {
	r := newRig(t, Options{})
	for _, mode := range []filter.ProcessingMode_BodySendMode{none, streamed, partial} {
		e := r.envoy(mode)
		e.chat()
		if status, _, text := e.refused(); status != 500 || !strings.Contains(text, "request_body_mode is "+mode.String()+",") {
			t.Errorf("%s: got %d, %s", mode, status, text)
		}
	}
	e := r.envoy(buffered)
	e.mute = true // so that only what comes tells
	e.chat()
	e.recv()
	e.body(good[:10], false)
	if status, _, text := e.refused(); status != 500 || !strings.Contains(text, "STREAMED") {
		t.Errorf("got %d, %s for pieces from an Envoy that says nothing of its modes", status, text)
	}
	e = r.envoy(buffered)
	e.mute = true
	if _, destination, _ := e.picked(good); destination == "" {
		t.Error("got no destination for a whole body from an Envoy that says nothing of its modes")
	}
	e.end()
	e = r.envoy(buffered)
	e.send(&pb.ProcessingRequest{ObservabilityMode: true, Request: &pb.ProcessingRequest_RequestHeaders{RequestHeaders: &pb.HttpHeaders{Headers: headerMap(":path", "/")}}})
	if m, err := e.stream.Recv(); err == nil || err == io.EOF {
		t.Errorf("got %v, %v in observability mode, want an error", m, err)
	}
	r.atRest()
}

// What a client may not say is taken away (H12, H13), what disturbs streams, too (H11), and all else stays (H15, H17,
// H18).
func TestRequestHeaders(t *testing.T) {
	both(t, func(t *testing.T, mode filter.ProcessingMode_BodySendMode) {
		r := newRig(t, Options{})
		e := r.envoy(mode)
		c, _, _ := e.picked(good, "accept-encoding", "gzip", "x-gateway-inference-objective", "urgent", front.WireDestination, "6.6.6.6:666", front.WireBaseModel, "other",
			front.WireModel, "other", "x-data-parallel-rank", "7", "x-prefiller-host-port", "6.6.6.6:666", "x-envoy-original-path", "/other", "connection", "x-hop", "x-hop", "1",
			"te", "trailers", "proxy-authorization", "Basic x",
			"x-session-id", "s", "authorization", "Bearer \xff\xfe", "traceparent", "00-1-2-01", "x-request-id", "bad id <b>")
		removed := c.GetHeaderMutation().GetRemoveHeaders()
		slices.Sort(removed)
		want := []string{"accept-encoding", "proxy-authorization", "te", "x-data-parallel-rank", "x-gateway-inference-objective", "x-hop", "x-prefiller-host-port"}
		if !slices.Equal(removed, want) {
			t.Errorf("got %q removed, want %q", removed, want)
		}
		set := setBy(c.GetHeaderMutation())
		if got := slices.Sorted(maps.Keys(set)); !slices.Equal(got, []string{front.WireBaseModel, front.WireDestination, front.WireModel, "x-request-id"}) ||
			set[front.WireModel] != "m" || set[front.WireBaseModel] != "m" || strings.ContainsAny(set["x-request-id"], " <") {
			t.Errorf("got %v set", set)
		}
		e.end()
		r.atRest()
	})
}

// An engine's key and rank are told, and the address is without the rank.
func TestEngineHeaders(t *testing.T) {
	p := pool("pool", "m")
	p.Endpoints = []fleet.Endpoint{{Name: "[fd00::1]:8000", Host: "[fd00::1]:8000", APIKey: "secret", Ranks: 2, Rank: 1}}
	r := newRig(t, Options{}, p)
	name := r.fleet.Pools()[0].Endpoints()[0].Name
	r.fleet.Pools()[0].ObserveFailure(name, fleet.NoMetrics, "")
	e := r.envoy(buffered)
	c, destination, _ := e.picked(good)
	if set := setBy(c.GetHeaderMutation()); destination != "[fd00::1]:8000" || set["authorization"] != "Bearer secret" || set["x-data-parallel-rank"] == "" {
		t.Errorf("got %q and %v", destination, set)
	}
	e.end()
	r.atRest()
}

// The protocol's row "endpoint subset": only what is named, in either form, in IPv6, too; nothing named is 503.
func TestSubset(t *testing.T) {
	r := newRig(t, Options{}, pool("pool", "m", "10.0.0.1:8000", "10.0.0.2:8000", "[fd00::1]:8000"))
	for _, c := range []struct {
		hint any
		want []string
	}{
		{[]any{"10.0.0.2:8000"}, []string{"10.0.0.2:8000"}},
		{"10.0.0.1:8000, [fd00::1]:8000", []string{"10.0.0.1:8000", "[fd00::1]:8000"}},
		{[]any{"10.0.0.1:8000", "[fd00::1]:8000"}, []string{"10.0.0.1:8000", "[fd00::1]:8000"}},
		{[]any{"10.9.9.9:8000"}, nil},
		{[]any{}, nil},
		{"", nil},
	} {
		for range 5 {
			e := r.envoy(buffered)
			e.space = map[string]*structpb.Struct{spaceSubset: object(t, front.WireSubset, c.hint)}
			if c.want == nil {
				e.chat()
				e.recv()
				e.body(good, true)
				if status, set, _ := e.refused(); status != 503 || set["retry-after"] == "" {
					t.Errorf("%v: got %d, %v, want 503", c.hint, status, set)
				}
				continue
			}
			_, destination, _ := e.picked(good)
			for _, d := range strings.Split(destination, ",") {
				if !slices.Contains(c.want, d) {
					t.Errorf("%v: got %q, want some of %q", c.hint, destination, c.want)
				}
			}
			e.end()
		}
	}
	r.atRest()
}

// Two requests at once with the same x-request-id don't meet (S13, S14), and many at once leave nothing behind (P07,
// R14).
func TestAtOnce(t *testing.T) {
	r := newRig(t, Options{})
	var all sync.WaitGroup
	for i := range 60 {
		all.Add(1)
		go func() {
			defer all.Done()
			mode := []filter.ProcessingMode_BodySendMode{buffered, duplex}[i%2]
			e := r.envoy(mode)
			text := fmt.Sprintf(`{"model":"m","n":%d,"prompt":"%s"}`, i, strings.Repeat("p", 1000*i))
			_, destination, back := e.picked(text, "x-request-id", "same")
			if mode == duplex && back != text {
				t.Errorf("request %d: got another body back", i)
			}
			served, _, _ := strings.Cut(destination, ",")
			switch i % 3 {
			case 0:
				e.cancel() // before the answer
			case 1:
				e.responds("200", served, "")
				e.recv()
				e.cancel() // while it comes
			default:
				e.responds("200", served, "")
				e.recv()
				e.end()
			}
		}()
	}
	all.Wait()
	r.atRest()
}

// What the gateway answers itself.
func TestOwnAnswers(t *testing.T) {
	r := newRig(t, Options{}, pool("pool", "m", "10.0.0.1:8000"), pool("other", "n"))
	ask := func(method, path string) (int, map[string]string, string) {
		e := r.envoy(buffered)
		e.headers(true, method, path)
		return e.refused()
	}
	if status, set, text := ask("GET", "/v1/models"); status != 200 || set["content-type"] != "application/json" || !strings.Contains(text, `"id":"m"`) {
		t.Errorf("models: got %d, %v, %s", status, set, text)
	}
	if status, _, text := ask("HEAD", "/v1/models"); status != 200 || text != "" {
		t.Errorf("HEAD of models: got %d, %q", status, text)
	}
	if status, _, _ := ask("GET", "/v1/models/none"); status != 404 {
		t.Errorf("an unknown model: got %d", status)
	}
	if status, _, text := ask("GET", "/healthz"); status != 200 || text != "ok\n" {
		t.Errorf("healthz: got %d, %q", status, text)
	}
	if status, _, text := ask("GET", "/readyz"); status != 200 || !strings.Contains(text, `"ready":true`) {
		t.Errorf("readyz: got %d, %s", status, text)
	}
	r.picker.Drain()
	if status, _, text := ask("GET", "/readyz"); status != 503 || !strings.Contains(text, `"draining":true`) {
		t.Errorf("readyz while draining: got %d, %s", status, text)
	}
	r.atRest()
}

// A rewritten model is the only change to the body, whose length is told right (H03).
func TestRewrite(t *testing.T) {
	both(t, func(t *testing.T, mode filter.ProcessingMode_BodySendMode) {
		rule := front.Rewrite{Name: "canary", Pool: "pool", Rules: []front.RewriteRule{{Models: []string{"alias"}, Targets: []front.RewriteTarget{{Model: "m", Weight: 1}}}}}
		r := newRig(t, Options{Options: front.Options{Rewrites: []front.Rewrite{rule}}})
		text := `{"messages":[{"content":"` + strings.Repeat("x", 100_000) + `"}], "model" : "alias","n":1.0}`
		want := strings.Replace(text, `"alias"`, `"m"`, 1)
		e := r.envoy(mode)
		c, destination, back := e.picked(text, "content-length", fmt.Sprint(len(text)))
		if destination == "" || back != want {
			t.Errorf("got %q and %d bytes, want the %d with the other name", destination, len(back), len(want))
		}
		if set := setBy(c.GetHeaderMutation()); set["content-length"] != fmt.Sprint(len(want)) || set[front.WireModel] != "m" {
			t.Errorf("got %v", set)
		}
		e.end()
		r.atRest()
	})
}

// The objective that a trusted client names has its priority in the log; of others the header counts for nothing, and goes no
// further than Envoy.
func TestObjective(t *testing.T) {
	both(t, func(t *testing.T, mode filter.ProcessingMode_BodySendMode) {
		for _, trust := range []bool{true, false} {
			r := newRig(t, Options{Options: front.Options{TrustHeaders: trust, Objectives: []front.Objective{{Name: "batch", Pool: "pool", Priority: -10}}}})
			e := r.envoy(mode)
			c, destination, _ := e.picked(good, "x-llm-d-inference-objective", "batch")
			if dropped := slices.Contains(c.GetHeaderMutation().GetRemoveHeaders(), "x-llm-d-inference-objective"); destination == "" || dropped == trust {
				t.Errorf("trusted %v: got %q, the header removed: %v", trust, destination, dropped)
			}
			e.end()
			r.atRest()
			if said := strings.Contains(r.said.String(), "objective=batch priority=-10"); said != trust {
				t.Errorf("trusted %v: got the log %s", trust, r.said)
			}
		}
	})
}

// As a body-based router alone: model and base model in headers, nothing picked, and what no pool serves left to the
// catch-all.
func TestSelectOnly(t *testing.T) {
	both(t, func(t *testing.T, mode filter.ProcessingMode_BodySendMode) {
		p := pool("pool", "base")
		p.Adapters = []string{"adapter"}
		r := newRig(t, Options{SelectOnly: true}, p)
		for model, want := range map[string]string{"base": "base", "adapter": "base"} {
			e := r.envoy(mode)
			text := `{"model":"` + model + `"}`
			c, destination, back := e.picked(text, front.WireDestination, "6.6.6.6:666")
			set := setBy(c.GetHeaderMutation())
			if set[front.WireModel] != model || set[front.WireBaseModel] != want || destination != "" || set[front.WireDestination] != "" || !c.GetClearRouteCache() || mode == duplex && back != text {
				t.Errorf("%s: got %v, %q", model, set, destination)
			}
			if got := c.GetHeaderMutation().GetRemoveHeaders(); !slices.Equal(got, []string{front.WireDestination}) {
				t.Errorf("%s: got %q removed, want the client's destination", model, got)
			}
			e.responds("200", "", "")
			e.recv()
			e.end()
		}
		e := r.envoy(mode)
		e.chat()
		if mode == buffered {
			e.recv()
		}
		e.body(`{"model":"other"}`, true)
		if status, _, text := e.refused(); status != 404 || !strings.Contains(text, openai.NoModelMessage) {
			t.Errorf("got %d, %s", status, text)
		}
		r.atRest()

		r = newRig(t, Options{SelectOnly: true}, p, pool("default backend", ""))
		e = r.envoy(mode)
		c, _, _ := e.picked(`{"model":"other"}`, front.WireBaseModel, "base")
		if set := setBy(c.GetHeaderMutation()); set[front.WireModel] != "other" || set[front.WireBaseModel] != "" || !slices.Contains(c.GetHeaderMutation().GetRemoveHeaders(), front.WireBaseModel) {
			t.Errorf("default backend: got %v", c.GetHeaderMutation())
		}
		e.end()
		r.atRest()
	})
}
