"""Real servers of each kind: log-probabilities match the newest weights."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
import torch

from hone.policy.engine import Completion, ContextOverflow, EngineError, Finish, Sampling
from hone.policy.engines.client import Http, WeightMismatch, new_session
from hone.policy.engines.fleet import Fleet
from hone.policy.engines.managed_server import ManagedServer
from hone.policy.engines.open import CLIENTS, open_servers
from hone.policy.engines.replica import Proof
from hone.policy.model import load_model, load_tokenizer
from hone.policy.settings import ModelSettings, ServerEngineSettings
from hone.policy.tiny import make_tiny
from hone.train.publish import fingerprint
from tests.policy.conftest import SETTINGS, TEXTS
from tests.policy.engines.real import KINDS, PYTHON

pytestmark = [pytest.mark.timeout(900), pytest.mark.full]
CONTEXT = 256
SHAPE = SETTINGS.model_copy(update={"head_dim": 32})  # the smallest size of vLLM's attention on a CPU
Result = TypeVar("Result")


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Return three models of one shape with different weights and tied embeddings."""
    root = tmp_path_factory.mktemp("models")
    return [make_tiny(TEXTS, root / f"m{i}", SHAPE.model_copy(update={"seed": i})) for i in range(3)]


@pytest.fixture(scope="module")
def url(kind: Any, models: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    settings = ServerEngineSettings(
        kind=kind, context_tokens=CONTEXT, threads=1, python=PYTHON[kind], ready_timeout_s=600.0
    )
    log = tmp_path_factory.mktemp("engine") / "server.log"
    managed = ManagedServer(kind, settings, ModelSettings(path=models[0]), log)
    with asyncio.Runner() as runner:
        try:
            yield runner.run(managed.start())
        finally:
            runner.run(managed.stop())


Use = Callable[..., Any]


@pytest.fixture
def use(kind: Any, url: str, models: list[Path]) -> Use:
    """`use(job, **settings)`: run `job(fleet)` on an engine over the shared server, first weights."""

    def run(
        job: Callable[[Fleet], Coroutine[Any, Any, Result]], *, partial: bool = False, **settings: Any
    ) -> Result:
        async def opened() -> Result:
            wanted = ServerEngineSettings(kind=kind, urls=(url,), **{"context_tokens": CONTEXT, **settings})
            tokenizer = load_tokenizer(models[0])
            named = ModelSettings(path=models[0])
            async with open_servers(wanted, named, tokenizer, logs=models[0], partial=partial) as fleet:
                await fleet.load_weights(models[0], 0)
                return await job(fleet)

        return asyncio.run(opened())

    return run


def worst(folder: Path, prompt: Sequence[int], reply: Completion, temperature: float, version: int) -> float:
    """The largest difference between the reply's log-probabilities of one version and the model's own."""
    ids = torch.tensor([[*prompt, *reply.token_ids.tolist()]])
    with torch.inference_mode():
        every = torch.log_softmax(load_model(folder)(ids).logits[0, len(prompt) - 1 : -1] / temperature, -1)
    own = every.gather(1, ids[0, len(prompt) :, None])[:, 0].numpy()
    chosen = reply.version == version
    return float(np.abs(own - reply.logprobs)[chosen].max()) if chosen.any() else 0.0


PROMPT = list(range(40, 60))


@pytest.mark.parametrize("temperature", [1.0, 0.7, 0.0])
def test_logprobs_match_the_model_at_any_temperature(use: Use, models, temperature: float):
    async def job(fleet: Fleet):
        sampling = Sampling(temperature=temperature, max_tokens=64, seed=3)
        return await fleet.generate(PROMPT, sampling, session="s")

    reply = use(job)
    assert (len(reply.token_ids), reply.finish) == (64, Finish.LENGTH)
    assert worst(models[0], PROMPT, reply, temperature or 1.0, 0) <= 1e-4


def test_replies_end_at_the_callers_stop_tokens(use: Use):
    stops = tuple(range(100, 250))

    async def job(fleet: Fleet):
        stopped = [
            await fleet.generate(PROMPT, Sampling(max_tokens=64, seed=i, stop_token_ids=stops), session="s")
            for i in range(8)
        ]
        short = await fleet.generate([50] * (CONTEXT - 2), Sampling(max_tokens=32), session="s")
        with pytest.raises(ContextOverflow):
            await fleet.generate([50] * CONTEXT, Sampling(max_tokens=32), session="s")
        with pytest.raises(ValueError, match="token ids from 0 to"):
            await fleet.generate([10**6], Sampling(max_tokens=32), session="s")
        return stopped, short

    stopped, short = use(job)
    for reply in stopped:
        *said, last = reply.token_ids.tolist()
        assert (last in stops, reply.finish) == (True, Finish.STOP)
        assert not set(said) & set(stops)
    assert (len(short.token_ids), short.finish) == (2, Finish.LENGTH)


def test_seeded_replies_repeat(use: Use, kind: str):
    if kind == "sglang":
        pytest.skip("a seed counts only with --enable-deterministic-inference, which its CPU backend lacks")

    async def job(fleet: Fleet):
        return [
            await fleet.generate(PROMPT, Sampling(max_tokens=32, seed=seed), session="s")
            for seed in (5, 5, 6)
        ]

    first, second, other = (reply.token_ids.tolist() for reply in use(job))
    assert first == second != other


def test_concurrent_long_prompts_keep_their_seeds(use: Use, models):
    async def job(fleet: Fleet):
        prompts = [[40 + i, *[50] * 190] for i in range(64)]
        waiting = [
            fleet.generate(prompt, Sampling(max_tokens=4, seed=i), session=str(i))
            for i, prompt in enumerate(prompts)
        ]
        return prompts, await asyncio.gather(*waiting)

    prompts, replies = use(job, retries=0)
    assert max(worst(models[0], p, r, 1.0, 0) for p, r in zip(prompts[:8], replies, strict=False)) <= 1e-4


def test_scores_match_the_model(use: Use, models):
    """Of prompts that share a prefix, which the server has cached from the second one on."""
    prompts = [[*PROMPT, *range(60 + i, 160)] for i in range(4)]

    async def job(fleet: Fleet):
        await fleet.generate(prompts[0], Sampling(max_tokens=1), session="s")
        return await asyncio.gather(*(fleet.score(prompt, 1 + 20 * i) for i, prompt in enumerate(prompts)))

    model = load_model(models[0])
    for i, (prompt, scores) in enumerate(zip(prompts, use(job), strict=True)):
        start, ids = 1 + 20 * i, torch.tensor([prompt])
        with torch.inference_mode():
            every = torch.log_softmax(model(ids).logits[0, start - 1 : -1], -1)
        own = every.gather(1, ids[0, start:, None])[:, 0].numpy()
        assert scores.shape == own.shape
        assert np.abs(scores - own).max() <= 1e-4


def test_truncated_sampling_reports_full_logprobs_or_none(use: Use, models, kind: str):
    """vLLM reports truncated distributions, which cannot be trained on."""

    async def job(fleet: Fleet):
        return await fleet.generate(PROMPT, Sampling(max_tokens=8, top_p=0.5), session="s")

    reply = use(job)
    if kind == "vllm":
        assert np.isnan(reply.logprobs).all()
    else:
        assert worst(models[0], PROMPT, reply, 1.0, 0) <= 1e-4


def test_update_replaces_every_part_of_the_model(use: Use, models):
    async def job(fleet: Fleet):
        replies = []
        for version in (1, 2):
            await fleet.load_weights(models[version], version)
            replies += await asyncio.gather(
                *(fleet.generate(PROMPT, Sampling(max_tokens=64, seed=s), session=str(s)) for s in range(8))
            )
        return replies

    replies = use(job)
    for index, reply in enumerate(replies):
        version = 1 + index // 8
        assert set(reply.version.tolist()) == {version}
        assert worst(models[version], PROMPT, reply, 1.0, version) <= 1e-4


def test_in_flight_updates_label_every_token_with_its_version(use: Use, models):
    """Interrupt replies repeatedly: each token must match the weights of its version."""
    # They end at different times: whenever eight have ended, others are in their middle and will be cut.
    limits = [CONTEXT - len(PROMPT) - 25 * i for i in range(8)]

    async def job(fleet: Fleet):
        replies: list[tuple[int, Completion]] = []

        def cut() -> bool:
            return any(len(set(reply.version.tolist())) > 1 for _, reply in replies)

        async def ask(session: str, limit: int):
            while not (fleet.version >= 3 and cut()):
                sampling = Sampling(max_tokens=limit)
                replies.append((limit, await fleet.generate(PROMPT, sampling, session=session)))

        async with asyncio.timeout(300), asyncio.TaskGroup() as group:
            waiting = [group.create_task(ask(str(i), limit)) for i, limit in enumerate(limits)]
            while not all(task.done() for task in waiting):
                version = fleet.version + 1
                await fleet.load_weights(models[version % len(models)], version)
                # Updates that came at once, one after the other, would let no reply get on.
                before = len(replies)
                while len(replies) - before < len(waiting) and not all(task.done() for task in waiting):
                    await asyncio.wait(waiting, timeout=0.02)
        return replies

    limited = use(job, partial=True)
    assert all(len(reply.token_ids) == limit for limit, reply in limited)
    replies = [reply for _, reply in limited]
    assert any(len(set(reply.version.tolist())) > 1 for reply in replies)
    for reply in replies:
        assert np.all(np.diff(reply.version) >= 0)
        for version in set(reply.version.tolist()):
            assert worst(models[version % len(models)], PROMPT, reply, 1.0, version) <= 1e-4


def test_server_proves_its_weights_bit_for_bit(use: Use, models):
    """One value that differs by the smallest step of its type is found, and its tensor named."""

    async def job(fleet: Fleet):
        model = load_model(models[1])
        await fleet.load_weights(models[1], 1, Proof(fingerprint=fingerprint(model)))
        with torch.no_grad():
            weight = model.model.layers[1].self_attn.k_proj.weight
            weight[3, 5] = torch.nextafter(weight[3, 5], torch.tensor(9.0))
        changed = Proof(fingerprint=fingerprint(model))
        named = r"version 2, in model\.layers\.1\.self_attn\.k_proj\.weight \("
        with pytest.raises(WeightMismatch, match=named):
            await fleet.load_weights(models[1], 2, changed)
        await fleet.load_weights(models[0], 3, Proof(fingerprint=fingerprint(load_model(models[0]))))

    use(job)


def test_folder_without_weights_is_refused_and_serving_continues(use: Use, models, tmp_path: Path):
    async def job(fleet: Fleet):
        with pytest.raises(EngineError, match=r"holds no .*safetensors weights"):
            await fleet.load_weights(tmp_path, 5)
        await fleet.load_weights(models[1], 6)
        return await fleet.generate(PROMPT, Sampling(max_tokens=16), session="s")

    assert worst(models[1], PROMPT, use(job), 1.0, 6) <= 1e-4


def test_server_info(use: Use, url: str, kind: str):
    async def job(fleet: Fleet):
        async with new_session() as session:
            return await CLIENTS[kind](Http(session, url)).server_info()

    facts = use(job)
    assert facts.context_tokens == CONTEXT
    assert facts.label == "0"  # that of the weights which every test here begins with
