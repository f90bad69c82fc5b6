"""Another process that owns busy sandboxes until it is killed."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from hone.sandbox import SandboxSpec, make_provider
from hone.sandbox.settings import SandboxSettings


@contextlib.contextmanager
def owner_process(settings: SandboxSettings, count: int) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process with `count` busy sandboxes; kill it at the end."""
    command = [sys.executable, "-m", __name__, settings.model_dump_json(), str(count)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield process
        process.kill()


async def main(settings_json: str, count: str) -> None:
    async with make_provider(SandboxSettings.model_validate_json(settings_json)) as provider:
        sandboxes = [await provider.start(SandboxSpec(run="killed-run")) for _ in range(int(count))]
        for sandbox in sandboxes:
            await sandbox.exec("setsid sleep 1000 & trap '' TERM HUP; echo data > file")
        print("ready", flush=True)
        await asyncio.gather(*(sandbox.exec("sleep 1000", timeout_s=1000) for sandbox in sandboxes))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
