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
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from hone.grading.errors import GraderError
from hone.grading.settings import ProgressSettings
from hone.grading.verdict import count_tests
from hone.sandbox.contract import SandboxError
from hone.types import Checks, Task, Turn, Verdict

Grade = Callable[[Task, str], Awaitable[Verdict]]  # as `hone.grading.Grader.grade`


class Measured(StrEnum):
    """Result of measuring the state after a turn."""

    OK = "ok"
    UNREADABLE = "unreadable"  # the patch could not be read from the sandbox
    NO_VERDICT = "no_verdict"  # the grader failed or was too slow


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The tree as one turn left it."""

    step_index: int  # the turn's index
    status: Measured
    changed: bool  # the turn changed the patch
    score: float | None  # the potential, in [0, 1]; None: unknown
    error: str | None = None


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


def progress_record(initial: float | None, states: Sequence[State]) -> dict[str, Any]:
    """Return the progress of a rollout as it is stored; `shaping` turns it into rewards."""
    return {"enabled": True, "initial_score": initial, "steps": [asdict(state) for state in states]}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Patch:
    text: str | None  # None: it could not be read
    error: str | None = None


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
        self._seen: list[tuple[Turn, _Patch]] = []
        self._begin("")

    async def observe(self, turn: Turn) -> None:
        """Read the patch after this turn and start to grade it; a turn without a command changes nothing."""
        patch = self._seen[-1][1] if self._seen else _Patch(text="")
        if turn.action is not None:
            try:
                patch = _Patch(text=await self._read())
            except SandboxError as failure:  # a lasting failure also fails the agent's next command
                patch = _Patch(text=None, error=f"{type(failure).__name__}: {failure}")
        if patch.text is not None:
            self._begin(patch.text)
        self._seen.append((turn, patch))

    async def settle(self) -> tuple[float | None, list[State]]:
        """Return the potential of the unchanged task and the state after every turn.

        Waits at most `progress.wait_s` seconds for gradings under way.
        """
        await asyncio.wait(self._gradings.values(), timeout=self._settings.wait_s)
        self.abandon()
        await asyncio.wait(self._gradings.values())
        found = {patch: self._found(task) for patch, task in self._gradings.items()}
        initial = found[""]
        states: list[State] = []
        before = ""
        for turn, patch in self._seen:
            states.append(_state(turn, patch, before, found))
            before = before if patch.text is None else patch.text
        return initial if isinstance(initial, float) else None, states

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


def _state(turn: Turn, patch: _Patch, before: str, found: dict[str, float | str]) -> State:
    if patch.text is None:
        return State(
            step_index=turn.index,
            status=Measured.UNREADABLE,
            changed=False,
            score=None,
            error=patch.error,
        )
    changed, value = patch.text != before, found[patch.text]
    if isinstance(value, str):
        return State(
            step_index=turn.index, status=Measured.NO_VERDICT, changed=changed, score=None, error=value
        )
    return State(step_index=turn.index, status=Measured.OK, changed=changed, score=value)
