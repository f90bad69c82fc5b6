"""One server of the fleet, in whatever process it runs, with the weights it holds."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from hone.policy.engine import EngineError, Finish
from hone.policy.engines.client import (
    CompletionChunk,
    EngineClient,
    GenerateRequest,
    ServerUnavailable,
    WeightMismatch,
)
from hone.policy.engines.fingerprint import Comparison, Fingerprint, describe
from hone.policy.engines.managed_server import ServerProcess
from hone.policy.engines.preflight import run_preflight
from hone.policy.settings import ServerEngineSettings
from hone.types import Float32, Int32
from hone.utils.concurrency import cancel_all

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

log = logging.getLogger(__name__)
Answer = TypeVar("Answer")

POLL_S = 2.0  # between two checks of a server's health and weights


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightProbe:
    """Reference logprobs used to detect a server that runs different weights."""

    prompt: tuple[int, ...]
    logprobs: Float32  # [V] of every token after the prompt, at temperature 1
    tolerance: float  # largest difference of one logprob


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What the weights of a server are compared with after an update."""

    fingerprint: Fingerprint
    probe: WeightProbe | None = None  # for a server that cannot show its weights; None refuses it


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    folder: Path  # a Hugging Face model
    version: int
    proof: Proof | None = None

    @property
    def label(self) -> str:
        return str(self.version)


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSpec:
    """The parts of a fleet."""

    processes: Sequence[ServerProcess]
    client: Callable[[str], EngineClient]  # makes the client of the server at a URL
    tokenizer: PreTrainedTokenizerBase  # the policy's; the servers must have the same
    vocabulary: int  # rows of the embedding; a larger token id crashes some servers
    settings: ServerEngineSettings
    partial: bool = False  # whether a weight update interrupts replies, which then go on with the new weights


