//go:build doors && unix

package e2e

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// doHeader is the request header by which a test tells witnesses what to do; see witnesses.answer.
const doHeader = "X-E2e-Do"

// arrived is a request as it came to an engine.
type arrived struct {
	id     string // x-request-id
	at     string // address of the engine
	header http.Header
	size   int
	sum    [sha256.Size]byte
}

// witnesses are engines in the test's own process: they remember what came, and fail as they are told.
type witnesses struct {
	addresses []string

	mu   sync.Mutex
	came []arrived
}

// startWitnesses starts n of them.
func startWitnesses(t *testing.T, n int) *witnesses {
	t.Helper()
	w := &witnesses{}
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		usual := newInstant(5 * time.Millisecond)
		var protocols http.Protocols
		protocols.SetHTTP1(true)
		s := &http.Server{Protocols: &protocols, Handler: http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodPost && strings.HasPrefix(r.URL.Path, "/v1/") {
				w.answer(l.Addr().String(), usual, out, r)
				return
			}
			usual.ServeHTTP(out, r)
		})}
		go func() { _ = s.Serve(l) }()
		t.Cleanup(func() { s.Close() })
		w.addresses = append(w.addresses, l.Addr().String())
	}
	return w
}

// endpoints is how the gateway is told of them.
func (w *witnesses) endpoints() []string {
	return []string{"--endpoint", instantModel + "=" + strings.Join(w.addresses, ",")}
}

// seen returns the requests that came with that id.
func (w *witnesses) seen(id string) (all []arrived) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, a := range w.came {
		if a.id == id {
			all = append(all, a)
		}
	}
	return all
}

// answer does what the request's header says: a status, "reset" the connection before a byte, "break" it after the
// headers and two chunks, or "hang" until the other side has gone. With "once" before it the first engine that has the
// request does so, and the next one answers.
func (w *witnesses) answer(at string, usual http.Handler, out http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	a := arrived{id: r.Header.Get("X-Request-Id"), at: at, header: r.Header.Clone(), size: len(body), sum: sha256.Sum256(body)}
	w.mu.Lock()
	w.came = append(w.came, a)
	w.mu.Unlock()
	do, once := strings.CutPrefix(r.Header.Get(doHeader), "once ")
	if once && len(w.seen(a.id)) > 1 {
		do = ""
	}
	status := 0
	switch {
	case do == "reset":
		panic(http.ErrAbortHandler)
	case do == "break":
		out.Header().Set("Content-Type", "text/event-stream")
		for range 2 {
			_, _ = out.Write(instantChunk)
			_ = http.NewResponseController(out).Flush()
		}
		panic(http.ErrAbortHandler)
	case do == "hang":
		<-r.Context().Done()
	case do != "":
		_, err := fmt.Sscan(do, &status)
		if err != nil {
			panic(err)
		}
		out.Header().Set("Content-Type", "application/json")
		out.WriteHeader(status)
		_, _ = io.WriteString(out, `{"error":{"message":"told to","code":"told"}}`)
	default:
		r.Body = io.NopCloser(bytes.NewReader(body))
		usual.ServeHTTP(out, r)
	}
}
