//go:build dataplane && linux

package e2e

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// soakFor is how long requests are sent, unless the variable says otherwise.
const soakFor = "SLUICE_SOAK_FOR"

const (
	soakEngines = 5
	soakWorkers = 24
	// The sizes of bodies are drawn evenly from their logarithms between these.
	soakLeast, soakMost = 2 << 10, 2 << 20
)

// outage is a time in which one engine was killed or frozen.
type outage struct {
	address    string
	began, end time.Time // the zero end has not come yet
}

// soak is a plane with what is done to it and what came of that.
type soak struct {
	*plane
	t       *testing.T
	rng     *rand.Rand
	engines []*engine
	file    string
	client  *http.Client

	pid atomic.Int64 // of the picker that runs now

	mu               sync.Mutex
	done, excused    int
	failed           []string
	outages          []outage
	events           map[string]int
	envoyMB, pickers []float64 // memory, second by second
}

// TestSoak sends requests of mixed sizes, half of them streams, for minutes, while engines are killed, frozen, drained,
// removed and added, and the picker is restarted, killed too. No request may fail that had another endpoint left, but streams that had
// begun where the endpoint was then killed or frozen; memory stays flat; in the end nothing is counted anywhere. Envoy is told how long one endpoint may take,
// since it moves a request that waits at a frozen one by nothing else.
func TestSoak(t *testing.T) {
	length, err := time.ParseDuration(variable(soakFor, "10m"))
	if err != nil {
		t.Fatal(err)
	}
	s := &soak{t: t, rng: rand.New(rand.NewPCG(1, 2)), client: keepAlive(t), events: make(map[string]int)}
	s.engines = startInstant(t, soakEngines, 5*time.Millisecond)
	s.file = filepath.Join(t.TempDir(), "gateway.yaml")
	s.configure(nil, nil)
	s.plane = startPlane(t, instantModel, planeOptions{endpoints: []string{"-f", s.file}, envoy: []string{"--failure-mode", "FailOpen", "--attempt-timeout", "2s"},
		pick: []string{"--stall-after", "3s"}})
	s.pid.Store(int64(s.process.cmd.Process.Pid))
	ctx, cancel := context.WithTimeout(t.Context(), length)
	defer cancel()
	var workers sync.WaitGroup
	for i := range soakWorkers {
		workers.Go(func() { s.work(ctx, rand.New(rand.NewPCG(7, uint64(i)))) })
	}
	workers.Go(func() { s.watch(ctx) })
	for ctx.Err() == nil {
		s.trouble(ctx)
	}
	workers.Wait()
	t.Logf("%d requests answered, %d streams broken where their endpoint was killed or frozen, %d failed; what was done: %v", s.done, s.excused, len(s.failed), s.events)
	for i, f := range s.failed {
		if i < 10 {
			t.Errorf("got a failed request, want an answer from another endpoint: %s", f)
		}
	}
	if len(s.failed) > 10 {
		t.Errorf("and %d more failed", len(s.failed)-10)
	}
	flat(t, "Envoy", s.envoyMB)
	flat(t, "the picker", s.pickers)
	s.wantNothingOpen(t)
	s.stopPicker(t, syscall.SIGTERM)
}

// flat fails the test where memory in the second half was more than a tenth above that of the first.
func flat(t *testing.T, what string, all []float64) {
	t.Helper()
	most := func(part []float64) float64 {
		part = slices.Clone(part)
		slices.Sort(part)
		return part[len(part)*9/10]
	}
	if len(all) < 20 {
		t.Fatalf("got %d readings of the memory of %s, want 20 at least: soak for longer", len(all), what)
	}
	first, second := most(all[:len(all)/2]), most(all[len(all)/2:])
	t.Logf("memory of %s, the tenth-highest of ten: %.0f MB in the first half, %.0f MB in the second", what, first, second)
	if second > 1.1*first {
		t.Errorf("got %.0f MB of memory in the second half for %s, want at most a tenth more than the %.0f MB of the first", second, what, first)
	}
}

// configure writes the gateway's file without the engines that are out, with those that are drained.
func (s *soak) configure(out, drained *engine) {
	text := strings.NewReplacer("modelName: tiny", "modelName: "+instantModel).Replace(tinyEndpoints)
	for _, e := range s.engines {
		if e != out {
			text += fmt.Sprintf("  - address: %s\n    labels:\n      app: tiny\n    drain: %v\n", e.address, e == drained)
		}
	}
	if err := os.WriteFile(s.file+".new", []byte(text), 0o644); err != nil {
		s.t.Fatal(err)
	}
	if err := os.Rename(s.file+".new", s.file); err != nil {
		s.t.Fatal(err)
	}
}

