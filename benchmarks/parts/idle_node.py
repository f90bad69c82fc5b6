"""A node server over a provider whose sandboxes do nothing: what is left is the cost of the server.

python -m benchmarks.parts.idle_node PORT STATE_DIR
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import uvloop

from hone.sandbox.node.node import NodeOptions
from hone.sandbox.node.server import run
from hone.sandbox.remote.server import Listening
from tests.sandbox.node.idle import IdleProvider

TOKEN = "benchmark"


class Idle(IdleProvider):
    """Whose sandboxes may end with the server."""

    async def __aexit__(self, *exc: object) -> None: ...


def main(port: int, state_dir: Path) -> None:
    options = NodeOptions(provider_name="idle", token=TOKEN, max_sandboxes=100_000)
    serving = run(
        Idle(),
        options,
        Listening(host="127.0.0.1", port=port),
        directory=state_dir,
        on_listening=lambda url: None,
    )
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serving)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
