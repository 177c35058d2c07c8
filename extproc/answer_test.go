package extproc

import (
	"context"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	filter "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"

	"github.com/sluice-gateway/sluice/fleet"
	"github.com/sluice-gateway/sluice/front"
	"github.com/sluice-gateway/sluice/route"
)

// The protocol's row "destination endpoint served": a request that Envoy retried counts where it was served.
func TestServedElsewhere(t *testing.T) {
	r := newRig(t, Options{})
	e := r.envoy(buffered)
	_, destination, _ := e.picked(good)
	list := strings.Split(destination, ",")
	e.responds("200", list[1], "via_upstream")
	if set := setBy(e.recv().GetResponseHeaders().GetResponse().GetHeaderMutation()); set[front.WireServed] != list[1] || !strings.Contains(set[front.WireReason], list[0]) {
		t.Errorf("got %v, want the second of %q", set, list)
	}
	if a, b := inFlight(r, list[0]), inFlight(r, list[1]); a != 0 || b != 1 {
		t.Errorf("got %d and %d in flight, want 0 and 1", a, b)
	}
	e.end()
	if got := r.last(1); got.Endpoint != list[1] || r.metric("sluice_moves_total", "pool", "retried") != 1 {
		t.Errorf("got the end %+v", got)
	}
	r.atRest()
	e = r.envoy(buffered)
	e.picked(good)
	e.responds("200", "10.9.9.9:1", "")
	if set := setBy(e.recv().GetResponseHeaders().GetResponse().GetHeaderMutation()); set[front.WireServed] != "" || set["x-request-id"] == "" {
		t.Errorf("got %v for an endpoint of no pool", set)
	}
	e.end()
	r.atRest()
}

// Where Envoy answers itself, nobody has served; that it knows no route to what was picked is said, once.
func TestNobodyServed(t *testing.T) {
	r := newRig(t, Options{})
	for _, c := range []struct{ served, details string }{{"", "no_healthy_upstream"}, {"", "no_healthy_upstream"}, {"first", "upstream_reset_before_response_started{remote_connection_failure}"}} {
		e := r.envoy(buffered)
		_, destination, _ := e.picked(good)
		if c.served != "" {
			c.served, _, _ = strings.Cut(destination, ",")
		}
		e.responds("503", c.served, c.details)
		set := setBy(e.recv().GetResponseHeaders().GetResponse().GetHeaderMutation())
		if served, there := set[front.WireServed]; there || set["x-request-id"] == "" {
			t.Errorf("%s: got served %q, want none, and an x-request-id", c.details, served)
		}
		e.end()
		r.atRest()
	}
	if got := strings.Count(r.said.String(), "no route"); got != 1 {
		t.Errorf("got %d warnings that there is no route, want 1", got)
	}
}

// What an answer's status, or Envoy's own words, tell of an endpoint: failures put it aside, a client's leaving
// doesn't.
func TestEndings(t *testing.T) {
	for _, c := range []struct {
		name, status, details string
		times                 int
		state                 string
	}{
		{"served", "200", "via_upstream", 4, "ready"},
		{"the client's fault", "400", "", 4, "ready"},
		{"full", "429", "via_upstream", 1, "ejected"},
		{"loading", "503", "via_upstream", 1, "ejected"},
		{"errors", "500", "via_upstream", 3, "ejected"},
		{"connection refused", "503", "upstream_reset_before_response_started{remote_connection_failure|delayed_connect_error:_Connection_refused}", 1, "ejected"},
		{"resets", "503", "upstream_reset_before_response_started{connection_termination}", 3, "ejected"},
		{"route timeout", "504", "response_timeout", 4, "ready"},
		{"no host", "503", "no_healthy_upstream", 4, "ready"},
		{"client gone", "", "", 4, "ready"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := pool("pool", "m", "10.0.0.1:8000", "10.0.0.2:8000")
			r := newRig(t, Options{}, p)
			target := "10.0.0.1:8000"
			for range c.times {
				e := r.envoy(buffered)
				_, destination, _ := e.picked(good)
				if !strings.HasPrefix(destination, target) {
					e.responds("200", "", "")
					e.recv()
					e.end()
					r.atRest()
					e = r.envoy(buffered)
					if _, destination, _ = e.picked(good); !strings.HasPrefix(destination, target) {
						t.Fatalf("got %q, want %s in turn", destination, target)
					}
				}
				if c.status != "" {
					e.responds(c.status, target, c.details)
					e.recv()
					e.end()
				} else {
					e.cancel()
				}
				r.atRest()
			}
			for _, s := range r.fleet.Pools()[0].Status(r.picker.now()) {
				if s.Endpoint.Name == target && s.State != c.state {
					t.Errorf("got %s (%s), want %s", s.State, s.Why, c.state)
				}
			}
			if c.status == "" && r.last(1).Status != 499 {
				t.Errorf("got the end %+v, want 499", r.last(1))
			}
		})
	}
}

