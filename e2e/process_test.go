//go:build e2e && unix

package e2e

import (
	"bufio"
	"context"
	"errors"
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

// holding tells whether one line after the first n contains every part, whatever
// the case of its letters.
func (l *lines) holding(n int, parts ...string) bool {
	for _, line := range l.since(n) {
		found := 0
		for _, part := range parts {
			if strings.Contains(strings.ToLower(line), strings.ToLower(part)) {
				found++
			}
		}
		if found == len(parts) {
			return true
		}
	}
	return false
}

// process is a child of the test with all its output kept, line by line.
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
// the watcher kills the program, even a stopped one.
func start(t *testing.T, name, program string, args ...string) *process {
	t.Helper()
	p := &process{name: name, cmd: exec.Command(program, args...), exited: make(chan struct{})}
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
	watcher := exec.Command("sh", "-c", `cat >/dev/null; kill -KILL "$0" 2>/dev/null`, strconv.Itoa(pid))
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

// signal sends a signal; a process that is gone already takes none.
func (p *process) signal(s syscall.Signal) {
	_ = p.cmd.Process.Signal(s)
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

// exitCode waits for the end and returns the code, or -1 when a signal ended it.
func (p *process) exitCode(t *testing.T, within time.Duration) int {
	t.Helper()
	eventually(t, p.name+" to exit", within, func() bool { return !p.running() })
	var exit *exec.ExitError
	if errors.As(p.err, &exit) {
		return exit.ExitCode()
	}
	if p.err != nil {
		t.Fatalf("cannot wait for %s: %v", p.name, p.err)
	}
	return 0
}

// tail returns the last lines of standard error, to go with a failure.
func (p *process) tail(n int) string {
	all := p.stderr.since(0)
	return strings.Join(all[max(0, len(all)-n):], "\n")
}
