//go:build dataplane && linux

package e2e

import (
	"bytes"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"text/template"
	"time"
)

// raceDetector says whether the gateway is built with it; what is measured isn't.
const raceDetector = false

// needed is what the comparison of front doors needs.
func needed() []part { return []part{envoy(envoyVariable, "requirements-envoy.txt")} }

// How long each contestant is under load in each cell of a round, and how many rounds there are, unless the variables say otherwise.
const (
	roundFor = "SLUICE_DATAPLANE_FOR" // a duration
	rounds   = "SLUICE_DATAPLANE_ROUNDS"
	// The same of the comparison of how good the decisions are.
	routingFor    = "SLUICE_ROUTING_FOR"
	routingRounds = "SLUICE_ROUTING_ROUNDS"
)

// contestant is a way to carry requests to endpoints, ready to take some.
type contestant struct {
	name  string
	url   string
	parts []running
	only  func(c cell) bool // cells it takes part in, nil for all
}

// running is a process of a contestant.
type running struct {
	name string
	pid  int
}

// streamChunks is how many chunks a streamed answer has.
const streamChunks = 200

// cell is what one measurement is of.
type cell struct {
	bytes, workers int
	stream         bool
}

func (c cell) String() string {
	if c.stream {
		return fmt.Sprintf("streams of %d chunks, c = %d", streamChunks, c.workers)
	}
	return fmt.Sprintf("%d KB, c = %d", c.bytes>>10, c.workers)
}

// measured is what came of one contestant in one cell of one round.
type measured struct {
	cpu       []float64 // milliseconds a request, by process
	rate      float64   // requests a second
	p50, p99  float64   // milliseconds
	completed int
}

func (m measured) total() float64 {
	sum := 0.0
	for _, x := range m.cpu {
		sum += x
	}
	return sum
}

// startEnvoyAlone starts an Envoy that has nothing of ours.
func startEnvoyAlone(t *testing.T, endpoints []string) contestant {
	port := freePorts(t, 1)[0]
	type address struct{ Host, Port string }
	var all []address
	for _, e := range endpoints {
		host, port, err := net.SplitHostPort(e)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, address{host, port})
	}
	var text bytes.Buffer
	if err := template.Must(template.ParseFiles("testdata/envoy-alone.yaml")).Execute(&text, map[string]any{"Port": port, "Endpoints": all}); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "envoy.yaml")
	if err := os.WriteFile(path, text.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	e := runEnvoy(t, "Envoy alone", os.Getenv(envoyVariable), path)
	return contestant{name: "Envoy alone", url: "http://" + loopback(port), parts: []running{{"Envoy", e.cmd.Process.Pid}}}
}

// startEmbedded starts the gateway with its embedded front door.
func startEmbedded(t *testing.T, list []string) contestant {
	g := startGateway(t, []string{instantModel}, list...)
	return contestant{name: "sluice serve", url: g.url, parts: []running{{"sluice", g.cmd.Process.Pid}}}
}

// TestDataPlaneCost measures what the ways to carry a request cost, side by side, round after round, and prints it. It judges
// only that every request was answered.
func TestDataPlaneCost(t *testing.T) {
	endpoints := strings.Split(addresses(startInstant(t, 4, 2*time.Millisecond)), ",")
	contestants := startContestants(t, endpoints)
	client := keepAlive(t)
	var cells []cell
	for _, size := range []int{2 << 10, 220 << 10, 400 << 10} {
		for _, workers := range []int{1, 32, 150} {
			cells = append(cells, cell{bytes: size, workers: workers})
		}
	}
	cells = append(cells, cell{bytes: 2 << 10, workers: 32, stream: true})
	for _, c := range contestants {
		eventually(t, c.name+" to answer", time.Minute, func() bool { return post(t.Context(), client, c.url, chatBodies(1, 2<<10, 100, false)[0]) == nil })
	}
	length, err := time.ParseDuration(variable(roundFor, "3s"))
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(variable(rounds, "5"))
	if err != nil {
		t.Fatal(err)
	}
	found := make(map[string]map[cell][]measured)
	for _, c := range contestants {
		found[c.name] = make(map[cell][]measured)
	}
	for round := range n {
		for i, c := range cells {
			bodies := chatBodies(16, c.bytes, streamChunks, c.stream)
			for k := range contestants {
				w := contestants[(k+round+i)%len(contestants)] // none is always the first
				if w.only == nil || w.only(c) {
					found[w.name][c] = append(found[w.name][c], w.measure(t, client, c, bodies, length))
				}
			}
		}
	}
	t.Logf("CPU milliseconds a request, medians of %d rounds:\n\n%s", n, dataPlaneTable(contestants, cells, found))
}

