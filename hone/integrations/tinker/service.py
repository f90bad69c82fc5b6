"""The transport: calls of the Tinker SDK, each with a time limit and errors in one sentence.

The SDK itself reads TINKER_BASE_URL and TINKER_API_KEY; no other file of Hone reads or stores them.
"""

from __future__ import annotations

import importlib
import io
import logging
import os
import tarfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from pathlib import Path
from typing import Any, TypeVar

import httpx
import numpy as np

from hone.integrations.tinker.mapping import LOSS, Example
from hone.policy.engine import EngineError
from hone.train.errors import StepCancelled, TrainError
from hone.types import Float32, Int32

TESTED = "0.25.0"  # of the SDK; later ones expect replies that SkyRL 0.4 does not give
HOSTED = "https://tinker.thinkingmachines.dev"  # the SDK's default
_SERIES = TESTED.rpartition(".")[0]
_POLL_S = 0.2
T = TypeVar("T")


class ServiceError(TrainError, EngineError):
    """The service failed, or is not one that Hone can use."""


def load_sdk() -> Any:
    """Return the SDK's module. Raises ServiceError if it is missing or of an untested series."""
    os.environ.setdefault("TINKER_TELEMETRY", "0")  # it would report errors of this process to the service
    logging.getLogger("tinker.lib.public_interfaces.rest_client").setLevel(logging.ERROR)  # progress
    install = f"pip install 'tinker=={TESTED}'"
    try:
        sdk: Any = importlib.import_module("tinker")
    except ModuleNotFoundError as error:
        raise ServiceError(f"the Tinker API needs its SDK: {install}") from error
    version = str(getattr(sdk, "__version__", "?"))
    if version.rpartition(".")[0] != _SERIES:
        raise ServiceError(
            f"the Tinker SDK {version} is installed, and Hone is tested with {TESTED}: {install}"
        )
    return sdk


class Service:
    """One session with a service, for the model that it calls `base_model`."""

    def __init__(self, base_model: str, *, timeout_s: float) -> None:
        """Connect; blocks. Raises ServiceError."""
        self.base_model = base_model
        self.sdk = load_sdk()
        self._timeout_s = timeout_s
        self._cancelled = threading.Event()
        self._client: Any = self.call("the connection", lambda: self.sdk.ServiceClient())
        self._require_model()

    @property
    def url(self) -> str:
        return os.environ.get("TINKER_BASE_URL") or HOSTED

    def call(self, what: str, function: Callable[[], T]) -> T:
        """Return `function()`, which blocks in a thread of its own, within the time limit.

        Raises ServiceError, and StepCancelled after `cancel`.
        """
        done: Future[T] = Future()

        def work() -> None:
            try:
                done.set_result(function())
            except BaseException as error:  # of any kind: the caller waits for it
                done.set_exception(error)

        threading.Thread(target=work, name="tinker", daemon=True).start()
        deadline = time.monotonic() + self._timeout_s
        while not done.done():
            if self._cancelled.is_set():
                self._cancelled.clear()
                raise StepCancelled
            if time.monotonic() > deadline:
                raise ServiceError(
                    f"{what} took more than engine.request_timeout_s ({self._timeout_s:g} s) at {self.url}: "
                    "see whether the service is up, or raise it"
                )
            wait_for([done], _POLL_S)
        if (error := done.exception()) is not None:
            raise failure(what, self.url, error) from error
        return done.result()

    def cancel(self) -> None:
        """Make a call in another thread raise StepCancelled."""
        self._cancelled.set()

    def new_training(self, rank: int, seed: int) -> Training:
        """Return new adapters of all linear layers but the head, and their optimiser. Raises ServiceError."""

        def create() -> Any:
            return self._client.create_lora_training_client(
                base_model=self.base_model,
                rank=rank,
                seed=seed,
                train_mlp=True,
                train_attn=True,
                train_unembed=False,
            )

        return Training(self, self.call("making adapters", create))

    def saved_training(self, path: str) -> Training:
        """Return the adapters and the optimiser that `Training.save` has saved. Raises ServiceError."""
        load = self._client.create_training_client_from_state_with_optimizer
        return Training(self, self.call(f"loading {path}", lambda: load(path)))

    def base_sampler(self) -> Any:
        """Return the SDK's sampling client of the model without adapters. Raises ServiceError."""
        return self.call(
            "opening a sampler", lambda: self._client.create_sampling_client(base_model=self.base_model)
        )

    def archive(self, path: str) -> bytes:
        """Return the archive of adapters that `Training.save_adapters` has written. Raises ServiceError."""

        run, _, checkpoint = path.removeprefix("tinker://").partition("/")

        def download() -> bytes:
            rest = self._client.create_rest_client()
            url = rest.get_checkpoint_archive_url(run, checkpoint).result().url
            return httpx.get(url, timeout=self._timeout_s, follow_redirects=True).raise_for_status().content

        return self.call(f"the download of {path}", download)

    def check(self) -> None:
        """Raise ServiceError unless the service answers."""
        self.call("the health check", lambda: self._client.get_server_capabilities())

    def close(self) -> None:
        """End the session. Idempotent."""
        for name in ("_session_holder", "_rest_holder"):
            if (holder := getattr(self._client, name, None)) is not None:
                holder.close()
                holder.close = _nothing  # its finaliser would call it when the interpreter has gone

    def _require_model(self) -> None:
        found = self.call("the list of models", lambda: self._client.get_server_capabilities())
        names = [str(each.model_name) for each in found.supported_models]
        if self.base_model not in names:
            raise ServiceError(
                f"{self.url} serves {', '.join(names) or 'no model'}, and not {self.base_model}: set "
                "engine.base_model to one of these, and model.path to the same weights"
            )


