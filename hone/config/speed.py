"""An estimate of the seconds of a training step, from the settings and a machine's GPUs.

It assumes that every rollout fills `engine.context_tokens`, of which the policy samples a quarter, and counts
no time for tools, tests and the judge: an order of magnitude, to compare machines and settings with.

    training:  operations / (GPUs x peak x TRAIN_SHARE); 6 per active parameter and token, 8 with activation
               checkpointing, and 12 x layers x query width x context / 2 for attention
    sampling:  turns of `concurrent_episodes` rollouts, whose tokens come one after another; each token reads
               the weights once per server, and the keys and values of every conversation
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from hone.config.run import RunSettings
from hone.config.shapes import Shape
from hone.utils.gpus import KNOWN, Speed, known_speed

TRAIN_SHARE = 0.35  # of the peak that training reaches (model FLOP/s utilisation)
SAMPLE_SHARE = 0.5  # of the memory bandwidth that decoding reaches
SAMPLED = 0.25  # of a rollout's tokens
CORE_FLOPS = 1e11  # peak of one core of a server in float32
CPU_BANDWIDTH = 5e10  # bytes of memory per second, of all cores


def gpu_speed(name: str, memory_gib: float) -> Speed:
    """Return the speed of a GPU; of an unknown one, that of an A100 from 40 GiB on and of a 4090 below."""
    return known_speed(name) or (KNOWN["A100"] if memory_gib >= 40 else KNOWN["4090"])


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWork:
    """What a training step does."""

    rollouts: int
    concurrent: int  # rollouts at a time
    context: int  # tokens of one rollout
    passes: int  # over the batch
    checkpointing: bool
    trained_share: float  # 1, or 2/3 with adapters, whose base weights have no gradients
    trainer_gpus: int
    servers: int
    server_gpus: int  # of each server


def step_seconds(shape: Shape, work: StepWork, speed: Speed) -> float:
    """Return the estimated seconds of one step on GPUs: sampling, then training."""
    return _sampling_seconds(shape, work, speed) + training_seconds(shape, work, speed)


def training_seconds(shape: Shape, work: StepWork, speed: Speed) -> float:
    """Return the estimated seconds that the trainer works on one step."""
    tokens = work.rollouts * work.context * work.passes
    attention = 12 * shape.layers * shape.attention_width * work.context / 2
    operations = 6 * shape.active_parameters + attention
    again = 4 / 3 if work.checkpointing else 1.0  # the forward pass is a third of the whole
    total = tokens * operations * again * work.trained_share
    return total / (max(1, work.trainer_gpus) * speed.flops * TRAIN_SHARE)


def _sampling_seconds(shape: Shape, work: StepWork, speed: Speed) -> float:
    if not work.servers:
        return 0.0
    at_once = min(work.concurrent, work.rollouts)
    turns = work.rollouts / at_once
    cached = at_once / work.servers * (work.context / 2) * shape.kv_bytes(2)
    reads = 2 * shape.parameters + cached
    per_token = reads / (work.server_gpus * speed.bandwidth * SAMPLE_SHARE)
    return turns * work.context * SAMPLED * per_token


def cpu_seconds(settings: RunSettings, shape: Shape, rollouts: int, *, trains: bool, samples: bool) -> float:
    """Return the estimated seconds of `rollouts` on the CPU of this machine: what of their work it does."""
    speed = Speed(flops=CORE_FLOPS * (os.cpu_count() or 1), bandwidth=CPU_BANDWIDTH)
    work = StepWork(
        rollouts=rollouts,
        concurrent=min(settings.rollout.concurrent_episodes, rollouts),
        context=settings.engine.context_tokens,
        passes=settings.train.batch.epochs,
        checkpointing=settings.train.memory.activation_checkpointing,
        trained_share=1.0 if settings.train.lora is None else 2 / 3,
        trainer_gpus=1,
        servers=1,
        server_gpus=1,
    )
    training = training_seconds(shape, work, speed) if trains else 0.0
    return training + (_sampling_seconds(shape, work, speed) if samples else 0.0)
