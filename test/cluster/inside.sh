#!/usr/bin/env bash
# usage: inside.sh COMMAND…   runs a command in the cluster's namespaces, such as inside.sh kubectl get pods -A
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"
runs || fail "run $1" "no cluster runs: test/cluster/control.sh starts one"
bin=$("$here/build.sh" kubectl)
inside env PATH="$bin:/usr/sbin:/usr/bin:/sbin:/bin" "$@"
