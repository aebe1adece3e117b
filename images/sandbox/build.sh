#!/bin/sh
# Build the root file system of a sandbox image from Debian packages, without a registry:
#
#   images/sandbox/build.sh base|desktop FILE.tar          # also writes FILE.cdx.json, the SBOM
#   docker import FILE.tar dovecote-sandbox:base
#
# Needs root, mmdebstrap, python3 with pip, and the keys of Debian (debian-archive-keyring).
set -eu
here=$(cd "$(dirname "$0")" && pwd)
variant=${1:?base or desktop} out=${2:?the tar file to write}
suite=${DEBIAN_SUITE:-trixie}
case $variant in
  base) lists="$here/base.packages" ;;
  desktop) lists="$here/base.packages $here/desktop.packages" ;;
  *) echo "there is no variant $variant: base or desktop" >&2; exit 2 ;;
esac

wheels=$(mktemp -d)
trap 'rm -rf "$wheels"' EXIT
python3 -m pip download --quiet --no-deps --only-binary=:all: --require-hashes \
  --dest "$wheels" --requirement "$here/wheels.txt"
# shellcheck disable=SC2086
packages=$(cat $lists | paste -sd,)
mmdebstrap --variant=minbase --include="$packages" \
  --customize-hook="sh '$here/install.sh' \"\$1\" $variant '$wheels'" \
  --customize-hook='rm -rf "$1"/usr/share/doc/* "$1"/usr/share/man/* "$1"/var/cache/apt/*' \
  "$suite" "$out" ${DEBIAN_MIRROR:+"$DEBIAN_MIRROR"}
cd "$here/../.." && python3 -m scripts.sbom "$out" > "${out%.tar}.cdx.json"
