package proxy

import (
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"testing"
	"time"
)

// states counts the pool's endpoints by state.
func (r *rig) states() map[string]int {
	n := make(map[string]int)
	for _, s := range r.pool.Status(r.g.now()) {
		n[s.State]++
	}
	return n
}

// A request that breaks every engine it gets to is sent to two of them and ends with an error, and a hundred of them put
// half of the engines aside at most.
func TestQueryOfDeath(t *testing.T) {
	var killed atomic.Int32
	var engines []string
	for range 6 {
		engines = append(engines, raw(t, func(c net.Conn, _ int, _ *http.Request) {
			killed.Add(1)
			reset(c)
		}))
	}
	r := newRigAt(t, Options{}, engines...)
	r.post(plainBody).wantError(t, 502, "upstream_error")
	if n := killed.Load(); n != 2 {
		t.Errorf("it got to %d engines, want 2", n)
	}
	for range 100 {
		r.post(plainBody)
	}
	if n := r.states()["ejected"]; n != 3 {
		t.Errorf("%d of 6 engines are put aside, want 3", n)
	}
}

// A prompt that is too long for every engine, and whatever else a client gets wrong, is the client's to hear, at once,
// and says nothing of the engine.
func TestClientFaultsDoNotCount(t *testing.T) {
	for _, status := range []int{400, 404, 413, 422} {
		var asked atomic.Int32
		refuse := func(w http.ResponseWriter, _ *http.Request) {
			asked.Add(1)
			w.WriteHeader(status)
			_, _ = io.WriteString(w, `{"error":{}}`)
		}
		r := newRig(t, Options{}, refuse, refuse, refuse)
		for range 20 {
			r.post(plainBody).want(t, status, `{"error":{}}`)
		}
		if n := asked.Load(); n != 20 || r.states()["ready"] != 3 {
			t.Errorf("status %d: %d requests for 20, states %v, want 20 and all ready", status, n, r.states())
		}
	}
}

// E16: an engine that says that it is full, or still loading, is passed over for a second, without any of the marks of
// one that fails.
func TestFullEngineIsPassedOverForAMoment(t *testing.T) {
	for _, status := range []int{429, 503} {
		var asked atomic.Int32
		full := func(w http.ResponseWriter, _ *http.Request) {
			asked.Add(1)
			w.WriteHeader(status)
			_, _ = io.WriteString(w, "{}")
		}
		r := newRig(t, Options{}, full, says("b"), says("c"))
		began := r.g.now()
		for range 50 {
			if a := r.post(plainBody); a.status != 200 {
				t.Errorf("got %d, want 200 from one that isn't full", a.status)
			}
		}
		if took := r.g.now() - began; took < time.Second && asked.Load() != 1 {
			t.Errorf("status %d: asked the full one %d times within %v, want once", status, asked.Load(), took)
		}
		s := r.pool.Status(began + 2*time.Hour)[0]
		if s.State != "in doubt" {
			t.Errorf("status %d, an hour later: %s, %s; want it tried again", status, s.State, s.Why)
		}
	}
}
