#!/usr/bin/env bash
# usage: node.sh [IMAGE.tar…]
#        node.sh restart | reboot
#
# Adds a node to the cluster that control.sh started: containerd with the images given, by default those without which no
# pod runs, kubelet, kube-proxy, and CoreDNS as a pod. Pods run from then on. restart ends these programs and starts them
# again, while pods run on; reboot ends the pods, too, without a word, and what a machine forgets that is switched off.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"
"$here/needs.sh"
bin=$("$here/build.sh" kubectl kubelet kube-proxy containerd containerd-shim-runc-v2 ctr bridge host-local loopback)
tools=$bin:/usr/sbin:/usr/bin:/sbin:/bin
began=$SECONDS

# containerd_config: what pods run in is under state, and what is of this run alone under sockets.
containerd_config() {
	cat <<-END
		version = 3
		root = "$state/containerd"
		state = "$sockets/containerd"
		disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.devmapper",
		  "io.containerd.snapshotter.v1.erofs", "io.containerd.nri.v1.nri", "io.containerd.tracing.processor.v1.otlp"]
		[grpc]
		  address = "$sockets/containerd.sock"
		[ttrpc]
		  address = "$sockets/containerd.sock.ttrpc"
		[plugins."io.containerd.internal.v1.opt"]
		  path = "$state/opt"
		[plugins."io.containerd.cri.v1.images"]
		  snapshotter = "overlayfs"
		  [plugins."io.containerd.cri.v1.images".pinned_images]
		    sandbox = "$registry/pause:1"
		[plugins."io.containerd.cri.v1.runtime"]
		  enable_unprivileged_ports = true
		  restrict_oom_score_adj = true
		  [plugins."io.containerd.cri.v1.runtime".cni]
		    bin_dirs = ["$state/cni/bin"]
		    conf_dir = "$state/cni"
		  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
		    runtime_type = "io.containerd.runc.v2"
		    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
		      BinaryName = "$(PATH=$tools command -v runc)"
		      SystemdCgroup = false
	END
}

# networks is how pods get addresses: from a bridge.
networks() {
	cat <<-END
		{"cniVersion": "1.0.0", "name": "pods", "plugins": [
		 {"type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true,
		  "ipam": {"type": "host-local", "dataDir": "$state/cni/ipam", "ranges": [[{"subnet": "$pod_cidr"}]], "routes": [{"dst": "0.0.0.0/0"}]}}]}
	END
}

kubelet_config() {
	cat <<-END
		apiVersion: kubelet.config.k8s.io/v1beta1
		kind: KubeletConfiguration
		failCgroupV1: false
		cgroupDriver: cgroupfs
		cgroupRoot: /$cgroup
		containerRuntimeEndpoint: unix://$sockets/containerd.sock
		authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: $state/pki/ca.crt}}
		authorization: {mode: Webhook}
		tlsCertFile: $state/pki/node.crt
		tlsPrivateKeyFile: $state/pki/node.key
		clusterDNS: [$dns_ip]
		clusterDomain: cluster.local
		resolvConf: $state/resolv.kubelet
		failSwapOn: false
		featureGates: {KubeletInUserNamespace: true}
		evictionHard: {memory.available: "0%", nodefs.available: "0%", imagefs.available: "0%", nodefs.inodesFree: "0%"}
		imageGCHighThresholdPercent: 100
		maxPods: 250
		podLogsDir: $state/podlogs
		volumePluginDir: $state/kubelet/plugins
		registerNode: true
		syncFrequency: 5s
		nodeStatusUpdateFrequency: 5s
		fileCheckFrequency: 5s
		memorySwap: {}
		localStorageCapacityIsolation: false
		shutdownGracePeriod: 0s
	END
}

# proxy_config leaves alone what is the whole machine's: how many connections are followed, and for how long.
proxy_config() {
	cat <<-END
		apiVersion: kubeproxy.config.k8s.io/v1alpha1
		kind: KubeProxyConfiguration
		mode: iptables
		clientConnection: {kubeconfig: $state/proxy.kubeconfig}
		clusterCIDR: $pod_cidr
		hostnameOverride: node1
		conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s, udpTimeout: 0s, udpStreamTimeout: 0s}
		iptables: {minSyncPeriod: 100ms}
		metricsBindAddress: 127.0.0.1:10249
	END
}

