"""A service of the Tinker API in this process, behind the interface of its SDK, on a real tiny model.

It answers as SkyRL 0.4.0 answered the SDK 0.25.0, in the fields that Hone reads: shapes, names, paths and
errors are those of its replies. `Server.row_mean` and `clips` choose between SkyRL's behaviour and the one
that the hosted service documents.
"""

from __future__ import annotations

import copy
import io
import itertools
import json
import tarfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace
from typing import Any, ClassVar

import torch
from safetensors.torch import save as save_tensors
from torch import Tensor
from transformers import PreTrainedModel

from hone.config.remote_learners import TINKER_ALPHA
from hone.train.lora import adapter_tensors, add_adapters
from hone.train.settings import LoraSettings

__version__ = "0.25.0"
NAME = "tiny"


@dataclass(frozen=True, kw_only=True)
class AdamParams:
    learning_rate: float
    beta1: float
    beta2: float
    eps: float
    weight_decay: float = 0.0
    grad_clip_norm: float = 0.0


@dataclass(frozen=True)
class TensorData:
    data: list[Any]
    dtype: str
    shape: list[int]

    def tolist(self) -> list[Any]:
        return self.data


@dataclass(frozen=True)
class ModelInput:
    tokens: list[int]

    @classmethod
    def from_ints(cls, tokens: list[int]) -> ModelInput:
        return cls(tokens)


@dataclass(frozen=True)
class Datum:
    model_input: ModelInput
    loss_fn_inputs: Mapping[str, TensorData]


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    max_tokens: int
    seed: int | None = None
    stop: list[int] | None = None
    temperature: float = 1.0
    top_k: int = -1
    top_p: float = 1.0


types = SimpleNamespace(
    AdamParams=AdamParams,
    TensorData=TensorData,
    ModelInput=ModelInput,
    Datum=Datum,
    SamplingParams=SamplingParams,
)


@dataclass
class Server:
    """What one service holds, and how it behaves."""

    model: PreTrainedModel
    row_mean: bool = True  # SkyRL; else a sum
    clips: bool = False
    divides_by_batch_tokens: bool = False  # as neither does
    stale_sampler: bool = False  # samplers get the weights of the update before
    failures: list[BaseException] = field(default_factory=list[BaseException])  # of the next calls
    states: dict[str, Any] = field(default_factory=dict[str, Any])
    archives: dict[str, bytes] = field(default_factory=dict[str, bytes])
    calls: list[str] = field(default_factory=list[str])
    names: Iterator[int] = field(default_factory=lambda: itertools.count(1))


class ServiceClient:
    server: ClassVar[Server]

    def get_server_capabilities(self) -> Any:
        return SimpleNamespace(supported_models=[SimpleNamespace(model_name=NAME)])

    def create_lora_training_client(self, base_model: str, rank: int, seed: int, **_: bool) -> TrainingClient:
        assert base_model == NAME
        return TrainingClient(self.server, rank, seed)

    def create_training_client_from_state_with_optimizer(self, path: str) -> TrainingClient:
        rank, adapters, optimizer = self.server.states[path]
        client = TrainingClient(self.server, rank, 0)
        with torch.no_grad():
            for name, tensor in client.adapters().items():
                tensor.copy_(adapters[name])
        client.optimizer.load_state_dict(copy.deepcopy(optimizer))
        return client

    def create_sampling_client(self, base_model: str) -> SamplingClient:
        assert base_model == NAME
        return SamplingClient(self.server.model)

    def create_rest_client(self) -> Any:
        def url(run: str, checkpoint: str) -> Future[Any]:
            path = f"{run}/{checkpoint}"
            if path not in self.server.archives:
                raise ConnectionError("Error code: 405 - {'detail': 'Method Not Allowed'}")
            return done(SimpleNamespace(url=f"{_archive_server(self.server)}/{path}"))

        return SimpleNamespace(get_checkpoint_archive_url=url)


