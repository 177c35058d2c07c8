#!/usr/bin/env bash
# usage: conformance.sh GATEWAYCLASS [ARGUMENT…]
#
# Runs the Inference Extension's own tests of gateways in the cluster that runs, for Gateways of a class. Its picker reads
# InferenceObjectives, whose definition newer versions of the Inference Extension no longer have; all other definitions stay
# as they are.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"
runs || fail "test gateways" "no cluster runs: test/cluster/up.sh starts one"
class=${1:?a GatewayClass}
shift
bin=$("$here/build.sh" kubectl conformance)
inside "$bin/kubectl" apply --server-side -f "$(module conformance sigs.k8s.io/gateway-api-inference-extension)/config/crd/bases/inference.networking.x-k8s.io_inferenceobjectives.yaml"
inside "$bin/conformance" -test.v -gateway-class "$class" -allow-crds-mismatch "$@"
