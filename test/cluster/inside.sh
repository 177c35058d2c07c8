#!/usr/bin/env bash
# usage: inside.sh COMMAND…   runs a command in the cluster's namespaces, such as inside.sh kubectl get pods -A
#
# It runs in the caller's folder, with the cluster's programs in front of the caller's PATH and its kubeconfig as KUBECONFIG.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"
[[ $# -gt 0 ]] || fail "run nothing" "inside.sh COMMAND…, it is; inside.sh bash is a shell"
runs || fail "run $1" "no cluster runs: make cluster starts one"
bin=$("$here/build.sh" kubectl helm)
inside env -C "$PWD" PATH="$bin:$PATH:/usr/sbin:/sbin" "$@"
