#!/bin/sh
# Install Volery for this user: a node that lends this machine, and with the extra `learner` all that an operator needs.
#
#     curl -LsSf https://example.invalid/volery/install.sh | sh
#     curl -LsSf https://example.invalid/volery/install.sh | sh -s -- learner
#     curl -LsSf https://example.invalid/volery/install.sh | sh -s -- vllm
#
# Arguments are extras of the distribution (transformers, learner, tasks, lora, gguf, environments, tensorboard, wandb);
# without any it is `transformers`, the engine that works everywhere. `vllm` installs no torch here, and builds the
# environment in which vLLM runs (Linux with an NVIDIA GPU, 10 GB). `base` installs no engine.
#
# It finds uv or fetches it, picks torch for the CPU or for CUDA, gives Volery an environment of its own, runs
# `volery doctor`, and prints the next line. It never asks for root, and changes no file of your shell. Exit status 0
# means that `volery doctor` found nothing missing. Otherwise the last lines say what to type next. Running it again is
# safe at any time: it upgrades what is there, and keeps its extras. Only `base` takes extras away.
#
# Variables: VOLERY_FROM    a wheel, as a path or an address, instead of the package index; `.` is a checkout
#            VOLERY_INDEX   a package index that is searched before the usual one
#            VOLERY_PINS    file or address of the versions that were tested together; empty: the newest that fit
#            VOLERY_TORCH   backend of torch as uv names it (cpu, auto, cu128); empty: torch of the usual index
#            VOLERY_UV      address of uv's installer
#            VOLERY_PYTHON  Python for the environment, as uv takes it
set -eu

# OWNER: nothing is published yet. These are all the addresses that this script fetches anything from. An empty
# VOLERY_FROM means the distribution `volery` of the package index.
VOLERY_FROM=${VOLERY_FROM:-}
VOLERY_INDEX=${VOLERY_INDEX:-}
case $VOLERY_FROM in
    */ | . | ..) VOLERY_PINS=${VOLERY_PINS-$VOLERY_FROM/constraints.txt} ;;
    *) VOLERY_PINS=${VOLERY_PINS-https://example.invalid/volery/constraints.txt} ;;
esac
VOLERY_UV=${VOLERY_UV:-https://astral.sh/uv/install.sh}
INSTALLER=https://example.invalid/volery/install.sh

# Versions for which all compiled libraries have wheels.
VOLERY_PYTHON=${VOLERY_PYTHON:->=3.11,<3.14}

# libp2p 0.8 pins fastecdsa 2.3.2, which has no wheel for Linux and needs a compiler, GMP and Python's headers. It uses
# fastecdsa in a handshake that Volery does not offer. Version 3 has wheels and the same names.
OVERRIDES='fastecdsa>=3,<4'

# The disk that each part takes, measured on Debian 12 with Python and uv; that of CUDA is a round figure.
BASE_MB=400
CPU_MB=1300
LEARNER_MB=200
CUDA_MB=6000

say() { printf '%s\n' "volery: $*"; }

to_type() { printf '    %s\n' "$*"; } # a line of its own: it can be marked and copied whole

fail() { # fail SENTENCE LINE...: the lines are what to type
    printf '\n%s\n' "volery: $1" >&2
    shift
    for line in "$@"; do to_type "$line" >&2; done
    exit 1
}

quoted() { # quoted WORD: as a shell reads it
    case $1 in
        *[!A-Za-z0-9_./:@%+=-]* | '') printf "'%s'" "$(printf '%s' "$1" | sed "s/'/'\\\\''/g")" ;;
        *) printf '%s' "$1" ;;
    esac
}

find_again() { # find_again EXTRA...: sets AGAIN, the line that runs this once more as it was run now
    from=
    [ -z "$VOLERY_FROM" ] || from="VOLERY_FROM=$(quoted "$VOLERY_FROM") "
    fetch='curl -LsSf'
    command -v curl >/dev/null || fetch='wget -qO-'
    case $0 in
        *install.sh) AGAIN="${from}sh $(quoted "$0")${*:+ $*}" ;;
        *) AGAIN="$fetch $INSTALLER | ${from}sh${*:+ -s -- $*}" ;;
    esac
}

