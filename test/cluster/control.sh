#!/usr/bin/env bash
# usage: control.sh [pause | continue | kill]
#
# Starts a control plane (etcd, kube-apiserver, kube-controller-manager, kube-scheduler) in network, mount, process and
# host name namespaces of its own, which have no way out. Needs root. down.sh ends it; inside.sh runs a command in it.
# pause keeps the API server of the one that runs from doing anything, so that who asks it waits; continue lets it go on;
# kill ends it without a word, after which it is started anew.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"
case ${1:-} in
"") ;;
pause | continue | kill)
	runs || fail "$1 the API server" "no cluster runs: test/cluster/control.sh starts one"
	# What brought it inside stops when it does, and goes on only when told to itself: otherwise it would wait for what has ended.
	case $1 in
	pause) kill -STOP -- "-$(cat "$state/pid/apiserver")" ;;
	continue) resume apiserver ;;
	kill) kill -KILL "$(program apiserver)" ;;
	esac
	exit
	;;
*) fail "do $1" "pause, continue or kill, it is" ;;
esac
"$here/needs.sh" control
bin=$("$here/build.sh" etcd kube-apiserver kubectl kube-controller-manager kube-scheduler pause)

# namespaces makes them, with the node's address on a bridge. Their first process holds them: when it ends, all in them ends.
namespaces() {
	mkdir -p "$state"
	exec 8>"$state/lock"
	flock 8 # two that start at a time must not take each other for what was left behind
	! runs || fail "start a cluster" "one runs already in $state: test/cluster/down.sh ends it"
	"$here/down.sh" # what one that was killed left behind
	rm -rf "$state/log"
	mkdir -p "$state"/{pid,log,sysctl,kubelet,containerd}
	# It says its number before there is anything to end, so that nothing stays when this script is killed right here.
	SLUICE_CLUSTER=$state setsid sh -c 'echo $$ >"$0/parent"; exec unshare -n -m -p -u --fork --kill-child --mount-proc --propagation private "$1"' \
		"$state" "$bin/pause" </dev/null >/dev/null 2>&1 8>&- &
	local holder=
	until_child() { holder=$(pgrep -P "$(cat "$state/parent")" -x pause); }
	until_true "make namespaces" 10 until_child
	until_child
	echo "$holder" >"$state/holder"
	exec 8>&-
	inside sh -ec "
		hostname node1
		mount --make-rshared /
		mount -t tmpfs tmpfs /run; mkdir -p /run/netns /run/lock $sockets
		# What kubelet and CNI insist on writing to /var is seen inside alone.
		mount -t tmpfs tmpfs /var/log
		mkdir -p $sockets/state $sockets/lib/new $sockets/lib/work
		mount --bind $state $sockets/state
		mount -t overlay overlay -o lowerdir=/var/lib,upperdir=$sockets/lib/new,workdir=$sockets/lib/work /var/lib
		mount --bind $sockets/state $state # which may be below
		# kubelet insists on machine-wide settings: it gets files of its own instead, in a tmpfs, since otherwise they count as a disk.
		mount -t tmpfs tmpfs $state/sysctl
		while read k v; do
			echo \$v >$state/sysctl/\$(echo \$k | tr / _)
			mount --bind $state/sysctl/\$(echo \$k | tr / _) /proc/sys/\$k
		done <<-END
			vm/overcommit_memory 1
			vm/panic_on_oom 0
			kernel/panic 10
			kernel/panic_on_oops 1
			kernel/keys/root_maxkeys 1000000
			kernel/keys/root_maxbytes 25000000
		END
		echo nameserver $dns_ip >$state/sysctl/resolv.conf # never the machine's own
		mount --bind $state/sysctl/resolv.conf /etc/resolv.conf
		ip link set lo up
		ip link add node0 type bridge; ip addr add $node_ip/24 dev node0; ip link set node0 up
		ip route add default dev node0
		echo 1 >/proc/sys/net/ipv4/ip_forward
		echo 1 >/proc/sys/net/ipv4/conf/all/route_localnet
		[ ! -e /proc/sys/net/bridge/bridge-nf-call-iptables ] || echo 1 >/proc/sys/net/bridge/bridge-nf-call-iptables
	"
}

# certificate makes one for a subject, with other names where there are any.
certificate() {
	local name=$1 subject=$2 others=${3:-}
	openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout "$name.key" -subj "$subject" -out "$name.csr" 2>/dev/null
	printf '%s\nextendedKeyUsage=serverAuth,clientAuth\nkeyUsage=digitalSignature,keyEncipherment\n' "${others:+subjectAltName=$others}" >"$name.ext"
	openssl x509 -req -in "$name.csr" -CA ca.crt -CAkey ca.key -CAcreateserial -days 3650 -extfile "$name.ext" -out "$name.crt" 2>/dev/null
	rm "$name.csr" "$name.ext"
}

