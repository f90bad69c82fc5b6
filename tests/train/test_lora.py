from __future__ import annotations

import asyncio
import copy
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from hone.policy.engine import Completion, Sampling
from hone.policy.local import LocalEngine
from hone.policy.settings import LocalEngineSettings
from hone.train.batches import TrainRow
from hone.train.errors import CheckpointError, TrainError
from hone.train.in_process import InProcessLearner
from hone.train.lora import (
    adapted_layers,
    adapter_tensors,
    adapters_disabled,
    add_adapters,
    base_digest,
    load_adapters,
    merged_tensors,
    save_adapters,
    save_merged,
)
from hone.train.loss import policy_objective
from hone.train.policy_model import plain_logprobs
from hone.train.settings import (
    BatchSettings,
    LearnerSettings,
    LoraSettings,
    LossSettings,
    OptimizerSettings,
    PassSettings,
)
from hone.types import Sample
from tests.train.architectures import ARCHITECTURES, architecture, tree_branches
from tests.train.examples import noisy, tiny_model, trainer_of, with_logprobs
from tests.train.test_policy_model import assert_equal, over_forest, plain, policy_of, segment_by_segment
from tests.train.trajectories import multi_turn_samples

pytestmark = pytest.mark.model

IDS = torch.arange(24)[None] % 64
OPTIMIZER = OptimizerSettings(lr=1e-2, max_grad_norm=1e9)


def adapted(dtype: torch.dtype = torch.float32, lora: LoraSettings | None = None) -> PreTrainedModel:
    model = tiny_model(dtype=dtype)
    add_adapters(model, lora or LoraSettings(rank=4, alpha=8))
    return model


def trained(model: PreTrainedModel, steps: int = 2) -> PreTrainedModel:
    samples = noisy(with_logprobs(multi_turn_samples(8), tiny_model()), 0.2)
    trainer = trainer_of(model, optimizer=OPTIMIZER)
    for _ in range(steps):
        trainer.step(samples)
    return model


def logits(model: PreTrainedModel) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=IDS).logits


def test_new_adapters_change_nothing_and_only_they_are_trained() -> None:
    base, model = tiny_model(), adapted()
    assert torch.equal(logits(base), logits(model))
    before = {name: p.clone() for name, p in model.named_parameters()}
    trained(model)
    moved = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
    assert moved == {name for name in before if ".lora_" in name}
    assert len(moved) == 2 * 7 * 2  # A and B of seven matrices in two layers


def test_training_equals_pefts_own_model() -> None:
    from peft import LoraConfig, get_peft_model

    samples = noisy(with_logprobs(multi_turn_samples(8), tiny_model()), 0.2)
    lora = LoraSettings(rank=4, alpha=8, targets=("q_proj", "down_proj"))
    ours = adapted(lora=lora)
    config = LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "down_proj"], task_type="CAUSAL_LM")
    theirs = get_peft_model(tiny_model(), config)
    start = {name.replace("lora_A", "lora_A.default"): t.clone() for name, t in adapter_tensors(ours)}
    start = {name.replace("lora_B", "lora_B.default"): t for name, t in start.items()}
    assert not theirs.load_state_dict(start, strict=False).unexpected_keys
    trainer = trainer_of(ours, optimizer=OPTIMIZER, batch=BatchSettings(micro_batch_tokens=64))
    adamw = torch.optim.AdamW(
        [p for p in theirs.parameters() if p.requires_grad], lr=OPTIMIZER.lr, weight_decay=0
    )
    total = sum(float(sample.weight.sum()) for sample in samples)
    for _ in range(3):
        trainer.step(samples)
        for sample in samples:
            ids = torch.from_numpy(sample.tokens.astype(np.int64))[None]
            every = torch.log_softmax(theirs(input_ids=ids).logits[0, :-1], -1)
            logprobs = every.gather(-1, ids[0, 1:, None])[:, 0]
            ratio = torch.exp(logprobs - torch.from_numpy(sample.logprobs[1:]))
            advantage = torch.from_numpy(sample.advantage[1:])
            gain = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
            (-(gain * torch.from_numpy(sample.weight[1:])).sum() / total).backward()
        adamw.step()
        adamw.zero_grad()
    state = theirs.state_dict()
    for name, tensor in adapter_tensors(ours):
        path, _, _ = name.rpartition(".weight")
        assert torch.allclose(tensor, state[f"{path}.default.weight"], atol=1e-6), name


