package sim

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// bench is a farm in memory and a client of it, to be used inside one bubble.
type bench struct {
	t      testing.TB
	farm   *Farm
	client *http.Client
}

func newBench(t testing.TB, options ...ServerOptions) *bench {
	t.Helper()
	network := new(Network)
	farm, err := StartFarm(network.Listen, nil, options...)
	if err != nil {
		t.Fatal(err)
	}
	return &bench{t, farm, &http.Client{Transport: &http.Transport{DialContext: network.DialContext}}}
}

func (b *bench) close() {
	b.client.CloseIdleConnections()
	b.farm.Close()
}

// ask sends a request to the first server, a POST if there is a body, and returns the answer with its body still to be read.
func (b *bench) ask(ctx context.Context, path, body string) (*http.Response, error) {
	method := http.MethodGet
	if body != "" {
		method = http.MethodPost
	}
	r, err := http.NewRequestWithContext(ctx, method, "http://"+b.farm.Members[0].Address+path, strings.NewReader(body))
	if err != nil {
		b.t.Fatal(err)
	}
	return b.client.Do(r)
}

// get is the whole answer.
func (b *bench) get(path, body string) (status int, text string) {
	b.t.Helper()
	answer, err := b.ask(context.Background(), path, body)
	if err != nil {
		b.t.Fatal(err)
	}
	defer answer.Body.Close()
	all, err := io.ReadAll(answer.Body)
	if err != nil {
		b.t.Fatal(err)
	}
	return answer.StatusCode, string(all)
}

// value is that of a series of the metrics page.
func (b *bench) value(series string) float64 {
	b.t.Helper()
	_, page := b.get("/metrics", "")
	for line := range strings.Lines(page) {
		if rest, ok := strings.CutPrefix(line, series+" "); ok {
			v, err := strconv.ParseFloat(strings.TrimSpace(rest), 64)
			if err != nil {
				b.t.Fatal(err)
			}
			return v
		}
	}
	b.t.Fatalf("no series %s on the page", series)
	return 0
}

func small(t testing.TB) ServerOptions {
	return ServerOptions{Engine: EngineConfig{Profile: profile(t, "l8-h100")}, Model: "tiny", Seed: 1, MaxModelLen: 2048}
}

// form is a recorded or rendered text with what differs from answer to answer taken out.
func form(text string) string {
	for _, r := range [][2]string{
		{`"(id|root)":"[^"]*"`, `"$1":"…"`}, {`"(content|text)":"[^"]+"`, `"$1":"…"`}, {`"(created|created_at)":\d+`, `"$1":0`},
		{`"(prompt_tokens|total_tokens|input_tokens)":\d+`, `"$1":0`},
	} {
		text = regexp.MustCompile(r[0]).ReplaceAllString(text, r[1])
	}
	return strings.TrimSpace(text)
}

func recorded(t *testing.T, name string) string {
	t.Helper()
	return recordedAt(t, "../openai/testdata/"+name)
}

func recordedAt(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// The answers have the fields of recorded ones, in their order.
func TestRecordedForms(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := small(t)
		o.Adapters = []string{"lora-a"}
		b := newBench(t, o)
		defer b.close()
		chat := `{"model":"tiny","messages":[{"role":"user","content":"hello"}],"max_tokens":4,"ignore_eos":true`
		check := func(name, want, path, body string) {
			t.Helper()
			status, got := b.get(path, body)
			if status != http.StatusOK {
				t.Errorf("%s: got status %d: %s", name, status, got)
			}
			if diff := cmp.Diff(form(want), form(got)); diff != "" {
				t.Errorf("%s (-recorded +got):\n%s", name, diff)
			}
		}
		check("stream", recorded(t, "vllm-0.32.0-chat-stream.txt"), "/v1/chat/completions", chat+`,"stream":true,"stream_options":{"include_usage":true}}`)
		check("chat", recorded(t, "vllm-0.32.0-chat.json"), "/v1/chat/completions", chat+"}")
		check("response", recorded(t, "vllm-0.32.0-responses.json"), "/v1/responses", `{"model":"tiny","input":"hello","max_output_tokens":4}`)
		check("models", recordedAt(t, "testdata/vllm-0.32.0-models-lora.json"), "/v1/models", "")
	})
}

