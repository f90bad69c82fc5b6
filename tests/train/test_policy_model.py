"""Forward and backward passes over forests give what one plain pass per branch gives."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask
from transformers import Gemma2Config, Gemma2ForCausalLM, PreTrainedModel

from hone.train.attention import DenseAttention, attention_over
from hone.train.block_attention import path_blocks
from hone.train.depth_first import depth_first
from hone.train.errors import TrainError
from hone.train.flex import BLOCK, FlexAttention, forest_block_mask
from hone.train.forest import Branch, Forest, build_forest
from hone.train.policy_model import PolicyModel, require_exact_passes
from hone.train.settings import MemorySettings
from tests.train.architectures import ARCHITECTURES, VOCABULARY, architecture, tree_branches

CPU = torch.device("cpu")
Result = tuple[Tensor, Tensor, list[Tensor]]


def coefficients(count: int) -> Tensor:
    """What a loss multiplies each target's log-probability by."""
    return torch.from_numpy(np.random.default_rng(3).normal(1, 1, count).astype(np.float32))


def plain(model: PreTrainedModel, branches: Sequence[Branch], temperature: float) -> Result:
    """Log-probabilities, entropies and gradients of one plain forward pass per branch."""
    model = copy.deepcopy(model)
    model.set_attn_implementation("eager")
    logprobs: list[Tensor] = []
    entropies: list[Tensor] = []
    for branch in branches:
        ids = torch.from_numpy(branch.tokens.astype(np.int64))[None]
        logits = model(input_ids=ids, use_cache=False).logits[0, branch.trained - 1] / temperature
        every = torch.log_softmax(logits, -1)
        logprobs.append(every.gather(-1, ids[0, branch.trained, None])[:, 0])
        entropies.append(-(every.exp() * every).sum(-1).detach())
    together = torch.cat(logprobs)
    (together * coefficients(len(together))).sum().backward()
    return together.detach(), torch.cat(entropies), gradients(model)


def gradients(model: PreTrainedModel) -> list[Tensor]:
    return [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]


