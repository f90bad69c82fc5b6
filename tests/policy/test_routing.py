"""The local engine records the experts of every position, and the token tree keeps them."""

from __future__ import annotations

import asyncio

import numpy as np
import torch
from transformers import PreTrainedModel, Qwen3MoeConfig, Qwen3MoeForCausalLM

from hone.policy.batch import Batch, DecodeRow
from hone.policy.chat import Chat
from hone.policy.engine import Finish, Sampling
from hone.policy.local import LocalEngine
from hone.policy.routing import find_routers
from hone.policy.settings import LocalEngineSettings
from hone.types import Routing


def moe(vocabulary: int) -> PreTrainedModel:
    """A mixture of 8 experts, 3 per token; the middle one of its 3 layers is dense."""
    torch.manual_seed(0)
    config = Qwen3MoeConfig(
        vocab_size=vocabulary,
        hidden_size=32,
        intermediate_size=32,
        moe_intermediate_size=16,
        num_hidden_layers=3,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        num_experts=8,
        num_experts_per_tok=3,
        mlp_only_layers=[1],
        initializer_range=0.2,
    )
    return Qwen3MoeForCausalLM(config).eval()


def expected_routing(model: PreTrainedModel, tokens: np.ndarray) -> Routing:
    """The experts of each position, from the logits of one forward pass without a cache."""
    with torch.no_grad():
        output = model(
            torch.from_numpy(tokens.astype(np.int64))[None], output_router_logits=True, use_cache=False
        )
    routing = np.full((len(tokens), 3, 3), -1)
    for layer, logits in zip((0, 2), output.router_logits, strict=True):
        routing[:, layer] = np.sort(logits.topk(3).indices.numpy())
    return routing


def assert_same(found: Routing | None, expected: Routing) -> None:
    assert found is not None
    assert found.dtype == np.int8
    assert np.sort(found).tolist() == expected.tolist()


def test_every_position_of_a_reply_has_its_experts() -> None:
    model = moe(300)
    assert list(find_routers(model)) == [0, 2]
    rng = np.random.default_rng(0)
    shared = rng.integers(0, 300, 50).tolist()

    async def converse(engine: LocalEngine, name: int) -> None:
        prompt = [*shared, *rng.integers(0, 300, 3 + 5 * name).tolist()]
        for turn in range(3):
            reply = await engine.generate(prompt, Sampling(max_tokens=5, seed=turn), session=str(name))
            whole = np.array([*prompt, *reply.token_ids], np.int32)
            assert_same(reply.routing, expected_routing(model, whole)[:-1])
            prompt = [*whole.tolist(), *rng.integers(0, 300, 4).tolist()]
            if turn == 1:
                await engine.release(str(name))  # the next prompt has no cache

    async def main() -> None:
        settings = LocalEngineSettings(max_batch=3, prefill_tokens=40, threads=1)
        engine = LocalEngine(model, settings)
        try:
            async with asyncio.timeout(120):
                await asyncio.gather(*(converse(engine, name) for name in range(4)))
        finally:
            await engine.close()

    asyncio.run(main())


def test_an_update_keeps_the_experts_of_sampled_tokens() -> None:
    model = moe(300)
    batch = Batch(model, LocalEngineSettings(max_batch=1, cached_sessions=0))
    row = DecodeRow(
        session="s", sampling=Sampling(max_tokens=9, seed=1), tokens=[1, 2, 3], prompt_length=3, limit=9
    )
    with torch.no_grad():
        batch.admit([row])
        for _ in range(3):
            batch.step()
        before = expected_routing(model, np.array(row.tokens))
        for router in find_routers(model).values():
            router.weight.neg_()  # the opposite choice at every position
        batch.admit(batch.set_version(1))
        while row.finish() is None:
            batch.step()
    after = expected_routing(model, np.array(row.tokens))
    reply = row.completion(Finish.LENGTH)
    assert reply.version.tolist() == [0] * 4 + [1] * 5
    assert (before[:6] != after[:6]).any(axis=(1, 2)).all()
    assert_same(reply.routing, np.concatenate([before[:6], after[6:-1]]))


def test_nodes_have_the_experts_of_their_branch(tokenizer, renderer) -> None:
    model = moe(len(tokenizer))
    engine = LocalEngine(model, LocalEngineSettings(threads=1))
    chat = Chat(engine, renderer, Sampling(max_tokens=6, seed=3), session="s")
    user = {"role": "user", "content": "Fix the bug."}

    async def main() -> None:
        reply = await chat.reply([user])
        again = [user, reply.to_message(), {"role": "user", "content": "It still fails."}]
        await chat.reply(again)
        await chat.reply([user])  # a retry forks
        await chat.reply([{"role": "user", "content": "Summary: it fails."}])  # and so does a compaction
        await engine.close()

    asyncio.run(main())
    tree = chat.tree
    assert len(tree.leaves()) == 3
    for branch in tree.branches():
        tokens = tree.tokens(branch[-1])
        routings = [routing for i in branch if (routing := tree.nodes[i].routing) is not None]
        assert len(routings) == len(branch)
        routing = np.concatenate(routings)
        assert (routing[0] == -1).all()
        assert_same(routing[1:], expected_routing(model, tokens)[:-1])
