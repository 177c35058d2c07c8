package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sluice-gateway/sluice/sim"
)

// livePlay is one round at one target: an open loop, in which arrivals don't wait for answers, so that a slow server is not spared. A turn of a
// conversation waits for the answer before it, which it repeats as it was.
type livePlay struct {
	*live
	url   string
	words uint64 // decides the words that prompts are made of
	warm  time.Duration

	start   time.Time
	next    [][]int // of each request, those that follow it
	running sync.WaitGroup

	mu      sync.Mutex // guards what is below
	replies map[uint64]string
	ended   []liveAnswer
	late    []float64 // seconds after its time that a request was sent
}

// liveAnswer is how one request went.
type liveAnswer struct {
	at                     time.Duration // since the start
	ttft, total            float64       // seconds; 0 for what did not come
	prompt, cached, output int
	text                   string
	err                    error
}

// run sends the requests at their times and waits for their ends.
func (p *livePlay) run(ctx context.Context, requests []sim.Request) (liveFigures, error) {
	p.replies, p.next = make(map[uint64]string), make([][]int, len(requests))
	for i := range requests {
		if r := &requests[i]; r.Follows >= 0 {
			p.next[r.Follows] = append(p.next[r.Follows], i)
		}
	}
	round, cancel := context.WithTimeout(ctx, p.length+liveGrace)
	defer cancel()
	p.start = time.Now()
	for i := range requests {
		if requests[i].Follows < 0 {
			p.running.Go(func() { p.send(round, requests, i, p.start.Add(requests[i].At)) })
		}
	}
	p.running.Wait()
	if err := ctx.Err(); err != nil {
		return liveFigures{}, err
	}
	return p.figures()
}

// send sends a request when its time has come, and after its answer has those that follow it sent. What would come after the last arrival is left out:
// at a slow server there are fewer turns within the time.
func (p *livePlay) send(ctx context.Context, requests []sim.Request, i int, when time.Time) {
	if when.Sub(p.start) > p.length {
		return
	}
	timer := time.NewTimer(time.Until(when))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return
	case <-timer.C:
	}
	r := &requests[i]
	late := time.Since(when).Seconds()
	a := p.ask(ctx, r)
	a.at = when.Sub(p.start)
	ended := time.Now()
	p.mu.Lock()
	if len(p.next[i]) > 0 {
		p.replies[r.Reply] = a.text
	}
	a.text = ""
	p.ended, p.late = append(p.ended, a), append(p.late, late)
	p.mu.Unlock()
	if a.err != nil {
		return
	}
	for _, j := range p.next[i] {
		p.running.Go(func() { p.send(ctx, requests, j, ended.Add(requests[j].At)) })
	}
}

// ask sends one request and reads its answer.
func (p *livePlay) ask(ctx context.Context, r *sim.Request) (a liveAnswer) {
	body, err := json.Marshal(p.body(r))
	if err != nil {
		a.err = err
		return a
	}
	req, err := p.request(ctx, http.MethodPost, p.url+"/v1/chat/completions", bytes.NewReader(body))
	if err != nil {
		a.err = err
		return a
	}
	sent := time.Now()
	resp, err := p.client.Do(req)
	if err != nil {
		a.err = err
		return a
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 512))
		a.err = fmt.Errorf("status %s: %s", resp.Status, bytes.TrimSpace(text))
		return a
	}
	var text strings.Builder
	a.err = eachEvent(resp.Body, func(e *liveEvent) error {
		if e.Error != nil {
			return fmt.Errorf("the stream told of an error: %s", *e.Error)
		}
		said := ""
		for _, c := range e.Choices {
			said += c.Delta.Content + c.Delta.Reasoning
		}
		if said != "" {
			a.total = time.Since(sent).Seconds()
			if a.ttft == 0 {
				a.ttft = a.total
			}
			text.WriteString(said)
		}
		if u := e.Usage; u != nil {
			a.prompt, a.cached, a.output = u.Prompt, u.Details.Cached, u.Completion
		}
		return nil
	})
	a.text = text.String()
	if a.err == nil && a.ttft == 0 {
		a.err = fmt.Errorf("the answer held no text")
	}
	return a
}

