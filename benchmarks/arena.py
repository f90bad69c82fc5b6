"""Algorithms from one start model, on the quickstart's tasks and on harder ones, with seeds and intervals.

    python benchmarks/arena.py [--out runs/arena] [--stage algorithms] [--seeds 3] [--jobs 1]
        [--page docs/25-arena.md]

Each training is a process of its own and takes some minutes on two cores; all of them take hours. One line of
`--results` tells what a training reached or why it failed, and the next call runs those that have none or
failed; a training that was stopped goes on where it was. `--jobs` trainings run at a time. `--budget-s`
stops before the next training would begin, and with 0 only the page is written again. Each gain is against
the start model of its own training: another machine may make another one of the same recipe. The last line
is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import hashlib
import json
import sys
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.parts.arena_cell import SECONDS, SPLITS
from benchmarks.parts.arena_page import MARK, plot, section
from benchmarks.parts.arena_results import (
    START,
    Key,
    Result,
    Table,
    add_result,
    is_done,
    read_results,
    tables,
)
from benchmarks.parts.arena_stages import STAGES, Start
from hone.cli.errors import Interrupted
from hone.cli.interrupts import stoppable
from hone.evaluate import results
from hone.evaluate.runner import RESULTS, SUMMARY
from hone.train.metrics import read_metrics
from hone.utils.concurrency import task_group
from hone.utils.files import write_file

CELL = Path(__file__).parent / "parts" / "arena_cell.py"
KEPT = Path(__file__).parent / "results" / "arena.jsonl"
GOAL = 0.7  # resolve rate on the training tasks, over WINDOW steps
WINDOW = 3
WEIGHTS = "model.safetensors"
GO_ON = "The same command goes on."


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One training: of a start model, or by reinforcement learning."""

    stage: str
    name: str
    seed: int
    sets: Sequence[str]
    folder: Path

    @property
    def key(self) -> Key:
        return self.stage, self.name, self.seed

    @property
    def done(self) -> bool:
        return all((self.folder / split / SUMMARY).is_file() for split in SPLITS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A start model, or why there is none."""

    path: str = ""
    digest: str = ""
    error: str = ""


def cells(arguments: argparse.Namespace) -> Iterator[Cell]:
    """Yield all trainings by RL, seed by seed, so that every row has a result as early as possible."""
    for stage in [arguments.stage] if arguments.stage else list(STAGES):
        shared = [*arguments.set, *STAGES[stage].start.sets]
        for seed in range(arguments.seeds):
            for label, sets in STAGES[stage].rows.items():
                if arguments.only and label not in arguments.only:
                    continue
                folder = arguments.out / stage / "".join(c if c.isalnum() else "-" for c in label) / str(seed)
                sets_of_cell = [*sets, f"seed={seed}", *shared]
                yield Cell(stage=stage, name=label, seed=seed, sets=sets_of_cell, folder=folder)


def missing(arguments: argparse.Namespace, known: dict[Key, Result]) -> list[Cell]:
    """Return the trainings that have to run. Raises SystemExit for results of other settings."""
    found: list[Cell] = []
    for cell in cells(arguments):
        result = known.get(cell.key)
        if result is None or not is_done(result):
            found.append(cell)
        elif list(result.sets) != list(cell.sets):
            raise SystemExit(
                f"{arguments.results} holds {cell.name}, seed {cell.seed}, of {cell.stage} with other "
                f"settings ({' '.join(result.sets)}): give those, or another --results"
            )
    return found


async def run(start: str, cell: Cell) -> str:
    """Run one training to its end; return the last line of its log if it failed, else an empty text.

    When cancelled, it stops the training and waits until that has removed its sandboxes.
    """
    cell.folder.mkdir(parents=True, exist_ok=True)
    with (cell.folder / "log").open("ab") as log:
        command = [sys.executable, str(CELL), start, str(cell.folder), *cell.sets]
        process = await asyncio.create_subprocess_exec(
            *command, stdout=log, stderr=log, start_new_session=True
        )
        try:
            code = await process.wait()
        except asyncio.CancelledError:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            await process.wait()
            raise
    lines = (cell.folder / "log").read_text(errors="replace").strip().splitlines()
    return "" if code == 0 else (lines or ["no output"])[-1]


def tokens_to_goal(run_dir: Path) -> int | None:
    """Return the trained tokens until the mean resolve rate of WINDOW steps reached GOAL; None: never."""
    rates: list[float] = []
    tokens = 0.0
    for record in read_metrics(run_dir):
        tokens += record.get("trained_tokens", 0)
        rates.append(record["resolve_rate"])
        if len(rates) >= WINDOW and sum(rates[-WINDOW:]) / WINDOW >= GOAL:
            return round(tokens)
    return None


def result_of(cell: Cell, start: str) -> Result:
    """Return the result of a finished training."""
    resolved = {
        split: {
            task: samples[0]
            for task, samples in results.samples_by_task(
                results.read(cell.folder / split / RESULTS).values()
            ).items()
        }
        for split in SPLITS
    }
    return Result(
        stage=cell.stage,
        name=cell.name,
        seed=cell.seed,
        start=start,
        sets=cell.sets,
        tokens_to_goal=None if cell.stage == START else tokens_to_goal(cell.folder / "run"),
        seconds=float((cell.folder / SECONDS).read_text()),
        test=resolved["test"],
        test_unseen=resolved["test_unseen"],
    )


def failure_of(cell: Cell, start: str, error: str) -> Result:
    """Return the result of a training that failed."""
    return Result(stage=cell.stage, name=cell.name, seed=cell.seed, start=start, sets=cell.sets, error=error)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arena:
    """The trainings of one call, `--jobs` at a time, and the results that they add to."""

    arguments: argparse.Namespace
    known: dict[Key, Result]
    places: asyncio.Semaphore
    deadline: float  # of time.monotonic; nothing begins later

    @contextlib.asynccontextmanager
    async def place(self) -> AsyncGenerator[bool]:
        """Wait for a place among the running trainings; yield whether there is time left to begin."""
        async with self.places:
            yield time.monotonic() < self.deadline

    async def make(self, start: Start) -> Model:
        """Return a start model, made if it is missing; its result is added."""
        folder = self.arguments.out / start.folder
        sets = [*self.arguments.set, *start.sets]
        cell = Cell(stage=START, name=START, seed=0, sets=sets, folder=folder)
        async with self.place() as in_time:
            if not in_time:
                return Model(error="no time was left to make the start model")
            print(f"{start.folder} ...", file=sys.stderr, flush=True)
            if not cell.done and (error := await run("-", cell)):
                return Model(error=f"the start model failed: {error}")
        model = (folder / "run" / START).resolve()
        digest = hashlib.sha256((model / WEIGHTS).read_bytes()).hexdigest()[:16]
        if (START, digest, 0) not in self.known:
            self.add(result_of(dataclasses.replace(cell, name=digest), digest))
        return Model(path=str(model), digest=digest)

    async def train(self, cell: Cell, making: asyncio.Task[Model]) -> None:
        """Train a cell from the start model that is being made, and add its result or its error."""
        model = await making
        async with self.place() as in_time:
            if not in_time:
                return
            print(f"{cell.stage}: {cell.name}, seed {cell.seed} ...", file=sys.stderr, flush=True)
            error = model.error or ("" if cell.done else await run(model.path, cell))
        if error:
            print(f"  {cell.name}, seed {cell.seed}, failed: {error}", file=sys.stderr, flush=True)
        self.add(failure_of(cell, model.digest, error) if error else result_of(cell, model.digest))

    def add(self, result: Result) -> None:
        add_result(self.arguments.results, self.known, result)


async def run_missing(arguments: argparse.Namespace, known: dict[Key, Result]) -> None:
    """Run the trainings without a result; the results so far are kept when this is cancelled."""
    arena = Arena(
        arguments=arguments,
        known=known,
        places=asyncio.Semaphore(arguments.jobs),
        deadline=time.monotonic() + arguments.budget_s,
    )
    wanted = missing(arguments, known)
    async with task_group() as tasks:
        making: dict[str, asyncio.Task[Model]] = {}
        for cell in wanted:
            start = STAGES[cell.stage].start
            if start.folder not in making:
                making[start.folder] = tasks.create_task(arena.make(start))
            tasks.create_task(arena.train(cell, making[start.folder]))


def write_page(page: Path, found: Sequence[Table]) -> None:
    """Replace what follows MARK on the page, and write a plot beside it for each stage with rows."""
    text = page.read_text() if page.is_file() else "# Arena\n\n"
    write_file(page, text.split(MARK)[0] + MARK + "\n\n" + section(found))
    for table in found:
        if table.before:
            write_file(page.with_name(f"arena-{table.stage}.svg"), plot(table.rows, table.before))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("runs/arena"), help="folder of the trainings")
    parser.add_argument("--results", type=Path, default=KEPT, help="a line per finished training")
    parser.add_argument("--stage", choices=list(STAGES), help="default: all, in order")
    parser.add_argument("--only", action="append", help="name of a row; may be repeated; default: all")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1, help="trainings at a time; each uses two cores")
    parser.add_argument("--budget-s", type=float, default=float("inf"), help="begin nothing after so long")
    parser.add_argument("--page", type=Path, help=f"Markdown page; what follows {MARK} is replaced")
    parser.add_argument("--set", action="append", default=[], help="a.b=value of the recipe, for all rows")
    arguments = parser.parse_args()
    if arguments.jobs < 1:
        parser.error("--jobs must be at least 1")
    known = read_results(arguments.results)
    if arguments.budget_s > 0:
        with stoppable(GO_ON):
            asyncio.run(run_missing(arguments, known))
    found = tables(known.values(), STAGES)
    if arguments.page:
        write_page(arguments.page, found)
    record = {
        "benchmark": "arena",
        "before": {table.stage: round(table.before.rate, 4) for table in found if table.before},
        "rows": {
            table.stage: {row.name: [round(row.test.rate, 4), len(row.seeds)] for row in table.rows}
            for table in found
        },
        "failed": [[*result.key, result.error] for table in found for result in table.failures],
    }
    print(json.dumps(record))
    return 0


if __name__ == "__main__":
    try:
        raise SystemExit(main())
    except Interrupted as stopped:
        raise SystemExit(f"stopped: {stopped}") from None
