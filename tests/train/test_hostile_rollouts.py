"""A rollout that breaks something is one rollout: the others of its training are trained."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from hone.agents import AgentRun
from hone.environment.apply import base_mounts, extract_patch
from hone.grading import Grader
from hone.grading.settings import GradingSettings
from hone.outcomes import Outcome
from hone.policy.reply import Chat
from hone.rollout.ledger import Disposition, Ledger
from hone.rollout.metering import NoChat
from hone.rollout.store import Store
from hone.sandbox import Sandbox, SandboxSpec
from hone.sandbox.contract import Command, ExecResult
from hone.train.loop import train
from hone.types import Task, TokenTree, Trajectory, Turn, Verdict
from tests.rollout.memory import MemorySandbox, World
from tests.rollout.real import tasks
from tests.train.toy_run import ToyRun, settings_of

pytestmark = pytest.mark.model

GROUPS, GROUP_SIZE = 5, 4
HOSTILE = "s0g2-1"  # the rollout that meets the input
DIGITS = f"--- a/x\n+++ b/x\n@@ -1,{'9' * 5000} +1 @@\n-a\n+b\n"
CASES = {
    "git gives no UTF-8": Outcome.BROKE_SANDBOX,
    "git gives a hunk of thousands of digits": Outcome.UNRESOLVED,
    "git gives half of a surrogate pair": Outcome.UNRESOLVED,
    "the agent writes half of a surrogate pair": Outcome.RESOLVED,
    "the agent raises": Outcome.CRASHED,
    "the grader raises": Outcome.CRASHED,
}


class GitWithoutUtf8(MemorySandbox):
    """Its git writes a byte that UTF-8 has not."""

    def __init__(self, workspace: Path) -> None:
        super().__init__()
        self.spec = SandboxSpec(mounts=base_mounts(workspace))

    async def _exec(self, command: Command) -> ExecResult:
        return ExecResult(
            exit_code=0,
            stdout=b"\xff\n",
            stderr=b"",
            stdout_bytes=2,
            stderr_bytes=0,
            timed_out=False,
            seconds=0.0,
        )


class ToyChat(NoChat):
    def __init__(self, tree: TokenTree) -> None:
        super().__init__()
        self.tree = tree


class HostileWorld(World):
    """Every other rollout of a group is solved; one rollout meets the input of the case."""

    def __init__(self, root: Path, case: str) -> None:
        super().__init__([], solves=lambda rollout_id: int(rollout_id.split("-")[1]) % 2 == 1)
        self.root, self.case = root, case
        self.rollouts: dict[Sandbox, str] = {}
        self.grader = Grader(self, GradingSettings(), cache=root)

    async def run(self, task: Task, sandbox: Sandbox, chat: Chat, run: AgentRun) -> None:
        self.rollouts[sandbox.inner.first] = run.rollout_id  # type: ignore[attr-defined]
        action = "ls"
        if run.rollout_id == HOSTILE and self.case == "the agent writes half of a surrogate pair":
            action = "echo \ud800"
            run.messages.append({"role": "assistant", "content": "\udfff"})
        turn = Turn(index=0, node=1, reply="", action=action, exit_code=0, observation="", seconds=0.0)
        await run.record(turn)
        if run.rollout_id == HOSTILE and self.case == "the agent raises":
            raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "of a reply")

    async def extract(self, sandbox: Sandbox, task: Task, *, intact: bool = False) -> str:
        rollout_id = self.rollouts[sandbox]
        if rollout_id == HOSTILE and self.case == "git gives no UTF-8":
            return await extract_patch(GitWithoutUtf8(self.root), task)
        if rollout_id == HOSTILE and self.case == "git gives a hunk of thousands of digits":
            return DIGITS
        if rollout_id == HOSTILE and self.case == "git gives half of a surrogate pair":
            return DIGITS.replace("9", "\ud800")
        return rollout_id

    async def grade(self, task: Task, patch: str) -> Verdict:
        if not patch.startswith("s0"):
            return await self.grader.grade(task, patch)
        if patch == HOSTILE and self.case == "the grader raises":
            raise RecursionError
        solved = self._solves(patch)
        return Verdict(resolved=solved, tests={}, score=float(solved))


class HostileRun(ToyRun):
    """A toy run whose rollouts come from the pipeline."""

    def __init__(self, root: Path, case: str) -> None:
        super().__init__(root / "run", settings_of(1))
        context = HostileWorld(root, case)
        self.collector = context.collector(root, self.ledger, group_size=GROUP_SIZE, new_chat=self.new_chat)

    def new_chat(self, rollout_id: str, seed: int) -> ToyChat:
        (tree,) = self.say([[seed % 4 + 1, 2, 3]])
        return ToyChat(tree)

    async def collect(self, step: int) -> Sequence[Trajectory]:
        groups = await self.collector.collect(step, tasks(GROUPS))
        return [trajectory for group in groups for trajectory in group.trajectories]


@pytest.mark.parametrize("case", CASES)
def test_one_hostile_rollout_of_twenty_leaves_the_others_trained(case: str, tmp_path: Path) -> None:
    run = HostileRun(tmp_path, case)
    try:
        asyncio.run(train(run.parts))
    finally:
        run.close()
    with Ledger.read(tmp_path / "run") as ledger:
        entries, balance = ledger.entries(), ledger.balance()
    (hostile,) = [entry for entry in entries if entry.rollout_id == HOSTILE]
    others = [entry for entry in entries if entry.rollout_id != HOSTILE]
    assert hostile.outcome == CASES[case]
    assert [entry.disposition for entry in others] == [Disposition.TRAINED] * (GROUPS * GROUP_SIZE - 1)
    assert hostile.disposition is Disposition.TRAINED  # with the reward of its outcome
    assert (balance.dispatched, balance.trained, balance.in_flight, balance.steps) == (20, 20, 0, 1)
    assert not balance.dropped
    stored = Store(tmp_path / "rollouts").load(hostile.directory or "")
    assert stored.outcome == hostile.outcome
    assert ("traceback" in stored.notes) == (hostile.outcome is Outcome.CRASHED)
