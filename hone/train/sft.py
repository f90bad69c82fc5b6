"""Supervised training on stored trajectories: the same samples and the same step, with cross-entropy.

A run resumes from its checkpoints: seed and epoch determine the order of the data, so the step suffices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from hone.policy.reply import ToolSpec
from hone.rollout.demonstrations import Demonstration
from hone.train import checkpoint
from hone.train.batches import indices_by_rollout
from hone.train.checkpoint import Tokenizer, TrainState
from hone.train.checkpoint_writer import CheckpointWriter
from hone.train.errors import TrainError
from hone.train.learner import Learner
from hone.train.loss import CrossEntropy
from hone.train.metrics import MetricsWriter
from hone.train.samples import tree_samples
from hone.train.settings import BatchSettings, SftSettings
from hone.train.trainer import Trainer
from hone.types import Message, Sample, TokenTree, Trajectory

Encode = Callable[[Sequence[Message], Sequence[ToolSpec], bool | None], TokenTree]
"""(messages, tools, whether the prompts let the model reason; None: not known) -> tokens"""


def demonstration_samples(
    examples: Iterable[Demonstration | Trajectory],
    encode: Encode,
    keeps_tokens: Callable[[Trajectory], bool] = lambda trajectory: True,
) -> list[Sample]:
    """Return samples with weight 1 on the assistant's tokens.

    A trajectory that an engine sampled keeps its tokens where `keeps_tokens` says so: where they are of the
    trained model's tokenizer. Any other trajectory, and a demonstration, is tokenised by `encode`, which
    renders the messages as a rollout does.
    """
    samples: list[Sample] = []
    for example in examples:
        if isinstance(example, Trajectory) and example.tree.sampled_tokens and keeps_tokens(example):
            tree = example.tree
        else:
            thinking = example.thinking if isinstance(example, Demonstration) else None
            tree = encode(example.messages, example.tools, thinking)
        samples += tree_samples(tree, rollout_id=example.rollout_id, group_id=example.task_id, advantage=1.0)
    return samples


def sft(
    learner: Learner,
    samples: Sequence[Sample],
    settings: SftSettings,
    *,
    run_dir: Path,
    tokenizer: Tokenizer,
    metrics: MetricsWriter,
    on_step: Callable[[int, int, Mapping[str, float]], None] = lambda step, steps, metrics: None,
) -> Path:
    """Train the weights of `learner` and return the last checkpoint, a folder that transformers loads.

    The objective of `learner` is `CrossEntropy`.

    Resumes from the last checkpoint in `run_dir`. `on_step(step, steps, metrics)` is called after every
    optimiser step. Raises TrainError when `samples` is empty, NonFinite, CheckpointError.
    """
    if not samples:
        raise TrainError(
            "there is nothing to train on: the trajectories contain no assistant message; pass others"
        )
    batches = [batch for epoch in range(settings.epochs) for batch in _epoch(samples, settings, epoch)]
    trainer = Trainer(
        learner,
        objective=CrossEntropy(),
        optimizer=settings.optimizer,
        batch=BatchSettings(),
        total_optimizer_steps=len(batches),
    )
    directory = run_dir / "checkpoints"
    path = checkpoint.latest(directory)
    first = 0 if path is None else checkpoint.restore(path, trainer).step + 1
    with CheckpointWriter(directory, trainer, tokenizer, settings.checkpoint) as writer:
        for step in range(first, len(batches)):
            report = trainer.step([samples[i] for i in batches[step]])
            metrics.write(step, report)
            on_step(step, len(batches), report)
            if settings.checkpoint.is_due(step, len(batches)):
                writer.begin(TrainState(step=step))
        path = writer.wait() or path
    if path is None:
        raise TrainError("no step was trained")
    if not trainer.optimizer_steps:
        raise TrainError(
            f"nothing was learnt: none of the {len(batches)} steps in {run_dir} changed a weight, because no "
            "gradient was finite and above 0: lower sft.optimizer.lr, or train in float32"
        )
    return path


def _epoch(samples: Sequence[Sample], settings: SftSettings, epoch: int) -> list[list[int]]:
    """Return the sample indices of each optimiser step; a trajectory's samples stay together."""
    rollouts = indices_by_rollout(samples)
    order: list[int] = np.random.default_rng((settings.seed, epoch)).permutation(len(rollouts)).tolist()
    size = settings.batch_size
    return [
        [index for at in order[start : start + size] for index in rollouts[at]]
        for start in range(0, len(order), size)
    ]
