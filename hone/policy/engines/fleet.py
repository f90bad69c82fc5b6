"""Several servers as one engine.

    generate: wait for a server with the newest weights -> ask -> a part -> ... -> the whole reply
    keep:     one task per server: bring it up (start, examine, load), watch it, bring it up again

A server takes requests only while it holds the weights of the fleet's version. The rule that must not break:
parts of a reply are joined only with the version of the weights that sampled each.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hone.policy.engine import Completion, ContextOverflow, EngineError, Sampling
from hone.policy.engines.dialect import Dialect, Part
from hone.policy.engines.draft import Draft
from hone.policy.engines.host import Host
from hone.policy.engines.http import Refused, Unreachable
from hone.policy.engines.routing import choose
from hone.policy.engines.slot import Slot, Weights, Witness
from hone.policy.settings import ServerEngineSettings
from hone.types import Int32

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

log = logging.getLogger(__name__)

_SESSIONS = 100_000  # conversations whose server is remembered
_BACKOFF_S = 0.25  # before the first retry; doubles
_LONGEST_BACKOFF_S = 8.0
_ABORT_AGAIN_S = 0.25
_HOPELESS = 2  # attempts to bring a server up after which an update does not wait for it
_MIXED = -1  # the version of a fleet whose servers hold different weights


@dataclass(frozen=True, slots=True, kw_only=True)
class Servers:
    """What a fleet is made of."""

    hosts: Sequence[Host]
    dialect: Callable[[str], Dialect]  # speaks to the server at a URL
    tokenizer: PreTrainedTokenizerBase  # the policy's, which the servers must share
    vocabulary: int  # ids that the model has a row for; one beyond them takes some servers down
    settings: ServerEngineSettings


@asynccontextmanager
async def open_fleet(servers: Servers) -> AsyncGenerator[Fleet]:
    """The fleet, once every server is up. Raises EngineError when one cannot be used."""
    fleet = Fleet(servers)
    try:
        await fleet.start()
        yield fleet
    finally:
        await fleet.close()


class Fleet:
    """An `Engine`. Use `open_fleet`."""

    def __init__(self, servers: Servers) -> None:
        self._settings = servers.settings
        self._vocabulary = servers.vocabulary
        self._slots = [Slot(host, servers) for host in servers.hosts]
        self._homes: OrderedDict[str, Slot] = OrderedDict()
        self._version = 0
        self._holds = 0  # while positive, requests wait
        self._changing = False  # whether the servers are given new weights
        self._updating = asyncio.Lock()
        self._changed = asyncio.Event()
        self._keepers: asyncio.Task[None] | None = None
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

        A request that fails is sent again, to another server where there is one; a reply that an update cut
        goes on under the new weights. Raises ContextOverflow, EngineError, and ValueError for an empty prompt
        or an id out of range.
        """
        prompt = np.asarray(prompt_ids, np.int32)
        if not len(prompt) or prompt.min() < 0 or prompt.max() >= self._vocabulary:
            raise ValueError(f"a prompt is one or more token ids from 0 to {self._vocabulary - 1}")
        room = self.context_tokens - len(prompt)
        if room < 1:
            raise ContextOverflow(len(prompt), self.context_tokens)
        draft = Draft(prompt.tolist(), sampling, min(sampling.max_tokens, room))
        failures, failed = 0, None
        while draft.finish is None:
            slot = await self._place(session, failed)
            try:
                part, versions = await slot.ask(draft.ask(), timeout_s=self._settings.request_timeout_s)
            except Unreachable as error:
                failures, failed = failures + 1, slot
                self._doubt(slot, error)
                if failures > self._settings.retries:
                    raise EngineError(
                        f"{failures} tries to get a reply failed, the last one so: {error}"
                    ) from error
            except Refused as error:
                if slot.dialect.is_overflow(str(error)):
                    raise ContextOverflow(len(prompt), self.context_tokens) from error
                raise
            else:
                draft.add(_told(part, slot, sampling), versions)
                continue
            finally:
                slot.load -= 1
                self._notify()
            await asyncio.sleep(min(_BACKOFF_S * 2 ** (failures - 1), _LONGEST_BACKOFF_S))
        return draft.completion()

    async def release(self, session: str) -> None:
        self._homes.pop(session, None)

    async def pause(self) -> None:
        """Finish the requests in flight and hold new ones back; one `resume` undoes one `pause`."""
        self._holds += 1
        try:
            await self._drained()
        except BaseException:
            self._holds -= 1
            self._notify()
            raise

    async def resume(self) -> None:
        self._holds = max(0, self._holds - 1)
        self._notify()

    async def health(self) -> None:
        """Raises EngineError unless a server with the newest weights answers."""
        ready = self._ready()
        if not ready:
            raise EngineError(self._troubles())
        await ready[0].dialect.health()

    async def close(self) -> None:
        """Stop watching the servers, and stop those that this run started. May be called again."""
        self._closed = True
        self._notify()
        if self._keepers is not None:
            self._keepers.cancel()
            await asyncio.gather(self._keepers, return_exceptions=True)
        await asyncio.gather(*(slot.host.stop() for slot in self._slots))

    # --- weights ---

    async def load_weights(self, folder: Path, version: int, witness: Witness | None = None) -> None:
        """From now on every reply is sampled from the Hugging Face model in `folder`, as `version`.

        Requests in flight are finished first or, with `in_flight_updates`, cut and continued. A server that
        does not take the weights is brought up again by its keeper; `folder` must stay until the next call
        returns. Raises EngineError when no server takes them, or says what `witness` says.
        """
        # A server may not survive the attempt to load what is no model.
        if not await asyncio.to_thread(lambda: any(folder.glob("*.safetensors"))):
            raise EngineError(f"{folder} holds no *.safetensors weights for the engine servers")
        weights = Weights(folder=folder, version=version, witness=witness)

        async def load(slots: Sequence[Slot]) -> list[BaseException | None]:
            for slot in self._slots:
                slot.newest = weights
            return await asyncio.gather(
                *(slot.update(self._settings.ready_timeout_s) for slot in slots), return_exceptions=True
            )

        await self.change_weights(version, load)

    async def change_weights(
        self, version: int, change: Callable[[Sequence[Slot]], Awaitable[list[BaseException | None]]]
    ) -> None:
        """Hold requests back, let `change` act on every server that is up, and go on with `version`.

        `change` returns what went wrong for each server; None: it has the new weights.
        """
        async with self._updating:
            self._holds += 1
            try:
                await (self._cut() if self._settings.in_flight_updates else self._drained())
                self._changing = True
                slots = [slot for slot in self._slots if slot.up]
                failed = await change(slots)
                for slot, error in zip(slots, failed, strict=True):
                    if isinstance(error, EngineError):
                        self._doubt(slot, error)
                    elif error is not None:
                        raise error
                self._version = version
            finally:
                self._changing = False
                self._holds -= 1
                self._notify()
            await self._some_ready()

    # --- placing requests ---

    def _ready(self) -> list[Slot]:
        return [slot for slot in self._slots if slot.up and slot.version == self._version]

    async def _place(self, session: str, failed: Slot | None) -> Slot:
        """The server for a request, which is counted as its load from here on; not `failed` if another is up.

        Waits while requests are held back, and `ready_timeout_s` for a server to be up. Raises EngineError.
        """
        while True:
            self._require_open()
            if self._holds:
                await self._changed.wait()
                continue
            if ready := self._ready():
                ready = [slot for slot in ready if slot is not failed] or ready
                slot = choose({slot: slot.load for slot in ready}, self._homes.get(session))
                self._homes[session] = slot
                self._homes.move_to_end(session)
                while len(self._homes) > _SESSIONS:
                    self._homes.popitem(last=False)
                slot.load += 1
                return slot
            try:
                async with asyncio.timeout(self._settings.ready_timeout_s):
                    while not self._ready() and not self._holds and not self._closed:
                        await self._changed.wait()
            except TimeoutError:
                raise EngineError(f"no engine server is up: {self._troubles()}") from None

    def _require_open(self) -> None:
        if self._closed or self._keepers is None:
            raise EngineError("the engine is closed")
        if self._keepers.done():
            raise EngineError("the engine's servers are no longer watched") from self._keepers.exception()
        if self._version == _MIXED:
            raise EngineError(
                "the engine servers hold different weights: load the same ones into all of them"
            )

    async def _drained(self) -> None:
        """Wait until no request is in flight."""
        while any(slot.load for slot in self._slots):
            await self._changed.wait()

    async def _cut(self) -> None:
        """End every request in flight where it is.

        Asked for again and again: a request may reach its server only after an abort did.
        """
        while any(slot.load for slot in self._slots):
            busy = [slot for slot in self._slots if slot.up and slot.load]
            await asyncio.gather(*(slot.dialect.abort() for slot in busy), return_exceptions=True)
            with suppress(TimeoutError):
                async with asyncio.timeout(_ABORT_AGAIN_S):
                    await self._drained()

    async def _some_ready(self) -> None:
        """Wait for a server with the fleet's version. Raises EngineError once none can be expected."""
        while not self._ready():
            if all(slot.up or slot.failures >= _HOPELESS for slot in self._slots):
                raise EngineError(f"no engine server took weight version {self._version}: {self._troubles()}")
            await self._changed.wait()

    def _doubt(self, slot: Slot, error: EngineError) -> None:
        """A server has failed: nothing is sent to it until its keeper has brought it up again."""
        if slot.up:  # else its keeper is at work and knows better what is wrong
            slot.fail(str(error))
        self._notify()

    def _notify(self) -> None:
        """Wake whoever waits for a change, to look again."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _troubles(self) -> str:
        return "; ".join(slot.trouble for slot in self._slots if slot.trouble) or "none was named"

    # --- keeping servers up ---

    async def start(self) -> None:
        """Bring every server up. Raises EngineError, of the first that cannot be used."""
        await _all(slot.bring_up() for slot in self._slots)
        versions = {slot.version for slot in self._slots}
        self._version = versions.pop() if len(versions) == 1 else _MIXED
        self._keepers = asyncio.create_task(_all(self._keep(slot) for slot in self._slots))

    async def _keep(self, slot: Slot) -> None:
        while True:
            slot.fail(await slot.watch(lambda: self._changing))
            self._notify()
            log.warning("engine server %s is out: %s", slot.host.name, slot.trouble)
            delay = 1.0
            while not slot.up:
                try:
                    await slot.bring_up()
                except EngineError as error:
                    slot.fail(str(error))
                    self._notify()
                    await asyncio.sleep(delay)
                    delay = min(2 * delay, 30.0)
            log.warning("engine server %s is back with weight version %d", slot.host.name, slot.version)
            self._notify()


def _told(part: Part, slot: Slot, sampling: Sampling) -> Part:
    """The part, without log-probabilities where the server's are of another distribution (see `Sampling`)."""
    if slot.whole or (sampling.top_p >= 1 and sampling.top_k == 0) or sampling.temperature == 0:
        return part
    unknown = np.full(len(part.token_ids), np.nan, np.float32)
    return Part(token_ids=part.token_ids, logprobs=unknown, labels=part.labels, end=part.end)


async def _all(jobs: Iterable[Coroutine[None, None, None]]) -> None:
    """Run jobs together; the first that fails cancels the others, and its own exception is raised."""

    tasks: list[asyncio.Task[None]] = [asyncio.ensure_future(job) for job in jobs]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
