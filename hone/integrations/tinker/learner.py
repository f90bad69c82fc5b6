"""The learner whose adapters, gradient and optimiser are at a service of the Tinker API."""

from __future__ import annotations

import json
import math
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from hone.config.remote_learners import TINKER_ALPHA
from hone.integrations.tinker.mapping import Normalisation, losses, scored_example, trained_examples
from hone.integrations.tinker.measure import Behaviour, measure
from hone.integrations.tinker.service import Service, ServiceError, Training
from hone.policy.engines.nccl import PublishedWeights, Sender
from hone.policy.model import load_model
from hone.train.batches import TrainRow
from hone.train.errors import CheckpointError, NonFinite, TrainError
from hone.train.learner import LearnerSpec, PassReport, Usage
from hone.train.lora import adapter_tensors, add_adapters, save_adapters, save_merged
from hone.train.settings import NO_CRITIC, LoraSettings
from hone.train.usage import device_usage
from hone.types import Float32, Int32

if TYPE_CHECKING:
    from transformers import PreTrainedModel

STATE = "tinker.json"
_NORMS = ("skyrl.ai/grad_norm", "unclipped_grad_l2:mean")  # of the gradient, as services call it
_ELSEWHERE = (
    'the weights of train.learner = "tinker" are at a service and cannot be {}: set engine.kind = "tinker"'
)


class TinkerLearner:
    """Trains adapters at `service`; nothing of the model is in this process but while it is exported.

    Invariant: the service's gradient is that of the objective, whatever the service divides losses by.
    """

    def __init__(self, service: Service, spec: LearnerSpec, *, vocabulary: int, seed: int = 0) -> None:
        """Measure the service and make adapters; blocks. Raises TrainError for what it does not do."""
        assert spec.settings.lora is not None, "settings refuse a Tinker learner without adapters"
        if spec.objective.critic is not None:
            raise TrainError(NO_CRITIC)
        self.spec = spec
        self.service = service
        self.lora: LoraSettings = spec.settings.lora
        self.behaviour: Behaviour = measure(
            service, rank=self.lora.rank, vocabulary=vocabulary, dtype=spec.dtype
        )
        if math.isfinite(spec.optimizer.max_grad_norm) and not self.behaviour.clips:
            raise TrainError(
                f"{service.url} does not clip gradients, and train.optimizer.max_grad_norm is "
                f"{spec.optimizer.max_grad_norm:g}: set it to inf"
            )
        self.training: Training = service.new_training(self.lora.rank, seed)
        self._reference: Any = None  # the SDK's sampling client of the model without adapters
        self._rows = 0  # in the gradient that is kept
        self._lost = False  # whether that gradient is unknown, after an error

    def forward_backward(self, rows: Sequence[TrainRow]) -> PassReport:
        """Add the gradient of sum(scale x loss) over `rows` (see `Learner`), in two passes of the service.

        Raises ServiceError, and TrainError for a second call before `optim_step` where the service divides by
        the number of rows.
        """
        self._require_gradient()
        normalisation = self.behaviour.normalisation
        if self._rows and normalisation is Normalisation.ROW_MEAN:
            raise TrainError(
                f"{self.service.url} divides a gradient by its number of rows, so all rows of an optimiser "
                "step must come in one call"
            )
        current = self.logprobs(rows)
        loss, weights = losses(self.spec.objective, rows, current)
        if not all(np.isfinite(weight).all() for weight in (*weights, np.float32(loss))):
            raise NonFinite(
                f"the loss is {loss}: the weights or the log-probabilities of the samples are not finite; "
                "resume from the last checkpoint with a lower learning rate"
            )
        batch = trained_examples(rows, weights, current, normalisation)
        self._lost = True  # until the service has answered
        logprobs = _of_rows(rows, self.training.forward_backward(batch))
        self._lost = False
        self._rows += len(rows)
        tokens = sum(row.length for row in rows)
        return PassReport(
            loss=loss,
            logprobs=logprobs,
            entropies=[-values for values in logprobs],  # an unbiased estimate: no distributions are returned
            branch_tokens=tokens,
            unique_tokens=tokens,
            passes={"off": len(rows)},
        )

    def optim_step(self, lr: float) -> float:
        """Update the adapters with the service's Adam; return the norm that it reports, or else 0.

        Raises NonFinite after an update by a gradient that is not finite, which no service skips.
        """
        self._require_gradient()
        settings = self.spec.optimizer
        limit = settings.max_grad_norm
        self._lost = True
        metrics = self.training.optim_step(
            learning_rate=lr,
            beta1=settings.beta1,
            beta2=settings.beta2,
            eps=settings.eps,
            weight_decay=settings.weight_decay,
            grad_clip_norm=limit if math.isfinite(limit) else 0.0,
        )
        self._lost, self._rows = False, 0
        norm = next((float(metrics[name]) for name in _NORMS if name in metrics), 0.0)
        if not math.isfinite(norm):
            self._lost = True
            raise NonFinite(
                f"the norm of the gradient is {norm}, and the service has updated its weights with it: "
                "resume from the last checkpoint with a lower learning rate"
            )
        return norm

    def clear_gradients(self) -> None:
        """Let the next call raise TrainError if there is a gradient, which no service can forget."""
        self._lost = self._lost or self._rows > 0

    def logprobs(
        self, rows: Sequence[TrainRow], of: Literal["policy", "reference"] = "policy"
    ) -> list[Float32]:
        tokens = [row.sample.tokens[: row.length] for row in rows]
        if of == "policy":
            return _of_rows(rows, self.training.forward([scored_example(each) for each in tokens]))
        if self._reference is None:
            self._reference = self.service.base_sampler()
        return _of_rows(rows, [score(self.service, self._reference, each) for each in tokens])

    def values(self, rows: Sequence[TrainRow]) -> list[Float32]:
        raise TrainError(NO_CRITIC)

    def next_logprobs(self, prompt: Sequence[int]) -> Float32:
        raise TrainError(_ELSEWHERE.format("compared with those of engine servers"))

    def text_logprobs(self, tokens: Int32) -> Float32:
        """Return [T - 1]: the log-probability of each token but the first, under the present weights."""
        return self.training.forward([scored_example(tokens)])[0]

    def save(self, folder: Path) -> Callable[[], None]:
        """Save adapters and optimiser at the service, and their path in `folder`."""
        if self._rows:
            raise CheckpointError("a state is saved between optimiser steps: call `optim_step` first")
        path = self.training.save(_name("state"))
        folder.mkdir(parents=True, exist_ok=True)
        (folder / STATE).write_text(json.dumps({"path": path, **self._identity()}, indent=1))
        return lambda: None

    def load(self, folder: Path) -> None:
        """Continue from `save`. Raises CheckpointError for other adapters, ServiceError for a lost state."""
        try:
            saved: dict[str, Any] = json.loads((folder / STATE).read_text())
        except OSError as error:
            raise CheckpointError(
                f"{folder} holds no state of a Tinker service: set train.learner to the one that wrote it"
            ) from error
        path = str(saved.pop("path"))
        if saved != self._identity():
            raise CheckpointError(
                f"{folder} belongs to {saved}, and this run trains {self._identity()}: restore the settings "
                "that the run began with, or choose another run directory"
            )
        self.training = self.service.saved_training(path)
        self._rows, self._lost = 0, False

    def export(self, folder: Path) -> None:
        """Write the merged weights and the adapters; loads the model into memory meanwhile."""
        model = self.adapted_model()
        save_merged(model, folder)
        save_adapters(model, folder / "adapter", base=self.spec.model)

    @property
    def adapted(self) -> bool:
        return True

    def export_adapters(self, folder: Path) -> None:
        save_adapters(self.adapted_model(), folder, base=self.spec.model)

    def sender(self, kind: str) -> Sender:
        raise TrainError(_ELSEWHERE.format(f"sent to {kind} servers"))

    def published(self) -> PublishedWeights:
        raise TrainError(_ELSEWHERE.format("sent to engine servers"))

    def usage(self) -> Usage:
        return device_usage(torch.device("cpu"))

    def cancel(self) -> None:
        self.service.cancel()

    def restart(self) -> None:
        raise TrainError("a learner at a service has no ranks to restart: start the run again")

    def close(self) -> None:
        """End the session; what was saved stays at the service."""
        self.service.close()

    def _require_gradient(self) -> None:
        if self._lost:
            raise TrainError(
                "an error has left the gradient at the service unknown, and no service can forget one: "
                "resume from the last checkpoint"
            )

    def _identity(self) -> dict[str, Any]:
        return {"model": self.service.base_model, "rank": self.lora.rank}

    def adapted_model(self) -> PreTrainedModel:
        """Return the model on the CPU with the present adapters. Raises ServiceError, PolicyError."""
        from safetensors.torch import load_file
        from transformers.utils.logging import disable_progress_bar

        disable_progress_bar()  # it would overwrite the run's progress display
        model = load_model(self.spec.model, self.spec.dtype)
        add_adapters(model, self.lora)
        with TemporaryDirectory(prefix="hone-adapters-") as folder:
            self.training.download_adapters(_name("adapters"), Path(folder))
            config = json.loads((Path(folder) / "adapter_config.json").read_text())
            tensors = load_file(Path(folder) / "adapter_model.safetensors")
        _require_same_adapters(config, tensors, model, self.lora)
        with torch.no_grad():
            for name, tensor in adapter_tensors(model):
                tensor.copy_(tensors[name])
        return model


