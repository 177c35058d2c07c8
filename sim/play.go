package sim

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/sluice-gateway/sluice/openai"
)

// Played is how one request of a workload went at a real server.
type Played struct {
	// Index is the request's place in the workload.
	Index int
	// TTFT is the time to the first token, Total to the end; 0 where it did not come to that.
	TTFT, Total time.Duration
	// Usage is what the server reported.
	Usage openai.Usage
	// Err says why it failed, nil if it ended well.
	Err error
}

// Player sends a workload to a server with OpenAI's API in real time, as an open loop: arrivals do not wait for answers, so that a slow server
// is not spared. Requests that follow others are sent as if they did not.
type Player struct {
	// URL is the server's, without a path; Model the base model that requests without an adapter name.
	URL, Model string
	// Client sends; it should keep many connections.
	Client *http.Client
	// Sent, First and Ended are called when a request is sent, has its first token, and has ended; Tokens when so many events of an answer, a
	// token each, have come. Several at a time.
	Sent, First func(index int)
	Tokens      func(n int)
	Ended       func(Played)
}

// Play sends the requests at their times after start until ctx ends, and returns when all have ended: what still runs when ctx ends is cut and reported with
// ctx's error.
func (p *Player) Play(ctx context.Context, start time.Time, requests []Request) {
	var running sync.WaitGroup
	defer running.Wait()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for i := range requests {
		timer.Reset(time.Until(start.Add(requests[i].At)))
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		running.Go(func() {
			p.Sent(i)
			p.Ended(p.send(ctx, i, &requests[i]))
		})
	}
}

// send sends one request and reads its answer.
func (p *Player) send(ctx context.Context, i int, r *Request) (out Played) {
	out.Index = i
	body, err := json.Marshal(p.body(r))
	if err != nil {
		out.Err = err
		return out
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.URL+"/v1/completions", bytes.NewReader(body))
	if err != nil {
		out.Err = err
		return out
	}
	req.Header.Set("Content-Type", "application/json")
	sent := time.Now()
	resp, err := p.Client.Do(req)
	if err != nil {
		out.Err = err
		return out
	}
	defer func() { _ = resp.Body.Close() }()
	usage := openai.NewUsageReader(true)
	buffer := make([]byte, 16<<10)
	for {
		n, err := resp.Body.Read(buffer)
		if n > 0 && out.TTFT == 0 && resp.StatusCode == http.StatusOK {
			out.TTFT = time.Since(sent)
			p.First(i)
		}
		before := usage.Events()
		_, _ = usage.Write(buffer[:n]) // it takes everything
		if came := usage.Events() - before; came > 0 {
			p.Tokens(came)
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			out.Err = err
			return out
		}
	}
	out.Usage, out.Total = usage.Usage(), time.Since(sent)
	switch {
	case resp.StatusCode != http.StatusOK:
		out.Err = fmt.Errorf("status %s", resp.Status)
	case !out.Usage.Seen:
		out.Err = fmt.Errorf("the stream broke off")
	}
	return out
}

// body is the request as the API takes it: a completion of just so many tokens.
func (p *Player) body(r *Request) any {
	model := p.Model
	if r.Adapter != "" {
		model = r.Adapter
	}
	var prompt []byte
	for _, s := range r.Prompt {
		prompt = s.appendText(prompt)
	}
	return struct {
		Model         string          `json:"model"`
		Prompt        string          `json:"prompt"`
		Stream        bool            `json:"stream"`
		MaxTokens     int             `json:"max_tokens"`
		IgnoreEOS     bool            `json:"ignore_eos"`
		StreamOptions map[string]bool `json:"stream_options"`
	}{model, string(prompt), true, r.Output, true, map[string]bool{"include_usage": true}}
}

// appendText appends as many words as the segment has tokens: the same for the same ID, and each one token to the servers' tokenizer.
func (s Segment) appendText(dst []byte) []byte {
	const letters = "abcdefghijklmnopqrstuvwxyz"
	for i := range s.Tokens {
		h := mix(s.ID + uint64(i)*0x9e3779b97f4a7c15)
		dst = append(dst, ' ')
		for range 3 + h%2 {
			h /= 26
			dst = append(dst, letters[h%26])
		}
	}
	return dst
}
