//go:build doors && unix

package e2e

import (
	"os"
	"testing"
)

// door is a front door of the gateway. Both have the same behaviour but for two things, which the tests that see them
// name: Envoy tries another endpoint until an answer's headers have come, the embedded one until its first body byte;
// and a stream that breaks ends with an error event at the embedded one, while Envoy can only reset it.
type door struct {
	name  string
	args  []string // of serve
	envoy bool     // Envoy carries the requests
}

func embeddedDoor() door { return door{name: "embedded"} }

func envoyDoor() door { return envoyOf("envoy", envoyVariable) }

func oldEnvoyDoor() door { return envoyOf("envoy 1.39", oldEnvoyVariable) }

func envoyOf(name, variable string) door {
	return door{name: name, envoy: true, args: []string{"--data-plane", "envoy", "--envoy", os.Getenv(variable)}}
}

// throughBoth runs a test once for each front door.
func throughBoth(t *testing.T, run func(t *testing.T, d door)) {
	through(t, run, embeddedDoor(), envoyDoor())
}

// throughAll is throughBoth with the older release of Envoy, too.
func throughAll(t *testing.T, run func(t *testing.T, d door)) {
	through(t, run, embeddedDoor(), envoyDoor(), oldEnvoyDoor())
}

func through(t *testing.T, run func(t *testing.T, d door), doors ...door) {
	for _, d := range doors {
		t.Run(d.name, func(t *testing.T) { run(t, d) })
	}
}

// begun tells whether the answer to a request that ended early had begun, so that the front door could not try another
// endpoint: with a byte of its body; through Envoy with its headers, which name the endpoint.
func (d door) begun(e event) bool {
	return e.Chunks > 0 || d.envoy && e.Stream && e.Endpoint != ""
}

// broken tells whether a stream ended as it should where its endpoint went away: with an error event, or, through
// Envoy, by a reset, which the client can't take for the end of the answer.
func (d door) broken(e event) bool {
	if d.envoy {
		return e.Outcome != "ok" && d.begun(e) && e.Error == "APIConnectionError"
	}
	return e.Outcome == "broken" && e.Error == "APIError" && e.Code == "upstream_error"
}

// wantNoneLost fails the test for each request that failed or ended early, but for streams that
// ended as they should where their endpoint went away. It returns how many those are.
func (d door) wantNoneLost(t *testing.T, events []event) (broken int) {
	t.Helper()
	var rest []event
	for _, e := range events {
		if e.Event == "end" && d.broken(e) {
			broken++
			continue
		}
		rest = append(rest, e)
	}
	wantNoneLost(t, rest)
	if got := tally(rest).Broken; got > 0 {
		t.Errorf("got %d streams that ended with an error event of another kind, want none", got)
	}
	return broken
}

// start starts the gateway with this front door; see startGateway.
func (d door) start(t *testing.T, models []string, args ...string) *gateway {
	t.Helper()
	return startGateway(t, models, append(args, d.args...)...)
}
