#!/usr/bin/env bash
# usage: host-gateway.sh [FILE]
#
# Runs Envoy Gateway as a process beside a control plane without a node: it programmes an Envoy for each Gateway of the
# class eg, as a process on the node's address. FILE has more of its configuration, such as an extensionManager.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"
bin=$("$here/build.sh" kubectl envoy-gateway)
runs || fail "start Envoy Gateway" "no cluster runs: test/cluster/control.sh starts one"
"$here/envoy-gateway.sh" definitions
home=$state/gateway
mkdir -p "$home/data/envoy-versions/1.40.0/bin"
ln -sf "$("$here/envoy.sh")" "$home/data/envoy-versions/1.40.0/bin/envoy"
"$bin/envoy-gateway" certgen --local --config-home "$home/config" >"$state/log/certgen.log" 2>&1
cat >"$home/envoy-gateway.yaml" <<-END
	apiVersion: gateway.envoyproxy.io/v1alpha1
	kind: EnvoyGateway
	gateway: {controllerName: gateway.envoyproxy.io/gatewayclass-controller}
	provider:
	  type: Custom
	  custom:
	    resource: {type: Kubernetes, kubernetes: {leaderElection: {disable: true}}}
	    infrastructure:
	      type: Host
	      host: {configHome: $home/config, dataHome: $home/data, stateHome: $home/state, runtimeDir: $home/run}
	extensionApis: {enableBackend: true, enableEnvoyPatchPolicy: true}
	logging: {level: {default: info}}
	$(cat "${1:-/dev/null}")
END
inside "$bin/kubectl" create namespace envoy-gateway-system >/dev/null
# It looks for its certificates in /certs and nowhere else: it gets a root of its own, which has that folder, too.
start envoy-gateway env ENVOY_GATEWAY_NAMESPACE=envoy-gateway-system unshare -m sh -ec "
	mkdir -p $sockets/root; mount -t tmpfs tmpfs $sockets/root
	for folder in /*; do [ ! -d \$folder ] || { mkdir $sockets/root\$folder; mount --rbind \$folder $sockets/root\$folder; }; done
	cp -r $home/config/certs/envoy-gateway $sockets/root/certs
	exec chroot $sockets/root $bin/envoy-gateway server --config-path $home/envoy-gateway.yaml"
inside "$bin/kubectl" apply -f - >/dev/null <<-END
	apiVersion: gateway.envoyproxy.io/v1alpha1
	kind: EnvoyProxy
	metadata: {name: host, namespace: envoy-gateway-system}
	spec:
	  provider: {type: Host, host: {envoyVersion: 1.40.0}}
	  logging: {level: {default: warn}}
	---
	apiVersion: gateway.networking.k8s.io/v1
	kind: GatewayClass
	metadata: {name: eg}
	spec:
	  controllerName: gateway.envoyproxy.io/gatewayclass-controller
	  parametersRef: {group: gateway.envoyproxy.io, kind: EnvoyProxy, name: host, namespace: envoy-gateway-system}
END
