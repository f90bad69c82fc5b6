"""Own tasks by mutation: a repository in, proven tasks and the reasons of the rest out."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hone.curate.journal import Journal
from hone.curate.mutation.baseline import Baseline, measure
from hone.curate.mutation.project import Project, find_environment, read_project
from hone.curate.mutation.reasons import Reason
from hone.curate.mutation.search import Search
from hone.curate.runner import Runner
from hone.grading.settings import GradingSettings
from hone.sandbox.contract import Limits, Provider
from hone.tasks.repository import Repository
from hone.types import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class MutationReport:
    """What became of the candidates; each is counted once."""

    tasks: tuple[Task, ...]
    modules: int  # files that bugs were seeded in
    tests: int  # that pass each time on the unchanged repository
    set_aside: Mapping[str, str]  # test, or file of tests -> why it is not used
    left_out: Mapping[str, str]  # Python file -> why no bug was seeded in it
    offered: int  # changes that the operators offer
    unreached: int  # of those, in code that no test reaches
    candidates: int  # that were looked at, bugs of several changes included
    ran: int  # whose tests were run
    fell: Mapping[Reason, int]  # candidates that are no task
    operators: Mapping[str, tuple[int, int]]  # name -> (candidates run, tasks)
    kinds: Mapping[str, int]  # single, compound, cross-file -> tasks
    refused: Mapping[str, str]  # id of a task that was not admitted -> why


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """How far it is."""

    said: str
    tasks: Sequence[Task]  # admitted so far


async def mutate(
    repository: Path,
    *,
    count: int,
    provider: Provider,
    cache: Path,
    settings: GradingSettings,
    limits: Limits,
    seed: int = 0,
    commit: str = "HEAD",
    tests: Sequence[str] | None = None,
    repeats: int = 3,
    journal: Path | None = None,
    progress: Callable[[Step], None] | None = None,
) -> MutationReport:
    """Seed bugs into a commit until `count` tasks are admitted, or no candidate is left.

    The same arguments give the same tasks. What is in the journal is not run again.

    Args:
        cache: of the tasks' repositories.
        tests: directories, files or patterns of the tests that are used; None: all that pytest would collect.
        repeats: gradings of each gold patch, and of each empty patch, for admission.
        journal: file that keeps what runs have shown; None: it is not kept.
        progress: called often, with what is being done and what was found.
    Raises:
        TaskError: the repository, its tests or the journal cannot be used.
        GraderError: no sandbox came up while the unchanged repository was measured.
    """
    source = await asyncio.to_thread(Repository.open, repository)
    base = await asyncio.to_thread(source.commit, commit)
    run = {"image": str(source.path.absolute()), "commit": base, "seed": seed, "repeats": repeats}
    run["tests"] = sorted(tests) if tests else None
    known = Journal(journal, run)

    def say(said: str, tasks: Sequence[Task] = ()) -> None:
        if progress:
            progress(Step(said=said, tasks=tasks))

    say("finding what the repository requires")
    environment = await find_environment(source, base, known)
    project = await asyncio.to_thread(read_project, source, base, environment.paths, run["tests"])
    runner = Runner(provider=provider, cache=cache, settings=settings, limits=limits)
    say(f"running {len(project.tests)} test files of the unchanged repository")
    baseline = await measure(project, environment, runner, known)
    search = Search(
        project, environment, baseline, runner, known, seed=seed, repeats=repeats, count=count, say=say
    )
    await search.run(count)
    return _report(search, project, baseline, count)


def _report(search: Search, project: Project, baseline: Baseline, count: int) -> MutationReport:
    tasks = search.tasks[:count]
    admitted = Counter(name for task in tasks for name in task.metadata["operators"])
    repeated = search.schedule.repeated
    fell = search.fell + Counter({Reason.REPEATED: repeated, Reason.SURPLUS: len(search.tasks) - len(tasks)})
    return MutationReport(
        tasks=tuple(tasks),
        modules=len(project.modules),
        tests=sum(map(len, baseline.passing.values())),
        set_aside=baseline.set_aside,
        left_out=project.left_out,
        offered=search.offered,
        unreached=search.unreached,
        candidates=search.candidates + repeated,
        ran=search.runs,
        fell=dict(fell.most_common()),
        operators={name: (ran, admitted[name]) for name, ran in sorted(search.ran.items())},
        kinds=Counter(task.metadata["kind"] for task in tasks),
        refused=search.refused,
    )
