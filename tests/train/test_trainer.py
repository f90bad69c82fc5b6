from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hone.train.errors import NonFinite, StepCancelled, TrainError
from hone.train.loss import CrossEntropy
from hone.train.optimizer import BatchedMuon, learning_rate
from hone.train.settings import BatchSettings, LossSettings, OptimizerSettings, SftSettings
from hone.train.trainer import Trainer
from hone.train.vocabulary import score
from tests.train.examples import (
    noisy,
    sft_learner,
    step_with_gradients,
    tiny_model,
    trainer_of,
    with_logprobs,
)
from tests.train.trajectories import multi_turn_samples

pytestmark = pytest.mark.model


def assert_same(one: list[torch.Tensor], two: list[torch.Tensor], tolerance: float) -> None:
    for a, b in zip(one, two, strict=True):
        assert float((a - b).abs().max()) <= tolerance * max(1.0, float(b.abs().max()))


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("logit_tokens", [7, 10_000])
def test_chunked_logprobs_and_gradients_equal_a_plain_projection(
    temperature: float, logit_tokens: int
) -> None:
    torch.manual_seed(3)
    head = torch.nn.Linear(16, 64)
    hidden, targets = torch.randn(40, 16, requires_grad=True), torch.randint(0, 64, (40,))
    every = torch.log_softmax(head(hidden) / temperature, -1)
    plain = every.gather(-1, targets[:, None])[:, 0]
    ours, entropy = score(head, hidden, targets, temperature=temperature, logit_tokens=logit_tokens)
    assert torch.allclose(ours, plain, atol=1e-6)
    assert torch.allclose(entropy, -(every.exp() * every).sum(-1), atol=1e-5)
    mix = torch.linspace(-1, 1, len(ours))
    inputs = (hidden, *head.parameters())
    gradients = [torch.autograd.grad((x * mix).sum(), inputs) for x in (ours, plain)]
    assert_same(list(gradients[0]), list(gradients[1]), 1e-5)


def test_ratio_is_one_at_the_first_on_policy_step() -> None:
    model = tiny_model()
    samples = with_logprobs(multi_turn_samples(24), model, 0.8)
    metrics = trainer_of(model, temperature=0.8).step(samples)
    assert metrics["ratio_max_deviation"] <= 1e-4
    assert metrics["logp_gap_max"] <= 1e-4
    assert metrics["clip_fraction"] == 0
    assert metrics["trained_tokens"] == sum(s.weight.sum() for s in samples)


def test_logp_gap_shows_a_different_temperature() -> None:
    model = tiny_model()
    samples = with_logprobs(multi_turn_samples(8), model, 0.8)
    assert trainer_of(model, temperature=1.0).step(samples)["logp_gap_max"] > 0.1


@pytest.mark.parametrize("normalisation", ["token", "trajectory", "group"])
def test_gradient_is_independent_of_token_budget_and_workers(normalisation: str) -> None:
    samples = noisy(with_logprobs(multi_turn_samples(), tiny_model()), 0.3)
    loss = LossSettings.model_validate({"normalisation": normalisation})
    seen = [
        step_with_gradients(
            trainer_of(
                tiny_model(),
                loss=loss,
                batch=BatchSettings(micro_batch_tokens=budget, logit_tokens=64, workers=workers),
            ),
            samples,
        )
        for budget, workers in ((1, 1), (100, 1), (100_000, 1), (1, 2), (100, 3), (100_000, 2))
    ]
    (first, [gradients]), *others = seen
    for metrics, [other] in others:
        assert metrics["loss"] == pytest.approx(first["loss"], abs=1e-6)
        assert metrics["entropy"] == pytest.approx(first["entropy"], abs=1e-5)
        assert_same(other, gradients, 1e-5)


def test_untrained_tokens_do_not_change_the_loss() -> None:
    samples = with_logprobs(multi_turn_samples(), tiny_model())
    longer = [
        replace(
            s,
            tokens=np.append(s.tokens, [7, 8]).astype(np.int32),
            weight=np.append(s.weight, [0, 0]).astype(np.float32),
            advantage=np.append(s.advantage, [9, 9]).astype(np.float32),
            logprobs=np.append(s.logprobs, [9, 9]).astype(np.float32),
            version=np.append(s.version, [-1, -1]).astype(np.int32),
        )
        for s in samples
    ]
    one = step_with_gradients(trainer_of(tiny_model()), samples)
    two = step_with_gradients(trainer_of(tiny_model()), longer)
    assert two[0]["loss"] == one[0]["loss"]
    assert two[0]["branch_tokens"] == one[0]["branch_tokens"]
    assert_same(two[1][0], one[1][0], 0)