// At /metrics/ chosen samples can be had alone, each under its family's comments.
func TestChosenMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, small(t))
		defer b.close()
		b.get("/v1/completions", `{"model":"tiny","prompt":"hello","max_tokens":3}`)
		const query = "?name%5B%5D=vllm:generation_tokens_total&name%5B%5D=vllm:time_to_first_token_seconds_count&name%5B%5D=vllm:none"
		_, page := b.get("/metrics/"+query, "")
		var got []string
		for line := range strings.Lines(page) {
			if name, _, _ := strings.Cut(line, "{"); line[0] != '#' {
				got = append(got, name)
			}
		}
		want := []string{"vllm:generation_tokens_total", "vllm:time_to_first_token_seconds_count"}
		if !slices.Equal(got, want) || strings.Count(page, "# HELP") != 2 || strings.Count(page, "# TYPE") != 2 {
			t.Errorf("got %s, want the samples %q", page, want)
		}
		_, whole := b.get("/metrics", "")
		for _, path := range []string{"/metrics/", "/metrics" + query} {
			if _, page := b.get(path, ""); strings.Count(page, "\n") != strings.Count(whole, "\n") {
				t.Errorf("%s: got %d lines, want the whole page's %d", path, strings.Count(page, "\n"), strings.Count(whole, "\n"))
			}
		}
	})
}

// Every line of a recorded page is there, in its order, but for the values and the labels that describe another set-up.
func TestMetricsPageForm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := small(t)
		o.Adapters = []string{"a", "b"}
		b := newBench(t, o)
		defer b.close()
		b.get("/v1/completions", `{"model":"tiny","prompt":"hello","max_tokens":3}`)
		_, page := b.get("/metrics", "")
		text, err := os.ReadFile("../scrape/testdata/pages/vllm-0.32-load.txt")
		if err != nil {
			t.Fatal(err)
		}
		names := func(page string) []string {
			var out []string
			for line := range strings.Lines(page) {
				line = strings.TrimSpace(line)
				if !strings.HasPrefix(line, "#") {
					line = line[:strings.LastIndexByte(line, ' ')]
				}
				if strings.HasPrefix(line, "http_") || strings.HasPrefix(line, "vllm:lora_requests_info") {
					line, _, _ = strings.Cut(line, "{") // by paths and adapters
				}
				if strings.HasPrefix(line, "vllm:cache_config_info") {
					line = regexp.MustCompile(`="[^"]*"`).ReplaceAllString(line, "")
				}
				if len(out) == 0 || out[len(out)-1] != line {
					out = append(out, line)
				}
			}
			return out
		}
		// Series of one family by path alternate: only their names in order of appearance count.
		compact := func(lines []string) []string {
			seen := make(map[string]bool)
			return slices.DeleteFunc(lines, func(l string) bool { had := seen[l]; seen[l] = true; return had })
		}
		if diff := cmp.Diff(compact(names(string(text))), compact(names(page))); diff != "" {
			t.Errorf("(-recorded +got):\n%s", diff)
		}
	})
}

func TestPythonFloat(t *testing.T) {
	for v, want := range map[float64]string{0: "0.0", 1: "1.0", 20000: "20000.0", 999999: "999999.0", 1000000: "1e+06", 1234567.5: "1.2345675e+06",
		4937302016: "4.937302016e+09", 1.795955669812033e9: "1.795955669812033e+09", 25.580000000000002: "25.580000000000002", .0014363779998802784: "0.0014363779998802784",
		1e-5: "1e-05", .0002746623941405346: "0.0002746623941405346", 123456789012: "1.23456789012e+011", math.Inf(1): "+Inf"} {
		if got := pythonFloat(v); got != want {
			t.Errorf("%v: got %s, want %s", v, got, want)
		}
	}
}

