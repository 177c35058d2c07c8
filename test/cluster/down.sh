#!/usr/bin/env bash
# Ends the cluster: the first process of its namespaces, and with it all in them; then removes what it left outside, but
# for logs.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"
for file in "$state"/pid/*; do # a paused one holds up the others' end
	[[ ! -f $file ]] || resume "$(basename "$file")"
done
for file in holder parent; do
	[[ -f $state/$file ]] || continue
	pid=$(cat "$state/$file")
	ours "$pid" || continue
	kill -9 "$pid" 2>/dev/null || true
	gone() { ! kill -0 "$pid" 2>/dev/null; } # once everything below it is
	until_true "end the cluster" 60 gone
done
# Control groups are empty once what was in them is gone, which takes the kernel a moment.
cgroups() { find /sys/fs/cgroup -maxdepth 2 -type d -name "$cgroup"; }
emptied() {
	local group
	for group in $(cgroups); do find "$group" -depth -type d -exec rmdir {} + || true; done
	[[ -z $(cgroups) ]]
}
until_true "remove the cluster's control groups" 30 emptied
rm -rf "$state"/{parent,holder,pid,etcd,containerd,kubelet,cni,podlogs,opt,sysctl,gateway,tools}
