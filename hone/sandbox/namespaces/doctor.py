"""Probe what this machine can isolate and limit; name the command that fixes each problem."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from hone.sandbox.contract import Check, Health, Provider, ProviderUnavailable
from hone.sandbox.health import limit_checks, probe_sandbox
from hone.sandbox.namespaces import cgroups
from hone.sandbox.namespaces.host_user import can_change_user
from hone.sandbox.namespaces.rootfs import TERMINALS_MAX, kernel

_IMAGE_KERNEL = (6, 6)  # user attributes on tmpfs, for overlays of image layers
_OPTIONS_KERNEL = (6, 8)  # net.core.optmem_max of each network namespace
_INSTALL = "apt-get install bubblewrap"
_TRANSIENT = ("temporarily", "Cannot allocate", "No space left", "Too many open files")
_USERNS_SYSCTLS = (
    ("/proc/sys/kernel/unprivileged_userns_clone", "0", "sysctl -w kernel.unprivileged_userns_clone=1"),
    (
        "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
        "1",
        "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0",
    ),
    ("/proc/sys/user/max_user_namespaces", "0", "sysctl -w user.max_user_namespaces=15000"),
)


def require_bubblewrap() -> str:
    """Return the path of bwrap. Raises ProviderUnavailable: there is no fallback without isolation."""
    path = shutil.which("bwrap")
    if path is None:
        raise ProviderUnavailable(
            f"bubblewrap is missing, and Hone runs nothing without isolation; install it: {_INSTALL}",
            retryable=False,
        )
    return path


def require_image_kernel() -> None:
    """Raise ProviderUnavailable if the kernel cannot mount images with an upper layer in memory."""
    if kernel() < _IMAGE_KERNEL:
        wanted, found = ".".join(map(str, _IMAGE_KERNEL)), os.uname().release
        raise ProviderUnavailable(
            f"images need Linux {wanted} or newer, this is {found}; use image 'host', or the docker provider",
            retryable=False,
        )


def userns_fix() -> str:
    """Return the command that allows user namespaces on this machine; "" if no known setting forbids them."""
    for path, blocked, fix in _USERNS_SYSCTLS:
        file = Path(path)
        if file.exists() and file.read_text().strip() == blocked:
            return fix
    return ""


def start_error(reason: str) -> ProviderUnavailable:
    """Return the error for a sandbox that did not start."""
    if fix := userns_fix():
        reason = f"user namespaces are disabled on this machine; allow them: {fix}"
    else:
        reason = f"a sandbox could not be started: {reason}"
    return ProviderUnavailable(reason, retryable=any(word in reason for word in _TRANSIENT))


def enforced(roots: Mapping[str, str]) -> dict[str, str]:
    """Return {limit or isolation: how it is enforced} on a machine with these cgroups."""
    return {
        "memory": "cgroup" if "memory" in roots else "rlimit and watchdog",
        "pids": "cgroup" if "pids" in roots else "rlimit",
        "cpus": "cgroup" if "cpu" in roots else "whole cores, by affinity",
        "disk": "tmpfs size",
        "output": "process 1",
        "sockets": "cgroup and count" if cgroups.limits_sockets(roots) else "count, except their buffers",
        "socket options": "network namespace" if kernel() >= _OPTIONS_KERNEL else "none before Linux 6.8",
        "terminals": f"devpts, {TERMINALS_MAX} of a sandbox",
        "machine stores": "seccomp",  # asynchronous I/O, compiled filters, huge pages, flow labels
        "shared files": "overlays" if can_change_user() else "overlays, except device nodes without root",
        "network": "namespace",
        "isolation": "user, pid, mount, net, ipc and uts namespaces",
    }


async def health(provider: Provider) -> Health:
    """Return the checks of this machine. Opens `provider`, which must not be open."""
    path = shutil.which("bwrap")
    if path is None:
        check = Check(name="bubblewrap", ok=False, detail="bwrap is not on PATH", fix=_INSTALL)
        return Health(checks=(check,))
    checks = [Check(name="bubblewrap", ok=True, detail=path)]
    checks += await probe_sandbox(provider, image="", isolation_fix=userns_fix())
    if checks[1].ok:  # isolation
        roots = cgroups.find_roots()
        fix = "" if roots else "systemd-run --user --scope -p Delegate=yes hone ..."
        checks += [_images_check(), *limit_checks(enforced(roots), fix)]
    return Health(checks=tuple(checks))


def _images_check() -> Check:
    """Return whether sandboxes can start from images on this machine."""
    try:
        require_image_kernel()
    except ProviderUnavailable as lack:
        return Check(name="images", ok=False, detail=str(lack), required=False)
    path = shutil.which("skopeo")
    if path is None:
        detail = "skopeo is not on PATH, so images cannot be downloaded"
        return Check(name="images", ok=False, detail=detail, fix="apt-get install skopeo", required=False)
    return Check(name="images", ok=True, detail=path, required=False)
