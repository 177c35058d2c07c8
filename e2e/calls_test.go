//go:build doors && unix

package e2e

import (
	"bufio"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
)

const (
	chatModel  = "tiny"
	embedModel = "tiny-embed"
	sentence   = "no matching model: set the model in the request body or the x-gateway-model-name header"
)

// neighbours starts three engines and the gateway before them.
func neighbours(t *testing.T, d door, slots int, args ...string) ([]*engine, *gateway) {
	t.Helper()
	engines := startEngines(t, 3, slots, "--alias", chatModel)
	g := d.start(t, []string{chatModel}, append([]string{"--endpoint", chatModel + "=" + addresses(engines)}, args...)...)
	return engines, g
}

// TestCalls makes one call of every kind with the OpenAI client.
func TestCalls(t *testing.T) { throughAll(t, calls) }

func calls(t *testing.T, d door) {
	embedder := startEngines(t, 1, 2, "--alias", embedModel, "--embeddings")
	engines, g := neighbours(t, d, 4, "--endpoint", embedModel+"="+addresses(embedder))
	told := map[string]event{}
	for _, e := range startClient(t, "calls", g.url).finish(time.Minute) {
		told[e.Call] = e
	}

	served := func(name string, tokens int) event {
		t.Helper()
		e := told[name]
		if e.Error != "" || e.Tokens != tokens || e.Call == "" {
			t.Errorf("%s: got %d tokens and error %q %d %s, want %d tokens and none", name, e.Tokens, e.Error, e.Status, e.Message, tokens)
		}
		return e
	}
	refused := func(name, class string, status int, code, message string) {
		t.Helper()
		e := told[name]
		if e.Error != class || e.Status != status || code != "" && e.Code != code || !strings.Contains(e.Message, message) {
			t.Errorf("%s: got %q %d code %q: %s, want %q %d code %q: …%s…", name, e.Error, e.Status, e.Code, e.Message, class, status, code, message)
		}
	}

	chat := served("chat", 12)
	if chat.Text == "" || chat.Finish != "length" {
		t.Errorf("chat: got text %q and finish %q, want some text and length", chat.Text, chat.Finish)
	}
	if chat.RequestID != "e2e-chat-1" {
		t.Errorf("chat: got x-request-id %q, want the client's e2e-chat-1", chat.RequestID)
	}
	if !slices.ContainsFunc(engines, func(e *engine) bool { return e.address == chat.Endpoint }) {
		t.Errorf("chat: got %q as the endpoint that served, want one of %s", chat.Endpoint, addresses(engines))
	}
	if id := told["generated_id"].RequestID; id == "" {
		t.Errorf("a call without x-request-id: got none back, want one")
	}
	served("completion", 12)
	served("stream_usage", 24)
	// S08, S09: without include_usage the engine's chunks are the whole stream.
	if s := served("stream", 0); s.Finish != "length" || s.Chunks < 24 || s.Text == "" {
		t.Errorf("stream: got finish %q, %d chunks, text %q, want length, at least 24, some text", s.Finish, s.Chunks, s.Text)
	}
	served("responses", 12)
	if s := served("responses_stream", 12); s.Last != "response.completed" {
		t.Errorf("responses stream: got %q as its last event, want response.completed", s.Last)
	}
	if e := served("embeddings", 0); e.Vectors != 2 || e.Width != 32 {
		t.Errorf("embeddings: got %d vectors of %d, want 2 of 32", e.Vectors, e.Width)
	}
	// Q03: the union over the pools.
	if got := told["models"].Models; !slices.Equal(got, []string{chatModel, embedModel}) {
		t.Errorf("models: got %v, want %s and %s", got, chatModel, embedModel)
	}
	served("model_header", 1)
	refused("unknown_model", "NotFoundError", 404, "model_not_found", sentence)
	refused("unknown_model_stream", "NotFoundError", 404, "model_not_found", sentence)
	refused("malformed", "BadRequestError", 400, "invalid_request", "")
	refused("model_not_a_string", "BadRequestError", 400, "invalid_request", "")
	// S16: an engine's own refusal passes as it is, for a stream too.
	refused("engine_refusal", "BadRequestError", 400, "400", "Expected 'messages' to be an array")
	refused("engine_refusal_stream", "BadRequestError", 400, "400", "Expected 'messages' to be an array")
	wantMetrics(t, g)
}

