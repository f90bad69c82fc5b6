"""A process that owns sandboxes and busies them until it is killed: `owner.py STATE CACHE COUNT`."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from hone.sandbox import SandboxSpec, make_provider
from hone.sandbox.settings import SandboxSettings


async def main(state: str, cache: str, count: str) -> None:
    settings = SandboxSettings(state_dir=Path(state), cache_dir=Path(cache))
    async with make_provider(settings) as provider:
        sandboxes = [await provider.start(SandboxSpec()) for _ in range(int(count))]
        for sandbox in sandboxes:
            await sandbox.exec("setsid sleep 1000 & echo data > /tmp/file")
        print("ready", flush=True)
        await asyncio.gather(*(sandbox.exec("sleep 1000", timeout_s=1000) for sandbox in sandboxes))


asyncio.run(main(*sys.argv[1:]))
