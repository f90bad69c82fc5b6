"""The local engine, against the model's own plain forward pass and transformers' generate."""

from __future__ import annotations

import asyncio
import threading

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

from hone.policy.engine import Completion, ContextOverflow, EngineError, Finish, Sampling
from hone.policy.errors import PolicyError
from hone.policy.local import LocalEngine
from hone.policy.settings import LocalEngineSettings

pytestmark = pytest.mark.model


def serve(model, scenario, **settings):
    """Run scenario(engine) with a new engine, bounded in time, and close it."""

    async def main():
        engine = LocalEngine(model, LocalEngineSettings(**settings))
        try:
            async with asyncio.timeout(240):
                return await scenario(engine)
        finally:
            await engine.close()

    return asyncio.run(main())


def expected_logprobs(model, prompt: list[int], reply: Completion, temperature: float) -> np.ndarray:
    """Return the documented logprobs from one full forward pass without a cache."""
    tokens = torch.tensor([[*prompt, *reply.token_ids.tolist()]])
    with torch.no_grad():
        logits = model(input_ids=tokens).logits[0, len(prompt) - 1 : -1].float()
    logprobs = torch.log_softmax(logits / (temperature or 1.0), dim=-1)
    return logprobs.gather(1, tokens[0, len(prompt) :, None])[:, 0].numpy()


def random_tokens(rng: np.random.Generator, low: int, high: int) -> list[int]:
    return rng.integers(0, 280, rng.integers(low, high)).tolist()


async def converse(
    engine, name: str, turns: int, sampling: Sampling, rng
) -> list[tuple[list[int], Completion]]:
    """A conversation of ragged lengths: every prompt with its reply."""
    tokens, said = random_tokens(rng, 1, 60), []
    for _ in range(turns):
        reply = await engine.generate(tokens, sampling, session=name)
        said.append((tokens, reply))
        tokens = [*tokens, *reply.token_ids.tolist(), *random_tokens(rng, 1, 30)]
    return said


async def converse_all(engine, samplings: list[Sampling], turns: int):
    rngs = [np.random.default_rng(i) for i in range(len(samplings))]
    return await asyncio.gather(
        *(converse(engine, str(i), turns, s, rngs[i]) for i, s in enumerate(samplings))
    )


def worst_error(model, conversations, samplings) -> tuple[float, int]:
    errors = [
        np.abs(reply.logprobs - expected_logprobs(model, prompt, reply, sampling.temperature))
        for said, sampling in zip(conversations, samplings, strict=True)
        for prompt, reply in said
    ]
    return max(e.max() for e in errors), sum(map(len, errors))


@pytest.mark.parametrize(
    ("settings", "turns"),
    [
        ({"max_batch": 8}, 5),
        # sessions, rows and room run out
        pytest.param({"max_batch": 3, "cached_sessions": 2, "prefill_tokens": 64}, 3, marks=pytest.mark.full),
        pytest.param({"max_batch": 1, "cached_sessions": 0}, 1, marks=pytest.mark.full),
        ({"max_batch": 4, "prefill_tokens": 7}, 3),  # prompts in pieces
    ],
)
def test_logprobs_equal_a_forward_pass_on_ragged_batches(model, settings, turns):
    samplings = [
        Sampling(
            temperature=(0.0, 0.5, 1.0, 1.5)[i % 4],
            top_k=(0, 0, 5)[i % 3],
            top_p=(1.0, 0.8)[i % 2],
            max_tokens=5 + 9 * (i % 8),
            stop_token_ids=(7, 8),
            seed=i,
        )
        for i in range(24)
    ]
    conversations = serve(model, lambda engine: converse_all(engine, samplings, turns), **settings)
    error, tokens = worst_error(model, conversations, samplings)
    assert tokens > 500
    assert error < 1e-4


def test_seeded_reply_does_not_depend_on_the_batch(model):
    samplings = [Sampling(temperature=1.0, max_tokens=40, seed=i) for i in range(12)]

    async def alone(engine):
        return [(await converse_all(engine, [s], 2))[0] for s in samplings[:1]]

    together = serve(model, lambda engine: converse_all(engine, samplings, 2))
    single = serve(model, alone)
    for (_, left), (_, right) in zip(together[0], single[0], strict=True):
        assert left.token_ids.tolist() == right.token_ids.tolist()


@pytest.mark.parametrize("seeds", [(None, None), (1, 2)])
def test_different_seeds_give_different_replies(model, seeds):
    async def scenario(engine):
        return [
            await engine.generate([1, 2, 3], Sampling(max_tokens=40, seed=seed), session=str(i))
            for i, seed in enumerate(seeds)
        ]

    first, second = serve(model, scenario)
    assert first.token_ids.tolist() != second.token_ids.tolist()


def test_greedy_replies_equal_transformers_generate(model):
    prompts = [random_tokens(np.random.default_rng(i), 1, 50) for i in range(8)]
    sampling = Sampling(temperature=0, max_tokens=40)

    async def scenario(engine):
        return await asyncio.gather(
            *(engine.generate(p, sampling, session=str(i)) for i, p in enumerate(prompts))
        )

    for prompt, reply in zip(prompts, serve(model, scenario), strict=True):
        ids = torch.tensor([prompt])
        expected = model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=40, eos_token_id=None
        )
        assert reply.token_ids.tolist() == expected[0, len(prompt) :].tolist()