class Replica:
    """Starts, checks and updates one server; the fleet decides which requests it gets.

    Invariant: while `healthy`, the server holds the weights of `version`, which it calls `label`.
    """

    def __init__(self, process: ServerProcess, spec: FleetSpec) -> None:
        self.process = process
        self.healthy = False
        self.in_flight = 0  # requests
        self.version = 0
        self.full_vocab_logprobs = False  # see `run_preflight`
        self.target: Weights | None = None  # the weights to hold; None: those it was started with
        self.last_error = f"{process.name} has not been started"  # "" while it is healthy
        self.failures = 0  # failed starts in a row
        self.client: EngineClient
        self._spec = spec
        self._warned = False  # of a server that cannot show its weights
        self._busy = asyncio.Lock()  # held while the server is started or its weights change
        self._label = ""
        self._loaded: Weights | None = None  # loaded completely and verified
        self._failed = asyncio.Event()
        self._timeouts: set[asyncio.Timeout] = set()  # of each request in flight
        self._abandon_reason = ""

    async def start(self) -> None:
        """Start, preflight and load; return with the server healthy. Raises EngineError.

        Requests in flight continue only if the server turns out to be the same, with the same weights.
        """
        async with self._busy:
            try:
                await self._start()
            except EngineError as error:
                self._abandon_requests(str(error))
                raise

    async def _start(self) -> None:
        self.failures += 1  # until it is healthy
        url = await self.process.start()
        self.client = self._spec.client(url)
        settings = self._spec.settings
        try:
            await self.client.resume()  # an interrupted update leaves it paused
        except ServerUnavailable as error:
            raise EngineError(
                f"no engine answers at {url} ({error}): start it, or see engine.urls and engine.kind"
            ) from error
        with _malformed_is_unavailable(self.client):
            info, self.full_vocab_logprobs = await run_preflight(
                self.client, self._spec.tokenizer, settings.context_tokens
            )
        self._label = info.label
        self.version = int(info.label) if info.label.isdecimal() else 0
        while not self._holds_target():
            self._abandon_requests("it was restarted, or its weights changed")
            await self._load(settings.ready_timeout_s)
        self._failed.clear()
        self.last_error = ""
        self.failures = 0
        self.healthy = True

    def _holds_target(self) -> bool:
        return self.target is None or (self._loaded is self.target and self._label == self.target.label)

    async def generate(self, request: GenerateRequest, *, timeout_s: float) -> tuple[CompletionChunk, Int32]:
        """Return a chunk of a reply and the weight version of each of its tokens ([T]).

        Raises ServerUnavailable (also for a chunk without tokens that was not aborted), Refused.
        """
        label, version = self._label, self.version
        chunk = await self._in_rotation(self.client.generate(request, timeout_s=timeout_s))
        if not len(chunk.token_ids) and chunk.end is not Finish.ABORT:
            raise ServerUnavailable(
                f"{self.client.url} returned no tokens for a prompt of {len(request.prompt)}: see its log"
            )
        self._require_label(chunk.labels, label)
        return chunk, np.full(len(chunk.token_ids), version, np.int32)

    async def score(self, tokens: Sequence[int], start: int, *, timeout_s: float) -> Float32:
        """Return the log-probabilities of the tokens from `start` on. Raises ServerUnavailable, Refused."""
        label = self._label
        scored = await self._in_rotation(self.client.score(tokens, start, timeout_s=timeout_s))
        self._require_label([scored.label], label)
        return scored.logprobs

    async def _in_rotation(self, call: Awaitable[Answer]) -> Answer:
        """Return the answer of a request; raise ServerUnavailable when the server leaves the rotation."""
        timeout = asyncio.timeout(None)
        try:
            async with timeout:
                self._timeouts.add(timeout)
                with _malformed_is_unavailable(self.client):
                    return await call
        except TimeoutError:
            raise ServerUnavailable(f"{self.client.url} is out of rotation: {self._abandon_reason}") from None
        finally:
            self._timeouts.discard(timeout)

    def _require_label(self, labels: Sequence[str], label: str) -> None:
        others = set(labels) - {label}
        if others:
            raise ServerUnavailable(
                f"{self.client.url} answered with weights {sorted(others)} instead of {label!r}: it was "
                "restarted, or another client changed them"
            )

    @asynccontextmanager
    async def asleep(self, timeout_s: float) -> AsyncGenerator[None]:
        """Keep the server asleep for the duration of the context.

        Its supervisor does not restart it meanwhile. Raises EngineError if it does not go to sleep; a server
        that does not wake up is marked unhealthy.
        """
        async with self._busy:
            await self.client.sleep(timeout_s=timeout_s)
            try:
                yield
            finally:
                try:
                    await self.client.wake_up(timeout_s=timeout_s)
                except EngineError as error:
                    self.mark_unhealthy(f"{self.process.name} did not wake up: {error}")

    async def update(self, timeout_s: float) -> None:
        """Load `target` and verify that it is in use.

        Raises EngineError; the server may then hold any weights.
        """
        async with self._busy:
            if self._loaded is not self.target:  # a restart meanwhile has loaded them already
                await self._load(timeout_s)

    async def _load(self, timeout_s: float) -> None:
        assert self.target is not None, "only called with a target"
        weights, self._loaded = self.target, None
        await self.client.pause()
        with _malformed_is_unavailable(self.client):
            await self.client.load_weights(weights.folder, weights.label, timeout_s=timeout_s)
        await self.confirm_version(weights.version)
        await self.client.resume()
        if weights.proof is not None:
            await self.verify_weights(weights.version, weights.proof, timeout_s)
        self._loaded = weights

    async def verify_weights(self, version: int, proof: Proof, timeout_s: float) -> None:
        """Verify that the server computes with the published weights; raise WeightMismatch otherwise."""
        with _malformed_is_unavailable(self.client):
            found = await self.client.compare_weights(proof.fingerprint, timeout_s=timeout_s)
        url = self.client.url
        name = url if self.process.name == url else f"{self.process.name} at {url}"
        if found.differing:
            raise WeightMismatch(
                f"{name} computes with other weights than version {version}, in "
                f"{describe(found.differing)} ({'; '.join(found.reasons)}): restart the server and resume "
                "the run, because replies of unknown weights cannot be trained on"
            )
        if found.unproven:
            await self._compare_logprobs(name, version, found, proof.probe)

    async def _compare_logprobs(
        self, name: str, version: int, found: Comparison, probe: WeightProbe | None
    ) -> None:
        """Verify that the server's logprobs match the weights; raise WeightMismatch otherwise."""
        why = f"{describe(found.unproven)} ({'; '.join(found.reasons)})"
        if probe is None:
            raise WeightMismatch(f"{name} cannot prove that it uses weight version {version}, in {why}")
        if not self._warned:
            self._warned = True
            log.warning(
                "%s cannot show all its weights, in %s: Hone compares its log-probabilities instead, which "
                "detects the weights of another model but not those of the step before",
                name,
                why,
            )
        with _malformed_is_unavailable(self.client):
            logprobs = await self.client.top_logprobs(probe.prompt, temperature=1.0)
            worst = max(abs(value - float(probe.logprobs[token])) for token, value in logprobs.items())
        if not worst <= probe.tolerance:
            raise WeightMismatch(
                f"{name} computes with other weights than version {version}: its log-probabilities differ by "
                f"{worst:.3g}, and {probe.tolerance:g} is allowed. Start it with `hone engine serve`"
            )

    async def confirm_version(self, version: int) -> None:
        """Check that the server reports `version`; its replies carry it from now on. Raises EngineError."""
        label = (await self.client.server_info()).label
        if label != str(version):
            raise EngineError(f"{self.client.url} reports weights {label!r} after loading {version}")
        self.version, self._label = version, label

    def mark_unhealthy(self, error: str) -> None:
        """Take the server out of rotation until it is started again."""
        self.healthy = False
        self.last_error = error
        self._failed.set()

    def _abandon_requests(self, reason: str) -> None:
        """Make every request in flight raise ServerUnavailable."""
        self._abandon_reason = reason
        timeouts, self._timeouts = self._timeouts, set()  # a timeout that has expired cannot be rescheduled
        for timeout in timeouts:
            timeout.reschedule(asyncio.get_running_loop().time())

    async def wait_for_failure(self, updating: Callable[[], bool]) -> str:
        """Return the reason as soon as the server's process ends or a check of it fails.

        No check is made while `updating()`: a server that loads weights may not answer.
        """
        jobs = (self.process.ended(), self._marked_unhealthy(), self._failed_check(updating))
        tasks = [asyncio.create_task(job) for job in jobs]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            return next(task.result() for task in tasks if task.done())
        finally:
            await cancel_all(tasks)

    async def _marked_unhealthy(self) -> str:
        await self._failed.wait()
        return self.last_error

    async def _failed_check(self, updating: Callable[[], bool]) -> str:
        while not (error := await self._check(updating)):
            pass
        return error

    async def _check(self, updating: Callable[[], bool]) -> str:
        """Return an error of the server, POLL_S from now; "" for none."""
        await asyncio.sleep(POLL_S)
        if updating():
            return ""
        label = self._label
        try:
            await self.client.health()
            found = (await self.client.server_info()).label
        except EngineError as error:
            return "" if updating() else str(error)
        if not updating() and found not in (label, self._label):  # no update came in between
            return f"another client changed the weights of {self.client.url} to {found!r}"
        return ""


@contextmanager
def _malformed_is_unavailable(client: EngineClient) -> Generator[None]:
    """Turn the exceptions that a malformed reply causes into ServerUnavailable."""
    try:
        yield
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise ServerUnavailable(
            f"{client.url} gave a reply that no {client.kind} server gives ({error!r}): see engine.kind"
        ) from error
