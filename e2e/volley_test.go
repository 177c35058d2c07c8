//go:build (doors || dataplane) && unix

package e2e

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// engine is one running model server.
type engine struct {
	*process
	address string // host:port
}

// waitReady waits until all engines have said where they are.
func waitReady(t *testing.T, engines []*engine) {
	t.Helper()
	for _, e := range engines {
		eventually(t, e.name+" to be ready", time.Minute, func() bool {
			if !e.running() {
				t.Fatalf("%s ended:\n%s", e.name, e.tail(20))
			}
			for _, line := range e.stdout.since(0) {
				if address, ok := strings.CutPrefix(line, "engine: ready on "); ok {
					e.address = address
				}
			}
			return e.address != ""
		})
	}
}

// addresses joins the engines' addresses as the gateway's --endpoint takes them.
func addresses(engines []*engine) string {
	all := make([]string, len(engines))
	for i, e := range engines {
		all[i] = e.address
	}
	return strings.Join(all, ",")
}

// chatBodies makes n requests of about that many bytes, each with a prompt of its own.
func chatBodies(n, bytes, tokens int, stream bool) [][]byte {
	var all [][]byte
	for i := range n {
		begin := fmt.Sprintf(`{"model":"m","stream":%v,"max_tokens":%d,"messages":[{"role":"user","content":"request %d of %d bytes: `, stream, tokens, i, bytes)
		const end, words = `"}]}`, "the quick brown fox jumps over the lazy dog and "
		body := begin + strings.Repeat(words, max(0, bytes-len(begin)-len(end))/len(words)+1)
		all = append(all, []byte(body[:max(len(begin), bytes-len(end))]+end))
	}
	return all
}

// volley is what came of requests that were sent at once, again and again.
type volley struct {
	Done    int
	Failed  []error
	Seconds float64
	Took    []float64 // milliseconds of each that was answered
}

// send has workers send the bodies in turn, each the next one as soon as it has its answer, until the time is up; what is under way then is waited for.
func send(ctx context.Context, client *http.Client, url string, bodies [][]byte, workers int, length time.Duration) volley {
	began := time.Now()
	return sendUntil(ctx, client, url, bodies, workers, func() bool { return time.Since(began) >= length }, func() {})
}

// sendUntil is send with an end that the caller tells; answered is called with each answer.
func sendUntil(ctx context.Context, client *http.Client, url string, bodies [][]byte, workers int, enough func() bool, answered func()) volley {
	var (
		v       volley
		mu      sync.Mutex
		running sync.WaitGroup
		turn    atomic.Int64
	)
	began := time.Now()
	for range workers {
		running.Go(func() {
			for !enough() && ctx.Err() == nil {
				sent := time.Now()
				err := post(ctx, client, url, bodies[int(turn.Add(1))%len(bodies)])
				took := float64(time.Since(sent)) / 1e6
				mu.Lock()
				if err != nil {
					v.Failed = append(v.Failed, err)
				} else {
					v.Done++
					v.Took = append(v.Took, took)
					answered()
				}
				mu.Unlock()
			}
		})
	}
	running.Wait()
	v.Seconds = time.Since(began).Seconds()
	return v
}

// post sends one request and reads its answer to the end, which a stream has to say.
func post(ctx context.Context, client *http.Client, url string, body []byte) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/chat/completions", bytes.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/json")
	_, err = exchange(client, r)
	return err
}

// exchange sends a request and reads its answer to the end, which a stream has to say. The endpoint is what the answer's headers
// name, empty before they have come.
func exchange(client *http.Client, r *http.Request) (endpoint string, err error) {
	answer, err := client.Do(r)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	endpoint = answer.Header.Get("X-Gateway-Destination-Endpoint-Served")
	if answer.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(answer.Body, 500))
		return endpoint, fmt.Errorf("status %d: %s", answer.StatusCode, bytes.TrimSpace(text))
	}
	if !strings.HasPrefix(answer.Header.Get("Content-Type"), "text/event-stream") {
		_, err = io.Copy(io.Discard, answer.Body)
		return endpoint, err
	}
	last, err := lastBytes(answer.Body, 14)
	if err == nil && string(last) != "data: [DONE]\n\n" {
		err = fmt.Errorf("the stream ended with %q", last)
	}
	return endpoint, err
}

// lastBytes reads to the end and returns the last n bytes.
func lastBytes(r io.Reader, n int) ([]byte, error) {
	var last []byte
	buffer := make([]byte, 16<<10)
	for {
		k, err := r.Read(buffer)
		last = append(last, buffer[:k]...)
		last = last[max(0, len(last)-n):]
		if err == io.EOF {
			return last, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

// keepAlive is a client with a connection for each worker.
func keepAlive(t *testing.T) *http.Client {
	transport := &http.Transport{MaxIdleConnsPerHost: 1024, DisableCompression: true, WriteBufferSize: 64 << 10, ReadBufferSize: 16 << 10}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}
