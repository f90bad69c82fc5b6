"""A user's repository, in one command: tasks from it, a baseline, a recipe, and a training where possible.

    look -> mine, seed -> tasks -> split -> recipe -> baseline -> train

Every stage leaves a file that the single commands read, and is noted in `start.jsonl`: the same command
continues after the last finished stage, and inside of the one that was stopped.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hone.config import ConfigError, Layer, RunSettings, dump, make_plan, resolve
from hone.curate.journal import Journal
from hone.curate.mining.layout import TestFiles, configured_tests, find_test_files
from hone.curate.mining.settings import MiningSettings
from hone.launch.evaluate import evaluate
from hone.launch.mining import MiningJob, mine_repository
from hone.launch.mutation import MutationJob, seed_bugs
from hone.launch.reporter import Reporter
from hone.launch.rundir import with_model
from hone.launch.runtime import open_runtime
from hone.launch.start_recipe import Hardware, make_recipe
from hone.tasks.division import divide, write_sets
from hone.tasks.errors import TaskError
from hone.tasks.formats import save
from hone.tasks.repository import Repository, run_git
from hone.tasks.sources import load_all, load_splits
from hone.types import Task
from hone.utils.files import write_file

if TYPE_CHECKING:
    from hone.launch.train import TrainReport

_TRIES = 6  # candidates of the history for each task that is wanted, so that mining ends within the hour
_FEWEST = 3  # tasks for a training and a test set
_TRAINED = 2  # of these, for training: the tiny model gets demonstrations of one, and RL on the other


@dataclass(frozen=True, slots=True, kw_only=True)
class StartJob:
    repository: Path
    out: Path
    model: str | None = None  # folder or name on the hub; None: a tiny model that the run makes
    tests: tuple[str, ...] = ()  # globs
    limit: int = 50  # tasks of each kind
    repeats: int = 3
    sets: tuple[str | Layer, ...] = ()  # of the recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """What `hone start` found and made."""

    tests: int  # files
    mined: int
    seeded: int
    refused: dict[str, str]  # kind -> why there are no tasks of it
    sets: dict[str, int]
    level: str  # of the split; see `hone.tasks.division`
    hardware: Hardware
    baseline: dict[str, Any] | None  # the summary of the evaluation; None: not possible here
    trained: TrainReport | None  # None: not trained here, or nothing was learnt
    nothing_learnt: str  # why no step of the training changed a weight; ""
    why_not: str  # why there is no baseline and no training
    minutes: float  # over all starts


def start(run: RunSettings, job: StartJob, reporter: Reporter) -> Started:
    """Go through the stages that are not done.

    Args:
        run: settings of the sandboxes and of grading.
    Raises:
        TaskError: the repository cannot be used, or gives too few tasks.
        ConfigError: the model or a setting cannot be used, or the folder belongs to another run.
    """
    repository = open_repository(job.repository)
    head = repository.commit("HEAD")
    _look(job, repository, head, reporter)
    make_recipe(job.out, job.model, _FEWEST, job.sets)  # raises for a wrong model before anything slow
    about = {
        "repository": str(job.repository.resolve()),
        "tests": list(job.tests),
        "limit": job.limit,
        "repeats": job.repeats,
        "sandbox": run.sandbox.model_dump(mode="json"),
    }
    journal = Journal(job.out / "start.jsonl", about)
    with _clock(journal) as minutes:
        commit = _stage(journal, "commit", lambda: {"id": head})["id"]
        if commit != head:
            reporter.note(
                f"{job.repository} has new commits since {job.out} began at {commit[:10]}: they are not used."
            )
        files = find_tests(job, repository, commit)
        made = {
            "mined": _stage(journal, "mined", lambda: _mine(run, job, commit, reporter)),
            "seeded": _stage(journal, "seeded", lambda: _seed(run, job, files, commit, reporter)),
        }
        tasks = _collect(job, made, reporter)
        divided = _stage(journal, "split", lambda: _split(job, tasks, reporter))
        settings, hardware = _recipe(job, divided["sets"]["train"], reporter)
        why_not = _cannot_run(settings, hardware)
        baseline = trained = None
        nothing_learnt = ""
        if why_not:
            reporter.note(f"No baseline and no training here: {why_not}.")
        else:
            baseline = _baseline(job, settings, reporter)
            trained, nothing_learnt = _train(settings, reporter)
        return Started(
            tests=len(files.paths),
            mined=made["mined"]["tasks"],
            seeded=made["seeded"]["tasks"],
            refused={kind: each["refused"] for kind, each in made.items() if each["refused"]},
            sets=divided["sets"],
            level=divided["level"],
            hardware=hardware,
            baseline=baseline,
            trained=trained,
            nothing_learnt=nothing_learnt,
            why_not=why_not,
            minutes=minutes(),
        )


def open_repository(path: Path) -> Repository:
    """Return the user's repository. Raises TaskError with what to do for a path that cannot be used."""
    if not path.exists():
        raise TaskError(f"there is no folder {path}: pass the folder of a git repository")
    if path.is_dir() and not any((path / name).exists() for name in (".git", "HEAD")):
        above = next((folder for folder in path.resolve().parents if (folder / ".git").exists()), None)
        if above is not None:
            raise TaskError(
                f"{path} is a folder of the repository {above}: pass that, and its tests with --tests"
            )
        raise TaskError(
            f"{path} is not a git repository, and tasks are made of commits: run `git init`, `git add --all` "
            "and `git commit` in it, or pass a clone"
        )
    repository = Repository.open(path)
    try:
        repository.commit("HEAD")
    except TaskError:
        raise TaskError(f"{path} has no commits: commit its files first") from None
    return repository