def arrays(forest: Forest, branches: Sequence[Branch]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    targets = np.concatenate([b.tokens[b.trained] for b in branches]).astype(np.int64)
    return (
        torch.from_numpy(forest.tokens)[None],
        torch.from_numpy(forest.position_ids)[None],
        torch.from_numpy(np.concatenate(forest.predictors)),
        torch.from_numpy(targets),
    )


def policy_of(
    model: PreTrainedModel, temperature: float, memory: MemorySettings | None = None
) -> PolicyModel:
    return PolicyModel(copy.deepcopy(model), temperature=temperature, logit_tokens=7, memory=memory)


def over_forest(policy: PolicyModel, branches: Sequence[Branch], *, share: bool) -> Result:
    forest = build_forest(branches, share=share)
    logprobs, entropies = policy(*arrays(forest, branches), attention_over(forest, CPU))
    assert not entropies.requires_grad
    (logprobs * coefficients(len(logprobs))).sum().backward()
    return logprobs.detach(), entropies, gradients(policy.model)


def segment_by_segment(policy: PolicyModel, branches: Sequence[Branch]) -> Result:
    forest = build_forest(branches, share=True)
    predictors, targets = arrays(forest, branches)[2:]
    weights = coefficients(len(targets))

    def backward(index: Tensor, logprobs: Tensor) -> None:
        (logprobs * weights[index]).sum().backward()

    logprobs, entropies = depth_first(policy, forest, predictors.numpy(), targets, backward)
    return logprobs, entropies, gradients(policy.model)


def assert_equal(ours: Result, expected: Result) -> None:
    """Worst relative difference: of the loss, and of each parameter's gradient against its largest entry."""
    weights = coefficients(len(expected[0]))
    loss, reference = (ours[0] * weights).sum(), (expected[0] * weights).sum()
    assert abs(float(loss - reference)) <= 1e-5 * abs(float(reference))
    torch.testing.assert_close(ours[1], expected[1], atol=1e-5, rtol=1e-5)
    for one, other in zip(ours[2], expected[2], strict=True):
        assert float((one - other).abs().max()) <= 1e-5 * float(other.abs().max())


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_passes_over_forests_equal_plain_passes(name: str) -> None:
    model, branches = architecture(name), tree_branches()
    expected = plain(model, branches, temperature=0.8)
    for share in (False, True):
        assert_equal(over_forest(policy_of(model, 0.8), branches, share=share), expected)
    assert_equal(segment_by_segment(policy_of(model, 0.8), branches), expected)


@pytest.mark.parametrize("name", ["qwen3", "qwen3_moe"])
@pytest.mark.parametrize("setting", ["activation_checkpointing", "offload_activations"])
def test_saving_memory_changes_no_number(name: str, setting: str) -> None:
    model, branches = architecture(name), tree_branches()
    expected = plain(model, branches, temperature=0.8)
    memory = MemorySettings.model_validate({setting: True})
    assert_equal(over_forest(policy_of(model, 0.8, memory), branches, share=True), expected)
    assert_equal(segment_by_segment(policy_of(model, 0.8, memory), branches), expected)


def test_checkpointing_saves_a_fraction_of_the_bytes() -> None:
    branches = tree_branches()
    forest = build_forest(branches, share=True)
    saved: dict[bool, int] = {}
    for checkpointing in (False, True):
        memory = MemorySettings(activation_checkpointing=checkpointing)
        policy = policy_of(architecture("qwen3"), 1.0, memory)
        storages: dict[int, int] = {}

        def pack(tensor: Tensor, storages: dict[int, int] = storages) -> Tensor:
            storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            tokens, position_ids = arrays(forest, branches)[:2]
            hidden = policy.decode(tokens, position_ids, attention_over(forest, CPU))
        assert not any(module.training for module in policy.model.modules())
        for parameter in policy.model.parameters():
            storages.pop(parameter.untyped_storage().data_ptr(), None)
        saved[checkpointing] = sum(storages.values())
        hidden.sum().backward()
    assert saved[True] * 5 < saved[False]


def test_offloading_copies_activations_and_no_weights() -> None:
    branches = tree_branches()
    policy = policy_of(architecture("qwen3"), 1.0, MemorySettings(offload_activations=True))
    forest = build_forest(branches, share=True)
    tokens, position_ids = arrays(forest, branches)[:2]
    kept: list[Tensor] = []
    copy_ = Tensor.copy_

    def watch(self: Tensor, other: Tensor, *args: Any) -> Tensor:
        kept.append(other)
        return copy_(self, other, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Tensor, "copy_", watch)
        policy.decode(tokens, position_ids, attention_over(forest, CPU))
    assert sum(tensor.nbytes for tensor in kept) > 10 * forest.tokens.size * 32 * 4
    weights = {p.untyped_storage().data_ptr() for p in policy.parameters()}
    assert not weights & {tensor.untyped_storage().data_ptr() for tensor in kept}


@pytest.mark.parametrize("window", [None, 5, 70])
@pytest.mark.parametrize("share", [False, True])
def test_attention_on_cpus_equals_a_dense_mask(window: int | None, share: bool) -> None:
    forest = build_forest(tree_branches(1), share=share)
    torch.manual_seed(0)
    query = torch.randn(1, 4, len(forest.tokens), 16, requires_grad=True)
    key, value = (torch.randn(1, 2, len(forest.tokens), 16, requires_grad=True) for _ in range(2))
    results: list[tuple[Tensor, ...]] = []
    for attend in (DenseAttention(forest, CPU), attention_over(forest, CPU)):
        out = attend(query, key, value, scale=0.3, window=window, layer=0)
        grads = torch.autograd.grad((out * out.detach().cos()).sum(), (query, key, value))
        results.append((out.detach(), *grads))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, atol=2e-5, rtol=1e-5)


