package sim

import (
	"context"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// A workload played at a server has the prompts and answers that it says, arrives on time, and reports what was cut.
func TestPlay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, err := ProfileNamed("l8-h100")
		if err != nil {
			t.Fatal(err)
		}
		var network Network
		farm, err := StartFarm(network.Listen, []string{"engine:1"}, ServerOptions{Engine: EngineConfig{Profile: p}, Model: "m"})
		if err != nil {
			t.Fatal(err)
		}
		defer farm.Close()
		transport := &http.Transport{DialContext: network.DialContext}
		defer transport.CloseIdleConnections()
		var mu sync.Mutex
		tokens := 0
		got, sent := make(map[int]Played), make(map[int]time.Duration)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		start := time.Now()
		player := Player{URL: "http://engine:1", Model: "m", Client: &http.Client{Transport: transport},
			Sent:   func(i int) { mu.Lock(); defer mu.Unlock(); sent[i] = time.Since(start) },
			First:  func(int) {},
			Tokens: func(n int) { mu.Lock(); defer mu.Unlock(); tokens += n },
			Ended:  func(x Played) { mu.Lock(); defer mu.Unlock(); got[x.Index] = x },
		}
		shared := Segment{7, 512}
		player.Play(ctx, start, []Request{
			{At: time.Second, Prompt: []Segment{shared, {8, 88}}, Output: 50},
			{At: 3 * time.Second, Prompt: []Segment{shared, {9, 100}}, Output: 20},
			{At: 9 * time.Second, Prompt: []Segment{{10, 100}}, Output: 4000},
			{At: 20 * time.Second, Prompt: []Segment{{11, 100}}, Output: 10},
		})
		if sent[0] != time.Second || sent[1] != 3*time.Second || len(sent) != 3 {
			t.Errorf("sent at %v, want 1 s, 3 s and 9 s, and nothing after the end", sent)
		}
		for i, want := range []struct{ prompt, cached, output int }{{600, 0, 50}, {612, 512, 20}} {
			x := got[i]
			if x.Err != nil || x.Usage.PromptTokens != want.prompt || x.Usage.CachedTokens != want.cached || x.Usage.OutputTokens != want.output {
				t.Errorf("request %d: got %+v, want %+v", i, x, want)
			}
			if x.TTFT <= 0 || x.TTFT >= x.Total {
				t.Errorf("request %d: first token after %v of %v", i, x.TTFT, x.Total)
			}
		}
		if tokens < 70+100 || tokens > 70+4000 {
			t.Errorf("got %d tokens as they came, want those of the answers and of the one that was cut", tokens)
		}
		if x := got[2]; x.Err == nil || x.TTFT == 0 {
			t.Errorf("got %+v, want a request that was cut after its first token", x)
		}
	})
}
