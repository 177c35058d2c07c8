//go:build peers && linux

package e2e

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// raceDetector says whether the gateway is built with it; what is compared with others isn't.
const raceDetector = false

// needed is what the comparison needs of Python: the other routers.
func needed() []part {
	return []part{packages{name: "peers", requirements: "requirements-peers.txt", size: "800 MB",
		modules: []string{"litellm", "smg", "sglang_router", "vllm_router"}}.python()}
}

// The row's arrivals and rounds unless the variables say otherwise.
const (
	peersFor    = "SLUICE_PEERS_FOR"    // a duration
	peersRounds = "SLUICE_PEERS_ROUNDS" // at least 2 for intervals
)

// peersRow is a fleet with its traffic. The loads are light enough that two cores have time to spare for what is compared: some hundred tokens a second.
type peersRow struct {
	name, says string
	fleet      []string // profiles as sluice sim takes them
	traffic    []string // as sluice bench takes it
}

func peersRows() []peersRow {
	return []peersRow{
		{"prefixes", "4×A10G, 8B: 60 shared beginnings of 2k tokens, answers of 75", []string{"l8-a10g=4"},
			[]string{"--workload", "prefixes", "--rate", "4", "--size", ".5"}},
		{"agents", "4×A10G, 8B: sessions of 12 turns after 750 tokens of system prompt, answers of 25", []string{"l8-a10g=4"},
			[]string{"--workload", "agents", "--rate", ".7", "--size", ".25"}},
		{"mixed", "2×L40S + 2×A10G, 8B: prompts of 300 tokens, answers of 100, nothing shared", []string{"l8-l40s=2", "l8-a10g=2"},
			[]string{"--workload", "mixed", "--rate", "6", "--size", ".5"}},
	}
}

// peer is a router under comparison.
type peer struct {
	name string
	// start starts it on the port before the engines; more are two free ports.
	start func(t *testing.T, port int, more []int, engines []string) *process
}

// python starts a router that is a Python module.
func python(name string, args func(port string, more []int, engines []string) []string) peer {
	return peer{name, func(t *testing.T, port int, more []int, engines []string) *process {
		return start(t, name, os.Getenv(pythonVariable), args(strconv.Itoa(port), more, engines)...)
	}}
}

// ours starts the gateway.
func ours(name string, args ...string) peer {
	return peer{name, func(t *testing.T, port int, more []int, engines []string) *process {
		return start(t, name, os.Getenv(binaryVariable), append([]string{"serve", "--listen", loopback(port), "--admin", loopback(more[0]),
			"--endpoint", chatName + "=" + strings.Join(engines, ",")}, args...)...)
	}}
}

// peers lists the routers: ours, ours without its judgement, and others with the policy that their documentation recommends for one pool of engines.
func peers() []peer {
	urls := func(engines []string) []string {
		var all []string
		for _, e := range engines {
			all = append(all, "http://"+e)
		}
		return all
	}
	rust := func(module string, first ...string) func(string, []int, []string) []string {
		return func(port string, more []int, engines []string) []string {
			args := append(append([]string{"-m", module}, first...), "--host", "127.0.0.1", "--port", port, "--policy", "cache_aware",
				"--prometheus-host", "127.0.0.1", "--prometheus-port", strconv.Itoa(more[0]), "--worker-urls")
			return append(args, urls(engines)...)
		}
	}
	return []peer{
		ours("sluice"),
		ours("sluice round-robin", "--profile", "round-robin"),
		python("smg", rust("smg.cli", "launch")),
		python("vllm-router", rust("vllm_router.launch_router")),
		python("sglang-router", rust("sglang_router.launch_router")),
		{"litellm", startLitellm},
	}
}

