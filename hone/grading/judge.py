"""The judge of a run, and the judgements of one rollout.

    turn -> prompt -> m concurrent votes -> Judgement            while the agent continues with its next turn

Invariant: a judge that fails, hangs or answers nonsense never fails the rollout; its failure is recorded with
the turn.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from hone.grading.judge_prompt import BAR, Evidence, JudgePrompt, Quoter, clip
from hone.grading.settings import JudgeSettings
from hone.policy.engine import ContextOverflow, EngineError
from hone.policy.reply import Reply
from hone.types import Judgement, Message, Turn, Vote
from hone.utils.concurrency import finish_within

CLOSE_TIMEOUT_S = 10.0


class JudgeChat(Protocol):
    """The conversation of one vote with the judge's model, such as `hone.policy.chat.Chat`."""

    @property
    def max_prompt_tokens(self) -> int: ...

    def measure(self, messages: Sequence[Message]) -> int: ...

    async def reply(self, messages: list[Message]) -> Reply: ...

    async def close(self) -> None: ...


class Judge:
    """Serves all rollouts of a run and bounds their concurrent votes.

    Args:
        new_chat: (name, seed) -> a conversation with the judge's model, never with the policy.
        control: control tokens of its tokenizer; see `hone.grading.judge_prompt.control_tokens`.
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
        self._slots = asyncio.Semaphore(settings.concurrency)

    def prompt(self, evidence: Evidence, *, secret: str) -> JudgePrompt:
        return JudgePrompt(evidence, self._quoter, self.settings, secret=secret)

    async def vote(self, prompt: JudgePrompt, *, name: str, seed: int) -> Vote:
        """Return one vote; `name` is its conversation's. Errors of the engine become a failed vote."""
        async with self._slots:
            started = time.monotonic()
            try:
                async with asyncio.timeout(self.settings.timeout_s):
                    return await self._ask(prompt, name, seed, started)
            except TimeoutError:
                error = f"no vote within {self.settings.timeout_s:g} s"
            except (EngineError, ContextOverflow) as failure:
                error = f"{type(failure).__name__}: {failure}"
            return failed_vote(error, latency_ms=_ms_since(started))

    async def _ask(self, prompt: JudgePrompt, name: str, seed: int, started: float) -> Vote:
        chat = self._new_chat(name, seed)
        try:
            messages = prompt.messages(lambda asked: chat.measure(asked) <= chat.max_prompt_tokens)
            reply = await chat.reply(messages)
        finally:
            await _close(chat)
        return vote_of(reply.content, truncated=reply.truncated, latency_ms=_ms_since(started))


class TurnJudge:
    """Judges the turns of one rollout; its votes are tasks of `tasks`.

    Args:
        seed: the rollout's; vote v samples with seed * 1000 + v.
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
        """Start to judge a turn, without waiting; a turn without a command is not judged."""
        if turn.action is None:
            return
        evidence = Evidence(issue=self._issue, history=tuple(self._history), turn=turn)
        self._history.append(turn)
        if submits and self._judge.settings.skip_submit:
            return
        name = f"{self._name}-judge-{turn.index}"
        prompt = self._judge.prompt(evidence, secret=f"{name} {self._seed}")
        votes = range(self._judge.settings.votes)
        self._votes[turn.index] = [
            self._tasks.create_task(
                self._judge.vote(prompt, name=f"{name}-{vote}", seed=self._seed * 1000 + vote)
            )
            for vote in votes
        ]

    async def settle(self) -> list[Judgement]:
        """Return every judgement, by turn; wait at most `judge.wait_s` seconds for votes under way."""
        under_way = [task for tasks in self._votes.values() for task in tasks]
        await finish_within(under_way, self._judge.settings.wait_s)
        return [
            Judgement(step_index=index, votes=tuple(map(self._vote_of, tasks)))
            for index, tasks in sorted(self._votes.items())
        ]

    def abandon(self) -> None:
        """Cancel the votes under way."""
        for tasks in self._votes.values():
            for task in tasks:
                task.cancel()

    def _vote_of(self, task: asyncio.Task[Vote]) -> Vote:
        if task.cancelled():
            waited = self._judge.settings.wait_s
            return failed_vote(f"no vote within {waited:g} s of the rollout's end", latency_ms=1000 * waited)
        return task.result()


async def _close(chat: JudgeChat) -> None:
    try:
        async with asyncio.timeout(CLOSE_TIMEOUT_S):
            await chat.close()
    except (EngineError, TimeoutError):
        return  # the vote is complete; the engine expires the conversation itself


def _ms_since(started: float) -> float:
    return 1000 * (time.monotonic() - started)


STORED_CHARACTERS = 4000  # of a vote's text
_BOXED = re.compile(r"\\boxed\s*\{([^{}]*)\}")
_SCORES = {"+1": 1, "1": 1, "-1": -1}


def read_score(reply: str) -> int | None:
    r"""Return +1 or -1 when all boxed marks of the judge's answer agree, otherwise None.

    Lines behind a bar are quotations and do not count, nor does text before the end of the reasoning. Every
    boxed mark in the rest must be +1 (or 1), or every one -1.

    Example: read_score("Relevant and right. \\boxed{+1}") -> 1; "\\boxed{+1} ... \\boxed{-1}" -> None.
    """
    answer = reply.rpartition("</think>")[2]
    own = "\n".join(line for line in answer.splitlines() if not line.lstrip().startswith(BAR.strip()))
    marks = {_SCORES.get(found.strip()) for found in _BOXED.findall(own)}
    return marks.pop() if len(marks) == 1 else None


def vote_of(reply: str, *, truncated: bool, latency_ms: float) -> Vote:
    """Return the vote of a reply; a truncated reply is invalid, because its conclusion is missing."""
    score = None if truncated else read_score(reply)
    text = clip(reply, STORED_CHARACTERS)
    return Vote(score=score or 0, latency_ms=latency_ms, raw_text=text, ok=score is not None)


def failed_vote(error: str, *, latency_ms: float) -> Vote:
    """Return the vote of a judge that did not reply."""
    return Vote(score=0, latency_ms=latency_ms, raw_text="", ok=False, error=error)
