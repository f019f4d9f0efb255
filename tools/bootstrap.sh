#!/bin/sh
# Build or refresh the virtual environment: tools/bootstrap.sh VENV [EXTRA[,EXTRA...]]
#
# Without extras it holds what a node with the engine on transformers needs; `learner` adds what a learner needs, and
# `dev` what a change and its tests need. With '' as the extras it holds the base alone, for a node on vLLM.
#
# Needs a POSIX shell, and Python >= 3.11 somewhere on PATH (or named by PYTHON=). Exit status 0 means that VENV holds
# this checkout, editable, with its extras at the versions of constraints.txt. Otherwise the last lines printed say what
# to type next. Running it again is safe at any time, also after an interruption.
#
# Variables: PYTHON       interpreter for the environment (path or name)
#            TORCH_INDEX  where to look for torch first; empty: only pip's own indexes. If it is not set, Linux machines
#                         without an NVIDIA driver take the CPU build: PyPI's brings about 3 GB of CUDA libraries.
set -eu

VENV=$1
EXTRAS=${2-transformers}
PACKAGE=.${EXTRAS:+[$EXTRAS]}
AGAIN="sh tools/bootstrap.sh $VENV ${EXTRAS:-''}"
MIN_PYTHON="3.11"
CPU_TORCH_INDEX=https://download.pytorch.org/whl/cpu

cd "$(dirname "$0")/.."

say() { printf '%s\n' "volery: $*"; }

fail() {
    printf '\n%s\n' "volery: $1" >&2
    shift
    for line in "$@"; do printf '    %s\n' "$line" >&2; done
    exit 1
}

# --- the interpreter ---------------------------------------------------------------------------------------------------

suits() { # suits PYTHON: it runs (a pyenv shim may not) and is new enough
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

find_python() {
    if [ -n "${PYTHON:-}" ]; then
        suits "$PYTHON" || fail "PYTHON=$PYTHON does not run, or is older than Python $MIN_PYTHON. Name another:" \
            "PYTHON=/path/to/python3 $AGAIN"
        return
    fi
    for PYTHON in python3 python3.11 python3.12 python3.13 python3.14 python; do
        if suits "$PYTHON"; then return; fi
    done
    fail "no Python >= $MIN_PYTHON on PATH (python3 here: $(python3 --version 2>&1 || echo none)). Install one, for example" \
        "$(python_advice)" "or say where it is:  PYTHON=/path/to/python3 $AGAIN"
}

python_advice() {
    case $(uname -s) in
        Darwin) echo "brew install python@3.12" ;;
        *) if command -v apt-get >/dev/null; then echo "sudo apt-get install python3 python3-venv python3-dev"; else
            echo "your system's package python3.12, or https://docs.astral.sh/uv: uv python install 3.12"; fi ;;
    esac
}

version_of() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])'; }

# --- compilation: fastecdsa, under libp2p, needs a C compiler, Python's headers and GMP ------------------------------

compiles() { # compiles HEADER LINK_FLAGS INCLUDE_DIR
    printf '#include <stdio.h>\n#include <%s>\nint main(void) { return 0; }\n' "$1" >"$probe/probe.c"
    # shellcheck disable=SC2086  # flags are words
    cc ${CFLAGS:-} -I"$3" -o "$probe/probe" "$probe/probe.c" ${LDFLAGS:-} $2 >/dev/null 2>&1
}

missing_parts() { # words among: venv compiler headers gmp
    if [ ! -x "$VENV/bin/pip" ] && ! "$PYTHON" -c 'import ensurepip, venv' 2>/dev/null; then echo venv; fi
    if [ -x "$VENV/bin/python" ] && "$VENV/bin/python" -c 'import fastecdsa' 2>/dev/null; then return; fi
    probe=$(mktemp -d)
    include=$("$PYTHON" -c 'import sysconfig; print(sysconfig.get_path("include"))')
    if compiles stdlib.h "" .; then
        compiles Python.h "" "$include" || echo headers
        compiles gmp.h -lgmp . || echo gmp
    else
        echo compiler
        [ -e "$include/Python.h" ] || echo headers
        # Without a compiler nothing can be linked; apt and its kind do nothing for packages that are already there.
        echo gmp
    fi
    rm -rf "$probe"
}