# control_groups makes the one that all pods are below.
control_groups() {
	local controller set
	if [[ -f /sys/fs/cgroup/cgroup.controllers ]]; then
		mkdir -p "/sys/fs/cgroup/$cgroup"
		for controller in cpuset cpu memory pids; do
			echo "+$controller" >/sys/fs/cgroup/cgroup.subtree_control
			echo "+$controller" >"/sys/fs/cgroup/$cgroup/cgroup.subtree_control"
		done
		return
	fi
	for controller in /sys/fs/cgroup/*/; do mkdir -p "$controller$cgroup"; done
	for set in cpuset.cpus cpuset.mems; do cat "/sys/fs/cgroup/cpuset/$set" >"/sys/fs/cgroup/cpuset/$cgroup/$set"; done
}

start_containerd() {
	start containerd env PATH="$tools" "$bin/containerd" -c "$state/containerd.toml"
	until_true "start containerd" 60 inside "$bin/ctr" -a "$sockets/containerd.sock" version
}

start_kubelet() {
	start kubelet env PATH="$tools" "$bin/kubelet" --config "$state/kubelet.yaml" --kubeconfig "$state/node.kubeconfig" --hostname-override node1 \
		--node-ip "$node_ip" --root-dir "$state/kubelet" --cert-dir "$state/kubelet/pki" -v=2
	start proxy env PATH="$tools" "$bin/kube-proxy" --config "$state/proxy.yaml" -v=2
}

# end_programs ends what the two start.
end_programs() {
	local name
	for name in kubelet proxy containerd; do stop "$name"; done
}

# end_pods kills all that runs in pods, and what watches over it, and forgets where they were.
end_pods() {
	pgrep -P "$(cat "$state/holder")" -x containerd-shim | xargs -r kill -9 || true
	find /sys/fs/cgroup -path "*/$cgroup/*" -name cgroup.procs -exec cat {} + 2>/dev/null | sort -u | xargs -r kill -9 2>/dev/null || true
	inside sh -c "
		for place in \$(awk '\$2 ~ \"^($sockets/containerd|/run/netns|$state/kubelet/pods)/\" { print \$2 }' /proc/mounts | sort -r); do umount -l \$place; done
		rm -rf $sockets/containerd /run/netns/*"
}

case ${1:-} in
restart | reboot)
	runs || fail "$1 the node" "no cluster runs: test/cluster/up.sh starts one"
	end_programs
	[[ $1 == restart ]] || end_pods
	start_containerd
	start_kubelet
	until_true "start kubelet" 60 inside "$bin/kubectl" get --raw /api/v1/nodes/node1/proxy/healthz
	say "node: $((SECONDS - began)) s"
	exit
	;;
esac

runs || fail "add a node" "no cluster runs: test/cluster/control.sh starts one"
mkdir -p "$state"/{cni,containerd,kubelet,podlogs}
ln -sfn "$bin" "$state/cni/bin"
containerd_config >"$state/containerd.toml"
networks >"$state/cni/10-pods.conflist"
kubelet_config >"$state/kubelet.yaml"
proxy_config >"$state/proxy.yaml"
echo "nameserver $dns_ip" >"$state/resolv.kubelet"
control_groups

archives=("$@")
if [[ $# == 0 ]]; then mapfile -t archives < <("$here/images.sh" pause coredns); fi
start_containerd
"$here/load.sh" "${archives[@]}"
say "containerd and images: $((SECONDS - began)) s"

start_kubelet
inside "$bin/kubectl" create clusterrolebinding kube-proxy --clusterrole system:node-proxier --user system:kube-proxy >/dev/null
sed "s/\$registry/$registry/; s/\$dns_ip/$dns_ip/" "$here/coredns.yaml" | inside "$bin/kubectl" apply -f - >/dev/null
until_true "make the node ready" 120 inside "$bin/kubectl" wait --for=condition=Ready node/node1 --timeout 1s
until_true "start CoreDNS" 120 inside "$bin/kubectl" -n kube-system rollout status deployment/coredns --timeout 1s
say "node: $((SECONDS - began)) s"