def test_merged_weights_equal_the_live_model(tmp_path: Path) -> None:
    model = trained(adapted())
    before = copy.deepcopy(model.state_dict())
    model.save_pretrained(tmp_path, state_dict=dict(merged_tensors(model)))
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    loaded, report = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert not torch.allclose(logits(model), logits(tiny_model()), atol=1e-2)
    assert torch.allclose(logits(loaded), logits(model), atol=1e-5)


def test_saved_adapters_load_in_peft(tmp_path: Path) -> None:
    from peft import PeftModel

    model = trained(adapted())
    tiny_model().save_pretrained(tmp_path / "base")
    save_adapters(model, tmp_path / "adapter", base=tmp_path / "base")
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    loaded = PeftModel.from_pretrained(base, str(tmp_path / "adapter"))
    assert torch.allclose(logits(loaded), logits(model), atol=1e-6)


def test_disabled_adapters_give_the_base_model_and_its_gradients_later() -> None:
    model = trained(adapted())
    live = logits(model)
    with adapters_disabled(model):
        assert torch.equal(logits(model), logits(tiny_model()))
    assert torch.equal(logits(model), live)
    with pytest.raises(ValueError, match="stop"), adapters_disabled(model):
        raise ValueError("stop")
    assert torch.equal(logits(model), live)
    assert all(p.requires_grad == (".lora_" in name) for name, p in model.named_parameters())


def test_adapters_of_a_bfloat16_model_are_float32() -> None:
    model = adapted(dtype=torch.bfloat16)
    dtypes = {".lora_" in name: p.dtype for name, p in model.named_parameters()}
    assert dtypes == {True: torch.float32, False: torch.bfloat16}
    assert logits(model).dtype == torch.bfloat16


def test_start_values_depend_on_seed_and_module_only() -> None:
    torch.manual_seed(1)
    one = dict(adapter_tensors(adapted()))
    torch.manual_seed(2)
    few = adapted(lora=LoraSettings(rank=4, alpha=8, targets=("v_proj",)))
    assert all(torch.equal(one[name], tensor) for name, tensor in adapter_tensors(few))
    other = tiny_model()
    add_adapters(other, LoraSettings(rank=4, alpha=8), seed=1)
    assert not torch.equal(next(iter(one.values())), next(adapter_tensors(other))[1])
    matrices = [tensor for name, tensor in one.items() if "lora_A" in name]
    assert len({matrix.flatten()[0].item() for matrix in matrices}) == len(matrices)


def random_adapters(model: PreTrainedModel) -> PreTrainedModel:
    torch.manual_seed(1)
    with torch.no_grad():
        for _, layer in adapted_layers(model):
            layer.lora_B["default"].weight.normal_(0, 0.1)
    return model


