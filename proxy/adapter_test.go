package proxy

import (
	"io"
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/sluice-gateway/sluice/fleet"
)

// L06: an engine that does not have an adapter that the pool should have, since it was unloaded there or is not yet loaded, is no reason
// for a 404 while another has it; the engine isn't asked for it again until it lists it again.
func TestAdapterMissingAtOneEngine(t *testing.T) {
	var asked atomic.Int32
	without := func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		w.WriteHeader(404)
		_, _ = io.WriteString(w, `{"error":{"code":404}}`)
	}
	r := newRig(t, Options{}, without, says("b"))
	models := []fleet.Model{{ID: "m"}, {ID: "a", Parent: "m"}}
	for _, e := range r.engines {
		r.pool.ObserveModels(e, "vllm", models)
	}
	body := `{"model":"a","messages":[{"role":"user","content":"hi"}]}`
	for range 10 {
		r.post(body).want(t, 200, `{"from":"b"}`)
	}
	if n := asked.Load(); n != 1 {
		t.Errorf("the engine without the adapter was asked %d times, want once", n)
	}
	if !r.pool.Relist(r.engines[0]) {
		t.Error("nobody is to look what that engine lists")
	}
	// Where nobody has it, the engine's answer is the answer.
	r = newRig(t, Options{}, without, without)
	for _, e := range r.engines {
		r.pool.ObserveModels(e, "vllm", models)
	}
	r.post(body).want(t, 404, `{"error":{"code":404}}`)
}
