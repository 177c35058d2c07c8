// Package e2e tries the built gateway against real neighbours: llama.cpp servers
// behind it and the openai Python client in front of it, everything on the
// loopback, nothing mocked.
//
// It holds tests only, under the build tag e2e, because they need Python 3.11 and
// take minutes where the other tests take seconds:
//
//	go test -tags e2e ./e2e/
//	go test -tags e2e ./e2e/ -run TestKilledEndpoint -v
//
// The Python side (client.py, engine.py) tells what it saw as JSON lines and
// judges nothing; every expectation is written in Go. The engines' own counters,
// not the gateway's, decide what an engine did.
package e2e
