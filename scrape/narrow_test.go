package scrape

import (
	"bytes"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-gateway/sluice/fleet"
)

// chooser serves chosen samples of an engine's page at /metrics/, as Python's prometheus_client does, and counts who asks.
type chooser struct {
	*engine
	mu    sync.Mutex
	parts int
	// answer takes the place of chosen samples, if not nil.
	answer func(w http.ResponseWriter, chosen string)
}

func (c *chooser) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != "/metrics/" {
		c.engine.ServeHTTP(w, r)
		return
	}
	chosen := string(chosenOf([]byte(*c.page.Load()), r.URL.Query()["name[]"]))
	c.mu.Lock()
	c.parts++
	answer := c.answer
	c.mu.Unlock()
	if answer == nil {
		answer = func(w http.ResponseWriter, chosen string) { _, _ = io.WriteString(w, chosen) }
	}
	answer(w, chosen)
}

// chosenOf are the samples of a page with these names.
func chosenOf(page []byte, names []string) (chosen []byte) {
	for line := range bytes.Lines(page) {
		if end := bytes.IndexAny(line, "{ "); end > 0 && slices.Contains(names, string(line[:end])) {
			chosen = append(chosen, line...)
		}
	}
	return chosen
}

// asked is how many whole pages and how many chosen samples were asked for since the last time.
func (c *chooser) asked() (whole, parts int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	parts, c.parts = c.parts, 0
	return int(c.scrapes.Swap(0)), parts
}

// after lets time pass, and then tells what comes of the next second.
func (c *chooser) after(w *world, d time.Duration) (s fleet.Status, whole, parts int) {
	w.after(d)
	c.asked()
	s = w.after(time.Second)["10.0.0.1:80"]
	whole, parts = c.asked()
	return s, whole, parts
}

func (c *chooser) set(answer func(http.ResponseWriter, string)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.answer = answer
}

// A large page is read whole once, and then what is needed of it, with the same result.
func TestNarrow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &chooser{engine: newEngine(string(readPage(t, "vllm-0.32-load.txt")), vllmModels)}
		w := run(t, []fleet.Endpoint{ep("10.0.0.1:80")}, func(w *world, _ *Options) { w.serve(t, "10.0.0.1:80", c) })
		first := w.after(250 * time.Millisecond)["10.0.0.1:80"]
		if whole, parts := c.asked(); whole != 1 || parts > 1 || first.State != "ready" {
			t.Fatalf("got %d whole pages and %d parts, %s %s, want one whole page first", whole, parts, first.State, first.Why)
		}
		s, whole, parts := c.after(w, 0)
		if whole != 0 || parts != 5 {
			t.Errorf("got %d whole pages and %d parts in a second, want only parts", whole, parts)
		}
		if got, want := s.Reading.KVTokens, first.Reading.KVTokens; got != want || !(got > 0) || s.Reading.DecodeTokens != first.Reading.DecodeTokens || !(s.Age < .3) {
			t.Errorf("got %+v, want %+v as read off the whole page", s.Reading, first.Reading)
		}
		page := strings.ReplaceAll(*c.page.Load(), "\nvllm:num_requests_waiting{", "\nvllm:num_requests_waiting{added=\"\",")
		c.page.Store(&page)
		if s = w.after(time.Second)["10.0.0.1:80"]; s.State != "ready" {
			t.Errorf("got %s %s when a label comes, want ready", s.State, s.Why)
		}
		if whole, _ := c.asked(); whole != 0 {
			t.Errorf("got %d whole pages, want parts with another label, too", whole)
		}
	})
}