use_homebrew_gmp() {
    if command -v brew >/dev/null && prefix=$(brew --prefix gmp 2>/dev/null); then
        export CFLAGS="${CFLAGS:-} -I$prefix/include" LDFLAGS="${LDFLAGS:-} -L$prefix/lib"
    fi
}

debian_packages() { # missing parts -> package names
    for part in "$@"; do
        case $part in
            compiler) echo gcc libc6-dev ;;
            gmp) echo libgmp-dev ;;
            headers) echo "python$(version_of "$PYTHON")-dev" ;;
            venv) echo "python$(version_of "$PYTHON")-venv" ;;
        esac
    done | tr '\n' ' '
}

is_debian_python() { case $("$PYTHON" -c 'import sys; print(sys.base_prefix)') in /usr) true ;; *) false ;; esac; }

install_debian_packages() {
    # shellcheck disable=SC2046  # package names are words
    install_debian_package_set $(debian_packages "$@")
}

install_debian_package_set() {
    [ "$(id -u)" = 0 ] || fail "Debian packages are missing. As root, or with sudo, run" "sudo apt-get install -y $*"
    say "installing Debian packages: $*"
    export DEBIAN_FRONTEND=noninteractive
    apt-get install -y -qq --no-install-recommends "$@" >/dev/null 2>&1 ||
        { apt-get update -qq && apt-get install -y -qq --no-install-recommends "$@" >/dev/null; } ||
        fail "apt-get could not install them. Run it yourself to see why:" "apt-get update && apt-get install -y $*"
}

require_system_parts() {
    parts=$(missing_parts | tr '\n' ' ')
    [ -n "$parts" ] || return 0
    # A Python from elsewhere brings its own headers and venv; no Debian package can add them.
    case "$parts" in *venv* | *headers*)
        if command -v apt-get >/dev/null && ! is_debian_python; then
            fail "$PYTHON lacks: $parts. It is not Debian's; reinstall it complete, or take another one:" \
                "PYTHON=/usr/bin/python3 $AGAIN"
        fi ;;
    esac
    if command -v apt-get >/dev/null; then
        # shellcheck disable=SC2086
        install_debian_packages $parts
        still=$(missing_parts | tr '\n' ' ')
        [ -z "$still" ] || fail "still missing after installing packages: $still"
    elif command -v dnf >/dev/null; then
        fail "missing: $parts. As root, run" "dnf install -y gcc gmp-devel python3-devel"
    elif command -v pacman >/dev/null; then
        fail "missing: $parts. As root, run" "pacman -S --needed gcc gmp python"
    elif command -v apk >/dev/null; then
        fail "missing: $parts. As root, run" "apk add gcc musl-dev gmp-dev python3-dev"
    elif [ "$(uname -s)" = Darwin ]; then
        fail "missing: $parts. Run" "xcode-select --install; brew install gmp"
    else
        fail "missing: $parts. Install a C compiler, GMP with its headers and Python's headers, then run" "$AGAIN"
    fi
}

# --- the environment ---------------------------------------------------------------------------------------------------

pip_install() { # all output goes to a log, whose end is shown if it fails
    status=0
    show_progress &
    progress=$!
    "$VENV/bin/python" -m pip install --disable-pip-version-check --no-input --progress-bar off "$@" >>"$log" 2>&1 ||
        status=$?
    kill "$progress" 2>/dev/null || true
    return "$status"
}