# certificates makes an authority and what it signs, and a kubeconfig for each client.
certificates() {
	mkdir -p "$state/pki"
	cd "$state/pki"
	[[ ! -f done ]] || return 0
	openssl ecparam -name prime256v1 -genkey -noout -out ca.key
	openssl req -x509 -new -nodes -key ca.key -subj "/CN=kube-ca" -days 3650 -out ca.crt 2>/dev/null
	openssl ecparam -name prime256v1 -genkey -noout -out sa.key
	openssl ec -in sa.key -pubout -out sa.pub 2>/dev/null
	certificate apiserver "/CN=kube-apiserver" "DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,DNS:kubernetes.default.svc.cluster.local,DNS:localhost,IP:127.0.0.1,IP:$node_ip,IP:10.96.0.1"
	certificate admin "/O=system:masters/CN=admin"
	certificate controller-manager "/CN=system:kube-controller-manager"
	certificate scheduler "/CN=system:kube-scheduler"
	certificate node "/O=system:nodes/CN=system:node:node1" "DNS:node1,IP:$node_ip"
	certificate apiserver-kubelet "/O=system:masters/CN=kube-apiserver-kubelet-client"
	certificate proxy "/CN=system:kube-proxy"
	local user
	for user in admin controller-manager scheduler node proxy; do
		cat >"$state/$user.kubeconfig" <<-END
			apiVersion: v1
			kind: Config
			clusters: [{name: c, cluster: {server: "https://$node_ip:6443", certificate-authority-data: $(base64 -w0 ca.crt)}}]
			users: [{name: u, user: {client-certificate-data: $(base64 -w0 "$user.crt"), client-key-data: $(base64 -w0 "$user.key")}}]
			contexts: [{name: x, context: {cluster: c, user: u}}]
			current-context: x
		END
	done
	touch done
}

# control_plane starts the four programs.
control_plane() {
	local pki=$state/pki client=http://127.0.0.1:2379 peer=http://127.0.0.1:2380
	rm -rf "$state/etcd"
	start etcd "$bin/etcd" --name e --data-dir "$state/etcd" --listen-client-urls $client --advertise-client-urls $client \
		--listen-peer-urls $peer --initial-advertise-peer-urls $peer --initial-cluster e=$peer --unsafe-no-fsync --log-level warn
	start apiserver "$bin/kube-apiserver" --etcd-servers $client --secure-port 6443 --bind-address 0.0.0.0 --advertise-address $node_ip \
		--service-cluster-ip-range $service_cidr --authorization-mode Node,RBAC --client-ca-file "$pki/ca.crt" \
		--tls-cert-file "$pki/apiserver.crt" --tls-private-key-file "$pki/apiserver.key" \
		--service-account-issuer https://kubernetes.default.svc.cluster.local --service-account-key-file "$pki/sa.pub" --service-account-signing-key-file "$pki/sa.key" \
		--kubelet-client-certificate "$pki/apiserver-kubelet.crt" --kubelet-client-key "$pki/apiserver-kubelet.key" --kubelet-certificate-authority "$pki/ca.crt" \
		--enable-admission-plugins NodeRestriction --allow-privileged=true --kubelet-preferred-address-types InternalIP --profiling=false
	until_true "start the API server" 120 inside "$bin/kubectl" get --raw /readyz
	start controller-manager "$bin/kube-controller-manager" $(kubeconfigs controller-manager) --leader-elect=false --use-service-account-credentials \
		--service-account-private-key-file "$pki/sa.key" --root-ca-file "$pki/ca.crt" --cluster-signing-cert-file "$pki/ca.crt" --cluster-signing-key-file "$pki/ca.key" \
		"--controllers=*,-node-ipam-controller" --kube-api-qps 200 --kube-api-burst 400 --profiling=false
	start scheduler "$bin/kube-scheduler" $(kubeconfigs scheduler) --leader-elect=false --kube-api-qps 200 --kube-api-burst 400 --profiling=false
	until_true "start the controllers" 120 inside "$bin/kubectl" -n default get serviceaccount default
}

kubeconfigs() { echo "--kubeconfig $state/$1.kubeconfig --authentication-kubeconfig $state/$1.kubeconfig --authorization-kubeconfig $state/$1.kubeconfig"; }

began=$SECONDS
namespaces
(certificates)
say "namespaces and certificates: $((SECONDS - began)) s"
control_plane
say "control plane: $((SECONDS - began)) s"
