"""Every algorithm from one start model, on the quickstart's tasks, with seeds and intervals.

    python benchmarks/arena.py [--out runs/arena] [--stage algorithms] [--seeds 3] [--page docs/24-arena.md]

Each training is a process of its own and takes some minutes on two cores; all of them take hours. What is
finished is kept in the output folder, a training that was stopped goes on where it was, and `--budget-s`
stops before the next training would begin. The page is written from what is finished. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.parts.arena_cell import SECONDS, SPLITS
from benchmarks.parts.arena_page import Row, page, plot
from hone.evaluate import results
from hone.evaluate.runner import RESULTS, SUMMARY
from hone.evaluate.statistics import resolve_rate
from hone.train.metrics import read_metrics
from hone.utils.files import write_file

CELL = Path(__file__).parent / "parts" / "arena_cell.py"
GOAL = 0.7  # resolve rate on the training tasks, over WINDOW steps
WINDOW = 3


def name(algorithm: str, **options: object) -> list[str]:
    return [f"train.algorithm.name={algorithm}", *(f"train.algorithm.{k}={v}" for k, v in options.items())]


# The recipe's clip_high = 0.28 is removed where an algorithm has no such bound, or one of another size.
STAGES: Mapping[str, Mapping[str, Sequence[str]]] = {
    "algorithms": {
        "GRPO": name("grpo"),
        "Dr. GRPO": name("dr_grpo"),
        "RLOO": name("rloo"),
        "REINFORCE++": name("reinforce_pp"),
        "REINFORCE++ with group baseline": name("reinforce_pp", group_baseline="true"),
        "DAPO": [*name("dapo", overlong_tokens=300, overlong_cache=100), "rollout.replace_constant_groups=1"],
        "GSPO": [*name("gspo"), "train.loss.clip_high=4e-4"],
        "CISPO": [*name("cispo"), "train.loss.clip_high=4.0"],
        "OPO": name("opo"),
        "step-wise": [*name("step_wise"), "progress.enabled=true", "progress.coefficient=0.5"],
    },
    "corrections": {
        f"staleness {staleness}, {kind}": [
            *name("grpo"),
            f"rollout.max_staleness={staleness}",
            *(
                []
                if kind == "none"
                else ["train.loss.old_logprobs=recomputed", f"train.corrections.kind={kind}"]
            ),
        ]
        for staleness in (0, 2, 8)
        for kind in ("none", "truncate", "mask")
    },
    "adapters": {
        "all weights": name("grpo"),
        "LoRA, rank 16": [*name("grpo"), "train.lora.rank=16", "train.optimizer.lr=3e-3"],
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One training."""

    stage: str
    name: str
    seed: int
    sets: Sequence[str]
    folder: Path = field(default_factory=Path)

    @property
    def done(self) -> bool:
        return all((self.folder / split / SUMMARY).is_file() for split in SPLITS)


def cells(arguments: argparse.Namespace) -> Iterator[Cell]:
    """Yield all trainings, seed by seed, so that every row has a result as early as possible."""
    stages = [arguments.stage] if arguments.stage else list(STAGES)
    for stage in stages:
        for seed in range(arguments.seeds):
            for label, sets in STAGES[stage].items():
                if arguments.only and label not in arguments.only:
                    continue
                folder = arguments.out / stage / "".join(c if c.isalnum() else "-" for c in label) / str(seed)
                yield Cell(
                    stage=stage,
                    name=label,
                    seed=seed,
                    sets=[*sets, f"seed={seed}", *arguments.set],
                    folder=folder,
                )


def run(start: str, folder: Path, sets: Sequence[str]) -> str | None:
    """Run one training; return the last line of its log if it failed."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "log").open("ab") as log:
        done = subprocess.run([sys.executable, CELL, start, folder, *sets], stdout=log, stderr=log)
    lines = (folder / "log").read_text(errors="replace").strip().splitlines()
    return None if done.returncode == 0 else (lines or ["no output"])[-1]


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


def samples(folders: Sequence[Path], split: str) -> dict[str, list[bool]]:
    """Return task -> whether each seed's model resolved it."""
    found: dict[str, list[bool]] = {}
    for folder in folders:
        for task, resolved in results.samples_by_task(
            results.read(folder / split / RESULTS).values()
        ).items():
            found.setdefault(task, []).extend(resolved)
    return found


def rows_of(arguments: argparse.Namespace, stage: str, failed: Mapping[str, str]) -> list[Row]:
    """Return one row per name of a stage with at least one finished training."""
    by_name: dict[str, list[Cell]] = {}
    for cell in cells(arguments):
        if cell.stage == stage and cell.done:
            by_name.setdefault(cell.name, []).append(cell)
    rows: list[Row] = []
    for label, done in by_name.items():
        folders = [cell.folder for cell in done]
        reached = [tokens_to_goal(folder / "run") for folder in folders]
        rows.append(
            Row(
                name=label,
                seeds=[resolve_rate(samples([folder], "test")).rate for folder in folders],
                test=resolve_rate(samples(folders, "test")),
                unseen=resolve_rate(samples(folders, "test_unseen")),
                tokens_to_goal=[tokens for tokens in reached if tokens is not None],
                seconds=sum(float((folder / SECONDS).read_text()) for folder in folders) / len(folders),
                failed=failed.get(label, ""),
            )
        )
    return sorted(rows, key=lambda row: -row.test.rate)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("runs/arena"), help="folder of the results")
    parser.add_argument("--stage", choices=list(STAGES), help="default: all, in order")
    parser.add_argument("--only", action="append", help="name of a row; may be repeated; default: all")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--budget-s", type=float, default=float("inf"), help="begin nothing after so long")
    parser.add_argument("--page", type=Path, help="Markdown page to write, its plots beside it")
    parser.add_argument("--set", action="append", default=[], help="a.b=value of the recipe, for all rows")
    arguments = parser.parse_args()
    began = time.monotonic()
    start = arguments.out / "start"
    if not (start / SPLITS[-1] / SUMMARY).is_file() and (error := run("-", start, arguments.set)):
        raise SystemExit(f"the start model failed: {error} (see {start / 'log'})")
    failed: dict[str, str] = {}
    for cell in cells(arguments):
        if cell.done or time.monotonic() - began > arguments.budget_s:
            continue
        print(f"{cell.stage}: {cell.name}, seed {cell.seed} ...", file=sys.stderr, flush=True)
        if error := run(str((start / "run" / "start").resolve()), cell.folder, cell.sets):
            failed[cell.name] = error
            print(f"  failed: {error}", file=sys.stderr, flush=True)
    before = {split: resolve_rate(samples([start], split)) for split in SPLITS}
    stages = {stage: rows_of(arguments, stage, failed) for stage in STAGES}
    finished = {stage: rows for stage, rows in stages.items() if rows}
    if arguments.page:
        write_file(arguments.page, page(finished, before["test"], before["test_unseen"]))
        for stage, rows in finished.items():
            write_file(arguments.page.with_name(f"arena-{stage}.svg"), plot(rows, before["test"]))
    record: dict[str, Any] = {
        "benchmark": "arena",
        "before": before["test"].rate,
        "rows": {
            stage: {row.name: [round(row.test.rate, 4), len(row.seeds)] for row in rows}
            for stage, rows in finished.items()
        },
        "failed": failed,
    }
    print(json.dumps(record))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
