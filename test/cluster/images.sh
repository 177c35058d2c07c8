#!/usr/bin/env bash
# usage: images.sh [IMAGE…]
#        images.sh --name IMAGE
#
# Makes the images of a cluster from files of this machine, all of them or those named, and prints the paths of their
# archives. Those of programs that build.sh builds, and Envoy's, are kept in the user's cache; the gateway's and the
# engine's are made anew each time. SLUICE_E2E_BINARY names the gateway, built without cgo; SLUICE_E2E_TAG is the tag of its
# image and of the engine's. With --name it makes nothing, and prints what an image is called.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"
root=$(cd "$here/../.." && pwd)
tag=${SLUICE_E2E_TAG:-test}

# images lists what can be made: its name, its tag, the program in it, and its path there.
images() {
	cat <<-END
		pause         1       $bin/pause         /pause
		echo          1       $bin/echo          /echo
		extproc       1       $bin/extproc       /extproc
		coredns       1       $bin/coredns       /coredns
		envoy-gateway 1.9.1   $bin/envoy-gateway /usr/local/bin/envoy-gateway
		envoy         1.40.0  $envoy /usr/local/bin/envoy
		epp           -       $bin/epp           /epp
		echo-basic    -       $bin/echo-basic    /echo-basic
		sluice        $tag    ${SLUICE_E2E_BINARY:-SLUICE_E2E_BINARY} /sluice
		engine        $tag    $root/e2e/engine.py /engine/engine.py
	END
}

# called is an image's whole name: ours, or what the manifests of the Inference Extension's tests call it.
called() {
	case $1 in
	epp | echo-basic) sed -n "/image: .*\/$1:/ {s/.*image: //p; q}" "$(module conformance sigs.k8s.io/gateway-api-inference-extension)/conformance/resources/base.yaml" ;;
	*) echo "$registry/$1:$2" ;;
	esac
}

# libraries are those that a program is linked with, each with its place.
libraries() { ldd "$1" | grep -o '/[^ ]*' | while read -r path; do echo "$(readlink -f "$path")=$path"; done; }

# authority makes the one that Envoys trust: there is no way to those that the world trusts. Tests sign with it.
authority() {
	[[ ! -d $cache/authority ]] || return 0
	local new
	new=$(mktemp -d "$cache/authority.XXXXXX")
	openssl ecparam -name prime256v1 -genkey -noout -out "$new/ca.key"
	openssl req -x509 -new -nodes -key "$new/ca.key" -subj "/CN=authority of tests" -days 3650 -out "$new/ca.crt" 2>/dev/null
	mv -nT "$new" "$cache/authority"
}

# files are what goes into an image, each with its place.
files() {
	local name=$1 program=$2 path=$3
	echo "$program=$path"
	case $name in
	envoy)
		libraries "$program"
		echo "$cache/authority/ca.crt=/etc/ssl/certs/ca-certificates.crt"
		echo "$state/passwd=/etc/passwd"
		;;
	envoy-gateway) echo "/etc/ssl/certs/ca-certificates.crt=/etc/ssl/certs/ca-certificates.crt" ;;
	engine) echo "$root/e2e/testdata/tiny.gguf=/engine/testdata/tiny.gguf" ;;
	esac
}

envoy=-
if [[ ${1:-} == --name ]]; then
	bin=-
	called "$2" "$(images | awk -v n="$2" '$1 == n { print $2 }')"
	exit
fi
bin=$("$here/build.sh" image)
wanted=("$@")
if [[ $# == 0 || " $* " == *" envoy "* ]]; then envoy=$("$here/envoy.sh"); fi
if [[ $# == 0 ]]; then mapfile -t wanted < <(images | awk '{ print $1 }'); fi
mapfile -t built < <(images | awk -v bin="$bin/" 'index($3, bin) == 1 { print $1 }' | grep -xF "$(printf '%s\n' "${wanted[@]}")" || true)
[[ ${#built[@]} == 0 ]] || "$here/build.sh" "${built[@]}" >/dev/null
mkdir -p "$cache/images" "$state/images"
authority
echo 'root:x:0:0:root:/:/bin/false' >"$state/passwd" # Envoy asks who it is
for name in "${wanted[@]}"; do
	read -r _ version program path < <(images | awk -v n="$name" '$1 == n') || fail "make the image $name" "there is none; there are $(images | awk '{ printf "%s%s", sep, $1; sep = ", " }')"
	[[ -f $program ]] || fail "make the image $name" "$program is not there, or names no file: make e2e sets it"
	mapfile -t list < <(files "$name" "$program" "$path")
	case $name in
	sluice | engine) archive=$state/images/$name.tar && rm -f "$archive" && echo "$tag" >"$state/tag" ;;
	*) archive=$cache/images/$name-$({ readlink -f "$program" && stat -L -c '%s %Y' "$program" && readlink -f "$bin/image" && echo "${list[@]}"; } | sha256sum | cut -c1-12).tar ;;
	esac
	[[ -f $archive ]] || "$bin/image" -o "$archive" -name "$(called "$name" "$version")" -entry "$path" "${list[@]}"
	echo "$archive"
done
