#!/usr/bin/env bash
# Ends the cluster: the first process of its namespaces, and with it all in them; then removes what it left outside.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"
if [[ -f $state/holder ]]; then
	holder=$(cat "$state/holder")
	kill -9 "$holder" 2>/dev/null || true
	gone() { ! kill -0 "$holder" 2>/dev/null; }
	until_true "end the cluster" 30 gone
fi
rm -rf "$state/holder" "$state/pid"
# Control groups that kubelet and runc made are empty by now.
for group in /sys/fs/cgroup/*/kubepods /sys/fs/cgroup/*/sluicetest; do
	[[ ! -d $group ]] || find "$group" -depth -type d -exec rmdir {} \; 2>/dev/null || true
done
