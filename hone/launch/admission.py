"""The admission of a set of tasks: a journal that survives a kill, progress, and a data card."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from hone import __version__
from hone.config import RunSettings, result_settings
from hone.curate.card import make_card
from hone.curate.journal import Journal
from hone.curate.record import Reason, Record, Report, with_proof
from hone.curate.validate import validate
from hone.evaluate.words import duration
from hone.grading import Grader
from hone.grading.errors import GraderError
from hone.launch.reporter import Reporter, Stage
from hone.launch.tasks import run_in_sandboxes
from hone.sandbox import SandboxError
from hone.tasks.bundles import with_bundles
from hone.tasks.formats import content_hash, save
from hone.types import Task
from hone.utils.files import write_file
from hone.view.web.card_page import card_page


def open_journal(out: Path | None, tasks: Sequence[Task], settings: RunSettings, repeats: int) -> Journal:
    """Return the journal of a validation, `out` with the suffix `.partial`; in memory without `out`.

    Raises TaskError, with the names of what differs, for the journal of other tasks, settings or versions.
    """
    run = {
        "repeats": repeats,
        "hone": __version__,
        "settings": result_settings(settings, "sandbox", "grading"),
        "tasks": {task.id: content_hash(task) for task in tasks},
    }
    return Journal(out and out.with_name(f"{out.name}.partial"), run)


def validate_tasks(
    settings: RunSettings,
    tasks: Sequence[Task],
    unusable: Mapping[str, str],
    journal: Journal,
    repeats: int,
    reporter: Reporter,
) -> Report:
    """Validate the tasks that the journal does not contain; return the report over all.

    Args:
        unusable: id -> reason, of tasks that no sandbox can run.
    Raises:
        GraderError: no sandbox can be started; the journal keeps what is decided.
    """
    if len(journal):
        reporter.note(f"{len(journal)} of {len(tasks)} tasks are decided in the journal.")
    for task in tasks:
        if task.id in unusable and task.id not in journal:
            detail = unusable[task.id]
            record = Record(
                task_id=task.id, content=content_hash(task), reason=Reason.NO_REPOSITORY, detail=detail
            )
            journal.put(task.id, record.to_json())
    known = len(journal)
    started, admitted = time.monotonic(), 0

    async def work(grader: Grader, stage: Stage) -> Report:
        def progress(record: Record) -> None:
            nonlocal admitted
            admitted += record.reason is None
            stage.advance()
            here, left = stage.done - known, len(tasks) - stage.done
            rate = pace(here, left, time.monotonic() - started)
            stage.set_status(f"{admitted} of {here} admitted, {rate}")

        stage.set_done(known)
        return await validate(tasks, grader, journal, repeats=repeats, versions=True, progress=progress)

    stage = reporter.stage("validating tasks", len(tasks))
    try:
        return run_in_sandboxes(Grader, settings, stage, work, keep_repositories=False)
    except (GraderError, SandboxError) as error:
        kept = f"{len(journal)} of {len(tasks)} tasks are decided"
        kept_in_file = journal.path is not None and len(journal) > 0
        where = f" and kept in {journal.path}: run the same command again to continue" if kept_in_file else ""
        raise GraderError(f"{error}. {kept}{where}") from error


def pace(done: int, left: int, seconds: float) -> str:
    """Return the rate and the time left, such as "0.5 tasks/s, 3 min 20 s left"."""
    rate = done / seconds if seconds > 0 else 0.0
    if rate == 0:
        return "no rate yet"
    shown = f"{rate:.2g} tasks/s" if rate < 10 else f"{rate:.0f} tasks/s"
    return f"{shown}, {duration(round(left / rate))} left"


def write_results(
    report: Report,
    tasks: Sequence[Task],
    out: Path,
    settings: RunSettings,
    *,
    source: str,
    repeats: int,
) -> None:
    """Write the admitted tasks to `out`, and beside it their bundles and their data card, JSON and HTML."""
    save(with_bundles(with_proof(tasks, report), out.parent), out)
    card = make_card(
        report,
        source=source,
        file=out.name,
        settings=result_settings(settings, "sandbox", "grading"),
        repeats=repeats,
    )
    data, page = card_paths(out)
    write_file(data, json.dumps(card, indent=1) + "\n")
    write_file(page, card_page(card, data.name))


def card_paths(out: Path) -> tuple[Path, Path]:
    """Return the paths of the data card of a file of tasks: JSON and HTML."""
    return out.with_name(f"{out.stem}.card.json"), out.with_name(f"{out.stem}.card.html")
