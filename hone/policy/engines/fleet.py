"""Several servers as one engine.

    generate:  wait for a replica with the newest weights -> request -> chunk -> ... -> complete reply
    supervise: one task per replica: start (process, preflight, weights), wait for a failure, start again

Invariant: a replica takes requests only while it holds the weights of the fleet's version, and every token
of a reply carries the version of the weights that sampled it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from hone.policy.engine import (
    Completion,
    ContextOverflow,
    EngineError,
    Sampling,
    check_prompt,
    check_scored,
)
from hone.policy.engines.balance import Homes, choose
from hone.policy.engines.client import (
    CompletionChunk,
    PartialCompletion,
    Refused,
    ServerUnavailable,
    WeightMismatch,
)
from hone.policy.engines.replica import FleetSpec, Proof, Replica, Weights
from hone.types import Float32, Int32
from hone.utils.concurrency import cancel_all, task_group

log = logging.getLogger(__name__)
Answer = TypeVar("Answer")

_BACKOFF_S = 0.25  # before the first retry; doubles
_MAX_BACKOFF_S = 8.0
_ABORT_INTERVAL_S = 0.25
_START_ATTEMPTS = 2  # failed starts of a server after which an update no longer waits for it
_MIXED_VERSIONS = -1  # the version of a fleet whose servers hold different weights


@asynccontextmanager
async def open_fleet(spec: FleetSpec) -> AsyncGenerator[Fleet]:
    """Yield the fleet once every server is healthy. Raises EngineError when one cannot be used."""
    fleet = Fleet(spec)
    try:
        await fleet.start()
        yield fleet
    finally:
        await fleet.close()


@dataclass(slots=True)
class _Attempts:
    """At one request, or at all parts of one reply."""

    failures: int = 0
    failed: Replica | None = None  # the last one


class Fleet:
    """An `Engine`. Use `open_fleet`."""

    def __init__(self, spec: FleetSpec) -> None:
        self._settings = spec.settings
        self._partial = spec.partial
        self._vocabulary = spec.vocabulary
        self._replicas = [Replica(process, spec) for process in spec.processes]
        self._homes: Homes[Replica] = Homes()
        self._version = 0
        self._pauses = 0  # requests wait while this is positive
        self._updating_weights = False  # whether the servers are loading new weights
        self._updating = asyncio.Lock()
        self._changed = asyncio.Event()
        self._mismatch: WeightMismatch | None = None  # of a server, since the last update began
        self._supervisors: asyncio.Task[None] | None = None
        self._closed = False

    # --- the engine ---

    @property
    def context_tokens(self) -> int:
        return self._settings.context_tokens

    @property
    def version(self) -> int:
        return self._version

    async def generate(
        self, prompt_ids: Sequence[int] | Int32, sampling: Sampling, *, session: str
    ) -> Completion:
        """Sample one reply (see `Engine.generate`).

        A failed request is sent again, to another server if there is one; a reply that an update interrupts
        continues under the new weights. Raises ContextOverflow, EngineError, and ValueError for an empty
        prompt or an id out of range.
        """
        prompt = check_prompt(prompt_ids, self._vocabulary, self.context_tokens)
        room = self.context_tokens - len(prompt)
        partial = PartialCompletion(prompt.tolist(), sampling, min(sampling.max_tokens, room))
        attempts = _Attempts()

        async def sample(replica: Replica) -> tuple[CompletionChunk, Int32]:
            request = partial.next_request()
            chunk, versions = await replica.generate(request, timeout_s=self._settings.request_timeout_s)
            return _hide_truncated_logprobs(chunk, replica, sampling), versions

        while partial.finish is None:
            partial.add(*await self._ask(sample, attempts, session, len(prompt)))
        return partial.completion()

    async def score(self, token_ids: Sequence[int] | Int32, start: int) -> Float32:
        """Return log-probabilities of tokens (see `Engine.score`); a failed request is sent again."""
        tokens = check_scored(token_ids, start, self._vocabulary, self.context_tokens).tolist()

        def score(replica: Replica) -> Awaitable[Float32]:
            return replica.score(tokens, start, timeout_s=self._settings.request_timeout_s)

        return await self._ask(score, _Attempts(), None, len(tokens))

    async def _ask(
        self,
        send: Callable[[Replica], Awaitable[Answer]],
        attempts: _Attempts,
        session: str | None,
        prompt_tokens: int,
    ) -> Answer:
        """Return what `send` gets from a replica; after a failure send again, to another one if possible.

        `attempts` counts the failures of one reply. Raises ContextOverflow, EngineError.
        """
        while True:
            replica = await self._acquire_replica(session, attempts.failed)
            try:
                return await send(replica)
            except ServerUnavailable as error:
                attempts.failures, attempts.failed = attempts.failures + 1, replica
                self._mark_unhealthy(replica, error)
                if attempts.failures > self._settings.retries:
                    raise EngineError(
                        f"{attempts.failures} attempts to get a reply failed; the last error: {error}"
                    ) from error
            except Refused as error:
                if replica.client.is_overflow(str(error)):
                    raise ContextOverflow(prompt_tokens, self.context_tokens) from error
                raise
            finally:
                replica.in_flight -= 1
                self._notify()
            await asyncio.sleep(min(_BACKOFF_S * 2 ** (attempts.failures - 1), _MAX_BACKOFF_S))

    async def release(self, session: str) -> None:
        self._homes.drop(session)

    async def pause(self) -> None:
        """Wait for the requests in flight and hold new ones back; one `resume` undoes one `pause`."""
        self._pauses += 1
        try:
            await self._wait_until_idle()
        except BaseException:
            self._pauses -= 1
            self._notify()
            raise

    async def resume(self) -> None:
        self._pauses = max(0, self._pauses - 1)
        self._notify()

    async def health(self) -> None:
        """Raise EngineError unless a server with the newest weights answers."""
        ready = self._ready()
        if not ready:
            raise EngineError(self._errors())
        await ready[0].client.health()

    async def close(self) -> None:
        """Stop supervising the servers and stop those that this run started. May be called again."""
        self._closed = True
        self._notify()
        if self._supervisors is not None:
            await cancel_all([self._supervisors])
        await asyncio.gather(*(replica.process.stop() for replica in self._replicas))

    # --- weights ---

    async def load_weights(self, folder: Path, version: int, proof: Proof | None = None) -> None:
        """Load the Hugging Face model in `folder` into every server, as `version`.

        Requests in flight finish first or, with `FleetSpec.partial`, are interrupted and continued. The
        supervisor restarts a server that fails to load the weights, so `folder` must exist until the next
        call returns. Raises WeightMismatch when a server then computes with other weights than those of
        `proof`, and EngineError when no server loads them.
        """
        # Loading a folder without weights crashes some servers.
        if not await asyncio.to_thread(lambda: any(folder.glob("*.safetensors"))):
            raise EngineError(f"{folder} holds no *.safetensors weights for the engine servers")
        weights = Weights(folder=folder, version=version, proof=proof)

        async def load(replicas: Sequence[Replica]) -> list[BaseException | None]:
            for replica in self._replicas:
                replica.target = weights
            updates = (replica.update(self._settings.ready_timeout_s) for replica in replicas)
            return await asyncio.gather(*updates, return_exceptions=True)

        await self.change_weights(version, load)

    async def change_weights(
        self, version: int, change: Callable[[Sequence[Replica]], Awaitable[list[BaseException | None]]]
    ) -> None:
        """Hold requests back, call `change` with every healthy server, and resume with `version`.

        `change` returns one error per server; None for a server that has the new weights.
        """
        async with self._updating:
            self._mismatch = None
            self._pauses += 1
            try:
                await (self._abort_in_flight() if self._partial else self._wait_until_idle())
                self._updating_weights = True
                replicas = [replica for replica in self._replicas if replica.healthy]
                failed = await change(replicas)
                for replica, error in zip(replicas, failed, strict=True):
                    if isinstance(error, WeightMismatch):
                        self._mismatch = error
                    if isinstance(error, EngineError):
                        self._mark_unhealthy(replica, error)
                    elif error is not None:
                        raise error
                self._version = version
            finally:
                self._updating_weights = False
                self._pauses -= 1
                self._notify()
            self._require_matching_weights()
            await self._wait_for_ready()

    @asynccontextmanager
    async def asleep(self) -> AsyncGenerator[None]:
        """Free the GPU memory of all servers for the duration of the context; requests wait until its end.

        Requests in flight finish first. Raises EngineError if a server does not go to sleep.
        """
        async with self._updating:
            await self.pause()
            self._updating_weights = True  # a sleeping server may not answer its health check
            try:
                async with AsyncExitStack() as sleeping:
                    for replica in self._replicas:
                        if replica.healthy:
                            await sleeping.enter_async_context(replica.asleep(self._settings.ready_timeout_s))
                    yield
            finally:
                self._updating_weights = False
                await self.resume()

    # --- placing requests ---

    def _ready(self) -> list[Replica]:
        return [replica for replica in self._replicas if replica.healthy and replica.version == self._version]

    async def _acquire_replica(self, session: str | None, failed: Replica | None) -> Replica:
        """Choose the server of a request and count the request as in flight there; avoid `failed`.

        Waits while requests are held back, and up to `ready_timeout_s` for a healthy server. Raises
        EngineError.
        """
        while True:
            self._require_open()
            if self._pauses:
                await self._changed.wait()
                continue
            if ready := self._ready():
                ready = [replica for replica in ready if replica is not failed] or ready
                loads = {replica: replica.in_flight for replica in ready}
                replica = choose(loads, self._homes.get(session))
                self._homes.set(session, replica)
                replica.in_flight += 1
                return replica
            try:
                async with asyncio.timeout(self._settings.ready_timeout_s):
                    while not (self._ready() or self._pauses or self._closed or self._mismatch):
                        await self._changed.wait()
            except TimeoutError:
                raise EngineError(f"no engine server is healthy: {self._errors()}") from None

    def _require_open(self) -> None:
        if self._closed or self._supervisors is None:
            raise EngineError("the engine is closed")
        if self._supervisors.done():
            raise EngineError(
                "the supervisors of the engine's servers have stopped"
            ) from self._supervisors.exception()
        self._require_matching_weights()
        if self._version == _MIXED_VERSIONS:
            raise EngineError(
                "the engine servers hold different weights: load the same ones into all of them"
            )

    def _require_matching_weights(self) -> None:
        if self._mismatch is not None:
            raise WeightMismatch(str(self._mismatch)) from self._mismatch

    async def _wait_until_idle(self) -> None:
        """Wait until no request is in flight."""
        while any(replica.in_flight for replica in self._replicas):
            await self._changed.wait()

    async def _abort_in_flight(self) -> None:
        """Interrupt every request in flight.

        Aborts are repeated: a request may reach its server after the first abort.
        """
        while any(replica.in_flight for replica in self._replicas):
            busy = [replica for replica in self._replicas if replica.healthy and replica.in_flight]
            await asyncio.gather(*(replica.client.abort() for replica in busy), return_exceptions=True)
            with suppress(TimeoutError):
                async with asyncio.timeout(_ABORT_INTERVAL_S):
                    await self._wait_until_idle()

    async def _wait_for_ready(self) -> None:
        """Wait for a server with the fleet's version. Raises EngineError once all failed to start."""
        while not self._ready():
            self._require_matching_weights()
            if all(replica.healthy or replica.failures >= _START_ATTEMPTS for replica in self._replicas):
                raise EngineError(f"no engine server loaded weight version {self._version}: {self._errors()}")
            await self._changed.wait()

    async def wait_for_healthy(self) -> None:
        """Wait for a server, whatever its weights. Raises EngineError once all failed to start."""
        while not any(replica.healthy for replica in self._replicas):
            if all(replica.failures >= _START_ATTEMPTS for replica in self._replicas):
                raise EngineError(f"no engine server is healthy: {self._errors()}")
            await self._changed.wait()

    def _mark_unhealthy(self, replica: Replica, error: EngineError) -> None:
        """Take a replica out of rotation until its supervisor has restarted it."""
        if replica.healthy:  # else its supervisor is restarting it and has a better error
            replica.mark_unhealthy(str(error))
        self._notify()

    def _notify(self) -> None:
        """Wake every task that waits for a change."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _errors(self) -> str:
        return "; ".join(replica.last_error for replica in self._replicas if replica.last_error)

    # --- supervision ---

    async def start(self) -> None:
        """Start every server. Raises the EngineError of the first that cannot be used."""
        await self._for_each_replica(lambda replica: replica.start())
        versions = {replica.version for replica in self._replicas}
        self._version = versions.pop() if len(versions) == 1 else _MIXED_VERSIONS
        self._supervisors = asyncio.create_task(self._for_each_replica(self._supervise))

    async def _for_each_replica(self, job: Callable[[Replica], Coroutine[None, None, None]]) -> None:
        async with task_group() as tasks:
            for replica in self._replicas:
                tasks.create_task(job(replica))

    async def _supervise(self, replica: Replica) -> None:
        while True:
            replica.mark_unhealthy(await replica.wait_for_failure(lambda: self._updating_weights))
            self._notify()
            log.warning("engine server %s failed: %s", replica.process.name, replica.last_error)
            delay = 1.0
            while not replica.healthy:
                try:
                    await replica.start()
                except EngineError as error:
                    if isinstance(error, WeightMismatch):
                        self._mismatch = error
                    replica.mark_unhealthy(str(error))
                    self._notify()
                    await asyncio.sleep(delay)
                    delay = min(2 * delay, 30.0)
            name, version = replica.process.name, replica.version
            log.warning("engine server %s is healthy again with weight version %d", name, version)
            self._notify()


def _hide_truncated_logprobs(chunk: CompletionChunk, replica: Replica, sampling: Sampling) -> CompletionChunk:
    """Replace logprobs by NaN where top-p or top-k changed the distribution that they are of."""
    truncated = (sampling.top_p < 1 or sampling.top_k > 0) and sampling.temperature > 0
    if replica.full_vocab_logprobs or not truncated:
        return chunk
    return dataclasses.replace(chunk, logprobs=np.full(len(chunk.token_ids), np.nan, np.float32))