def score(service: Service, sampler: Any, tokens: Int32) -> Float32:
    """Return [T - 1]: the log-probabilities of all tokens but the first by an SDK sampling client."""
    prompt = service.sdk.types.ModelInput.from_ints(tokens.tolist())
    found = service.call("scoring", lambda: sampler.compute_logprobs(prompt).result())
    return scores(found, len(tokens), service.url)


def scores(found: Sequence[float | None], count: int, url: str) -> Float32:
    """Return the scores [T - 1] of a reply for `count` tokens, of which the first has none.

    Raises ServiceError for a reply of another length.
    """
    given = list(found[1:]) if len(found) == count else list(found)
    if len(given) != count - 1 or any(value is None for value in given):
        raise ServiceError(
            f"{url} scored {len(found)} of {count} tokens: use a service that computes log-probabilities of "
            "prompts"
        )
    return np.asarray(given, np.float32)


def _of_rows(rows: Sequence[TrainRow], values: Sequence[Float32]) -> list[Float32]:
    """Return the trained tokens' part, [n], of each row's values [T - 1]."""
    return [of_row[row.trained - 1] for row, of_row in zip(rows, values, strict=True)]


def _name(what: str) -> str:
    return f"hone-{what}-{uuid.uuid4().hex[:12]}"


def _require_same_adapters(
    config: Mapping[str, Any], tensors: Mapping[str, Any], model: PreTrainedModel, lora: LoraSettings
) -> None:
    expected = {name: tuple(tensor.shape) for name, tensor in adapter_tensors(model)}
    found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if found != expected or config["lora_alpha"] != TINKER_ALPHA:
        differing = sorted(set(expected.items()) ^ set(found.items()))[:2]
        raise ServiceError(
            f"the service's adapters of rank {lora.rank} are not those of all linear layers with alpha "
            f"{TINKER_ALPHA:g} (alpha {config['lora_alpha']}, differing: {differing}): they cannot be "
            "exported"
        )
