#!/usr/bin/env bash
# usage: load.sh IMAGE.tar…   gives images to the containerd of the cluster that runs
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"
bin=$("$here/build.sh" ctr)
for image in "$@"; do
	inside "$bin/ctr" -a "$sockets/containerd.sock" -n k8s.io images import --snapshotter overlayfs "$image" >>"$state/log/images.log" 2>&1 ||
		fail "import $image" "$(tail -n 3 "$state/log/images.log")"
done