// Whoever doesn't give what whole pages have is asked for those, and no reading is missed; now and then it is tried again.
func TestNarrowRefused(t *testing.T) {
	for name, answer := range map[string]func(http.ResponseWriter, string){
		"no such path": func(w http.ResponseWriter, _ string) { http.NotFound(w, new(http.Request)) },
		"redirect":     func(w http.ResponseWriter, _ string) { w.Header().Set("Location", "/metrics"); w.WriteHeader(307) },
		"error":        func(w http.ResponseWriter, _ string) { w.WriteHeader(500) },
		"nothing":      func(http.ResponseWriter, string) {},
		"one sample less": func(w http.ResponseWriter, chosen string) {
			_, _ = io.WriteString(w, chosen[strings.Index(chosen, "\n")+1:])
		},
		"broken off": func(w http.ResponseWriter, chosen string) {
			_, _ = io.WriteString(w, chosen[:100])
			panic(http.ErrAbortHandler)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := &chooser{engine: newEngine(string(readPage(t, "vllm-0.32-load.txt")), vllmModels)}
				c.set(answer)
				w := run(t, []fleet.Endpoint{ep("10.0.0.1:80")}, func(w *world, _ *Options) { w.serve(t, "10.0.0.1:80", c) })
				w.after(500 * time.Millisecond)
				c.asked()
				s := w.after(4 * time.Second)["10.0.0.1:80"]
				if whole, parts := c.asked(); whole != 20 || parts != 0 || s.State != "ready" || !(s.Age < .3) {
					t.Errorf("got %d whole pages and %d parts in 4 s, %s %s, want 20 whole pages", whole, parts, s.State, s.Why)
				}
				c.set(nil) // an engine that has been brought up to date
				if _, whole, parts := c.after(w, 2*time.Second); whole != 0 || parts != 5 {
					t.Errorf("got %d whole pages and %d parts in a second, want only parts", whole, parts)
				}
			})
		})
	}
}

// An engine that answers late is asked for no more than before.
func TestNarrowLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &chooser{engine: newEngine(string(readPage(t, "vllm-0.32-load.txt")), vllmModels)}
		w := run(t, []fleet.Endpoint{ep("10.0.0.1:80")}, func(w *world, _ *Options) { w.serve(t, "10.0.0.1:80", c) })
		w.after(600 * time.Millisecond)
		c.set(func(http.ResponseWriter, string) { <-time.After(3 * time.Second) })
		w.after(2 * time.Second)
		c.set(nil)
		if s, whole, parts := c.after(w, 4*time.Second); s.State != "ready" || !(s.Age < .3) || whole != 0 || parts != 5 {
			t.Errorf("got %d whole pages, %d parts, %s %s, want parts", whole, parts, s.State, s.Why)
		}
	})
}

// An engine that starts anew may have less to say, and another one may take its address: both are read on.
func TestNarrowThenAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &chooser{engine: newEngine(string(readPage(t, "vllm-0.32-load.txt")), vllmModels)}
		w := run(t, []fleet.Endpoint{ep("10.0.0.1:80")}, func(w *world, _ *Options) { w.serve(t, "10.0.0.1:80", c) })
		w.after(time.Second)
		page := string(readPage(t, "vllm-0.32-idle.txt"))
		page = page[:strings.Index(page, "vllm:generation_tokens_total{")]
		c.page.Store(&page)
		if s, whole, parts := c.after(w, time.Second); s.State != "ready" || !(s.Age < .3) || whole != 5 || parts != 0 {
			t.Errorf("fewer samples: got %d whole pages, %d parts, %s %s, want whole ones for a while", whole, parts, s.State, s.Why)
		}
		if _, whole, parts := c.after(w, 6*time.Second); whole != 0 || parts != 5 {
			t.Errorf("fewer samples: got %d whole pages and %d parts, want parts again", whole, parts)
		}
		page = string(readPage(t, "llamacpp-b11434-load.txt"))
		c.page.Store(&page)
		if s := w.after(time.Second)["10.0.0.1:80"]; s.State != "ready" || !(s.Age < .3) {
			t.Errorf("another engine: got %s %s, want it read", s.State, s.Why)
		}
		if _, whole, parts := c.after(w, 6*time.Second); whole != 5 || parts != 0 {
			t.Errorf("another engine: got %d whole pages and %d parts, want whole ones, which are all it has", whole, parts)
		}
	})
}

// Ranks of an address share what is chosen of their page as they share the page.
func TestNarrowRanks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one := string(readPage(t, "vllm-0.32-load.txt"))
		c := &chooser{engine: newEngine(one+strings.ReplaceAll(one, `engine="0"`, `engine="1"`), vllmModels)}
		w := run(t, ranks("10.0.0.1:80", 0, 2), func(w *world, _ *Options) { w.serve(t, "10.0.0.1:80", c) })
		w.after(600 * time.Millisecond)
		c.asked()
		all := w.after(time.Second)
		if whole, parts := c.asked(); whole != 0 || parts != 5 {
			t.Errorf("got %d whole pages and %d parts in a second, want five parts for both ranks", whole, parts)
		}
		for name, s := range all {
			if s.State != "ready" || !(s.Age < .3) || !(s.Reading.DecodeTokens > 0) {
				t.Errorf("%s: got %s %s, %+v", name, s.State, s.Why, s.Reading)
			}
		}
	})
}
