package scrape

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-gateway/sluice/fleet"
)

// L06: a client that names what nobody serves has the endpoints asked again, soon and not more than once a second; an
// adapter that is loaded while the engine runs so is found within a second of the first request for it, one that is
// unloaded with the next look.
func TestMissedNamesAreAskedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEngine(vllmPage, vllmModels)
		w := run(t, []fleet.Endpoint{ep("e:1")}, func(w *world, o *Options) {
			o.AskInterval = time.Hour
			w.serve(t, "e:1", e)
		})
		w.after(10 * time.Second)
		before := e.asks.Load()
		models := `{"data":[{"id":"m"},{"id":"a","parent":"m"}]}`
		e.models.Store(&models)
		w.fleet.Miss()
		w.after(300 * time.Millisecond)
		if _, ok := w.fleet.Lookup("a"); !ok {
			t.Error("the adapter was asked for and is not known a moment later")
		}
		for range 100 {
			w.fleet.Miss()
			w.after(50 * time.Millisecond)
		}
		if n := e.asks.Load() - before; n < 4 || n > 7 {
			t.Errorf("in 5 s of requests for unknown names: asked %d times, want about once a second", n)
		}
		e.models.Store(new(vllmModels))
		w.fleet.Pools()[0].Disown("e:1", "a")
		w.after(1300 * time.Millisecond)
		if _, ok := w.fleet.Lookup("a"); ok {
			t.Error("the engine said that it does not have the adapter, lists it no more, and yet it is known")
		}
		quiet := e.asks.Load()
		w.after(time.Minute)
		if n := e.asks.Load() - quiet; n != 0 {
			t.Errorf("asked %d times without a reason", n)
		}
	})
}
