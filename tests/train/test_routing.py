"""The trainer uses the experts that the engine has recorded, whatever the kind of pass."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import PreTrainedModel, Qwen3MoeConfig, Qwen3MoeForCausalLM

from hone.policy.engine import Sampling
from hone.policy.local import LocalEngine
from hone.policy.routing import as_routing, chosen_experts, find_routers, routing_shape
from hone.policy.settings import LocalEngineSettings
from hone.train.batches import MicroBatch, TrainRow, micro_batches
from hone.train.errors import TrainError
from hone.train.forest import Branch, build_forest, path_to
from hone.train.passes import cost_model
from hone.train.policy_model import PolicyModel
from hone.train.routing import merge_routing
from hone.train.run_pass import run_pass
from hone.train.samples import tree_samples
from hone.train.settings import MemorySettings, TrainSettings, Tree
from hone.train.trainer import policy_trainer
from hone.types import Routing, Sample, TokenTree
from tests.train.architectures import VOCABULARY, architecture, tree_branches
from tests.train.trajectories import rendered, sampled

CPU = torch.device("cpu")
LAYERS, K = 2, 2  # of `moe`, which has 4 experts
_MANY_EXPERTS: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "moe_intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_experts": 32,
    "num_experts_per_tok": 4,
    "norm_topk_prob": True,
    "initializer_range": 0.1,
}
KINDS = [("off", False), ("mask", False), ("mask", True), ("depth_first", False), ("depth_first", True)]


def moe(dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    return architecture("qwen3_moe").to(dtype)


def own_routing(model: PreTrainedModel, tokens: np.ndarray) -> tuple[Routing, Tensor]:
    """The experts of a plain pass as a sample has them, and log-probabilities of all tokens but the first."""
    routers = find_routers(model)
    ids = torch.from_numpy(tokens.astype(np.int64))[None]
    with torch.no_grad(), chosen_experts(routers) as chosen:
        every = torch.log_softmax(model(input_ids=ids, use_cache=False).logits[0, :-1].float(), -1)
    routing = as_routing(chosen, routing_shape(model, routers), model.config.num_experts)
    shifted = np.concatenate([np.full_like(routing[:1], -1), routing[:-1]])
    return shifted, every.gather(-1, ids[0, 1:, None])[:, 0]


def random_routing(tokens: np.ndarray) -> Routing:
    """Experts that depend on the tokens before, so that branches agree where they share a prefix."""
    rows = np.full((len(tokens), LAYERS, K), -1, np.int8)
    for at in range(1, len(tokens)):
        rng = np.random.default_rng([*tokens[:at].tolist(), at])
        if rng.random() < 0.8:  # the others stay unknown
            rows[at] = [rng.permutation(4)[:K] for _ in range(LAYERS)]
    return rows


def samples_of(branches: Sequence[Branch], routings: Sequence[Routing | None]) -> list[Sample]:
    made: list[Sample] = []
    for index, (branch, routing) in enumerate(zip(branches, routings, strict=True)):
        weight = np.zeros(len(branch.tokens), np.float32)
        weight[branch.trained] = 1
        zero = np.zeros_like(weight)
        made.append(
            Sample(
                rollout_id=f"r{index}",
                group_id="g",
                tokens=branch.tokens,
                weight=weight,
                advantage=weight,
                logprobs=zero,
                version=zero.astype(np.int32),
                routing=routing,
            )
        )
    return made


def coefficient(part: MicroBatch) -> Tensor:
    return 1 + (part.targets % 5) / 3.0


def trained(
    model: PreTrainedModel, samples: Sequence[Sample], tree: Tree, *, checkpointing: bool = False
) -> tuple[list[np.ndarray], list[Tensor]]:
    """Log-probabilities of each sample's trained tokens, and the gradient of a weighted sum of them."""
    memory = MemorySettings(activation_checkpointing=checkpointing)
    policy = PolicyModel(copy.deepcopy(model), temperature=1.0, logit_tokens=64, memory=memory)
    rows = [TrainRow(sample=s, scale=s.weight, old_logprobs=None) for s in samples]
    passes = micro_batches(
        rows, tree=tree, budget_tokens=300, cost=cost_model(model.config), device=CPU, replay=True
    )
    values: dict[int, np.ndarray] = {}
    for each in passes:
        result = run_pass(policy, each, lambda logprobs, part: (logprobs * coefficient(part)).sum())
        values |= dict(each.by_row(result.logprobs))
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in policy.model.parameters()]
    return [values[i] for i in range(len(samples))], gradients


def worst(one: Sequence[Tensor], two: Sequence[Tensor]) -> float:
    return max(float((a - b).abs().max() / (b.abs().max() + 1e-6)) for a, b in zip(one, two, strict=True))


