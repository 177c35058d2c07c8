package openai

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestErrorsHaveOneTable(t *testing.T) {
	want := map[Case]string{
		InvalidRequest:   "400 invalid_request",
		NoToken:          "401 invalid_api_key",
		Forbidden:        "403 permission_denied",
		ModelNotFound:    "404 model_not_found",
		PathNotFound:     "404 not_found",
		MethodNotAllowed: "405 method_not_allowed",
		TooLarge:         "413 request_too_large",
		UnsupportedMedia: "415 unsupported_encoding",
		Overloaded:       "429 overloaded",
		ClientGone:       "499 client_closed_request",
		Internal:         "500 internal_error",
		UpstreamFailed:   "502 upstream_error",
		NoEndpoint:       "503 no_endpoint",
		ShuttingDown:     "503 shutting_down",
		TimedOut:         "504 timeout",
		Case(99):         "500 internal_error",
		Case(-1):         "500 internal_error",
	}
	for c, want := range want {
		if got := fmt.Sprintf("%d %s", c.Status(), c.row().code); got != want {
			t.Errorf("case %d: got %s, want %s", c, got, want)
		}
	}
}

func TestWriteError(t *testing.T) {
	e := NoEndpoint.Errorf("pool %q has no \"ready\" endpoint\n", "p<1>")
	e.RetryAfter = 1200 * time.Millisecond
	w := httptest.NewRecorder()
	w.Header().Set("X-Request-Id", "1")
	WriteError(w, e)
	resp := w.Result()
	body, _ := io.ReadAll(resp.Body)
	if resp.StatusCode != http.StatusServiceUnavailable || resp.Header.Get("Retry-After") != "2" ||
		resp.Header.Get("Content-Length") != fmt.Sprint(len(body)) || resp.Header.Get("Content-Type") != "application/json" {
		t.Errorf("got %d with %v", resp.StatusCode, resp.Header)
	}
	var got map[string]map[string]any
	if err := json.Unmarshal(body, &got); err != nil {
		t.Fatal(err)
	}
	want := map[string]map[string]any{"error": {
		"message": e.Message, "type": "server_error", "param": nil, "code": "no_endpoint"}}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("want -, got +:\n%s", d)
	}
}

func TestModelNotFoundHoldsTheSentence(t *testing.T) {
	for _, e := range []*Error{ModelNotFound.Errorf(""), ModelNotFound.Errorf(NoModelMessage), ModelNotFound.Errorf("model %q is not served", "m")} {
		if strings.Count(e.Message, NoModelMessage) != 1 || e.Param != "model" {
			t.Errorf("got %q for %q, want the sentence once, for model", e.Message, e.Param)
		}
	}
}

// Where no scheduler is left nobody is told to set the model: it would not help.
func TestNoSchedulerStandsAlone(t *testing.T) {
	if e := ModelNotFound.Errorf("%s", NoSchedulerMessage); e.Message != NoSchedulerMessage || e.Param != "model" || e.Code != "model_not_found" {
		t.Errorf("got %+v, want the sentence alone", e)
	}
}

