#!/usr/bin/env bash
# usage: build.sh [PROGRAM…]
#
# Builds a Kubernetes cluster's programs from Go modules, all of them or those named, and prints the folder that holds
# them. What is built stays in the user's cache (sluice/kubernetes, or SLUICE_KUBERNETES), keyed by the versions in
# tools/*/go.mod, so that any checkout finds it. Building everything takes a quarter of an hour on two cores the first time.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${SLUICE_KUBERNETES:-${XDG_CACHE_HOME:-$HOME/.cache}/sluice/kubernetes}
export CGO_ENABLED=0 GOFLAGS="${GOFLAGS:-} -mod=readonly -trimpath"

say() { echo "$*" >&2; }
fail() { say "cannot build $1: $2"; exit 1; }

# programs lists what can be built: its name, the module in tools/ that says in which version, its package.
programs() {
	cat <<-END
		etcd                    etcd          go.etcd.io/etcd/server/v3
		kube-apiserver          kubernetes    k8s.io/kubernetes/cmd/kube-apiserver
		kubectl                 kubernetes    k8s.io/kubernetes/cmd/kubectl
		kube-controller-manager kubernetes    k8s.io/kubernetes/cmd/kube-controller-manager
		kube-scheduler          kubernetes    k8s.io/kubernetes/cmd/kube-scheduler
		kubelet                 kubernetes    k8s.io/kubernetes/cmd/kubelet
		kube-proxy              kubernetes    k8s.io/kubernetes/cmd/kube-proxy
		containerd              containerd    github.com/containerd/containerd/v2/cmd/containerd
		containerd-shim-runc-v2 containerd    github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2
		ctr                     containerd    github.com/containerd/containerd/v2/cmd/ctr
		bridge                  containerd    github.com/containernetworking/plugins/plugins/main/bridge
		host-local              containerd    github.com/containernetworking/plugins/plugins/ipam/host-local
		loopback                containerd    github.com/containernetworking/plugins/plugins/main/loopback
		coredns                 coredns       .
		helm                    helm          helm.sh/helm/v3/cmd/helm
		envoy-gateway           envoy-gateway github.com/envoyproxy/gateway/cmd/envoy-gateway
		pause                   apps          ./pause
		echo                    apps          ./echo
		extproc                 apps          ./extproc
		image                   image         .
		conformance             conformance   .
		epp                     conformance   sigs.k8s.io/gateway-api-inference-extension/cmd/epp
		echo-basic              conformance   sigs.k8s.io/gateway-api/conformance/echo-basic
	END
}

# flags are the linker's for a module: Kubernetes says its version only when the linker tells it.
flags() {
	if [[ $1 != kubernetes ]]; then echo "-s -w"; return; fi
	local v=$2 minor package text="-s -w"
	minor=${v#v1.}
	for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
		text+=" -X $package.gitVersion=$v -X $package.gitMajor=1 -X $package.gitMinor=${minor%%.*} -X $package.gitTreeState=clean"
	done
	echo "$text"
}

# version is that of a module's first requirement, which is what the module is there for.
version() { awk '$1 == "require" && $3 ~ /^v/ { print $3; exit } in_list && $2 ~ /^v/ { print $2; exit } $1 == "require" && $2 == "(" { in_list = 1 }' "$here/tools/$1/go.mod"; }

# key changes with everything that a module's programs are made of.
key() {
	{
		echo "$(go env GOOS GOARCH)" "$(flags "$1" "$(version "$1")")"
		(cd "$here/tools/$1" && find . -name '*.go' -o -name 'go.*' | LC_ALL=C sort | xargs cat)
	} | sha256sum | cut -c1-12
}

# why finds the sentence for people in what the compiler said.
why() {
	local log=$1 text
	text=$(grep -v '^[^ ]*$' "$log" | tail -n 15 || true)
	case $text in
	*"no space left"*) text+=$'\n'"The disk is full: building needs 12 GB in Go's caches, and 1 GB in $cache." ;;
	*"dial tcp"* | *"no such host"* | *"i/o timeout"* | *proxyconnect*) text+=$'\n'"Modules that are not in Go's cache come over the network: check GOPROXY." ;;
	*"signal: killed"*) text+=$'\n'"The compiler was killed, most likely for memory: it needs 4 GB; GOFLAGS=-p=1 needs less." ;;
	*"requires go >="*) text+=$'\n'"A newer Go is needed: $(go version) is installed." ;;
	esac
	echo "${text:-$(tail -n 15 "$log")}"
}

# build makes one program. It appears under its name only when it is whole.
build() {
	local name=$1 module=$2 package=$3 v folder log pid start=$SECONDS next=30
	v=$(version "$module")
	folder=$cache/$module-$v-$(key "$module")
	ln -sfn "$folder/$name" "$set/$name"
	[[ ! -x $folder/$name ]] || return 0
	mkdir -p "$folder"
	log=$(mktemp)
	say "building $name of $module $v"
	(cd "$here/tools/$module" && exec go build -v -ldflags "$(flags "$module" "$v")" -o "$folder/.$name.$$" "$package") >"$log" 2>&1 &
	pid=$!
	trap 'kill "$pid" 2>/dev/null || true; rm -f "$folder/.$name.$$" "$log"' EXIT
	while kill -0 "$pid" 2>/dev/null; do
		sleep 1
		((SECONDS - start >= next)) || continue
		next=$((SECONDS - start + 30))
		say "  $name: $(grep -c '^[^ ]*$' "$log" || true) packages compiled, $((SECONDS - start)) s"
	done
	wait "$pid" || fail "$name" "$(why "$log")"
	mv "$folder/.$name.$$" "$folder/$name"
	trap - EXIT
	rm -f "$log"
	say "  $name: built in $((SECONDS - start)) s"
}

command -v go >/dev/null || fail "a cluster's programs" "Go is not installed"
[[ $(go env GOOS) == linux ]] || say "only etcd, kube-apiserver and kubectl are of use outside Linux"
wanted=("$@")
if [[ ${#wanted[@]} == 0 ]]; then mapfile -t wanted < <(programs | awk '{ print $1 }'); fi
for name in "${wanted[@]}"; do
	programs | awk -v n="$name" '$1 == n { found = 1 } END { exit !found }' ||
		fail "$name" "there is no such program; there are $(programs | awk '{ printf "%s%s", sep, $1; sep = ", " }')"
done

# The set is the folder of links to these versions of everything.
set=$cache/set-$(for m in $(programs | awk '{ print $2 }' | sort -u); do key "$m"; done | sha256sum | cut -c1-12)
mkdir -p "$set"
missing=
for name in "${wanted[@]}"; do [[ -x $set/$name ]] || missing=yes; done
if [[ -n $missing ]]; then
	if command -v flock >/dev/null; then
		exec 9>"$cache/lock"
		flock -n 9 || { say "another build is under way in $cache: waiting for it"; flock 9; }
	fi
	rm -f "$cache"/*/.*.[0-9]* # what builds that were killed left behind
	for name in "${wanted[@]}"; do
		read -r _ module package < <(programs | awk -v n="$name" '$1 == n')
		build "$name" "$module" "$package"
	done
fi
echo "$set"
