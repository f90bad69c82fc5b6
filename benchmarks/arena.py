"""Every algorithm from one start model, on the quickstart's tasks, with seeds and intervals.

    python benchmarks/arena.py [--out runs/arena] [--stage algorithms] [--seeds 3] [--page docs/25-arena.md]

Each training is a process of its own and takes some minutes on two cores; all of them take hours. One line of
`--results` tells what a finished training reached, and the next call runs those that have none; a training
that was stopped goes on where it was. `--budget-s` stops before the next training would begin, and with 0
only the page is written again. Each gain is against the start model of its own training: another machine may
make another one of the same recipe. The last line is JSON.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
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
from benchmarks.parts.arena_page import MARK, Row, plot, section
from hone.evaluate import results
from hone.evaluate.runner import RESULTS, SUMMARY
from hone.evaluate.statistics import compare, resolve_rate
from hone.train.metrics import read_metrics
from hone.utils.files import write_file
from hone.utils.jsonl import append_json, read_json_lines

CELL = Path(__file__).parent / "parts" / "arena_cell.py"
KEPT = Path(__file__).parent / "results" / "arena.jsonl"
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
        "PPO": name("ppo"),
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


WEIGHTS = "model.safetensors"
START = "start"  # the name of the result before reinforcement learning


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One training."""

    stage: str
    name: str
    seed: int
    sets: Sequence[str]
    folder: Path = field(default_factory=Path)

    @property
    def key(self) -> tuple[str, str, int]:
        return self.stage, self.name, self.seed

    @property
    def done(self) -> bool:
        return all((self.folder / split / SUMMARY).is_file() for split in SPLITS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a training reached: one line of the results."""

    stage: str
    name: str
    seed: int
    start: str  # digest of the weights that it began with
    sets: Sequence[str]
    test: Mapping[str, bool]  # task -> resolved, on tasks that no training saw
    test_unseen: Mapping[str, bool]  # on families that no training saw
    tokens_to_goal: int | None  # trained until the mean resolve rate of WINDOW steps reached GOAL
    seconds: float  # of reinforcement learning; of the start model, of making it

    @property
    def key(self) -> tuple[str, str, int]:
        return self.stage, self.name, self.seed


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
        **resolved,
    )


def read_results(path: Path) -> dict[tuple[str, str, int], Result]:
    """Return the results by (stage, name, seed); a start model's by (START, its digest, 0)."""
    lines = read_json_lines(path) if path.is_file() else []
    found = [Result(**record) for _, record in lines]
    return {result.key: result for result in found}


def start_model(arguments: argparse.Namespace, known: dict[tuple[str, str, int], Result]) -> tuple[Path, str]:
    """Return the start model, made if it is missing, and its digest; its result is added to `known`."""
    folder = arguments.out / START
    cell = Cell(stage=START, name=START, seed=0, sets=arguments.set, folder=folder)
    if not cell.done and (error := run("-", folder, arguments.set)):
        raise SystemExit(f"the start model failed: {error} (see {folder / 'log'})")
    model = (folder / "run" / START).resolve()
    digest = hashlib.sha256((model / WEIGHTS).read_bytes()).hexdigest()[:16]
    if (START, digest, 0) not in known:
        add(arguments.results, known, result_of(dataclasses.replace(cell, name=digest), digest))
    return model, digest


def add(path: Path, known: dict[tuple[str, str, int], Result], result: Result) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    append_json(path, dataclasses.asdict(result))
    known[result.key] = result


def rows_of(found: Sequence[Result], starts: Mapping[str, Result], failed: Mapping[str, str]) -> list[Row]:
    """Return one row per name, the best first."""
    by_name: dict[str, list[Result]] = {}
    for result in found:
        by_name.setdefault(result.name, []).append(result)
    rows: list[Row] = []
    for label, of_seeds in by_name.items():
        test = samples(of_seeds, "test")
        rows.append(
            Row(
                name=label,
                seeds=[sum(one.test.values()) / len(one.test) for one in of_seeds],
                test=resolve_rate(test),
                gain=compare(samples([starts[one.start] for one in of_seeds], "test"), test).gain,
                unseen=resolve_rate(samples(of_seeds, "test_unseen")),
                tokens_to_goal=[one.tokens_to_goal for one in of_seeds if one.tokens_to_goal is not None],
                seconds=sum(one.seconds for one in of_seeds) / len(of_seeds),
                failed=failed.get(label, ""),
            )
        )
    return sorted(rows, key=lambda row: -row.test.rate)


def samples(of_seeds: Sequence[Result], split: str) -> dict[str, list[bool]]:
    """Return task -> whether each seed's model resolved it."""
    found: dict[str, list[bool]] = {}
    for result in of_seeds:
        for task, resolved in getattr(result, split).items():
            found.setdefault(task, []).append(resolved)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("runs/arena"), help="folder of the trainings")
    parser.add_argument("--results", type=Path, default=KEPT, help="a line per finished training")
    parser.add_argument("--stage", choices=list(STAGES), help="default: all, in order")
    parser.add_argument("--only", action="append", help="name of a row; may be repeated; default: all")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--budget-s", type=float, default=float("inf"), help="begin nothing after so long")
    parser.add_argument("--page", type=Path, help=f"Markdown page; what follows {MARK} is replaced")
    parser.add_argument("--set", action="append", default=[], help="a.b=value of the recipe, for all rows")
    arguments = parser.parse_args()
    began = time.monotonic()
    known = read_results(arguments.results)
    failed: dict[str, str] = {}
    for cell in cells(arguments):
        if time.monotonic() - began >= arguments.budget_s:
            break
        if cell.key in known:
            if list(known[cell.key].sets) != list(cell.sets):
                raise SystemExit(
                    f"{arguments.results} holds {cell.name}, seed {cell.seed}, with other settings "
                    f"({' '.join(known[cell.key].sets)}): give those, or another --results"
                )
            continue
        model, digest = start_model(arguments, known)
        print(f"{cell.stage}: {cell.name}, seed {cell.seed} ...", file=sys.stderr, flush=True)
        if not cell.done and (error := run(str(model), cell.folder, cell.sets)):
            failed[cell.name] = error
            print(f"  failed: {error}", file=sys.stderr, flush=True)
            continue
        add(arguments.results, known, result_of(cell, digest))
    starts = {result.start: result for result in known.values() if result.stage == START}
    if not starts:
        raise SystemExit(f"{arguments.results} has no result of a start model")
    before = {split: resolve_rate(samples(list(starts.values()), split)) for split in SPLITS}
    stages = {
        stage: rows_of([r for r in known.values() if r.stage == stage], starts, failed) for stage in STAGES
    }
    finished = {stage: rows for stage, rows in stages.items() if rows}
    if arguments.page:
        text = arguments.page.read_text() if arguments.page.is_file() else "# Arena\n\n"
        made = section(finished, before["test"], before["test_unseen"])
        write_file(arguments.page, text.split(MARK)[0] + MARK + "\n\n" + made)
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