def test_stop_token_is_the_last_token_of_a_reply(model):
    async def scenario(engine):
        free = await engine.generate([1, 2], Sampling(max_tokens=30, seed=3), session="a")
        stop = int(free.token_ids[4])
        sampling = Sampling(max_tokens=30, seed=3, stop_token_ids=(stop,))
        return free, stop, await engine.generate([1, 2], sampling, session="b")

    free, stop, stopped = serve(model, scenario)
    first = free.token_ids.tolist().index(stop)
    assert (free.finish, stopped.finish) == (Finish.LENGTH, Finish.STOP)
    assert stopped.token_ids.tolist() == free.token_ids.tolist()[: first + 1]


def test_stop_token_in_the_prompt_has_no_effect(model):
    async def scenario(engine):
        return await engine.generate([1, 9], Sampling(max_tokens=3, stop_token_ids=(9,)), session="a")

    assert len(serve(model, scenario).token_ids) >= 1


def test_context_limit_truncates_or_refuses_a_reply(model):
    async def scenario(engine):
        with pytest.raises(ContextOverflow, match="20 tokens and the model's context is 20"):
            await engine.generate([1] * 20, Sampling(), session="a")
        return await engine.generate([1] * 17, Sampling(max_tokens=50), session="b")

    reply = serve(model, scenario, context_tokens=20)
    assert (len(reply.token_ids), reply.finish) == (3, Finish.LENGTH)


@pytest.mark.parametrize("prompt", [[], [-1], [10**6]])
def test_prompt_outside_the_vocabulary_is_refused(model, prompt):
    async def scenario(engine):
        with pytest.raises(ValueError, match="token ids from 0 to"):
            await engine.generate(prompt, Sampling(), session="a")
        await engine.health()

    serve(model, scenario)


def test_cancelling_a_request_frees_its_row(model):
    async def scenario(engine):
        endless = asyncio.create_task(
            engine.generate([1, 2], Sampling(max_tokens=500_000), session="endless")
        )
        waiting = asyncio.create_task(engine.generate([3], Sampling(max_tokens=500_000), session="waiting"))
        await asyncio.sleep(0)  # both are sent before what follows
        await engine.release("nothing")  # by now the endless one has the only row
        last = asyncio.create_task(engine.generate([4], Sampling(max_tokens=2), session="last"))
        await engine.release("nothing")
        endless.cancel()
        waiting.cancel()
        reply = await last
        assert endless.cancelled()
        assert waiting.cancelled()
        return reply

    assert len(serve(model, scenario, max_batch=1, context_tokens=1_000_000).token_ids) == 2


def forwarded_tokens(model) -> list[int]:
    """A list that grows by the number of tokens, padding included, of each forward pass from now on."""
    counts: list[int] = []
    model.register_forward_pre_hook(
        lambda _module, _args, kwargs: counts.append(kwargs["input_ids"].numel()), with_kwargs=True
    )
    return counts


def test_later_turn_computes_only_new_tokens(model):
    counts = forwarded_tokens(model)

    async def scenario(engine):
        prompt = list(range(100))
        reply = await engine.generate(prompt, Sampling(max_tokens=5), session="a")
        counts.clear()
        longer = [*prompt, *reply.token_ids.tolist(), 1, 2, 3]
        await engine.generate(longer, Sampling(max_tokens=1), session="a")
        assert counts == [4]  # the last sampled token was never computed, and three are new
        await engine.release("a")
        counts.clear()
        await engine.generate(longer, Sampling(max_tokens=1), session="a")
        assert counts == [len(longer)]

    serve(model, scenario)


def test_long_prompt_is_prefilled_in_pieces(model):
    counts = forwarded_tokens(model)

    async def scenario(engine):
        await engine.generate(list(range(100)), Sampling(max_tokens=1), session="a")

    serve(model, scenario, prefill_tokens=32)
    assert counts == [32, 32, 32, 4]


def test_common_prefix_is_computed_once(model):
    counts = forwarded_tokens(model)
    common = random_tokens(np.random.default_rng(0), 200, 201)
    prompts = [[*common, i] for i in range(8)]
    sampling = Sampling(max_tokens=10, seed=1)

    async def scenario(engine):
        return await asyncio.gather(
            *(engine.generate(p, sampling, session=str(i)) for i, p in enumerate(prompts))
        )

    replies = serve(model, scenario)
    assert sum(counts) < 400
    for prompt, reply in zip(prompts, replies, strict=True):
        assert np.abs(reply.logprobs - expected_logprobs(model, prompt, reply, 1.0)).max() < 1e-4


