//go:build doors && unix

package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// ending is a way in which requests end.
type ending struct {
	name string
	do   string // what the engines do
	// leave is after how many bytes of the answer the client goes away, or after the time where there are none; 0 for never.
	leave  int
	after  time.Duration
	stream bool
	want   []int // statuses that clients may see, -1 where there is none
	whole  bool  // whether the answer has an end
}

func endings() []ending {
	return []ending{
		{name: "well", want: []int{200}, whole: true},
		{name: "well, streamed", stream: true, want: []int{200}, whole: true},
		{name: "retried after 503", do: "once 503", want: []int{200}, whole: true},
		{name: "retried after a reset, streamed", do: "once reset", stream: true, want: []int{200}, whole: true},
		{name: "refused everywhere", do: "503", want: []int{503}, whole: true},
		{name: "reset everywhere", do: "reset", want: []int{502, 503}, whole: true},
		{name: "invalid", do: "400", want: []int{400}, whole: true},
		{name: "broken after two chunks", do: "break", stream: true, want: []int{200}},
		{name: "route timeout", do: "hang", want: []int{504}, whole: true},
		{name: "left before an answer", do: "hang", after: 300 * time.Millisecond, want: []int{-1}},
		{name: "left in a stream", stream: true, leave: 400, want: []int{200}},
	}
}

// TestEndings has requests end in every way, many of each at once, and nothing is counted at any endpoint afterwards. R14.
func TestEndings(t *testing.T) { throughAll(t, requestsEnd) }

func requestsEnd(t *testing.T, d door) {
	t.Parallel()
	w := startWitnesses(t, 3)
	text := strings.NewReplacer("modelName: tiny", "modelName: "+instantModel+"\n    routeTimeout: 3s").Replace(tinyEndpoints)
	for _, a := range w.addresses {
		text += fmt.Sprintf("  - address: %s\n    labels:\n      app: tiny\n", a)
	}
	path := filepath.Join(t.TempDir(), "gateway.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	g := d.start(t, []string{instantModel}, "-f", path)
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64, DisableCompression: true}}
	defer client.CloseIdleConnections()
	for _, e := range endings() {
		t.Run(e.name, func(t *testing.T) {
			var all sync.WaitGroup
			for i := range 12 {
				all.Go(func() {
					status, err := e.run(t.Context(), client, g.url, fmt.Sprintf("%s-%s-%d", d.name, e.name, i))
					// The headers of an answer that breaks may still be shown to the picker, and then nothing of it has begun for the client.
					if d.envoy && e.do == "break" && status == http.StatusBadGateway && err == nil {
						return
					}
					if !slices.Contains(e.want, status) || (err == nil) != e.whole {
						t.Errorf("got status %d and error %v, want one of %v, the answer whole: %v", status, err, e.want, e.whole)
					}
				})
			}
			all.Wait()
			g.wantNothingCounted(t)
		})
	}
}

// run sends one request and returns the answer's status and what kept its end away.
func (e *ending) run(ctx context.Context, client *http.Client, url, id string) (status int, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if e.after > 0 {
		ctx, cancel = context.WithTimeout(ctx, e.after)
		defer cancel()
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/chat/completions", bytes.NewReader(chatBodies(1, 2<<10, 100, e.stream)[0]))
	if err != nil {
		return 0, err
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("X-Request-Id", strings.ReplaceAll(id, " ", "-"))
	if e.do != "" {
		r.Header.Set(doHeader, e.do)
	}
	answer, err := client.Do(r)
	if err != nil {
		return -1, err
	}
	defer answer.Body.Close()
	if e.leave > 0 {
		if _, err := io.ReadFull(answer.Body, make([]byte, e.leave)); err != nil {
			return answer.StatusCode, err
		}
		return answer.StatusCode, errors.New("the client went away")
	}
	text, err := io.ReadAll(answer.Body)
	if err == nil && e.stream && answer.StatusCode == http.StatusOK && !bytes.HasSuffix(text, []byte("data: [DONE]\n\n")) {
		err = fmt.Errorf("the stream ended with %q", text[max(0, len(text)-200):])
	}
	return answer.StatusCode, err
}
