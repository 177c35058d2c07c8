// Package console is the web page that shows a gateway at work: the fleet, how soon and how fast it answers, and for
// recent requests why each went where it went.
//
// It promises to load nothing from another host, to put what comes from requests into the page as text only, and to
// keep bounded what it holds and what it sends. Everything is embedded; there is no build step.
//
// It refuses to change anything: it has no controls, and asks nobody who they are. Whoever serves it decides who may
// see it.
package console

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"encoding/json"
	"io/fs"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/sluice-gateway/sluice/fleet"
	"github.com/sluice-gateway/sluice/route"
)

// Side is one gateway's view of a fleet. A page with two of them compares them: both in the same plots, their endpoints
// side by side.
type Side struct {
	// Name tells the sides apart, on the page and in addresses; unique, and empty only where there is one side.
	Name  string
	Fleet *fleet.Fleet
	// Series has the requests that ended; nil for none.
	Series *Series
	// Records returns the latest n decisions, newest first; nil for none.
	Records func(n int) []*route.Record
	// Events tells how the KV events of a pool's endpoint are followed, nil where it publishes none; nil if nobody does.
	Events func(pool string, e *fleet.Status) *Events
	// Peers lists the gateway's other replicas that are told or heard; nil if there are none.
	Peers func() []Peer
}

// Events is how an endpoint's KV events are followed, as JSON shows it.
type Events struct {
	// Prefixes is guessed, exact from then on, or exact; Why says more, in words.
	Prefixes string `json:"prefixes"`
	Why      string `json:"why,omitempty"`
	// SinceSeconds is for how long it has been so, HeldTokens what the endpoint holds by its events.
	SinceSeconds float64 `json:"sinceSeconds"`
	HeldTokens   int     `json:"heldTokens"`
	// Events are those that came, PerSecond is a mean over about the last minute; Gaps are the times that some were missing,
	// LostMessages what was not to be had again, Restarts the times that the engine began anew.
	Events       uint64  `json:"events"`
	PerSecond    float64 `json:"eventsPerSecond"`
	Gaps         uint64  `json:"gaps"`
	LostMessages uint64  `json:"lostMessages"`
	Restarts     uint64  `json:"restarts"`
}

// Peer is another replica of the gateway, as JSON shows it.
type Peer struct {
	Name string `json:"name"`
	// Told says that it hears us, Heard that we hear it; LagSeconds is the latest time there and back, 0 before it is known.
	Told       bool    `json:"told"`
	Heard      bool    `json:"heard"`
	LagSeconds float64 `json:"lagSeconds"`
}

//go:embed page
var page embed.FS

// policy lets the page load from where it came from and nowhere else; nothing in the page's text runs as a script.
const policy = "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'"

// site is the handler: the page, and the JSON behind it.
type site struct {
	sides []Side
	now   func() time.Duration
}

// New makes the handler of /console and everything below. now is the clock of every side's fleet and Series. The sides'
// Names and order are shown as they are; the first is the one that the page favours.
func New(sides []Side, now func() time.Duration) http.Handler {
	s := &site{sides: sides, now: now}
	mux := http.NewServeMux()
	mux.Handle("GET /console/{$}", http.RedirectHandler("../console", http.StatusMovedPermanently))
	mux.HandleFunc("GET /console", asset("index.html"))
	for _, name := range []string{"app.js", "style.css", "icon.svg", "uPlot.iife.min.js", "uPlot.min.css", "uPlot.LICENSE"} {
		mux.HandleFunc("GET /console/"+name, asset(name))
	}
	mux.HandleFunc("GET /console/state", s.serveState)
	mux.HandleFunc("GET /console/requests", s.serveRequests)
	mux.HandleFunc("GET /console/explain", s.serveExplain)
	return guarded(mux)
}

// guarded adds the headers that every answer has, those of errors too.
func guarded(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		next.ServeHTTP(w, r)
	})
}

// asset serves one embedded file. Browsers ask each time whether it has changed, so that a new gateway never meets an
// old page.
func asset(name string) http.HandlerFunc {
	text, err := fs.ReadFile(page, "page/"+name)
	if err != nil {
		panic(err) // the list of names is not that of the folder; the first test sees it
	}
	sum := sha256.Sum256(text)
	tag := `"` + hex.EncodeToString(sum[:8]) + `"`
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "no-cache")
		w.Header().Set("ETag", tag)
		http.ServeContent(w, r, name, time.Time{}, bytes.NewReader(text))
	}
}

// reply writes v as JSON.
func reply(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	_ = json.NewEncoder(w).Encode(v) // an error means that the reader has gone
}

// side finds the side that a request is about; without a name, the first.
func (s *site) side(r *http.Request) (*Side, bool) {
	name, given := r.URL.Query().Get("side"), r.URL.Query().Has("side")
	for i := range s.sides {
		if !given || s.sides[i].Name == name {
			return &s.sides[i], true
		}
	}
	return nil, false
}

// figure is a number that JSON can hold: what is not known, NaN or infinite, is null.
type figure float64

// MarshalJSON writes six digits, which is more than a page shows.
func (f figure) MarshalJSON() ([]byte, error) {
	if x := float64(f); !math.IsNaN(x) && !math.IsInf(x, 0) {
		return strconv.AppendFloat(nil, x, 'g', 6, 64), nil
	}
	return []byte("null"), nil
}
