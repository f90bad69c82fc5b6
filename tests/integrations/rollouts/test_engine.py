"""The engine of a peer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np
import pytest

from hone.integrations.rollouts.engine import PeerEngine
from hone.policy.engine import Completion, ContextOverflow, EngineError, Finish, Sampling
from hone.types import Int32


def completion(
    ids: Sequence[int] = (1, 2),
    logprobs: Sequence[float] = (-0.5, -0.25),
    version: Sequence[int] = (3, 4),
    finish: Finish = Finish.STOP,
) -> Completion:
    return Completion(
        token_ids=np.array(ids, np.int32),
        logprobs=np.array(logprobs, np.float32),
        version=np.array(version, np.int32),
        finish=finish,
    )


class Peer:
    def __init__(self, answer: Completion | Exception) -> None:
        self.answer, self.limits = answer, list[int]()

    async def __call__(self, prompt_ids: Int32, sampling: Sampling, *, session: str) -> Completion:
        self.limits.append(sampling.max_tokens)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def ask(peer: Peer, prompt: Sequence[int] = (1, 2, 3)) -> tuple[PeerEngine, Completion]:
    engine = PeerEngine(peer, vocabulary=10, context_tokens=8)
    return engine, asyncio.run(engine.generate(prompt, Sampling(max_tokens=100), session="s"))


def test_reply_and_its_newest_version_are_the_peers() -> None:
    engine, reply = ask(Peer(completion()))

    assert reply.token_ids.tolist() == [1, 2]
    assert engine.version == 4


def test_reply_is_limited_to_the_room_in_the_context() -> None:
    peer = Peer(completion())

    ask(peer)

    assert peer.limits == [5]


def test_prompt_without_room_is_the_policys_failure() -> None:
    with pytest.raises(ContextOverflow):
        ask(Peer(completion()), range(8))


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (RuntimeError("no server"), "the engine failed: RuntimeError: no server"),
        (completion(finish=Finish.ABORT), "aborted"),
        (completion([], [], []), "0 token ids"),
        (completion(logprobs=[-0.5]), "2 token ids with 1 log-probabilities and 2 versions"),
        (completion(version=[3]), "and 1 versions"),
        (completion([1, 10]), "token id outside 0 to 9"),
        (completion(logprobs=[-0.5, float("nan")]), "not a finite number"),
    ],
)
def test_reply_that_cannot_be_trained_on_is_an_engine_error(
    answer: Completion | Exception, message: str
) -> None:
    with pytest.raises(EngineError, match=message):
        ask(Peer(answer))
