"""Provider, agent and grader in memory, for tests that need no command to run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hone.agents import AgentRun
from hone.grading import GraderError
from hone.outcomes import Outcome
from hone.policy.engine import EngineError
from hone.policy.reply import Chat
from hone.rollout.episode import RolloutContext
from hone.rollout.errors import StoreError
from hone.rollout.groups import RolloutProgress
from hone.rollout.ledger import Ledger
from hone.rollout.settings import RolloutSettings
from hone.rollout.store import Store
from hone.sandbox import Health, ProviderUnavailable, Sandbox, SandboxSpec
from hone.sandbox.contract import Command, WriteContext
from hone.types import Task, Verdict
from tests.rollout.collecting import Collector


class MemorySandbox(Sandbox):
    """Runs nothing."""

    def __init__(self) -> None:
        self.id, self.spec, self.enforced = "m", SandboxSpec(), {}

    async def close(self) -> None:
        await asyncio.sleep(0)

    async def _exec(self, command: Command) -> Any: ...
    async def read(self, path: str) -> Any: ...
    async def write(self, path: str, data: bytes, *, mode: int = 0o644) -> None: ...
    async def upload(self, source: Path, target: str) -> None: ...
    async def download(self, source: str, target: Path) -> None: ...


class World:
    """Provider, agent, grader and patch in one; the i-th event fails as `faults` says (None: it does not)."""

    def __init__(self, faults: Sequence[str | None], solves: Callable[[str], bool] = lambda i: True) -> None:
        self._faults = iter(faults)
        self._solves = solves
        self.at_once = self.most_at_once = 0
        self.solving: set[str] = set()

    async def _event(self, errors: dict[str, Exception]) -> None:
        await asyncio.sleep(0)
        fault = next(self._faults, None)
        if fault in errors:
            raise errors[fault]

    async def start(self, spec: SandboxSpec) -> Sandbox:
        await self._event({"fault": ProviderUnavailable("injected", retryable=True)})
        return MemorySandbox()

    async def health(self) -> Health:
        return Health(checks=())

    async def images(self) -> list[str]:
        return []

    async def digest(self, image: str) -> str:
        return ""

    async def build(self, image: str, write_context: WriteContext, *, network: bool) -> None:
        return None

    async def reconcile(self) -> int:
        return 0

    async def __aenter__(self) -> World:
        return self

    async def __aexit__(self, *exc: object) -> None:
        return None

    async def run(self, task: Task, sandbox: Sandbox, chat: Chat, run: AgentRun) -> None:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await self._event({"fault": EngineError("injected"), "defect": ZeroDivisionError()})
            if self._solves(run.rollout_id):
                self.solving.add(run.rollout_id)
            run.ending = Outcome.TURN_LIMIT if run.rollout_id in self.solving else None
        finally:
            self.at_once -= 1

    async def extract(self, sandbox: Sandbox, task: Task, *, intact: bool = False) -> str:
        return "a patch"

    async def grade(self, task: Task, patch: str) -> Verdict:
        await self._event({"fault": GraderError("injected"), "defect": StoreError("the disk is full")})
        return Verdict(resolved=True, tests={}, score=1.0)

    def context(self, root: Path, *, new_chat: Any = None, **options: Any) -> RolloutContext:
        return RolloutContext(
            provider=self,
            spec=SandboxSpec(),
            agent=self,
            grader=self,
            new_chat=new_chat,
            workspaces=root / "workspaces",
            settings=RolloutSettings(**{"group_size": 2, "retry_delay_s": 0.0, **options}),
            extract=self.extract,
        )

    def collector(
        self,
        root: Path,
        ledger: Ledger,
        *,
        progress: Callable[[RolloutProgress], None] = lambda _: None,
        **options: Any,
    ) -> Collector:
        return Collector(self.context(root, **options), ledger, Store(root / "rollouts"), progress=progress)
