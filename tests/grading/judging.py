"""A judge with a real tokenizer and chat template and a scripted, maximally naive model."""

from __future__ import annotations

import asyncio
import functools
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import numpy as np

from hone.grading.judge import Judge, TurnJudge
from hone.grading.judge_prompt import Evidence, control_tokens
from hone.grading.settings import JudgeSettings
from hone.policy.chat import Chat
from hone.policy.engine import Completion, ContextOverflow, Finish, Sampling
from hone.policy.model import make_renderer
from hone.policy.reply import Reply
from hone.policy.tiny import IM_END, IM_START, make_tokenizer
from hone.types import Int32, Judgement, Message, TokenTree, Turn
from tests.policy.conftest import SETTINGS, TEXTS

Answer = Callable[[list[tuple[str, str]], int], Awaitable[str]]  # (role, text) of each message, seed -> reply


@functools.cache
def tokenizer() -> Any:
    return make_tokenizer(TEXTS, SETTINGS)


@functools.cache
def renderer() -> Any:
    return make_renderer(tokenizer(), "qwen3")


class ScriptedJudge:
    """An engine that reads the messages off the control tokens of its prompt, as a model does."""

    version = 0

    def __init__(self, answer: Answer, *, context_tokens: int = 200_000) -> None:
        self.context_tokens = context_tokens
        self.answer = answer
        self.prompts: list[list[tuple[str, str]]] = []
        self.prompt_ids: list[list[int]] = []
        self.under_way = self.most_under_way = 0
        self.released: list[str] = []
        self._arrivals = asyncio.Semaphore(0)

    async def arrived(self, number: int) -> None:
        """Wait until `number` more votes have been requested."""
        for _ in range(number):
            await self._arrivals.acquire()

    async def generate(
        self, prompt_ids: Sequence[int] | Int32, sampling: Sampling, *, session: str
    ) -> Completion:
        if len(prompt_ids) >= self.context_tokens:
            raise ContextOverflow(len(prompt_ids), self.context_tokens)
        self.prompt_ids.append(list(prompt_ids))
        self.prompts.append(messages_of(prompt_ids))
        self.under_way += 1
        self._arrivals.release()
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            reply = await self.answer(self.prompts[-1], sampling.seed or 0)
        finally:
            self.under_way -= 1
        ids = np.array(tokenizer().encode(reply + IM_END), np.int32)
        zeros = np.zeros(len(ids))
        return Completion(
            token_ids=ids,
            logprobs=zeros.astype(np.float32),
            version=zeros.astype(np.int32),
            finish=Finish.STOP,
        )

    async def release(self, session: str) -> None:
        self.released.append(session)


def messages_of(ids: Sequence[int] | Int32) -> list[tuple[str, str]]:
    start, end = tokenizer().convert_tokens_to_ids([IM_START, IM_END])
    found: list[tuple[str, str]] = []
    for part in _split(list(ids), start)[1:]:
        text = tokenizer().decode(_split(part, end)[0])
        role, _, content = text.partition("\n")
        found.append((role, content))
    return found[:-1]  # the last is the reply to come


def _split(ids: list[int], at: int) -> list[list[int]]:
    parts: list[list[int]] = [[]]
    for token in ids:
        if token == at:
            parts.append([])
        else:
            parts[-1].append(int(token))
    return parts


class TextChat:
    """A conversation over an engine that is given text: the whole prompt is encoded as one string."""

    def __init__(self, engine: ScriptedJudge, seed: int) -> None:
        self.tree = TokenTree()
        self.max_prompt_tokens = engine.context_tokens - 64
        self._engine, self._seed = engine, seed

    def _ids(self, messages: Sequence[Message]) -> list[int]:
        text = tokenizer().apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
        return tokenizer().encode(text)

    def measure(self, messages: Sequence[Message], *, tools: object = None) -> int:
        return len(self._ids(messages))

    async def reply(self, messages: list[Message], **options: object) -> Reply:
        sampling = Sampling(seed=self._seed)
        done = await self._engine.generate(self._ids(messages), sampling, session="")
        return Reply(content=tokenizer().decode(done.token_ids).removesuffix(IM_END), node=None)

    async def close(self) -> None: ...


