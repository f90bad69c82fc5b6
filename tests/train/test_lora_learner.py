"""The learner in this process with `train.lora`."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError
from transformers import AutoModelForCausalLM, PreTrainedModel

from hone.config import RunSettings
from hone.train import checkpoint
from hone.train.batches import TrainRow
from hone.train.checkpoint import TrainState
from hone.train.errors import CheckpointError, TrainError
from hone.train.lora import has_adapters
from hone.train.settings import (
    BatchSettings,
    LearnerSettings,
    LoraSettings,
    LossSettings,
    OptimizerSettings,
    ParallelSettings,
    TrainSettings,
)
from hone.train.trainer import Trainer, policy_trainer
from tests.train.examples import learner_of, model_of, noisy, tiny_model, tokenizer, with_logprobs
from tests.train.trajectories import multi_turn_samples

pytestmark = pytest.mark.model

IDS = torch.arange(24)[None] % 64
SAMPLES = noisy(with_logprobs(multi_turn_samples(8), tiny_model()), 0.2)


def lora_trainer(*, rank: int = 4, workers: int = 1, kl_coef: float = 0.1) -> Trainer:
    settings = TrainSettings(
        steps=100,
        lora=LoraSettings(rank=rank, alpha=8),
        loss=LossSettings(kl_coef=kl_coef),
        batch=BatchSettings(workers=workers, micro_batch_tokens=64),
        optimizer=OptimizerSettings(lr=1e-2, max_grad_norm=1e9),
    )
    return policy_trainer(tiny_model(), settings, temperature=1.0)


def stepped(trainer: Trainer, steps: int = 2) -> Trainer:
    for _ in range(steps):
        trainer.step(SAMPLES)
    return trainer


def logits(model: PreTrainedModel) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=IDS).logits


def adapters(trainer: Trainer) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in learner_of(trainer).masters.parameters.items()}


def save(trainer: Trainer, folder: Path) -> Path:
    return checkpoint.save(folder, TrainState(step=0), trainer=trainer, tokenizer=tokenizer(), keep=1)


def test_step_trains_the_adapters_and_nothing_else() -> None:
    trainer = lora_trainer()
    before = {name: p.clone() for name, p in model_of(trainer).named_parameters()}
    stepped(trainer)
    moved = {name for name, p in model_of(trainer).named_parameters() if not torch.equal(p, before[name])}
    assert moved == {name for name in before if ".lora_" in name} == set(adapters(trainer))


def test_workers_train_the_adapters_as_one_does() -> None:
    one, two = adapters(stepped(lora_trainer())), adapters(stepped(lora_trainer(workers=2)))
    assert all(torch.allclose(one[name], two[name], atol=1e-5) for name in one)


def test_reference_is_the_start_model() -> None:
    start = lora_trainer()
    rows = [TrainRow(sample=s, scale=s.weight, old_logprobs=s.logprobs) for s in SAMPLES]
    expected = learner_of(start).logprobs(rows)  # new adapters change nothing
    learner = learner_of(stepped(start))
    for ours, of_start, live in zip(
        learner.logprobs(rows, "reference"), expected, learner.logprobs(rows), strict=True
    ):
        assert (ours == of_start).all()
        assert abs(live - of_start).max() > 1e-3


def test_reference_model_beside_adapters_is_refused() -> None:
    settings = TrainSettings(lora=LoraSettings(rank=4), loss=LossSettings(kl_coef=0.1))
    with pytest.raises(TrainError, match="all weights are trained"):
        policy_trainer(tiny_model(), settings, temperature=1.0, reference=tiny_model())


def test_checkpoint_is_merged_and_has_the_adapters_alone(tmp_path: Path) -> None:
    from peft import PeftModel

    trainer = stepped(lora_trainer())
    model = model_of(trainer)
    live, before = logits(model), copy.deepcopy(model.state_dict())
    path = save(trainer, tmp_path / "checkpoints")
    loaded, report = AutoModelForCausalLM.from_pretrained(path, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert not has_adapters(loaded)
    assert torch.allclose(logits(loaded), live, atol=1e-5)
    assert not torch.allclose(live, logits(tiny_model()), atol=1e-2)
    alone = PeftModel.from_pretrained(tiny_model(), str(path / "adapter"))
    assert torch.allclose(logits(alone), live, atol=1e-6)
    assert torch.equal(logits(model), live)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_restored_adapters_continue_bit_for_bit(tmp_path: Path) -> None:
    trainer = stepped(lora_trainer())
    path = save(trainer, tmp_path)
    again = lora_trainer()
    checkpoint.restore(path, again)
    expected, found = adapters(stepped(trainer, 1)), adapters(stepped(again, 1))
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    with pytest.raises(CheckpointError, match=r"lora_A.* has the shape \(4, .*\) there and \(2, .*\) here"):
        checkpoint.restore(path, lora_trainer(rank=2))


def test_split_adapters_and_adapters_over_nccl_are_refused(tmp_path: Path) -> None:
    parallel = ParallelSettings(tensor=2)
    with pytest.raises(ValidationError, match=r"parallel.tensor is 2: set it to 1"):
        LearnerSettings(learner="ranks", ranks=2, parallel=parallel, lora=LoraSettings())
    values = {"run_dir": tmp_path, "train": {"lora": {}}, "engine": {"kind": "vllm", "weight_sync": "nccl"}}
    with pytest.raises(ValidationError, match='"nccl" does not merge the adapters'):
        RunSettings.model_validate(values)
