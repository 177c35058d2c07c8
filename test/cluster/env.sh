# Sourced by the others: where things are, and how to run something inside the cluster's namespaces.
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${SLUICE_KUBERNETES:-${XDG_CACHE_HOME:-$HOME/.cache}/sluice/kubernetes}
state=${SLUICE_CLUSTER:-$cache/run} # of the one cluster that runs
node_ip=10.10.0.1
pod_cidr=10.244.0.0/24
service_cidr=10.96.0.0/16
dns_ip=10.96.0.10
sockets=/run/sluice # inside, in a tmpfs of the cluster's own
registry=cluster.test # is before the name of every image; nobody fetches from it
cgroup=sluice-$(printf '%s' "$state" | sha256sum | cut -c1-8) # of this cluster's pods
export KUBECONFIG=$state/admin.kubeconfig KUBECACHEDIR=$state/tools HELM_CACHE_HOME=$state/tools HELM_CONFIG_HOME=$state/tools HELM_DATA_HOME=$state/tools

say() { echo "$*" >&2; }
fail() { say "cannot $1: $2"; exit 1; }
# inside runs a command in the cluster's own network, mount, process and host name namespaces.
inside() { nsenter -t "$(cat "$state/holder")" -n -m -p -u "$@"; }
# ours tells whether a process is this cluster's: after a restart of the machine its number may be another's.
ours() { grep -qzxF "SLUICE_CLUSTER=$state" "/proc/$1/environ" 2>/dev/null; }
# runs tells whether the cluster does.
runs() { [[ -f $state/holder ]] && ours "$(cat "$state/holder")"; }
# start keeps a program running inside, with its log in state/log, in a session of its own, so that no signal to those
# who started it reaches it.
start() {
	local name=$1
	shift
	SLUICE_CLUSTER=$state setsid "$here/keep.sh" "$@" </dev/null >>"$state/log/$name.log" 2>&1 &
	echo $! >"$state/pid/$name"
	disown
}
# program is the process that start keeps running, below those that brought it inside.
program() {
	local pid
	pid=$(cat "$state/pid/$1")
	while [[ $(cat "/proc/$pid/comm") == @(bash|nsenter) ]]; do pid=$(pgrep -P "$pid"); done
	echo "$pid"
}
# resume has what start keeps running, and what brought it inside, go on, if it is paused.
resume() {
	local session
	session=$(cat "$state/pid/$1")
	going() {
		kill -CONT -- "-$session"
		[[ $(ps -o stat= -s "$session") != *T* ]]
	}
	! ours "$session" || until_true "let $1 go on" 10 going
}
# stop ends what start keeps running, and waits until it has ended.
stop() {
	local pid
	pid=$(program "$1")
	kill "$(cat "$state/pid/$1")" "$pid"
	gone() { ! kill -0 "$pid" 2>/dev/null; }
	until_true "end $1" 30 gone
}
# until_true tries a command, ten times a second, for so many seconds.
until_true() {
	local what=$1 seconds=$2 end
	shift 2
	end=$((SECONDS + seconds))
	until "$@" >/dev/null 2>&1; do
		((SECONDS < end)) || fail "$what" "it takes more than $seconds s; the logs are in $state/log"
		sleep 0.1
	done
}
# module is the folder in which Go keeps a module that tools/PART requires, in the version that stands there.
module() { (cd "$here/tools/$1" && go mod download -json "$2") | sed -n 's/^\t"Dir": "\(.*\)",$/\1/p'; }