// What a tokenizer cuts comes back as it was, and English has about four bytes a token.
func TestTokens(t *testing.T) {
	for _, text := range []string{"", " ", "a", "hello there", "  indented\n\tcode  ", "über – 日本語 🙂", "nul\x00 \x00", strings.Repeat("x", 100), "trailing ", "bad\xff\xfe"} {
		var back []byte
		for _, token := range appendTokens(nil, text) {
			back = appendText(back, token)
		}
		if string(back) != text {
			t.Errorf("%q: got back %q", text, back)
		}
	}
	english := "The gateway sees what the engines are doing and sends each request where it will be answered soonest, which is most of what people want of it."
	if per := float64(len(english)) / float64(len(appendTokens(nil, english))); per < 3.3 || per > 4.7 {
		t.Errorf("got %.1f bytes a token, want about 4", per)
	}
}

func FuzzTokens(f *testing.F) {
	f.Add("hello  there\x00\xff")
	f.Fuzz(func(t *testing.T, text string) {
		var back []byte
		for _, token := range appendTokens(nil, text) {
			back = appendText(back, token)
		}
		if string(back) != text {
			t.Errorf("%q: got back %q", text, back)
		}
	})
}

// usage is what a chat answer says was computed.
type usage struct {
	Choices []struct {
		Message struct {
			Content string `json:"content"`
		} `json:"message"`
	} `json:"choices"`
	Usage struct {
		Prompt  int `json:"prompt_tokens"`
		Details struct {
			Cached int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	} `json:"usage"`
}

func (b *bench) chat(model, salt string, messages ...string) usage {
	b.t.Helper()
	var list []map[string]string
	for i, m := range messages {
		list = append(list, map[string]string{"role": []string{"user", "assistant"}[i%2], "content": m})
	}
	body, err := json.Marshal(map[string]any{"model": model, "messages": list, "max_tokens": 40, "ignore_eos": true, "cache_salt": salt})
	if err != nil {
		b.t.Fatal(err)
	}
	var u usage
	status, text := b.get("/v1/chat/completions", string(body))
	if err := json.Unmarshal([]byte(text), &u); err != nil || status != http.StatusOK {
		b.t.Fatalf("got status %d, %v: %s", status, err, text)
	}
	return u
}

// A prompt that was computed is found again, also with its answer as the next turn repeats it; not under another adapter or salt.
func TestPrefixReuse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := small(t)
		o.Adapters = []string{"a"}
		b := newBench(t, o)
		defer b.close()
		long := strings.Repeat("words of a prompt ", 40)
		first := b.chat("tiny", "", long)
		if again := b.chat("tiny", "", long); again.Usage.Details.Cached != (first.Usage.Prompt-1)/16*16 {
			t.Errorf("again: got %d of %d tokens cached, want all full blocks", again.Usage.Details.Cached, first.Usage.Prompt)
		}
		answer := first.Choices[0].Message.Content
		// The last token of an answer is in nobody's cache.
		if next, want := b.chat("tiny", "", long, answer, "and then?").Usage.Details.Cached, (first.Usage.Prompt+40-1)/16*16; next != want {
			t.Errorf("next turn: got %d tokens cached, want %d", next, want)
		}
		for _, other := range [][2]string{{"a", ""}, {"tiny", "salt"}} {
			if u := b.chat(other[0], other[1], long); u.Usage.Details.Cached != 0 {
				t.Errorf("model %q salt %q: got %d tokens cached, want 0", other[0], other[1], u.Usage.Details.Cached)
			}
		}
		if got := b.value(`vllm:prefix_cache_hits_total{engine="0",model_name="tiny"}`); got == 0 {
			t.Error("no hits counted")
		}
		if status, text := b.get("/reset_prefix_cache", "{}"); status != http.StatusOK || text != `{"success":true}` {
			t.Errorf("reset: got %d %s", status, text)
		}
		if u := b.chat("tiny", "", long); u.Usage.Details.Cached != 0 {
			t.Errorf("after the reset: got %d tokens cached, want 0", u.Usage.Details.Cached)
		}
	})
}

