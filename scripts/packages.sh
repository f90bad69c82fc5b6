# Sourced: installs system packages with whatever package manager this machine has.

say() { printf '==> %s\n' "$*"; }
fail() { printf 'install: %s\n' "$*" >&2; exit 1; }

as_root=()
[ "$(id -u)" -eq 0 ] || as_root=(sudo -n)

system_command() {
    if command -v apt-get >/dev/null; then echo "apt-get install -y --no-install-recommends $*"
    elif command -v dnf >/dev/null; then echo "dnf install -y $*"
    elif command -v pacman >/dev/null; then echo "pacman -S --noconfirm --needed $*"
    elif command -v apk >/dev/null; then echo "apk add $*"
    fi
}

# allowed COMMAND...: true under CI, with --yes, or when the person at the terminal agrees
allowed() {
    local answer=
    if [ "${CI:-}" = true ] || [ "${yes:-}" = true ]; then return 0; fi
    [ -t 0 ] || return 1
    read -r -p "==> run '$*'? [y/N] " answer
    [[ $answer = [yY]* ]]
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
