"""Asks servers for /healthz every 20 ms, in a process of its own, however late their answers are.

python -m benchmarks.parts.health_probe FILE PORT, until its standard input ends
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

EVERY_S, LIMIT_S = 0.02, 10.0
_REQUEST = b"GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n"
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass(frozen=True, slots=True)
class Answer:
    asked: float  # of the monotonic clock, which the processes of a machine share
    late_ms: float  # that the probe itself was, because the machine was busy
    waited_ms: float
    well: bool  # status 200


@contextlib.contextmanager
def probing(port: int, file: Path) -> Iterator[None]:
    """Ask a server of this machine while the block runs; `file` gets the answers."""
    command = [sys.executable, "-m", "benchmarks.parts.health_probe", str(file), str(port)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, cwd=Path(__file__).parents[2])
    try:
        yield
    finally:
        process.communicate(timeout=3 * LIMIT_S)


def answers(file: Path) -> list[Answer]:
    found: list[Answer] = []
    for line in file.read_text().splitlines():
        asked, late_ms, waited_ms, well = line.split()
        found.append(Answer(float(asked), float(late_ms), float(waited_ms), well == "1"))
    return found


async def _probe(port: int, file: IO[str]) -> None:
    """A question starts on time even while earlier ones wait: a pause delays all that fall into it."""
    idle: list[Streams] = []
    running: set[asyncio.Task[None]] = set()

    async def ask(due: float) -> None:
        asked, well = time.monotonic(), False
        with contextlib.suppress(OSError, EOFError, TimeoutError):
            async with asyncio.timeout(LIMIT_S):
                streams = idle.pop() if idle else await asyncio.open_connection("127.0.0.1", port)
                streams[1].write(_REQUEST)
                head = await streams[0].readuntil(b"}")
                well = b" 200 " in head[:16]
                idle.append(streams)
        late_ms, waited_ms = (asked - due) * 1e3, (time.monotonic() - asked) * 1e3
        file.write(f"{asked} {late_ms:.3f} {waited_ms:.3f} {well:d}\n")

    ended = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    due = time.monotonic()
    while not ended.done():
        task = asyncio.create_task(ask(due))
        running.add(task)
        task.add_done_callback(running.discard)
        due += EVERY_S
        await asyncio.sleep(due - time.monotonic())
    await asyncio.gather(*running)


def main() -> None:
    with Path(sys.argv[1]).open("w") as file:
        asyncio.run(_probe(int(sys.argv[2]), file))


if __name__ == "__main__":
    main()
