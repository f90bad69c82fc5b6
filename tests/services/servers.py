"""Node and pool servers of Hone, started by their commands."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import httpx

from tests.services.process import reserve_port, running, service_folder

_HONE = Path(sys.executable).with_name("hone")


@contextlib.contextmanager
def node_server(token_file: Path, provider: str, env: Mapping[str, str] | None = None) -> Iterator[str]:
    """`hone node` with state of its own; gives its address.

    Args:
        env: beside this process's own, such as DOCKER_HOST.
    """
    with service_folder() as folder:
        (folder / "run").mkdir(mode=0o700)
        command = [_HONE, "node", "--provider", provider, "--max-sandboxes", "48"]
        private = {"XDG_RUNTIME_DIR": f"{folder}/run", **(env or {})}
        with _serving([*command, "--token-file", token_file], folder, private) as url:
            yield url
        left = [path for path in (folder / "run").rglob("*") if not path.is_dir()]
        assert left == [], f"the node left {left}"


@contextlib.contextmanager
def pool_server(token_file: Path, node_token_file: Path, *nodes: str) -> Iterator[str]:
    """`hone pool` over nodes that take the token in the second file; gives its address."""
    with service_folder() as folder:
        command = [_HONE, "pool", "--nodes", ",".join(nodes), "--store", folder / "pool.sqlite"]
        tokens = ["--token-file", token_file, "--node-token-file", node_token_file]
        with _serving([*command, *tokens], folder, {}) as url:
            yield url


@contextlib.contextmanager
def _serving(command: list[str | Path], folder: Path, env: Mapping[str, str]) -> Iterator[str]:
    port = reserve_port()
    url = f"http://127.0.0.1:{port}"
    words = [*map(str, command), "--port", str(port)]
    with running(words, folder, lambda: _answers(url), env=env):
        yield url


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/healthz").is_success
    except httpx.TransportError:
        return False
