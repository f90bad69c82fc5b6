"""Mutation: a repository in, proven tasks and reasons out."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hone.curate.journal import Journal
from hone.curate.mutation.baseline import Baseline, measure_baseline
from hone.curate.mutation.project import Project, find_environment, read_project
from hone.curate.mutation.search import Reason, Search
from hone.curate.runner import Runner
from hone.tasks.repository import Repository
from hone.types import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class MutationReport:
    """The outcome of all candidates; each is counted once."""

    tasks: tuple[Task, ...]
    modules: int  # files that were mutated
    tests: int  # that always pass on the unchanged repository
    excluded_tests: Mapping[str, str]  # test or test file -> why it is not used
    excluded_files: Mapping[str, str]  # Python file -> why it was not mutated
    offered: int  # possible mutations
    unreached: int  # of those, in code that no test reaches
    candidates: int  # considered, combinations included
    ran: int  # whose tests were run
    rejected: Mapping[Reason, int]  # candidates without a task, by reason
    operators: Mapping[str, tuple[int, int]]  # name -> (candidates run, tasks)
    kinds: Mapping[str, int]  # single, compound, cross-file -> tasks
    refused: Mapping[str, str]  # id of a task that validation refused -> reason


Progress = Callable[[str, Sequence[Task]], None]  # gets a message, and the tasks admitted so far


async def mutate(
    repository: Path,
    runner: Runner,
    *,
    count: int,
    seed: int = 0,
    commit: str = "HEAD",
    tests: Sequence[str] | None = None,
    repeats: int = 3,
    journal: Path | None = None,
    progress: Progress = lambda message, tasks: None,
) -> MutationReport:
    """Seed bugs into a commit until `count` tasks are admitted, or no candidate is left.

    The same arguments give the same tasks. Runs whose results are in the journal are not repeated.

    Args:
        tests: directories, files or patterns of the tests to use; None: all that pytest would collect.
        repeats: gradings of each gold patch, and of each empty patch, for admission.
        journal: file that keeps the results of test runs; None: they are not kept.
        progress: called after each step.
    Raises:
        TaskError: the repository, its tests or the journal cannot be used.
        GraderError: no sandbox starts.
    """
    source = await asyncio.to_thread(Repository.open, repository)
    base = await asyncio.to_thread(source.commit, commit)
    run = {"image": str(source.path.absolute()), "commit": base, "seed": seed, "repeats": repeats}
    run["tests"] = sorted(tests) if tests else None
    known = Journal(journal, run)

    progress("finding what the repository requires", ())
    environment = await find_environment(source, base, known)
    project = await asyncio.to_thread(read_project, source, base, environment.paths, run["tests"])
    progress(f"running {len(project.tests)} test files of the unchanged repository", ())
    baseline = await measure_baseline(project, environment, runner, known)
    search = Search(
        project,
        environment,
        baseline,
        runner,
        known,
        seed=seed,
        repeats=repeats,
        notify=progress,
    )
    await search.run(count)
    return _report(search, project, baseline, count)


def _report(search: Search, project: Project, baseline: Baseline, count: int) -> MutationReport:
    tasks = search.tasks[:count]
    admitted = Counter(name for task in tasks for name in task.metadata["operators"])
    repeated = search.schedule.repeated
    rejected = search.rejected + Counter(
        {Reason.REPEATED: repeated, Reason.SURPLUS: len(search.tasks) - len(tasks)}
    )
    return MutationReport(
        tasks=tuple(tasks),
        modules=len(project.modules),
        tests=sum(map(len, baseline.passing.values())),
        excluded_tests=baseline.excluded_tests,
        excluded_files=project.excluded_files,
        offered=search.offered,
        unreached=search.unreached,
        candidates=search.candidates + repeated,
        ran=search.runs,
        rejected=dict(rejected.most_common()),
        operators={name: (ran, admitted[name]) for name, ran in sorted(search.ran.items())},
        kinds=Counter(task.metadata["kind"] for task in tasks),
        refused=search.refused,
    )