def test_queries_of_a_narrow_window_are_computed_64_at_a_time() -> None:
    blocks = path_blocks(0, 128, window=4)
    assert [(block.q0, block.q1, block.k0, block.k1) for block in blocks] == [
        (0, 64, 0, 64),
        (64, 128, 61, 128),
    ]


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("window", [None, 70])
def test_blocks_of_the_flex_mask_are_those_of_its_pairs(window: int | None) -> None:
    long = Branch(np.arange(400, dtype=np.int32) % VOCABULARY, np.array([399]))
    forest = build_forest([*tree_branches(1), long], share=True)
    size = len(forest.tokens)
    ours = forest_block_mask(forest, window, CPU)
    expected = create_block_mask(ours.mask_mod, None, None, size, size, device="cpu", BLOCK_SIZE=BLOCK)
    assert (any_blocks(ours) >= any_blocks(expected)).all()  # with windows, some blocks more than needed
    assert (full_blocks(ours) <= full_blocks(expected)).all()
    if window is None:
        assert (any_blocks(ours) == any_blocks(expected)).all()
        assert (full_blocks(ours) == full_blocks(expected)).all()
        assert full_blocks(ours).any()
    query = torch.randn(1, 2, size, 16)
    results = [
        attend(query, query[:, :1], query[:, 1:], scale=0.3, window=window, layer=0)
        for attend in (DenseAttention(forest, CPU), FlexAttention(forest, CPU))
    ]
    torch.testing.assert_close(*results, atol=1e-5, rtol=1e-5)


def any_blocks(mask: BlockMask) -> Tensor:
    return as_blocks(mask.kv_num_blocks, mask.kv_indices) | full_blocks(mask)


def full_blocks(mask: BlockMask) -> Tensor:
    assert mask.full_kv_num_blocks is not None
    assert mask.full_kv_indices is not None
    return as_blocks(mask.full_kv_num_blocks, mask.full_kv_indices)


def as_blocks(counts: Tensor, indices: Tensor) -> Tensor:
    """The listed blocks as booleans [rows of blocks, columns of blocks]."""
    blocks = torch.zeros(indices.shape[-2:], dtype=torch.bool)
    for row, (count, columns) in enumerate(zip(counts[0, 0].tolist(), indices[0, 0].tolist(), strict=True)):
        blocks[row, columns[:count]] = True
    return blocks


def test_an_engine_may_share_a_trained_model() -> None:
    model = architecture("sliding")
    ids = torch.arange(30)[None]
    padded = torch.cat([torch.zeros_like(ids[:, :4]), torch.ones_like(ids[:, 4:])], 1)
    expected = model(input_ids=ids, attention_mask=padded).logits[:, 4:]
    policy = PolicyModel(model, temperature=1.0, logit_tokens=7)
    again = policy.model(input_ids=ids, attention_mask=padded).logits[:, 4:]
    torch.testing.assert_close(again, expected, atol=0, rtol=0)


def test_next_logprobs_are_those_of_every_token_after_the_prompt() -> None:
    model, prompt = architecture("qwen3"), torch.tensor([[5, 6, 7]])
    expected = torch.log_softmax(model(input_ids=prompt).logits[0, -1], -1)
    found = policy_of(model, 0.8).next_logprobs(prompt)  # whatever the temperature of the training
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_supported_models_pass_the_check(name: str) -> None:
    require_exact_passes(PolicyModel(architecture(name), temperature=0.7, logit_tokens=7), CPU, torch.float32)


def test_models_with_soft_caps_are_refused() -> None:
    config = Gemma2Config(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
    )
    with pytest.raises(TrainError, match="softcap"):
        require_exact_passes(
            PolicyModel(Gemma2ForCausalLM(config), temperature=1.0, logit_tokens=7), CPU, torch.float32
        )


def test_depth_first_without_loss_leaves_no_gradient() -> None:
    model, branches = architecture("qwen3"), tree_branches()
    policy = PolicyModel(model, temperature=0.8, logit_tokens=7)
    forest = build_forest(branches, share=True)
    predictors, targets = arrays(forest, branches)[2:]
    logprobs, _ = depth_first(policy, forest, predictors.numpy(), targets, None)
    torch.testing.assert_close(logprobs, plain(model, branches, 0.8)[0], atol=1e-5, rtol=1e-5)
    assert all(p.grad is None for p in model.parameters())


def test_a_model_whose_attention_was_changed_is_refused() -> None:
    branches = tree_branches()
    policy = PolicyModel(architecture("qwen3"), temperature=1.0, logit_tokens=7)
    policy.model.set_attn_implementation("sdpa")
    forest = build_forest(branches, share=True)
    with pytest.raises(TrainError, match="attn_implementation"):
        policy(*arrays(forest, branches), attention_over(forest, CPU))
