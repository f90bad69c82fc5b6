#!/usr/bin/env bash
# Makes .venv with everything Hone needs. Running it again is instant until pyproject.toml, constraints.txt
# or this file changes.
set -euo pipefail
cd "$(dirname "$0")/.."

stamp=.venv/.hone-installed
wanted=$(cat pyproject.toml constraints.txt scripts/install.sh | sha256sum | cut -d' ' -f1)

say() { printf '==> %s\n' "$*"; }
fail() { printf 'install: %s\n' "$*" >&2; exit 1; }

# --- system packages: bubblewrap makes the sandboxes, git the tasks' repositories

missing=()
command -v bwrap >/dev/null || missing+=(bubblewrap)
command -v git >/dev/null || missing+=(git)

as_root=()
[ "$(id -u)" -eq 0 ] || as_root=(sudo -n)

system_command() {
    if command -v apt-get >/dev/null; then echo "apt-get install -y --no-install-recommends $*"
    elif command -v dnf >/dev/null; then echo "dnf install -y $*"
    elif command -v pacman >/dev/null; then echo "pacman -S --noconfirm --needed $*"
    elif command -v apk >/dev/null; then echo "apk add $*"
    fi
}

install_system() {
    local command
    command=$(system_command "$@")
    [ -n "$command" ] || fail "install $* with your system's package manager, then run this again"
    if [ "$(id -u)" -ne 0 ] && ! sudo -n true 2>/dev/null; then
        fail "$* is missing and needs root: sudo $command"
    fi
    say "$command"
    if [[ $command == apt-get* ]]; then
        "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get update -q </dev/null
    fi
    # shellcheck disable=SC2086
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive $command </dev/null
}

[ ${#missing[@]} -eq 0 ] || install_system "${missing[@]}"

if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ]; then
    exit 0
fi

# --- a Python that can make virtual environments

usable() { "$1" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

find_python() {
    local name path
    for name in "${PYTHON:-python3}" python3.11 python3.12 python3.13 python3.14 /usr/bin/python3; do
        path=$(command -v "$name") || continue
        if usable "$path"; then echo "$path"; return; fi
    done
    return 1
}

if ! [ -x .venv/bin/python ] || ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
    python=$(find_python) || {
        command -v apt-get >/dev/null || fail "install Python 3.11 or newer (with venv), then run this again"
        install_system python3 python3-venv
        python=$(find_python) || fail "install Python 3.11 or newer (with venv), then run this again"
    }
    say "making .venv with $("$python" --version)"
    rm -rf .venv
    "$python" -m venv .venv
fi

# --- packages

pip() { .venv/bin/python -m pip --disable-pip-version-check "$@" </dev/null; }

constraints=()
pip install -qq --upgrade pip
if ! command -v nvidia-smi >/dev/null || ! nvidia-smi -L >/dev/null 2>&1; then
    constraints=(-c constraints.txt)
    say "no GPU here: installing torch for the CPU"
    pip install -qq "${constraints[@]}" torch
fi
say "installing hone and its tools (a few minutes)"
pip install -qq "${constraints[@]}" -e '.[dev]'
.venv/bin/pyright --version </dev/null >/dev/null # unpacks what it needs now rather than in the tests

echo "$wanted" > "$stamp"
say "ready: .venv/bin/hone"
