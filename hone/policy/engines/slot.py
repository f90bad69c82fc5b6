"""A place in the fleet: one server, whatever process it lives in, with the weights it holds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hone.policy.engine import EngineError
from hone.policy.engines.dialect import Ask, Dialect, Part
from hone.policy.engines.examine import examine
from hone.policy.engines.host import Host
from hone.policy.engines.http import Unreachable
from hone.types import Float32, Int32

if TYPE_CHECKING:
    from hone.policy.engines.fleet import Servers

POLL_S = 2.0  # between two looks at a server's health and weights


@dataclass(frozen=True, slots=True, kw_only=True)
class Witness:
    """What the new weights say, by which a server that uses others is told."""

    prompt: tuple[int, ...]
    logprobs: Float32  # [V] of every token after the prompt, at temperature 1
    tolerance: float  # by which a server's may differ


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    folder: Path  # a Hugging Face model
    version: int
    witness: Witness | None = None

    @property
    def label(self) -> str:
        return str(self.version)


class Slot:
    """Holds no policy of its own: the fleet decides what is sent here and when.

    Invariant: while `up`, the server holds the weights of `version`, which it calls `label`.
    """

    def __init__(self, host: Host, servers: Servers) -> None:
        self.host = host
        self.up = False
        self.load = 0  # requests in flight
        self.version = 0
        self.whole = False  # see `Findings`
        self.newest: Weights | None = None  # what it is to hold; None: whatever it was started with
        self.trouble = f"{host.name} has not been started"  # why it is not up; "" while it is
        self.failures = 0  # attempts in a row to bring it up that failed
        self.dialect: Dialect
        self._servers = servers
        self._busy = asyncio.Lock()  # one at a time changes what the server is or holds
        self._label = ""
        self._held: Weights | None = None  # what was loaded whole and heard
        self._failed = asyncio.Event()
        self._asking: set[asyncio.Timeout] = set()  # of each request in flight
        self._given_up = ""  # why the last ones in flight were

    async def bring_up(self) -> None:
        """Start, examine and load; returns with the server up. Raises EngineError.

        Requests in flight go on only where it proves to be as it was.
        """
        async with self._busy:
            try:
                await self._bring_up()
            except EngineError as error:
                self._give_up(str(error))
                raise

    async def _bring_up(self) -> None:
        self.failures += 1  # until it is up
        url = await self.host.start()
        self.dialect = self._servers.dialect(url)
        settings = self._servers.settings
        try:
            await self.dialect.resume()  # an update that was broken off has left it paused
        except Unreachable as error:
            raise EngineError(
                f"no engine answers at {url} ({error}): start it, or see engine.urls and engine.kind"
            ) from error
        with _understood(self.dialect):
            found = await examine(self.dialect, self._servers.tokenizer, settings.context_tokens)
        self.whole, self._label = found.whole, found.label
        self.version = int(found.label) if found.label.isdecimal() else 0
        while self.newest is not None and (self._held is not self.newest or self._label != self.newest.label):
            self._give_up("it was restarted, or holds other weights than it had")
            await self._load(settings.ready_timeout_s)
        self._failed.clear()
        self.trouble = ""
        self.failures = 0
        self.up = True

    async def ask(self, ask: Ask, *, timeout_s: float) -> tuple[Part, Int32]:
        """A part of a reply, and the version of each of its tokens. Raises Unreachable, Refused."""
        label, version = self._label, self.version
        patience = asyncio.timeout(None)
        try:
            async with patience:
                self._asking.add(patience)
                with _understood(self.dialect):
                    part = await self.dialect.ask(ask, timeout_s=timeout_s)
        except TimeoutError:
            raise Unreachable(f"{self.dialect.url} is out: {self._given_up}") from None
        finally:
            self._asking.discard(patience)
        others = set(part.labels) - {label}
        if others:
            raise Unreachable(
                f"{self.dialect.url} sampled from weights {sorted(others)} and not from {label!r}, which it "
                "had: it was restarted, or somebody else changed them"
            )
        return part, np.full(len(part.token_ids), version, np.int32)

    async def update(self, timeout_s: float) -> None:
        """Load `newest` and see that it is in use. Raises EngineError; the server may then hold anything."""
        async with self._busy:
            if self._held is not self.newest:  # unless it was replaced meanwhile
                await self._load(timeout_s)

    async def _load(self, timeout_s: float) -> None:
        assert self.newest is not None, "there is something to load"
        weights, self._held = self.newest, None
        await self.dialect.pause()
        with _understood(self.dialect):
            await self.dialect.load(weights.folder, weights.label, timeout_s=timeout_s)
        await self.settle(weights.version)
        await self.dialect.resume()
        if weights.witness is not None:
            await self._hear(weights.witness)
        self._held = weights

    async def _hear(self, witness: Witness) -> None:
        """Raise EngineError unless the server says what the weights say."""
        with _understood(self.dialect):
            said = await self.dialect.likeliest(witness.prompt, temperature=1.0)
            worst = max(abs(logprob - float(witness.logprobs[token])) for token, logprob in said.items())
        if not worst <= witness.tolerance:
            raise EngineError(
                f"{self.dialect.url} samples from other weights than those it was told to load: its "
                f"log-probabilities differ by {worst:.3g}; start it with `hone engine serve`"
            )

    async def settle(self, version: int) -> None:
        """See that the server holds `version`, from which on its replies carry it. Raises EngineError."""
        label = (await self.dialect.facts()).label
        if label != str(version):
            raise EngineError(
                f"{self.dialect.url} says that it holds weights {label!r} after loading {version}"
            )
        self.version, self._label = version, label

    def fail(self, trouble: str) -> None:
        """Take the server out until it is brought up again."""
        self.up = False
        self.trouble = trouble
        self._failed.set()

    def _give_up(self, why: str) -> None:
        """Expect no answer any more to what was asked: each request in flight raises Unreachable."""
        self._given_up = why
        asking, self._asking = self._asking, set()  # a request that is ending already cannot be told again
        for patience in asking:
            patience.reschedule(asyncio.get_running_loop().time())

    async def watch(self, changing: Callable[[], bool]) -> str:
        """Returns why the server is no longer fit for use, as soon as it is seen.

        Nothing is asked of it while `changing()`: a server that is being updated may not answer.
        """
        ended = asyncio.create_task(self.host.ended())
        failed = asyncio.create_task(self._failed.wait())
        look = asyncio.create_task(self._look(changing))
        try:
            while True:
                await asyncio.wait({ended, failed, look}, return_when=asyncio.FIRST_COMPLETED)
                if ended.done():
                    return ended.result()
                if failed.done():
                    return self.trouble
                if trouble := look.result():
                    return trouble
                look = asyncio.create_task(self._look(changing))
        finally:
            for task in (ended, failed, look):
                task.cancel()
            await asyncio.gather(ended, failed, look, return_exceptions=True)

    async def _look(self, changing: Callable[[], bool]) -> str:
        """What is wrong with the server after a while; "": nothing that can be seen."""
        await asyncio.sleep(POLL_S)
        if changing():
            return ""
        label = self._label
        try:
            await self.dialect.health()
            seen = (await self.dialect.facts()).label
        except EngineError as error:
            return "" if changing() else str(error)
        if not changing() and seen not in (label, self._label):  # unless an update came in between
            return f"the weights of {self.dialect.url} were changed to {seen!r} by somebody else"
        return ""


@contextmanager
def _understood(dialect: Dialect) -> Generator[None]:
    """Turn what a malformed answer trips over into Unreachable."""
    try:
        yield
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise Unreachable(
            f"{dialect.url} gave an answer that no {dialect.kind} server gives ({error!r}): see engine.kind"
        ) from error
