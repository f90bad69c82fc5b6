"""Adapters on ranks train like adapters in one process, and what one writes another reads."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, PreTrainedModel

from hone.train.batches import TrainRow
from hone.train.errors import CheckpointError
from hone.train.in_process import InProcessLearner
from hone.train.learner import Learner, LearnerSpec, PassReport
from hone.train.lora import adapter_tensors
from hone.train.loss import policy_objective
from hone.train.ranks.gradients import add_whole
from hone.train.ranks.learner import RanksLearner
from hone.train.ranks.sharded import ShardedLearner, open_learner
from hone.train.settings import (
    LearnerSettings,
    LoraSettings,
    LossSettings,
    MemorySettings,
    OptimizerSettings,
    ParallelSettings,
)
from hone.types import Float32
from tests.train.ranks.cases import make_model, make_rows, make_spec, worst_difference

pytestmark = [pytest.mark.model, pytest.mark.slow]

LORA = LoraSettings(rank=4, alpha=8)
LR = 1e-2
OPTIMIZER = OptimizerSettings(lr=LR, max_grad_norm=1.0, eps=1e-3)  # eps: see test_layouts
Tensors = dict[str, torch.Tensor]

ARCHITECTURES = ("qwen3", "llama", "qwen3_moe")
CHECKPOINTED = {"memory": MemorySettings(activation_checkpointing=True)}
LAYOUTS: list[tuple[int, ParallelSettings, dict[str, Any]]] = [
    (2, ParallelSettings(), {}),
    (4, ParallelSettings(), {}),
    (2, ParallelSettings(sequence=2), {}),
    (4, ParallelSettings(sequence=2), {}),
    (4, ParallelSettings(replicate=2), {}),
    (2, ParallelSettings(), {"tree": "mask"}),
    (2, ParallelSettings(), {"tree": "off"}),
    (2, ParallelSettings(), CHECKPOINTED),
]


def spec_of(folder: Path, **options: Any) -> LearnerSpec:
    objective = policy_objective(LossSettings(kl_coef=0.1), temperature=0.8)
    return make_spec(folder, **{"lora": LORA, "optimizer": OPTIMIZER, "objective": objective, **options})


def in_process(spec: LearnerSpec, model: PreTrainedModel | None = None) -> InProcessLearner:
    return InProcessLearner(
        make_model(spec.model.name) if model is None else model,
        objective=spec.objective,
        optimizer=spec.optimizer,
        passes=spec.passes,
        settings=LearnerSettings(lora=spec.settings.lora),
    )


def adapters_of(learner: InProcessLearner) -> Tensors:
    return {name: tensor.detach().clone() for name, tensor in adapter_tensors(learner.model)}


def worst_move(found: Tensors, expected: Tensors, start: Tensors) -> float:
    """The largest difference of updates, relative to the largest update of the tensor."""
    assert found.keys() == expected.keys()
    return max(
        float((found[name] - expected[name]).abs().max() / (expected[name] - start[name]).abs().max())
        for name in expected
    )


def test_gradients_of_adapters_are_added_over_all_ranks() -> None:
    """Two ranks in two threads; only one has a gradient of the second parameter."""
    store = torch.distributed.HashStore()

    def rank(index: int) -> list[torch.Tensor | None]:
        group = torch.distributed.ProcessGroupGloo(store, index, 2, timedelta(seconds=60))
        parameters = [torch.nn.Parameter(torch.ones(2, 3)), torch.nn.Parameter(torch.ones(4))]
        parameters[0].grad = torch.full((2, 3), 1.0 + index)
        if index == 1:
            parameters[1].grad = torch.arange(4.0)
        add_whole(parameters, SimpleNamespace(control=group))  # type: ignore[arg-type]
        untouched = [torch.nn.Parameter(torch.ones(2))]
        add_whole(untouched, SimpleNamespace(control=group))  # type: ignore[arg-type]
        return [parameter.grad for parameter in [*parameters, *untouched]]

    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(rank, range(2)))
    for found in results:
        assert [None if g is None else g.tolist() for g in found] == [[[3.0] * 3] * 2, [0, 1, 2, 3], None]


@contextmanager
def alone_in_its_world(spec: LearnerSpec, monkeypatch: pytest.MonkeyPatch) -> Iterator[ShardedLearner]:
    """The learner of a rank, in this process and without other ranks."""
    ports = {"MASTER_ADDR": "localhost", "MASTER_PORT": "0"}
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", **ports}.items():
        monkeypatch.setenv(name, value)
    learner = open_learner(spec, 60.0, threading.Event())
    yield learner
    torch.distributed.destroy_process_group()


def with_reference(row: TrainRow, logprobs: Float32) -> TrainRow:
    whole = np.zeros(len(row.sample.tokens), np.float32)
    whole[row.trained] = logprobs
    return replace(row, reference=whole)


def kl_steps(learner: Learner, steps: int = 3) -> tuple[list[PassReport], list[float]]:
    """Two gradients over different rows per step, with the reference of the learner."""
    reports: list[PassReport] = []
    norms: list[float] = []
    for step in range(steps):
        for part in range(2):
            rows = make_rows(seed=2 * step + part)
            reference = learner.logprobs(rows, "reference")
            rows = [with_reference(row, values) for row, values in zip(rows, reference, strict=True)]
            reports.append(learner.forward_backward(rows))
        norms.append(learner.optim_step(LR))
    return reports, norms


def assert_trained_alike(
    found: tuple[list[PassReport], list[float]], expected: tuple[list[PassReport], list[float]]
) -> None:
    assert worst_difference(found[0], expected[0]) <= 1e-5
    assert np.allclose(found[1], expected[1], rtol=1e-5, atol=0)


@pytest.mark.full
def test_adapters_over_sharded_weights_train_like_in_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = spec_of(tmp_path, ranks=1)
    alone = in_process(spec)
    start = adapters_of(alone)
    expected = kl_steps(alone)
    with alone_in_its_world(spec, monkeypatch) as rank:
        assert_trained_alike(kl_steps(rank), expected)
        (tmp_path / "exported").mkdir()
        rank.export(tmp_path / "exported")
    exported = load_file(tmp_path / "exported/adapter/adapter_model.safetensors")
    assert worst_move(exported, adapters_of(alone), start) <= 1e-5


EVERYTHING = LoraSettings(rank=4, alpha=8, targets=("all-linear", "experts"))
CASES = [
    *((architecture, *layout) for layout in LAYOUTS for architecture in ARCHITECTURES),
    ("qwen3_moe", 2, ParallelSettings(), {"lora": EVERYTHING}),
    ("qwen3_moe", 2, ParallelSettings(sequence=2), {"lora": EVERYTHING}),
    ("qwen3_moe", 2, ParallelSettings(), {"lora": EVERYTHING, **CHECKPOINTED}),
]


@pytest.mark.full
@pytest.mark.parametrize(("architecture", "ranks", "parallel", "options"), CASES)
def test_layout_trains_adapters_like_one_process(
    architecture: str, ranks: int, parallel: ParallelSettings, options: dict[str, Any], tmp_path: Path
) -> None:
    spec = spec_of(tmp_path, architecture=architecture, ranks=ranks, parallel=parallel, **options)
    learner = RanksLearner(spec, logs=tmp_path / "logs")
    try:
        found = kl_steps(learner)
        learner.export(tmp_path / "exported")
    finally:
        learner.close()
    alone = in_process(spec)
    start = adapters_of(alone)
    assert_trained_alike(found, kl_steps(alone))
    exported = load_file(tmp_path / "exported/adapter/adapter_model.safetensors")
    assert worst_move(exported, adapters_of(alone), start) <= 1e-5
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "exported")
    ids = torch.arange(24)[None] % 64
    with torch.no_grad():
        expected = alone.model(input_ids=ids).logits
        assert torch.allclose(merged(input_ids=ids).logits, expected, atol=1e-4)
        assert not torch.allclose(make_model(architecture)(input_ids=ids).logits, expected, atol=1e-2)


@pytest.mark.full
def test_adapters_saved_by_any_number_of_ranks_continue_on_any_other(tmp_path: Path) -> None:
    def ranks(count: int) -> RanksLearner:
        return RanksLearner(spec_of(tmp_path, ranks=count), logs=tmp_path / f"{count}")

    alone = in_process(spec_of(tmp_path))
    kl_steps(alone)
    alone.save(tmp_path / "of 1")()
    expected = kl_steps(alone, 1)
    two = ranks(2)
    two.load(tmp_path / "of 1")
    two.save(tmp_path / "of 2")()
    four = ranks(4)
    four.load(tmp_path / "of 2")
    four.save(tmp_path / "of 4")()
    again = in_process(spec_of(tmp_path))
    again.load(tmp_path / "of 4")
    for learner in (two, four, again):
        assert_trained_alike(kl_steps(learner, 1), expected)
        learner.close()


@pytest.mark.full
def test_adapters_of_another_base_are_refused_on_ranks(tmp_path: Path) -> None:
    spec = spec_of(tmp_path)
    other = make_model("qwen3")
    with torch.no_grad():
        other.model.layers[0].mlp.up_proj.weight[0, 0] += 1
    in_process(spec, other).save(tmp_path / "other")()
    in_process(spec).save(tmp_path / "same")()
    learner = RanksLearner(spec, logs=tmp_path / "logs")
    try:
        with pytest.raises(CheckpointError, match="belong to another base model than"):
            learner.load(tmp_path / "other")
        learner.load(tmp_path / "same")
    finally:
        learner.close()


@pytest.mark.full
def test_bfloat16_adapters_follow_float32_on_two_ranks(tmp_path: Path) -> None:
    """Both start from the same bfloat16 weights; 50 steps at a tiny learning rate."""
    torch.manual_seed(0)
    config = make_model("qwen3").config
    config.initializer_range = 0.02
    type(make_model("qwen3"))(config).to(torch.bfloat16).save_pretrained(tmp_path / "qwen3")
    moves: dict[tuple[str, int], torch.Tensor] = {}
    for dtype, count in (("float32", 1), ("bfloat16", 1), ("bfloat16", 2)):
        spec = spec_of(tmp_path, ranks=count, dtype=dtype, optimizer=OptimizerSettings(lr=1e-6))
        learner: Learner
        if count > 1:
            learner = RanksLearner(spec, logs=tmp_path / "logs")
        else:
            model = AutoModelForCausalLM.from_pretrained(spec.model, dtype=getattr(torch, dtype))
            learner = in_process(spec, model)
        learner.export(tmp_path / "start")
        for step in range(50):
            learner.forward_backward(make_rows(4, seed=step % 2))
            learner.optim_step(1e-6)
        learner.export(tmp_path / "end")
        learner.close()
        start, end = (
            load_file(tmp_path / name / "adapter/adapter_model.safetensors") for name in ("start", "end")
        )
        moves[dtype, count] = torch.cat([(end[name] - start[name]).flatten() for name in end])
    exact = moves.pop(("float32", 1))
    for ours in moves.values():
        assert float(torch.cosine_similarity(exact, ours, dim=0)) >= 0.99
        assert float((ours != 0).float().mean()) >= 0.99