def test_zero_advantage_samples_count_in_the_mean_uncomputed() -> None:
    samples = with_logprobs(multi_turn_samples(8), tiny_model())
    flat = [replace(s, advantage=np.zeros_like(s.advantage)) for s in samples[:4]]
    metrics, [gradients] = step_with_gradients(trainer_of(tiny_model()), [*flat, *samples[4:]])
    assert metrics["branch_tokens"] < sum(len(s.tokens) for s in samples[4:]) + 1
    _, [alone] = step_with_gradients(trainer_of(tiny_model()), samples[4:])
    share = sum(s.weight.sum() for s in samples[4:]) / sum(s.weight.sum() for s in samples)
    assert_same(gradients, [g * float(share) for g in alone], 1e-5)


def test_zero_advantage_batch_keeps_weights_and_is_reported() -> None:
    model = tiny_model()
    before = copy.deepcopy(model.state_dict())
    trainer = trainer_of(model)
    trainer.step(with_logprobs(multi_turn_samples(8), model))  # AdamW now has momentum
    after = copy.deepcopy(model.state_dict())
    assert any(not torch.equal(before[k], after[k]) for k in before)
    flat = [replace(s, advantage=np.zeros_like(s.advantage)) for s in multi_turn_samples(8)]
    metrics = trainer.step(flat)
    assert (metrics["skipped/no_signal"], metrics["loss"]) == (1, 0.0)
    assert trainer.step([])["optimizer_steps"] == 0
    assert all(torch.equal(after[k], v) for k, v in model.state_dict().items())


def test_later_optimiser_steps_move_and_clip_the_ratio() -> None:
    model = tiny_model()
    samples = with_logprobs(multi_turn_samples(16), model)
    batch = BatchSettings(mini_batches=4, epochs=3)
    trainer = trainer_of(model, batch=batch, optimizer=OptimizerSettings(lr=1e-2))
    metrics, gradients = step_with_gradients(trainer, samples)
    assert len(gradients) == metrics["optimizer_steps"] == trainer.optimizer_steps == 12
    assert metrics["trained_tokens"] == 3 * sum(s.weight.sum() for s in samples)
    assert metrics["ratio_max_deviation"] > 0.2
    assert 0 < metrics["clip_fraction"] < 1
    assert metrics["approx_kl"] > 0
    assert metrics["logp_gap_max"] <= 1e-4  # of the first optimiser step only


@pytest.mark.parametrize("batch", [BatchSettings(), BatchSettings(mini_batches=2, epochs=2)])
def test_recomputed_old_logprobs_make_the_first_ratio_one(
    batch: BatchSettings,
) -> None:
    loss = LossSettings(old_logprobs="recomputed")
    exact = with_logprobs(multi_turn_samples(8), tiny_model())
    off = noisy(exact, 0.5)
    one = step_with_gradients(trainer_of(tiny_model(), batch=batch), exact)
    two = step_with_gradients(trainer_of(tiny_model(), loss=loss, batch=batch), off)
    assert two[0]["logp_gap_max"] > 0.5
    for a, b in zip(one[1], two[1], strict=True):
        assert_same(a, b, 2e-3)


def test_kl_term_pulls_towards_the_reference_and_needs_one() -> None:
    reference = tiny_model(5)
    model = tiny_model()
    samples = with_logprobs(multi_turn_samples(8), model)
    flat = [replace(s, advantage=np.zeros_like(s.advantage)) for s in samples]
    loss = LossSettings(kl_coef=1.0)
    optimizer = OptimizerSettings(lr=3e-3)
    trainer = trainer_of(model, loss=loss, reference=reference, optimizer=optimizer)
    first = trainer.step(flat)["loss"]
    for _ in range(10):
        last = trainer.step(flat)["loss"]
    assert 0 < last < first / 2
    with pytest.raises(TrainError, match="reference"):
        trainer_of(tiny_model(), loss=loss)
    with pytest.raises(TrainError, match="reference"):
        trainer_of(tiny_model(), reference=reference)


