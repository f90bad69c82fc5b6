"""Mining: commits in, proven tasks and reasons out."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hone.curate.journal import Journal
from hone.curate.mining.candidates import (
    CommitParts,
    CommitRejected,
    HistoryCommit,
    Reason,
    Selection,
    split_commit,
    test_modules,
)
from hone.curate.mining.locks import LockCache
from hone.curate.mining.runs import observe
from hone.curate.mining.settings import MiningSettings
from hone.curate.mining.statement import Issue, write
from hone.curate.mining.writer import Writer
from hone.curate.runner import REWRITE, Runner, commit_environment, trial_task
from hone.grading.errors import GraderError
from hone.grading.run import TestRun
from hone.sandbox.contract import SandboxError
from hone.tasks.errors import TaskError
from hone.tasks.formats import from_dict, to_dict
from hone.tasks.places import changed_functions
from hone.tasks.repository import Repository
from hone.types import Checks, Task

SOURCE = "mined"


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The outcome of one commit: a task, or the reason why there is none."""

    commit: str
    task: Task | None = None
    reason: Reason | None = None
    detail: str = ""

    def to_json(self) -> dict[str, Any]:
        return {
            "task": to_dict(self.task) if self.task is not None else None,
            "reason": self.reason.name if self.reason is not None else None,
            "detail": self.detail,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The outcome of all commits; every one is counted once."""

    tasks: tuple[Task, ...]
    candidates: int
    tried: int
    refused: Mapping[Reason, int]  # of those tried
    details: tuple[Result, ...]  # of those refused
    skipped: Mapping[Reason, int]  # never tried


def read_results(journal: Journal) -> dict[str, Result]:
    """Return the results in a journal by commit. Raises TaskError when one cannot be read."""
    results: dict[str, Result] = {}
    for commit, row in journal.items():
        try:
            task = from_dict(row["task"]) if row["task"] is not None else None
            reason = Reason[row["reason"]] if row["reason"] is not None else None
            results[commit] = Result(commit=commit, task=task, reason=reason, detail=row["detail"])
        except (KeyError, TypeError) as error:
            raise TaskError(f"the result of commit {commit} in the journal cannot be read: {error}") from None
    return results


async def mine(
    repository: Repository,
    selection: Selection,
    journal: Journal,
    runner: Runner,
    *,
    settings: MiningSettings,
    issues: Mapping[int, Issue],
    writer: Writer | None = None,
    limit: int | None = None,
    progress: Callable[[Result], None] | None = None,
) -> None:
    """Try the candidates in order until `limit` tasks are found, `runner.settings.concurrency` at once.

    Every result is in the journal as soon as it is known; commits in the journal are not tried again.

    Args:
        writer: writes the prose of the statements; None: it is the issue or the commit's message.
    Raises:
        GraderError: no sandbox starts.
        EngineError: the writer's endpoint fails.
    """
    miner = _Miner(repository, runner, settings, issues, writer)
    known = read_results(journal)
    queue = iter([each for each in selection.candidates if each.id not in known])
    found = sum(result.task is not None for result in known.values())

    async def work() -> None:
        nonlocal found
        for commit in queue:  # shared: each commit goes to one worker
            if limit is not None and found >= limit:
                return
            result = await miner.try_commit(commit)
            found += result.task is not None
            journal.put(result.commit, result.to_json())
            if progress:
                progress(result)

    async with asyncio.TaskGroup() as group:
        for _ in range(runner.settings.concurrency):
            group.create_task(work())


def report(selection: Selection, results: Mapping[str, Result], limit: int | None = None) -> Report:
    """Return at most `limit` tasks in the order of the candidates, and the counts of the rest."""
    tried = [results[each.id] for each in selection.candidates if each.id in results]
    refused = [result for result in tried if result.reason is not None]
    counts = Counter(result.reason for result in refused if result.reason is not None)
    tasks = [result.task for result in tried if result.task is not None]
    return Report(
        tasks=tuple(tasks[:limit]),
        candidates=len(selection.candidates),
        tried=len(tried),
        refused=dict(counts.most_common()),
        details=tuple(refused),
        skipped=dict(Counter(selection.skipped).most_common()),
    )


def require_one_bug(fail_to_pass: Sequence[str], limit: int) -> None:
    """Raise CommitRejected for a fix of more test functions than `limit`: it is a whole feature.

    The parameter sets of a test count once.
    """
    functions = {test.partition("[")[0] for test in fail_to_pass}
    if len(functions) > limit:
        raise CommitRejected(Reason.WHOLE_FEATURE, f"{len(functions)} test functions, of at most {limit}")


class _Miner:
    def __init__(
        self,
        repository: Repository,
        runner: Runner,
        settings: MiningSettings,
        issues: Mapping[int, Issue],
        writer: Writer | None,
    ) -> None:
        self._repository, self._runner = repository, runner
        self._settings, self._issues, self._writer = settings, issues, writer
        self._locks = LockCache(repository)

    async def try_commit(self, commit: HistoryCommit) -> Result:
        """Return the proven task or the reason of refusal. Raises GraderError when no sandbox starts."""
        try:
            parts = await asyncio.to_thread(split_commit, self._repository, commit, self._settings.tests)
            modules = test_modules(parts)
            task, refusal = await self._runner.prove(
                await self._make(commit, parts, modules), self._settings.repeats
            )
            if task is None:
                raise CommitRejected(Reason.NOT_ADMITTED, refusal)
        except CommitRejected as rejection:
            return Result(commit=commit.id, reason=rejection.reason, detail=rejection.detail)
        return Result(commit=commit.id, task=task)

    async def _make(self, commit: HistoryCommit, parts: CommitParts, modules: Sequence[str]) -> Task:
        settings, base = self._settings, commit.base
        environment = commit_environment(self._repository, base, await self._locks.lock(base))

        async def run(patch: str, timeout_s: float) -> TestRun:
            trial = trial_task(
                environment,
                parts.tests_after,
                timeout_s=timeout_s,
                test_patch=parts.test_patch,
                command=REWRITE,
            )
            return await self._run(trial, modules, patch)

        observed = await observe(run, parts.gold_patch, settings.repeats, settings.timeout_s)

        async def run_files(files: Mapping[str, str], patch: str) -> TestRun:
            limit_s = max(observed.limit_s, settings.timeout_s)
            trial = trial_task(environment, files, timeout_s=limit_s, command=REWRITE)
            return await self._run(trial, sorted(files), patch)

        compared = observed.compared
        require_one_bug(compared.fail_to_pass, settings.max_fixed_tests)
        statement = await write(
            commit.message,
            parts,
            compared.fail_to_pass,
            self._issues,
            run_files,
            settings.min_statement,
            self._writer,
        )
        return Task(
            id=f"{environment.repo.replace('/', '__')}-{commit.id[:10]}",
            problem=statement.text,
            environment=environment,
            checks=Checks(
                fail_to_pass=compared.fail_to_pass,
                pass_to_pass=compared.pass_to_pass,
                test_files=parts.tests_after,
                gold_patch=parts.gold_patch,
                test_patch=parts.test_patch,
                timeout_s=observed.limit_s,
            ),
            source=SOURCE,
            metadata={
                "fix_commit": commit.id,
                "date": commit.date,
                "files": list(parts.source),
                "functions": list(changed_functions(parts.gold_patch, parts.sources_after)),
                "test_files": list(parts.tests),
                "statement": list(statement.sources),
                "flaky": sorted(compared.flaky),
                "fairness": statement.fairness.rating.value,
                "untold": list(statement.fairness.untold),
            },
        )

    async def _run(self, trial: Task, files: Sequence[str], patch: str) -> TestRun:
        try:
            return await self._runner.run(trial, files, patch)
        except GraderError as error:
            if isinstance(error.__cause__, SandboxError):
                raise  # every other commit would fail in the same way
            is_environment = isinstance(error.__cause__, TaskError)
            reason = Reason.NO_ENVIRONMENT if is_environment else Reason.DOES_NOT_RUN
            raise CommitRejected(reason, str(error)) from error
