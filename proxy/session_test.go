package proxy

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/fleet"
	"github.com/sluice-gateway/sluice/front"
	"github.com/sluice-gateway/sluice/route"
)

// maxSession is the longest session id that counts.
const maxSession = 512

// sessionRig is four engines that say who they are, of which sessions are worth a second.
func sessionRig(t *testing.T, s front.SessionSource) *rig {
	t.Helper()
	r := newRig(t, Options{Options: front.Options{Sessions: map[string]front.SessionSource{"pool": s}}}, says("a"), says("b"), says("c"), says("d"))
	r.f.Apply([]fleet.PoolConfig{{Name: "pool", Model: "m", Profile: route.Latency(), Endpoints: r.pool.Endpoints(),
		Session: &fleet.SessionConfig{Cost: time.Second, TTL: time.Minute}}}, "")
	return r
}

// ask sends a request with one header and returns who answered, and what cookie came with it.
func (r *rig) ask(name, value string) (from string, cookies []*http.Cookie) {
	r.t.Helper()
	// Each prompt is another, so that nothing but the session draws it anywhere.
	req := r.request(http.MethodPost, chatPath, fmt.Sprintf(`{"model":"m","messages":[{"role":"user","content":"%d"}]}`, r.g.now()))
	if name != "" {
		req.Header.Set(name, value)
	}
	a := r.do(req)
	if a.err != nil || a.status != 200 {
		r.t.Fatalf("%s: %.40q: got %d, %v", name, value, a.status, a.err)
	}
	return a.body, (&http.Response{Header: a.header}).Cookies()
}

// stays reports how many engines so many requests with the header get to.
func (r *rig) stays(name, value string) int {
	got := make(map[string]bool)
	for range 12 {
		from, _ := r.ask(name, value)
		got[from] = true
	}
	return len(got)
}

func TestSessionByHeader(t *testing.T) {
	r := sessionRig(t, front.SessionSource{Header: "X-Session-Id"})
	for _, id := range []string{"one", "two", "\xff\xfe", "; drop", strings.Repeat("x", maxSession)} {
		if n := r.stays("X-Session-Id", id); n != 1 {
			t.Errorf("session %.20q: %d engines, want 1", id, n)
		}
	}
	homes := make(map[string]bool)
	for i := range 40 {
		from, cookies := r.ask("X-Session-Id", strings.Repeat("s", i+1))
		homes[from] = true
		if len(cookies) != 0 {
			t.Errorf("got a cookie %v, want none where a header tells", cookies)
		}
	}
	if len(homes) < 3 {
		t.Errorf("40 sessions are at %d engines, want nearly all", len(homes))
	}
	// No id, and one that is too long, are no session and no fault.
	for _, id := range []string{"", strings.Repeat("x", maxSession+1)} {
		if n := r.stays("X-Session-Id", id); n < 2 {
			t.Errorf("%d bytes: 12 requests went to one engine", len(id))
		}
	}
	if strings.Contains(r.log.String(), "drop") {
		t.Error("a session id is in the log")
	}
	for name := range r.gather() {
		if strings.Contains(name, "one") && strings.Contains(name, "session") {
			t.Errorf("a session id is in a metric: %s", name)
		}
	}
}

// A cookie is set where a request has none, or none that can be used; the header wins over it.
func TestSessionByCookie(t *testing.T) {
	r := sessionRig(t, front.SessionSource{Header: "X-Session-Id", Cookie: "sid"})
	from, cookies := r.ask("", "")
	if len(cookies) != 1 || cookies[0].Name != "sid" || len(cookies[0].Value) < 20 || !cookies[0].HttpOnly || cookies[0].Path != "/" {
		t.Fatalf("got cookies %v, want a sid that scripts can't read", cookies)
	}
	for range 8 {
		again, more := r.ask("Cookie", "other=1; sid="+cookies[0].Value)
		if again != from || len(more) != 0 {
			t.Errorf("with its cookie: got %s and cookies %v, want %s and none", again, more, from)
		}
	}
	if _, more := r.ask("X-Session-Id", "mine"); len(more) != 0 {
		t.Errorf("a request with the header got the cookies %v", more)
	}
	for _, bad := range []string{"sid=", "sid=" + strings.Repeat("x", maxSession+1), "=;;;sid"} {
		if _, more := r.ask("Cookie", bad); len(more) != 1 {
			t.Errorf("cookie %.30q: got %d cookies, want a new one", bad, len(more))
		}
	}
	if _, second := r.ask("", ""); second[0].Value == cookies[0].Value {
		t.Error("two clients got one session")
	}
}