@pytest.mark.parametrize("targets", [("experts",), ("all-linear", "experts")])
def test_adapted_experts_equal_merged_experts(targets: tuple[str, ...], tmp_path: Path) -> None:
    from peft import PeftModel

    base = architecture("qwen3_moe")
    model = architecture("qwen3_moe")
    add_adapters(model, LoraSettings(rank=4, alpha=8, targets=targets))
    ids = IDS % 40
    with torch.no_grad():
        assert torch.equal(model(input_ids=ids).logits, base(input_ids=ids).logits)
    digest = base_digest(model)
    random_adapters(model)
    live = model(input_ids=ids).logits
    torch.log_softmax(live, -1)[..., 0].sum().backward()
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    assert len(trained) == 2 * 2 * (2 + 4 * ("all-linear" in targets))
    assert all(p.grad is not None and p.grad.any() for p in trained.values())
    assert torch.equal(base_digest(model), digest)
    save_merged(model, tmp_path / "merged")
    save_adapters(model, tmp_path / "adapter", base="")
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    alone = PeftModel.from_pretrained(architecture("qwen3_moe"), str(tmp_path / "adapter"))
    ours = architecture("qwen3_moe")
    load_adapters(ours, tmp_path / "adapter")
    with torch.no_grad():
        assert not torch.allclose(base(input_ids=ids).logits, live, atol=1e-2)
        for other in (merged, alone, ours):
            assert torch.allclose(other(input_ids=ids).logits, live, atol=1e-4)
        with adapters_disabled(model):
            assert torch.equal(model(input_ids=ids).logits, base(input_ids=ids).logits)


def test_every_linear_layer_leaves_experts_and_router_out() -> None:
    model = architecture("qwen3_moe")
    add_adapters(model, LoraSettings(rank=4))
    assert {name.rpartition(".")[2] for name, _ in adapted_layers(model)} == {
        f"{part}_proj" for part in "qkvo"
    }
    with pytest.raises(TrainError, match=r"'experts', but the linear layers"):
        add_adapters(tiny_model(), LoraSettings(targets=("experts",)))
    with pytest.raises(TrainError, match=r"'up'.*q_proj, v_proj and experts. Choose"):
        add_adapters(architecture("qwen3_moe"), LoraSettings(targets=("up",)))


def test_unknown_target_names_the_linear_layers() -> None:
    with pytest.raises(TrainError, match=r"'qproj'.*down_proj, gate_proj, k_proj, .*all-linear"):
        add_adapters(tiny_model(), LoraSettings(targets=("qproj", "k_proj")))
    with pytest.raises(TrainError, match="lm_head"):
        add_adapters(tiny_model(), LoraSettings(targets=("lm_head",)))


def test_targets_choose_the_adapted_layers() -> None:
    model = adapted(lora=LoraSettings(rank=2, targets=("q_proj", "v_proj")))
    assert {name.rpartition(".")[2] for name, _ in adapted_layers(model)} == {"q_proj", "v_proj"}


@pytest.mark.full
def test_bfloat16_adapters_follow_float32_at_a_tiny_learning_rate() -> None:
    samples = with_logprobs(multi_turn_samples(4), smooth_model())
    moves: list[torch.Tensor] = []
    for dtype in (torch.float32, torch.bfloat16):
        model = smooth_model().to(torch.bfloat16).to(dtype)
        add_adapters(model, LoraSettings(rank=4, alpha=8))
        start = dict(adapter_tensors(model))
        start = {name: tensor.detach().clone() for name, tensor in start.items()}
        trainer = trainer_of(model, optimizer=OptimizerSettings(lr=1e-6))
        for _ in range(50):
            trainer.step(samples)
        moved = [(tensor.detach() - start[name]).flatten() for name, tensor in adapter_tensors(model)]
        moves.append(torch.cat(moved))
    exact, ours = moves
    assert float(torch.cosine_similarity(exact, ours, dim=0)) >= 0.99
    assert float((ours != 0).float().mean()) >= 0.99


def test_local_engine_samples_with_the_adapters() -> None:
    model = trained(adapted())
    prompt = [3, 5, 8, 13]

    async def sample() -> Completion:
        engine = LocalEngine(model, LocalEngineSettings())
        try:
            return await engine.generate(prompt, Sampling(max_tokens=12, seed=1), session="a")
        finally:
            await engine.close()

    reply = asyncio.run(sample())
    ids = torch.tensor([[*prompt, *reply.token_ids.tolist()]])
    for switch, same in ((nullcontext(), True), (adapters_disabled(model), False)):
        with torch.no_grad(), switch:
            ours = plain_logprobs(model, ids, 1.0)[0, len(prompt) - 1 :].numpy()
        assert (np.abs(ours - reply.logprobs).max() <= 1e-4) == same


