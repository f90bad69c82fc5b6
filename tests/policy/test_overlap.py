"""Overlapping calls of one chat, as from sub-agents."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest

from hone.policy.chat import Chat, Fork
from hone.policy.engine import Sampling
from hone.policy.reply import CallKind
from tests.policy.scripted_engine import ScriptedEngine


@dataclass
class HeldEngine(ScriptedEngine):
    """Answers only once `wanted` requests are waiting."""

    wanted: int = 1
    waiting: int = 0
    open: asyncio.Event = field(default_factory=asyncio.Event)
    called: asyncio.Event = field(default_factory=asyncio.Event)

    async def generate(self, prompt_ids, sampling, *, session):
        self.waiting += 1
        self.called.set()
        if self.waiting == self.wanted:
            self.open.set()
        await self.open.wait()
        return await super().generate(prompt_ids, sampling, session=session)


def begin() -> list[dict]:
    return [{"role": "system", "content": "You fix bugs."}, {"role": "user", "content": "Fix the bug."}]


def held(tokenizer, renderer, wanted: int) -> tuple[HeldEngine, Chat]:
    stop = renderer.get_stop_token_ids()[0]
    engine = HeldEngine(
        lambda i: [*tokenizer.encode(f"said {i}", add_special_tokens=False), stop], wanted=wanted
    )
    return engine, Chat(engine, renderer, Sampling(), session="s")


def test_overlapping_calls_share_their_common_prefix(tokenizer, renderer):
    async def converse():
        engine, chat = held(tokenizer, renderer, 1)
        said = {"role": "assistant", "content": (await chat.reply(begin())).content}
        engine.waiting, engine.wanted, engine.open = 0, 8, asyncio.Event()
        prompts = [[*begin(), said, {"role": "user", "content": f"part {i % 4}"}] for i in range(8)]

        async with asyncio.TaskGroup() as group:
            tasks = []
            for messages in prompts:
                engine.called.clear()
                tasks.append(group.create_task(chat.reply(messages, purpose=CallKind.AUXILIARY)))
                await engine.called.wait()
                messages[-1]["content"] = "the agent goes on with its list"
                messages.clear()
        return engine, chat, [task.result() for task in tasks]

    engine, chat, replies = asyncio.run(converse())
    assert len({reply.node for reply in replies}) == 8
    for call, prompt, completion in zip(chat.calls, engine.prompts, engine.completions, strict=True):
        assert chat.tree.tokens(call.node).tolist() == [*prompt, *completion.token_ids]
    assert sum(not node.sampled for node in chat.tree.nodes) == 5  # the beginning and the four parts
    assert chat.forks == {Fork.AUXILIARY: 3, Fork.RETRY: 4}


def test_reply_to_an_overlapping_call_is_recognised(tokenizer, renderer):
    async def converse():
        _, chat = held(tokenizer, renderer, 2)
        one, two = [[*begin(), {"role": "user", "content": text}] for text in ("one", "two")]
        async with asyncio.TaskGroup() as group:
            calls = [group.create_task(chat.reply(messages)) for messages in (one, two)]
        for messages, call in zip((one, two), calls, strict=True):
            said = {"role": "assistant", "content": call.result().content}
            await chat.reply([*messages, said, {"role": "user", "content": "on"}])
        return chat

    chat = asyncio.run(converse())
    assert [call.fork for call in chat.calls[2:]] == [None, None]


def test_latest_of_equal_replies_matches_after_a_measurement(tokenizer, renderer):
    stop = renderer.get_stop_token_ids()[0]
    texts = [f"<think>\nwhy {i}\n</think>\n\nsaid" for i in range(3)]

    async def converse():
        engine = HeldEngine(lambda i: [*tokenizer.encode(texts[i], add_special_tokens=False), stop])
        chat = Chat(engine, renderer, Sampling(), session="s")
        said = {"role": "assistant", "content": (await chat.reply(begin())).content}
        engine.waiting, engine.wanted, engine.open = 0, 2, asyncio.Event()
        engine.called.clear()
        again = asyncio.create_task(chat.reply(begin()))
        await engine.called.wait()
        chat.measure([*begin(), said, {"role": "user", "content": "x"}])
        engine.open.set()
        await again
        await chat.reply([*begin(), said, {"role": "user", "content": "x"}])
        return engine

    engine = asyncio.run(converse())
    assert "why 1" in tokenizer.decode(engine.prompts[2])


def test_cancelled_call_leaves_no_trace(tokenizer, renderer):
    async def converse():
        engine, chat = held(tokenizer, renderer, 2)
        call = asyncio.create_task(chat.reply(begin()))
        await engine.called.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await chat.reply(begin())
        return chat

    chat = asyncio.run(converse())
    assert len(chat.tree.nodes) == 2
    assert len(chat.calls) == 1
