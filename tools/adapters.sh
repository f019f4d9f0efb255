#!/bin/sh
# Install the packages whose environments the tests of adapters play: tools/adapters.sh VENV AT
#
# AT becomes a virtual environment on top of VENV, the one that tools/bootstrap.sh made. It sees all packages of VENV,
# and has some fifty more (200 MB, in two minutes), pinned in tests/support/adapters. So VENV stays unchanged. Exit
# status 0 means that AT holds them all, at versions that fit constraints.txt. Running it again is safe at any time.
set -eu

VENV=$1
AT=$2
cd "$(dirname "$0")/.."

[ -x "$AT/bin/python" ] || "$VENV/bin/python" -m venv "$AT"
site() { "$1" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }
# addsitedir also reads the .pth files there; one of them is this checkout.
printf 'import site; site.addsitedir("%s")\n' "$(site "$VENV/bin/python")" >"$(site "$AT/bin/python")/below.pth"
"$AT/bin/python" -m pip install --quiet --disable-pip-version-check --no-input --progress-bar off \
    -c constraints.txt -r tests/support/adapters/requirements.txt gymnasium websockets
"$AT/bin/python" -m pip install --quiet --disable-pip-version-check --no-input --progress-bar off \
    --no-deps -r tests/support/adapters/openenv.txt