LORA = LoraSettings(rank=4, alpha=8)


def learner_with(lora: LoraSettings, model: PreTrainedModel) -> InProcessLearner:
    return InProcessLearner(
        model,
        objective=policy_objective(LossSettings(), 1.0),
        optimizer=OPTIMIZER,
        passes=PassSettings(),
        settings=LearnerSettings(lora=lora),
    )


def rows_of(samples: Sequence[Sample]) -> list[TrainRow]:
    return [TrainRow(sample=s, scale=s.weight, old_logprobs=s.logprobs) for s in samples]


def test_saved_adapters_continue_and_another_base_is_refused(tmp_path: Path) -> None:
    rows = rows_of(with_logprobs(multi_turn_samples(4), tiny_model()))
    one = learner_with(LORA, tiny_model())
    one.forward_backward(rows)
    one.optim_step(1e-2)
    one.save(tmp_path / "state")()
    two = learner_with(LORA, tiny_model())
    two.load(tmp_path / "state")
    for learner in (one, two):
        learner.forward_backward(rows)
        learner.optim_step(1e-2)
    pairs = list(zip(adapter_tensors(one.model), adapter_tensors(two.model), strict=True))
    assert all(torch.equal(a, b) for (_, a), (_, b) in pairs)
    with pytest.raises(CheckpointError, match="another base model"):
        learner_with(LORA, tiny_model(seed=7)).load(tmp_path / "state")
    with pytest.raises(CheckpointError, match="shape"):
        learner_with(LoraSettings(rank=2), tiny_model()).load(tmp_path / "state")
    with pytest.raises(CheckpointError, match="does not train"):
        learner_with(LoraSettings(rank=4, targets=("q_proj",)), tiny_model()).load(tmp_path / "state")


def test_export_of_a_mixture_holds_the_merged_model_and_adapters(tmp_path: Path) -> None:
    from peft import PeftModel

    architecture("qwen3_moe").save_pretrained(tmp_path / "base")
    learner = learner_with(LORA, AutoModelForCausalLM.from_pretrained(tmp_path / "base"))
    with torch.no_grad():
        for _, layer in adapted_layers(learner.model):
            layer.lora_B["default"].weight.normal_(0, 0.1)
    learner.export(tmp_path / "export")
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "export")
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    alone = PeftModel.from_pretrained(base, str(tmp_path / "export" / "adapter"))
    ids = IDS % 40
    with torch.no_grad():
        live = learner.model(input_ids=ids).logits
        assert torch.allclose(merged(input_ids=ids).logits, live, atol=1e-4)
        assert torch.allclose(alone(input_ids=ids).logits, live, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "targets"), [*((name, "all-linear") for name in ARCHITECTURES), ("qwen3_moe", "experts")]
)
def test_passes_over_trees_equal_plain_passes_with_adapters(name: str, targets: str) -> None:
    model, branches = architecture(name), tree_branches()
    add_adapters(model, LoraSettings(rank=4, alpha=8, targets=(targets,)))
    random_adapters(model)
    expected = plain(model, branches, temperature=0.8)
    assert sum(bool(gradient.any()) for gradient in expected[2]) == 2 * len(list(adapted_layers(model)))
    for share in (False, True):
        assert_equal(over_forest(policy_of(model, 0.8), branches, share=share), expected)
    assert_equal(segment_by_segment(policy_of(model, 0.8), branches), expected)


def smooth_model() -> PreTrainedModel:
    """A model with start weights of transformers' default size; `tiny_model` has ten times larger ones."""
    torch.manual_seed(0)
    config = copy.deepcopy(tiny_model().config)
    config.initializer_range = 0.02
    return type(tiny_model())(config).eval()
