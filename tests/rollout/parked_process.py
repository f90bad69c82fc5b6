"""Parks the sandbox of a rollout, to be killed then: `python -m tests.rollout.parked_process ROOT`."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from tests.rollout.test_parking import Episode, one_place, parking_of, roll_out


async def main(root: Path) -> None:
    async with one_place(root) as context:

        async def gate(own: Episode) -> None:
            await parking_of(context).places.acquire((2.0,))
            print("parked", flush=True)
            await asyncio.Event().wait()

        await roll_out(context, [], gate)


asyncio.run(main(Path(sys.argv[1])))
