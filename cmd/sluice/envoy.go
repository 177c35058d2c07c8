package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sluice-gateway/sluice/config"
	"github.com/sluice-gateway/sluice/envoy"
)

// envoyOptions are the flags that say how Envoy is to run, of `sluice envoy` and of serve before an Envoy.
type envoyOptions struct {
	source
	listen, admin, picker    string
	tlsCert, tlsKey          string
	pickerTLS                bool
	pickerCA, pickerName     string
	pickerCert, pickerKey    string
	failureMode              string
	memory, maxBody          int64
	idle, connect, attempt   time.Duration
	maxAttempts              int
	trust, duplex            bool
	accessLog, roots, output string
}

func envoyCommand() *cobra.Command {
	o := &envoyOptions{}
	cmd := &cobra.Command{
		Use:   "envoy (--endpoint MODEL=HOST:PORT … | -f FILE)",
		Short: "Write the configuration that makes an Envoy the front door",
		Long: `Envoy writes the bootstrap by which any Envoy (1.39 or later) becomes the front door of this gateway: it asks the picker of
` + "`sluice pick`" + ` about each request, hears from it which endpoints there are, sends the request to the one it names, and to the next in its list
where that one fails. What a client says of routing is removed first, and Envoy's own failures have the form of the API's errors.

The file holds listener, routes and clusters, so that an Envoy whose picker is away starts and follows --failure-mode. Endpoints that come
and go need no new one; pools do.`,
		Example: `  # three terminals: a picker, an Envoy, a request
  sluice pick -f gateway.yaml --listen 127.0.0.1:9002
  sluice envoy -f gateway.yaml --picker 127.0.0.1:9002 --out envoy.yaml && envoy -c envoy.yaml
  curl localhost:8080/v1/models

  # look at it first; Envoy wants a name that ends in .yaml, and takes a pipe for JSON
  sluice envoy -f gateway.yaml --out envoy.yaml && envoy --mode validate -c envoy.yaml

  # https, with a certificate that is renewed now and then
  sluice envoy -f gateway.yaml --listen :443 --tls-cert tls/tls.crt --tls-key tls/tls.key --out envoy.yaml`,
		Args: noArgs("-f FILE or --endpoint MODEL=HOST:PORT"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return writeEnvoy(o, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f := cmd.Flags()
	f.StringArrayVar(&o.endpoints, "endpoint", nil, "model servers of a model, as `MODEL=HOST:PORT,…` (repeatable)")
	f.StringVarP(&o.file, "file", "f", "", "configuration `FILE`: an InferenceGatewayConfig, Endpoints and what else docs/reference.md lists")
	f.StringVar(&o.listen, "listen", "127.0.0.1:8080", "`ADDR` to serve clients on")
	f.StringVar(&o.admin, "admin", "127.0.0.1:9901", "`ADDR` of Envoy's own administration, or the path of a Unix socket; keep it on loopback")
	f.StringVar(&o.picker, "picker", "127.0.0.1:9002", "`HOST:PORT` of the picker")
	f.BoolVar(&o.pickerTLS, "picker-tls", false, "speak TLS to the picker (any other --picker- flag of TLS does, too)")
	f.StringVar(&o.pickerCA, "picker-ca", "", "`FILE` with the authority of the picker's certificate (default: the system's)")
	f.StringVar(&o.pickerName, "picker-server-name", "", "`NAME` in the picker's certificate (default: the host of --picker)")
	f.StringVar(&o.pickerCert, "picker-cert", "", "`FILE` with the certificate that Envoy shows the picker")
	f.StringVar(&o.pickerKey, "picker-key", "", "`FILE` with its key")
	f.Int64Var(&o.maxBody, "max-body-bytes", 0, "`BYTES` of one request body at most (default: the configuration's, 256 MiB)")
	f.DurationVar(&o.idle, "idle-timeout", envoy.DefaultIdleTimeout, "time without a byte in either direction, before an answer's first as between two (negative: no limit)")
	f.DurationVar(&o.connect, "connect-timeout", envoy.DefaultConnectTimeout, "time to connect to an endpoint before the next is tried")
	f.DurationVar(&o.attempt, "attempt-timeout", 0, "time one endpoint may keep a request without answer headers (0: no limit)")
	f.IntVar(&o.maxAttempts, "max-attempts", envoy.DefaultRetries+1, "how many endpoints a request is sent to at most")
	f.BoolVar(&o.trust, "trust-client-headers", false, "keep gateway headers that clients send: clients are gateways themselves")
	f.StringVar(&o.accessLog, "access-log", "/dev/stdout", "`FILE` for a line of JSON about each request (empty: none); send /dev/stdout to a file by >>, not >")
	f.StringVar(&o.output, "out", "", "`FILE` to write to; beside it one with the certificate, so that Envoy takes renewed ones over (default: standard output)")
	o.sharedFlags(f)
	return cmd
}

// sharedFlags adds the flags that serve has, too.
func (o *envoyOptions) sharedFlags(f *pflag.FlagSet) {
	f.StringVar(&o.tlsCert, "tls-cert", "", "`FILE` with the certificate chain for clients; with it clients speak https")
	f.StringVar(&o.tlsKey, "tls-key", "", "`FILE` with its key")
	f.StringVar(&o.failureMode, "failure-mode", string(envoy.FailClose), "what requests get while the picker can't be asked: FailClose (503) or FailOpen (one pool only: any of its endpoints)")
	f.Int64Var(&o.memory, "memory", envoy.DefaultMemory, "`BYTES` of heap that Envoy may have")
	f.BoolVar(&o.duplex, "full-duplex", false, "pass request bodies through the picker piece by piece (FULL_DUPLEX_STREAMED) instead of having Envoy hold them")
	f.StringVar(&o.roots, "tls-roots", envoy.DefaultRootsFile, "`FILE` with the authorities that certificates are checked against where no other is named")
}

// writeEnvoy writes the bootstrap, and says on errOut what it does not do.
func writeEnvoy(o *envoyOptions, out, errOut io.Writer) error {
	c, _, err := o.parse()
	if err != nil {
		return err
	}
	c = c.BehindEnvoy(o.tlsCert != "")
	if err := c.Refusal(); err != nil {
		return err
	}
	e, err := o.options(c)
	if err != nil {
		return err
	}
	for _, n := range append(slices.Clone(c.NotHonoured), c.Warnings...) {
		fmt.Fprintln(errOut, "sluice:", n.String())
	}
	if o.output == "" {
		text, err := envoyText(e)
		if err != nil {
			return err
		}
		if e.Certificate != nil {
			fmt.Fprintln(errOut, "sluice: --tls-cert: Envoy reads it when it starts; with --out it takes renewed ones over")
		}
		_, err = out.Write(text)
		return err
	}
	return writeEnvoyFiles(e, o.output)
}

// writeEnvoyFiles writes the bootstrap to a file, and beside it, where clients speak https, the one that names the certificate.
func writeEnvoyFiles(e envoy.Options, path string) error {
	if e.Certificate != nil {
		beside, err := filepath.Abs(strings.TrimSuffix(path, filepath.Ext(path)) + ".tls.yaml")
		if err != nil {
			return fmt.Errorf("cannot find a place beside %q: %w", path, err)
		}
		if e.Certificate, err = writeCertificate(*e.Certificate, beside); err != nil {
			return err
		}
	}
	return writeBootstrap(e, path)
}

func writeBootstrap(e envoy.Options, path string) error {
	text, err := envoyText(e)
	if err != nil {
		return err
	}
	if err := os.WriteFile(path, text, 0o644); err != nil {
		return fmt.Errorf("cannot write Envoy's configuration: %w", err)
	}
	return nil
}

// writeCertificate writes the file by which Envoy follows a certificate, and returns the certificate with it.
func writeCertificate(c envoy.Certificate, path string) (*envoy.Certificate, error) {
	c.SDSFile = path
	secret, err := envoy.SDSResource(c)
	if err != nil {
		return nil, err
	}
	text, err := envoy.YAML(secret, "The certificate for clients. Envoy follows this file and the folder of the certificate.")
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(path, text, 0o644); err != nil {
		return nil, fmt.Errorf("cannot write Envoy's configuration: %w", err)
	}
	return &c, nil
}

func envoyText(e envoy.Options) ([]byte, error) {
	b, err := envoy.Bootstrap(e)
	if err != nil {
		return nil, err
	}
	return envoy.YAML(b, envoy.About(e)...)
}

// options are the flags, with what the configuration says.
func (o *envoyOptions) options(c *config.Config) (envoy.Options, error) {
	e := envoy.Options{
		Name: c.Name, Listen: o.listen, Admin: o.admin, FailureMode: envoy.FailureMode(o.failureMode), MaxBodyBytes: c.MaxBodyBytes,
		Memory: o.memory, TrustHeaders: o.trust, IdleTimeout: o.idle, ConnectTimeout: o.connect, AttemptTimeout: o.attempt,
		Retries: o.maxAttempts - 1, FullDuplex: o.duplex, AccessLog: o.accessLog, RootsFile: o.roots,
		Picker: envoy.Picker{Address: o.picker},
	}
	if o.maxAttempts == 1 {
		e.Retries = -1
	}
	if o.maxBody > 0 {
		e.MaxBodyBytes = min(o.maxBody, c.MaxBodyBytes)
	}
	faults := []error{o.check()}
	if o.pickerTLS || o.pickerCA != "" || o.pickerName != "" || o.pickerCert != "" {
		e.Picker.TLS = &envoy.PickerTLS{CAFile: o.pickerCA, ServerName: o.pickerName, CertFile: o.pickerCert, KeyFile: o.pickerKey}
	}
	if o.tlsCert != "" {
		e.Certificate = &envoy.Certificate{CertFile: o.tlsCert, KeyFile: o.tlsKey}
	}
	if o.accessLog != "" {
		var err error
		e.AccessLog, err = filepath.Abs(o.accessLog)
		faults = append(faults, err)
	}
	if j := c.JWT; j != nil {
		e.JWT = &envoy.JWT{Name: j.Provider, Issuer: j.Issuer, JWKSURI: j.JWKSURI, Audiences: j.Audiences}
		for _, claim := range j.Claims {
			e.JWT.Claims = append(e.JWT.Claims, envoy.Claim(claim))
		}
	}
	e.Pools = envoyPools(c)
	return e, errors.Join(append(faults, findFiles(&e))...)
}

// check reports every flag that cannot be used.
func (o *envoyOptions) check() error {
	faults := []error{checkOutput(o.output)}
	if (o.tlsCert == "") != (o.tlsKey == "") {
		faults = append(faults, errors.New("cannot use --tls-cert without --tls-key, nor the other way round"))
	}
	if (o.pickerCert == "") != (o.pickerKey == "") {
		faults = append(faults, errors.New("cannot use --picker-cert without --picker-key, nor the other way round"))
	}
	if o.maxAttempts < 1 {
		faults = append(faults, fmt.Errorf("cannot use --max-attempts %d: it must be 1 or more", o.maxAttempts))
	}
	if o.memory < 64<<20 {
		faults = append(faults, fmt.Errorf("cannot use --memory %d: Envoy needs 64 MiB to live", o.memory))
	}
	if o.maxBody < 0 || o.connect <= 0 || o.attempt < 0 {
		faults = append(faults, errors.New("cannot use --max-body-bytes, --connect-timeout or --attempt-timeout below 0, nor --connect-timeout 0"))
	}
	return errors.Join(faults...)
}

// envoyPools are a configuration's pools as Envoy has to know them.
func envoyPools(c *config.Config) []envoy.Pool {
	var pools []envoy.Pool
	for i := range c.Pools {
		pools = append(pools, envoyPool(&c.Pools[i], c.Pools[i].Scheduler))
	}
	if c.Default != nil {
		pools = append(pools, envoyPool(c.Default, fallbackPool))
	}
	return pools
}

func envoyPool(p *config.Pool, name string) envoy.Pool {
	out := envoy.Pool{Name: name, Model: p.Model, H2C: p.AppProtocol == config.H2C}
	if p.RouteTimeout != nil {
		out.RouteTimeout = *p.RouteTimeout
	}
	for i := range p.Endpoints {
		e := &p.Endpoints[i]
		one := envoy.Endpoint{Host: e.HostPort(), Drain: e.Drain}
		if t := e.TLS; t != nil {
			one.TLS = &envoy.TLS{CAFile: t.CAFile, ServerName: t.ServerName, InsecureSkipVerify: t.InsecureSkipVerify}
			if one.TLS.ServerName == "" {
				one.TLS.ServerName = e.Address
			}
		}
		out.Endpoints = append(out.Endpoints, one)
	}
	return out
}
