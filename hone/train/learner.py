"""The learner: owns the trained weights, their gradients and the optimiser state; knows no algorithm.

    Trainer -- rows --> forward_backward --> optim_step --> save | export | publish

`Trainer` folds each token's share of the mini-batch into the `scale` of its row, so gradients are plain sums:
however a learner divides its rows into forward passes and ranks, the gradient is the same. The verbs are the
Tinker API's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from hone.policy.engines.nccl import PublishedWeights, Sender
from hone.train.batches import TrainRow
from hone.train.loss import Objective
from hone.train.settings import LearnerSettings, OptimizerSettings, PassSettings
from hone.types import Float32


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerSpec:
    """What a learner computes; picklable, for learners in other processes."""

    model: Path  # a folder that transformers loads: the start weights, and those of the reference
    dtype: Literal["float32", "bfloat16"]  # of computation; master weights and moments are always float32
    objective: Objective
    optimizer: OptimizerSettings
    passes: PassSettings
    settings: LearnerSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class PassReport:
    """The forward and backward passes over some rows; the per-row lists are parallel to the rows.

    A learner that does not return log-probabilities and entropies says what it measured in `metrics`.
    """

    loss: float  # sum of scale x loss over all trained tokens
    logprobs: list[Float32] | None  # [n] each: the row's trained tokens, in order
    entropies: list[Float32] | None  # [n] each, in nats
    branch_tokens: int  # tokens of all rows, each up to its last trained token
    unique_tokens: int  # tokens that were computed; fewer where rows share prefixes
    passes: Mapping[str, int] = field(default_factory=dict[str, int])  # number of passes by kind
    replayed: int | None = (
        None  # of `unique_tokens`, those with recorded experts; None: a dense model, or no replay
    )
    flops: float = 0.0  # operations that the model needs for them; recomputation does not count
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])  # by the names of `Trainer.step`


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What a learner has used of its devices."""

    peak_memory_gib: float  # most on one device so far: allocated on a GPU, resident in a process on a CPU
    peak_flops: float | None  # operations per second that all its GPUs can do; None: unknown, or CPUs


class Learner(Protocol):
    """One copy of the policy under training, on one device or on many.

    Calls are blocking and come from one thread at a time, but for `cancel`.
    """

    def forward_backward(self, rows: Sequence[TrainRow]) -> PassReport:
        """Add the gradient of sum(scale x loss) over `rows` to the gradient kept so far.

        Raises NonFinite, after which the gradient is empty; StepCancelled; RankError.
        """
        ...

    def optim_step(self, lr: float) -> float:
        """Clip the gradient, update the weights, clear the gradient; return its norm before clipping.

        A norm that is not finite is returned without an update of the weights.
        """
        ...

    def clear_gradients(self) -> None:
        """Forget the gradient kept so far."""
        ...

    def logprobs(
        self, rows: Sequence[TrainRow], of: Literal["policy", "reference"] = "policy"
    ) -> list[Float32]:
        """Return the log-probabilities of each row's trained tokens, [n] per row, without a gradient."""
        ...

    def values(self, rows: Sequence[TrainRow]) -> list[Float32]:
        """Return the critic's values before each row's trained tokens, [n] per row, without a gradient."""
        ...

    def next_logprobs(self, prompt: Sequence[int]) -> Float32 | None:
        """Return the log-probabilities [V] of every token after `prompt`, at temperature 1.

        None: the learner cannot tell, and engine servers prove their weights by digests alone.
        """
        ...

    def save(self, folder: Path) -> Callable[[], None]:
        """Write master weights, optimiser and random states into the new folder `folder`, for `load`.

        Returns after a copy of the state was made, so training may go on; the returned function waits until
        the files are complete and raises CheckpointError if they cannot be written. Any number of ranks
        writes, and any other number reads.
        """
        ...

    def load(self, folder: Path) -> None:
        """Continue from `save`, bit for bit with the same number of ranks. Raises CheckpointError."""
        ...

    def export(self, folder: Path) -> None:
        """Write the weights, adapters merged, and their configuration into `folder` for transformers."""
        ...

    @property
    def adapted(self) -> bool:
        """Whether adapters are trained, and not the model's own weights."""
        ...

    def export_adapters(self, folder: Path) -> None:
        """Write the adapters alone, in float32, into `folder` for peft; only with adapters."""
        ...

    def sender(self, kind: str) -> Sender:
        """Return the sender of the weights to engine servers of `kind`, over NCCL from the learner's own GPU.

        Raises PolicyError or TrainError if the learner is not on a GPU.
        """
        ...

    def published(self) -> PublishedWeights:
        """Return names, tensors and digests of the present weights, for the sender.

        They are in the precision of computation.
        """
        ...

    def usage(self) -> Usage:
        """Return what the learner has used of its devices."""
        ...

    def cancel(self) -> None:
        """Make a call in another thread raise StepCancelled after its current forward pass."""
        ...

    def restart(self) -> None:
        """After a RankError: start again with the start weights and a new optimiser."""
        ...

    def close(self) -> None:
        """Stop ranks and threads, and release their memory. Idempotent."""
        ...