// A session's cookie is set beside those of the engine, for TLS only where the client came by it.
func TestSessionCookie(t *testing.T) {
	both(t, func(t *testing.T, mode filter.ProcessingMode_BodySendMode) {
		r := newRig(t, Options{Options: front.Options{Sessions: map[string]front.SessionSource{"pool": {Cookie: "sid"}}}})
		e := r.envoy(mode)
		_, destination, _ := e.picked(good)
		first, _, _ := strings.Cut(destination, ",")
		e.responds("200", first, "")
		cookie := setBy(e.recv().GetResponseHeaders().GetResponse().GetHeaderMutation())["set-cookie"]
		if !strings.HasPrefix(cookie, "+sid=") || strings.Contains(cookie, "Secure") {
			t.Errorf("got %q, want it added, and not for TLS only", cookie)
		}
		e.end()
		id, _, _ := strings.Cut(strings.TrimPrefix(cookie, "+"), ";")
		e = r.envoy(mode)
		e.picked(good, "cookie", id)
		e.responds("200", first, "")
		if set := setBy(e.recv().GetResponseHeaders().GetResponse().GetHeaderMutation()); set["set-cookie"] != "" {
			t.Errorf("got %v for a client that has one", set)
		}
		e.end()
		r.atRest()
	})
}

// Answers are seen where that is asked for, and always where they hold the identifier of a stored response.
func TestSeenAnswers(t *testing.T) {
	r := newRig(t, Options{SeeAnswers: 1})
	e := r.envoy(buffered)
	e.chat()
	m := e.recv()
	if o := m.GetModeOverride(); o.GetResponseBodyMode() != streamed || o.GetRequestBodyMode() != buffered || o.GetResponseHeaderMode() != filter.ProcessingMode_SEND {
		t.Fatalf("got the mode %v", o)
	}
	e.body(`{"model":"m","stream":true,"messages":[]}`, true)
	destination := destinationIn(e.recv())
	first, _, _ := strings.Cut(destination, ",")
	e.responds("200", first, "", "content-type", "text/event-stream")
	e.recv()
	for _, p := range []string{"data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\n", "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":3}}\n\ndata: [DO", "NE]\n\n"} {
		e.responseBody(p, false)
		if c := e.recv().GetResponseBody(); c == nil || c.GetResponse().GetBodyMutation() != nil {
			t.Fatalf("got %v, want the piece left as it is", c)
		}
	}
	e.responseBody("", true)
	e.recv()
	e.end()
	if got := r.last(1); got.PromptTokens != 7 || got.OutputTokens != 3 || got.TTFT == 0 || !got.Whole {
		t.Errorf("got the end %+v", got)
	}
	if n := r.metric("sluice_time_to_first_token_seconds", "pool"); n != 1 || r.metric("sluice_extproc_answers_seen_total") != 1 {
		t.Errorf("got %v first tokens, want 1", n)
	}
	e = r.envoy(buffered)
	e.upToAnswer(first)
	e.responseBody("data: {}\n\n", false)
	e.recv()
	e.cancel()
	if got := r.last(2); got.Whole || r.metric("sluice_client_aborts_total", "pool") != 1 {
		t.Errorf("got the end %+v of an answer that was cut off", got)
	}
	r.atRest()
}

