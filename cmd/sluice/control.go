package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sluice-gateway/sluice/kube"
	"github.com/sluice-gateway/sluice/translate"
)

// controlOptions are the flags of control. Their defaults stand in controlFlags alone.
type controlOptions struct {
	settings            translate.Settings
	kubeconfig          string
	classOwner          string
	admin, listen       string
	logLevel, logFormat string
	lease, ask          time.Duration
	identity            string
}

func controlCommand() *cobra.Command {
	o := &controlOptions{}
	cmd := &cobra.Command{
		Use:   "control --image IMAGE",
		Short: "Make what InferenceGatewayConfigs ask for in a Kubernetes cluster",
		Long: `Control is the controller: it watches InferenceGatewayConfigs in all namespaces, makes the objects that each asks for, with their
certificates, and says in its status how far that has come. Of several replicas one writes; each tells Envoy Gateway what
InferencePools mean. It ends nothing when the API server is gone, and a right or a kind that is missing keeps it from
what that is for alone.

It stops on SIGTERM or SIGINT, lets go of its Lease, and exits with 0.`,
		Example: `  # in a pod, as the chart runs it
  sluice control --image registry.example.com/sluice:1 --extension

  # beside a cluster that a kubeconfig file leads to
  sluice control --image sluice:dev --kubeconfig ~/.kube/config`,
		Args: noArgs("--image IMAGE"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return control(cmd.Context(), o, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	controlFlags(cmd.Flags(), o)
	return cmd
}

// controlFlags adds the flags of control with their defaults.
func controlFlags(f *pflag.FlagSet, o *controlOptions) {
	s := &o.settings
	f.StringVar(&s.Image, "image", "", "`IMAGE` of this program, for the pods that are made")
	f.StringVar(&s.SystemNamespace, "system-namespace", translate.DefaultSystemNamespace, "`NAMESPACE` of Gateways, of body-based routers, of the controller's Lease and of the authorities that sign certificates")
	f.StringVar(&s.EnvoyNamespace, "envoy-namespace", "", "`NAMESPACE` where Envoy Gateway runs Envoys; empty: the one of --system-namespace")
	f.StringVar(&s.GatewayClass, "gateway-class", translate.DefaultGatewayClass, "`CLASS` of the Gateways that are made")
	f.StringVar(&o.classOwner, "gateway-class-controller", "", "`NAME` that the Envoy Gateway of this class calls itself, to have the class made where there is none; empty: it is made by somebody else")
	f.BoolVar(&s.Extension, "extension", false, "the Envoy Gateway of this class asks this controller about InferencePools: its extensionManager names it; no Gateway is called programmed without")
	f.StringVar(&o.listen, "extension-listen", ":9443", "with --extension, `ADDR` to serve Envoy Gateway and its Envoys on; they find it by the Service inference-gateway-extension in --system-namespace, at the same port")
	f.StringVar(&s.EnvoyImage, "envoy-image", "", "`IMAGE` of Envoy; empty: Envoy Gateway's own choice")
	f.StringSliceVar(&s.PullSecrets, "pull-secrets", nil, "`NAMES` of Secrets by which images are fetched, in the namespaces of the pods that are made")
	f.Int32Var(&s.EnvoyReplicas, "envoy-replicas", translate.DefaultEnvoyReplicas, "copies of Envoy for each gateway")
	f.StringVar((*string)(&s.ServiceType), "service-type", "LoadBalancer", "`TYPE` of the Service that clients reach: LoadBalancer, NodePort or ClusterIP")
	f.StringToStringVar(&s.ServiceAnnotations, "service-annotations", nil, "annotations of that Service, as `KEY=VALUE`")
	f.StringSliceVar(&s.MetricsNamespaces, "metrics-namespaces", nil, "`NAMESPACES` whose pods may read metrics; none: the one of --system-namespace")
	f.StringVar(&s.Issuer, "issuer", "", "`NAME` of cert-manager's ClusterIssuer that signs certificates for clients")
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "`FILE` that says how the API server is reached; without one those of $KUBECONFIG count, then ~/.kube/config, then what a pod is given")
	f.StringVar(&o.admin, "admin", "127.0.0.1:9090", "`ADDR` of /metrics, /healthz, /readyz and /debug/pprof")
	f.StringVar(&o.identity, "identity", "", "`NAME` of this replica; empty: the host's")
	f.DurationVar(&o.lease, "lease", 15*time.Second, "for how long a replica that has vanished keeps the others from writing")
	f.DurationVar(&o.ask, "ask-interval", 15*time.Second, "how often pickers are asked what they know of pods")
	f.StringVar(&o.logLevel, "log-level", "info", "debug, info, warn or error")
	f.StringVar(&o.logFormat, "log-format", "text", "text or json")
}

// check reports every flag that cannot be used, all at once.
func (o *controlOptions) check() error {
	var faults []error
	if o.settings.Image == "" {
		faults = append(faults, errors.New("cannot make pods without --image: name the image of this program"))
	}
	switch o.settings.ServiceType {
	case "LoadBalancer", "NodePort", "ClusterIP":
	default:
		faults = append(faults, fmt.Errorf("cannot use --service-type %q: it is LoadBalancer, NodePort or ClusterIP", o.settings.ServiceType))
	}
	if o.settings.EnvoyReplicas < 1 {
		faults = append(faults, fmt.Errorf("cannot use --envoy-replicas %d: it must be 1 or more", o.settings.EnvoyReplicas))
	}
	for _, d := range []struct {
		flag  string
		value time.Duration
	}{{"lease", o.lease}, {"ask-interval", o.ask}} {
		if d.value < time.Second {
			faults = append(faults, fmt.Errorf("cannot use --%s %s: it must be 1s or more", d.flag, d.value))
		}
	}
	return errors.Join(faults...)
}

// control runs until ctx ends.
func control(ctx context.Context, o *controlOptions, out, errOut io.Writer) error {
	log, err := newLogger(errOut, o.logLevel, o.logFormat)
	if err != nil {
		return err
	}
	if err := o.check(); err != nil {
		return err
	}
	if o.identity == "" {
		if o.identity, err = os.Hostname(); err != nil {
			return fmt.Errorf("cannot tell this replica from others (use --identity): %w", err)
		}
	}
	server, err := kube.Connect(o.kubeconfig)
	if err != nil {
		return err
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	c, err := kube.NewController(server, kube.ControlOptions{Settings: o.settings, ClassOwner: o.classOwner, Identity: o.identity, Now: time.Now, Log: log, Registerer: registry, Lease: o.lease, Ask: o.ask})
	if err != nil {
		return err
	}
	private, err := net.Listen("tcp", o.admin)
	if err != nil {
		return fmt.Errorf("cannot listen for operators (choose another address with --admin): %w", err)
	}
	fmt.Fprintf(out, "sluice: metrics on http://%s/metrics\n", private.Addr())
	admin := &http.Server{Handler: controlAdmin(c, registry), ReadHeaderTimeout: 10 * time.Second, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug)}
	defer admin.Close() // whoever reads metrics at the end reads them no more
	go func() {
		if err := admin.Serve(private); !errors.Is(err, http.ErrServerClosed) {
			log.Error("operators are answered no more", "error", err)
		}
	}()
	if !o.settings.Extension {
		return c.Run(ctx)
	}
	e, err := kube.NewExtension(server, kube.ExtensionOptions{Listen: o.listen, GatewayClass: o.settings.GatewayClass, SystemNamespace: o.settings.SystemNamespace,
		Leads: c.Leads, Now: time.Now, Log: log})
	if err != nil {
		return err
	}
	return runBoth(ctx, c.Run, e.Run)
}

// runBoth runs two things until ctx ends, or one of them has.
func runBoth(ctx context.Context, run ...func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, len(run))
	for _, r := range run {
		go func() { ended <- r(ctx) }()
	}
	var faults []error
	for range run {
		faults = append(faults, <-ended)
		cancel()
	}
	return errors.Join(faults...)
}

// controlAdmin is what operators are served.
func controlAdmin(c *kube.Controller, own *prometheus.Registry) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(own, promhttp.HandlerOpts{Registry: own}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := c.Ready(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		}
	})
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	return mux
}
