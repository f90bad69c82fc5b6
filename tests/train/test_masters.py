"""Float32 masters of bfloat16 weights: small updates arrive, and follow those of a float32 model."""

from __future__ import annotations

import pytest
import torch

from hone.train.settings import OptimizerSettings
from tests.train.examples import learner_of, model_of, tiny_model, trainer_of, with_logprobs
from tests.train.trajectories import multi_turn_samples

pytestmark = pytest.mark.model


def updates(dtype: torch.dtype, steps: int) -> torch.Tensor:
    """Return the change of all master weights after `steps` at the published learning rate, [parameters]."""
    start = tiny_model(dtype=torch.bfloat16).to(dtype)  # both precisions start from the same numbers
    trainer = trainer_of(start, optimizer=OptimizerSettings(lr=1e-6))
    samples = with_logprobs(multi_turn_samples(4 * steps), tiny_model())
    masters = learner_of(trainer).masters
    before = torch.cat([p.detach().flatten().clone() for p in masters])
    for step in range(steps):
        trainer.step(samples[4 * step : 4 * step + 4])
    for parameter, master in zip(model_of(trainer).parameters(), masters, strict=True):
        assert torch.equal(parameter, master.to(dtype))
        assert parameter.grad is None
    return torch.cat([p.detach().flatten() for p in masters]) - before


@pytest.mark.full
def test_bfloat16_updates_follow_those_of_float32() -> None:
    exact, rounded = updates(torch.float32, 50), updates(torch.bfloat16, 50)
    assert float(torch.nn.functional.cosine_similarity(exact, rounded, dim=0)) >= 0.99
    assert float((rounded != 0).float().mean()) >= 0.99


def test_gradients_of_several_passes_are_added_in_float32() -> None:
    samples = with_logprobs(multi_turn_samples(8), tiny_model())
    model = tiny_model(dtype=torch.bfloat16)
    trainer = trainer_of(model)
    rows, _ = trainer._rows(samples)
    learner = learner_of(trainer)
    summed: dict[str, torch.Tensor] = {}
    for row in rows:
        learner.forward_backward([row])
        for name, master in learner.masters.parameters.items():
            assert master.grad is not None
            gradient = master.grad.clone()
            summed[name] = summed.get(name, torch.zeros_like(gradient)) + gradient
        learner.clear_gradients()
    for row in rows:
        learner.forward_backward([row])
    for name, master in learner.masters.parameters.items():
        assert master.grad is not None
        assert master.grad.dtype == torch.float32
        torch.testing.assert_close(master.grad, summed[name])
