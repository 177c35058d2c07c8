# Sourced by the others: where things are, and how to run something inside the cluster's namespaces.
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${SLUICE_KUBERNETES:-${XDG_CACHE_HOME:-$HOME/.cache}/sluice/kubernetes}
state=${SLUICE_CLUSTER:-$cache/run} # of the one cluster that runs
node_ip=10.10.0.1
pod_cidr=10.244.0.0/24
service_cidr=10.96.0.0/16
dns_ip=10.96.0.10
export KUBECONFIG=$state/admin.kubeconfig

say() { echo "$*" >&2; }
fail() { say "cannot $1: $2"; exit 1; }
# inside runs a command in the cluster's own network, mount, process and host name namespaces.
inside() { nsenter -t "$(cat "$state/holder")" -n -m -p -u "$@"; }
# start leaves a program running inside, with its log in state/log.
start() {
	local name=$1
	shift
	inside "$@" </dev/null >"$state/log/$name.log" 2>&1 &
	echo $! >"$state/pid/$name"
	disown
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
