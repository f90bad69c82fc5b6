"""Rollouts of a run as files of other programs' formats, and such files as an evaluation of Hone."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hone.config import resolve
from hone.evaluate import results
from hone.evaluate.runner import RESULTS, SUMMARY
from hone.evaluate.settings import EvaluateSettings
from hone.integrations.atif import AtifError, from_atif, to_atif
from hone.integrations.hf_traces import to_hf_trace
from hone.integrations.otel import to_otel
from hone.launch.rundir import CONFIG
from hone.outcomes import Outcome
from hone.rollout.errors import StoreError
from hone.rollout.ledger import Ledger
from hone.rollout.store import Store
from hone.types import Trajectory
from hone.utils.errors import writing
from hone.view.web.report import write_report

Format = Literal["atif", "hf", "otel"]
Progress = Callable[[int, int], None]  # (done, total)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    out: Path
    written: int
    without_times: int  # rollouts whose agent never began, so that they have no spans


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    out: Path
    rollouts: int
    trainable: int  # whose tree holds the tokens that an engine sampled


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Which rollouts of a run; None: all."""

    task: str | None = None
    outcome: Outcome | None = None
    step: int | None = None  # of the training that consumed them

    def takes(self, trajectory: Trajectory) -> bool:
        return self.task in (None, trajectory.task_id) and self.outcome in (None, trajectory.outcome)


def export_rollouts(run: Path, out: Path, kind: Format, choice: Choice, progress: Progress) -> Exported:
    """Write the chosen rollouts of a run or an evaluation into the new directory `out`, a file each.

    A file is named by its rollout's id; a second rollout with an id (a sample that was tried again) gets a
    number. Raises StoreError when `out` holds files, or no rollout is chosen; LedgerError without a ledger
    for `choice.step`.
    """
    if not (run / "rollouts").is_dir():
        raise StoreError(
            f"{run} has no folder rollouts: name the directory of a run, of an evaluation or of one "
            "temperature of a sweep"
        )
    store, model = Store(run / "rollouts"), _model_name(run)
    names = store.names() if choice.step is None else _consumed(run, choice.step)
    taken, written = Counter[str](), 0
    with _new_directory(out) as partial:
        for number, name in enumerate(names, start=1):
            trajectory = store.load(name)
            if choice.takes(trajectory):
                stem = re.sub(r"[^\w.-]", "_", trajectory.rollout_id)[:150] or "rollout"
                taken[stem] += 1
                file = stem if taken[stem] == 1 else f"{stem}__{taken[stem]}"
                written += _write(partial / file, trajectory, kind, model)
            progress(number, len(names))
        if not taken:
            raise StoreError(
                f"none of the {len(names)} rollouts in {run} is chosen: choose another task, outcome or step"
            )
        if not written:
            raise StoreError(
                f"no agent of the {sum(taken.values())} chosen rollouts in {run} ever began, so there are no "
                "spans: choose others, or another format"
            )
    return Exported(out=out, written=written, without_times=sum(taken.values()) - written)


def import_rollouts(files: Sequence[Path], out: Path, progress: Progress) -> Imported:
    """Store the trajectories in ATIF files as an evaluation in the new directory `out`.

    Raises AtifError, which names the file that cannot be read; StoreError when `out` holds files.
    """
    rows: dict[results.Key, results.Result] = {}
    samples, trainable, agents = Counter[str](), 0, set[str]()
    with _new_directory(out) as partial:
        store = Store(partial / "rollouts")
        for number, file in enumerate(files, start=1):
            trajectory = read_atif(file)
            task, sample = trajectory.task_id, samples[trajectory.task_id]
            samples[task] += 1
            run_dir = store.save_sample(trajectory, index=sample, meta={"source": str(file)})
            rows[task, sample] = results.row(trajectory, sample, None, run_dir)
            results.append(partial / RESULTS, rows[task, sample])
            trainable += trajectory.sampler.trainable
            agents.add(trajectory.sampler.agent)
            progress(number, len(files))
        summary = results.summarise(
            rows.values(),
            EvaluateSettings(),
            model=", ".join(sorted(agents)),
            data="ATIF files",
            trainable=trainable == len(rows),
            args={"model": None},
        )
        (partial / SUMMARY).write_text(json.dumps(summary, indent=1) + "\n")
    write_report(out)
    return Imported(out=out, rollouts=len(rows), trainable=trainable)


def read_atif(file: Path) -> Trajectory:
    """Return the trajectory in an ATIF file. Raises AtifError."""
    try:
        return from_atif(json.loads(file.read_bytes()), name=file.stem)
    except (OSError, ValueError, RecursionError) as error:
        raise AtifError(f"{file} cannot be read as JSON ({error}): pass a file in ATIF") from error
    except AtifError as error:
        raise AtifError(f"{file}: {error}") from error


def _write(path: Path, trajectory: Trajectory, kind: Format, model: str | None) -> bool:
    """Write a rollout to `path` with the suffix of `kind`; return False for one that has no times."""
    if kind == "atif":
        path.with_name(f"{path.name}.json").write_text(_json(to_atif(trajectory, model_name=model)))
        return True
    if kind == "hf":
        lines: list[Any] = to_hf_trace(trajectory, model_name=model)
    else:
        spans = to_otel(trajectory, model_name=model)
        if spans is None:
            return False
        lines = [spans]
    path.with_name(f"{path.name}.jsonl").write_text("".join(map(_json, lines)))
    return True


def _json(value: Any) -> str:
    return json.dumps(value, allow_nan=False) + "\n"


def _consumed(run: Path, step: int) -> list[str]:
    """Return the directories of the rollouts that a training step consumed."""
    with Ledger.read(run) as ledger:
        entries = ledger.entries()
    return [entry.directory for entry in entries if entry.step == step and entry.directory is not None]


def _model_name(run: Path) -> str | None:
    """Return the name of the model that sampled a run or an evaluation; None: it is not recorded."""
    if (run / CONFIG).is_file():
        settings = resolve(run / CONFIG)
        if settings.model is None:
            return None
        path = settings.model.path  # below the run: the model that the run made
        return settings.run_dir.name if path.parent == settings.run_dir else path.name
    if (run / SUMMARY).is_file():
        return Path(json.loads((run / SUMMARY).read_bytes())["model"]).name or None
    return None


@contextmanager
def _new_directory(out: Path) -> Iterator[Path]:
    """Yield a directory that becomes `out` when the block succeeds; otherwise nothing stays.

    Raises StoreError when `out` exists and is not empty, or cannot be written.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise StoreError(f"{out} exists: choose a new directory, or remove it first")
    target = out.absolute()
    partial = target.with_name(f".{target.name}.partial")
    with writing(out, StoreError):
        shutil.rmtree(partial, ignore_errors=True)
        try:
            partial.mkdir(parents=True)
            yield partial
            partial.rename(target)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
