"""The files that Hone and prime-rl's trainer exchange below the trainer's `output_dir`.

rollouts/step_N/rank_R.bin    written by Hone: the micro-batches of step N
broadcasts/step_N/            written by the trainer: the weights after step N; complete with STABLE
metrics.jsonl                 written by the trainer: several lines a step
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hone.train.errors import StepCancelled, TrainError
from hone.utils.files import write_file

STABLE = "STABLE"
POLL_S = 0.5
LAST_METRIC = "optim/lr"  # a step's metrics after its weights: the learning rate is always among them
LOSS_METRIC = "loss/mean"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerFiles:
    """Reads and writes the files of one trainer."""

    output_dir: Path
    timeout_s: float  # of each wait
    cancelled: threading.Event
    poll_s: float = POLL_S

    def send(self, step: int, ranks: Sequence[bytes]) -> None:
        """Write the micro-batches of each data rank; equal ones of an earlier run may be there already.

        Raises TrainError if the files of the step hold other micro-batches.
        """
        folder = self.output_dir / "rollouts" / f"step_{step}"
        paths = [folder / f"rank_{rank}.bin" for rank in range(len(ranks))]
        for path, data in zip(paths, ranks, strict=True):
            if path.is_file() and path.read_bytes() != data:
                raise TrainError(
                    f"{path} holds other micro-batches than step {step - 1} of this run, and prime-rl's "
                    f"trainer may have trained on those: stop it, delete step_{step} and later of "
                    f"{self.output_dir}/rollouts and /broadcasts, and start it with resume.step = {step - 1}"
                )
        folder.mkdir(parents=True, exist_ok=True)
        for path, data in zip(paths, ranks, strict=True):
            if not path.is_file():
                write_file(path, data)  # beside and renamed

    def wait_weights(self, step: int) -> Path:
        """Return the folder of the weights after `step`, once it is complete.

        Raises TrainError after `timeout_s`, StepCancelled.
        """
        folder = self.output_dir / "broadcasts" / f"step_{step}"
        self._wait(
            (folder / STABLE).is_file,
            f"no weights of step {step} in {folder} after {self.timeout_s:g} s: start prime-rl's trainer "
            f"with {self.output_dir.parent / 'trainer.toml'}, or see its log",
        )
        return folder

    def wait_metrics(self, step: int) -> Mapping[str, float]:
        """Return the trainer's metrics of `step`, once all are there. Raises TrainError, StepCancelled."""
        found: dict[str, float] = {}

        def complete() -> bool:
            found.update(read_metrics(self.output_dir / "metrics.jsonl", step))
            return LAST_METRIC in found and LOSS_METRIC in found

        self._wait(
            complete,
            f"no metrics of step {step} in {self.output_dir / 'metrics.jsonl'} after {self.timeout_s:g} s: "
            f"start prime-rl's trainer with {self.output_dir.parent / 'trainer.toml'}",
        )
        return found

    def _wait(self, done: Callable[[], bool], late: str) -> None:
        deadline = time.monotonic() + self.timeout_s
        while not done():
            if time.monotonic() > deadline:
                raise TrainError(late)
            if self.cancelled.wait(self.poll_s):
                raise StepCancelled("the training step was cancelled while prime-rl's trainer worked on it")


def read_metrics(path: Path, step: int) -> dict[str, float]:
    """Return all metrics of `step`, the newest of each name; {} without a file."""
    if not path.is_file():
        return {}
    found: dict[str, float] = {}
    for line in path.read_bytes().split(b"\n")[:-1]:  # the last one is incomplete
        record = json.loads(line)
        if record.get("step") == step:
            found |= {name: value for name, value in record.items() if isinstance(value, int | float)}
    return found
