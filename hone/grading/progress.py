"""Turn progress: the share of the hidden tests that pass after each turn.

    turn -> patch, before the next turn -> graded while the agent continues -> potential

As a reward, the potential is used for shaping (A. Ng, D. Harada, S. Russell, "Policy invariance under reward
transformations", 1999): F = gamma * potential(after) - potential(before). With gamma = 1 the rewards of a
rollout sum to the potential of its last state minus that of its first.

Invariant: measuring changes nothing that the agent can see, and a failed measurement never fails the rollout.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from hone.grading.errors import GraderError
from hone.grading.settings import ProgressSettings
from hone.grading.verdict import count_tests
from hone.sandbox.contract import SandboxError
from hone.types import Checks, ProgressScores, ProgressStatus, Task, Turn, TurnProgress, Verdict
from hone.utils.concurrency import finish_within

Grade = Callable[[Task, str], Awaitable[Verdict]]  # as `hone.grading.Grader.grade`


def potential(verdict: Verdict, checks: Checks) -> float:
    """Return the share of the fail-to-pass tests that pass, in [0, 1].

    It is 0 when a pass-to-pass test fails, the patch does not apply, the run was tampered with, or every test
    passes but the run did not finish: a state that cannot be submitted is worth nothing.
    """
    if verdict.tampered is not None or not verdict.applied or (verdict.score == 1 and not verdict.resolved):
        return 0.0
    kept = count_tests(checks, verdict.tests).pass_to_pass.fraction
    return verdict.score if kept == 1 else 0.0


def shaping(potentials: Sequence[float | None], *, before: float | None, gamma: float) -> list[float]:
    """Return the reward of each turn: gamma * potential after it - potential before it.

    `before` is the potential of the unchanged task. An unknown potential (None) counts as unchanged, so that
    a failure to measure rewards and penalises no turn.

    Example: shaping([0.0, 0.5, None, 1.0], before=0.0, gamma=1) -> [0.0, 0.5, 0.0, 0.5].
    """
    rewards: list[float] = []
    last = before or 0.0
    for value in potentials:
        now = last if value is None else value
        rewards.append(gamma * now - last)
        last = now
    return rewards


class ProgressTracker:
    """Measures the states of one rollout; its gradings are tasks of `tasks`.

    Args:
        read: returns the patch in the agent's sandbox without changing anything there.
    """

    def __init__(
        self,
        task: Task,
        settings: ProgressSettings,
        tasks: asyncio.TaskGroup,
        *,
        grade: Grade,
        read: Callable[[], Awaitable[str]],
    ) -> None:
        self._task, self._settings, self._tasks, self._grade, self._read = task, settings, tasks, grade, read
        self._gradings: dict[str, asyncio.Task[float | str]] = {}  # patch -> potential, or the error
        self._seen: list[tuple[int, str | None, str | None]] = []  # turn's index, patch, or the error
        self._begin("")

    async def observe(self, turn: Turn) -> None:
        """Read the patch after this turn and start to grade it; a turn without a command changes nothing."""
        _, patch, error = self._seen[-1] if self._seen else (0, "", None)
        if turn.action is not None:
            try:
                patch, error = await self._read(), None
            except SandboxError as failure:  # a lasting failure also fails the agent's next command
                patch, error = None, f"{type(failure).__name__}: {failure}"
        if patch is not None:
            self._begin(patch)
        self._seen.append((turn.index, patch, error))

    async def settle(self) -> ProgressScores:
        """Return the potential of the untouched task and of the tree after each turn.

        Waits at most `progress.wait_s` seconds for gradings under way.
        """
        await finish_within(self._gradings.values(), self._settings.wait_s)
        found = {patch: self._found(task) for patch, task in self._gradings.items()}
        states: list[TurnProgress] = []
        before = ""
        for index, patch, error in self._seen:
            value = error if patch is None else found[patch]
            failed = ProgressStatus.UNREADABLE if patch is None else ProgressStatus.NO_VERDICT
            states.append(
                TurnProgress(
                    step_index=index,
                    status=failed if isinstance(value, str | None) else ProgressStatus.OK,
                    changed=patch is not None and patch != before,
                    score=None if isinstance(value, str | None) else value,
                    error=value if isinstance(value, str) else None,
                )
            )
            before = before if patch is None else patch
        initial = found[""]
        return ProgressScores(
            initial_score=initial if isinstance(initial, float) else None, steps=tuple(states)
        )

    def abandon(self) -> None:
        """Cancel the gradings under way."""
        for task in self._gradings.values():
            task.cancel()

    def _begin(self, patch: str) -> None:
        if patch not in self._gradings:
            self._gradings[patch] = self._tasks.create_task(self._potential(patch))

    async def _potential(self, patch: str) -> float | str:
        try:
            return potential(await self._grade(self._task, patch), self._task.checks)
        except (GraderError, SandboxError) as failure:
            return f"{type(failure).__name__}: {failure}"

    def _found(self, task: asyncio.Task[float | str]) -> float | str:
        if task.cancelled():
            return f"no verdict within {self._settings.wait_s:g} s of the rollout's end"
        return task.result()
