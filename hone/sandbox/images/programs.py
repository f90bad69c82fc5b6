"""Child programs: killed with this process, and killed when the code that waits for them stops waiting."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Mapping, Sequence

from hone.sandbox.images.locks import Staging


@contextlib.asynccontextmanager
async def child(
    command: Sequence[str], made: Staging, *, stderr: int, env: Mapping[str, str] | None = None
) -> AsyncGenerator[tuple[asyncio.subprocess.Process, asyncio.Task[tuple[bytes, bytes]]]]:
    """Start a program in a staging directory; yield it and the task that collects its output.

    The program holds the lock of the directory until it is dead. When the block ends before the program, the
    program is killed.
    """
    process = await asyncio.create_subprocess_exec(
        *("setpriv", "--pdeathsig", "KILL", *command),
        cwd=made.directory,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=stderr,
        pass_fds=(made.lock.fd,),
        env=env,
    )
    output = asyncio.create_task(process.communicate())
    try:
        yield process, output
    finally:
        await kill(process, output)


async def kill(process: asyncio.subprocess.Process, output: asyncio.Task[object]) -> None:
    """Kill a program unless its output is complete, and wait for its end."""
    if not output.done():
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await asyncio.wait([output])
