"""What a sandbox's container is made of, in the words of the Engine API (POST /containers/create)."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from typing import Any

from hone.sandbox.contract import ProviderUnavailable, SandboxSpec
from hone.sandbox.docker.engine import Facts
from hone.sandbox.docker.images import Image
from hone.sandbox.docker.ownership import LEASE_LABEL, OWNER_LABEL
from hone.sandbox.init.bundle import BUNDLE_TARGET, Bundle
from hone.sandbox.network import PROXY_PATH, PROXY_PORT, parse_allowed
from hone.sandbox.paths import check_paths

Shown = tuple[str, str]  # (path on the host, path inside)

INODES_PER_MIB = 256  # files that a sandbox may make per MiB of its disk

_PERIOD_NS = 1_000_000_000


def check(spec: SandboxSpec) -> None:
    """Raise ProviderUnavailable for what this provider has not, what `check_paths` raises."""
    if spec.snapshot:
        raise ProviderUnavailable("the docker provider has no snapshots", retryable=False)
    check_paths(spec)
    parse_allowed(spec.network)


def configure(
    spec: SandboxSpec, image: Image, bundle: Bundle, labels: Mapping[str, str], sockets: Sequence[Shown]
) -> dict[str, Any]:
    """The body of the request that creates a sandbox's container; `sockets` are its ways out."""
    limits = spec.limits
    label = f"hone-sandbox:{labels[OWNER_LABEL]}/{labels[LEASE_LABEL]}"
    relay = (str(PROXY_PORT), PROXY_PATH) if spec.network else ()
    # the image's variables for its dynamic loader are not for the supervisor's
    loader_variables = [f"{key}=" for key in image.env if key.startswith("LD_")]
    return {
        "Image": image.id,
        "Entrypoint": bundle.command(label, "0", "0", str(limits.disk_mib), *relay),
        "Cmd": [],
        "Env": loader_variables,
        "WorkingDir": "/",
        "Labels": dict(labels),
        "Healthcheck": {"Test": ["NONE"]},
        "Tty": False,
        "OpenStdin": True,
        "StdinOnce": True,  # its end is the supervisor's end, and with process 1 everything inside ends
        "AttachStdin": True,
        "AttachStdout": True,
        "AttachStderr": True,
        "NetworkDisabled": True,
        "HostConfig": {
            "AutoRemove": True,
            "LogConfig": {"Type": "none", "Config": {}},  # standard output is our channel
            "NetworkMode": "none",
            "IpcMode": "private",
            "CapDrop": ["ALL"],
            "SecurityOpt": ["no-new-privileges"],
            "Memory": limits.memory_mib << 20,
            "MemorySwap": limits.memory_mib << 20,  # of both together: no swap
            "PidsLimit": limits.pids + 1 + bool(relay),  # supervisor and relay are not the sandbox's own
            "NanoCpus": int(limits.cpus * _PERIOD_NS),
            "ShmSize": limits.disk_mib << 20,
            "Tmpfs": _tmpfs(spec, image),
            "Mounts": [_bind(source, target) for source, target in (*_shown(spec, bundle), *sockets)],
        },
    }


def _tmpfs(spec: SandboxSpec, image: Image) -> dict[str, str]:
    """Where the writable layer is not written: /tmp, and the image's volumes."""
    size = f"size={spec.limits.disk_mib}m"  # the number of files is held by the limit on memory
    private = dict.fromkeys(image.volumes, f"rw,exec,nosuid,nodev,mode=0755,{size}")
    return private | {"/tmp": f"rw,exec,nosuid,nodev,mode=1777,{size}"}  # noqa: S108


def _shown(spec: SandboxSpec, bundle: Bundle) -> list[Shown]:
    mounts = [(str(mount.source.resolve()), posixpath.normpath(mount.target)) for mount in spec.mounts]
    return [(str(bundle.directory.resolve()), BUNDLE_TARGET), *mounts]


def _bind(source: str, target: str) -> dict[str, Any]:
    return {
        "Type": "bind",
        "Source": source,
        "Target": target,
        "ReadOnly": True,
        # what is mounted below the source would not be read-only
        "BindOptions": {"NonRecursive": True, "Propagation": "rprivate"},
    }


def enforced(facts: Facts) -> dict[str, str]:
    """limit or isolation -> how it is held, for a sandbox of this engine."""
    swap = "cgroup" if facts.swap else "cgroup, swap excepted"
    return {
        "memory": swap if facts.memory else "none",
        "pids": "cgroup" if facts.pids else "none",
        "cpus": "cgroup" if facts.cpus else "none",
        "disk": "watchdog and file size limit; /tmp and /dev/shm: tmpfs size",
        "output": "supervisor",
        "network": "namespace",
        "isolation": f"container of {facts.name}: no capabilities, no new privileges, "
        + ("seccomp" if facts.seccomp else "no seccomp"),
    }
