#!/usr/bin/env bash
# usage: envoy-gateway.sh definitions | pools
#        envoy-gateway.sh install NAMESPACE [HELM ARGUMENT…]
#
# definitions adds what an API server has to know of Gateway API, of its Inference Extension and of Envoy Gateway; pools, of
# the Inference Extension alone. install does the former and installs Envoy Gateway by its own chart, as envoy-gateway, with
# images of ours.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"
bin=$("$here/build.sh" kubectl helm)
source=$(module envoy-gateway github.com/envoyproxy/gateway)/charts/gateway-helm
image=$("$here/images.sh" --name envoy-gateway)

# chart makes the one that Envoy Gateway releases, from its template in the module: only the image's name is open there.
chart() {
	rm -rf "$state/gateway"
	cp -r "$source" "$state/gateway"
	chmod -R u+w "$state/gateway"
	sed "s#\${GatewayImagePullPolicy}#IfNotPresent#; s#\${GatewayImage}#$image#" "$state/gateway/values.tmpl.yaml" >"$state/gateway/values.yaml"
}

case ${1:-} in
definitions | pools | install) ;;
*) fail "do ${1:-nothing}" "definitions, pools or install NAMESPACE, it is" ;;
esac
gateways=("$source/charts/crds/crds/gatewayapi-crds.yaml" "$source/charts/crds/crds/generated")
[[ $1 != pools ]] || gateways=()
inside "$bin/kubectl" apply --server-side ${gateways[@]/#/--filename=} \
	-f "$(module definitions sigs.k8s.io/gateway-api-inference-extension)/config/crd/bases" >"$state/log/definitions.log"
[[ $1 == install ]] || exit 0
namespace=${2:?namespace}
shift 2
chart
inside "$bin/helm" upgrade --install envoy-gateway "$state/gateway" -n "$namespace" --create-namespace --skip-crds \
	--set "config.envoyGateway.provider.kubernetes.shutdownManager.image=$image" --set deployment.envoyGateway.resources.requests.cpu=50m \
	"$@" --wait --timeout 3m >"$state/log/helm.log" 2>&1 || fail "install Envoy Gateway" "$(tail -n 5 "$state/log/helm.log")"