func TestSSEErrorEndsAnOpenEvent(t *testing.T) {
	got := string(SSEError(UpstreamFailed.Errorf("a\nb")))
	want := "\nevent: error\ndata: " + `{"error":{"message":"a\nb","type":"server_error","param":null,"code":"upstream_error"}}` + "\n\n"
	if got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestAsError(t *testing.T) {
	own := TimedOut.Errorf("x")
	for _, c := range []struct {
		err    error
		status int
	}{
		{fmt.Errorf("wrapped: %w", own), 504},
		{fmt.Errorf("wrapped: %w", ErrTooLarge), 413},
		{&http.MaxBytesError{Limit: 1}, 413},
		{fmt.Errorf("wrapped: %w", ErrBudget), 429},
		{io.ErrUnexpectedEOF, 400},
		{errors.New("?"), 400},
	} {
		got := AsError(c.err)
		if got.Status != c.status || (got.Status == 429) != (got.retryAfter() != "") {
			t.Errorf("AsError(%v): got %d with Retry-After %q, want %d", c.err, got.Status, got.retryAfter(), c.status)
		}
	}
}

func TestPathOf(t *testing.T) {
	for path, want := range map[string]Path{
		"/v1/chat/completions":            {Operation: "chat_completions", Body: true},
		"/v1/chat/completions/":           {Operation: "chat_completions", Body: true},
		"/v1/completions":                 {Operation: "completions", Body: true},
		"/v1/responses":                   {Operation: "responses", Body: true}, // Q05
		"/v1/responses/resp_1":            {Operation: "responses", Stateful: true},
		"/v1/responses/resp_1/":           {Operation: "responses", Stateful: true},
		"/v1/responses/resp_1/cancel":     {Operation: "responses", Stateful: true},
		"/v1/responses/input_tokens":      {Operation: "count_tokens", Body: true},
		"/v1/messages":                    {Operation: "messages", Body: true}, // O14
		"/v1/messages/count_tokens":       {Operation: "count_tokens", Body: true},
		"/v1/embeddings":                  {Operation: "embeddings", Body: true},
		"/v1/audio/transcriptions":        {Operation: "audio_transcriptions", Body: true},
		"/v1/images/generations":          {Operation: "images", Body: true},
		"/v1/rerank":                      {Operation: "rerank", Body: true},
		"/score":                          {Operation: "score", Body: true},
		"/v1/moderations":                 {Operation: "moderations", Body: true},
		"/tokenize":                       {Operation: "tokenize", Body: true},
		"/v1/models":                      {Operation: "models"}, // B22
		"/v1/models/":                     {Operation: "models"},
		"/v1/models/org/name":             {Operation: "models"},
		"":                                {},
		"/":                               {},
		"/v1/":                            {},
		"/v1//models":                     {},
		"/v1/models//":                    {},
		"/v1/models/../load_lora_adapter": {},
		"/v1/chat/completions//":          {},
		"/v1/Chat/completions":            {},
		"/v1/load_lora_adapter":           {},
		"/v1/unload_lora_adapter":         {},
		"/reset_prefix_cache":             {},
		"/sleep":                          {},
		"/wake_up":                        {},
		"/metrics":                        {},
		"/v1/responses//":                 {},
		"/v1/responses/..":                {},
		"/v1/responses/x/../y":            {},
		"/v1/responses/x/other":           {},
		"/v1/responses/x//":               {},
	} {
		got, ok := PathOf(path)
		if got != want || ok != (want != Path{}) {
			t.Errorf("PathOf(%q): got %+v, %v, want %+v", path, got, ok, want)
		}
	}
	for path, want := range map[string]string{
		"/v1/responses/resp_1/cancel": "resp_1", "/v1/responses/resp_1/": "resp_1", "/v1/responses": "", "/v1/responses/input_tokens": "",
	} {
		if got := ResponseID(path); got != want {
			t.Errorf("ResponseID(%q): got %q, want %q", path, got, want)
		}
	}
	for _, path := range FixedPaths() {
		if _, ok := PathOf(path); !ok {
			t.Errorf("PathOf(%q): got a closed path", path)
		}
	}
}

// Q03, Q06: the union of the pools' models, every field as its engine wrote it.
func TestModelsPassThrough(t *testing.T) {
	tiny, lora := `{"id":"tiny","object":"model","max_model_len":1.0}`, `{ "id":"lora-a","parent":"tiny" }`
	got := MergeModels([]Model{{ID: "tiny", Raw: []byte(tiny)}, {ID: "lora-a", Parent: "tiny", Raw: []byte(lora)}},
		[]Model{{ID: "tiny", Raw: []byte(`{"id":"tiny","other":true}`)}, {ID: "big", Raw: []byte(`{"id":"big"}`)}},
		[]Model{{ID: "named", Parent: "big"}})
	want := `{"object":"list","data":[` + tiny + `,` + lora + `,{"id":"big"},{"id":"named","object":"model","owned_by":"sluice","parent":"big"}]}`
	if string(got) != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
	if got := string(MergeModels()); got != `{"object":"list","data":[]}` {
		t.Errorf("no models: got %s", got)
	}
}
