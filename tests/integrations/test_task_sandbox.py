"""A task in the sandbox of another program: what its grading says of each ending."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from hone.grading import Grader, GradingSettings
from hone.integrations.task_sandbox import Graded, find_task, grade_sandbox, start_task
from hone.outcomes import Outcome
from hone.sandbox import Sandbox, SandboxSpec, make_provider
from hone.sandbox.settings import SandboxSettings
from hone.tasks.errors import TaskError
from hone.tasks.formats import save
from tests.rollout.real import FaultyProvider, gold, tasks


def graded(
    root: Path, work: Callable[[Sandbox], Awaitable[object]], fails: Callable[[int], bool] = lambda i: False
) -> Graded:
    async def main() -> Graded:
        async with make_provider(SandboxSettings(state_dir=root / "state")) as real:
            provider = FaultyProvider(real, fails)
            grader = Grader(provider, GradingSettings(), cache=root / "workspaces")  # type: ignore[arg-type]
            async with await start_task(tasks(1)[0], provider, SandboxSpec()) as sandbox:  # type: ignore[arg-type]
                await work(sandbox)
                return await grade_sandbox(sandbox, tasks(1)[0], grader)

    return asyncio.run(main())


@pytest.mark.sandbox
def test_work_is_graded_by_its_patch(tmp_path: Path) -> None:
    right = graded(tmp_path, lambda sandbox: sandbox.exec(gold(tasks(1)[0])))
    assert right.outcome is Outcome.RESOLVED
    assert right.verdict is not None
    assert "diff --git" in right.patch
    wrong = graded(tmp_path, lambda sandbox: sandbox.exec("echo x > new.txt"))
    assert (wrong.outcome, wrong.error) == (Outcome.UNRESOLVED, None)
    nothing = graded(tmp_path, lambda sandbox: sandbox.exec("ls"))
    assert (nothing.outcome, nothing.verdict) == (Outcome.NO_PATCH, None)


@pytest.mark.sandbox
def test_lost_sandbox_is_the_agents_unless_no_other_starts(tmp_path: Path) -> None:
    broken = graded(tmp_path, lambda sandbox: sandbox.close())
    assert (broken.outcome, broken.patch) == (Outcome.BROKE_SANDBOX, "")
    fault = graded(tmp_path, lambda sandbox: sandbox.close(), fails=lambda start: start > 0)
    assert fault.outcome is Outcome.SANDBOX_ERROR
    assert "injected" in (fault.error or "")


@pytest.mark.sandbox
def test_missing_verdict_is_an_infrastructure_fault(tmp_path: Path) -> None:
    fault = graded(tmp_path, lambda sandbox: sandbox.exec(gold(tasks(1)[0])), fails=lambda start: start > 0)
    assert (fault.outcome, fault.verdict) == (Outcome.GRADER_ERROR, None)


def test_task_is_found_by_its_id(tmp_path: Path) -> None:
    save(tasks(2), tmp_path / "tasks.jsonl")
    assert find_task(tmp_path / "tasks.jsonl", tasks(2)[1].id) == tasks(2)[1]
    with pytest.raises(TaskError, match=r"has no task 'x'; it has train-0000, train-0001"):
        find_task(tmp_path / "tasks.jsonl", "x")