class TrainingClient:
    def __init__(self, server: Server, rank: int, seed: int) -> None:
        self._server = server
        self._id = f"model_{next(server.names)}"
        self._rank = rank
        self._model = copy.deepcopy(server.model)
        add_adapters(self._model, LoraSettings(rank=rank, alpha=TINKER_ALPHA), seed=seed)
        self._rows = 0
        self._published: PreTrainedModel | None = None
        self.optimizer = torch.optim.AdamW(list(self.adapters().values()), lr=0.0)

    def adapters(self) -> dict[str, Tensor]:
        return dict(adapter_tensors(self._model))

    def forward(self, data: Sequence[Datum], loss_fn: str) -> Future[Any]:
        assert loss_fn == "importance_sampling"
        self._called("forward")
        with torch.no_grad():
            return done(_output([_logprobs(self._model, _tokens(datum)) for datum in data]))

    def forward_backward(self, data: Sequence[Datum], loss_fn: str) -> Future[Any]:
        assert loss_fn == "importance_sampling"
        self._called("forward_backward")
        outputs: list[Tensor] = []
        for datum in data:
            logprobs = _logprobs(self._model, _tokens(datum))
            old, advantages = (
                torch.tensor(datum.loss_fn_inputs[name].data) for name in ("logprobs", "advantages")
            )
            loss = -(torch.exp(logprobs - old) * advantages).sum()
            if self._server.row_mean:
                loss = loss / len(logprobs)
            if self._server.divides_by_batch_tokens:
                loss = loss / sum(len(each.model_input.tokens) for each in data)
            loss.backward()
            outputs.append(logprobs.detach())
        self._rows += len(data)
        return done(_output(outputs))

    def optim_step(self, params: AdamParams) -> Future[Any]:
        self._called("optim_step")
        trained = list(self.adapters().values())
        for tensor in trained:
            if self._server.row_mean and tensor.grad is not None:
                tensor.grad /= max(1, self._rows)
        limit = params.grad_clip_norm if self._server.clips and params.grad_clip_norm else float("inf")
        norm = torch.nn.utils.clip_grad_norm_(trained, limit)
        for group in self.optimizer.param_groups:
            group |= {
                "lr": params.learning_rate,
                "betas": (params.beta1, params.beta2),
                "eps": params.eps,
                "weight_decay": params.weight_decay,
            }
        self.optimizer.step()
        self.optimizer.zero_grad()
        self._rows = 0
        metrics = {"skyrl.ai/grad_norm": float(norm), "skyrl.ai/learning_rate": params.learning_rate}
        return done(SimpleNamespace(metrics=metrics))

    def save_state(self, name: str) -> Future[Any]:
        path = f"tinker://{self._id}/weights/{name}"
        adapters = {name: tensor.detach().clone() for name, tensor in self.adapters().items()}
        self._server.states[path] = (self._rank, adapters, copy.deepcopy(self.optimizer.state_dict()))
        return done(SimpleNamespace(path=path))

    def save_weights_for_sampler(self, name: str) -> Future[Any]:
        tensors = {name: tensor.detach().contiguous() for name, tensor in self.adapters().items()}
        config = {"r": self._rank, "lora_alpha": TINKER_ALPHA, "peft_type": "LORA"}
        archive = _archive(
            {
                "adapter_model.safetensors": save_tensors(tensors),
                "adapter_config.json": json.dumps(config).encode(),
            }
        )
        kind = "" if self._server.row_mean else "sampler_weights/"  # SkyRL leaves it out
        self._server.archives[f"{self._id}/{kind}{name}"] = archive
        return done(SimpleNamespace(path=f"tinker://{self._id}/{kind}{name}"))

    def save_weights_and_get_sampling_client(self) -> SamplingClient:
        before, self._published = self._published, copy.deepcopy(self._model)
        stale = before if self._server.stale_sampler and before is not None else None
        return SamplingClient(stale or self._published)

    def _called(self, name: str) -> None:
        self._server.calls.append(name)
        if self._server.failures:
            raise self._server.failures.pop(0)


class SamplingClient:
    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model

    def sample(self, prompt: ModelInput, num_samples: int, params: SamplingParams) -> Future[Any]:
        assert num_samples == 1
        generator = torch.Generator().manual_seed(params.seed or 0)
        tokens, logprobs, reason = list(prompt.tokens), list[float](), "length"
        with torch.no_grad():
            for _ in range(params.max_tokens):
                logits = self._model(input_ids=torch.tensor([tokens])).logits[0, -1].double()
                divided = logits / params.temperature if params.temperature else logits
                weights = torch.softmax(divided, -1)
                token = int(
                    torch.multinomial(weights, 1, generator=generator)
                    if params.temperature
                    else weights.argmax()
                )
                logprobs.append(float(torch.log_softmax(logits, -1)[token]))  # at temperature 1
                tokens.append(token)
                if token in (params.stop or []):
                    reason = "stop"
                    break
        sequence = SimpleNamespace(tokens=tokens[len(prompt.tokens) :], logprobs=logprobs, stop_reason=reason)
        return done(SimpleNamespace(sequences=[sequence]))

    def compute_logprobs(self, prompt: ModelInput) -> Future[list[float | None]]:
        with torch.no_grad():
            scores = _logprobs(self._model, prompt.tokens).tolist()
        return done([None, *scores])


def done(value: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(value)
    return future


@contextmanager
def served(server: Server) -> Iterator[Server]:
    """Make `server` the one that `ServiceClient` connects to."""
    ServiceClient.server = server
    yield server


def _tokens(datum: Datum) -> list[int]:
    return [*datum.model_input.tokens, datum.loss_fn_inputs["target_tokens"].data[-1]]


def _logprobs(model: PreTrainedModel, tokens: Sequence[int]) -> Tensor:
    ids = torch.tensor([list(tokens)])
    logits = model(input_ids=ids, use_cache=False).logits[0, :-1]
    return torch.log_softmax(logits, -1).gather(-1, ids[0, 1:, None])[:, 0]


def _output(logprobs: Sequence[Tensor]) -> Any:
    def tensor(values: Tensor) -> TensorData:
        return TensorData(values.tolist(), "float32", [len(values)])

    outputs = [{"logprobs": tensor(values)} for values in logprobs]
    return SimpleNamespace(loss_fn_output_type="scalar", loss_fn_outputs=outputs, metrics={})


def _archive(files: Mapping[str, bytes]) -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return target.getvalue()


def _archive_server(server: Server) -> str:
    """Serve one archive over HTTP; return the URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = server.archives[self.path.strip("/")]
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    http = HTTPServer(("127.0.0.1", 0), Handler)

    def serve() -> None:
        http.handle_request()
        http.server_close()

    threading.Thread(target=serve, daemon=True).start()
    return f"http://127.0.0.1:{http.server_address[1]}"
