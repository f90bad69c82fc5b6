"""The client of one inference server: JSON over HTTP; one small class per kind of server."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import aiohttp
import numpy as np

from hone.policy.engine import Completion, EngineError, Finish, Sampling, derive_seed
from hone.policy.engines.fingerprint import Comparison, Fingerprint
from hone.types import UNKNOWN_EXPERT, Float32, Int32, Routing
from hone.utils import http_client
from hone.utils.http_client import HttpClient, HttpError

# vLLM and SGLang close idle connections after 5 s; a client that closes them first breaks no request
_KEEP_ALIVE_S = 3.0


class ServerUnavailable(EngineError):
    """The server is gone, hangs or failed internally: another one may serve the same request."""


class WeightMismatch(EngineError):
    """A server computes with other weights than were published: its replies must not be trained on."""


class Refused(EngineError):
    """The server rejected the request; every other server would reject it, too."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


def holds_adapters(folder: Path) -> bool:
    """Return whether a folder of weights holds adapters alone, in peft's format."""
    return (folder / "adapter_config.json").is_file()


def new_session() -> aiohttp.ClientSession:
    """Return a session for any number of servers and concurrent requests; the caller closes it."""
    return http_client.new_session(keep_alive_s=_KEEP_ALIVE_S)


class Http(HttpClient):
    """One server. `key` is sent as a bearer token. Methods raise ServerUnavailable and Refused."""

    def __init__(self, session: aiohttp.ClientSession, url: str, *, key: str | None = None) -> None:
        if not url.startswith(("http://", "https://")):
            raise Refused(f"{url!r} is not a URL: give one such as http://host:8000", 0)
        super().__init__(session, url, token=key or "", translate=_engine_error)

    async def get(self, path: str, *, timeout_s: float = 30.0) -> Any:
        """Return the parsed body; None for an empty one."""
        return await self.request_json("GET", path, timeout_s=timeout_s)

    async def post(self, path: str, body: Any = None, *, timeout_s: float = 30.0) -> Any:
        """Return the parsed body; None for an empty one."""
        return await self.request_json("POST", path, body, timeout_s=timeout_s)


def _engine_error(error: HttpError) -> EngineError:
    if error.status is None or error.status >= 500:
        return ServerUnavailable(str(error))
    return Refused(str(error), error.status)


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest:
    prompt: Sequence[int]
    sampling: Sampling  # `limit` and `seed` replace its own
    limit: int  # tokens
    seed: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionChunk:
    """The result of one request: a complete reply, or the part of it that was sampled before an abort."""

    token_ids: Int32  # [T]
    logprobs: Float32  # [T]
    labels: tuple[str, ...]  # [T] the server's name for the weights that sampled each token
    end: Finish
    routing: Routing | None = None  # [positions of prompt and reply but the last, layers, k]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredTokens:
    logprobs: Float32  # [T - start], at temperature 1
    label: str  # the server's name for the weights that computed them


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerInfo:
    context_tokens: int  # prompt and reply together
    label: str  # the server's name for its weights; "default" before the first update


