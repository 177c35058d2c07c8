#!/usr/bin/env bash
# Starts a whole cluster: control plane, a node, and on it the images of images.sh. What is missing is said before anything
# runs. down.sh ends it.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"
began=$SECONDS
"$here/needs.sh"
"$here/build.sh" >/dev/null
say "programs: $((SECONDS - began)) s"
images=$("$here/images.sh")
say "images: $((SECONDS - began)) s"
"$here/control.sh"
"$here/node.sh" $images
say "cluster: $((SECONDS - began)) s"