// liveEvent is what is read of an event of a streamed chat completion.
type liveEvent struct {
	Choices []struct {
		Delta struct {
			Content   string `json:"content"`
			Reasoning string `json:"reasoning_content"`
		} `json:"delta"`
	} `json:"choices"`
	Usage *struct {
		Prompt     int `json:"prompt_tokens"`
		Completion int `json:"completion_tokens"`
		Details    struct {
			Cached int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	} `json:"usage"`
	Error *json.RawMessage `json:"error"`
}

// liveLine is the longest line of a stream that is taken.
const liveLine = 1 << 20

// eachEvent calls use for each event of a stream until its end marker. A stream that ends without one has broken off.
func eachEvent(r io.Reader, use func(*liveEvent) error) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, liveLine)
	for lines.Scan() {
		data, is := bytes.CutPrefix(lines.Bytes(), []byte("data:"))
		if !is {
			continue
		}
		if data = bytes.TrimSpace(data); string(data) == "[DONE]" {
			return nil
		}
		var e liveEvent
		if err := json.Unmarshal(data, &e); err != nil {
			return fmt.Errorf("cannot read an event of the stream: %w", err)
		}
		if err := use(&e); err != nil {
			return err
		}
	}
	return cmp.Or(lines.Err(), fmt.Errorf("the stream broke off"))
}

// liveMessage is one of a chat's messages.
type liveMessage struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// body is the request as the API takes it: a chat of just so many tokens where a word is one, answered at just that length by engines that know ignore_eos.
func (p *livePlay) body(r *sim.Request) any {
	return struct {
		Model         string          `json:"model"`
		Messages      []liveMessage   `json:"messages"`
		Stream        bool            `json:"stream"`
		MaxTokens     int             `json:"max_tokens"`
		IgnoreEOS     bool            `json:"ignore_eos"`
		StreamOptions map[string]bool `json:"stream_options"`
	}{cmp.Or(r.Adapter, p.model), p.messages(r.Prompt), true, p.scale(r.Output), true, map[string]bool{"include_usage": true}}
}

func (p *livePlay) scale(tokens int) int { return max(int(math.Round(float64(tokens)*p.size)), 1) }

// messages lays out a prompt: what earlier answers said is the assistant's, what comes first of several parts is the system's, the rest is the user's.
func (p *livePlay) messages(prompt []sim.Segment) []liveMessage {
	var out []liveMessage
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, s := range prompt {
		text, answered := p.replies[s.ID]
		role := "user"
		switch {
		case answered:
			role = "assistant"
		case i == 0 && len(prompt) > 1:
			role = "system"
		}
		if !answered {
			text = sim.Segment{ID: s.ID ^ p.words<<48, Tokens: p.scale(s.Tokens)}.Text()
		}
		if n := len(out); n > 0 && out[n-1].Role == role {
			out[n-1].Content += text
			continue
		}
		out = append(out, liveMessage{role, text})
	}
	return out
}

// figures sums up what arrived after the warm-up.
func (p *livePlay) figures() (liveFigures, error) {
	var ttft, tpot, total []float64
	var prompt, cached, output, good, lost, counted float64
	var first error
	from, to := math.Inf(1), 0.
	for i := range p.ended {
		a := &p.ended[i]
		if a.err != nil && first == nil {
			first = a.err
		}
		if a.at < p.warm {
			continue
		}
		counted++
		if a.err != nil {
			lost++
			continue
		}
		from, to = min(from, a.at.Seconds()), max(to, a.at.Seconds()+a.total)
		between := 0.
		if a.output > 1 {
			between = (a.total - a.ttft) / float64(a.output-1)
			tpot = append(tpot, between)
		}
		if a.ttft <= p.ttft.Seconds() && between <= p.tpot.Seconds() {
			good++
		}
		ttft, total = append(ttft, a.ttft), append(total, a.total)
		prompt, cached, output = prompt+float64(a.prompt), cached+float64(a.cached), output+float64(a.output)
	}
	if len(ttft) == 0 {
		return liveFigures{}, fmt.Errorf("%s answered none of %d requests: %w", p.url, len(p.ended), cmp.Or(first, fmt.Errorf("none was made; use a longer --for or a higher --rate")))
	}
	for _, x := range [][]float64{ttft, tpot, total} {
		slices.Sort(x)
	}
	return liveFigures{mean(ttft), sim.Quantile(ttft, .5), sim.Quantile(ttft, .95), sim.Quantile(ttft, .99), sim.Quantile(tpot, .5), sim.Quantile(tpot, .95),
		sim.Quantile(total, .5), sim.Quantile(total, .95), good / counted, output / (to - from), cached / max(prompt, 1), lost / counted}, nil
}

func mean(values []float64) float64 {
	sum := 0.
	for _, x := range values {
		sum += x
	}
	return sum / float64(len(values))
}
