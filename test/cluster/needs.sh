#!/usr/bin/env bash
# usage: needs.sh [control]
#
# Says what this machine lacks to run a cluster, everything at once, or only a control plane. What Debian has, it installs
# where it may: as root, with apt.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"
lacks=()

# programs lists what is run, and Debian's package that has it.
programs() {
	cat <<-END
		nsenter  util-linux
		unshare  util-linux
		ip       iproute2
		openssl  openssl
		pgrep    procps
	END
	[[ ${1:-} == control ]] || cat <<-END
		runc     runc
		iptables iptables
	END
}

# missing lists the packages of those that aren't there.
missing() { programs "$@" | while read -r program package; do command -v "$program" >/dev/null || echo "$package"; done | sort -u; }

# try notes a lack, in words, when a command fails.
try() {
	local what=$1 said
	shift
	said=$("$@" 2>&1 </dev/null) || lacks+=("$what${said:+ ($(tail -n 1 <<<"$said"))}")
}

export PATH=$PATH:/usr/sbin:/sbin
[[ $(uname -s) == Linux ]] || fail "run a cluster" "it takes Linux"
[[ $(id -u) == 0 ]] || fail "run a cluster" "namespaces, networks and control groups need root: run it as root, or in a container with --privileged"
packages=$(missing "$@")
if [[ -n $packages ]] && command -v apt-get >/dev/null; then
	say "installing" $packages "for a cluster (once)"
	{ apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends $packages; } >&2 || true
fi
packages=$(missing "$@")
[[ -z $packages ]] || fail "run a cluster" "programs of these packages of Debian are not installed: ${packages//$'\n'/ }"

try "namespaces for networks, mounts, processes and host names" unshare -n -m -p -u --fork true
try "a bridge of one's own" unshare -n ip link add node0 type bridge
if [[ ${1:-} != control ]]; then
	try "a file system on which overlays work in $state" unshare -m sh -ec 'mkdir -p "$0/a" "$0/b" "$0/c" "$0/d"; cd "$0"; mount -t overlay overlay -o lowerdir=a,upperdir=b,workdir=c d' "$state/try"
	rm -rf "$state/try"
	try "virtual network cards" unshare -n ip link add veth0 type veth peer name veth1
	try "iptables with what kube-proxy asks of it" unshare -n sh -ec '
		iptables -w -t nat -A POSTROUTING -m comment --comment x -m mark --mark 1/1 -j MASQUERADE
		iptables -w -t nat -A OUTPUT -m statistic --mode random --probability 0.5 -p tcp -j DNAT --to-destination 10.0.0.1:1
		iptables -w -A FORWARD -m conntrack --ctstate INVALID -j DROP'
	if [[ -f /sys/fs/cgroup/cgroup.controllers ]]; then
		try "control groups that can be written" sh -ec 'mkdir "$0"; rmdir "$0"' "/sys/fs/cgroup/$cgroup-try"
	else
		for controller in cpu cpuacct cpuset memory pids; do
			try "the controller $controller of control groups, writable" sh -ec 'mkdir "$0"; rmdir "$0"' "/sys/fs/cgroup/$controller/$cgroup-try"
		done
	fi
	free=$(awk '$1 == "MemAvailable:" { print int($2 / 1048576) }' /proc/meminfo)
	((free >= 3)) || lacks+=("3 GB of free memory (there are $free)")
fi
((${#lacks[@]} == 0)) || fail "run a cluster" "this machine lacks$(printf '\n  - %s' "${lacks[@]}")"
