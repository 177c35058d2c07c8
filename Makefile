# Everything needs Go and a C compiler (the race detector uses cgo); `make test`
# also needs Python 3.11 or newer with its venv module, and Chromium, which it
# installs where it may (as root, with apt). `make e2e` and `make test-kube` take
# root. Nothing else is installed by hand: tools come from go.mod, Python packages
# from e2e/requirements*.txt.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS += --no-builtin-rules
GO ?= go
FUZZTIME ?= 20s
IMAGE ?= sluice
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
PLATFORMS ?= linux/amd64,linux/arm64
PACKAGES := ./...

.DEFAULT_GOAL := help
.PHONY: help build check vet format staticcheck unit cluster cluster-down e2e images test test-doors test-kube test-vllm bench bench-data-plane bench-peers bench-proxy soak fuzz needs-cc needs-chromium needs-cluster needs-python

help: ## say what can be made
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## the gateway, as bin/sluice
	$(GO) build -o bin/sluice ./cmd/sluice

# IMAGE (sluice) and VERSION (what git calls the commit) are the image's name, PLATFORMS (linux/amd64,linux/arm64) what it is for.
images: ## the gateway's image for several processors, as the archive dist/sluice.tar
	@mkdir -p dist
	@for platform in $$(tr , ' ' <<<"$(PLATFORMS)"); do \
		echo "building ./cmd/sluice for $$platform" >&2; \
		CGO_ENABLED=0 GOOS="$${platform%/*}" GOARCH="$${platform#*/}" $(GO) build -trimpath -ldflags "-s -w -X main.version=$(VERSION)" -o "dist/sluice-$${platform/\//-}" ./cmd/sluice; \
	done
	"$$(test/cluster/build.sh image)/image" -o "$(CURDIR)/dist/sluice.tar" -name "$(IMAGE):$(VERSION)" -platforms "$(PLATFORMS)" -gzip -static -entry /sluice \
		-label "org.opencontainers.image.version=$(VERSION)" -label org.opencontainers.image.licenses=Apache-2.0 \
		"$(CURDIR)/dist/sluice-{os}-{arch}=/sluice" "$(CURDIR)/LICENSE=/LICENSE" "$(CURDIR)/NOTICE=/NOTICE"

check: needs-cc vet format staticcheck unit ## vet, gofmt, staticcheck, and under the race detector unit and architecture tests and every fuzz target over its seeds

vet:
	$(GO) vet $(PACKAGES)
	@for tag in doors vllm peers dataplane cluster; do echo "$(GO) vet -tags $$tag ./e2e/"; $(GO) vet -tags $$tag ./e2e/; done
	$(GO) vet -tags kube ./test/apiserver/ ./translate/ ./kube/
	$(GO) vet -C test/cluster/tools/image .

format:
	@unformatted=$$("$$($(GO) env GOROOT)/bin/gofmt" -l .); \
	if [[ -n "$$unformatted" ]]; then echo "gofmt -w these files:" >&2; echo "$$unformatted" >&2; exit 1; fi

staticcheck:
	$(GO) tool staticcheck $(PACKAGES)
	@for tag in doors vllm peers dataplane cluster; do echo "$(GO) tool staticcheck -tags $$tag ./e2e/"; $(GO) tool staticcheck -tags $$tag ./e2e/; done
	$(GO) tool staticcheck -tags kube ./test/apiserver/ ./translate/ ./kube/

unit:
	$(GO) test -race $(PACKAGES)
	$(GO) test -C test/cluster/tools/image .

test-doors: needs-cc needs-python needs-chromium ## the gateway with both front doors, one of them Envoy, between real llama.cpp servers and the real OpenAI client, the console in Chromium
	$(GO) test -tags doors -count 1 -timeout 20m -v ./e2e/

# The first run builds a Kubernetes from Go modules into the user's cache: a quarter of an hour on two cores. It needs Linux, root and 4 GB of memory.
# Tests wait for pods most of the time, so that several run at once.
e2e: needs-python needs-cluster ## the gateway in a real Kubernetes, with Envoy Gateway, and simulated and real model servers in pods
	$(GO) test -tags cluster -count 1 -timeout 40m -parallel 4 -v ./e2e/

cluster: needs-python needs-cluster ## start that Kubernetes and leave it running, for looking around (test/cluster/README.md)
	SLUICE_E2E_KEEP=yes $(GO) test -tags cluster -count 1 -run '^$$' ./e2e/
	@test/cluster/told.sh

cluster-down: ## end it
	test/cluster/down.sh

