//go:build doors && unix

package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

var simulated = regexp.MustCompile(`sluice: l8-h100 on http://(\S+)`)

// simulate starts simulated model servers and returns their addresses.
func simulate(t *testing.T, n int) []string {
	t.Helper()
	p := start(t, "servers", os.Getenv(binaryVariable), "sim", "--profile", fmt.Sprintf("l8-h100=%d", n), "--model", "m")
	var found []string
	eventually(t, "the servers to say where they are", 30*time.Second, func() bool {
		found = nil
		for _, line := range p.stdout.since(0) {
			if match := simulated.FindStringSubmatch(line); match != nil {
				found = append(found, match[1])
			}
		}
		return len(found) == n
	})
	return found
}

// streamed asks for a streamed answer and reads it to its end.
func streamed(url, prompt string, tokens int) error {
	body, err := json.Marshal(map[string]any{"model": "m", "max_tokens": tokens, "ignore_eos": true, "stream": true, "messages": []map[string]string{{"role": "user", "content": prompt}}})
	if err != nil {
		return err
	}
	answer, err := http.Post(url+"/v1/chat/completions", "application/json", strings.NewReader(string(body)))
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != 200 || !strings.Contains(string(text), "[DONE]") {
		return fmt.Errorf("status %d, %d bytes, no end of the stream: %v", answer.StatusCode, len(text), err)
	}
	return nil
}

func (g *gateway) heard(t *testing.T) (n int) {
	var peers []struct{ Heard, Told bool }
	g.state(t, "/peers", &peers)
	for _, p := range peers {
		if p.Heard && p.Told {
			n++
		}
	}
	return n
}

// TestPeerIsKilled kills one of three gateways that share what they do, while all three have streams: the others lose
// nothing, and within seconds count nothing of it any more.
func TestPeerIsKilled(t *testing.T) { throughBoth(t, peerIsKilled) }

func peerIsKilled(t *testing.T, d door) {
	servers := simulate(t, 3)
	var peers []string
	for range 3 {
		peers = append(peers, freeAddress(t))
	}
	flags := func(i int) []string {
		return []string{"--endpoint", "m=" + strings.Join(servers, ","), "--peers", strings.Join(peers, ","), "--peer-listen", peers[i]}
	}
	doomed := &gateway{process: start(t, "doomed gateway", os.Getenv(binaryVariable), append(serveArgs(t, flags(2)...), d.args...)...)}
	all := []*gateway{d.start(t, []string{"m"}, flags(0)...), d.start(t, []string{"m"}, flags(1)...), doomed}
	eventually(t, "the third gateway to say where it listens", 30*time.Second, func() bool { doomed.findAddresses(); return doomed.url != "" && doomed.admin != "" })
	for _, g := range all {
		eventually(t, "everyone to hear everyone", 30*time.Second, func() bool { return g.heard(t) == 2 })
	}
	var streams, lost sync.WaitGroup
	for i, g := range all {
		for k := range 8 {
			prompt := strings.Repeat(fmt.Sprintf("gateway %d, stream %d. ", i, k), 200)
			if g == doomed {
				lost.Go(func() { _ = streamed(g.url, prompt, 20_000) })
				continue
			}
			streams.Go(func() {
				for turn := range 4 {
					if err := streamed(g.url, prompt, 150); err != nil {
						t.Errorf("gateway %d, stream %d, turn %d: %v", i, k, turn, err)
					}
				}
			})
		}
	}
	eventually(t, "the third gateway to have its streams", 30*time.Second, func() bool {
		var pools []struct{ Endpoints []struct{ InFlight int } }
		doomed.state(t, "/fleet", &pools)
		n := 0
		for _, e := range pools[0].Endpoints {
			n += e.InFlight
		}
		return n == 8
	})
	doomed.signal(syscall.SIGKILL)
	lost.Wait()
	streams.Wait()
	for _, g := range all[:2] {
		eventually(t, "one peer to be left", 10*time.Second, func() bool { return g.heard(t) == 1 })
		g.wantNothingCounted(t)
		if !g.stderr.holding(0, "peer is not heard any more") {
			t.Error("the log does not say that a peer was lost")
		}
	}
}
