"""Operations of training, as they are counted for the use of a device."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from hone.train.passes import CostModel
from hone.train.usage import training_flops


def test_weights_without_gradient_need_two_thirds_of_the_operations() -> None:
    cost = CostModel(hidden=8, layers=2, attention_width=8, layer_parameters=100)
    batch: Any = SimpleNamespace(forest=SimpleNamespace(tokens=range(10), visible_pairs=55), targets=range(3))
    attention = 12 * 2 * 8 * 55  # layers, width and pairs
    weights = 2 * 100 * 10 + 50 * 3  # of the layers for each token, of the head for each target
    assert training_flops([batch], cost, 50, adapters=False) == 6 * weights + attention
    assert training_flops([batch] * 2, cost, 50, adapters=True) == 2 * (4 * weights + attention)
