//go:build (doors || vllm || peers || dataplane) && unix

package e2e

import (
	"bufio"
	"context"
	"io"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// eventually waits until holds is true of the world and fails the test when it
// isn't within the time given. The limit is there to end a hang; nothing depends
// on how long a thing took.
func eventually(t *testing.T, what string, within time.Duration, holds func() bool) {
	t.Helper()
	eventuallyEvery(t, 20*time.Millisecond, what, within, holds)
}

// eventuallyEvery is eventually for what looking itself would disturb.
func eventuallyEvery(t *testing.T, pause time.Duration, what string, within time.Duration, holds func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("got no end of waiting after %v, want %s", within, what)
		}
	}
}

// lines collects a process's output while it runs.
type lines struct {
	mu  sync.Mutex
	all []string
}

func (l *lines) add(line string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, line)
}

// since returns the lines after the first n.
func (l *lines) since(n int) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]string(nil), l.all[n:]...)
}

// process is a child of the test, with what it starts itself in a group of its own, and with all its output kept, line by line.
type process struct {
	name   string
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	stdout lines
	stderr lines
	exited chan struct{} // closed when it has been waited for
	err    error         // of Wait; read after exited
}

// start runs a program. A watcher holds the read end of a pipe of which the test
// has the other: when the test process dies, however it dies, the pipe ends and
// the watcher kills the program and what that started, even stopped ones.
func start(t *testing.T, name, program string, args ...string) *process {
	t.Helper()
	p := &process{name: name, cmd: exec.Command(program, args...), exited: make(chan struct{})}
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var err error
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	stderr, err := p.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatalf("cannot start %s: %v", name, err)
	}
	unwatch := watch(t, p.cmd.Process.Pid)
	var readers sync.WaitGroup
	readers.Go(func() { collect(stdout, &p.stdout) })
	readers.Go(func() { collect(stderr, &p.stderr) })
	go func() {
		readers.Wait()
		p.err = p.cmd.Wait()
		unwatch()
		close(p.exited)
	}()
	t.Cleanup(func() {
		p.stdin.Close()
		p.signal(syscall.SIGKILL)
		<-p.exited
	})
	return p
}

// watch starts the watcher of a process; the function returned ends it.
func watch(t *testing.T, pid int) (unwatch func()) {
	t.Helper()
	watcher := exec.Command("sh", "-c", `cat >/dev/null; kill -KILL "-$0" 2>/dev/null`, strconv.Itoa(pid))
	watcher.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // or what ends the test at the terminal ends the watcher, too
	held, err := watcher.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := watcher.Start(); err != nil {
		t.Fatalf("cannot start a watcher: %v", err)
	}
	return func() {
		watcher.Process.Kill()
		held.Close()
		watcher.Wait()
	}
}

func collect(r io.Reader, into *lines) {
	scanner := bufio.NewScanner(r)
	scanner.Buffer(nil, 16<<20)
	for scanner.Scan() {
		into.add(scanner.Text())
	}
}

// signal sends a signal to the process and what it started; those that are gone already take none.
func (p *process) signal(s syscall.Signal) {
	_ = syscall.Kill(-p.cmd.Process.Pid, s)
}

// running tells whether the process has not ended.
func (p *process) running() bool {
	select {
	case <-p.exited:
		return false
	default:
		return true
	}
}

// tail returns the last lines of standard error, to go with a failure.
func (p *process) tail(n int) string {
	all := p.stderr.since(0)
	return strings.Join(all[max(0, len(all)-n):], "\n")
}