// upToAnswer takes a request up to its answer's headers.
func (e *envoy) upToAnswer(served string) {
	e.t.Helper()
	e.chat()
	e.recv()
	e.body(good, true)
	e.recv()
	e.responds("200", served, "", "content-type", "text/event-stream")
	e.recv()
}

// A response that an engine stores is asked for where it is.
func TestStoredResponse(t *testing.T) {
	r := newRig(t, Options{})
	e := r.envoy(buffered)
	e.headers(false, "POST", "/v1/responses", "content-type", "application/json")
	if o := e.recv().GetModeOverride(); o.GetResponseBodyMode() != streamed {
		t.Fatalf("got the mode %v", o)
	}
	e.body(`{"model":"m","input":"hi"}`, true)
	first, _, _ := strings.Cut(destinationIn(e.recv()), ",")
	e.responds("200", first, "", "content-type", "application/json")
	e.recv()
	e.responseBody(`{"id":"resp_abc","object":"response","usage":{"input_tokens":1,"output_tokens":2}}`, true)
	e.recv()
	e.end()
	for range 4 {
		e := r.envoy(buffered)
		e.headers(true, "GET", "/v1/responses/resp_abc")
		m := e.recv()
		if m.GetModeOverride() != nil {
			t.Error("the answer to a stateful call is to be seen")
		}
		if got := destinationIn(m); !strings.HasPrefix(got, first) {
			t.Errorf("got %q, want %s first, which keeps it", got, first)
		}
		e.end()
	}
	r.atRest()
}

// Answers in full duplex come back as they are, in small pieces, and their trailers.
func TestAnswerInFullDuplex(t *testing.T) {
	r := newRig(t, Options{})
	e := r.envoy(duplex)
	e.answer = duplex
	_, destination, _ := e.picked(good)
	first, _, _ := strings.Cut(destination, ",")
	e.responds("200", first, "", "content-type", "application/json")
	e.recv()
	text := strings.Repeat("0123456789", 20_000)
	e.responseBody(text, true)
	got, end := "", false
	for !end {
		piece := e.recv().GetResponseBody().GetResponse().GetBodyMutation().GetStreamedResponse()
		got, end = got+string(piece.GetBody()), piece.GetEndOfStream()
	}
	if got != text {
		t.Errorf("got %d bytes, want %d", len(got), len(text))
	}
	e.end()
	r.atRest()
}

// The protocol's rows on health.
func TestHealth(t *testing.T) {
	r := newRig(t, Options{}, pool("pool", "m"))
	client := healthpb.NewHealthClient(r.conn)
	check := func(service string) healthpb.HealthCheckResponse_ServingStatus {
		t.Helper()
		a, err := client.Check(context.Background(), &healthpb.HealthCheckRequest{Service: service})
		if err != nil {
			t.Fatalf("%q: %v", service, err)
		}
		return a.GetStatus()
	}
	all := func(want healthpb.HealthCheckResponse_ServingStatus) {
		t.Helper()
		for _, service := range []string{"", "readiness", "envoy.service.ext_proc.v3.ExternalProcessor"} {
			if got := check(service); got != want {
				t.Errorf("%q: got %s, want %s", service, got, want)
			}
		}
		if got := check("liveness"); got != healthpb.HealthCheckResponse_SERVING {
			t.Errorf("liveness: got %s", got)
		}
	}
	watch, err := client.Watch(context.Background(), &healthpb.HealthCheckRequest{Service: "readiness"})
	if err != nil {
		t.Fatal(err)
	}
	next := func(want healthpb.HealthCheckResponse_ServingStatus) {
		t.Helper()
		if a, err := watch.Recv(); err != nil || a.GetStatus() != want {
			t.Errorf("watching: got %v, %v, want %s", a, err, want)
		}
	}
	all(healthpb.HealthCheckResponse_NOT_SERVING)
	next(healthpb.HealthCheckResponse_NOT_SERVING)
	r.fleet.Apply([]fleet.PoolConfig{pool("pool", "m", "10.0.0.1:8000")}, "")
	r.fleet.Pools()[0].ObserveFailure("10.0.0.1:8000", fleet.NoMetrics, "")
	all(healthpb.HealthCheckResponse_SERVING)
	next(healthpb.HealthCheckResponse_SERVING)
	r.picker.Drain()
	all(healthpb.HealthCheckResponse_NOT_SERVING)
	if _, err := client.Check(context.Background(), &healthpb.HealthCheckRequest{Service: "other"}); status.Code(err) != codes.NotFound {
		t.Errorf("an unknown service: got %v", err)
	}
}

