//go:build doors && unix

package e2e

import (
	"encoding/json"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// closed matches what clients are told while the picker can't be asked: see refusal.
var closed = regexp.MustCompile(`^status 503: .*"code":\s*"no_endpoint"`)

// TestPickerIsRestarted kills the picker under load and starts it again: closed, Envoy says 503 in the form of
// OpenAI's errors meanwhile; open, no request is lost.
func TestPickerIsRestarted(t *testing.T) {
	for _, mode := range []string{"FailClose", "FailOpen"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			w := startWitnesses(t, 3)
			p := startPlane(t, instantModel, planeOptions{endpoints: w.endpoints(), envoy: []string{"--failure-mode", mode}})
			client := keepAlive(t)
			var done atomic.Int64
			var enough atomic.Bool
			ended := make(chan volley, 1)
			go func() {
				ended <- sendUntil(t.Context(), client, p.url, mixedBodies(), 12, enough.Load, func() { done.Add(1) })
			}()
			more := func(what string) {
				t.Helper()
				before := done.Load()
				eventually(t, what, 30*time.Second, func() bool { return done.Load() > before+100 })
			}
			more("requests to be answered")
			p.stopPicker(t, syscall.SIGKILL)
			if mode == "FailOpen" {
				more("requests to be answered without a picker")
			} else {
				wantClosed(t, client, p.url)
			}
			p.startPicker(t)
			eventually(t, "the picker to be asked again", 30*time.Second, func() bool { return p.decided(t) > 0 })
			more("requests to be answered after the picker's return")
			enough.Store(true)
			v := <-ended
			lost := slices.DeleteFunc(v.Failed, func(err error) bool { return mode == "FailClose" && closed.MatchString(err.Error()) })
			if len(lost) > 0 {
				t.Errorf("got %d of %d requests lost, the first with: %v", len(lost), v.Done+len(v.Failed), lost[0])
			}
			p.wantNothingOpen(t)
		})
	}
}

// wantClosed waits for the answer of an Envoy that can't ask its picker and fails closed.
func wantClosed(t *testing.T, client *http.Client, url string) {
	t.Helper()
	eventually(t, "503 in the form of OpenAI's errors, with Retry-After", 30*time.Second, func() bool {
		answer, err := client.Post(url+"/v1/chat/completions", "application/json", strings.NewReader(`{"model":"m","messages":[]}`))
		if err != nil {
			return false
		}
		defer answer.Body.Close()
		code, _ := refusal(answer)
		return answer.StatusCode == 503 && code == "no_endpoint" && answer.Header.Get("Retry-After") != "" && answer.Header.Get("X-Request-Id") != ""
	})
}

// refusal reads the code and the message of an error in OpenAI's form.
func refusal(answer *http.Response) (code, message string) {
	var body struct {
		Error struct{ Code, Message, Type string }
	}
	if json.NewDecoder(answer.Body).Decode(&body) != nil || body.Error.Type == "" {
		return "", ""
	}
	return body.Error.Code, body.Error.Message
}

// decided is how many decisions the picker has made, as its metrics say.
func (p *plane) decided(t *testing.T) float64 {
	t.Helper()
	return p.metric(t, "sluice_requests_total")
}

// TestPickerIsAway starts Envoy before there is a picker.
func TestPickerIsAway(t *testing.T) {
	for _, mode := range []string{"FailClose", "FailOpen"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			w := startWitnesses(t, 2)
			p := newPlane(t, planeOptions{endpoints: w.endpoints(), envoy: []string{"--failure-mode", mode}})
			p.startEnvoy(t)
			client := keepAlive(t)
			if mode == "FailClose" {
				wantClosed(t, client, p.url)
			} else {
				v := send(t.Context(), client, p.url, mixedBodies(), 4, 500*time.Millisecond)
				if len(v.Failed) > 0 || v.Done == 0 {
					t.Errorf("got %d answers and %d failures without a picker, want answers only: %v", v.Done, len(v.Failed), v.Failed)
				}
			}
			p.startPicker(t)
			p.waitFor(t, instantModel)
			// Envoy hears of the endpoints a moment after it has found the picker.
			eventually(t, "requests to be answered after the picker came", 30*time.Second, func() bool {
				return post(t.Context(), client, p.url, chatBodies(1, 2<<10, 20, true)[0]) == nil && p.decided(t) > 0
			})
		})
	}
}

// TestPickerIsSilent has a picker that takes connections and calls and answers nothing: the deadline of a message passes, then the failure
// mode counts. R05.
func TestPickerIsSilent(t *testing.T) {
	for _, mode := range []string{"FailClose", "FailOpen"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			w := startWitnesses(t, 2)
			p := startPlane(t, instantModel, planeOptions{endpoints: w.endpoints(), envoy: []string{"--failure-mode", mode}})
			p.signal(syscall.SIGSTOP)
			client := keepAlive(t)
			if mode == "FailClose" {
				wantClosed(t, client, p.url)
			} else if err := post(t.Context(), client, p.url, chatBodies(1, 2<<10, 100, true)[0]); err != nil {
				t.Errorf("got %v of a request while the picker is silent, want an answer", err)
			}
			p.signal(syscall.SIGCONT)
			eventually(t, "requests to be answered once the picker wakes", 30*time.Second, func() bool {
				return post(t.Context(), client, p.url, chatBodies(1, 2<<10, 100, false)[0]) == nil
			})
			p.wantNothingOpen(t)
		})
	}
}

// TestManyLargeBodies sends bodies of 400 KB, 150 at a time.
func TestManyLargeBodies(t *testing.T) {
	for _, way := range [][]string{nil, {"--full-duplex"}} {
		t.Run(strings.Join(append([]string{"bodies"}, way...), " "), func(t *testing.T) {
			w := startWitnesses(t, 3)
			p := startPlane(t, instantModel, planeOptions{endpoints: w.endpoints(), envoy: way})
			v := send(t.Context(), keepAlive(t), p.url, chatBodies(16, 400<<10, 20, false), 150, 2*time.Second)
			if len(v.Failed) > 0 || v.Done < 150 {
				t.Errorf("got %d answers and %d failures, want 150 answers at least and no failure: %v", v.Done, len(v.Failed), v.Failed[:min(len(v.Failed), 3)])
			}
			p.wantNothingOpen(t)
		})
	}
}

// TestPickerAsksForTime has a picker that asks Envoy for more time as soon as an answer takes a millisecond, which those to large
// bodies do: Envoy grants it, and takes the answer that follows. B07.
func TestPickerAsksForTime(t *testing.T) {
	w := startWitnesses(t, 2)
	p := startPlane(t, instantModel, planeOptions{endpoints: w.endpoints(), pick: []string{"--patience", "1ms", "--max-wait", "1m"}})
	client := keepAlive(t)
	eventually(t, "the picker to ask for time", time.Minute, func() bool {
		if err := post(t.Context(), client, p.url, chatBodies(1, 8<<20, 20, false)[0]); err != nil {
			t.Errorf("got %v, want an answer", err)
		}
		return t.Failed() || p.metric(t, "sluice_extproc_time_asked_total") > 0
	})
	p.wantNothingOpen(t)
}

// mixedBodies are requests of several sizes, streamed and not.
func mixedBodies() (all [][]byte) {
	for _, size := range []int{2 << 10, 40 << 10, 2 << 10, 1 << 20} {
		all = append(all, chatBodies(2, size, 20, false)...)
		all = append(all, chatBodies(1, size, 20, true)...)
	}
	return all
}