// wantMetrics fetches the gateway's own metrics and wants samples of its own, not
// only those of the Go runtime.
func wantMetrics(t *testing.T, g *gateway) {
	t.Helper()
	client := http.Client{Timeout: 10 * time.Second}
	defer client.CloseIdleConnections()
	answer, err := client.Get(g.admin + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	own := 0
	for scanner := bufio.NewScanner(answer.Body); scanner.Scan(); {
		if strings.HasPrefix(scanner.Text(), "sluice_") {
			own++
		}
	}
	if answer.StatusCode != http.StatusOK || own == 0 {
		t.Errorf("metrics: got status %d and %d samples named sluice_…, want 200 and some", answer.StatusCode, own)
	}
}

// TestConcurrentCalls sends 32 requests at once, half of them streams.
func TestConcurrentCalls(t *testing.T) { throughBoth(t, concurrentCalls) }

func concurrentCalls(t *testing.T, d door) {
	engines, g := neighbours(t, d, 4)
	all := startClient(t, "load", g.url, "--requests", "32", "--concurrency", "32").finish(time.Minute)
	wantNoneLost(t, all)
	if got, want := tally(all), (counts{OK: 32}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	for _, e := range all {
		if e.Event == "end" && e.Tokens != 24 {
			t.Errorf("request %d: got %d tokens, want 24", e.N, e.Tokens)
		}
	}
	for _, e := range engines {
		if got := e.mustRead(t).prompts(); got == 0 {
			t.Errorf("%s: got no request, want some of 32 on each of 3 engines with 4 slots", e.name)
		}
	}
}

// TestAbandonedCalls has clients go away in the middle. S18, S19: the engine stops.
//
// A llama.cpp server looks whether the client of a call without streaming is still
// there when nothing has come out of it for a second, and a reading of its metrics
// counts as something. So both the gateway and the test read slower than that.
func TestAbandonedCalls(t *testing.T) { throughAll(t, abandonedCalls) }

func abandonedCalls(t *testing.T, d door) {
	t.Parallel() // most of it is waiting
	engines, g := neighbours(t, d, 4, "--scrape-interval", "1500ms", "--stale-after", "5s")

	closed := startClient(t, "abort", g.url, "--tokens", "8000")
	closed.wait("the stream to begin", 30*time.Second, func(all []event) bool { return len(all) > 0 })
	eventually(t, "one engine to work on the stream", 10*time.Second, func() bool { return busy(t, engines) == 1 })
	if _, err := closed.stdin.Write([]byte("\n")); err != nil {
		t.Fatal(err)
	}
	closed.wait("the client to close the stream", 10*time.Second, func(all []event) bool { return len(all) > 1 })
	eventually(t, "no engine to work on a stream that its client closed", 5*time.Second, func() bool { return busy(t, engines) == 0 })
	closed.finish(10 * time.Second)

	late := startClient(t, "load", g.url, "--requests", "4", "--concurrency", "4", "--streams", "none", "--tokens", "8000", "--timeout", "4")
	eventually(t, "the engines to work on four calls", 20*time.Second, func() bool { return busy(t, engines) == 4 })
	if got, want := tally(late.finish(30*time.Second)), (counts{Failed: 4}); got != want {
		t.Fatalf("got %+v of four calls whose client waits 4 s, want %+v", got, want)
	}
	eventuallyEvery(t, 1700*time.Millisecond, "no engine to work on calls whose client timed out", 12*time.Second, func() bool { return busy(t, engines) == 0 })
}