def test_gradients_are_clipped_to_the_norm() -> None:
    samples = with_logprobs(multi_turn_samples(8), tiny_model())
    optimizer = OptimizerSettings(lr=1e-3, max_grad_norm=0.01)
    metrics, [gradients] = step_with_gradients(trainer_of(tiny_model(), optimizer=optimizer), samples)
    assert metrics["grad_norm"] > 0.1
    norm = torch.stack([g.norm() for g in gradients]).norm()
    assert float(norm) == pytest.approx(0.01, rel=1e-3)


def test_non_finite_loss_raises_and_changes_no_weight() -> None:
    model = tiny_model()
    before = copy.deepcopy(model.state_dict())
    samples = with_logprobs(multi_turn_samples(8), model)
    samples[3] = replace(samples[3], advantage=np.full_like(samples[3].advantage, -np.inf))
    with pytest.raises(NonFinite, match="loss is"):
        trainer_of(model).step(samples)
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())


def test_third_non_finite_gradient_in_a_row_raises() -> None:
    model = tiny_model()
    samples = with_logprobs(multi_turn_samples(8), model)
    trainer = trainer_of(model)
    before = copy.deepcopy(model.state_dict())
    handle = model.model.norm.weight.register_hook(lambda grad: grad * float("nan"))
    for _ in range(2):
        assert trainer.step(samples)["skipped/non_finite_gradient"] == 1
    with pytest.raises(NonFinite, match="3 optimiser steps in a row"):
        trainer.step(samples)
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    handle.remove()
    assert trainer.step(samples)["optimizer_steps"] == 1


@pytest.mark.parametrize(("name", "workers"), [("adamw", 1), ("muon", 1), ("adamw", 2), ("muon", 2)])
def test_restored_trainer_continues_bit_for_bit(name: str, workers: int, tmp_path: Path) -> None:
    optimizer = OptimizerSettings.model_validate({"name": name, "lr": 1e-2, "schedule": "linear"})
    batch = BatchSettings(mini_batches=3, micro_batch_tokens=40, workers=workers)
    samples = with_logprobs(multi_turn_samples(9), tiny_model())
    model = tiny_model()
    trainer = trainer_of(model, batch=batch, optimizer=optimizer)
    trainer.step(samples)
    trainer.learner.save(tmp_path / "state")()
    state = trainer.state_dict()
    trainer.step(samples)
    other_model = tiny_model(9)
    other = trainer_of(other_model, batch=batch, optimizer=optimizer)
    other.learner.load(tmp_path / "state")
    other.load_state_dict(state)
    other.step(samples)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other_model.parameters(), strict=True))


def test_two_workers_reach_nearly_the_weights_of_one() -> None:
    samples = with_logprobs(multi_turn_samples(8), tiny_model())
    models = [tiny_model(), tiny_model()]
    for workers, model in enumerate(models, start=1):
        trainer = trainer_of(model, batch=BatchSettings(micro_batch_tokens=40, workers=workers))
        for _ in range(3):
            trainer.step(samples)
    start, one, two = (list(model.parameters()) for model in (tiny_model(), *models))
    with torch.no_grad():
        moved = max(float((a - b).abs().max()) for a, b in zip(start, one, strict=True))
        apart = max(float((a - b).abs().max()) for a, b in zip(one, two, strict=True))
    assert apart < moved / 100


def test_non_finite_loss_in_any_worker_leaves_no_gradient() -> None:
    model = tiny_model()
    samples = with_logprobs(multi_turn_samples(4), model)
    shortest = min(
        range(4), key=lambda i: len(samples[i].tokens)
    )  # the last micro-batch, the second worker's
    broken = list(samples)
    broken[shortest] = replace(broken[shortest], advantage=np.full_like(broken[shortest].advantage, np.inf))
    trainer = trainer_of(model, batch=BatchSettings(micro_batch_tokens=1, workers=2))
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(NonFinite):
        trainer.step(broken)
    assert all(p.grad is None for p in model.parameters())
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    fresh = trainer_of(tiny_model(), batch=BatchSettings(micro_batch_tokens=1, workers=2))
    assert trainer.step(samples)["grad_norm"] == fresh.step(samples)["grad_norm"]


def test_workers_are_refused_on_other_devices_than_the_cpu() -> None:
    with pytest.raises(TrainError, match="which needs a float32 model on the CPU"):
        trainer_of(tiny_model().to("meta"), batch=BatchSettings(workers=2))