// measure puts a contestant under load.
func (w *contestant) measure(t *testing.T, client *http.Client, c cell, bodies [][]byte, length time.Duration) measured {
	t.Helper()
	if warm := send(t.Context(), client, w.url, bodies, c.workers, 300*time.Millisecond); len(warm.Failed) > 0 {
		t.Errorf("%s, %v: got %d failed requests, the first with: %v", w.name, c, len(warm.Failed), warm.Failed[0])
	}
	before := w.cpu(t)
	v := send(t.Context(), client, w.url, bodies, c.workers, length)
	if len(v.Failed) > 0 {
		t.Errorf("%s, %v: got %d of %d requests failed, the first with: %v", w.name, c, len(v.Failed), v.Done+len(v.Failed), v.Failed[0])
	}
	if v.Done == 0 {
		t.Fatalf("%s, %v: got no answer", w.name, c)
	}
	m := measured{rate: float64(v.Done) / v.Seconds, completed: v.Done}
	for i, after := range w.cpu(t) {
		m.cpu = append(m.cpu, 1000*(after-before[i])/float64(v.Done))
	}
	slices.Sort(v.Took)
	m.p50, m.p99 = v.Took[len(v.Took)/2], v.Took[len(v.Took)*99/100]
	return m
}

func (w *contestant) cpu(t *testing.T) []float64 {
	var all []float64
	for _, p := range w.parts {
		all = append(all, cpuOfPID(t, p.pid))
	}
	return all
}

// dataPlaneTable writes the medians as a Markdown table for each cell's contestants, ratios to Envoy alone first.
func dataPlaneTable(contestants []contestant, cells []cell, found map[string]map[cell][]measured) string {
	var out strings.Builder
	out.WriteString("| what | of Envoy alone | CPU ms | by process | requests/s | P50, P99 ms |\n| --- | --- | --- | --- | --- | --- |\n")
	for _, c := range cells {
		alone := middle(found[contestants[0].name][c], measured.total)
		for _, w := range contestants {
			all := found[w.name][c]
			if len(all) == 0 {
				continue
			}
			var by []string
			for i, p := range w.parts {
				by = append(by, fmt.Sprintf("%s %s", p.name, short(middle(all, func(m measured) float64 { return m.cpu[i] }))))
			}
			total := middle(all, measured.total)
			fmt.Fprintf(&out, "| %v: %s | %s× | %s | %s | %.0f | %s, %s |\n", c, w.name, short(total/alone), short(total), strings.Join(by, ", "),
				middle(all, func(m measured) float64 { return m.rate }), short(middle(all, func(m measured) float64 { return m.p50 })),
				short(middle(all, func(m measured) float64 { return m.p99 })))
		}
	}
	return out.String()
}

// middle is the median of a figure.
func middle(all []measured, figure func(measured) float64) float64 {
	var values []float64
	for _, m := range all {
		values = append(values, figure(m))
	}
	slices.Sort(values)
	if n := len(values); n%2 == 0 {
		return (values[n/2-1] + values[n/2]) / 2
	}
	return values[len(values)/2]
}

// short writes a figure with as many digits as it is good for.
func short(x float64) string {
	switch {
	case x >= 10:
		return fmt.Sprintf("%.0f", x)
	case x >= 1:
		return fmt.Sprintf("%.2f", x)
	default:
		return strings.TrimPrefix(fmt.Sprintf("%.3f", x), "0")
	}
}

// startContestants starts all, each before the same endpoints.
func startContestants(t *testing.T, endpoints []string) []contestant {
	list := []string{"--endpoint", instantModel + "=" + strings.Join(endpoints, ",")}
	streams := func(c cell) bool { return c.stream }
	all := []contestant{startEnvoyAlone(t, endpoints), startEmbedded(t, list)}
	for _, w := range []struct {
		name        string
		envoy, pick []string
		only        func(cell) bool
	}{
		{"Envoy + sluice pick", nil, nil, nil},
		{"Envoy + sluice pick, FULL_DUPLEX_STREAMED", []string{"--full-duplex"}, nil, func(c cell) bool { return c.bytes == 220<<10 }},
		{"Envoy + sluice pick --see-answers .1", nil, []string{"--see-answers", ".1"}, streams},
		{"Envoy + sluice pick --see-answers 1", nil, []string{"--see-answers", "1"}, streams},
	} {
		p := startPlane(t, instantModel, planeOptions{endpoints: list, envoy: w.envoy, pick: w.pick})
		all = append(all, contestant{name: w.name, url: p.url, only: w.only,
			parts: []running{{"Envoy", p.envoy.cmd.Process.Pid}, {"picker", p.cmd.Process.Pid}}})
	}
	return all
}

