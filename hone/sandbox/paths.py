"""Checks of the paths in a spec, shared by all providers."""

from __future__ import annotations

import posixpath

from hone.sandbox.contract import SandboxSpec

# Directories inside that a spec cannot use.
RESERVED = ("/proc", "/dev", "/sys", "/opt/hone", "/run/hone")


def check_paths(spec: SandboxSpec, reserved: tuple[str, ...] = RESERVED) -> None:
    """Raise ValueError for an invalid path inside, OSError for a missing path of the host.

    An empty `workdir` is valid: it stands for the image's own.
    """
    for path in [*filter(None, [spec.workdir]), *(mount.target for mount in spec.mounts)]:
        clean = posixpath.normpath(path)
        if not path.startswith("/") or clean == "/" or ".." in path.split("/"):
            raise ValueError(f"a path inside a sandbox must be absolute and without '..', not {path!r}")
        if any(clean == name or clean.startswith(name + "/") for name in reserved):
            raise ValueError(f"{path!r} is in a directory that sandboxes reserve")
    for source in [*(mount.source for mount in spec.mounts), *([spec.layer] if spec.layer else [])]:
        if not source.exists():
            raise FileNotFoundError(f"{source} does not exist")
    if spec.layer and not spec.layer.is_dir():
        raise NotADirectoryError(f"{spec.layer} is not a directory")