def test_new_weights_drop_old_keys_and_values(model):
    async def scenario(engine):
        said = await converse(engine, "a", 2, Sampling(max_tokens=20), np.random.default_rng(0))
        prompt = [*said[-1][0], *said[-1][1].token_ids.tolist(), 5]
        await engine.pause()
        model.train()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.1).add_(0.01)
        await engine.set_version(3)
        await engine.resume()
        reply = await engine.generate(prompt, Sampling(max_tokens=20), session="a")
        other = await engine.generate(prompt, Sampling(max_tokens=20), session="b")
        return said, prompt, [reply, other], engine.version

    said, prompt, replies, version = serve(model, scenario)
    assert version == 3
    assert set(said[0][1].version.tolist()) == {0}
    for reply in replies:
        assert set(reply.version.tolist()) == {3}
        assert np.abs(reply.logprobs - expected_logprobs(model, prompt, reply, 1.0)).max() < 1e-4


def test_request_in_flight_continues_with_the_new_version(model):
    counts = forwarded_tokens(model)
    half, requested = threading.Event(), threading.Event()

    def stop_half_way(*_: object) -> None:
        if len(counts) == 10:
            half.set()
            assert requested.wait(60)

    model.register_forward_pre_hook(stop_half_way)

    async def scenario(engine):
        long = asyncio.create_task(engine.generate([1, 2], Sampling(max_tokens=20), session="long"))
        assert await asyncio.to_thread(half.wait, 60)
        change = asyncio.create_task(engine.set_version(1))
        await asyncio.sleep(0)  # it is sent
        requested.set()
        await change
        return await long

    reply = serve(model, scenario)
    assert len(reply.token_ids) == 20
    assert np.all(np.diff(reply.version) >= 0)
    assert set(reply.version.tolist()) == {0, 1}
    assert max(counts) > 5  # its prompt of 2 and at least 4 sampled tokens, in one pass
    assert np.abs(reply.logprobs - expected_logprobs(model, [1, 2], reply, 1.0)).max() < 1e-4


def test_pause_finishes_running_requests_and_holds_new_ones(model):
    async def scenario(engine):
        running = asyncio.create_task(engine.generate([1], Sampling(max_tokens=50), session="running"))
        await asyncio.sleep(0)  # it is sent before what follows
        for _ in range(2):  # a request joins after the commands that the worker thread found with it
            await engine.release("nothing")
        await engine.pause()
        assert len((await running).token_ids) == 50
        held = asyncio.create_task(engine.generate([2], Sampling(max_tokens=1), session="held"))
        for _ in range(5):
            await engine.release("nothing")  # the worker thread has looked at its queue
        assert not held.done()
        await engine.resume()
        assert len((await held).token_ids) == 1

    serve(model, scenario)


def test_worker_crash_fails_all_requests(model):
    calls = 0

    def fail(*_: object) -> None:
        nonlocal calls
        calls += 1
        if calls > 3:
            raise RuntimeError("out of memory")

    model.register_forward_pre_hook(fail)

    async def scenario(engine):
        tasks = [engine.generate([i], Sampling(max_tokens=50), session=str(i)) for i in range(4)]
        failures = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(f, EngineError) and "out of memory" in str(f) for f in failures)
        for call in (engine.health(), engine.generate([1], Sampling(), session="x"), engine.pause()):
            with pytest.raises(EngineError, match="out of memory"):
                await call

    serve(model, scenario, max_batch=2)


def test_non_finite_weights_raise_engine_error(model):
    with torch.no_grad():
        model.lm_head.weight.fill_(float("nan"))

    async def scenario(engine):
        with pytest.raises(EngineError, match="not finite"):
            await engine.generate([1], Sampling(), session="a")

    serve(model, scenario)


def test_sliding_window_models_are_refused():
    sizes = {
        "vocab_size": 300,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
    }
    llama = LlamaForCausalLM(LlamaConfig(**sizes, initializer_range=0.2))
    samplings = [Sampling(max_tokens=20, seed=i) for i in range(3)]
    conversations = serve(llama, lambda engine: converse_all(engine, samplings, 2))
    assert worst_error(llama, conversations, samplings)[0] < 1e-4
    sliding = MistralForCausalLM(MistralConfig(**sizes, sliding_window=8))
    with pytest.raises(PolicyError, match="full attention"):
        LocalEngine(sliding, LocalEngineSettings())


def test_close_fails_pending_requests_and_is_idempotent(model):
    async def scenario(engine):
        left = asyncio.create_task(engine.generate([1], Sampling(max_tokens=500_000), session="a"))
        await engine.release("nothing")
        await engine.close()
        await engine.close()
        with pytest.raises(EngineError, match="closed"):
            await left
        with pytest.raises(EngineError, match="closed"):
            await engine.health()

    serve(model, scenario, context_tokens=1_000_000)


def test_thread_limit_applies_to_the_engine_only(model):
    everywhere = torch.get_num_threads()
    seen: list[int] = []
    hook = model.register_forward_hook(lambda *_: seen.append(torch.get_num_threads()))

    async def scenario(engine):
        await engine.generate([1, 2, 3], Sampling(max_tokens=2, seed=1), session="a")
        elsewhere = await asyncio.to_thread(torch.get_num_threads)
        return elsewhere, torch.get_num_threads()

    try:
        assert serve(model, scenario, threads=everywhere + 1) == (everywhere, everywhere)
    finally:
        hook.remove()
    assert set(seen) == {everywhere + 1}
