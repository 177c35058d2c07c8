package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/grpc"

	"github.com/sluice-gateway/sluice/config"
	"github.com/sluice-gateway/sluice/envoy"
	"github.com/sluice-gateway/sluice/extproc"
)

// pickOptions are the flags of pick. Their defaults stand in pickFlags alone.
type pickOptions struct {
	gatewayOptions
	picker               extproc.Options
	cert, key, authority string
}

func pickCommand() *cobra.Command {
	o := &pickOptions{}
	cmd := &cobra.Command{
		Use:   "pick (--endpoint MODEL=HOST:PORT … | -f FILE)",
		Short: "Tell an Envoy where each request goes",
		Long: `Pick is the front door for Envoy: a service that Envoy's ext_proc filter asks about each request. It selects the model, picks the endpoint
by the same rules as serve, and speaks the endpoint-picker protocol of the Gateway API Inference Extension. Requests and
answers travel through Envoy alone; a request's end is seen, the pieces of its answer are not.

Envoy has to send request headers, the body (BUFFERED or FULL_DUPLEX_STREAMED) and response headers; the response's body stays with it (NONE).
It stops on SIGTERM or SIGINT: running requests may end, and it exits with 0.`,
		Example: `  # the same documents that a cluster reads
  sluice pick -f gateway.yaml

  # the body-based router alone: it names the model in headers, and others pick
  sluice pick -f gateway.yaml --select-only

  # reachable by an Envoy elsewhere
  sluice pick -f gateway.yaml --listen :9002 --tls-cert picker.crt --tls-key picker.key --tls-client-ca envoys.crt`,
		Args: noArgs("-f FILE or --endpoint MODEL=HOST:PORT"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return pick(cmd.Context(), o, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	pickFlags(cmd.Flags(), o)
	return cmd
}

// pickFlags adds the flags of pick with their defaults.
func pickFlags(f *pflag.FlagSet, o *pickOptions) {
	gatewayFlags(f, &o.gatewayOptions)
	f.StringVar(&o.listen, "listen", "127.0.0.1:9002", "`ADDR` to serve Envoy's ext_proc filter on, by gRPC")
	pickerFlags(f, o)
}

// pickerFlags adds those flags that only a picker has.
func pickerFlags(f *pflag.FlagSet, o *pickOptions) {
	f.StringVar(&o.cert, "tls-cert", "", "certificate `FILE` to show Envoy; without one, gRPC is in plain text")
	f.StringVar(&o.key, "tls-key", "", "key `FILE` of --tls-cert")
	f.StringVar(&o.authority, "tls-client-ca", "", "`FILE` with the authority that signed Envoy's certificate, which is then asked for")
	f.DurationVar(&o.picker.Patience, "patience", extproc.DefaultPatience, "after how long Envoy is asked for more time for an answer; less than its message_timeout")
	f.DurationVar(&o.picker.MaxWait, "max-wait", extproc.DefaultMaxWait, "how much time Envoy is asked for; at most its max_message_timeout")
	f.Float64Var(&o.picker.SeeAnswers, "see-answers", 0, "`SHARE` of requests, 0 to 1, whose answers Envoy is to show, for first-token times and token counts in the metrics, at 40 µs of CPU for each piece of an answer")
	f.BoolVar(&o.picker.SelectOnly, "select-only", false, "name the model and its base model in headers, and pick no endpoint")
}

// check reports every flag that cannot be used, all at once.
func (o *pickOptions) check() error {
	faults := []error{o.gatewayOptions.check()}
	for _, d := range []struct {
		flag  string
		value time.Duration
	}{{"patience", o.picker.Patience}, {"max-wait", o.picker.MaxWait}} {
		if d.value < time.Millisecond {
			faults = append(faults, fmt.Errorf("cannot use --%s %s: it must be 1ms or more", d.flag, d.value))
		}
	}
	if !(o.picker.SeeAnswers >= 0 && o.picker.SeeAnswers <= 1) {
		faults = append(faults, fmt.Errorf("cannot use --see-answers %v: it is a share, 0 to 1", o.picker.SeeAnswers))
	}
	if _, err := extproc.LoadTLS(o.cert, o.key, o.authority); err != nil {
		faults = append(faults, fmt.Errorf("cannot use --tls-cert, --tls-key and --tls-client-ca: %w", err))
	}
	return errors.Join(faults...)
}

// lookEvery is how often endpoints are read that nobody picks: which adapters they have is all that matters.
const lookEvery = 5 * time.Second

// pick runs until ctx ends, then drains.
func pick(ctx context.Context, o *pickOptions, out, errOut io.Writer) error {
	log, err := newLogger(errOut, o.logLevel, o.logFormat)
	if err != nil {
		return err
	}
	if err := o.check(); err != nil {
		return err
	}
	if o.picker.SelectOnly {
		o.scrapeInterval, o.staleAfter = max(o.scrapeInterval, lookEvery), max(o.staleAfter, 4*lookEvery)
	}
	o.askers = "Envoy"
	o.behind, o.certified = true, true // whether Envoy has one is asked where its configuration is made
	tuned := tuneMemory(o.front.BodyBudget)
	s, err := newServer(ctx, &o.gatewayOptions, log, time.Now(), o.open)
	if err != nil {
		return err
	}
	s.memory = tuned
	defer s.recorder.close()
	if err := s.listen(); err != nil {
		return err
	}
	leaveToEnvoy(s.plan.config, log)
	if o.cert == "" && !s.public.Addr().(*net.TCPAddr).IP.IsLoopback() {
		log.Warn("the picker is reachable from other machines in plain text; prompts pass over it: use --tls-cert and --tls-key, and --tls-client-ca to know who asks",
			"address", s.public.Addr().String())
	}
	verb := "picking"
	if o.picker.SelectOnly {
		verb = "selecting models"
	}
	fmt.Fprintf(out, "sluice: %s on %s\n", verb, s.public.Addr())
	fmt.Fprintf(out, "sluice: metrics on http://%s\n", s.private.Addr())
	fmt.Fprintf(out, "sluice: console on http://%s/console\n", s.private.Addr())
	return s.run(ctx)
}

// leaveToEnvoy says what the configuration asks for that a picker can't see to.
func leaveToEnvoy(c *config.Config, log *slog.Logger) {
	var left []string
	if c.JWT != nil {
		left = append(left, "spec.auth")
	}
	if c.TLS {
		left = append(left, "spec.tls")
	}
	if left != nil {
		log.Warn("left to the Envoy in front, which `sluice envoy -f FILE` configures for it: the picker checks no tokens and ends no TLS of clients", "what", strings.Join(left, ", "))
	}
}

// behindEnvoy is the door that Envoy stands in.
type behindEnvoy struct {
	s       *server
	options *pickOptions
	picker  *extproc.Picker
	// discovery tells Envoys of endpoints.
	discovery *envoy.Discovery
}

func (o *pickOptions) open(s *server, first *plan) door { return o.behindEnvoy(s, first) }

func (o *pickOptions) behindEnvoy(s *server, first *plan) *behindEnvoy {
	d := &behindEnvoy{s: s, options: o, discovery: envoy.NewDiscovery(s.fleet)}
	d.picker = extproc.New(s.fleet, d.with(first), s.registry, s.now, s.log)
	return d
}

// with are the options for a plan.
func (d *behindEnvoy) with(p *plan) extproc.Options {
	o := d.options.picker
	o.Options = d.s.frontOptions(p)
	return o
}

func (d *behindEnvoy) check(*plan) error { return nil }

func (d *behindEnvoy) apply(p *plan) {
	d.picker.Apply(d.with(p))
	if err := d.discovery.Know(envoyPools(p.config)); err != nil {
		d.s.log.Error("Envoys are not told of the changed pools", "error", err)
	}
}

// renew has nothing to do: discovery looks at the fleet, and no pod is reached by TLS.
func (d *behindEnvoy) renew(*plan) {}

func (d *behindEnvoy) run(ctx context.Context, l net.Listener) error {
	secure, err := extproc.LoadTLS(d.options.cert, d.options.key, d.options.authority)
	if err != nil {
		return err
	}
	g := d.picker.Server(secure)
	told, stopTelling := context.WithCancel(context.WithoutCancel(ctx))
	defer stopTelling()
	d.tell(told, g)
	ended := make(chan error, 1)
	go func() { ended <- g.Serve(l) }()
	select {
	case err := <-ended:
		return fmt.Errorf("cannot go on picking: %w", err)
	case <-ctx.Done():
	}
	d.picker.Drain()
	if err := d.s.linger(ended); err != nil {
		return err
	}
	stopTelling() // what is told has no end of its own
	return stop(g, d.picker.Running, d.s.o.drainTimeout)
}

// tell has Envoys told of endpoints until ctx ends.
func (d *behindEnvoy) tell(ctx context.Context, g *grpc.Server) {
	d.discovery.Register(ctx, g)
	go func() {
		if err := d.discovery.Run(ctx); err != nil {
			d.s.log.Error("Envoys are told of no endpoints any more", "error", err)
		}
	}()
}

// idleFor is how long at least nothing has to run before streams are ended that are open and say nothing, as those of who watches
// the health.
const idleFor = time.Second

// stop lets what runs end, up to a limit.
func stop(g *grpc.Server, running func() int, limit time.Duration) error {
	done := make(chan struct{})
	go func() { g.GracefulStop(); close(done) }()
	late, look := time.After(limit), time.NewTicker(idleFor)
	defer look.Stop()
	for idle := 0; ; {
		select {
		case <-done:
			return nil
		case <-late:
			g.Stop()
			<-done
			return tooSlow(limit)
		case <-look.C:
			if idle++; running() > 0 {
				idle = 0
			}
			if idle == 2 { // a request may have been on its way at the first look
				g.Stop()
				<-done
				return nil
			}
		}
	}
}
