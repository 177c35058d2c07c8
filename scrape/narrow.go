package scrape

import (
	"net/http"
	"net/url"
	"time"
)

// narrow asks for the samples that are read alone, where an engine can be asked so: writing a page costs an engine in
// Python some 7 ms of the processor that its streams need, too, and these take a tenth of that. Whoever does not give
// them all is asked for whole pages.
type narrow struct {
	d       *dialect
	request *http.Request
	path    int           // of the worker's requests, the one that it replaces
	samples int           // how many of the dialect's the last whole page had
	until   time.Duration // when it may be asked again
}

// largePage is how many bytes a page has at least that is worth asking for in part.
const largePage = 8 << 10

// on reports whether to ask so in place of the request for a path.
func (n *narrow) on(path int, now time.Duration) bool {
	return n.request != nil && n.path == path && now >= n.until
}

// learn takes a page that was understood: of whole ones, how to ask for less, and what then has to come.
func (n *narrow) learn(w *worker, size int) {
	d, whole := w.scanner.d, w.requests[w.path]
	known := n.request != nil && n.d == d && n.path == w.path
	if known && w.now() >= n.until {
		return // it is a page like that
	}
	if d.narrow == "" || size < largePage || whole.URL.Path+"/" != d.narrow || whole.URL.RawQuery != "" {
		n.request = nil
		return
	}
	n.samples = w.scanner.found
	if known {
		return
	}
	r := *whole
	u := *whole.URL
	u.Path, u.RawQuery = d.narrow, url.Values{"name[]": w.scanner.wanted()}.Encode()
	r.URL = &u
	n.d, n.path, n.request, n.until = d, w.path, &r, 0
}

// falls reports whether an answer falls short of what whole pages have. One that nobody gives, or not in time, says
// nothing of that.
func (w *worker) falls(a answer, err error) bool {
	if err != nil {
		far, _ := w.client.classify(err, w.timeout)
		return far == broken
	}
	w.scanner.model = w.model
	return a.status != http.StatusOK || w.scanner.scan(a.body) < w.narrow.samples
}