@pytest.mark.parametrize(("tree", "checkpointing"), KINDS)
def test_replay_of_own_choice_changes_nothing(tree: Tree, checkpointing: bool) -> None:
    model, branches = moe(), tree_branches()[:5]
    recorded = [own_routing(model, b.tokens)[0] for b in branches]
    values, gradients = trained(model, samples_of(branches, recorded), tree, checkpointing=checkpointing)
    silent = samples_of(branches, [None] * 5)
    plain, expected = trained(model, silent, tree, checkpointing=checkpointing)
    assert np.abs(np.concatenate(values) - np.concatenate(plain)).max() <= 1e-6
    assert worst(gradients, expected) <= 1e-5


class _PlainReplay:
    """Routers with given experts, written without the code under test: top-k is replaced."""

    def __init__(self, model: PreTrainedModel, routing: Routing) -> None:
        self._layers = {id(router): layer for layer, router in find_routers(model).items()}
        self._routing = torch.from_numpy(routing.astype(np.int64))
        for router in find_routers(model).values():
            router.forward = lambda hidden, router=router: self._forward(router, hidden)

    def _forward(self, router, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits = hidden.reshape(-1, hidden.shape[-1]) @ router.weight.T
        every = logits.softmax(-1)
        index = every.topk(K).indices
        for token, chosen in enumerate(self._routing[:, self._layers[id(router)]]):
            index[token] = chosen if chosen[0] >= 0 else index[token]
        weights = torch.stack([every[token, chosen] for token, chosen in enumerate(index)])
        if router.norm_topk_prob:
            weights = weights / weights.sum(-1, keepdim=True)
        return logits, weights, index


@pytest.mark.parametrize("normalised", [False, True])
@pytest.mark.parametrize(("tree", "checkpointing"), KINDS)
def test_passes_compute_with_the_recorded_experts(tree: Tree, checkpointing: bool, normalised: bool) -> None:
    model, branches = moe(), tree_branches()[:5]
    for router in find_routers(model).values():
        router.norm_topk_prob = normalised
    recorded = [random_routing(b.tokens) for b in branches]
    plain = copy.deepcopy(model)
    expected: list[np.ndarray] = []
    for branch, routing in zip(branches, recorded, strict=True):
        unknown = np.full_like(routing[:1], -1)  # the last position predicts nothing
        _PlainReplay(plain, np.concatenate([routing[1:], unknown]))
        ids = torch.from_numpy(branch.tokens.astype(np.int64))[None]
        every = torch.log_softmax(plain(input_ids=ids, use_cache=False).logits[0], -1)
        targets = ids[0, branch.trained]
        logprobs = every[branch.trained - 1].gather(-1, targets[:, None])[:, 0]
        (logprobs * (1 + (targets % 5) / 3.0)).sum().backward()
        expected.append(logprobs.detach().numpy())
    values, gradients = trained(model, samples_of(branches, recorded), tree, checkpointing=checkpointing)
    others, _ = trained(model, samples_of(branches, [None] * 5), tree)
    assert np.abs(np.concatenate(values) - np.concatenate(expected)).max() <= 1e-5
    assert np.abs(np.concatenate(values) - np.concatenate(others)).max() > 0.1
    assert worst(gradients, [p.grad for p in plain.parameters() if p.grad is not None]) <= 1e-5
    named = dict(zip((name for name, _ in model.named_parameters()), gradients, strict=True))
    assert all(gradient.abs().max() > 0 for name, gradient in named.items() if name.endswith("gate.weight"))


def test_replay_reduces_the_gap_to_a_bfloat16_engine() -> None:
    torch.manual_seed(0)
    model = Qwen3MoeForCausalLM(Qwen3MoeConfig(**_MANY_EXPERTS)).eval()
    engine = copy.deepcopy(model).to(torch.bfloat16)
    branches = [Branch(b.tokens, np.arange(1, len(b.tokens))) for b in tree_branches()]
    found = [own_routing(engine, b.tokens) for b in branches]
    reported = torch.cat([logprobs for _, logprobs in found]).numpy()
    largest: list[float] = []
    mean: list[float] = []
    for routings in ([None] * len(branches), [routing for routing, _ in found]):
        values, _ = trained(model, samples_of(branches, routings), "mask")
        gap = np.abs(np.concatenate(values) - reported)
        largest.append(float(gap.max()))
        mean.append(float(gap.mean()))
    assert largest[1] < largest[0] / 3
    assert mean[1] < mean[0] / 3


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_merge_keeps_the_first_known_experts(data: st.DataObject) -> None:
    tokens = data.draw(st.lists(st.lists(st.integers(0, 2), min_size=2, max_size=7), min_size=1, max_size=6))
    branches = [Branch(np.array(t, np.int32), np.array([len(t) - 1], np.int64)) for t in tokens]
    routings: list[Routing | None] = []
    for index, row in enumerate(tokens):
        known = data.draw(st.none() | st.lists(st.booleans(), min_size=len(row), max_size=len(row)))
        values = None if known is None else np.where(known, index, -1).astype(np.int8)
        routings.append(None if values is None else np.broadcast_to(values[:, None, None], (len(row), 1, 1)))
    forest = build_forest(branches, share=data.draw(st.booleans()))
    merged = merge_routing(forest, routings)
    if merged is None:
        assert all(routing is None for routing in routings)
        return
    expected = np.full(len(forest.tokens), -1)
    for branch, predictors, routing in zip(branches, forest.predictors, routings, strict=True):
        path = path_to(forest, int(predictors[-1]))
        assert forest.tokens[path].tolist() == branch.tokens[:-1].tolist()
        assert forest.position_ids[path].tolist() == list(range(len(path)))
        for at, position in enumerate(path.tolist()):
            if routing is not None and expected[position] < 0:
                expected[position] = int(routing[at + 1, 0, 0])
    assert merged[:, 0, 0].tolist() == expected.tolist()


def test_nodes_without_routing_leave_it_unknown() -> None:
    known = np.arange(3, dtype=np.int8).reshape(3, 1, 1)
    tree = TokenTree([rendered(None, [1, 2]), replace(sampled(0, [3, 4, 5]), routing=known)])
    tree.append(rendered(1, [6]))
    tree.append(sampled(2, [7]))
    (sample,) = tree_samples(tree, rollout_id="r", group_id="g", advantage=1.0)
    assert sample.routing is not None
    assert sample.routing[:, 0, 0].tolist() == [-1, -1, 0, 1, 2, -1, -1]


@pytest.mark.parametrize(
    ("name", "routing", "message"),
    [
        ("qwen3", np.zeros((0, LAYERS, K), np.int8), "has no router"),
        ("qwen3_moe", np.zeros((0, 3, K), np.int8), "3 layers, 2 experts per token, but the model has 2"),
        ("qwen3_moe", np.full((0, LAYERS, K), 4, np.int8), "experts up to 9, but the model has 4"),
    ],
)
def test_routing_of_another_model_is_refused(name: str, routing: Routing, message: str) -> None:
    (branch,) = tree_branches()[:1]
    whole = np.full((len(branch.tokens), *routing.shape[1:]), 9, np.int8)
    trainer = policy_trainer(architecture(name), TrainSettings(steps=1), temperature=1.0)
    with pytest.raises(TrainError, match=message) as error:
        trainer.step(samples_of([branch], [whole]))
    assert "rollout r0" in str(error.value)
    assert "train.routing_replay" in str(error.value)


def test_a_step_replays_what_the_engine_recorded() -> None:
    model = moe()
    engine = LocalEngine(model, LocalEngineSettings(context_tokens=128, max_batch=4))

    async def sample() -> list[Sample]:
        made: list[Sample] = []
        for index in range(4):
            prompt = [1, 2, 3, 4, 5, 6 + index]
            reply = await engine.generate(prompt, Sampling(max_tokens=20, seed=index), session=f"s{index}")
            assert reply.routing is not None
            unknown = np.full_like(reply.routing[:1], -1)
            weight = np.concatenate([np.zeros(6, np.float32), np.ones(20, np.float32)])
            made.append(
                Sample(
                    rollout_id=f"r{index}",
                    group_id="g",
                    tokens=np.concatenate([prompt, reply.token_ids]).astype(np.int32),
                    weight=weight,
                    advantage=weight * (1 if index % 2 else -1),
                    logprobs=np.concatenate([np.zeros(6, np.float32), reply.logprobs]),
                    version=np.zeros(26, np.int32),
                    routing=np.concatenate([unknown, reply.routing]),
                )
            )
        await engine.close()
        return made

    samples = asyncio.run(sample())
    shares: dict[bool, dict[str, float]] = {}
    for replay in (True, False):
        settings_ = TrainSettings(steps=1, routing_replay=replay)
        shares[replay] = policy_trainer(moe(), settings_, temperature=1.0).step(samples)
    leaves = 4  # the last token of a branch predicts nothing
    assert shares[True]["routing/replayed"] == pytest.approx(1 - leaves / shares[True]["unique_tokens"])
    assert "routing/replayed" not in shares[False]
    assert shares[True]["logp_gap_max"] <= 1e-4
    silent = [replace(s, routing=None) for s in samples]
    metrics = policy_trainer(moe(), TrainSettings(steps=1), temperature=1.0).step(silent)
    assert metrics["routing/replayed"] == 0
