"""The docker provider: containers of a Docker engine or podman's compatible service.

Process 1 of a container is Hone's init process; its standard streams, attached once, are the channel for all
commands and files. So a command costs the same as in a namespaces sandbox and makes no call to the engine.
"""

from __future__ import annotations

import asyncio
import contextlib
import posixpath
from collections.abc import Callable, Mapping
from dataclasses import replace

from hone.sandbox import network, owners
from hone.sandbox.contract import Check, Health, ProviderUnavailable, SandboxLost, SandboxSpec, WriteContext
from hone.sandbox.docker import configuration, images
from hone.sandbox.docker.container import Container, User, identify, make_workdir
from hone.sandbox.docker.disk import DiskWatch, Size, Watched, measure
from hone.sandbox.docker.engine import OWNER_LABEL, Engine, default_url, open_engine
from hone.sandbox.health import limit_checks, probe_sandbox
from hone.sandbox.images.reference import canonical
from hone.sandbox.init import bundle
from hone.sandbox.init.sandbox import InitSandbox
from hone.sandbox.settings import SandboxSettings
from hone.utils.files import default_cache_dir

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class DockerProvider:
    """Sandboxes in containers. Entering connects to the engine and removes leftovers of dead owners."""

    def __init__(self, settings: SandboxSettings) -> None:
        self._settings = settings
        self._url = settings.docker_url or default_url()
        self._state_dir = settings.state_dir or owners.default_state_dir()
        self._cache_dir = settings.cache_dir or default_cache_dir()
        self._gate = asyncio.Semaphore(settings.max_concurrent_starts)
        self._containers: dict[str, Container] = {}  # by sandbox id
        self._users: dict[str, User] = {}  # by image id
        self._engine: Engine | None = None  # None while closed
        self._started = 0

    # --- opening and closing

    async def __aenter__(self) -> DockerProvider:
        async with contextlib.AsyncExitStack() as stack:
            engine = await stack.enter_async_context(open_engine(self._url))
            info = await engine.info()
            owners.open_state_dir(self._state_dir)
            await self._reconcile(engine)
            self._bundle = await asyncio.to_thread(bundle.prepare, self._cache_dir)
            self._owner = owners.new_name()
            self._directory = self._state_dir / self._owner
            self._directory.mkdir(mode=0o700)
            self._images = images.Images(engine, info)
            self._enforced = info.enforced
            self._disk = DiskWatch(engine)
            self._watching = asyncio.create_task(self._disk.run())
            self._engine = engine
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *exc: object) -> None:
        async with self._stack:
            engine, self._engine = self._engine, None
            assert engine is not None
            await self._images.close()
            for _ in range(self._settings.max_concurrent_starts):  # wait for starts in progress
                await self._gate.acquire()
            self._watching.cancel()
            await asyncio.wait([self._watching])
            # failures here show again below, when all containers with this owner's label are removed
            removals = [container.remove() for container in self._containers.values()]
            await asyncio.gather(*removals, return_exceptions=True)
            await asyncio.to_thread(owners.remove, self._owner, self._state_dir, [])
            try:
                await _remove_matching(engine, lambda labels: labels[OWNER_LABEL] == self._owner)
            except ProviderUnavailable:
                if exc[0] is None:  # else the first error is more useful
                    raise
            if not self._watching.cancelled():
                self._watching.result()

    # --- the contract

    async def start(self, spec: SandboxSpec) -> InitSandbox:
        name = images.name_of(spec.image, self._settings.docker_image)
        await asyncio.to_thread(configuration.check, spec)
        self._opened()
        image = await self._images.get(name)  # before the gate, because pulls are slow
        spec = replace(spec, workdir=posixpath.normpath(spec.workdir or image.workdir))
        limit_s = self._settings.start_timeout_s
        async with self._gate:
            try:
                async with asyncio.timeout(limit_s):
                    return await self._start(self._opened(), spec, image)
            except TimeoutError:
                raise ProviderUnavailable(
                    f"a sandbox was not ready within {limit_s:.0f} s", retryable=True
                ) from None

    def _opened(self) -> Engine:
        if self._engine is None:
            raise ProviderUnavailable("the provider is not open", retryable=False)
        if self._watching.done():
            raise ProviderUnavailable("the disk watchdog failed; open a new provider", retryable=False)
        return self._engine

    async def _start(self, engine: Engine, spec: SandboxSpec, image: images.Image) -> InitSandbox:
        self._started += 1
        sandbox_id = f"s{self._started}"
        async with contextlib.AsyncExitStack() as resources:
            sockets = await network.open_sockets(self._directory, sandbox_id, spec, resources)
            labels = configuration.labels(self._owner, sandbox_id, spec.run)
            config = configuration.configure(spec, image, self._bundle, labels, sockets)
            name = f"hone-{self._owner}-{sandbox_id}"
            container = Container(engine, name, config, resources.pop_all())
        self._containers[sandbox_id] = container
        try:
            return await self._prepare(engine, sandbox_id, container, spec, image)
        except BaseException as error:
            with contextlib.suppress(ProviderUnavailable):  # the first error is more useful
                await self._remove(sandbox_id)
            if isinstance(error, SandboxLost):
                raise ProviderUnavailable(f"a sandbox ended at its start: {error}", retryable=True) from error
            raise

    async def _prepare(
        self, engine: Engine, sandbox_id: str, container: Container, spec: SandboxSpec, image: images.Image
    ) -> InitSandbox:
        """Boot a container and prepare it for its first command."""
        channel = await container.boot()
        if image.id not in self._users:
            self._users[image.id] = await identify(channel)
        user = self._users[image.id]
        proxies = network.PROXY_ENV if spec.network else {}
        sandbox = InitSandbox(
            f"{self._owner}/{sandbox_id}",
            spec,
            channel,
            self._enforced,
            {"PATH": _PATH, "HOME": user.home, "LANG": "C.UTF-8", **image.env, **proxies},
            lambda: self._remove(sandbox_id),
        )
        await make_workdir(engine, container.name, channel, spec.workdir, user)
        layer = Size(0, 0)
        if spec.layer:
            layer = await asyncio.to_thread(measure, spec.layer)
            await sandbox.upload(spec.layer, spec.workdir)
        self._disk.watched[sandbox_id] = Watched(
            container=container.name, channel=channel, limits=spec.limits, layer=layer
        )
        return sandbox

    async def _remove(self, sandbox_id: str) -> None:
        self._disk.watched.pop(sandbox_id, None)
        container = self._containers.get(sandbox_id)
        if container is not None:
            await container.remove()
            self._containers.pop(sandbox_id, None)

    async def health(self) -> Health:
        """Probe the engine with a provider of its own; this one need not be open."""
        try:
            async with open_engine(self._url) as engine:
                info = await engine.info()
        except ProviderUnavailable as error:
            fix = "start the engine, or name its socket in sandbox.docker_url"
            return Health(checks=(Check(name="engine", ok=False, detail=str(error), fix=fix),))
        detail = f"{info.name} at {self._url}, API {info.api}, storage {info.storage}"
        checks = [Check(name="engine", ok=True, detail=detail), *limit_checks(info.enforced)]
        checks += await probe_sandbox(DockerProvider(self._settings), image=self._settings.docker_image)
        return Health(checks=tuple(checks))

    async def images(self) -> list[str]:
        return ["host", *map(canonical, await self._opened().image_names())]

    async def digest(self, image: str) -> str:
        return (await self._images.get(images.name_of(image, self._settings.docker_image))).id

    async def build(self, image: str, write_context: WriteContext, *, network: bool) -> None:
        name = images.name_of(image, self._settings.docker_image)
        await self._images.build(name, write_context, network=network)

    async def reconcile(self) -> int:
        async with open_engine(self._url) as engine:
            return await self._reconcile(engine)

    async def _reconcile(self, engine: Engine) -> int:
        removed = await _remove_matching(engine, configuration.is_orphan)
        return removed + await asyncio.to_thread(owners.reconcile, self._state_dir, [])


async def _remove_matching(engine: Engine, matches: Callable[[Mapping[str, str]], bool]) -> int:
    """Remove all containers whose labels match; return their number. Raises the first error at the end."""
    ids = [id_ for id_, labels in (await engine.owned()).items() if matches(labels)]
    results = await asyncio.gather(*(engine.remove(one) for one in ids), return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return len(ids)
