package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/console"
	"github.com/sluice-gateway/sluice/sim"
)

// freeAddresses are addresses on which nobody listens.
func freeAddresses(t *testing.T, n int) []string {
	t.Helper()
	var out []string
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		out = append(out, l.Addr().String())
	}
	return out
}

// ask sends a prompt and returns how many of its tokens were cached.
func (g *gateway) ask(t *testing.T, prompt string) (tokens, cached float64) {
	t.Helper()
	body, err := json.Marshal(map[string]any{"model": "m", "max_tokens": 2, "messages": []map[string]string{{"role": "user", "content": prompt}}})
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.Post(g.public+"/v1/chat/completions", "application/json", strings.NewReader(string(body)))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	var answer struct {
		Usage struct {
			Prompt  float64 `json:"prompt_tokens"`
			Details struct {
				Cached float64 `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		}
	}
	if err == nil {
		err = json.Unmarshal(text, &answer)
	}
	if err != nil || resp.StatusCode != 200 {
		t.Fatalf("got %d %s, %v", resp.StatusCode, text, err)
	}
	return answer.Usage.Prompt, answer.Usage.Details.Cached
}

// Q01's kin: conversations whose turns come through three gateways by turns find their beginnings as through one. When one gateway
// leaves, the others say so and go on.
func TestPeersShareWhatTheyKnow(t *testing.T) {
	engines, err := sim.ParseFleet("l8-h100=4")
	if err != nil {
		t.Fatal(err)
	}
	options := make([]sim.ServerOptions, len(engines))
	for i := range engines {
		options[i] = sim.ServerOptions{Engine: engines[i], Model: "m", Seed: uint64(i), Speed: 10}
	}
	farm, err := sim.StartFarm(sim.Listen, nil, options...)
	if err != nil {
		t.Fatal(err)
	}
	defer farm.Close()
	var addresses []string
	for _, m := range farm.Members {
		addresses = append(addresses, m.Address)
	}
	peers := freeAddresses(t, 3)
	var gateways []*gateway
	for _, listen := range peers {
		g := startGateway(t, "--endpoint", "m="+strings.Join(addresses, ","), "--peers", strings.Join(peers, ","), "--peer-listen", listen)
		g.ready(t)
		gateways = append(gateways, g)
	}
	heard := func(g *gateway) (n int) {
		_, body := get(g.admin + "/peers")
		var all []console.Peer
		if err := json.Unmarshal([]byte(body), &all); err != nil {
			t.Fatalf("got %s: %v", body, err)
		}
		for _, p := range all {
			if p.Told && p.Heard {
				n++
			}
		}
		return n
	}
	for _, g := range gateways {
		eventually(t, "everyone hears everyone", func() bool { return heard(g) == 2 })
	}
	var tokens, cached float64
	for turn := range 4 {
		for conversation := range 8 {
			prompt := strings.Repeat(fmt.Sprintf("conversation %d says much. ", conversation), 300+40*turn)
			n, c := gateways[(turn+conversation)%3].ask(t, prompt)
			if turn > 0 {
				tokens, cached = tokens+n, cached+c
			}
		}
	}
	if share := cached / tokens; !(share > .8) {
		t.Errorf("%.0f %% of the prompts' tokens were cached in turns after the first, want more than 80 %%", 100*share)
	}
	if err := gateways[2].stop(); err != nil {
		t.Error(err)
	}
	for _, g := range gateways[:2] {
		eventually(t, "the one that left is not heard", func() bool { return heard(g) == 1 })
		if n, c := g.ask(t, strings.Repeat("conversation 3 says much. ", 300)); c < n/2 {
			t.Errorf("got %.0f of %.0f tokens cached after a gateway has left", c, n)
		}
		if status, body := get(g.admin + "/"); status != 200 || !strings.Contains(body, "/metrics ") {
			t.Errorf("the root of the admin listener: got %d and %q, want what there is", status, body)
		}
		if status, body := get(g.admin + "/metrics"); status != 200 || !strings.Contains(body, "sluice_peer_heard 1\n") {
			t.Errorf("got %d and no metric of one peer that is heard", status)
		}
	}
}

// Flags about peers that can't be used are refused with what to do.
func TestPeerFlagsAreChecked(t *testing.T) {
	for args, want := range map[string]string{
		"--peers gateway":                                    "it is HOST:PORT",
		"--peers :8082":                                      "it is HOST:PORT",
		"--peers gateway:grpc":                               "it is HOST:PORT",
		"--peers gateway:0":                                  "it is HOST:PORT",
		"--peers gateway:70000":                              "it is HOST:PORT",
		"--peers user@gateway:8082":                          "it is HOST:PORT",
		"--peer-cert c --peer-key k --peer-ca a":             "without --peers",
		"--peer-listen 127.0.0.1:7082":                       "cannot use --peer-listen without --peers",
		"--peers g:1 --peer-cert c":                          "it needs a certificate, its key and the authority",
		"--peers g:1 --peer-cert c --peer-key k --peer-ca a": "cannot load the certificate for peers",
		"--peers g:1 --peer-listen 127.0.0.1:70000":          "cannot listen for peers (choose another address with --peer-listen)",
	} {
		if _, err := try(append([]string{"serve", "--endpoint", "m=127.0.0.1:1", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"}, strings.Fields(args)...)...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", args, err, want)
		}
	}
}
