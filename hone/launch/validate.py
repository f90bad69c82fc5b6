"""Validates tasks in sandboxes (`hone tasks validate`)."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path

from hone.config import RunSettings
from hone.curate.validate import Report
from hone.curate.validate import validate as prove
from hone.launch.reporter import Reporter
from hone.sandbox import make_provider
from hone.types import Task


def validate(settings: RunSettings, tasks: Sequence[Task], n: int, reporter: Reporter) -> Report:
    """Validate tasks with `n` gradings of each patch; see `hone.curate.validate`."""
    return asyncio.run(_validate(settings, tasks, n, reporter))


async def _validate(settings: RunSettings, tasks: Sequence[Task], n: int, reporter: Reporter) -> Report:
    with (
        tempfile.TemporaryDirectory(prefix="hone-validate-") as folder,
        reporter.stage("validating tasks", len(tasks)) as stage,
    ):
        async with make_provider(settings.sandbox) as provider:
            report = await prove(
                tasks,
                provider,
                workspaces=Path(folder),
                settings=settings.grading,
                limits=settings.sandbox.limits(),
                repeats=n,
                progress=lambda admission: stage.advance(),
            )
    return report
