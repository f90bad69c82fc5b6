"""Settings of the sandbox room."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from hone.sandbox.contract import Limits
from hone.settings import Mark, Settings


class SandboxSettings(Settings):
    """Where sandboxes come from and what each may use."""

    provider: Literal["namespaces", "docker", "pool"] = "namespaces"
    """What makes sandboxes: `namespaces` (bubblewrap on this machine), `docker` (a Docker or podman
    engine), or `pool` (a pool server and its nodes)."""

    docker_url: str = ""
    """Engine of the provider `docker`, such as unix:///run/podman/podman.sock; default $DOCKER_HOST, else
    unix:///var/run/docker.sock."""

    docker_image: str = "python:3.11"
    """Image that stands for `host` where the provider is `docker`; it needs bash, git, python3 and pytest."""

    pool_url: str = ""
    """Address of the pool server, such as http://head-node:18090; needed by the provider `pool`."""

    pool_token_file: Path | None = None
    """File with the token of the pool server; default: none is sent."""

    pool_ca_file: Path | None = None
    """Certificate authority (PEM) of an https pool and its nodes; default: the system's."""

    pool_certificate_file: Path | None = None
    """This client's certificate (PEM), for a pool that asks for one (mutual TLS)."""

    pool_key_file: Path | None = None
    """Private key (PEM) of pool_certificate_file; default: it lies in the same file."""

    lease_ttl_s: float = Field(default=60.0, ge=1.0)
    """Seconds after which a pool takes a sandbox back from a client that no longer renews it."""

    queue_timeout_s: float = Field(default=600.0, ge=0.0)
    """Seconds that a start may wait in the queue of a full pool."""

    images_gib: float = Field(default=100.0, gt=0)
    """GiB that images may take on this machine; the least recently used ones are removed above it."""

    memory_mib: int = Field(default=512, gt=0)
    """MiB of memory for all processes of one sandbox, its files in /tmp and in the private layer included."""

    pids: int = Field(default=128, gt=0)
    """Processes and threads that one sandbox may have at a time."""

    cpus: float = Field(default=1.0, gt=0)
    """Cores' worth of time that one sandbox may use."""

    disk_mib: int = Field(default=256, gt=0)
    """MiB that one sandbox may write (private layer, /tmp and /dev/shm together)."""

    output_kib: int = Field(default=256, gt=0)
    """KiB kept of each stream of one command, half from its head and half from its tail."""

    max_concurrent_starts: Annotated[int, Mark.SAME_RESULTS] = Field(default=4, gt=0)
    """Sandboxes being started at a time; further starts wait."""

    start_timeout_s: Annotated[float, Mark.SAME_RESULTS] = Field(default=30.0, gt=0)
    """Seconds a sandbox may take to become ready."""

    state_dir: Annotated[Path | None, Mark.SAME_RESULTS] = None
    """Directory of what lives while a provider is open; default $XDG_RUNTIME_DIR/hone or /tmp/hone-<uid>."""

    cache_dir: Annotated[Path | None, Mark.SAME_RESULTS] = None
    """Directory of the sandboxes' Python layer, kept between runs; default $XDG_CACHE_HOME/hone."""

    def limits(self) -> Limits:
        """The limits of one sandbox."""
        return Limits(
            memory_mib=self.memory_mib,
            pids=self.pids,
            cpus=self.cpus,
            disk_mib=self.disk_mib,
            output_kib=self.output_kib,
        )