def _look(job: StartJob, repository: Repository, commit: str, reporter: Reporter) -> None:
    """Note the tests of a commit, and changes that are in none. Raises TaskError without tests."""
    if changed := uncommitted(repository):
        reporter.note(
            f"{job.repository} has uncommitted changes in {len(changed)} files, such as {changed[0]}. "
            "No task has them: commit them and choose another -o to include them."
        )
    files = find_tests(job, repository, commit)
    if not files.paths:
        raise TaskError(
            f"{job.repository} has no tests that Hone finds (test_*.py, *_test.py, tests/, or what the "
            "configuration of pytest, unittest or CI names): pass their folder or files with --tests"
        )
    reporter.note(
        f"{job.repository}: {len(files.pytest)} test files of pytest and {len(files.unittest)} of unittest."
    )


def find_tests(job: StartJob, repository: Repository, commit: str) -> TestFiles:
    """Return the test files of a commit: those that Hone finds, and those of `job.tests`."""
    return find_test_files(repository, commit, (*job.tests, *configured_tests(repository, commit)))


def uncommitted(repository: Repository) -> list[str]:
    """Return the tracked files that differ from the last commit; none of a bundle or a bare folder."""
    if not repository.path.is_dir() or repository.directory == repository.path.resolve():
        return []
    listed = run_git(
        f"--git-dir={repository.directory}",
        f"--work-tree={repository.path.resolve()}",
        *("status", "--porcelain", "-z", "--untracked-files=no", "--ignore-submodules"),
    ).decode("utf-8", "replace")
    return [entry[3:] for entry in listed.split("\0") if entry[2:3] == " "]


def _mine(run: RunSettings, job: StartJob, commit: str, reporter: Reporter) -> dict[str, Any]:
    settings = MiningSettings(repeats=job.repeats, tests=job.tests)
    mined = mine_repository(
        run,
        MiningJob(
            repository=job.repository,
            out=job.out / "mined.jsonl",
            settings=settings,
            branch=commit,
            issues={},
            limit=job.limit,
            tries=_TRIES * job.limit,
        ),
        reporter,
    )
    report = mined.report
    refused = {reason.value: count for reason, count in report.refused.items()}
    why = "" if report.tasks else f"none of {report.tried} commits became one: {_counts(refused)}"
    return {
        "tasks": len(report.tasks),
        "commits": mined.commits,
        "tried": report.tried,
        "reasons": refused,
        "refused": why,
    }


def _seed(
    run: RunSettings, job: StartJob, files: TestFiles, commit: str, reporter: Reporter
) -> dict[str, Any]:
    seeding = MutationJob(
        repository=job.repository,
        out=job.out / "seeded.jsonl",
        count=job.limit,
        commit=commit,
        tests=files.paths,
        repeats=job.repeats,
    )
    try:
        report = seed_bugs(run, seeding, reporter)
    except TaskError as error:  # such as a dependency of today's commit that cannot be installed
        return {"tasks": 0, "ran": 0, "reasons": {}, "refused": str(error)}
    reasons = {reason.value: count for reason, count in report.rejected.items()}
    why = "" if report.tasks else f"none of {report.ran} bugs became one: {_counts(reasons)}"
    return {"tasks": len(report.tasks), "ran": report.ran, "reasons": reasons, "refused": why}


def _counts(reasons: dict[str, int]) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in reasons.items()) or "there was nothing to try"


