package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	"github.com/sluice-gateway/sluice/config"
	"github.com/sluice-gateway/sluice/console"
	"github.com/sluice-gateway/sluice/fleet"
	"github.com/sluice-gateway/sluice/sim"
)

// demoOptions are the flags of demo. Their defaults stand in demoCommand alone.
type demoOptions struct {
	scenario string
	length   time.Duration
	seed     uint64
	load     float64
	listen   string
	open     bool
}

func demoCommand() *cobra.Command {
	o := &demoOptions{}
	var says []string
	for _, s := range scenarios() {
		says = append(says, fmt.Sprintf("  %-10s %s", s.name, s.says))
	}
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Watch the gateway beside round robin, on a fleet of simulated GPUs",
		Long: `Demo starts two fleets of eight simulated GPUs that serve an 8B model, one behind the gateway and its twin behind round robin, sends both the same
traffic, and shows how soon and how fast each answers. It needs no GPU, no network and no file. The gateway is a real one: send it
requests, ask it why. It follows the servers' KV events, and so knows what their caches hold; "expected" is the share of prompt tokens
that it thought they would find there, "hits" what they found; "10 s" are percentiles of the last ten seconds,
"cut" answers that broke off, and "no token yet" those of "running" that wait for their first token.

Scenarios:
` + strings.Join(says, "\n"),
		Example: `  sluice demo
  sluice demo --for 30s
  sluice demo --scenario failure --for 90s --open`,
		Args: noArgs("--scenario NAME"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return demo(cmd.Context(), o, cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.scenario, "scenario", "mixed", "`NAME` of the fleet and traffic to play")
	f.DurationVar(&o.length, "for", 0, "end after so long, with a table (default: at Ctrl-C)")
	f.Uint64Var(&o.seed, "seed", 1, "decides the traffic")
	f.Float64Var(&o.load, "load", 1, "times the scenario's requests per second")
	f.StringVar(&o.listen, "listen", "127.0.0.1:8080", "`ADDR` of the gateway; a free port if it is taken")
	f.BoolVar(&o.open, "open", false, "open the console page in the browser")
	return cmd
}

const (
	demoModel = "llama-3.1-8b"
	// longest is how long traffic is made for without --for.
	longest = 2 * time.Hour
	// mostLoad is where a machine of any size stops to keep up with its own simulated fleets.
	mostLoad = 20
	// readyWithin is how long the fleets may take to be found.
	readyWithin = 15 * time.Second
)

// side is a gateway, the fleet behind it, and how it does.
type side struct {
	name    string
	farm    *sim.Farm
	gateway *server
	board   *board
	// follows says that its gateway follows its servers' KV events.
	follows bool
	// moved are the addresses that were taken, so that free ones stand in.
	moved []string
}

// demo runs until ctx ends or the time is up.
func demo(ctx context.Context, o *demoOptions, out io.Writer) error {
	scene, err := byName(o.scenario)
	if err != nil {
		return err
	}
	if o.length < 0 || !(o.load > 0 && o.load <= mostLoad) {
		return fmt.Errorf("cannot play: --for must not be negative, and --load must be more than 0 and at most %d", mostLoad)
	}
	origin := time.Now()
	stop, cancel := context.WithCancel(context.WithoutCancel(ctx)) // ends gateways and fleets, after the traffic
	defer cancel()
	sides := []*side{{name: "sluice", follows: true}, {name: "round robin"}} // whose choices no event would change
	var shown []console.Side
	for i, profile := range []string{"latency", "round-robin"} {
		if err := sides[i].start(stop, scene, o, profile, origin); err != nil {
			return err
		}
		defer sides[i].farm.Close()
		shown = append(shown, sides[i].gateway.side(sides[i].name))
	}
	sides[0].gateway.sides = shown
	for _, s := range sides {
		go func() { _ = s.gateway.run(stop) }() // it ends with the demo, and what it says then nobody reads
	}
	if err := ready(ctx, sides); err != nil {
		return err
	}
	greet(out, scene, sides, o)
	return play(ctx, out, scene, sides, o)
}

// start brings a fleet up and a gateway before it, which listens and does not run yet.
func (s *side) start(ctx context.Context, scene scenario, o *demoOptions, profile string, origin time.Time) error {
	s.board = newBoard()
	var options []sim.ServerOptions
	adapters := scene.adapterNames()
	for i, name := range scene.engines {
		p, err := sim.ProfileNamed(name)
		if err != nil {
			return err
		}
		events := ""
		if s.follows {
			events = "tcp://127.0.0.1:0"
		}
		options = append(options, sim.ServerOptions{KVEvents: events, Replay: events, Engine: sim.EngineConfig{Profile: p, AdapterSlots: scene.slots, AdapterLoad: adapterLoad, AdapterStep: adapterStep},
			Model: demoModel, Adapters: adapters, Seed: o.seed + uint64(i)})
	}
	var err error
	if s.farm, err = sim.StartFarm(sim.Listen, nil, options...); err != nil {
		return err
	}
	listen, admin := o.listen, "127.0.0.1:8081"
	if s.name != "sluice" {
		listen, admin = "127.0.0.1:0", "127.0.0.1:0"
	}
	args := []string{"--profile", profile, "--listen", listen, "--admin", admin}
	flags, so := pflag.NewFlagSet("serve", pflag.ContinueOnError), &serveOptions{}
	serveFlags(flags, so)
	if err := flags.Parse(args); err != nil {
		return err
	}
	if so.made, err = s.config(scene); err != nil {
		return err
	}
	if s.gateway, err = newServer(ctx, &so.gatewayOptions, slog.New(slog.DiscardHandler), origin, so.open); err != nil {
		return err
	}
	s.gateway.alsoEnded = s.board.asked
	return s.listen()
}

// config lists the side's servers, with their GPUs where the scenario tells them, and where they publish KV events.
func (s *side) config(scene scenario) (*config.Config, error) {
	var addresses []string
	for _, m := range s.farm.Members {
		addresses = append(addresses, m.Address)
	}
	c, err := config.FromFlags([]string{demoModel + "=" + strings.Join(addresses, ",")}, config.KVEvents{})
	if err != nil {
		return nil, err
	}
	for i, m := range s.farm.Members {
		e := &c.Pools[0].Endpoints[i]
		if p, err := sim.ProfileNamed(scene.engines[i]); err == nil && !scene.unlabelled {
			e.Labels = map[string]string{fleet.LabelGPU: p.GPU}
		}
		events, replay := m.KVEvents()
		if e.KVEvents.Port, err = portOf(events); err != nil {
			return nil, err
		}
		if e.KVEvents.ReplayPort, err = portOf(replay); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// portOf is the port of an address like tcp://127.0.0.1:5557, 0 of none.
func portOf(address string) (int, error) {
	if address == "" {
		return 0, nil
	}
	_, port, err := net.SplitHostPort(strings.TrimPrefix(address, "tcp://"))
	if err != nil {
		return 0, fmt.Errorf("cannot follow KV events at %q: %w", address, err)
	}
	return strconv.Atoi(port)
}

// listen opens the gateway's listeners, on free ports where those wanted are taken.
func (s *side) listen() error {
	so := s.gateway.o
	err := s.gateway.listen()
	for _, address := range []*string{&so.listen, &so.admin} {
		if !errors.Is(err, syscall.EADDRINUSE) {
			return err
		}
		if taken, bad := net.Listen("tcp", *address); bad == nil {
			_ = taken.Close() // it is the other one that is taken
			continue
		}
		s.moved = append(s.moved, *address)
		*address = "127.0.0.1:0"
		err = s.gateway.listen()
	}
	return err
}

// ready waits until both gateways know all their endpoints.
func ready(ctx context.Context, sides []*side) error {
	tick, limit := time.NewTicker(20*time.Millisecond), time.After(readyWithin)
	defer tick.Stop()
	for {
		missing := 0
		for _, s := range sides {
			for _, p := range s.gateway.fleet.Pools() {
				for _, e := range p.Status(s.gateway.now()) {
					if e.State != "ready" {
						missing++
					}
				}
			}
		}
		if missing == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-limit:
			return fmt.Errorf("cannot bring the fleets up: %d endpoints are not ready after %s", missing, readyWithin)
		case <-tick.C:
		}
	}
}

// greet says what runs, and what one can do with it.
func greet(out io.Writer, scene scenario, sides []*side, o *demoOptions) {
	address, admin := "http://"+sides[0].gateway.public.Addr().String(), sides[0].gateway.private.Addr().String()
	fmt.Fprintf(out, "Scenario %s: %s.\n", scene.name, scene.says)
	fmt.Fprintf(out, "Two fleets of %d simulated GPUs, the same traffic to both: one behind sluice, its twin behind round robin.\n\n", len(scene.engines))
	for _, taken := range sides[0].moved {
		fmt.Fprintf(out, "%s is taken by someone else, so a free port stands in.\n", taken)
	}
	fmt.Fprintf(out, "The gateway is at %s. Ask it something, in another terminal:\n\n", address)
	fmt.Fprintf(out, `  curl %s/v1/chat/completions -H 'content-type: application/json' \
    -d '{"model":"%s","messages":[{"role":"user","content":"Hello"}],"max_tokens":32}'

  python3 -c '
from openai import OpenAI
client = OpenAI(base_url="%s/v1", api_key="none")
for chunk in client.chat.completions.create(model="%s", stream=True, max_tokens=32, messages=[{"role": "user", "content": "Hello"}]):
    print(chunk.choices[0].delta.content or "" if chunk.choices else "", end="", flush=True)
print()'

`, address, demoModel, address, demoModel)
	fmt.Fprintf(out, "Why did it go there?  %s explain --admin %s\n", invocation(), admin)
	fmt.Fprintf(out, "The fleet as a page:  http://%s/console\n\n", admin)
	if o.open {
		browse(out, "http://"+admin+"/console")
	}
}

// invocation is how the user started the program, as far as it can be typed again.
func invocation() string {
	if strings.Contains(os.Args[0], "go-build") {
		return "go run ./cmd/sluice"
	}
	return os.Args[0]
}

// browse opens a page in the user's browser, or says that it cannot.
func browse(out io.Writer, url string) {
	name := "xdg-open"
	if runtime.GOOS == "darwin" {
		name = "open"
	}
	if err := exec.Command(name, url).Start(); err != nil {
		fmt.Fprintf(out, "Cannot open a browser (%v): open %s yourself.\n\n", err, url)
	}
}

// play sends the traffic, shows how it goes, and ends with a table.
func play(ctx context.Context, out io.Writer, scene scenario, sides []*side, o *demoOptions) error {
	length := o.length
	if length == 0 {
		length = longest
	}
	ctx, cancel := context.WithTimeout(ctx, length)
	defer cancel()
	mix := scene.mix
	mix.Adapters = scene.adapterNames()
	mix.Rate = times(mix.Rate, o.load)
	requests := mix.Generate(o.seed, length)
	start := time.Now()
	ended := make(chan struct{}, len(sides))
	for _, s := range sides {
		go func() {
			s.send(ctx, start, requests)
			ended <- struct{}{}
		}()
	}
	news := make(chan string, 4)
	if scene.faults {
		go breakThings(ctx, sides, o.length, news)
	}
	watch(ctx, out, sides, start, news)
	final := figures(sides, start, time.Now(), true)
	for range sides {
		<-ended
	}
	fmt.Fprintf(out, "\nAfter %.0f s; requests without a token yet count with the time they have waited, failed ones as never; tokens/s over the whole time:\n\n",
		time.Since(start).Seconds())
	for _, line := range table(names(sides), final, columns(out), true) {
		fmt.Fprintln(out, line)
	}
	_, err := fmt.Fprintln(out, "\n"+verdict(names(sides), final))
	return err
}

// times scales a rate.
func times(r sim.Rate, load float64) sim.Rate {
	return sim.Rate{At: func(t float64) float64 { return load * r.At(t) }, Max: load * r.Max}
}

// send plays the traffic against one side.
func (s *side) send(ctx context.Context, start time.Time, requests []sim.Request) {
	transport := &http.Transport{MaxIdleConnsPerHost: 1024, DisableCompression: true}
	defer transport.CloseIdleConnections()
	p := sim.Player{URL: "http://" + s.gateway.public.Addr().String(), Model: demoModel, Client: &http.Client{Transport: transport},
		Sent:   func(i int) { s.board.sent(i, time.Now()) },
		First:  func(i int) { s.board.first(i, time.Now()) },
		Tokens: func(n int) { s.board.tokens(n, time.Now()) },
		Ended:  func(p sim.Played) { s.board.end(p, time.Now()) },
	}
	p.Play(ctx, start, requests)
}

// breakThings lets a server die after a third of the time and another freeze after two thirds; without a limit, after 20 and 40 seconds.
func breakThings(ctx context.Context, sides []*side, length time.Duration, news chan<- string) {
	says := []string{"the first server of each fleet dies: its connections break, and new ones are refused",
		"the second server of each fleet freezes: it takes connections and answers nothing"}
	third := length / 3
	if third == 0 {
		third = 20 * time.Second
	}
	for k, fault := range []func(m *sim.Member){func(m *sim.Member) { m.Crash() }, func(m *sim.Member) { m.Freeze(true) }} {
		select {
		case <-ctx.Done():
			return
		case <-time.After(third):
		}
		for _, s := range sides {
			fault(s.farm.Members[k])
		}
		news <- says[k]
	}
}

// watch shows the figures as they develop until ctx ends: in place on a terminal, else a block every five seconds.
func watch(ctx context.Context, out io.Writer, sides []*side, start time.Time, news <-chan string) {
	every, live := 5*time.Second, columns(out) > 0
	if live {
		every = 500 * time.Millisecond
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	lines := 0
	for {
		select {
		case <-ctx.Done():
			return
		case said := <-news:
			fmt.Fprintf(out, "%.0f s: %s\n", time.Since(start).Seconds(), said)
			lines = 0 // what stands above stays
		case now := <-tick.C:
			if live && lines > 0 {
				fmt.Fprintf(out, "\x1b[%dA\x1b[J", lines)
			}
			block := append([]string{fmt.Sprintf("%.0f s", now.Sub(start).Seconds())}, table(names(sides), figures(sides, start, now, false), columns(out), false)...)
			fmt.Fprintln(out, strings.Join(block, "\n"))
			lines = len(block)
		}
	}
}

// columns is the width of the terminal that out is, 0 if it is none.
func columns(out io.Writer) int {
	f, ok := out.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return 0
	}
	width, _, err := term.GetSize(int(f.Fd()))
	if err != nil {
		return 80
	}
	return width
}

func figures(sides []*side, start, now time.Time, final bool) []summary {
	var all []summary
	for _, s := range sides {
		all = append(all, s.board.summary(start, now, final))
	}
	return all
}

func names(sides []*side) []string {
	var all []string
	for _, s := range sides {
		all = append(all, s.name)
	}
	return all
}

// adapterNames names the scenario's adapters.
func (s scenario) adapterNames() []string {
	var all []string
	for i := range s.adapters {
		all = append(all, fmt.Sprintf("adapter-%02d", i+1))
	}
	return all
}
