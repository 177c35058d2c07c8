//go:build doors && unix

package e2e

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// startThrough starts serve with an Envoy that carries the requests, and returns the address that it says it serves on.
func startThrough(t *testing.T, binary string, args ...string) (*process, string) {
	t.Helper()
	p := start(t, "gateway", os.Getenv(binaryVariable), append([]string{"serve", "--data-plane", "envoy", "--envoy", binary, "--envoy-threads", "1",
		"--listen", freeAddress(t), "--admin", "127.0.0.1:0", "--reload-interval", "50ms"}, args...)...)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the gateway's last lines:\n%s", p.tail(20))
		}
	})
	url := ""
	eventually(t, "the gateway to serve", time.Minute, func() bool {
		if !p.running() {
			t.Fatalf("the gateway ended at its start:\n%s", p.tail(30))
		}
		for _, line := range p.stdout.since(0) {
			if m := served.FindStringSubmatch(line); m != nil && m[1] == "serving" {
				url = m[2]
			}
		}
		return url != ""
	})
	return p, url
}

// The gateway runs an Envoy: what it says it serves on answers at once, a changed file is taken over without a restart, a
// stream runs to its end while it drains, and it ends with 0.
func TestServeThroughEnvoy(t *testing.T) {
	chat := func(url, model string) (int, string) {
		status, _, text := fetch(http.MethodPost, url+"/v1/chat/completions", nil, fmt.Appendf(nil, `{"model":%q,"messages":[]}`, model))
		return status, text
	}
	eachEnvoy(t, func(t *testing.T, binary string) {
		a, b := newEndpoint(t), newEndpoint(t)
		file := writeGateway(t, "", "", a)
		p, url := startThrough(t, binary, "-f", file)
		if status, _, text := fetch(http.MethodGet, url+"/healthz", nil, nil); status != 200 || text != "ok\n" {
			t.Errorf("got %d %q of /healthz at once, want 200", status, text)
		}
		eventually(t, "the endpoint to serve", 30*time.Second, func() bool {
			status, text := chat(url, "m")
			return status == 200 && text == a.address
		})
		if status, text := chat(url, "other"); status != 404 {
			t.Errorf("got %d %q for a model that nobody serves yet, want 404", status, text)
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		more := strings.Replace(string(text), "---", "  - {name: other, modelName: other, modelSelector: {matchLabels: {more: \"yes\"}}}\n---", 1) +
			fmt.Sprintf("  - address: %q\n    labels: {more: \"yes\"}\n", b.address)
		if err := os.WriteFile(file+".new", []byte(strings.Replace(more, "modelSelector: {}", `modelSelector: {matchExpressions: [{key: more, operator: DoesNotExist}]}`, 1)), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the model that was added", 30*time.Second, func() bool {
			status, text := chat(url, "other")
			return status == 200 && text == b.address
		})

		begun, finish := make(chan bool), make(chan bool)
		a.do(func(w http.ResponseWriter, r *http.Request) {
			if r.Method != http.MethodPost {
				return // the gateway's own questions
			}
			fmt.Fprint(w, "begun ")
			w.(http.Flusher).Flush()
			begun <- true
			<-finish
			fmt.Fprint(w, "ended")
		})
		ends := make(chan string, 1)
		go func() {
			status, text := chat(url, "m")
			ends <- fmt.Sprint(status, " ", text)
		}()
		<-begun
		p.signal(syscall.SIGTERM)
		eventually(t, "new connections to be refused", 30*time.Second, func() bool {
			status, _, _ := fetch(http.MethodGet, url+"/healthz", nil, nil)
			return status == 0
		})
		close(finish)
		if got := <-ends; got != "200 begun ended" {
			t.Errorf("got %q of the request that ran, want its end", got)
		}
		if code := p.exitCode(t, 30*time.Second); code != 0 {
			t.Errorf("got exit code %d, want 0:\n%s", code, p.tail(20))
		}
	})
}

// A gateway whose Envoy ends, ends, and says so; one that finds no Envoy says how to get one.
func TestServeWithoutItsEnvoy(t *testing.T) {
	eachEnvoy(t, func(t *testing.T, binary string) {
		a := newEndpoint(t)
		p, _ := startThrough(t, binary, "--endpoint", "m="+a.address)
		killChildren(t, p)
		if code := p.exitCode(t, 30*time.Second); code != 1 || !p.stderr.holding(0, "Envoy has ended") {
			t.Errorf("got exit code %d and %s, want 1 and that Envoy has ended", code, p.tail(5))
		}
	})
	p := start(t, "gateway", os.Getenv(binaryVariable), "serve", "--data-plane", "envoy", "--envoy", "/nowhere/envoy", "--endpoint", "m=127.0.0.1:1")
	if code := p.exitCode(t, 30*time.Second); code != 1 || !p.stderr.holding(0, "cannot find Envoy", "--envoy PATH") {
		t.Errorf("got exit code %d and %s, want 1 and how to name one", code, p.tail(5))
	}
}

// The path of a Unix socket is short: what to do is said before Envoy is started.
func TestServeFarDown(t *testing.T) {
	far := filepath.Join(t.TempDir(), strings.Repeat("far", 30))
	if err := os.Mkdir(far, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("TMPDIR", far)
	p := start(t, "gateway", os.Getenv(binaryVariable), "serve", "--data-plane", "envoy", "--envoy", os.Getenv(envoyVariable), "--listen", freeAddress(t), "--admin", "127.0.0.1:0",
		"--endpoint", "m=127.0.0.1:1")
	if code := p.exitCode(t, 30*time.Second); code != 1 || !p.stderr.holding(0, "set TMPDIR to a shorter one") {
		t.Errorf("got exit code %d and %s, want 1 and what to do", code, p.tail(5))
	}
}

// killChildren kills the processes that p has started.
func killChildren(t *testing.T, p *process) {
	t.Helper()
	tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", p.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	killed := 0
	for _, task := range tasks {
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/children", p.cmd.Process.Pid, task.Name()))
		for _, child := range strings.Fields(string(text)) {
			var pid int
			if _, err := fmt.Sscan(child, &pid); err == nil && syscall.Kill(pid, syscall.SIGKILL) == nil {
				killed++
			}
		}
	}
	if killed == 0 {
		t.Fatal("got no child of the gateway, want its Envoy")
	}
}
