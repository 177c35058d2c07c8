package front

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-gateway/sluice/fleet"
	"github.com/sluice-gateway/sluice/openai"
	"github.com/sluice-gateway/sluice/route"
)

// twoPools makes a desk for the pools a and b, which serve the models a and b, with the adapter tuned of b.
func twoPools(t *testing.T, o Options) *Desk {
	t.Helper()
	f := new(fleet.Fleet)
	var pools []fleet.PoolConfig
	for _, name := range []string{"a", "b"} {
		pools = append(pools, fleet.PoolConfig{Name: name, Model: name, Profile: route.RoundRobin(), Endpoints: []fleet.Endpoint{{Name: name + ":1", Host: name}}})
	}
	pools[1].Adapters = []string{"tuned"}
	f.Apply(pools, "")
	for _, p := range f.Pools() {
		p.ObserveFailure(p.Name()+":1", fleet.NoMetrics, "none in tests")
	}
	return New(f, o, prometheus.NewRegistry(), func() time.Duration { return time.Second }, slog.New(slog.DiscardHandler))
}

// took is what became of a request.
type took struct{ asked, label, model, pool, adapter, header, body string }

// ask decides a request and tells what goes to the engine.
func ask(t *testing.T, d *Desk, header http.Header, body string) (took, *Request) {
	t.Helper()
	r := new(Request)
	d.Begin(r, http.MethodPost, "/v1/completions", header)
	_ = r.Admit()
	if e := r.HoldBody([][]byte{[]byte(body)}, nil); e != nil {
		t.Fatal(e)
	}
	defer r.End(context.Background())
	lease, e := r.Decide()
	if e != nil {
		return took{asked: r.Asked, model: r.Model, body: e.Code}, r
	}
	lease.Done(time.Second, fleet.Outcome{})
	got := took{asked: r.Asked, label: r.Label, model: r.Model, pool: r.Pool.Name(), adapter: r.Want.Adapter}
	for _, h := range r.EngineHeaders(&lease.Endpoint, nil) {
		if h.Name == HeaderModel {
			got.header = h.Value
		}
	}
	reader := r.Body.Reader()
	p, err := io.ReadAll(reader)
	if err != nil || reader.Close() != nil {
		t.Fatal(err)
	}
	got.body = string(p)
	return got, r
}

func to(models ...string) []RewriteTarget {
	var out []RewriteTarget
	for _, m := range models {
		out = append(out, RewriteTarget{m, 1})
	}
	return out
}