// Requests that can't be served are refused as vLLM does, and those of adapters follow loading and unloading.
func TestRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := small(t)
		o.Adapters = []string{"a"}
		b := newBench(t, o)
		defer b.close()
		refuse := func(want int, kind, path, body string) {
			t.Helper()
			var e struct {
				Error struct {
					Type string `json:"type"`
					Code int    `json:"code"`
				} `json:"error"`
			}
			status, text := b.get(path, body)
			if err := json.Unmarshal([]byte(text), &e); err != nil || status != want || e.Error.Code != want || e.Error.Type != kind {
				t.Errorf("%s %s: got %d %s (%v), want %d %s", path, body, status, text, err, want, kind)
			}
		}
		refuse(404, "NotFoundError", "/v1/completions", `{"model":"other","prompt":"x"}`)
		refuse(400, "BadRequestError", "/v1/completions", `{"model":"tiny"}`)
		refuse(400, "BadRequestError", "/v1/completions", `{"model":"tiny","prompt":`)
		refuse(400, "BadRequestError", "/v1/completions", `{"model":"tiny","prompt":"x","max_tokens":4000}`)
		refuse(400, "BadRequestError", "/v1/completions", `{"model":"tiny","prompt":"`+strings.Repeat("word ", 3000)+`"}`)
		refuse(400, "BadRequestError", "/v1/chat/completions", `{"model":"tiny","messages":[]}`)
		refuse(404, "NotFoundError", "/v1/completions", `{"model":"b","prompt":"x"}`)
		refuse(400, "BadRequestError", "/v1/load_lora_adapter", `{"lora_name":"a","lora_path":"p"}`)
		for _, step := range [][2]string{
			{"/v1/load_lora_adapter", `{"lora_name":"b","lora_path":"p"}`}, {"/v1/completions", `{"model":"b","prompt":"x"}`}, {"/v1/unload_lora_adapter", `{"lora_name":"b"}`},
		} {
			if status, text := b.get(step[0], step[1]); status != http.StatusOK {
				t.Errorf("%s: got %d %s", step[0], status, text)
			}
		}
		refuse(404, "NotFoundError", "/v1/completions", `{"model":"b","prompt":"x"}`)
	})
}

// A client that goes takes its sequence with it.
func TestDisconnect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, small(t))
		defer b.close()
		ctx, cancel := context.WithCancel(t.Context())
		answer, err := b.ask(ctx, "/v1/completions", `{"model":"tiny","prompt":"x","max_tokens":1000,"ignore_eos":true,"stream":true}`)
		if err != nil {
			t.Fatal(err)
		}
		const running = `vllm:num_requests_running{engine="0",model_name="tiny"}`
		time.Sleep(time.Second)
		if got := b.value(running); got != 1 {
			t.Errorf("before: got %v running, want 1", got)
		}
		cancel()
		_ = answer.Body.Close()
		synctest.Wait()
		if got := b.value(running); got != 0 {
			t.Errorf("after: got %v running, want 0", got)
		}
		if got := b.value(`vllm:request_success_total{engine="0",finished_reason="abort",model_name="tiny"}`); got != 1 {
			t.Errorf("got %v aborted, want 1", got)
		}
	})
}

// What comes during a stall is in the queue until the engine goes on, and is computed from then on.
func TestStallIsQueueTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, small(t))
		defer b.close()
		b.get("/sim/fault", `{"fault":"stalled","value":1}`)
		ended := make(chan int)
		go func() {
			status, _ := b.get("/v1/completions", `{"model":"tiny","prompt":"x","max_tokens":10,"ignore_eos":true}`)
			ended <- status
		}()
		time.Sleep(10 * time.Second)
		b.get("/sim/fault", `{"fault":"stalled","value":0}`)
		if status := <-ended; status != http.StatusOK {
			t.Errorf("got status %d", status)
		}
		for series, want := range map[string]float64{"request_queue_time_seconds_sum": 10, "request_prefill_time_seconds_sum": 0} {
			if got := b.value(`vllm:` + series + `{engine="0",model_name="tiny"}`); got < want || got > want+.1 {
				t.Errorf("%s: got %v, want about %v", series, got, want)
			}
		}
	})
}