# shellcheck disable=SC2317  # a trap calls it
interrupted() {
    kill "${progress:-}" 2>/dev/null || true
    printf '\n%s\n' "volery: stopped. What was downloaded is kept. To go on, run this again:" >&2
    to_type "$AGAIN" >&2
    exit 130
}

# --- this machine ------------------------------------------------------------------------------------------------------

require_system() {
    case $(uname -s) in
        Linux | Darwin) ;;
        MINGW* | MSYS* | CYGWIN*)
            fail "Windows is not supported directly. Install WSL2, and run the same line in it:" "wsl --install" ;;
        *) fail "$(uname -s) is not supported. Volery runs on Linux, on macOS, and on Windows in WSL2." ;;
    esac
    if [ ! -d "${HOME:-}" ] || [ ! -w "$HOME" ]; then
        fail "the home directory (${HOME:-none}) cannot be written. Name another one, and run this again:" \
            "export HOME=/path/to/a/directory"
    fi
}

has_nvidia() { [ -e /proc/driver/nvidia ] || command -v nvidia-smi >/dev/null; }

choose_torch() {
    if [ -n "${VOLERY_TORCH+set}" ]; then
        say "torch: ${VOLERY_TORCH:-as the package index has it} (VOLERY_TORCH)"
    elif [ "$(uname -s)" = Darwin ]; then
        VOLERY_TORCH=
        say "torch: the build for macOS"
    elif has_nvidia; then
        VOLERY_TORCH=auto
        say "torch: for CUDA, since there is an NVIDIA driver (about 5 GB of disk)"
    else
        VOLERY_TORCH=cpu
        say "torch: for CPUs, since there is no NVIDIA driver (about 1.2 GB of disk)"
    fi
}

# --- uv ----------------------------------------------------------------------------------------------------------------

suits() { # suits UV: it runs, and knows the options that are used below
    "$1" tool install --help 2>/dev/null | grep -q -e '--torch-backend'
}

find_uv() { # sets UV
    for UV in uv "$HOME/.local/bin/uv" "$HOME/.cargo/bin/uv"; do
        if command -v "$UV" >/dev/null && suits "$UV"; then
            say "using $("$UV" --version)"
            return
        fi
    done
    fetch_uv
}

download() { # download ADDRESS FILE
    if command -v curl >/dev/null; then
        curl --proto '=https,http,file' -LsSf "$1" -o "$2"
    elif command -v wget >/dev/null; then
        wget -q "$1" -O "$2"
    else
        fail "curl or wget is needed to fetch uv. Install one of them as root, for example" "$(package_line curl)"
    fi
}

fetch_uv() {
    say "fetching uv from $VOLERY_UV"
    download "$VOLERY_UV" "$work/uv.sh" ||
        fail "uv, which installs Python programs, cannot be fetched from $VOLERY_UV.
Check the network, or install uv yourself, and run this again:" \
            "$AGAIN" "# uv: https://docs.astral.sh/uv/getting-started/installation/"
    UV_NO_MODIFY_PATH=1 UV_INSTALL_DIR=$HOME/.local/bin INSTALLER_NO_MODIFY_PATH=1 sh "$work/uv.sh" >"$log" 2>&1 ||
        explain_fetch
    UV=$HOME/.local/bin/uv
    suits "$UV" || fail "uv was fetched, but does not run, or is too old: $UV. Install a newer one:" \
        "# https://docs.astral.sh/uv/getting-started/installation/"
}

explain_fetch() {
    tail -n 15 "$log" >&2
    explain_full_disk
    fail "uv's installer failed; its last lines are above. Check the network, and run this again:" "$AGAIN"
}

explain_full_disk() { # ends the script if the log says that a disk is full
    if grep -q -i -E 'no space left|failure writing output|disk quota exceeded' "$log"; then
        fail "the disk is full: look at $HOME and ${TMPDIR:-/tmp}. Free some space, then run this again:" "$AGAIN"
    fi
}

# --- Volery ------------------------------------------------------------------------------------------------------------

requirement() { # requirement EXTRAS: what uv is asked for, by name or from a wheel
    extras=$(printf '%s' "$*" | tr ' ' ',')
    name="volery${extras:+[$extras]}"
    case $VOLERY_FROM in
        '') printf '%s' "$name" ;;
        *://*) printf '%s' "$name @ $VOLERY_FROM" ;;
        */ | . | ..) printf '%s' "$name @ file://$(cd "$VOLERY_FROM" && pwd)" ;;
        *) printf '%s' "$name @ file://$(cd "$(dirname "$VOLERY_FROM")" && pwd)/$(basename "$VOLERY_FROM")" ;;
    esac
}