show_progress() { # every half minute a line, for as long as this script runs: an installation can take ten minutes
    ticks=0
    while sleep 2 >/dev/null 2>&1 && kill -0 $$ 2>/dev/null; do
        ticks=$((ticks + 1))
        [ $((ticks % 15)) -ne 0 ] ||
            say "installing for $((ticks * 2)) s; last line of the log: $(tail -n 1 "$log" | cut -c 1-80)"
    done
}

install_cpu_torch() {
    [ "$(uname -s)" = Linux ] && [ ! -e /proc/driver/nvidia ] && ! command -v nvidia-smi >/dev/null || return 0
    say "no NVIDIA driver here: taking the CPU build of torch"
    TORCH_INDEX=$CPU_TORCH_INDEX
}

offer_sandbox() { # only the tests of programs in a sandbox, and the task `code`, need bubblewrap
    [ "$(uname -s)" = Linux ] && ! command -v bwrap >/dev/null || return 0
    case ",$EXTRAS," in *,dev,*) ;; *) return 0 ;; esac
    if command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
        # The system's python3 is what sandboxed programs run on.
        # In a subshell, which `fail` ends: everything else works without it.
        (install_debian_package_set bubblewrap python3-minimal) || true
    else
        say "bubblewrap is not installed; tests of the task \`code\` will fail without: sudo apt-get install -y bubblewrap"
    fi
}

offer_browser() { # the tests of the report's page need a browser without a screen; 400 MB, half a minute
    case ",$EXTRAS," in *,dev,*) ;; *) return 0 ;; esac
    for browser in chromium chromium-browser google-chrome; do
        if command -v "$browser" >/dev/null; then return 0; fi
    done
    if command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
        (install_debian_package_set chromium) || true
    elif command -v apt-get >/dev/null; then
        say "Chromium is not installed; tests of the report's page will fail without: sudo apt-get install -y chromium"
    else
        say "Chromium is not on PATH; tests of the report's page will fail without. Install it as \`chromium\`."
    fi
}

install_torch() {
    [ -n "${TORCH_INDEX+set}" ] || install_cpu_torch
    [ -n "${TORCH_INDEX:-}" ] || return 0
    # Alone and without dependencies, so that exactly one look-up goes to that index. An unreachable index is no
    # failure: the installation that follows takes torch from pip's own indexes.
    pip_install --no-deps --retries 1 -c constraints.txt --extra-index-url "$TORCH_INDEX" torch || true
}

make_environment() {
    if [ -d "$VENV" ] && ! suits "$VENV/bin/python"; then
        say "$VENV does not run any more; creating it again"
        rm -rf "$VENV"
    fi
    [ -x "$VENV/bin/pip" ] || "$PYTHON" -m venv "$VENV" || fail "$PYTHON could not make a virtual environment in $VENV"
}

drop_stale_stubs() {
    # trio-typing, which libp2p requires, has stubs of an old trio; type checkers prefer them to trio's own, newer
    # types.
    site=$("$VENV/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    rm -rf "$site/trio-stubs" "$site/outcome-stubs"
}

case $(uname -s) in
    MINGW* | MSYS* | CYGWIN*) fail "Windows is not supported directly. Use WSL2: https://learn.microsoft.com/windows/wsl/install" ;;
    Darwin) use_homebrew_gmp ;;
esac
find_python
require_system_parts
offer_sandbox
offer_browser
say "setting up $VENV${EXTRAS:+ [$EXTRAS]} with Python $(version_of "$PYTHON"): 1 to 10 minutes the first time;"
say "about 2 GB of disk, 3 GB with the extra \`dev\`, and 3 GB more for CUDA if there is an NVIDIA driver"
make_environment
log=$VENV/bootstrap.log
: >"$log"
install_torch
say "installing volery and what it needs (details: $log)"
pip_install -c constraints.txt -e "$PACKAGE" || {
    tail -n 25 "$log" >&2
    fail "pip could not install everything; the reason is above, the full log in $log. Mend it, then run" "$AGAIN"
}
drop_stale_stubs
say "ready. Next:  source $VENV/bin/activate  and then  volery --help"
