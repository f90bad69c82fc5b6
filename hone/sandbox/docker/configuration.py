"""Configuration and labels of a sandbox's container, as the Engine API takes them."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hone.sandbox.contract import ProviderUnavailable, SandboxSpec
from hone.sandbox.docker.engine import OWNER_LABEL
from hone.sandbox.docker.images import Image
from hone.sandbox.init.bundle import BUNDLE_TARGET, command
from hone.sandbox.network import PROXY_PATH, PROXY_PORT, parse_allowed
from hone.sandbox.owners import boot_id, is_dead

Bind = tuple[str, str]  # (path on the host, path inside)

INODES_PER_MIB = 256  # limit on files per MiB of a sandbox's disk
LEASE_LABEL = "hone.lease"  # the sandbox's name under its owner
_BOOT_LABEL = "hone.boot"  # boot id of the owner's machine

_PERIOD_NS = 1_000_000_000


def check(spec: SandboxSpec) -> None:
    """Raise ProviderUnavailable for a spec that this provider cannot serve; see also `check_paths`."""
    if spec.snapshot:
        raise ProviderUnavailable("the docker provider has no snapshots", retryable=False)
    spec.check_paths()
    parse_allowed(spec.network)


def configure(
    spec: SandboxSpec, image: Image, bundle: Path, labels: Mapping[str, str], sockets: Sequence[Bind]
) -> dict[str, Any]:
    """Return the body of POST /containers/create for a sandbox; `sockets` are its proxy and tunnel."""
    limits = spec.limits
    label = f"hone-sandbox:{labels[OWNER_LABEL]}/{labels[LEASE_LABEL]}"
    relay = (str(PROXY_PORT), PROXY_PATH) if spec.network else ()
    # process 1 must not inherit the image's variables for the dynamic loader
    loader_variables = [f"{key}=" for key in image.env if key.startswith("LD_")]
    # of /tmp and the image's volumes; the memory limit also bounds the number of files
    tmpfs = f"rw,exec,nosuid,nodev,size={limits.disk_mib}m"
    mounts = [(str(mount.source.resolve()), posixpath.normpath(mount.target)) for mount in spec.mounts]
    binds = [(str(bundle.resolve()), BUNDLE_TARGET), *mounts, *sockets]
    return {
        "Image": image.id,
        "Entrypoint": command(label, "0", "0", str(limits.disk_mib), "0", *relay),
        "Cmd": [],
        "Env": loader_variables,
        "WorkingDir": "/",
        "Labels": dict(labels),
        "Healthcheck": {"Test": ["NONE"]},
        "Tty": False,
        "OpenStdin": True,
        "StdinOnce": True,  # when it closes, process 1 exits, and with it the container
        "AttachStdin": True,
        "AttachStdout": True,
        "AttachStderr": True,
        "NetworkDisabled": True,
        "HostConfig": {
            "AutoRemove": True,
            "LogConfig": {"Type": "none", "Config": {}},  # standard output is the channel
            "NetworkMode": "none",
            "IpcMode": "private",
            "CapDrop": ["ALL"],
            "SecurityOpt": ["no-new-privileges"],
            "Memory": limits.memory_mib << 20,
            "MemorySwap": limits.memory_mib << 20,  # memory and swap together: no swap
            "PidsLimit": limits.pids + 1 + bool(relay),  # process 1 and the relay come on top
            "NanoCpus": int(limits.cpus * _PERIOD_NS),
            "ShmSize": limits.disk_mib << 20,
            "Tmpfs": {**dict.fromkeys(image.volumes, f"{tmpfs},mode=0755"), "/tmp": f"{tmpfs},mode=1777"},  # noqa: S108
            "Mounts": [_bind(source, target) for source, target in binds],
        },
    }


def _bind(source: str, target: str) -> dict[str, Any]:
    return {
        "Type": "bind",
        "Source": source,
        "Target": target,
        "ReadOnly": True,
        # mounts below the source would be writable
        "BindOptions": {"NonRecursive": True, "Propagation": "rprivate"},
    }


def labels(owner: str, sandbox: str, run: str) -> dict[str, str]:
    """Return the labels of one sandbox's container."""
    return {OWNER_LABEL: owner, _BOOT_LABEL: boot_id(), LEASE_LABEL: sandbox, "hone.run": run}


def is_orphan(labels: Mapping[str, str]) -> bool:
    """Return whether a container's owner is known to be dead. Only its own machine can tell, by its pid."""
    return labels.get(_BOOT_LABEL) == boot_id() and is_dead(labels[OWNER_LABEL])
