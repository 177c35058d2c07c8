package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-gateway/sluice/sim"
)

// simOptions are the flags of sim. Their defaults stand in simCommand alone.
type simOptions struct {
	profiles    []string
	count       int
	host        string
	port        int
	model       string
	adapters    []string
	ranks       map[string]int
	slots       int
	load        time.Duration
	seed        uint64
	speed       float64
	maxModelLen int
	kvEvents    string
	kvConnect   bool
}

func simCommand() *cobra.Command {
	o := &simOptions{}
	cmd := &cobra.Command{
		Use:   "sim --profile NAME[=COUNT] …",
		Short: "Run model servers that need no GPU",
		Long: `Sim runs simulated model servers: a model of vLLM's scheduler, KV cache and adapters, with step times fitted to measurements, behind vLLM's
HTTP API and metrics page. What they answer is made up of words drawn from the seed. They stop on SIGTERM or SIGINT.

Faults can be set while they run, by POST to /sim/fault of a server: {"fault": "slow", "value": 3}; the others are stalled, frozen and blind (value 1 begins
and 0 ends them), failing (this share of requests, 500), crashed (down for so many seconds, 0 for ever) and loading (503 for so many seconds, with an empty cache after).

Profiles are a model, a GPU and how many of them: l8 is Llama 3.1 8B, l70 Llama 3.1 70B, q32 Qwen3 32B, q235 Qwen3 235B A22B, mm25 MiniMax M2.5, in FP8 where
the name says so, else in bf16. docs/simulator.md says what each rests on. There are ` + strings.Join(profileNames(), ", "),
		Example: `  # four servers on free ports
  sluice sim --profile l8-h100 --count 4

  # two kinds, from port 8001 on, with adapters
  sluice sim --profile l8-h100=4 --profile l8-a10g=4 --port 8001 --model llama --adapters sql,chat

  # with events of the KV cache
  sluice sim --profile l8-h100 --port 8001 --model llama --kv-events tcp://127.0.0.1:5557

  # the gateway before it, in another terminal
  sluice serve --endpoint llama=127.0.0.1:8001 --kv-events-port 5557 --kv-replay-port 5558`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return runSim(cmd.Context(), o, cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	f.StringArrayVar(&o.profiles, "profile", nil, "`NAME[=COUNT]` of model and GPU to imitate (repeatable)")
	f.IntVar(&o.count, "count", 1, "`N` servers of each profile that has no count of its own")
	f.StringVar(&o.host, "host", "127.0.0.1", "`ADDR` to listen on")
	f.IntVar(&o.port, "port", 0, "first `PORT`, the servers after it on those that follow; 0 for free ones")
	f.StringVar(&o.model, "model", "", "`NAME` of the model that is served (default: the profile's)")
	f.StringSliceVar(&o.adapters, "adapters", nil, "`NAME[=RANK]` of LoRA adapters, separated by commas; each rank in use makes steps 4 % longer")
	f.DurationVar(&o.load, "adapter-load", adapterLoad, "how long a step waits for an adapter that is brought to the GPU")
	f.IntVar(&o.slots, "adapter-slots", 0, "`N` adapters fit on the GPU at once (default: all that are given)")
	f.Uint64Var(&o.seed, "seed", 1, "`N` decides what is answered, and how long answers are")
	f.Float64Var(&o.speed, "speed", 1, "simulated seconds in a second")
	f.IntVar(&o.maxModelLen, "max-model-len", 0, "longest prompt and answer in `TOKENS` (default: 32768 or what the KV cache holds)")
	f.StringVar(&o.kvEvents, "kv-events", "", "publish events of the KV cache by ZeroMQ on `tcp://HOST:PORT`, the servers after the first two ports further each: the second port is for replay")
	f.BoolVar(&o.kvConnect, "kv-connect", false, "connect to subscribers that listen on the addresses of --kv-events, instead of listening there")
	return cmd
}

func profileNames() []string {
	var names []string
	for _, p := range sim.Profiles() {
		names = append(names, p.Name)
	}
	return names
}

// servers are the options of each server, and the profile's name for people.
func (o *simOptions) servers() (options []sim.ServerOptions, names []string, err error) {
	for _, spec := range o.profiles {
		name, number, counted := strings.Cut(spec, "=")
		count := o.count
		if counted {
			if count, err = strconv.Atoi(number); err != nil {
				return nil, nil, fmt.Errorf("cannot read --profile %q: want NAME or NAME=COUNT", spec)
			}
		}
		if count < 1 {
			return nil, nil, fmt.Errorf("cannot start %d servers of --profile %q: 1 or more", count, name)
		}
		profile, err := sim.ProfileNamed(name)
		if err != nil {
			return nil, nil, err
		}
		for range count {
			x := sim.ServerOptions{Engine: sim.EngineConfig{Profile: profile, AdapterSlots: o.slots, AdapterLoad: o.load, AdapterStep: adapterStep,
				AdapterRanks: o.ranks}, Model: o.model, Adapters: o.adapters,
				Seed: o.seed, Speed: o.speed, MaxModelLen: o.maxModelLen, KVConnect: o.kvConnect}
			if x.KVEvents, x.Replay, err = eventAddresses(o.kvEvents, len(options)); err != nil {
				return nil, nil, err
			}
			options, names = append(options, x), append(names, name)
		}
	}
	return options, names, nil
}

// adapterLoad is how long a step waits for an adapter that is brought to the GPU: the order of a hundred megabytes over its bus and their unpacking.
const adapterLoad = 50 * time.Millisecond

// adapterStep is the share by which each rank of the adapters in use lengthens a step: the middle of what is published, 2 to 6 %.
const adapterStep = .04

// readRanks takes the ranks off the names of adapters.
func (o *simOptions) readRanks() error {
	o.ranks = make(map[string]int)
	for i, spec := range o.adapters {
		name, rank, ranked := strings.Cut(spec, "=")
		n, err := strconv.Atoi(rank)
		if ranked && (err != nil || n < 1) {
			return fmt.Errorf("cannot read --adapters %q: want NAME or NAME=RANK", spec)
		}
		o.adapters[i], o.ranks[name] = name, n
	}
	return nil
}

// eventAddresses are where the server with the index publishes events and replays them: pairs of ports from the first on.
func eventAddresses(first string, index int) (events, replay string, err error) {
	if first == "" {
		return "", "", nil
	}
	host, port, err := net.SplitHostPort(strings.TrimPrefix(first, "tcp://"))
	n, bad := strconv.Atoi(port)
	if err != nil || bad != nil || !strings.HasPrefix(first, "tcp://") {
		return "", "", fmt.Errorf("cannot read --kv-events %q: want tcp://HOST:PORT", first)
	}
	at := func(port int) string { return "tcp://" + net.JoinHostPort(host, strconv.Itoa(port)) }
	if n == 0 {
		return at(0), at(0), nil
	}
	return at(n + 2*index), at(n + 2*index + 1), nil
}

// mostServers is how many servers a process may start: each has a port and some megabytes.
const mostServers = 1024

// check reports flags that make no servers, or servers that serve nothing.
func (o *simOptions) check() error {
	switch {
	case len(o.profiles) == 0:
		return fmt.Errorf("nothing to imitate: name a profile with --profile NAME, one of %s", strings.Join(profileNames(), ", "))
	case slices.Contains(o.adapters, "") || o.model != "" && slices.Contains(o.adapters, o.model):
		return fmt.Errorf("cannot serve adapters %q: each needs a name of its own, other than the model's", o.adapters)
	case o.maxModelLen < 0 || o.slots < 0 || o.load < 0 || !(o.speed > 0):
		return errors.New("cannot use --max-model-len, --adapter-slots or --adapter-load below 0, or a --speed of 0 or less")
	}
	return nil
}

// runSim serves until ctx ends.
func runSim(ctx context.Context, o *simOptions, out io.Writer) error {
	if err := cmp.Or(o.readRanks(), o.check()); err != nil {
		return err
	}
	options, names, err := o.servers()
	if err != nil {
		return err
	}
	if len(options) > mostServers {
		return fmt.Errorf("cannot start %d servers: at most %d in a process", len(options), mostServers)
	}
	addresses := make([]string, len(options))
	for i := range addresses {
		port := o.port
		if port > 0 {
			port += i
		}
		addresses[i] = net.JoinHostPort(o.host, strconv.Itoa(port))
	}
	farm, err := sim.StartFarm(sim.Listen, addresses, options...)
	if err != nil {
		return err
	}
	defer farm.Close()
	for i, m := range farm.Members {
		fmt.Fprintf(out, "sluice: %s on http://%s\n", names[i], m.Address)
		if events, replay := m.KVEvents(); events != "" {
			fmt.Fprintf(out, "sluice: its KV events on %s, again on %s\n", events, replay)
		}
	}
	<-ctx.Done()
	return nil
}