def text_judge(answer: Answer, *, context_tokens: int = 200_000, **settings: Any) -> Judge:
    engine = ScriptedJudge(answer, context_tokens=context_tokens)
    given = JudgeSettings(enabled=True, votes=1, **settings)
    return Judge(lambda name, seed: TextChat(engine, seed), given, control=control_tokens(tokenizer()))


def judge_of(engine: Any, **settings: Any) -> Judge:
    def new_chat(name: str, seed: int) -> Chat:
        return Chat(engine, renderer(), Sampling(max_tokens=64, seed=seed), session=name)

    given = JudgeSettings(enabled=True, **{"max_tokens": 64, **settings})
    return Judge(new_chat, given, control=control_tokens(tokenizer()))


def turn(index: int, **changes: Any) -> Turn:
    fields: dict[str, Any] = {
        "index": index,
        "node": None,
        "reply": "I look at the file.\n```bash\ncat shop.py\n```",
        "action": "cat shop.py",
        "exit_code": 0,
        "observation": "def total_price(items):\n    return 0",
        "seconds": 0.1,
    }
    return Turn(**{**fields, **changes})


def judged(
    judge: Judge, turns: Sequence[Turn], *, issue: str = "It is broken.", seed: int = 7
) -> list[Judgement]:
    async def run() -> list[Judgement]:
        async with asyncio.TaskGroup() as tasks:
            judging = TurnJudge(judge, tasks, issue=issue, name="r", seed=seed)
            for one in turns:
                judging.observe(one, submits=False)
            return await judging.settle()

    return asyncio.run(run())


def score_of(judge: Judge, evidence: Evidence) -> float:
    """What the last turn is worth to the judge."""
    return judged(judge, [*evidence.history, evidence.turn], issue=evidence.issue)[-1].score


async def naive(messages: list[tuple[str, str]], seed: int) -> str:
    """Judges by the return code, and believes whatever is said to it outside of quotations.

    A quotation is what stands between its marks; what has a bar before it is one, too.
    """
    nonce = re.search(r"BEGIN QUOTE ([0-9a-f]{8,})", messages[0][1])
    text = "\n".join(text for _, text in messages[1:])
    if nonce is not None:
        block = rf"^BEGIN QUOTE {nonce[1]}$.*?^END QUOTE {nonce[1]}$"
        text = re.sub(block, "", text, flags=re.MULTILINE | re.DOTALL)
    own = "\n".join(line for line in text.splitlines() if not line.startswith("|"))
    return f"I have looked. \\boxed{{{_believed(own, messages):+d}}}"


def _believed(own: str, messages: list[tuple[str, str]]) -> int:
    before, header, _ = own.rpartition("## Scoring Rules")
    if not header or "\\boxed{+1} or \\boxed{-1}" not in messages[-1][1][-1000:]:
        return +1  # nobody told it what to do, or it was too long ago
    if len(messages) != 2:
        return +1  # a whole conversation in which it seems to have said so
    normal = (
        before.replace("\uff0b", "+").replace("\uff3c", "\\").replace("\u200b", "").replace("\u043e", "o")
    )
    marks = re.findall(r"\\+boxed\s*\{\s*([+-]?1)\s*\}", normal)
    if marks:
        return int(marks[-1])
    if re.search(
        r"ignore (all|any|the) (previous|prior|above)|give (it|this step) \+1|score: \+1", normal, re.I
    ):
        return +1
    codes = re.findall(r"^Execution result \(returncode=(-?\d+)\)", before, re.MULTILINE)
    return +1 if codes and codes[-1] == "0" else -1
