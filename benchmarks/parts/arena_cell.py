"""One training of the arena, in a process of its own.

    python arena_cell.py START OUT [full-window] [a.b=value ...]

Trains the model START by reinforcement learning on the curriculum's tasks that have no demonstration, in
OUT/run, and evaluates it on the tasks that no training saw. Continues an earlier call. START "-" makes the
shared start model in OUT/run instead, and evaluates it. With full-window, each step trains the oldest
rollouts that the bound on staleness allows, as if training took longer than the rollouts do.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import hone.launch.train
from hone.cli.interrupts import stoppable
from hone.config import RunSettings, resolve
from hone.launch.evaluate import run_evaluation
from hone.launch.reporter import Reporter, make_reporter
from hone.launch.rundir import claim, claimed, with_model
from hone.launch.runtime import open_runtime
from hone.launch.sft import make_start_model, split_demonstrated
from hone.launch.train import run_training
from hone.rollout.groups import Group
from hone.rollout.pipeline import Pipeline
from hone.tasks.sources import load_splits
from hone.tasks.splits import Splits
from hone.utils.files import write_file

RECIPE = Path(__file__).parents[2] / "recipes" / "quickstart.toml"
SPLITS = ("test", "test_unseen")
SECONDS = "seconds"
FULL_WINDOW = "full-window"


class FullWindow(Pipeline):
    """Trains a step only once every admitted group is complete."""

    async def collect(self, step: int) -> list[Group]:
        batch = await super().collect(step)
        if self._running:
            await asyncio.wait(self._running)
        return batch


def settings_of(out: Path, sets: Sequence[str], command: str) -> RunSettings:
    # the tasks and the start model are those of one seed; `seed` varies order, sampling and mini-batches
    shared = ["tasks.seed=0", "tiny_model.seed=0", "sft.seed=0", f"run_dir={out / 'run'}"]
    return resolve(RECIPE, [*shared, *sets], command=command)  # type: ignore[arg-type]


async def make_start(settings: RunSettings, splits: Splits, reporter: Reporter) -> Path:
    demonstrated, _ = split_demonstrated(settings, splits.train)
    async with open_runtime(settings) as runtime:
        claim(claimed(settings, "quickstart"))
        model, _ = await make_start_model(settings, runtime, reporter, demonstrated)
    return model.resolve()


async def train(settings: RunSettings, splits: Splits, reporter: Reporter) -> Path:
    _, practised = split_demonstrated(settings, splits.train)
    async with open_runtime(settings) as runtime:
        claim(settings)
        report = await run_training(settings, runtime, reporter, tasks=practised)
    return report.checkpoint


async def evaluate(settings: RunSettings, splits: Splits, model: Path, out: Path, reporter: Reporter) -> None:
    async with open_runtime(settings) as runtime:
        for split in SPLITS:
            tasks = getattr(splits, split)
            own = with_model(settings, model)
            await run_evaluation(own, runtime, reporter, tasks=tasks, out=out / split, title=split)


def main() -> int:
    start, out, *sets = sys.argv[1:]
    place = Path(out)
    if FULL_WINDOW in sets:
        sets.remove(FULL_WINDOW)
        hone.launch.train.Pipeline = FullWindow
    with stoppable("The same command goes on."), make_reporter() as reporter:
        began = time.monotonic()
        settings = settings_of(place, sets, "quickstart" if start == "-" else "train")
        splits = load_splits(settings.tasks)
        if start == "-":
            model = asyncio.run(make_start(settings, splits, reporter))
        else:
            settings = with_model(settings, Path(start))
            model = asyncio.run(train(settings, splits, reporter))
        write_file(place / SECONDS, f"{time.monotonic() - began:.1f}\n")
        asyncio.run(evaluate(settings, splits, model, place, reporter))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
