package proxy

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/front"
)

// rewriting is a gateway that sends requests for alias on as requests for name.
func rewriting(alias, name string) Options {
	return Options{Options: front.Options{Rewrites: []front.Rewrite{{Pool: "pool", Rules: []front.RewriteRule{
		{Models: []string{alias}, Targets: []front.RewriteTarget{{Model: name, Weight: 1}}}}}}}}
}

// B09, B10, B11, B30, B32, H03: the request that reaches an engine differs in the top-level models alone, has the length that it
// says, and is the same at the next endpoint when one has failed, whatever it had read.
func TestRewrittenRequest(t *testing.T) {
	const name = "a name that is much longer than the alias is"
	big := strings.Repeat("a prompt with \\\"model\\\":\\\"m2\\\" in it ", 20_000)
	type got struct {
		body, model, length string
		n                   int64
	}
	for body, want := range map[string]string{
		`{"model":"m2"}`: `{"model":"` + name + `"}`,
		`{"Model":"other","n":1.0,"seed":12345678901234567890,"a":{"model":"m2"},"model":"m2","mod\u0065l":"m2"}`: `{"Model":"other","n":1.0,"seed":12345678901234567890,"a":{"model":"m2"},"model":"` + name + `","mod\u0065l":"` + name + `"}`,
		`{"model" : "m2","prompt":"` + big + `"}`:             `{"model" : "` + name + `","prompt":"` + big + `"}`,
		`{"prompt":"` + big + `","model":"m2","stream":true}`: `{"prompt":"` + big + `","model":"` + name + `","stream":true}`,
	} {
		seen := make(chan got, 2)
		watch := func(r *http.Request) {
			p, err := io.ReadAll(r.Body)
			if err != nil {
				t.Error(err)
			}
			seen <- got{string(p), r.Header.Get(front.HeaderModel), r.Header.Get("Content-Length"), r.ContentLength}
		}
		r := newRig(t, rewriting("m2", name), func(_ http.ResponseWriter, r *http.Request) {
			watch(r)
			panic(http.ErrAbortHandler)
		}, func(w http.ResponseWriter, r *http.Request) {
			watch(r)
			says("b")(w, r)
		})
		if a := r.post(body); a.status != 200 {
			t.Errorf("%.60s: got %d %s", body, a.status, a.body)
		}
		for range 2 {
			if g := <-seen; g.body != want || g.model != name || g.n != int64(len(want)) || g.length != fmt.Sprint(len(want)) {
				t.Errorf("%.60s: got %.120s with header %q and lengths %d and %s; want %.120s", body, g.body, g.model, g.n, g.length, want)
			}
		}
	}
	// Two different models are refused, not chosen from.
	r := newRig(t, rewriting("m2", name), says("a"))
	r.post(`{"model":"m2","model":"m"}`).wantError(t, 400, "invalid_request")
}

// A body that comes encoded goes on decoded, and says so; one that is not rewritten goes on as it came.
func TestRewrittenRequestIsDecoded(t *testing.T) {
	var got seen
	r := newRig(t, rewriting("m2", "name"), watcher(&got))
	for model, coding := range map[string]string{"m2": "", "m": "gzip"} {
		body := `{"model":"` + model + `","prompt":"` + strings.Repeat("p", 5000) + `"}`
		var packed bytes.Buffer
		w := gzip.NewWriter(&packed)
		_, _ = io.WriteString(w, body)
		_ = w.Close()
		req := r.request(http.MethodPost, chatPath, packed.String())
		req.Header.Set("Content-Encoding", "gzip")
		r.do(req).want(t, 200, "{}")
		want := packed.String()
		if model == "m2" {
			want = strings.Replace(body, "m2", "name", 1)
		}
		if got.body != want || got.header.Get("Content-Encoding") != coding || got.header.Get("Content-Length") != fmt.Sprint(len(want)) {
			t.Errorf("%s: got %d bytes with coding %q and length %s, want %d and %q", model, len(got.body), got.header.Get("Content-Encoding"),
				got.header.Get("Content-Length"), len(want), coding)
		}
	}
}

// A form's model is rewritten, too, and its file passes.
func TestRewrittenForm(t *testing.T) {
	var got seen
	r := newRig(t, rewriting("m2", "name"), watcher(&got))
	form := func(model string) string {
		return "--x\r\nContent-Disposition: form-data; name=\"file\"; filename=\"f\"\r\n\r\n" + strings.Repeat("\r\n\x00binary", 10_000) +
			"\r\n--x\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\n" + model + "\r\n--x--\r\n"
	}
	req := r.request(http.MethodPost, "/v1/audio/transcriptions", form("m2"))
	req.Header.Set("Content-Type", "multipart/form-data; boundary=x")
	r.do(req).want(t, 200, "{}")
	if got.body != form("name") {
		t.Errorf("got %d bytes %.200q…, want %d", len(got.body), got.body, len(form("name")))
	}
}

// The answer's model is as the engine writes it: it says what has answered. Tokens count under the name asked for.
func TestRewrittenAnswer(t *testing.T) {
	const answer = `{"model":"name","usage":{"prompt_tokens":3,"completion_tokens":2}}`
	e := newEnds()
	o := rewriting("m2", "name")
	o.Ended = e.add
	r := newRig(t, o, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, answer)
	})
	r.post(`{"model":"m2"}`).want(t, 200, answer)
	if got := e.only(t); got.Model != "m2" {
		t.Errorf("got the model %q at its end, want the one asked for", got.Model)
	}
	if got := r.gather()[`sluice_prompt_tokens_total{model="m2",pool="pool"}`]; got != 3 {
		t.Errorf("got %v prompt tokens under the alias, want 3", got)
	}
	if got := r.gather()[`sluice_prompt_tokens_total{model="m2",pool="pool"}`]; got != 3 {
		t.Errorf("got %v prompt tokens at the next scrape, want 3", got)
	}
	r.front.Close()
	if log := r.log.String(); !strings.Contains(log, "modelName=m2") || !strings.Contains(log, "modelRewrite=name") {
		t.Errorf("got the log\n%s\nwant both names", log)
	}
}

// A request under way goes on under the rules that it began with.
func TestRewriteOutlivesAReload(t *testing.T) {
	arrived, bodies := make(chan struct{}), make(chan string, 1)
	r := newRig(t, rewriting("m2", "name"), func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		arrived <- struct{}{}
		<-arrived
		panic(http.ErrAbortHandler)
	}, func(w http.ResponseWriter, r *http.Request) {
		p, _ := io.ReadAll(r.Body)
		bodies <- string(p)
		says("b")(w, r)
	})
	go func() {
		<-arrived
		r.g.Apply(Options{Options: front.Options{SelectModel: true}})
		arrived <- struct{}{}
	}()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	r.do(r.request(http.MethodPost, chatPath, `{"model":"m2"}`).WithContext(ctx)).want(t, 200, `{"from":"b"}`)
	if got := <-bodies; got != `{"model":"name"}` {
		t.Errorf("got %s at the second endpoint", got)
	}
	r.post(`{"model":"m2"}`).wantError(t, 404, "model_not_found")
}