// Faults do what they say, and end.
func TestServerFaults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, small(t))
		defer b.close()
		const body = `{"model":"tiny","prompt":"x","max_tokens":10,"ignore_eos":true}`
		timed := func() time.Duration {
			start := time.Now()
			if status, text := b.get("/v1/completions", body); status != http.StatusOK {
				t.Errorf("got %d %s", status, text)
			}
			return time.Since(start)
		}
		fault := func(body string) {
			t.Helper()
			if status, text := b.get("/sim/fault", body); status != http.StatusOK {
				t.Errorf("%s: got %d %s", body, status, text)
			}
		}
		normal := timed()
		fault(`{"fault":"slow","value":3}`)
		if got := timed().Seconds() / normal.Seconds(); got < 2.9 || got > 3.1 {
			t.Errorf("slow by 3: took %.2f times as long", got)
		}
		fault(`{"fault":"slow","value":1}`)

		fault(`{"fault":"blind","value":1}`)
		if status, _ := b.get("/metrics", ""); status != http.StatusNotFound {
			t.Errorf("blind: got status %d of the metrics, want 404", status)
		}
		fault(`{"fault":"blind","value":0}`)

		fault(`{"fault":"failing","value":1}`)
		if status, text := b.get("/v1/completions", body); status != http.StatusInternalServerError || !strings.Contains(text, "the engine has failed") {
			t.Errorf("failing: got %d %s, want 500", status, text)
		}
		if status, _ := b.get("/sim/fault", `{"fault":"failing","value":2}`); status != http.StatusBadRequest {
			t.Errorf("failing twice as often as asked: got %d, want 400", status)
		}
		fault(`{"fault":"failing","value":0}`)

		// A frozen process answers nothing, a stalled engine at least the metrics.
		for kind, metrics := range map[string]bool{"stalled": true, "frozen": false} {
			fault(`{"fault":"` + kind + `","value":1}`)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			if _, err := b.ask(ctx, "/v1/completions", body); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s: got %v, want no answer", kind, err)
			}
			cancel()
			ctx, cancel = context.WithTimeout(t.Context(), time.Minute)
			answer, err := b.ask(ctx, "/metrics", "")
			if metrics != (err == nil) {
				t.Errorf("%s: got %v for the metrics, want an answer: %v", kind, err, metrics)
			}
			if err == nil {
				_ = answer.Body.Close()
			}
			cancel()
			fault(`{"fault":"` + kind + `","value":0}`)
			if got := timed(); got > 2*normal {
				t.Errorf("after %s: took %v, want about %v", kind, got, normal)
			}
		}

		// A crash breaks what runs and refuses what comes; a restart begins by loading and counts from nothing.
		answer, err := b.ask(t.Context(), "/v1/completions", `{"model":"tiny","prompt":"x","max_tokens":1000,"ignore_eos":true,"stream":true}`)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		b.farm.Members[0].Crash()
		if _, err := io.ReadAll(answer.Body); err == nil {
			t.Error("crash: the stream ended as if it were complete")
		}
		_ = answer.Body.Close()
		if _, err := b.ask(t.Context(), "/v1/models", ""); err == nil {
			t.Error("crashed: got an answer, want a refused connection")
		}
		if err := b.farm.Members[0].Restart(5 * time.Second); err != nil {
			t.Fatal(err)
		}
		if status, text := b.get("/v1/completions", body); status != http.StatusServiceUnavailable {
			t.Errorf("loading: got %d %s, want 503", status, text)
		}
		time.Sleep(5 * time.Second)
		timed()
		if got := b.value(`vllm:prompt_tokens_total{engine="0",model_name="tiny"}`); got != 1 {
			t.Errorf("after the restart: got %v prompt tokens, want 1", got)
		}
	})
}

