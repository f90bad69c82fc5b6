"""An image registry on a free port, and pushing to it."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.services.process import Service, require, reserve_port, running, service_folder

_CONFIG = """
version: 0.1
log: {{level: warn}}
storage:
  filesystem: {{rootdirectory: {folder}/images}}
  delete: {{enabled: true}}
http: {{addr: "{address}"}}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Registry:
    """A registry that speaks plain HTTP and asks for no password."""

    address: str  # 127.0.0.1:port
    service: Service

    def push(self, archive: Path, name: str) -> str:
        """Push an archive in the format of `docker save` as NAME:TAG; return its name with the address."""
        require("skopeo")
        full = f"{self.address}/{name}"
        target = f"docker://{full}"
        command = ["skopeo", "--insecure-policy", "copy", "--quiet", "--dest-tls-verify=false"]
        command += [f"docker-archive:{archive}", target]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        if done.returncode != 0:
            raise RuntimeError(f"cannot push {name}: {done.stderr[-2000:]}")
        return full


@contextlib.contextmanager
def image_registry() -> Iterator[Registry]:
    """A registry whose images lie in a private directory; manifests and layers may be deleted."""
    require("docker-registry")
    with service_folder() as folder:
        address = f"127.0.0.1:{reserve_port()}"
        (folder / "config.yml").write_text(_CONFIG.format(folder=folder, address=address))
        command = ["docker-registry", "serve", f"{folder}/config.yml"]
        with running(command, folder, lambda: _answers(address)) as service:
            yield Registry(address=address, service=service)


def _answers(address: str) -> bool:
    try:
        return httpx.get(f"http://{address}/v2/").is_success
    except httpx.TransportError:
        return False
