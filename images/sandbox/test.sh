#!/bin/sh
# Run the docker provider's contract suite inside an image: images/sandbox/test.sh FILE.tar [pytest arguments].
# The tests start a private engine and import the image. With the variant desktop its tools are tested too.
set -eu
image=$(realpath "${1:?the tar file that build.sh wrote}")
shift
cd "$(dirname "$0")/../.."
tests=tests/contracts/providers/test_provider_contract.py
if tar -tf "$image" | grep -qx ./etc/dovecote/desktop.conf; then
  tests="$tests tests/contracts/providers/test_browser_tool.py
    tests/contracts/providers/test_computer_tool.py
    tests/contracts/providers/test_desktop_image.py"
fi
# shellcheck disable=SC2086
DOVECOTE_TEST_IMAGE=$image exec python3 -m pytest -q -n 0 -k docker "$@" $tests