// The same requests through a server and through the world have the same times to first token within 5 %.
func TestServerAgreesWithWorld(t *testing.T) {
	for _, name := range []string{"l8-h100", "l8-a10g"} {
		rate := map[string]float64{"l8-h100": 30, "l8-a10g": 1.5}[name]
		requests := Mix{Rate: Steady(rate), Prompt: Length{Mean: 900, Sigma: .6}, Output: Length{Mean: 120, Sigma: .5}}.Generate(3, 20*time.Second)
		for i := range requests {
			requests[i].Output = max(requests[i].Output, 2)
		}
		cfg := EngineConfig{Profile: profile(t, name)}
		world := Run(Options{Engines: []EngineConfig{cfg}, Requests: requests, Policy: RoundRobin()})
		var wanted []float64
		for _, o := range world.counted {
			wanted = append(wanted, o.ttft)
		}
		var got []float64
		synctest.Test(t, func(t *testing.T) {
			b := newBench(t, ServerOptions{Engine: cfg, Model: "m", Seed: 1, MaxModelLen: 26000})
			defer b.close()
			got = b.replay(requests)
			b.agreesWithPage(got, requests)
		})
		if len(got) != len(wanted) {
			t.Fatalf("%s: got %d answers, want %d", name, len(got), len(wanted))
		}
		slices.Sort(got)
		slices.Sort(wanted)
		for _, q := range []float64{.1, .5, .9, .99} {
			a, w := got[int(q*float64(len(got)))], wanted[int(q*float64(len(wanted)))]
			t.Logf("%s: quantile %g of time to first token: server %.4f s, world %.4f s", name, q, a, w)
			if math.Abs(a-w) > .05*w {
				t.Errorf("%s: quantile %g: got %.4f s, want %.4f s within 5 %%", name, q, a, w)
			}
		}
	}
}

// A slower engine's page has times as clients see them: whoever learns from it what the engine takes would believe another.
func TestPageOfASlowerEngine(t *testing.T) {
	requests := Mix{Rate: Steady(2), Prompt: Length{Mean: 900, Sigma: .6}, Output: Length{Mean: 120, Sigma: .5}}.Generate(3, 20*time.Second)
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, ServerOptions{Engine: EngineConfig{Profile: profile(t, "l8-h100")}, Model: "m", Seed: 1, MaxModelLen: 26000, Speed: .25})
		defer b.close()
		b.agreesWithPage(b.replay(requests), requests)
	})
}

// agreesWithPage compares the metrics page with what the clients saw.
func (b *bench) agreesWithPage(ttft []float64, requests []Request) {
	b.t.Helper()
	sum, prompt, output := 0., 0., 0.
	for _, t := range ttft {
		sum += t
	}
	for _, r := range requests {
		prompt += float64(r.PromptTokens())
		output += float64(r.Output)
	}
	const labels = `{engine="0",model_name="m"}`
	for series, want := range map[string]float64{"time_to_first_token_seconds_sum": sum, "inter_token_latency_seconds_count": output - float64(len(requests)),
		"generation_tokens_total": output, "prompt_tokens_total": prompt, "request_prefill_kv_computed_tokens_sum": prompt, "e2e_request_latency_seconds_count": float64(len(requests)),
		"num_requests_running": 0, "kv_cache_usage_perc": 0} {
		if got := b.value("vllm:" + series + labels); math.Abs(got-want) > .001*want {
			b.t.Errorf("%s: got %v, want %v", series, got, want)
		}
	}
}

