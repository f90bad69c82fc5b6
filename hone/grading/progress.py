"""Turn progress: how much of the hidden tests passes on the tree as each turn left it.

    turn -> patch, while the sandbox stands as the turn left it -> graded while the agent goes on -> potential

As a reward, the potential is used for shaping (A. Ng, D. Harada, S. Russell, "Policy invariance under reward
transformations", 1999): F = gamma * potential(after) - potential(before). With gamma = 1 the rewards of a
rollout add up to the potential of its last state less that of its first, whatever the way between them.

The rule that must not break: measuring changes nothing that the agent can see, and no failure to measure
fails the rollout.
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
    """What came of measuring the state after a turn."""

    OK = "ok"
    UNREADABLE = "unreadable"  # no patch could be read out of the sandbox
    NO_VERDICT = "no_verdict"  # the grader failed, or was too slow


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The tree as one turn left it."""

    step_index: int  # the turn's index
    status: Measured
    changed: bool  # whether the turn changed the patch
    score: float | None  # the potential, in [0, 1]; None: not known
    error: str | None = None


def potential(verdict: Verdict, checks: Checks) -> float:
    """Fraction of the fail-to-pass tests that pass, in [0, 1].

    0 when any pass-to-pass test is broken, the patch does not apply, the run was tampered with, or it has
    every test pass and is not resolved all the same (it did not end as it should): a state that could not be
    handed in is worth nothing, however many hidden tests it passes.
    """
    if verdict.tampered is not None or not verdict.applied or (verdict.score == 1 and not verdict.resolved):
        return 0.0
    kept = count_tests(checks, verdict.tests).pass_to_pass.fraction
    return verdict.score if kept == 1 else 0.0


def shaping(potentials: Sequence[float | None], *, before: float | None, gamma: float) -> list[float]:
    """The reward of each turn: gamma * potential after it - potential before it.

    `before` is the potential of the untouched task. A potential that is not known (None) is taken to be the
    one before it, so that no turn gains or loses by a failure to measure.

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
    """The progress of a rollout as it is stored with it; `shaping` makes rewards of it."""
    return {"enabled": True, "initial_score": initial, "steps": [asdict(state) for state in states]}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Patch:
    text: str | None  # None: it could not be read
    error: str | None = None


class Progressing:
    """The states of one rollout; its gradings are tasks of `tasks`.

    `read` takes the patch out of the agent's sandbox and leaves everything there as it was.
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
        self._gradings: dict[str, asyncio.Task[float | str]] = {}  # patch -> potential, or why there is none
        self._seen: list[tuple[Turn, _Patch]] = []
        self._begin("")

    async def observe(self, turn: Turn) -> None:
        """Take the patch as this turn left it and begin to grade it; without a command nothing changed."""
        patch = self._seen[-1][1] if self._seen else _Patch(text="")
        if turn.action is not None:
            try:
                patch = _Patch(text=await self._read())
            except SandboxError as failure:  # the agent's next command meets it too, if it lasts
                patch = _Patch(text=None, error=f"{type(failure).__name__}: {failure}")
        if patch.text is not None:
            self._begin(patch.text)
        self._seen.append((turn, patch))

    async def settle(self) -> tuple[float | None, list[State]]:
        """The potential of the untouched task and every state, by turn.

        Waits `progress.wait_s` seconds at most for what is still being graded.
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
        """Give up the gradings that are still under way."""
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