class EngineClient(ABC):
    """One server. Every call is bounded in time and raises ServerUnavailable or Refused."""

    kind: ClassVar[str]
    overflow_phrases: ClassVar[tuple[str, ...]]  # of the errors that say that a prompt is too long

    def __init__(self, http: Http) -> None:
        self.http = http
        self.url = http.url

    @classmethod
    def is_overflow(cls, message: str) -> bool:
        """Return whether an error message says that the prompt is too long."""
        return any(phrase in message for phrase in cls.overflow_phrases)

    @abstractmethod
    async def server_info(self) -> ServerInfo: ...

    @abstractmethod
    async def health(self) -> None:
        """Raise ServerUnavailable unless the server can serve."""

    @abstractmethod
    async def generate(self, request: GenerateRequest, *, timeout_s: float) -> CompletionChunk: ...

    @abstractmethod
    async def score(self, tokens: Sequence[int], start: int, *, timeout_s: float) -> ScoredTokens:
        """Return the log-probabilities of the tokens from `start` on, which is at least 1."""

    @abstractmethod
    async def top_logprobs(
        self, prompt: Sequence[int], *, temperature: float, top_k: int = 0
    ) -> Mapping[int, float]:
        """Return some of the most likely next tokens with their logprobs as the server reports them."""

    @abstractmethod
    async def sample_text(self, prompt: Sequence[int], count: int) -> tuple[list[int], str]:
        """Return `count` random tokens and the text that the server's tokenizer decodes them to."""

    @abstractmethod
    async def abort(self) -> None:
        """Interrupt the requests in flight: each ends with its tokens so far."""

    @abstractmethod
    async def pause(self) -> None:
        """Hold new requests back and abort those in flight."""

    @abstractmethod
    async def resume(self) -> None: ...

    @abstractmethod
    async def sleep(self, *, timeout_s: float) -> None:
        """Free the GPU memory of KV cache and weights, which move to host memory; no request is in flight."""

    @abstractmethod
    async def wake_up(self, *, timeout_s: float) -> None:
        """Undo `sleep`; the KV cache is empty."""

    @abstractmethod
    async def load_weights(self, folder: Path, label: str, *, timeout_s: float) -> None:
        """Load the weights of a Hugging Face folder, name them `label`, drop every cached key and value.

        A folder of adapters replaces the adapters loaded before, and all later requests use them.
        The server is paused.
        """

    @abstractmethod
    async def compare_weights(self, published: Fingerprint, *, timeout_s: float) -> Comparison:
        """Compare the weights that the server computes with, bit for bit, with the published ones."""


class PartialCompletion:
    """The reply to `prompt`, `limit` tokens at most, sampled in several requests if updates interrupt it.

    Each chunk continues the prompt and all chunks before it, has its own seed, and keeps the version of the
    weights that sampled it.

    Example: 3 tokens of version 4, an update, 2 tokens of version 5 and a stop token:
        version = [4, 4, 4, 5, 5, 5]
    """

    def __init__(self, prompt: Sequence[int], sampling: Sampling, limit: int) -> None:
        self._prompt = list(prompt)
        self._sampling = sampling
        self._limit = limit
        self._tokens: list[int] = []
        self._logprobs: list[Float32] = []
        self._versions: list[Int32] = []
        self._routing: Routing | None = None
        self.finish: Finish | None = None  # None: incomplete

    def next_request(self) -> GenerateRequest:
        """Return the request for the next chunk; the first one has the seed of the sampling itself."""
        seed, chunk = self._sampling.seed, len(self._versions)
        return GenerateRequest(
            prompt=[*self._prompt, *self._tokens],
            sampling=self._sampling,
            limit=self._limit - len(self._tokens),
            seed=derive_seed(seed, chunk) if chunk else seed,
        )

    def add(self, chunk: CompletionChunk, versions: Int32) -> None:
        """Append a chunk whose tokens are of `versions` ([T])."""
        self._tokens += chunk.token_ids.tolist()
        self._logprobs.append(chunk.logprobs)
        self._versions.append(versions)
        if chunk.routing is not None:  # a position keeps the experts that the first of its chunks names
            known = chunk.routing[:0] if self._routing is None else self._routing
            self._routing = np.concatenate([known, chunk.routing[len(known) :]])
        # A server may also stop at its model's own end tokens, which do not end this reply.
        if self._tokens and self._tokens[-1] in self._sampling.stop_token_ids:
            self.finish = Finish.STOP
        elif chunk.end is Finish.LENGTH or len(self._tokens) >= self._limit:
            self.finish = Finish.LENGTH

    def completion(self) -> Completion:
        """Return the complete reply. Raises ValueError while it is incomplete."""
        if self.finish is None:
            raise ValueError("the reply is incomplete")
        return Completion(
            token_ids=np.asarray(self._tokens, np.int32),
            logprobs=np.concatenate(self._logprobs),
            version=np.concatenate(self._versions),
            finish=self.finish,
            routing=self._whole_routing(),
        )

    def _whole_routing(self) -> Routing | None:
        """Return the experts of all positions but the last; unknown where no chunk names them."""
        if self._routing is None:
            return None
        missing = len(self._prompt) + len(self._tokens) - 1 - len(self._routing)
        return np.pad(self._routing, ((0, missing), (0, 0), (0, 0)), constant_values=UNKNOWN_EXPERT)
