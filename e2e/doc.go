// Package e2e tries the built gateway against real neighbours: llama.cpp servers
// behind it and the openai Python client in front of it, everything on the
// loopback, nothing mocked.
//
// Envoy is a real one too, of two releases, from the Python package that carries its binary.
//
// It holds tests only, under build tags, because they need Python 3.11 and take minutes
// where the other tests take seconds: doors for llama.cpp, cluster for the gateway in a real Kubernetes that
// test/cluster builds and starts (`make e2e`; as root, the first run takes a quarter of an hour), vllm for two real vLLM servers
// on CPU (keep to `make test-vllm`: the first run installs 6 GB), peers for the comparison
// with other routers before simulated servers (`make bench-peers`), dataplane for what a request costs by front
// door (`make bench-data-plane`).
//
//	go test -tags doors ./e2e/
//	go test -tags doors ./e2e/ -run TestKilledEndpoint -v
//	SLUICE_E2E_KEEP=yes go test -tags cluster ./e2e/ -run TestModelServers -v # leaves the cluster running, for the next
//	go test -tags vllm ./e2e/ -run TestVLLM/SharedPrefixes -v
//
// The Python side (client.py, engine.py, vllm_engine.py) tells what it saw as JSON lines
// and judges nothing; every expectation is written in Go. The engines' own counters,
// not the gateway's, decide what an engine did.
package e2e