get_pins() { # writes $work/pins.txt, without the library whose version is overridden
    case $VOLERY_PINS in
        '') : >"$work/all-pins.txt" ;;
        *://*) download "$VOLERY_PINS" "$work/all-pins.txt" ;;
        *) cp "$VOLERY_PINS" "$work/all-pins.txt" ;;
    esac || fail "the tested versions cannot be read from $VOLERY_PINS.
Check the network and run this again. Or take the newest versions, with the first line before:" \
        "export VOLERY_PINS=" "$AGAIN"
    grep -v '^fastecdsa==' "$work/all-pins.txt" >"$work/pins.txt" || true
}

require_space() { # require_space EXTRA...: for a first installation, before anything large is fetched
    place=$("$UV" tool dir)
    [ ! -d "$place/volery" ] || return 0
    while [ ! -d "$place" ]; do place=$(dirname "$place"); done
    needed=$BASE_MB
    case "$VOLERY_TORCH,$#" in
        *,0) ;;
        auto,*) needed=$CUDA_MB ;;
        *) needed=$CPU_MB ;;
    esac
    case " $* " in *' learner '*) needed=$((needed + LEARNER_MB)) ;; esac
    free_kb=$(df -Pk "$place" 2>/dev/null | tail -n 1 | tr -s ' ' | cut -d ' ' -f 4) || true
    case $free_kb in '' | *[!0-9]*) return 0 ;; esac # a file system that does not say
    free=$((free_kb * 1024 / 1000000))
    [ "$free" -ge "$needed" ] ||
        fail "$free MB are free at $place, and this takes $needed MB.
Free some space, then run this again:" "$AGAIN"
}

install_volery() { # install_volery EXTRA...
    printf '%s\n' "$OVERRIDES" >"$work/overrides.txt"
    get_pins
    wanted=$(requirement "$@")
    set -- tool install --upgrade --python "$VOLERY_PYTHON" --overrides "$work/overrides.txt" \
        --constraints "$work/pins.txt"
    [ -z "$VOLERY_TORCH" ] || set -- "$@" --torch-backend "$VOLERY_TORCH"
    [ -z "$VOLERY_INDEX" ] || set -- "$@" --index "$VOLERY_INDEX"
    say "installing $wanted in an environment of its own:"
    say "    $("$UV" tool dir)/volery"
    show_progress &
    progress=$!
    status=0
    "$UV" "$@" "$wanted" >"$log" 2>&1 || status=$?
    kill "$progress" 2>/dev/null || true
    [ "$status" = 0 ] || explain_failure
}

show_progress() { # a line every ten seconds, for as long as this script runs
    seconds=0
    while sleep 2 >/dev/null 2>&1 && kill -0 $$ 2>/dev/null; do
        seconds=$((seconds + 2))
        [ $((seconds % 10)) -eq 0 ] || continue
        say "installing for $seconds s: $(tail -n 1 "$log" | sed 's/^ *//' | cut -c 1-48)"
    done
}

explain_failure() {
    tail -n 25 "$log" >&2
    explain_full_disk
    if grep -q -i -E 'failed to build|command .*(cc|gcc|clang).* failed|no such file.*(cc|gcc)' "$log"; then
        fail "a library has no build for this machine, and compiling it failed (above). As root, run the
first line, and then run this again:" "$(compiler_line)" "$AGAIN"
    elif grep -q -i 'no interpreter found' "$log"; then
        fail "there is no Python $VOLERY_PYTHON, and uv could not fetch one. As root, run the first line,
and then run this again:" "$(package_line python3)" "$AGAIN"
    fi
    fail "the installation failed; uv's last lines are above. What was downloaded is kept.
Check the network, and run this again:" "$AGAIN"
}

package_line() { # package_line PACKAGE: how it is installed here
    if command -v apt-get >/dev/null; then echo "sudo apt-get update && sudo apt-get install -y $1"
    elif command -v dnf >/dev/null; then echo "sudo dnf install -y $1"
    elif command -v pacman >/dev/null; then echo "sudo pacman -S --needed $1"
    elif command -v apk >/dev/null; then echo "sudo apk add $1"
    elif [ "$(uname -s)" = Darwin ]; then echo "brew install $1"
    else echo "install $1 with your system's package manager"; fi
}