def _collect(job: StartJob, made: dict[str, dict[str, Any]], reporter: Reporter) -> list[Task]:
    """Write all tasks, mined and seeded, to one file; return them. Raises TaskError for too few."""
    for kind, each in made.items():
        if each["refused"]:
            reporter.note(f"No {kind} tasks: {each['refused']}.")
    tasks = [task for name in made if made[name]["tasks"] for task in load_all(job.out / f"{name}.jsonl")]
    if len(tasks) < _FEWEST:
        said = "; ".join(f"{kind}: {each['refused']}" for kind, each in made.items() if each["refused"])
        raise TaskError(_too_few(job, tasks, said))
    save(tasks, job.out / "tasks.jsonl")
    return tasks


def _too_few(job: StartJob, tasks: Sequence[Task], said: str) -> str:
    return (
        f"{job.repository} gives {len(tasks)} tasks, too few for a training and a test set"
        f"{f' ({said})' if said else ''}. Pass --tests where it has more tests, or another repository"
    )


def _split(job: StartJob, tasks: Sequence[Task], reporter: Reporter) -> dict[str, Any]:
    division = divide(tasks)
    if len(division.splits.train) < _TRAINED:
        raise TaskError(_too_few(job, tasks, f"each {division.level} is in one set"))
    write_sets(division.splits, job.out)
    sizes = {name: len(chosen) for name, chosen in division.splits.named() if chosen}
    reporter.note(
        f"{len(tasks)} tasks: {', '.join(f'{size} {name}' for name, size in sizes.items())}; each "
        f"{division.level} is in one set."
    )
    return {"sets": sizes, "level": division.level}


def _recipe(job: StartJob, tasks: int, reporter: Reporter) -> tuple[RunSettings, Hardware]:
    """Return the settings and write them to `recipe.toml`.

    Raises ConfigError where that file has other settings and the run has begun.
    """
    settings, hardware = make_recipe(job.out, job.model, tasks, job.sets)
    path, text = job.out / "recipe.toml", dump(settings)
    if path.is_file() and path.read_text(encoding="utf-8") != text and (job.out / "baseline").exists():
        raise ConfigError(
            f"{path} is for another model or other settings: run the same command as before, or move "
            f"{job.out / 'baseline'} and {job.out / 'run'} away to begin with the new ones"
        )
    write_file(path, text)
    assert resolve(path) == settings, "a recipe resolves to the settings that were dumped"
    fits = f"It takes {hardware.machine}" if hardware.machine else "No machine of up to 8 GPUs of 80 GiB fits"
    reporter.note(f"{path} is written. {fits}.")
    return settings, hardware


def _cannot_run(settings: RunSettings, hardware: Hardware) -> str:
    """Return why this machine cannot train; "" if it can."""
    if hardware.here:
        return hardware.here
    return "; ".join(make_plan(settings, "train").missing)


def _baseline(job: StartJob, settings: RunSettings, reporter: Reporter) -> dict[str, Any]:
    """Return the summary of the evaluation of the model before training."""
    if settings.makes_model and settings.model is None:
        settings = with_model(settings, asyncio.run(_start_model(settings, reporter)))
    return evaluate(settings, reporter, out=job.out / "baseline")


def _train(settings: RunSettings, reporter: Reporter) -> tuple[TrainReport | None, str]:
    """Train, or continue; return the report, or why no step changed a weight."""
    from hone.launch.train import train  # loads torch, which the stages before do not need
    from hone.train.errors import NothingLearnt

    try:
        return train(settings, reporter), ""
    except NothingLearnt as error:
        return None, str(error)


async def _start_model(settings: RunSettings, reporter: Reporter) -> Path:
    """Return the tiny model that the training starts from; it is made on first use."""
    from hone.launch.sft import make_start_model, split_demonstrated  # loads torch

    async with open_runtime(settings) as runtime:
        demonstrated, _ = split_demonstrated(settings, load_splits(settings.tasks).train)
        return (await make_start_model(settings, runtime, reporter, demonstrated))[0]


def _stage(journal: Journal, name: str, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return the result of a stage, from the journal if it is done."""
    known = journal.get(name)
    if known is None:
        known = work()
        journal.put(name, known)
    return known


@contextmanager
def _clock(journal: Journal) -> Iterator[Callable[[], float]]:
    """Yield a function that returns the minutes of all starts."""
    before, started = journal.get("minutes") or 0.0, time.monotonic()

    def minutes() -> float:
        return before + (time.monotonic() - started) / 60

    try:
        yield minutes
    finally:
        journal.put("minutes", round(minutes(), 2))
