#!/usr/bin/env bash
# Says what of a cluster runs, how to get in, and how to end it.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"
runs || fail "say what runs" "no cluster does: make cluster starts one"
at=
[[ -z ${SLUICE_CLUSTER:-} ]] || at="SLUICE_CLUSTER=$state "
cat <<-END

	A Kubernetes runs, with a node and nothing of the gateway in it:
	$(inside "$("$here/build.sh" kubectl)/kubectl" get nodes --no-headers -o custom-columns='N:.metadata.name,V:.status.nodeInfo.kubeletVersion' | sed 's/^/  /')
	Images its node has, beside others: $registry/sluice:$(cat "$state/tag"), $("$here/images.sh" --name envoy), $("$here/images.sh" --name envoy-gateway)

	  ${at}test/cluster/inside.sh kubectl get pods -A   # any command, inside: in this folder, with kubectl, helm and KUBECONFIG
	  ${at}test/cluster/inside.sh bash                  # a shell
	  ${at}make cluster-down                            # ends it

	docs/kubernetes.md in it, from top to bottom: test/cluster/README.md.
END