// Exact rules go before those for all, earlier ones before later ones; a rule sees its pool's requests and names that
// nobody serves; what it gives is what is looked up, counted as asked for, and told to the engine; and it is applied
// once.
func TestRewrites(t *testing.T) {
	rules := []Rewrite{
		{Name: "all", Pool: "b", Rules: []RewriteRule{{Targets: to("tuned")}, {Targets: to("never")}}},
		{Name: "first", Pool: "a", Rules: []RewriteRule{
			{Models: []string{"alias", "other"}, Targets: to("a")},
			{Models: []string{"alias"}, Targets: to("never")},
			{Models: []string{"b"}, Targets: to("never")}, // a request for b is not this pool's
			{Models: []string{"canary"}, Targets: to("b")},
			{Models: []string{"unlisted"}, Targets: to("nobody knows")},
			{Models: []string{"as it is"}},
			{Models: []string{"chain"}, Targets: to("alias")},
		}},
		{Name: "second", Pool: "b", Rules: []RewriteRule{{Models: []string{"alias"}, Targets: to("never")}, {Models: []string{"b"}, Targets: to("b")}}},
	}
	d := twoPools(t, Options{SelectModel: true, Rewrites: rules})
	for asked, want := range map[string]took{
		"a":        {"a", "a", "a", "a", "", "a", ""},
		"alias":    {"alias", "alias", "a", "a", "", "a", ""},
		"other":    {"other", "other", "a", "a", "", "a", ""},
		"canary":   {"canary", "canary", "b", "b", "", "b", ""},
		"tuned":    {"tuned", "tuned", "tuned", "b", "tuned", "tuned", ""},
		"b":        {"b", "b", "b", "b", "", "b", ""},
		"unlisted": {"unlisted", "unlisted", "nobody knows", "a", "", "nobody knows", ""},
		"chain":    {"chain", "chain", "alias", "a", "", "alias", ""},
		"as it is": {asked: "as it is", model: "as it is", body: "model_not_found"},
		"unknown":  {asked: "unknown", model: "unknown", body: "model_not_found"},
	} {
		got, r := ask(t, d, nil, `{"prompt":"p","model":"`+asked+`"}`)
		if want.pool != "" {
			want.body = `{"prompt":"p","model":"` + want.model + `"}`
		}
		if got != want || r.Rewritten != (want.asked != want.model) {
			t.Errorf("%s: got %+v, rewritten %v; want %+v", asked, got, r.Rewritten, want)
		}
	}
	// A model that the header names is told in the header.
	got, _ := ask(t, d, http.Header{HeaderModel: {"alias"}}, `{"prompt":"p"}`)
	if want := (took{"alias", "alias", "a", "a", "", "a", `{"prompt":"p"}`}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	// Without selection the first pool's rules see everything.
	d = twoPools(t, Options{Rewrites: []Rewrite{{Name: "all", Pool: "a", Rules: []RewriteRule{{Targets: to("a")}}}}})
	if got, _ := ask(t, d, nil, `{"model":"whatever"}`); got.pool != "a" || got.body != `{"model":"a"}` || got.label != "" {
		t.Errorf("got %+v, want it under the name a", got)
	}
}

// A rewritten body has lost its coding, and the headers that speak of what it was.
func TestRewrittenDropsItsCoding(t *testing.T) {
	d := twoPools(t, Options{SelectModel: true, Rewrites: []Rewrite{{Pool: "a", Rules: []RewriteRule{{Models: []string{"alias"}, Targets: to("a")}}}}})
	for asked, drops := range map[string]bool{"alias": true, "a": false} {
		_, r := ask(t, d, nil, `{"model":"`+asked+`"}`)
		for _, name := range []string{"Content-Encoding", "Content-Digest", "Content-Md5", "Digest"} {
			if r.Drops(name) != drops {
				t.Errorf("%s: got %s dropped %v, want %v", asked, name, !drops, drops)
			}
		}
	}
}

// Weights hold; who asks again with the same id or session gets the same; moving weight moves no more requests than
// that.
func TestRewriteShares(t *testing.T) {
	share := func(weights ...int) *Desk {
		rule := RewriteRule{Models: []string{"alias"}}
		for i, w := range weights {
			rule.Targets = append(rule.Targets, RewriteTarget{fmt.Sprint("target", i), w})
		}
		return twoPools(t, Options{SelectModel: true, Sessions: map[string]SessionSource{"a": {Header: "X-Session"}},
			Rewrites: []Rewrite{{Name: "split", Pool: "a", Rules: []RewriteRule{rule}}}})
	}
	const n = 10_000
	chosen := func(d *Desk, header string) []string {
		out := make([]string, n)
		for i := range out {
			got, _ := ask(t, d, http.Header{header: {fmt.Sprintf("id-%d", i)}, "X-Other": {fmt.Sprint(i)}}, `{"model":"alias"}`)
			out[i] = got.model
		}
		return out
	}
	before := chosen(share(900, 100), "X-Request-Id")
	again := chosen(share(900, 100), "X-Session")
	after := chosen(share(800, 200), "X-Request-Id")
	count, moved := 0, 0
	for i := range before {
		if before[i] == "target1" {
			count++
		}
		if before[i] != after[i] {
			moved++
			if before[i] == "target1" {
				t.Fatal("a request left the target whose weight grew")
			}
		}
		if before[i] != again[i] {
			t.Fatal("a session and a request id of one text are told apart") // so that one check holds for both
		}
	}
	within := func(what string, got int, p float64) {
		if dev := math.Abs(float64(got)-n*p) / math.Sqrt(n*p*(1-p)); dev > 5 {
			t.Errorf("%s: got %d of %d, %.1f deviations from %v", what, got, n, dev, p)
		}
	}
	within("the lighter target", count, .1)
	within("moved", moved, .1)
	three := map[string]int{}
	for _, m := range chosen(share(1, 2, 1), "X-Request-Id") {
		three[m]++
	}
	within("first", three["target0"], .25)
	within("second", three["target1"], .5)
	within("third", three["target2"], .25)
}

// A session that the answer begins has its choice from the first request on, even where that is another pool's.
func TestRewriteBySessionCookie(t *testing.T) {
	d := twoPools(t, Options{SelectModel: true, Sessions: map[string]SessionSource{"a": {Cookie: "s"}, "b": {Cookie: "other"}},
		Rewrites: []Rewrite{{Pool: "a", Rules: []RewriteRule{{Models: []string{"a"}, Targets: to("a", "b")}}}}})
	seen := map[string]bool{}
	for range 40 {
		first, r := ask(t, d, nil, `{"model":"a"}`)
		if r.Cookie == nil || r.Cookie.Name != "s" {
			t.Fatalf("got the cookie %v, want one of the pool that the request was matched at", r.Cookie)
		}
		second, _ := ask(t, d, http.Header{"Cookie": {"s=" + r.Cookie.Value}}, `{"model":"a"}`)
		if first.model != second.model {
			t.Errorf("got %s, then %s in the same session", first.model, second.model)
		}
		seen[first.model] = true
	}
	if len(seen) != 2 {
		t.Errorf("got %v, want both targets", seen)
	}
}

// Q12: names that requests may have are listed, while somebody serves them.
func TestAliasesAreListed(t *testing.T) {
	d := twoPools(t, Options{SelectModel: true, Rewrites: []Rewrite{{Pool: "a", Rules: []RewriteRule{{Models: []string{"alias", "b"}, Targets: to("a")},
		{Models: []string{"as it is"}}}}}})
	list := func(path string) (string, *openai.Error) {
		var r Request
		d.Begin(&r, http.MethodGet, path, nil)
		p, e := r.Models()
		return string(p), e
	}
	if got, _ := list("/v1/models"); strings.Count(got, `"id"`) != 3 || !strings.Contains(got, `"alias"`) {
		t.Errorf("got %s, want a, b and alias", got)
	}
	if got, e := list("/v1/models/alias"); e != nil || !strings.Contains(got, `"id":"alias"`) {
		t.Errorf("got %s, %v", got, e)
	}
	d.fleet.Pools()[0].SetEndpoints(nil)
	if got, _ := list("/v1/models"); strings.Contains(got, "alias") {
		t.Errorf("got %s, want no alias of a pool that isn't ready", got)
	}
}