class Training:
    """Adapters at the service, with their gradient and optimiser."""

    def __init__(self, service: Service, client: Any) -> None:
        self._service = service
        self._client = client

    def forward(self, batch: Sequence[Example]) -> list[Float32]:
        """Return the log-probability of each target, [T - 1] per example. Raises ServiceError."""
        data = [self._datum(example) for example in batch]
        return self._logprobs("a forward pass", lambda: self._client.forward(data, LOSS).result(), batch)

    def forward_backward(self, batch: Sequence[Example]) -> list[Float32]:
        """Add the gradient of the examples to the one kept; return what `forward` does.

        Raises ServiceError.
        """
        data = [self._datum(example) for example in batch]
        run = self._client.forward_backward
        return self._logprobs("a forward and backward pass", lambda: run(data, LOSS).result(), batch)

    def optim_step(self, **adam: float) -> Mapping[str, float]:
        """Update the adapters, clear the gradient, return the service's metrics. Raises ServiceError."""
        params = self._service.sdk.types.AdamParams(**adam)
        reply = self._service.call("an optimiser step", lambda: self._client.optim_step(params).result())
        return dict(reply.metrics or {})

    def save(self, name: str) -> str:
        """Save adapters and optimiser state; return their path at the service. Raises ServiceError."""
        return str(
            self._service.call("saving the state", lambda: self._client.save_state(name).result()).path
        )

    def sampler(self) -> Any:
        """Return the SDK's sampling client of the present weights. Raises ServiceError."""
        return self._service.call(
            "publishing the weights", lambda: self._client.save_weights_and_get_sampling_client()
        )

    def download_adapters(self, name: str, folder: Path) -> None:
        """Write the present adapters into `folder`: adapter_config.json, adapter_model.safetensors.

        Raises ServiceError.
        """
        save = self._client.save_weights_for_sampler
        path = str(self._service.call("saving the adapters", lambda: save(name).result()).path)
        _unpack(self._service.archive(path), folder)

    def _logprobs(self, what: str, run: Callable[[], Any], batch: Sequence[Example]) -> list[Float32]:
        reply = self._service.call(what, run)
        rows = [
            np.asarray(output["logprobs"].tolist(), np.float32).reshape(-1)
            for output in reply.loss_fn_outputs
        ]
        if [len(row) for row in rows] != [len(example.targets) for example in batch]:
            raise ServiceError(
                f"{self._service.url} returned log-probabilities of other lengths than the "
                f"{len(batch)} rows that were sent: use a service whose API is that of the SDK {TESTED}"
            )
        return rows

    def _datum(self, example: Example) -> Any:
        types = self._service.sdk.types

        def tensor(values: Int32 | Float32, dtype: str) -> Any:
            return types.TensorData(data=values.tolist(), dtype=dtype, shape=[len(values)])

        return types.Datum(
            model_input=types.ModelInput.from_ints(example.inputs.tolist()),
            loss_fn_inputs={
                "target_tokens": tensor(example.targets, "int64"),
                "logprobs": tensor(example.logprobs, "float32"),
                "advantages": tensor(example.advantages, "float32"),
            },
        )


def _nothing() -> None:
    pass


def failure(what: str, url: str, error: BaseException) -> ServiceError:
    """Return the error of a call in one sentence, without the API key."""
    if isinstance(error, ServiceError):
        return error
    text = " ".join(f"{type(error).__name__}: {error}".split())
    if key := os.environ.get("TINKER_API_KEY"):
        text = text.replace(key, "TINKER_API_KEY")
    return ServiceError(f"{what} failed at {url} ({text}): see TINKER_BASE_URL and TINKER_API_KEY")


def _unpack(archive: bytes, folder: Path) -> None:
    """Extract the two files of peft, from wherever in the archive they are."""
    wanted = {"adapter_config.json", "adapter_model.safetensors"}
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        for member in tar:
            name = Path(member.name).name
            content = tar.extractfile(member) if member.isfile() and name in wanted else None
            if content is not None:
                (folder / name).write_bytes(content.read())
                wanted.discard(name)
    if wanted:
        raise ServiceError(f"the service's archive of adapters lacks {', '.join(sorted(wanted))}")