// TestDataPlaneMemory measures what memory a picker takes at the most while 150 bodies of 400 KB are under way.
func TestDataPlaneMemory(t *testing.T) {
	endpoints := strings.Split(addresses(startInstant(t, 4, 2*time.Millisecond)), ",")
	p := startPlane(t, instantModel, planeOptions{endpoints: []string{"--endpoint", instantModel + "=" + strings.Join(endpoints, ",")}})
	forgetPeak(t, p.cmd.Process.Pid)
	v := send(t.Context(), keepAlive(t), p.url, chatBodies(16, 400<<10, 100, false), 150, 10*time.Second)
	if len(v.Failed) > 0 {
		t.Errorf("got %d failures, the first with: %v", len(v.Failed), v.Failed[0])
	}
	peak, _ := peakMB(p.cmd.Process.Pid)
	most, _ := peakMB(p.envoy.cmd.Process.Pid)
	t.Logf("under 150 × 400 KB, %.0f requests/s: the picker had %.0f MB of memory at the most, Envoy %.0f MB", float64(v.Done)/v.Seconds, peak, most)
}

// TestDataPlaneIdle measures what a picker costs that nobody asks, before 100 simulated engines whose metrics it reads each 200 ms.
func TestDataPlaneIdle(t *testing.T) {
	const n, length = 100, 20 * time.Second
	_, engines := startSimulated(t, []string{fmt.Sprintf("l8-h100=%d", n)}, n)
	p := startPlane(t, chatName, planeOptions{endpoints: []string{"--endpoint", chatName + "=" + strings.Join(engines, ",")}})
	g := startGateway(t, []string{chatName}, "--endpoint", chatName+"="+strings.Join(engines, ","))
	for _, of := range []struct {
		what string
		pid  int
	}{{"the picker", p.cmd.Process.Pid}, {"Envoy", p.envoy.cmd.Process.Pid}, {"sluice serve", g.cmd.Process.Pid}} {
		before, began := cpuOfPID(t, of.pid), time.Now()
		timer := time.NewTimer(length)
		<-timer.C
		used := (cpuOfPID(t, of.pid) - before) / time.Since(began).Seconds()
		now, _ := residentMB(of.pid)
		t.Logf("%s, idle before %d endpoints at 200 ms: %.3f of a core, %.0f MB", of.what, n, used, now)
	}
}

// TestDataPlaneRouting sends the demo's kinds of traffic to the gateway with each front door, before fleets of
// their own that are alike, and prints how soon each answered. The engines take four times as long as real ones and have a
// quarter of the traffic, so that what is compared is where requests went, and not the milliseconds that a busy machine takes to send them there.
func TestDataPlaneRouting(t *testing.T) {
	fleet := []string{"l8-h100=4", "l8-a10g=4"}
	for _, row := range []struct{ kind, rate string }{{"mixed", "8"}, {"bursts", "6"}, {"prefixes", "6"}} {
		t.Run(row.kind, func(t *testing.T) {
			_, one := startSimulated(t, fleet, 8, "--speed", ".25")
			_, two := startSimulated(t, fleet, 8, "--speed", ".25")
			embedded := startGateway(t, []string{chatName}, "--endpoint", chatName+"="+strings.Join(one, ","))
			p := startPlane(t, chatName, planeOptions{endpoints: []string{"--endpoint", chatName + "=" + strings.Join(two, ",")}})
			bench := start(t, "bench", os.Getenv(binaryVariable), "bench", "--live", "--model", chatName, "--for", variable(routingFor, "40s"), "--seeds", variable(routingRounds, "3"),
				"--workload", row.kind, "--rate", row.rate, "--target", "embedded="+embedded.url, "--target", "Envoy="+p.url)
			eventuallyEvery(t, time.Second, "the bench to end", time.Hour, func() bool { return !bench.running() })
			if bench.err != nil {
				t.Fatalf("cannot compare: %v\n%s", bench.err, bench.tail(10))
			}
			t.Logf("%s at %s/s\n%s", row.kind, row.rate, strings.Join(bench.stdout.since(0), "\n"))
		})
	}
}

// startInstant starts n instant engines as processes of their own, on the ports or, without any, on free ones.
func startInstant(t *testing.T, n int, pause time.Duration, ports ...int) []*engine {
	t.Helper()
	var all []*engine
	for i := range n {
		port := 0
		if len(ports) > 0 {
			port = ports[i]
		}
		all = append(all, &engine{process: start(t, fmt.Sprintf("engine %d", i), os.Args[0], instantRole, strconv.Itoa(port), pause.String())})
	}
	waitReady(t, all)
	return all
}

// residentMB is what a process has in memory; ok is false of one that is gone.
func residentMB(pid int) (mb float64, ok bool) { return memory(pid, "VmRSS") }

// peakMB is the most that a process had in memory since forgetPeak.
func peakMB(pid int) (mb float64, ok bool) { return memory(pid, "VmHWM") }

func memory(pid int, name string) (mb float64, ok bool) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(text)) {
		if value, found := strings.CutPrefix(line, name+":"); found {
			kilobytes, err := strconv.Atoi(strings.Fields(value)[0])
			return float64(kilobytes) / 1024, err == nil
		}
	}
	return 0, false
}

// forgetPeak has the peak of a process's memory counted from now on.
func forgetPeak(t *testing.T, pid int) {
	t.Helper()
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte("5"), 0); err != nil {
		t.Fatal(err)
	}
}
