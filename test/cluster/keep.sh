#!/usr/bin/env bash
# usage: keep.sh COMMAND…
#
# Runs a command in the cluster's namespaces, and anew whenever it ends, as systemd or kubelet do with what a cluster is
# made of, for as long as the cluster is there.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"
holder=$(cat "$state/holder")
while ours "$holder"; do
	status=0
	inside "$@" || status=$?
	ours "$holder" || exit 0
	say "keep.sh: ended with status $status at $(date +%T), and is started anew"
	sleep 1
done