// A fault of the gateway's own ends one request, and the process lives.
func TestPanic(t *testing.T) {
	broken := true
	r := newRig(t, Options{Options: front.Options{Sample: func(string) bool { return broken }, Record: func(*route.Record) { panic("a fault") }}})
	e := r.envoy(buffered)
	e.chat()
	e.recv()
	e.body(good, true)
	if _, err := e.stream.Recv(); status.Code(err) != codes.Internal {
		t.Errorf("got %v, want an internal error", err)
	}
	if got := r.last(1); got.Status != 500 || !strings.Contains(r.said.String(), "fault of the gateway's own") {
		t.Errorf("got the end %+v", got)
	}
	r.eventually("the stream is over", func() bool { return r.metric("sluice_extproc_streams") == 0 })
	broken = false
	e = r.envoy(buffered)
	e.picked(good)
	e.end()
}

// scripted plays Envoy without a connection, in a bubble's time.
type scripted struct {
	grpc.ServerStream
	t    *testing.T
	in   chan []byte
	sent chan *answer
}

func (s *scripted) Context() context.Context { return s.t.Context() }

func (s *scripted) RecvMsg(m any) error {
	p, ok := <-s.in
	if !ok {
		return status.Error(codes.Canceled, "gone")
	}
	return newCodec().Unmarshal(mem.BufferSlice{mem.SliceBuffer(p)}, m)
}

func (s *scripted) SendMsg(m any) error {
	s.sent <- m.(*answer)
	return nil
}

// An answer that isn't ready asks for time before Envoy's patience ends, once, and whatever took so long is answered
// after it (B07).
func TestWaitingAsksForTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const slow = 7 * time.Second
		start := time.Now()
		o := Options{Patience: time.Second, MaxWait: time.Hour, Options: front.Options{Sample: func(string) bool { return true },
			Record: func(*route.Record) { <-time.After(slow) }}}
		p, _ := newPicker(t, o, func() time.Duration { return time.Since(start) }, slog.New(slog.DiscardHandler), prometheus.NewRegistry(),
			pool("pool", "m", "10.0.0.1:8000"))
		s := &scripted{t: t, in: make(chan []byte), sent: make(chan *answer)}
		ended := make(chan struct{})
		go func() { _ = p.process(s); close(ended) }()
		all := samples(t)
		s.in <- all[7]
		if a := <-s.sent; a.kind != requestHeaders {
			t.Fatalf("got %+v, want the headers' answer", a)
		}
		s.in <- all[8]
		began := time.Now()
		a := <-s.sent
		if took := time.Since(began); a.wait != time.Hour || took < 250*time.Millisecond || took > time.Second {
			t.Errorf("got %+v after %s, want to be asked for time within a second", a, took)
		}
		a = <-s.sent
		if took := time.Since(began); a.kind != requestBody || a.destination == "" || took != slow {
			t.Errorf("got %+v after %s, want the destination after %s", a, took, slow)
		}
		close(s.in)
		<-ended
		<-time.After(time.Minute) // in which those who look at waiting requests find none, and end
	})
}