compiler_line() {
    if command -v apt-get >/dev/null; then package_line "gcc libc6-dev libgmp-dev python3-dev"
    elif command -v dnf >/dev/null; then package_line "gcc gmp-devel python3-devel"
    elif command -v pacman >/dev/null; then package_line "gcc gmp python"
    elif command -v apk >/dev/null; then package_line "gcc musl-dev gmp-dev python3-dev"
    elif [ "$(uname -s)" = Darwin ]; then echo "xcode-select --install; brew install gmp"
    else echo "install a C compiler, GMP with its headers, and Python's headers"; fi
}

find_volery() { # sets VOLERY: what a person types to start it
    folder=$("$UV" tool dir --bin)
    [ -x "$folder/volery" ] || fail "uv did not put volery into $folder. Its last lines:" "$(tail -n 3 "$log")"
    if [ "$(command -v volery)" = "$folder/volery" ]; then
        VOLERY=volery
    else
        VOLERY=$(quoted "$folder/volery")
    fi
    volery=$folder/volery
}

say_next() { # say_next STATUS: what doctor has found
    echo
    if [ "$1" != 0 ]; then
        say "Volery is installed, and something is missing (above). Once that is mended, look again:"
        to_type "$VOLERY doctor"
        return
    fi
    say "ready."
    if [ "$VOLERY" != volery ]; then
        say "So that \`volery\` is found, in this terminal and in new ones:"
        to_type "$(quoted "$UV") tool update-shell; export PATH=$(quoted "$(dirname "$volery")"):\"\$PATH\""
    fi
    case " $extras " in
        *' learner '*)
            say "To start a small swarm on this machine:"
            to_type "volery init my-swarm --example reverse" ;;
    esac
    say "To join a swarm, with the invite that its operator gave you:"
    to_type "volery join INVITE"
    if has_nvidia && [ "$with_vllm" = no ] && [ "$(uname -s)" = Linux ]; then
        say "On this machine's GPU, vLLM is several times as fast (10 GB more):"
        to_type "volery engines install vllm"
    fi
}

# --- extras ------------------------------------------------------------------------------------------------------------

read_arguments() { # read_arguments ARGUMENT...: sets extras, with_vllm and with_base
    with_vllm=no with_base=no extras=
    for extra in "$@"; do
        case $extra in
            vllm) with_vllm=yes ;;
            base) with_base=yes ;;
            *[!a-z]* | '')
                find_again
                fail "'$extra' is no extra. Without one, the line is" "$AGAIN" ;;
            *) add_extra "$extra" ;;
        esac
    done
}

add_extra() {
    case " $extras " in
        *" $1 "*) ;;
        *) extras="${extras:+$extras }$1" ;;
    esac
}

keep_extras() { # keep_extras NUMBER: adds what is installed, or the engine if nothing is, of NUMBER arguments
    [ "$with_base" = no ] || return 0
    receipt=$("$UV" tool dir)/volery/uv-receipt.toml
    if [ -f "$receipt" ]; then
        for extra in $(sed -n 's/.*name = "volery", extras = \[\([^]]*\)\].*/\1/p' "$receipt" | tr -d '",'); do
            add_extra "$extra"
        done
    elif [ "$1" = 0 ]; then
        add_extra transformers
    fi
}

main() {
    require_system
    read_arguments "$@"
    find_again "$@"
    work=$(mktemp -d) ||
        fail "no directory can be made in ${TMPDIR:-/tmp}. Free some space there, then run this again:" "$AGAIN"
    trap 'rm -rf "$work"' EXIT
    trap interrupted INT TERM
    log=$work/install.log
    : >"$log"
    find_uv
    keep_extras $#
    # shellcheck disable=SC2086  # extras are words
    set -- $extras
    if [ $# -gt 0 ]; then choose_torch; else VOLERY_TORCH=; fi
    require_space "$@"
    install_volery "$@"
    find_volery
    say "installed $("$volery" --version)"
    if [ "$with_vllm" = yes ]; then "$volery" engines install vllm; fi
    echo
    status=0
    "$volery" doctor || status=$?
    say_next "$status"
    exit "$status"
}

# The braces end here, so a script that was cut off does nothing.
{ main "$@"; }
