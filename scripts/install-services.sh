#!/usr/bin/env bash
# Installs the services that tests start for themselves: a Docker engine, podman, an image registry and the
# tools around them, Node.js, and the command-line agents that tests run. Asks first, except under CI=true and
# with --yes. Starts no service and enables none at boot. Instant when nothing is missing.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/packages.sh
yes= agents='qwen-code mini-swe-agent'
for option; do
    case $option in
    --yes) yes=true ;;
    --full) agents+=' qwen-code-acp qwen-code-small opencode codex claude-code gemini-cli openhands aider' ;;  # 3 GB, for `make test-full`
    esac
done

# program, and its package for apt, dnf, pacman and apk; "-" where there is none
table='
dockerd         docker.io       moby-engine         docker     docker-engine
docker-registry docker-registry docker-distribution -          docker-registry
podman          podman          podman              podman     podman
runc            runc            runc                runc       runc
crun            crun            crun                crun       crun
skopeo          skopeo          skopeo              skopeo     skopeo
umoci           umoci           umoci               umoci      umoci
buildah         buildah         buildah             buildah    buildah
ip              iproute2        iproute             iproute2   iproute2
pgrep           procps          procps-ng           procps-ng  procps-ng
patch           patch           patch               patch      patch
node            nodejs          nodejs              nodejs     nodejs
npm             npm             nodejs-npm          npm        npm
'
if command -v apt-get >/dev/null; then column=1
elif command -v dnf >/dev/null; then column=2
elif command -v pacman >/dev/null; then column=3
else column=4
fi

missing=() packages=()
while read -r -a row; do
    [ ${#row[@]} -gt 0 ] || continue
    program=${row[0]} package=${row[$column]}
    if PATH="$PATH:/usr/sbin:/sbin" command -v "$program" >/dev/null; then continue; fi
    missing+=("$program")
    [ "$package" = - ] || packages+=("$package")
done <<< "$table"

# --- services

install_services() {
    # Debian starts what it installs unless this file forbids it
    policy=/usr/sbin/policy-rc.d
    if [ "$column" -eq 1 ] && ! [ -e "$policy" ]; then
        printf '#!/bin/sh\nexit 101\n' > "$policy"
        chmod 755 "$policy"
        trap 'rm -f "$policy"' EXIT
    fi
    install_system "${packages[@]}"
    if command -v systemctl >/dev/null; then
        units=()
        for program in "${missing[@]}"; do
            case $program in
                dockerd) units+=(docker.service docker.socket containerd.service) ;;
                docker-registry) units+=(docker-registry.service) ;;
                podman) units+=(podman.{service,socket} podman-auto-update.{service,timer} podman-restart.service) ;;
            esac
        done
        for unit in "${units[@]}"; do
            systemctl disable --quiet "$unit" || true # not every distribution has each
        done
    fi
}

if [ ${#missing[@]} -gt 0 ]; then
    if [ "$(id -u)" -ne 0 ]; then
        say "missing: ${missing[*]}. Only root's tests start them, so nothing is installed"
    elif allowed "$(system_command "${packages[@]}")"; then
        install_services
    else
        say "missing: ${missing[*]}. Tests that start them are skipped; scripts/install-services.sh --yes installs them"
    fi
fi

for agent in $agents; do
    .venv/bin/hone agents prepare "$agent" >/dev/null || say "tests of $agent are skipped, and fail under CI"
done
