"""The engine at a service: replies, versions, and the proof of weights at each update."""

from __future__ import annotations

import asyncio
import functools
import sys
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hone.integrations.tinker.engine import TinkerEngine, read_reply, verify
from hone.integrations.tinker.learner import scores
from hone.integrations.tinker.service import Service, ServiceError
from hone.policy.engine import ContextOverflow, EngineError, Finish, Sampling
from hone.policy.engines.client import WeightMismatch
from hone.policy.settings import TinkerEngineSettings
from tests.integrations.tinker import fake_sdk
from tests.integrations.tinker.fake_sdk import Server
from tests.integrations.tinker.test_learner import SAMPLES, learner_at, settings_of, trainer_at
from tests.train.examples import tiny_model, tokenizer
from tests.train.trajectories import VOCABULARY

pytestmark = pytest.mark.model

PROMPT = [5, 9, 2, 7]
PROBE = np.array([3, 1, 4, 1, 5, 9, 2, 6], np.int32)


def in_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(*arguments: Any, **fixtures: Any) -> None:
        asyncio.run(test(*arguments, **fixtures))

    return run


@pytest.fixture(autouse=True)
def sdk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tinker", fake_sdk)


@pytest.fixture
def base(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    tiny_model().save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def engine_at(server: Server, **settings: Any) -> TinkerEngine:
    fake_sdk.ServiceClient.server = server
    chosen = TinkerEngineSettings(**({"context_tokens": 64} | settings))
    return TinkerEngine(Service(fake_sdk.NAME, timeout_s=60), chosen, vocabulary=VOCABULARY)


@in_a_loop
async def test_reply_has_the_log_probabilities_of_the_model():
    engine = engine_at(Server(tiny_model()))
    reply = await engine.generate(PROMPT, Sampling(max_tokens=8, seed=2**40 + 3), session="s")
    scored = await engine.score([*PROMPT, *reply.token_ids.tolist()], len(PROMPT))
    np.testing.assert_allclose(reply.logprobs, scored, atol=1e-5)
    assert reply.finish is Finish.LENGTH
    assert reply.version.tolist() == [0] * 8


@in_a_loop
async def test_stop_token_ends_a_reply_and_is_its_last_token():
    engine = engine_at(Server(tiny_model()))
    free = await engine.generate(PROMPT, Sampling(max_tokens=8, seed=1), session="s")
    stop = int(free.token_ids[3])
    reply = await engine.generate(PROMPT, Sampling(max_tokens=8, seed=1, stop_token_ids=(stop,)), session="s")
    first = free.token_ids.tolist().index(stop)
    assert reply.token_ids.tolist() == free.token_ids.tolist()[: first + 1]
    assert reply.finish is Finish.STOP


@in_a_loop
async def test_reply_is_cut_at_the_context():
    engine = engine_at(Server(tiny_model()), context_tokens=6)
    reply = await engine.generate(PROMPT, Sampling(max_tokens=50), session="s")
    assert len(reply.token_ids) == 2
    with pytest.raises(ContextOverflow):
        await engine.generate([*PROMPT, 1, 1], Sampling(), session="s")


@in_a_loop
async def test_update_gives_new_weights_and_their_version(base: Path):
    server = Server(tiny_model())
    trainer = trainer_at(server, base, settings_of())
    engine = engine_at(server)
    before = await engine.score(PROBE, 1)
    trainer.step(SAMPLES)
    await engine.publish(learner_at(trainer), 1, PROBE, 1e-2)
    reply = await engine.generate(PROMPT, Sampling(max_tokens=2), session="s")
    assert engine.version == 1
    assert reply.version.tolist() == [1, 1]
    after = await engine.score(PROBE, 1)
    assert np.abs(after - before).max() > 1e-3
    np.testing.assert_allclose(after, learner_at(trainer).text_logprobs(PROBE), atol=1e-5)


@in_a_loop
async def test_sampler_with_the_weights_before_is_detected(base: Path):
    server = Server(tiny_model(), stale_sampler=True)
    trainer = trainer_at(server, base, settings_of())
    engine = engine_at(server)
    await engine.publish(learner_at(trainer), 0, PROBE, 10.0)
    trainer.step(SAMPLES)
    with pytest.raises(WeightMismatch, match="still samples from the weights before"):
        await engine.publish(learner_at(trainer), 1, PROBE, 10.0)
    assert engine.version == 0


def test_weights_are_told_apart_by_their_scores():
    new, old = np.array([-1.0, -2.0], np.float32), np.array([-1.004, -2.0], np.float32)
    verify(new + np.float32(1e-6), new, old, 1e-2)
    verify(new, new, None, 1e-2)
    verify(new, new, new, 1e-2)
    with pytest.raises(WeightMismatch, match="from other weights"):
        verify(new + np.float32(0.1), new, old, 1e-2)
    with pytest.raises(WeightMismatch, match="from the weights before"):
        verify(old, new, old, 1e-2)


@in_a_loop
async def test_update_waits_for_the_requests_in_flight(base: Path, monkeypatch: pytest.MonkeyPatch):
    server = Server(tiny_model())
    trainer = trainer_at(server, base, settings_of())
    engine = engine_at(server)
    pending: Future[Any] = Future()
    asked = asyncio.Event()

    def sample(*_: Any) -> Future[Any]:
        asked.set()
        return pending

    monkeypatch.setattr(engine._sampler, "sample", sample, raising=False)
    request = asyncio.create_task(engine.generate(PROMPT, Sampling(max_tokens=1), session="s"))
    await asked.wait()
    update = asyncio.create_task(engine.publish(learner_at(trainer), 1, PROBE, 1e-2))
    late = asyncio.create_task(engine.generate(PROMPT, Sampling(max_tokens=1), session="s"))
    await asyncio.sleep(0)
    sequence = SimpleNamespace(tokens=[4], logprobs=[-1.0], stop_reason="length")
    pending.set_result(SimpleNamespace(sequences=[sequence]))
    assert (await request).version.tolist() == [0]
    await update
    assert (await late).version.tolist() == [1]


@in_a_loop
async def test_cancelled_request_is_dropped(monkeypatch: pytest.MonkeyPatch):
    engine = engine_at(Server(tiny_model()))
    pending: Future[Any] = Future()
    asked = asyncio.Event()

    def sample(*_: Any) -> Future[Any]:
        asked.set()
        return pending

    monkeypatch.setattr(engine._sampler, "sample", sample, raising=False)
    request = asyncio.create_task(engine.generate(PROMPT, Sampling(), session="s"))
    await asked.wait()
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request
    await engine.pause()  # nothing is in flight
    assert pending.cancelled()


@in_a_loop
async def test_closing_ends_the_requests_in_flight(monkeypatch: pytest.MonkeyPatch):
    engine = engine_at(Server(tiny_model()))
    asked = asyncio.Event()

    def sample(*_: Any) -> Future[Any]:
        asked.set()
        return Future()

    monkeypatch.setattr(engine._sampler, "sample", sample, raising=False)
    request = asyncio.create_task(engine.generate(PROMPT, Sampling(), session="s"))
    await asked.wait()
    await engine.close()
    with pytest.raises(EngineError, match="the engine was closed"):
        await request


@in_a_loop
async def test_failed_request_is_an_engine_error(monkeypatch: pytest.MonkeyPatch):
    engine = engine_at(Server(tiny_model()))
    failed: Future[Any] = Future()
    failed.set_exception(ConnectionError("no route"))
    monkeypatch.setattr(engine._sampler, "sample", lambda *_: failed, raising=False)
    with pytest.raises(EngineError, match=r"sampling failed at .* no route"):
        await engine.generate(PROMPT, Sampling(), session="s")


@in_a_loop
async def test_request_that_takes_too_long_is_an_engine_error(monkeypatch: pytest.MonkeyPatch):
    engine = engine_at(Server(tiny_model()), request_timeout_s=0.01)
    monkeypatch.setattr(engine._sampler, "sample", lambda *_: Future(), raising=False)
    with pytest.raises(EngineError, match=r"took more than engine.request_timeout_s"):
        await engine.generate(PROMPT, Sampling(), session="s")


def sequence(**changes: Any) -> Any:
    return SimpleNamespace(**({"tokens": [4, 1], "logprobs": [-1.0, -2.0], "stop_reason": "stop"} | changes))


def test_reply_without_its_stop_token_is_refused():
    with pytest.raises(EngineError, match="left it out"):
        read_reply(sequence(), Sampling(stop_token_ids=(7,)), 0, "URL")


def test_reply_without_log_probabilities_is_refused():
    with pytest.raises(EngineError, match="2 tokens and 0 log-probabilities"):
        read_reply(sequence(logprobs=None), Sampling(stop_token_ids=(1,)), 0, "URL")


@pytest.mark.parametrize("sampling", [{"temperature": 0.7}, {"top_p": 0.9}, {"top_k": 3}])
def test_other_distribution_has_no_log_probabilities(sampling: dict[str, Any]):
    reply = read_reply(sequence(), Sampling(stop_token_ids=(1,), **sampling), 0, "URL")
    assert np.isnan(reply.logprobs).all()


def test_greedy_reply_has_log_probabilities():
    reply = read_reply(sequence(), Sampling(stop_token_ids=(1,), temperature=0), 0, "URL")
    assert reply.logprobs.tolist() == [-1.0, -2.0]


def test_scores_of_another_length_are_refused():
    assert scores([None, -1.0, -2.0], 3, "URL").tolist() == [-1.0, -2.0]
    assert scores([-1.0, -2.0], 3, "URL").tolist() == [-1.0, -2.0]
    with pytest.raises(ServiceError, match="scored 2 of 4 tokens"):
        scores([None, -1.0], 4, "URL")