// A request that waits for an endpoint that stands still is ended where another could take it: Envoy can't be told to
// move it, and would wait for as long as its idle timeout.
func TestGivesUpWhereNothingMoves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		now := func() time.Duration { return time.Since(start) }
		var ends []front.Ended
		o := Options{Options: front.Options{Ended: func(e front.Ended) { ends = append(ends, e) }}}
		config := pool("pool", "m", "10.0.0.1:8000", "10.0.0.2:8000")
		config.StallAfter = 10 * time.Second
		p, f := newPicker(t, o, now, slog.New(slog.DiscardHandler), prometheus.NewRegistry(), config)
		in := f.Pools()[0]
		for _, e := range in.Endpoints() {
			in.Observe(now(), now(), e.Name, fleet.Reading{}, nil)
		}
		s := &scripted{t: t, in: make(chan []byte), sent: make(chan *answer, 1)}
		ended := make(chan struct{})
		go func() { _ = p.process(s); close(ended) }()
		all := samples(t)
		s.in <- all[7]
		<-s.sent
		s.in <- all[8]
		picked, _, _ := strings.Cut((<-s.sent).destination, ",")
		began := time.Now()
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		var a *answer
		for a == nil {
			select {
			case a = <-s.sent:
			case <-tick.C:
				for _, e := range in.Endpoints() {
					if e.Name != picked {
						in.Observe(now(), now(), e.Name, fleet.Reading{}, nil)
					}
				}
			}
		}
		if took := time.Since(began); a.status != 502 || !strings.Contains(string(a.content), `"upstream_error"`) || took < 10*time.Second || took > 12*time.Second {
			t.Errorf("got %d %s after %s, want 502 upstream_error after 10 to 12 s", a.status, a.content, took)
		}
		if !slices.ContainsFunc(a.set, func(h header) bool { return h == header{"retry-after", "1"} }) {
			t.Errorf("got headers %v, want Retry-After: 1", a.set)
		}
		close(s.in)
		<-ended
		<-time.After(time.Minute) // in which those who look at waiting requests find none, and end
		if len(ends) != 1 || ends[0].Status != 502 || in.InFlight() != 0 {
			t.Errorf("got ends %+v and %d in flight, want one with 502 and none", ends, in.InFlight())
		}
	})
}

// An Envoy that doesn't take an answer keeps nobody else from being asked for time.
func TestWaitingBesideABlockedSend(t *testing.T) {
	start, free := time.Now(), make(chan struct{})
	slow := false // written between the requests only
	o := Options{Patience: 8 * time.Millisecond, MaxWait: time.Hour, Options: front.Options{Sample: func(string) bool { return slow },
		Record: func(*route.Record) { <-free }}}
	p, _ := newPicker(t, o, func() time.Duration { return time.Since(start) }, slog.New(slog.DiscardHandler), prometheus.NewRegistry(),
		pool("pool", "m", "10.0.0.1:8000"))
	all, ended := samples(t), make(chan struct{}, 2)
	request := func() *scripted {
		s := &scripted{t: t, in: make(chan []byte), sent: make(chan *answer)}
		go func() { _ = p.process(s); ended <- struct{}{} }()
		s.in <- all[7]
		<-s.sent
		s.in <- all[8]
		return s
	}
	blocked := request()
	for p.fleet.Pools()[0].InFlight() == 0 {
		runtime.Gosched()
	}
	slow = true
	waiting := request()
	select {
	case a := <-waiting.sent:
		if a.wait != time.Hour {
			t.Errorf("got %+v, want to be asked for time", a)
		}
	case <-time.After(20 * time.Second):
		t.Error("nobody is asked for time while another's answer isn't taken")
	}
	close(free)
	for _, s := range []*scripted{blocked, waiting} {
		for a := <-s.sent; a.kind != requestBody; a = <-s.sent {
		}
		close(s.in)
	}
	<-ended
	<-ended
}

// Who looks at all streams that wait for headers waits for none of them.
func TestStuckBesideABlockedSend(t *testing.T) {
	s := new(stream)
	s.mu.Lock() // as while it sends
	again := make(chan bool, 1)
	go func() { again <- s.stuck() }()
	select {
	case a := <-again:
		if !a {
			t.Error("a stream that sends is not looked at again")
		}
	case <-time.After(20 * time.Second):
		t.Error("others wait for a stream that sends")
	}
	s.mu.Unlock()
}
