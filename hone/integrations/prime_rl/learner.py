"""The learner whose gradients, weights and optimiser are prime-rl's."""

from __future__ import annotations

import json
import math
import shutil
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal, NoReturn

from hone.integrations.prime_rl.files import LAST_METRIC, LOSS_METRIC, STABLE, TrainerFiles
from hone.integrations.prime_rl.wire import encode, micro_batch_grid
from hone.policy.engines.nccl import PublishedWeights, Sender
from hone.train.batches import TrainRow
from hone.train.errors import CheckpointError, TrainError
from hone.train.learner import LearnerSpec, PassReport, Usage
from hone.train.prime_rl_settings import PrimeRLSettings
from hone.types import Float32

STATE = "prime_rl.json"
METRICS = {"entropy/all/mean": "entropy", "mismatch_kl/all/mean": "mismatch/k3", "perf/mfu": "prime_rl/mfu"}


class PrimeRLLearner:
    """Sends a batch, waits for prime-rl's trainer, and reads its weights and metrics.

    `forward_backward` returns after prime-rl has made its optimiser step; `optim_step` then only reports it.
    Invariant: after n optimiser steps, the weights are those of `broadcasts/step_<n>`.
    """

    def __init__(self, spec: LearnerSpec, settings: PrimeRLSettings, *, output_dir: Path) -> None:
        self._spec = spec
        self._settings = settings
        self._cancelled = threading.Event()
        self._files = TrainerFiles(
            output_dir=output_dir, timeout_s=settings.timeout_s, cancelled=self._cancelled
        )
        self._peak_memory_gib = 0.0  # of one of the trainer's devices
        self._steps = 0  # optimiser steps, which is the version of the weights
        self._metrics: Mapping[str, float] | None = None  # of a step that `optim_step` has not yet reported

    def forward_backward(self, rows: Sequence[TrainRow]) -> PassReport:
        self._cancelled.clear()
        if self._metrics is not None:
            raise TrainError("prime-rl makes one optimiser step per batch: call optim_step before another")
        grid = micro_batch_grid(
            rows,
            seq_len=self._settings.seq_len,
            data_ranks=self._settings.data_ranks,
            temperature=self._spec.objective.temperature,
        )
        step = self._steps + 1
        self._files.send(step, [encode(micro_batches) for micro_batches in grid])
        self._files.wait_weights(step)
        self._metrics = self._files.wait_metrics(step)
        tokens = sum(row.length for row in rows)
        return PassReport(
            # prime-rl reports the mean over micro-batches, each already divided by all trained tokens
            loss=self._metrics[LOSS_METRIC] * sum(map(len, grid)),
            logprobs=None,
            entropies=None,
            branch_tokens=tokens,
            unique_tokens=tokens,
            metrics={own: self._metrics[name] for name, own in METRICS.items() if name in self._metrics},
        )

    def optim_step(self, lr: float) -> float:
        if self._metrics is None:
            raise TrainError("there is no batch to make an optimiser step from")
        metrics, self._metrics = self._metrics, None
        self._steps += 1
        self._peak_memory_gib = metrics.get("perf/peak_memory", 0.0)
        if not math.isclose(metrics[LAST_METRIC], lr, rel_tol=1e-6):
            raise TrainError(
                f"prime-rl's trainer has a learning rate of {metrics[LAST_METRIC]:g}, and train.optimizer "
                f"gives {lr:g}: start the trainer with the trainer.toml of this run"
            )
        return metrics.get("optim/grad_norm", math.nan)

    def clear_gradients(self) -> None:
        """Do nothing: prime-rl keeps no gradient between two steps."""

    def logprobs(
        self, rows: Sequence[TrainRow], of: Literal["policy", "reference"] = "policy"
    ) -> list[Float32]:
        _refuse("log-probabilities")

    def values(self, rows: Sequence[TrainRow]) -> list[Float32]:
        _refuse("values")

    def next_logprobs(self, prompt: Sequence[int]) -> None:
        """Return None: the weights are proved by their digests alone."""

    def save(self, folder: Path) -> Callable[[], None]:
        """Record the version; the state itself is in prime-rl's own checkpoint of the same step."""
        folder.mkdir(parents=True)
        (folder / STATE).write_text(json.dumps({"steps": self._steps}))
        return lambda: None

    def load(self, folder: Path) -> None:
        path = folder / STATE
        if not path.is_file():
            raise CheckpointError(f"{folder} was written by another learner: set train.learner to that one")
        self._steps = int(json.loads(path.read_text())["steps"])
        self._metrics = None

    def export(self, folder: Path) -> None:
        self._cancelled.clear()
        weights = self._files.wait_weights(self._steps)
        folder.mkdir(parents=True, exist_ok=True)
        for file in weights.iterdir():
            if file.name != STABLE:
                shutil.copyfile(file, folder / file.name)
        for name in ("config.json", "generation_config.json"):
            if (source := self._spec.model / name).is_file():
                shutil.copyfile(source, folder / name)

    @property
    def adapted(self) -> bool:
        return False

    def export_adapters(self, folder: Path) -> None:
        _refuse("adapters")

    def sender(self, kind: str) -> Sender:
        _refuse('weights over NCCL: set engine.weight_sync = "disk"')

    def published(self) -> PublishedWeights:
        _refuse("tensors in memory")

    def usage(self) -> Usage:
        return Usage(peak_memory_gib=self._peak_memory_gib, peak_flops=None)

    def cancel(self) -> None:
        self._cancelled.set()

    def restart(self) -> None:
        raise TrainError("prime-rl's trainer is started by hand: start it again with resume.step")

    def close(self) -> None:
        self._cancelled.set()


def _refuse(what: str) -> NoReturn:
    raise TrainError(f"prime-rl's trainer does not give {what}")
