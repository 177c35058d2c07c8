package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sluice-gateway/sluice/envoy"
	"github.com/sluice-gateway/sluice/proxy"
)

// serveOptions are the flags of serve. Their defaults stand in serveFlags alone.
type serveOptions struct {
	gatewayOptions
	proxy proxy.Options
	plane planeOptions
}

func serveCommand() *cobra.Command {
	o := &serveOptions{}
	cmd := &cobra.Command{
		Use:   "serve (--endpoint MODEL=HOST:PORT … | -f FILE)",
		Short: "Put the gateway in front of model servers",
		Long: `Serve is the embedded front door: an OpenAI-compatible address in front of model servers. Engines, models and adapters are found by
asking each endpoint; nothing has to be installed beside the servers. It stops on SIGTERM or SIGINT: it takes no new connections,
lets running requests end, and exits with 0. With --data-plane envoy an Envoy carries the requests, as a child that asks the gateway's picker:
it speaks HTTP/2 and TLS to clients and checks their tokens.

A configuration file is watched: a changed one is taken over without dropping a request, and a faulty one changes
nothing and says why. SIGHUP looks at once.`,
		Example: `  # two servers of one model, one of another
  sluice serve --endpoint llama=10.0.0.1:8000,10.0.0.2:8000 --endpoint qwen=gpu3:8000

  # the same documents that a cluster reads
  sluice serve -f gateway.yaml --listen :8080

  # by Envoy, with https
  sluice serve -f gateway.yaml --data-plane envoy --listen :443 --tls-cert tls.crt --tls-key tls.key

  # what it decides by, in another terminal
  sluice explain --last 3`,
		Args: noArgs("-f FILE or --endpoint MODEL=HOST:PORT"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return serve(cmd.Context(), o, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	serveFlags(cmd.Flags(), o)
	return cmd
}

// serveFlags adds the flags of serve with their defaults.
func serveFlags(f *pflag.FlagSet, o *serveOptions) {
	gatewayFlags(f, &o.gatewayOptions)
	f.StringVar(&o.listen, "listen", "127.0.0.1:8080", "`ADDR` to serve clients on")
	p := &o.proxy
	f.DurationVar(&p.ConnectTimeout, "connect-timeout", proxy.DefaultConnectTimeout, "time to connect to an endpoint before the next is tried")
	f.DurationVar(&p.FirstByteTimeout, "first-byte-timeout", proxy.DefaultFirstByteTimeout, "time to an answer's first body byte, over all attempts (negative: no limit)")
	f.DurationVar(&p.AttemptTimeout, "attempt-timeout", 0, "time one endpoint may keep a request without a byte while another could take it (0: no limit)")
	f.DurationVar(&p.IdleTimeout, "idle-timeout", proxy.DefaultIdleTimeout, "time between two body bytes in either direction (negative: no limit)")
	f.IntVar(&p.MaxAttempts, "max-attempts", proxy.DefaultMaxAttempts, "how many endpoints a request is sent to at most")
	planeFlags(f, &o.plane)
}

// check reports every flag that cannot be used, all at once.
func (o *serveOptions) check() error {
	faults := []error{o.gatewayOptions.check(), o.plane.check()}
	if o.plane.name == planeEnvoy {
		faults = append(faults, findFiles(&envoy.Options{RootsFile: o.plane.roots,
			Certificate: &envoy.Certificate{CertFile: o.plane.tlsCert, KeyFile: o.plane.tlsKey}}))
	}
	if o.proxy.ConnectTimeout <= 0 {
		faults = append(faults, fmt.Errorf("cannot use --connect-timeout %s: it must be more than 0", o.proxy.ConnectTimeout))
	}
	if o.proxy.AttemptTimeout < 0 {
		faults = append(faults, fmt.Errorf("cannot use --attempt-timeout %s: it must not be negative", o.proxy.AttemptTimeout))
	}
	if o.proxy.MaxAttempts < 1 {
		faults = append(faults, fmt.Errorf("cannot use --max-attempts %d: it must be 1 or more", o.proxy.MaxAttempts))
	}
	return errors.Join(faults...)
}

// serve runs until ctx ends, then drains.
func serve(ctx context.Context, o *serveOptions, out, errOut io.Writer) error {
	log, err := newLogger(errOut, o.logLevel, o.logFormat)
	if err != nil {
		return err
	}
	if err := o.check(); err != nil {
		return err
	}
	tuned := tuneMemory(o.front.BodyBudget)
	serving := func(url string) { fmt.Fprintf(out, "sluice: serving on %s\n", url) }
	open := o.open
	if o.plane.name == planeEnvoy {
		o.behind, o.certified = true, o.plane.tlsCert != ""
		open = func(s *server, first *plan) door { return o.openEnvoy(s, first, out, serving) }
	}
	s, err := newServer(ctx, &o.gatewayOptions, log, time.Now(), open)
	if err != nil {
		return err
	}
	s.memory = tuned
	defer s.recorder.close()
	if err := s.listen(); err != nil {
		return err
	}
	if o.plane.name == planeEmbedded {
		serving("http://" + s.public.Addr().String())
	}
	fmt.Fprintf(out, "sluice: metrics on http://%s\n", s.private.Addr())
	fmt.Fprintf(out, "sluice: console on http://%s/console\n", s.private.Addr())
	return s.run(ctx)
}

// embedded is the door that clients come to themselves.
type embedded struct {
	s       *server
	options proxy.Options
	gateway *proxy.Gateway
}

func (o *serveOptions) open(s *server, first *plan) door {
	d := &embedded{s: s, options: o.proxy}
	d.gateway = proxy.New(s.fleet, d.with(first), s.registry, s.now, s.log)
	return d
}

// openEnvoy makes the door where an Envoy carries the requests. It has one timer for what are two here, the time to a first
// byte and that between two, so it gets the longer.
func (o *serveOptions) openEnvoy(s *server, first *plan, out io.Writer, ready func(url string)) door {
	limits := o.plane.envoyOptions
	limits.idle = max(o.proxy.IdleTimeout, o.proxy.FirstByteTimeout)
	if o.proxy.IdleTimeout < 0 || o.proxy.FirstByteTimeout < 0 {
		limits.idle = -1
	}
	limits.connect, limits.attempt, limits.maxAttempts = o.proxy.ConnectTimeout, o.proxy.AttemptTimeout, o.proxy.MaxAttempts
	limits.maxBody, limits.trust = o.maxBody, o.front.TrustHeaders
	picker := &pickOptions{gatewayOptions: o.gatewayOptions}
	picker.picker.SeeAnswers = o.plane.see
	return &throughEnvoy{behindEnvoy: picker.behindEnvoy(s, first), plane: &o.plane, limit: limits, out: out, ready: ready, agent: "sluice/" + rand.Text()}
}

// with are the options for a plan.
func (d *embedded) with(p *plan) proxy.Options {
	o := d.options
	o.Options = d.s.frontOptions(p)
	return o
}

func (d *embedded) check(*plan) error { return nil }

func (d *embedded) apply(p *plan) { d.gateway.Apply(d.with(p)) }

func (d *embedded) renew(*plan) {}

func (d *embedded) run(ctx context.Context, l net.Listener) error {
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	clients := &http.Server{Handler: d.gateway, Protocols: &protocols, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute,
		ErrorLog: slog.NewLogLogger(d.s.log.Handler(), slog.LevelDebug)}
	ended := make(chan error, 1)
	go func() { ended <- clients.Serve(l) }()
	select {
	case err := <-ended:
		return fmt.Errorf("cannot go on serving: %w", err)
	case <-ctx.Done():
	}
	d.gateway.Drain()
	if err := d.s.linger(ended); err != nil {
		return err
	}
	limit := d.s.o.drainTimeout
	err := shutdown(clients, limit)
	if err != nil {
		d.gateway.Cut() // streams end with an error event
		err = errors.Join(tooSlow(limit), shutdown(clients, cutTimeout), clients.Close())
	}
	d.gateway.Close()
	return err
}

// tooSlow is what a drain ends with that some requests outlasted.
func tooSlow(limit time.Duration) error {
	return fmt.Errorf("some requests were still running after the drain timeout of %s", limit)
}

// cutTimeout is how long the ends of requests that were cut may take to be written.
const cutTimeout = 5 * time.Second

func shutdown(server *http.Server, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	return server.Shutdown(ctx)
}
