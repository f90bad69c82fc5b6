"""Images of an engine, each pulled once even if many sandboxes wait for it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

import aiodocker
import aiohttp

from hone.sandbox.contract import (
    DEFAULT_WORKDIR,
    ImageProblem,
    ImageUnavailable,
    ProviderUnavailable,
    WriteContext,
)
from hone.sandbox.docker.engine import Engine, EngineInfo
from hone.sandbox.images.reference import BUILT
from hone.utils.concurrency import cancel_all
from hone.utils.retry import backoff_delays, retry

_PULL_S = 3600.0
_ATTEMPTS = 4
FIRST_DELAY_S = 1.0  # before the second attempt; doubles
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]*")
# Messages of engines and registries, most specific first, and their reasons.
_FAILURES: tuple[tuple[ImageProblem, str, str], ...] = (
    ("disk_full", r"no space left", "the engine's disk is full"),
    (
        "other_architecture",
        r"no matching manifest for|no image found in|platform",
        "it is for another architecture",
    ),
    (
        "damaged_image",
        r"verification failed|invalid checksum|does not match|unexpected EOF|invalid tar",
        "it is damaged",
    ),
    (
        "unknown_image",
        r"unknown|not found|does not exist|no such image|denied|unauthorized",
        "the registry has no such image, or asks for a login",
    ),
    ("registry_unavailable", "", "its registry cannot be reached"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """The fields of an image's description that sandboxes need."""

    id: str
    env: Mapping[str, str]
    workdir: str
    volumes: tuple[str, ...]


def name_of(image: str, host: str) -> str:
    """Return the engine's name of an image; `host` is that of image `host`. Raises ProviderUnavailable."""
    name = host if image == "host" else image.removeprefix("docker://")
    if (image != "host" and not image.startswith("docker://")) or not _NAME.fullmatch(name):
        raise ProviderUnavailable(
            f"the docker provider serves images docker://NAME and 'host', not {image!r}", retryable=False
        )
    return name


class Images:
    """Use within one event loop; `close` cancels running pulls."""

    def __init__(self, engine: Engine, info: EngineInfo) -> None:
        self._engine = engine
        self._info = info
        self._pulls: dict[str, asyncio.Task[None]] = {}

    async def get(self, name: str) -> Image:
        """Return an image, pulled if the engine does not have it. Raises ImageUnavailable."""
        described = await self._engine.image(name)
        if described is None:
            if name.startswith(BUILT):
                raise ImageUnavailable(
                    f"image {name} was removed from the engine", problem="unknown_image", retryable=True
                )
            await self._once(name, lambda: self._pull(name))
            described = await self._engine.image(name)
        if described is None:
            raise ImageUnavailable(
                f"image {name} was removed after its pull", problem="unknown_image", retryable=True
            )
        engine, found = self._info.architecture, str(described.get("Architecture") or "")
        if engine and found and engine != found:
            raise ImageUnavailable(
                f"image {name} is for {found}, the engine's machine is {engine}", problem="other_architecture"
            )
        return _parse(described)

    async def build(self, name: str, write_context: WriteContext, *, network: bool) -> None:
        """Build a Dockerfile as an image, unless there is one. Raises ProviderUnavailable."""
        if await self._engine.image(name) is None:
            await self._once(name, lambda: self._engine.build(name, write_context, network=network))

    async def _once(self, name: str, make: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Pull or build an image; concurrent callers share it, and a cancelled one does not stop it."""
        if name not in self._pulls:
            self._pulls[name] = asyncio.create_task(make())
            self._pulls[name].add_done_callback(lambda _: self._pulls.pop(name, None))
        pull = self._pulls[name]
        await asyncio.wait([pull])
        if pull.cancelled():
            raise ProviderUnavailable("the provider was closed", retryable=False)
        pull.result()

    async def _pull(self, name: str) -> None:
        async def pull() -> None:
            try:
                async with asyncio.timeout(_PULL_S):
                    await self._engine.pull(name)
            except (aiodocker.DockerError, aiohttp.ClientError, TimeoutError) as error:
                message = str(getattr(error, "message", "") or error or type(error).__name__)
                raise pull_error(name, message) from error

        await retry(
            pull,
            attempts=_ATTEMPTS,
            delays=backoff_delays(FIRST_DELAY_S),
            transient=lambda error: isinstance(error, ImageUnavailable) and error.retryable,
        )

    async def close(self) -> None:
        await cancel_all(list(self._pulls.values()))


def pull_error(name: str, message: str) -> ImageUnavailable:
    """Return the error for a failed pull, from the message of the engine or the registry."""
    problem, _, reason = next(failure for failure in _FAILURES if re.search(failure[1], message, re.I))
    return ImageUnavailable(
        f"image {name} cannot be pulled: {reason} ({message.strip()[:300]})",
        problem=problem,
        retryable=problem in ("registry_unavailable", "disk_full"),
    )


def _parse(described: Mapping[str, Any]) -> Image:
    config: Mapping[str, Any] = described.get("Config") or {}
    pairs = [line.partition("=") for line in config.get("Env") or ()]
    workdir = str(config.get("WorkingDir") or "")
    return Image(
        id=described["Id"],
        env={name: value for name, _, value in pairs},
        workdir=workdir if workdir not in ("", "/") else DEFAULT_WORKDIR,
        volumes=tuple(config.get("Volumes") or ()),
    )