// Adapters that run and wait are on the page, with the sets of before; a later set has a later time. One that finds no slot is deferred.
func TestAdaptersOnThePage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := small(t)
		o.Adapters, o.Engine.AdapterSlots = []string{"a", "b"}, 1
		b := newBench(t, o)
		defer b.close()
		var wait sync.WaitGroup
		for _, model := range []string{"a", "b"} {
			wait.Go(func() {
				b.get("/v1/completions", `{"model":"`+model+`","prompt":"x","max_tokens":100,"ignore_eos":true}`)
			})
			synctest.Wait()
		}
		time.Sleep(100 * time.Millisecond)
		if got := b.value(`vllm:num_requests_waiting_by_reason{engine="0",model_name="tiny",reason="deferred"}`); got != 1 {
			t.Errorf("got %v deferred, want 1", got)
		}
		wait.Wait()
		last := 0.
		for _, set := range [][2]string{{"a", "b"}, {"b", ""}, {"", ""}} {
			at := b.value(`vllm:lora_requests_info{max_lora="1",running_lora_adapters="` + set[0] + `",waiting_lora_adapters="` + set[1] + `"}`)
			if at <= last {
				t.Errorf("running %q, waiting %q: got time %f, want one after %f", set[0], set[1], at, last)
			}
			last = at
		}
	})
}

// replay sends requests at their times, as lists of tokens that nobody shares, and returns the times to first token.
func (b *bench) replay(requests []Request) []float64 {
	start := time.Now()
	var mu sync.Mutex
	var out []float64
	var wait sync.WaitGroup
	for i, r := range requests {
		var body bytes.Buffer
		body.WriteString(`{"model":"m","stream":true,"ignore_eos":true,"max_tokens":` + strconv.Itoa(r.Output) + `,"prompt":[` + strconv.Itoa(i))
		body.WriteString(strings.Repeat(",1", r.PromptTokens()-1) + "]}")
		wait.Go(func() {
			<-time.After(r.At - time.Since(start))
			sent := time.Now()
			answer, err := b.ask(context.Background(), "/v1/completions", body.String())
			if err != nil {
				b.t.Error(err)
				return
			}
			defer answer.Body.Close()
			lines := bufio.NewReader(answer.Body)
			line, err := lines.ReadString('\n')
			if err != nil || !strings.HasPrefix(line, "data: ") {
				b.t.Errorf("got %.80q, %v, want an event", line, err)
				return
			}
			took := time.Since(sent)
			if _, err := io.Copy(io.Discard, lines); err != nil {
				b.t.Error(err)
			}
			mu.Lock()
			out = append(out, took.Seconds())
			mu.Unlock()
		})
	}
	wait.Wait()
	return out
}

// No body makes a server fall over, and all are answered.
func FuzzBody(f *testing.F) {
	for _, body := range []string{`{"messages":[{"role":"user","content":[{"type":"text","text":"x"},{"type":"image_url","image_url":{"url":"u"}}]}]}`,
		`{"prompt":[1,2,3],"max_tokens":3}`, `{"prompt":[[1],[2]]}`, `{"prompt":["a",1]}`, `{"input":[{"role":"system","content":null}]}`, `{"input":"x","n":2}`,
		`{"prompt":"x","min_tokens":-1,"max_tokens":-1}`, `{"messages":[{}],"tools":[1],"stream":true}`, `{"dimensions":3,"input":["a"]}`} {
		f.Add(body)
	}
	s, err := NewServer(ServerOptions{Engine: EngineConfig{Profile: profile(f, "l8-h100")}, Model: "m", Speed: 10000, MaxModelLen: 256})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(s.Close)
	f.Fuzz(func(t *testing.T, body string) {
		for _, path := range []string{"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings", "/tokenize", "/detokenize"} {
			w := httptest.NewRecorder()
			s.ServeHTTP(w, httptest.NewRequest(http.MethodPost, path, strings.NewReader(body)))
			if w.Body.Len() == 0 || w.Code != 200 && w.Code != 400 && w.Code != 404 {
				t.Errorf("%s: got status %d and %q", path, w.Code, w.Body)
			}
		}
	})
}
