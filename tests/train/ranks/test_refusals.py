"""What ranks refuse: one sentence, nothing lost, no rank left behind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import GraniteConfig, GraniteForCausalLM

from hone.train.errors import CheckpointError, TrainError
from hone.train.ranks.learner import RanksLearner
from tests.train.ranks.cases import SHAPE, make_rows, make_spec

pytestmark = [pytest.mark.model, pytest.mark.slow, pytest.mark.full]


@pytest.fixture(scope="module")
def learner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RanksLearner]:
    folder = tmp_path_factory.mktemp("ranks")
    learner = RanksLearner(make_spec(folder), logs=folder / "logs")
    yield learner
    learner.close()


def test_model_that_packed_passes_cannot_serve_is_refused(tmp_path: Path) -> None:
    torch.manual_seed(0)
    GraniteForCausalLM(GraniteConfig(**SHAPE, logits_scaling=8.0)).save_pretrained(tmp_path / "granite")
    with pytest.raises(TrainError, match="GraniteForCausalLM cannot be trained: its log-probabilities"):
        RanksLearner(make_spec(tmp_path, architecture="granite"), logs=tmp_path / "logs")


@pytest.mark.parametrize("damage", ["cut", "missing"])
def test_damaged_shard_is_named_and_the_ranks_stay_usable(
    learner: RanksLearner, tmp_path: Path, damage: str
) -> None:
    rows = make_rows(3)
    learner.forward_backward(rows)
    learner.optim_step(1e-3)
    learner.save(tmp_path / "state")()
    expected = learner.logprobs(rows)
    shard = tmp_path / "state" / "__1_0.distcp"
    whole = shard.read_bytes()
    if damage == "cut":
        shard.write_bytes(whole[: len(whole) // 2])
    else:
        shard.unlink()
    with pytest.raises(CheckpointError, match=r"__1_0\.distcp"):
        learner.load(tmp_path / "state")
    shard.write_bytes(whole)
    learner.load(tmp_path / "state")
    for mine, theirs in zip(learner.logprobs(rows), expected, strict=True):
        assert (mine == theirs).all()