test: ## everything that has to hold without a cluster: check and test-doors
	@echo "== check: vet, gofmt, staticcheck, unit and architecture tests, every fuzz target over its seeds"
	@$(MAKE) --no-print-directory check
	@echo "== test-doors: real model servers behind the gateway, the OpenAI client before it"
	@$(MAKE) --no-print-directory test-doors
	@echo "== all passed"

# The first run builds etcd, kube-apiserver, kubectl, helm and Envoy Gateway from Go modules into the user's cache: twenty minutes on two cores. Envoy Gateway is run
# in a network of its own, which takes root.
test-kube: needs-python ## the custom resource definitions, what a configuration becomes, the chart, and what is read of a cluster, against a real API server; pools behind a real Envoy Gateway
	assets=$$(test/cluster/build.sh etcd kube-apiserver kubectl helm envoy-gateway) && envoy=$$(test/cluster/envoy.sh) && KUBEBUILDER_ASSETS="$$assets" SLUICE_E2E_ENVOY="$$envoy" $(GO) test -tags kube -count 1 -timeout 20m -p 1 ./test/apiserver/ ./translate/ ./kube/

# The first run installs vLLM for CPU into the user's cache: 6 GB, some minutes. It needs Linux on x86-64 and 8 GB of memory.
test-vllm: needs-cc needs-python ## the gateway before two real vLLM servers on CPU: KV events, prefixes, adapters, failures
	$(GO) test -tags vllm -count 1 -timeout 30m -v ./e2e/

bench: ## benchmarks of every room
	$(GO) test -run '^$$' -bench . -benchmem $(PACKAGES)

# SLUICE_PEERS_FOR (30s) is how long requests arrive in a round, SLUICE_PEERS_ROUNDS (3) how many rounds there are.
bench-peers: needs-python ## this gateway beside other routers, each before the same simulated servers: half an hour
	$(GO) test -tags peers -count 1 -timeout 60m -v ./e2e/

# SLUICE_DATAPLANE_FOR (3s) is how long a front door is under load in each cell of a round, SLUICE_DATAPLANE_ROUNDS (5) how many rounds there are.
bench-data-plane: needs-python ## what a request costs: Envoy alone, with the picker, and the embedded front door
	$(GO) test -tags dataplane -run TestDataPlane -count 1 -timeout 60m -v ./e2e/

bench-proxy: ## the proxy beside the standard library's reverse proxy
	$(GO) test -run '^$$' -bench Proxy -benchmem ./proxy/

# SLUICE_SOAK_FOR (10m) is how long requests are sent.
soak: needs-python ## requests through Envoy for ten minutes while engines and the picker are killed, frozen and restarted: none lost, memory flat
	$(GO) test -tags dataplane -run TestSoak -count 1 -timeout 60m -v ./e2e/

fuzz: ## look for new inputs, FUZZTIME=20s for each fuzz target
	@for package in $$($(GO) list $(PACKAGES)); do \
		for target in $$($(GO) test -list '^Fuzz' "$$package" | grep '^Fuzz' || true); do \
			echo "== $$target in $$package"; \
			$(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) "$$package"; \
		done; \
	done

needs-cc:
	@cc=$$($(GO) env CC); command -v "$${cc%% *}" >/dev/null || \
		{ echo "no C compiler \"$$cc\" found: the race detector needs cgo; install gcc or set CC" >&2; exit 1; }
	@[[ "$$($(GO) env CGO_ENABLED)" == 1 ]] || \
		{ echo "cgo is off and the race detector needs it: set CGO_ENABLED=1" >&2; exit 1; }

# SLUICE_E2E_PYTHON names an interpreter that has the packages already.
needs-python:
	@[[ -n "$${SLUICE_E2E_PYTHON:-}" ]] || { command -v python3 >/dev/null && \
		python3 -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; } || \
		{ echo "no Python 3.11 or newer with venv found as python3: install it (on Debian python3 and python3-venv)" >&2; exit 1; }

# SLUICE_E2E_CHROMIUM names a Chromium to use instead of the one on PATH.
needs-chromium:
	@found() { command -v "$${SLUICE_E2E_CHROMIUM:-chromium}" || command -v chromium-browser || command -v google-chrome; }; \
	if ! found >/dev/null; then \
		if [[ "$$(id -u)" == 0 ]] && command -v apt-get >/dev/null; then \
			echo "installing Chromium for the console's tests (once, about 400 MB)" >&2; \
			apt-get update -q >&2 && DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends chromium >&2; \
		fi; \
		found >/dev/null || { echo "no Chromium found: install it (on Debian the package chromium), or name one in SLUICE_E2E_CHROMIUM" >&2; exit 1; }; \
	fi

# Root installs what Debian has of what is missing; the rest is said.
needs-cluster:
	@test/cluster/needs.sh
	@test/cluster/build.sh >/dev/null
