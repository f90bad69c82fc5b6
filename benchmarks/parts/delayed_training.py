"""One training with a slow engine: `python delayed_training.py MODEL OUT DELAY_S [a.b=value ...]`.

Trains MODEL by reinforcement learning on the quickstart's tasks in OUT. Each reply comes DELAY_S later than
the engine has it, as from a larger model on devices of its own. The last line is JSON: the seconds of
reinforcement learning, without the start of the process, and what was busy.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import hone.policy.local
from hone.config import resolve
from hone.launch.reporter import make_reporter
from hone.launch.rundir import claim, with_model
from hone.launch.runtime import open_runtime
from hone.launch.train import run_training
from hone.policy.engine import Completion, Sampling
from hone.policy.local import LocalEngine
from hone.rollout.ledger import Ledger
from hone.tasks.sources import load_splits
from hone.train import loop
from hone.train.metrics import read_metrics
from hone.types import Int32

RECIPE = Path(__file__).parents[2] / "recipes" / "quickstart.toml"


def delayed(delay_s: float) -> type[LocalEngine]:
    class Delayed(LocalEngine):
        async def generate(
            self, prompt_ids: Sequence[int] | Int32, sampling: Sampling, *, session: str
        ) -> Completion:
            reply = await super().generate(prompt_ids, sampling, session=session)
            await asyncio.sleep(delay_s)
            return reply

    return Delayed


async def train(model: Path, out: Path, sets: Sequence[str]) -> dict[str, Any]:
    settings = with_model(resolve(RECIPE, [f"run_dir={out}", *sets], command="train"), model)
    tasks = load_splits(settings.tasks).train
    seconds = 0.0
    original = loop.train

    async def timed(run: loop.TrainRun) -> None:
        nonlocal seconds
        began = time.monotonic()
        await original(run)
        seconds = time.monotonic() - began

    loop.train = timed  # pyright: ignore[reportPrivateLocalImportUsage]
    with make_reporter() as reporter:
        async with open_runtime(settings) as runtime:
            claim(settings)
            await run_training(settings, runtime, reporter, tasks=tasks)
    with Ledger.read(out) as ledger:
        entries = [entry for entry in ledger.entries() if entry.step is not None]
    metrics = read_metrics(out)
    return {
        "seconds": round(seconds, 2),
        "rollouts": len(entries),
        "staleness_max": max(entry.staleness or 0 for entry in entries),
        "wait_s": round(sum(record["wait_s"] for record in metrics), 2),
        "busy": {
            part: round(sum(record[f"busy/{part}"] for record in metrics) / len(metrics), 3)
            for part in ("engine", "sandbox", "trainer")
        },
    }


def main() -> int:
    model, out, delay_s, *sets = sys.argv[1:]
    hone.policy.local.LocalEngine = delayed(float(delay_s))
    print(json.dumps(asyncio.run(train(Path(model), Path(out), sets))))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