// work sends one request after another.
func (s *soak) work(ctx context.Context, rng *rand.Rand) {
	for ctx.Err() == nil {
		size := int(math.Exp(math.Log(soakLeast) + rng.Float64()*math.Log(soakMost/soakLeast)))
		stream := rng.IntN(2) == 0
		body := chatBodies(1, size, 20+rng.IntN(200), stream)[0]
		began := time.Now()
		endpoint, err := s.ask(body)
		s.mu.Lock()
		switch {
		case err == nil:
			s.done++
		case s.hit(endpoint, began):
			s.excused++
		default:
			s.failed = append(s.failed, fmt.Sprintf("%d bytes, stream %v, after %.1f s, endpoint %q: %v", size, stream, time.Since(began).Seconds(), endpoint, err))
		}
		s.mu.Unlock()
	}
}

// ask sends a request; the endpoint is what the answer's headers name, empty before they have come.
func (s *soak) ask(body []byte) (endpoint string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url+"/v1/chat/completions", bytes.NewReader(body))
	if err != nil {
		return "", err
	}
	r.Header.Set("Content-Type", "application/json")
	return exchange(s.client, r)
}

// hit tells whether the endpoint was out at some time since then.
func (s *soak) hit(address string, since time.Time) bool {
	return address != "" && slices.ContainsFunc(s.outages, func(o outage) bool {
		return o.address == address && (o.end.IsZero() || o.end.After(since))
	})
}

// watch notes how much memory both processes have.
func (s *soak) watch(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		s.mu.Lock()
		if now, ok := residentMB(s.envoy.cmd.Process.Pid); ok {
			s.envoyMB = append(s.envoyMB, now)
		}
		if now, ok := residentMB(int(s.pid.Load())); ok {
			s.pickers = append(s.pickers, now)
		}
		s.mu.Unlock()
	}
}

// trouble makes one thing go wrong and right again, and rests for a moment.
func (s *soak) trouble(ctx context.Context) {
	victim := s.rng.IntN(len(s.engines))
	kinds := []struct {
		name  string
		wrong func()
		right func()
		lasts time.Duration
	}{
		{"an engine is killed", func() { s.out(victim, func(e *engine) { e.signal(syscall.SIGKILL); <-e.exited }) }, func() { s.revive(victim) }, 3 * time.Second},
		{"an engine freezes", func() { s.out(victim, func(e *engine) { e.signal(syscall.SIGSTOP) }) },
			func() { s.engines[victim].signal(syscall.SIGCONT); s.back(victim) }, 8 * time.Second},
		{"an engine is drained", func() { s.configure(nil, s.engines[victim]) }, func() { s.configure(nil, nil) }, 4 * time.Second},
		{"an engine is removed", func() { s.configure(s.engines[victim], nil) }, func() { s.configure(nil, nil) }, 4 * time.Second},
		{"the picker is restarted", func() { s.replacePicker(syscall.SIGTERM) }, func() {}, 4 * time.Second},
		{"the picker is killed", func() { s.replacePicker(syscall.SIGKILL) }, func() {}, 4 * time.Second},
	}
	k := kinds[s.rng.IntN(len(kinds))]
	s.events[k.name]++
	k.wrong()
	rest(ctx, k.lasts)
	k.right()
	rest(ctx, 3*time.Second)
}

// rest waits, but not beyond the end.
func rest(ctx context.Context, for_ time.Duration) {
	timer := time.NewTimer(for_)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// out notes that an engine goes out, and has it go.
func (s *soak) out(i int, how func(*engine)) {
	s.mu.Lock()
	s.outages = append(s.outages, outage{address: s.engines[i].address, began: time.Now()})
	s.mu.Unlock()
	how(s.engines[i])
}

// back notes that the engine is back.
func (s *soak) back(i int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k := range s.outages {
		if s.outages[k].address == s.engines[i].address && s.outages[k].end.IsZero() {
			s.outages[k].end = time.Now()
		}
	}
}

// revive starts a killed engine again where it was.
func (s *soak) revive(i int) {
	s.engines[i].process = startInstant(s.t, 1, 5*time.Millisecond, portOf(s.t, s.engines[i].address))[0].process
	s.back(i)
}

// replacePicker ends the picker and starts another.
func (s *soak) replacePicker(how syscall.Signal) {
	old := s.process
	old.signal(how)
	<-old.exited
	s.startPicker(s.t)
	s.pid.Store(int64(s.process.cmd.Process.Pid))
}

// portOf is the port of an address.
func portOf(t *testing.T, address string) int {
	t.Helper()
	_, text, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return port
}