@pytest.mark.parametrize("nesterov", [True, False])
def test_batched_muon_equals_torch_muon(nesterov: bool) -> None:
    torch.manual_seed(0)
    shapes = [(8, 8), (24, 8), (8, 24), (8, 8), (24, 8), (5, 7)]
    ours, theirs = ([torch.nn.Parameter(torch.ones(shape)) for shape in shapes] for _ in range(2))
    settings = {"lr": 0.02, "weight_decay": 0.1, "momentum": 0.9, "nesterov": nesterov}
    batched = BatchedMuon(ours, **settings)
    plain = torch.optim.Muon(theirs, adjust_lr_fn="match_rms_adamw", **settings)
    for step in range(4):
        for index, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            gradient = None if (step, index) == (1, 3) else torch.randn(one.shape)
            one.grad, other.grad = gradient, None if gradient is None else gradient.clone()
        batched.step()
        plain.step()
    for one, other in zip(ours, theirs, strict=True):
        assert torch.allclose(one, other, atol=1e-3)
        assert torch.allclose(
            batched.state[one]["momentum_buffer"], plain.state[other]["momentum_buffer"], atol=1e-6
        )


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_cross_entropy_is_the_mean_nll_and_falls(name: str) -> None:
    samples = multi_turn_samples(6)
    expected = with_logprobs(samples, tiny_model())
    settings = SftSettings(optimizer=OptimizerSettings.model_validate({"name": name, "lr": 1e-2}))
    trainer = Trainer(
        sft_learner(tiny_model(), settings),
        objective=CrossEntropy(),
        optimizer=settings.optimizer,
        batch=BatchSettings(),
        total_optimizer_steps=10,
    )
    first = trainer.step(samples)
    total = sum(float(s.logprobs.sum()) for s in expected) / sum(float(s.weight.sum()) for s in samples)
    assert first["loss"] == pytest.approx(-total, rel=1e-5)
    assert "ratio_max_deviation" not in first
    assert trainer.step(samples)["loss"] < first["loss"]


def test_cancel_stops_a_step_between_forward_passes() -> None:
    model = tiny_model()
    samples = with_logprobs(multi_turn_samples(8), model)
    trainer = trainer_of(model, batch=BatchSettings(micro_batch_tokens=1))
    entered = threading.Event()

    def cancel(*_: object) -> None:
        entered.set()
        trainer.cancel()

    handle = model.lm_head.register_forward_hook(cancel)
    with pytest.raises(StepCancelled):
        trainer.step(samples)
    assert entered.is_set()
    handle.remove()
    assert trainer.step(samples)["optimizer_steps"] == 1


def test_malformed_sample_is_refused() -> None:
    sample = multi_turn_samples(1)[0]
    first = sample.weight.copy()
    first[0] = 1
    for wrong in (
        replace(sample, logprobs=sample.logprobs[:-1]),
        replace(sample, weight=np.zeros_like(sample.weight)),
        replace(sample, weight=first),
        replace(sample, logprobs=np.full_like(sample.logprobs, np.nan)),
    ):
        with pytest.raises(TrainError, match="r0"):
            trainer_of(tiny_model()).step([wrong])


@pytest.mark.parametrize("change", [lambda logits: 5 * torch.tanh(logits / 5), lambda logits: 1.001 * logits])
def test_model_with_changed_logits_is_refused(change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    model = tiny_model()
    trainer_of(model)
    plain = model.forward

    def changed(*arguments: Any, **options: Any) -> Any:
        output = plain(*arguments, **options)
        output.logits = change(output.logits)
        return output

    model.forward = changed  # type: ignore[method-assign]
    with pytest.raises(TrainError, match="capped logits"):
        trainer_of(model)


def test_greedy_replies_cannot_be_trained_on() -> None:
    with pytest.raises(TrainError, match="temperature 0"):
        trainer_of(tiny_model(), temperature=0.0)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("constant", [0.2, 0.4, 0.6, 0.8, 1.0, 1.0, 1.0, 1.0, 1.0]),
        ("linear", [0.2, 0.4, 0.6, 0.8, 1.0, 0.775, 0.55, 0.325, 0.1]),
        ("cosine", [0.2, 0.4, 0.6, 0.8, 1.0, 0.8682, 0.55, 0.2318, 0.1]),
    ],
)
def test_learning_rate_warms_up_and_decays(schedule: str, expected: list[float]) -> None:
    settings = OptimizerSettings.model_validate(
        {"lr": 1.0, "schedule": schedule, "warmup_steps": 4, "final_lr_fraction": 0.1}
    )
    assert [learning_rate(i, 8, settings) for i in range(9)] == pytest.approx(expected, abs=1e-4)
    assert learning_rate(20, 8, settings) == expected[-1]
