"""The judge of a run, and the judgements of one rollout.

    turn -> prompt -> m votes at once -> Judgement            while the agent goes on with its next turn

The rule that must not break: whatever a judge does (fail, hang, talk nonsense), the rollout is none the
worse; what it did is recorded with the turn, by the turn's index.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from hone.grading.judge.prompt import Evidence, Question
from hone.grading.judge.quote import Quoter
from hone.grading.judge.votes import Judgement, Vote, failed_vote, vote_of
from hone.grading.settings import JudgeSettings
from hone.policy.engine import ContextOverflow, EngineError
from hone.policy.reply import Reply
from hone.types import Message, Turn

CLOSE_TIMEOUT_S = 10.0


class JudgeChat(Protocol):
    """One vote's conversation with the judge's model; `hone.policy.chat.Chat` is one."""

    @property
    def max_prompt_tokens(self) -> int: ...

    def measure(self, messages: Sequence[Message]) -> int: ...

    async def reply(self, messages: list[Message]) -> Reply: ...

    async def close(self) -> None: ...


class Judge:
    """Stateless but for its bound on votes under way; one judge serves all rollouts of a run.

    `new_chat(name, seed)` opens a conversation with the judge's model, never with the policy. `control` are
    the control tokens of its tokenizer (`hone.grading.judge.quote.control_tokens`).
    """

    def __init__(
        self,
        new_chat: Callable[[str, int], JudgeChat],
        settings: JudgeSettings,
        *,
        control: Collection[str] = (),
    ) -> None:
        self.settings = settings
        self._new_chat = new_chat
        self._quoter = Quoter(control)
        self._places = asyncio.Semaphore(settings.concurrency)

    def question(self, evidence: Evidence, *, secret: str) -> Question:
        return Question(evidence, self._quoter, self.settings, secret=secret)

    async def vote(self, question: Question, *, name: str, seed: int) -> Vote:
        """One vote; `name` is its conversation's. Raises nothing that a judge's engine can cause."""
        async with self._places:
            started = time.monotonic()
            try:
                async with asyncio.timeout(self.settings.timeout_s):
                    return await self._ask(question, name, seed, started)
            except TimeoutError:
                error = f"no vote within {self.settings.timeout_s:g} s"
            except (EngineError, ContextOverflow) as failure:
                error = f"{type(failure).__name__}: {failure}"
            return failed_vote(error, latency_ms=_ms_since(started))

    async def _ask(self, question: Question, name: str, seed: int, started: float) -> Vote:
        chat = self._new_chat(name, seed)
        try:
            messages = question.messages(lambda asked: chat.measure(asked) <= chat.max_prompt_tokens)
            reply = await chat.reply(messages)
        finally:
            await _close(chat)
        return vote_of(reply.content, truncated=reply.truncated, latency_ms=_ms_since(started))


class Judging:
    """The judgements of one rollout; its votes are tasks of `tasks`.

    `seed` is the rollout's; vote v draws with seed * 1000 + v.
    """

    def __init__(self, judge: Judge, tasks: asyncio.TaskGroup, *, issue: str, name: str, seed: int) -> None:
        self._judge = judge
        self._tasks = tasks
        self._issue = issue
        self._name = name
        self._seed = seed
        self._history: list[Turn] = []
        self._votes: dict[int, list[asyncio.Task[Vote]]] = {}

    def observe(self, turn: Turn, *, submits: bool) -> None:
        """Begin to judge a turn; returns at once. One without a command has nothing to be judged by."""
        if turn.action is None:
            return
        evidence = Evidence(issue=self._issue, history=tuple(self._history), turn=turn)
        self._history.append(turn)
        if submits and self._judge.settings.skip_submit:
            return
        name = f"{self._name}-judge-{turn.index}"
        question = self._judge.question(evidence, secret=f"{name} {self._seed}")
        votes = range(self._judge.settings.votes)
        self._votes[turn.index] = [
            self._tasks.create_task(
                self._judge.vote(question, name=f"{name}-{vote}", seed=self._seed * 1000 + vote)
            )
            for vote in votes
        ]

    async def settle(self) -> list[Judgement]:
        """Every judgement, by turn; waits `judge.wait_s` seconds at most for what is still under way."""
        under_way = [task for tasks in self._votes.values() for task in tasks]
        if under_way:
            await asyncio.wait(under_way, timeout=self._judge.settings.wait_s)
            self.abandon()
            await asyncio.wait(under_way)
        return [
            Judgement(step_index=index, votes=tuple(map(self._drawn, tasks)))
            for index, tasks in sorted(self._votes.items())
        ]

    def abandon(self) -> None:
        """Give up the votes that are still under way."""
        for tasks in self._votes.values():
            for task in tasks:
                task.cancel()

    def _drawn(self, task: asyncio.Task[Vote]) -> Vote:
        if task.cancelled():
            waited = self._judge.settings.wait_s
            return failed_vote(f"no vote within {waited:g} s of the rollout's end", latency_ms=1000 * waited)
        return task.result()


async def _close(chat: JudgeChat) -> None:
    try:
        async with asyncio.timeout(CLOSE_TIMEOUT_S):
            await chat.close()
    except (EngineError, TimeoutError):
        return  # what an engine keeps for a conversation that is over is its own; the vote stands


def _ms_since(started: float) -> float:
    return 1000 * (time.monotonic() - started)