// startLitellm starts the proxy of litellm with least-busy, the only one of its strategies that looks at what engines are doing now.
func startLitellm(t *testing.T, port int, _ []int, engines []string) *process {
	var text strings.Builder
	text.WriteString("model_list:\n")
	for _, e := range engines {
		fmt.Fprintf(&text, "- model_name: %s\n  litellm_params: {model: hosted_vllm/%s, api_base: \"http://%s/v1\", api_key: none}\n", chatName, chatName, e)
	}
	text.WriteString("router_settings: {routing_strategy: least-busy}\n")
	path := filepath.Join(t.TempDir(), "litellm.yaml")
	if err := os.WriteFile(path, []byte(text.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True") // it would ask the network for prices
	return start(t, "litellm", os.Getenv(pythonVariable), "-c", "from litellm import run_server; run_server()",
		"--config", path, "--host", "127.0.0.1", "--port", strconv.Itoa(port), "--telemetry", "False")
}

// TestPeers sends the same traffic to each router in turn, round after round, each before engines of its own that are all alike, and prints what came of it.
// It judges only that every one of them ran and answered.
func TestPeers(t *testing.T) {
	for _, row := range peersRows() {
		t.Run(row.name, func(t *testing.T) { comparePeers(t, row) })
	}
}

func comparePeers(t *testing.T, row peersRow) {
	length, rounds := variable(peersFor, "30s"), variable(peersRounds, "3")
	args := append([]string{"bench", "--live", "--model", chatName, "--for", length, "--seeds", rounds, "--limit-tpot", "100ms"}, row.traffic...)
	var gateways, fleets []*process
	for _, p := range peers() {
		ports := freePorts(t, 3)
		fleet, engines := startSimulated(t, row.fleet, 4)
		gateway := p.start(t, ports[0], ports[1:], engines)
		eventually(t, p.name+" to answer", 3*time.Minute, func() bool {
			if !gateway.running() {
				t.Fatalf("%s ended:\n%s\n%s", p.name, strings.Join(gateway.stdout.since(0), "\n"), gateway.tail(20))
			}
			return answers("http://" + loopback(ports[0]))
		})
		gateways, fleets = append(gateways, gateway), append(fleets, fleet)
		args = append(args, "--target", p.name+"=http://"+loopback(ports[0]))
	}
	began, busy, routers, engines := time.Now(), machineTime(t), cpuOf(t, gateways), sum(cpuOf(t, fleets))
	bench := start(t, "bench", os.Getenv(binaryVariable), args...)
	eventuallyEvery(t, time.Second, "the bench to end", time.Hour, func() bool { return !bench.running() })
	if bench.err != nil {
		t.Fatalf("cannot compare: %v\n%s", bench.err, bench.tail(10))
	}
	t.Logf("%s\n%s", row.says, strings.Join(bench.stdout.since(0), "\n"))
	took := time.Since(began).Seconds()
	busy, engines = machineTime(t)-busy, sum(cpuOf(t, fleets))-engines
	clients := (bench.cmd.ProcessState.UserTime() + bench.cmd.ProcessState.SystemTime()).Seconds()
	others := busy - engines - clients
	var used strings.Builder
	for i, after := range cpuOf(t, gateways) {
		fmt.Fprintf(&used, "%s %.1f s, ", gateways[i].name, after-routers[i])
		others -= after - routers[i]
	}
	t.Logf("CPU time in %.0f s: %sengines %.1f s, clients %.1f s, anything else on the machine %.0f s", took, used.String(), engines, clients, others)
}

// answers tells whether a router answers a chat.
func answers(url string) bool {
	client := http.Client{Timeout: 10 * time.Second}
	defer client.CloseIdleConnections()
	answer, err := client.Post(url+"/v1/chat/completions", "application/json",
		strings.NewReader(`{"model":"`+chatName+`","messages":[{"role":"user","content":"hello"}],"max_tokens":1}`))
	if err != nil {
		return false
	}
	defer answer.Body.Close()
	return answer.StatusCode == http.StatusOK
}

// cpuOf is how long each process has used a core, in seconds.
func cpuOf(t *testing.T, all []*process) []float64 {
	t.Helper()
	used := make([]float64, len(all))
	for i, p := range all {
		used[i] = cpuOfPID(t, p.cmd.Process.Pid)
	}
	return used
}

// machineTime is how long all cores together have been busy, in seconds.
func machineTime(t *testing.T) float64 {
	t.Helper()
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		t.Fatal(err)
	}
	line, _, _ := strings.Cut(string(text), "\n")
	busy := 0.0
	for i, field := range strings.Fields(line)[1:9] {
		if i != 3 && i != 4 { // idle, and waiting for a disk
			busy += number(t, field)
		}
	}
	return tick * busy
}

func sum(values []float64) float64 {
	total := 0.0
	for _, x := range values {
		total += x
	}
	return total
}
