//go:build doors && unix

package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Envoy can't be told to move a request that waits at a frozen engine. It ends with an error that says so, once nothing has been heard of the
// engine for --stall-after, and the client's next attempt is served.
func TestEnvoyEndsWhatWaitsAtAFrozenEndpoint(t *testing.T) {
	eachEnvoy(t, func(t *testing.T, binary string) {
		engines := startEngines(t, 2, 4, "--alias", chatModel)
		_, url := startThrough(t, binary, "--endpoint", chatModel+"="+addresses(engines), "--stall-after", "2s", "--stale-after", "8s")
		call := func(n int) (int, string, http.Header) {
			status, header, text := fetch(http.MethodPost, url+"/v1/chat/completions", nil,
				fmt.Appendf(nil, `{"model":%q,"max_tokens":4,"messages":[{"role":"user","content":"%d is a number"}]}`, chatModel, n))
			return status, text, header
		}
		eventually(t, "both engines to be known", time.Minute, func() bool { status, _, _ := call(0); return status == http.StatusOK })
		engines[0].signal(syscall.SIGSTOP)
		defer engines[0].signal(syscall.SIGCONT)

		// Until its silence is noticed the frozen engine is as good as the other.
		type end struct {
			status int
			text   string
			header http.Header
		}
		const calls = 12
		ends := make(chan end, calls)
		for n := range calls {
			go func() {
				status, text, header := call(n + 1)
				ends <- end{status, text, header}
			}()
		}
		gaveUp := 0
		for range calls {
			e := <-ends
			var failure struct{ Error struct{ Code string } }
			switch {
			case e.status == http.StatusOK:
			case e.status == http.StatusBadGateway && json.Unmarshal([]byte(e.text), &failure) == nil && failure.Error.Code == "upstream_error" &&
				e.header.Get("Retry-After") == "1" && strings.Contains(e.text, "makes no progress"):
				gaveUp++
			default:
				t.Errorf("got %d %s with Retry-After %q, want 200, or 502 upstream_error with 1", e.status, e.text, e.header.Get("Retry-After"))
			}
		}
		if gaveUp == 0 {
			t.Errorf("got all of %d calls answered, want some at the frozen engine", calls)
		}
		// Once its readings are too old, nothing goes there.
		eventually(t, "the silence to be noticed", time.Minute, func() bool {
			for n := range 4 {
				if status, _, _ := call(calls + n + 1); status != http.StatusOK {
					return false
				}
			}
			return true
		})
	})
}
