"""Settings of sandboxes."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from hone.sandbox.contract import LIMIT_BOUNDS, Limits
from hone.settings import Mark, Settings


def _limit(name: str, default: float) -> Any:
    """Return the field of a setting that becomes the field `name` of Limits."""
    low, high = LIMIT_BOUNDS[name]
    return Field(default=default, ge=low, le=high)


class SandboxSettings(Settings):
    """The provider of sandboxes and the limits of each."""

    provider: Literal["namespaces", "docker", "pool"] = "namespaces"
    """Provider of sandboxes: `namespaces` (bubblewrap on this machine), `docker` (a Docker or podman
    engine), or `pool` (a pool server and its nodes)."""

    docker_url: Annotated[str, Mark.SAME_RESULTS] = ""
    """Engine of the provider `docker`, such as unix:///run/podman/podman.sock; default $DOCKER_HOST, else
    unix:///var/run/docker.sock."""

    docker_image: str = "python:3.11"
    """Image used for `host` by the provider `docker`; it needs bash, git, python3 and pytest."""

    pool_url: Annotated[str, Mark.SAME_RESULTS] = ""
    """Address of the pool server, such as http://head-node:18090; needed by the provider `pool`."""

    pool_token_file: Annotated[Path | None, Mark.SAME_RESULTS] = None
    """File with the token of the pool server; default: send none."""

    pool_ca_file: Annotated[Path | None, Mark.SAME_RESULTS] = None
    """Certificate authority (PEM) of an https pool and its nodes; default: the system's."""

    pool_certificate_file: Annotated[Path | None, Mark.SAME_RESULTS] = None
    """This client's certificate (PEM), for a pool that asks for one (mutual TLS)."""

    pool_key_file: Annotated[Path | None, Mark.SAME_RESULTS] = None
    """Private key (PEM) of pool_certificate_file; default: in the same file."""

    lease_ttl_s: Annotated[float, Mark.SAME_RESULTS] = Field(default=60.0, ge=1.0)
    """Seconds after which a pool closes a sandbox whose client no longer renews its lease."""

    queue_timeout_s: Annotated[float, Mark.SAME_RESULTS] = Field(default=600.0, ge=0.0)
    """Longest wait of a start in the queue of a full pool, in seconds."""

    images_gib: Annotated[float, Mark.SAME_RESULTS] = Field(default=100.0, gt=0)
    """GiB of images kept on this machine; above that, the least recently used are removed."""

    memory_mib: int = _limit("memory_mib", 512)
    """MiB of memory for one sandbox: all its processes, and its files in /tmp and the private layer."""

    pids: int = _limit("pids", 128)
    """Maximum processes and threads of one sandbox."""

    cpus: float = _limit("cpus", 1.0)
    """CPU cores per sandbox."""

    disk_mib: int = _limit("disk_mib", 256)
    """MiB of files that one sandbox may write (private layer, /tmp and /dev/shm together)."""

    output_kib: int = _limit("output_kib", 256)
    """KiB kept of each output stream of a command, half of its head and half of its tail."""

    max_concurrent_starts: Annotated[int, Mark.SAME_RESULTS] = Field(default=4, gt=0)
    """Maximum concurrent starts of sandboxes; further starts wait."""

    start_timeout_s: Annotated[float, Mark.SAME_RESULTS] = Field(default=30.0, gt=0)
    """Seconds until a start fails that does not become ready."""

    state_dir: Annotated[Path | None, Mark.SAME_RESULTS] = None
    """Directory for files of open providers; default $XDG_RUNTIME_DIR/hone or /tmp/hone-<uid>."""

    cache_dir: Annotated[Path | None, Mark.SAME_RESULTS] = None
    """Directory of caches, kept between runs; default $XDG_CACHE_HOME/hone."""

    def limits(self) -> Limits:
        """Return the limits of one sandbox."""
        return Limits(**{field.name: getattr(self, field.name) for field in fields(Limits)})
