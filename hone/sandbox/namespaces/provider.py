"""The namespaces provider: turns specs into plans, of which a spawn server makes sandboxes."""

from __future__ import annotations

import asyncio
import math
import os
import posixpath
import socket
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

from hone.sandbox import network, owners, trees
from hone.sandbox.contract import (
    RESERVED,
    Health,
    ImageUnavailable,
    IncompleteSnapshot,
    ProviderUnavailable,
    SandboxLost,
    SandboxSpec,
    WriteContext,
)
from hone.sandbox.images.store import ImageStore
from hone.sandbox.init import bundle
from hone.sandbox.init.channel import Channel
from hone.sandbox.init.in_sandbox import wire
from hone.sandbox.init.sandbox import InitSandbox
from hone.sandbox.namespaces import cgroups, doctor, host, image, snapshots
from hone.sandbox.namespaces.plan import Base, Overlay, Plan
from hone.sandbox.namespaces.rootfs import SHOWN_SYS
from hone.sandbox.namespaces.server import SpawnServer
from hone.sandbox.settings import SandboxSettings
from hone.utils.concurrency import run_in_thread
from hone.utils.files import default_cache_dir

_RESERVED_IN_HOST = (*RESERVED, "/usr", "/etc", "/bin", "/sbin", "/lib", "/lib64")


# Sockets of a sandbox by its memory: the kernel counts up to 128 KiB of each in no limit.
_SOCKETS_PER_MIB, _SOCKETS_MIN = 2, 64
_STATE_MAX = 200  # bytes of the answer of process 1


class NamespacesProvider:
    """Sandboxes on this machine. Entering removes leftovers of dead owners and starts the spawn server."""

    def __init__(self, settings: SandboxSettings) -> None:
        self._settings = settings
        self._state_dir = settings.state_dir or owners.default_state_dir()
        self._cache_dir = settings.cache_dir or default_cache_dir()
        self._images = ImageStore(self._cache_dir / "images", budget_gib=settings.images_gib)
        self._gate = asyncio.Semaphore(settings.max_concurrent_starts)
        self._open: dict[str, InitSandbox] = {}
        self._server: SpawnServer | None = None
        self._bases: dict[str, Base] = {}  # by digest
        self._started, self._forked = 0, 0

    # --- opening and closing

    async def __aenter__(self) -> NamespacesProvider:
        self._bwrap = doctor.require_bubblewrap()
        owners.open_state_dir(self._state_dir)
        await self.reconcile()
        self._bundle = await asyncio.to_thread(bundle.prepare, self._cache_dir)
        here = await asyncio.to_thread(host.prepare_python, self._cache_dir)
        self._owner = owners.new_name()
        self._directory = self._state_dir / self._owner
        server = SpawnServer(self._owner)
        try:
            await run_in_thread(host.build_etc, self._directory)
            (self._directory / "net").mkdir()
            self._host = host.base(self._directory / "etc", here)
            await server.open()
        except BaseException:
            await self._remove(server)
            raise
        self._server = server
        return self

    async def __aexit__(self, *exc: object) -> None:
        server, self._server = self._server, None  # refuses starts from now on
        assert server is not None
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._remove, server)
            await asyncio.gather(*(sandbox.close() for sandbox in list(self._open.values())))

    async def _remove(self, server: SpawnServer) -> None:
        """Runs to its end even when cancelled: only the owner may remove its resources."""
        try:
            await server.close()
        finally:
            await run_in_thread(owners.remove, self._owner, self._state_dir, _group_roots())

    # --- the contract

    async def start(self, spec: SandboxSpec) -> InitSandbox:
        server = self._server
        if server is None:
            raise ProviderUnavailable("the provider is not open", retryable=False)
        async with AsyncExitStack() as resources:
            base = await self._find_base(spec.image, resources)
            spec = replace(spec, workdir=spec.workdir or base.workdir)
            self._started += 1
            sandbox_id = f"s{self._started}"
            sockets = await network.open_sockets(self._directory / "net", sandbox_id, spec, resources)
            plan = await asyncio.to_thread(self._plan, sandbox_id, base, spec, server.roots, sockets)
            async with self._gate:
                return await self._start(server, plan, base, spec, resources.pop_all())

    async def _find_base(self, image_name: str, resources: AsyncExitStack) -> Base:
        """Return the base of an image, which is not evicted while `resources` are open."""
        if image_name == "host":
            return self._host
        doctor.require_image_kernel()
        if image_name.startswith("rootfs:"):
            return await asyncio.to_thread(_rootfs_base, image_name)
        found = await self._images.ensure(image_name)
        try:
            resources.enter_context(self._images.use(found))
        except ImageUnavailable:  # evicted meanwhile
            found = await self._images.ensure(image_name)
            resources.enter_context(self._images.use(found))
        if found.digest not in self._bases:
            arguments = (found.digest, found.layers, found.env, found.workdir, found.user)
            self._bases[found.digest] = await asyncio.to_thread(image.base, *arguments)
        return self._bases[found.digest]

    async def _start(
        self, server: SpawnServer, plan: Plan, base: Base, spec: SandboxSpec, resources: AsyncExitStack
    ) -> InitSandbox:
        error = ""

        async def end() -> None:
            nonlocal error
            error = await server.end(plan.id) or error
            self._open.pop(plan.id, None)
            await resources.aclose()

        async def snapshot(target: Path, whole: bool) -> None:
            if channel.lost:
                raise SandboxLost(channel.lost)
            if whole and (state := await channel.ask(wire.STATE_KIND, wire.pack(*_mount_points(plan)))):
                raise IncompleteSnapshot(state[:_STATE_MAX].decode("utf-8", "replace"))
            target.mkdir(mode=0o700, parents=True)
            try:
                await run_in_thread(snapshots.take, layers.open(), target, plan, whole=whole)
            except BaseException:
                await run_in_thread(trees.remove, target)
                raise

        upper, upper_to = socket.socketpair()
        layers = snapshots.UpperLayers(upper)
        resources.callback(layers.close)
        try:
            with upper_to:
                channel = await self._send(server, plan, upper_to)
        except BaseException:
            await resources.aclose()
            raise
        enforced = doctor.enforced(server.roots)
        env = {**base.env, **(network.PROXY_ENV if spec.network else {})}
        sandbox = InitSandbox(f"{self._owner}/{plan.id}", spec, channel, enforced, env, end, snapshot)
        self._open[plan.id] = sandbox
        try:
            async with asyncio.timeout(self._settings.start_timeout_s):
                await channel.ready
        except SandboxLost as lost:
            await sandbox.close()
            raise doctor.start_error(error or str(lost)) from None
        except TimeoutError:
            await sandbox.close()
            raise ProviderUnavailable(
                f"a sandbox was not ready within {self._settings.start_timeout_s:.0f} s", retryable=True
            ) from None
        except BaseException:
            await asyncio.shield(sandbox.close())
            raise
        return sandbox

    async def _send(self, server: SpawnServer, plan: Plan, upper_to: socket.socket) -> Channel:
        """Send a plan to the server; return the channel to process 1 of the sandbox."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                ours.setblocking(False)
                _, channel = await asyncio.get_running_loop().create_unix_connection(Channel, sock=ours)
            except BaseException:
                ours.close()
                raise
            try:
                await server.start(plan, theirs.fileno(), upper_to.fileno())
            except BaseException:
                channel.abandon("its plan was not sent")  # the connection owns `ours`
                raise
        return channel

    async def fork(self, sandbox: InitSandbox) -> InitSandbox:
        """Start a sandbox with a copy of the files of `sandbox`, without its processes."""
        self._forked += 1
        target = self._directory / "snapshots" / str(self._forked)
        await sandbox.snapshot(target)
        return await self.start(replace(sandbox.spec, snapshot=target))

    def _plan(
        self,
        sandbox_id: str,
        base: Base,
        spec: SandboxSpec,
        roots: Mapping[str, str],
        sockets: list[tuple[str, str]],
    ) -> Plan:
        """Raises ValueError or OSError for an invalid spec."""
        spec.check_paths(_RESERVED_IN_HOST if spec.image == "host" else RESERVED)
        limits = spec.limits
        overlays = list(base.overlays)
        if spec.layer:
            lowers = [str(spec.layer.resolve())]
            overlays.append(Overlay(target=spec.workdir, name="workdir", lowers=lowers, translated=True))
        made_ns = snapshots.read_made_ns(spec.snapshot, base.name) if spec.snapshot else time.time_ns()
        # process 1 enforces the limits for which there is no cgroup
        watched_kib = 0 if "memory" in roots else limits.memory_mib << 10
        limited_pids = 0 if "pids" in roots else limits.pids
        sockets_max = str(max(_SOCKETS_MIN, _SOCKETS_PER_MIB * limits.memory_mib))
        relay = (str(network.PROXY_PORT), network.PROXY_PATH) if spec.network else ()
        shown = [(str(self._bundle), bundle.BUNDLE_TARGET), *base.shown]
        label = f"hone-sandbox:{self._owner}/{sandbox_id}"
        return Plan(
            id=sandbox_id,
            owner=self._owner,
            bwrap=self._bwrap,
            base=replace(base, env={}, overlays=overlays, shown=shown),
            workdir=spec.workdir,
            snapshot=str(spec.snapshot.resolve()) if spec.snapshot else None,
            made_ns=made_ns,
            mounts=[(str(mount.source.resolve()), posixpath.normpath(mount.target)) for mount in spec.mounts],
            sockets=sockets,
            limits=limits,
            cores=0 if "cpu" in roots else math.ceil(limits.cpus),
            init=bundle.command(label, str(watched_kib), str(limited_pids), "0", sockets_max, *relay),
        )

    async def health(self) -> Health:
        return await doctor.health(NamespacesProvider(self._settings))

    async def images(self) -> list[str]:
        return ["host", *(found.name for found in await self._images.list())]

    async def digest(self, image: str) -> str:
        if not image.startswith("docker://"):
            return ""
        return (await self._images.ensure(image)).digest

    async def build(self, image: str, write_context: WriteContext, *, network: bool) -> None:
        await self._images.build(image, write_context, network=network)

    async def reconcile(self) -> int:
        return await asyncio.to_thread(lambda: owners.reconcile(self._state_dir, _group_roots()))


def _mount_points(plan: Plan) -> list[bytes]:
    """Return the paths inside that a sandbox from a snapshot mounts something at, besides /dev and /proc."""
    mounts = [*plan.base.shown, *SHOWN_SYS, *plan.mounts, *plan.sockets]
    targets = [overlay.target for overlay in plan.base.overlays] + [target for _, target in mounts]
    return [os.fsencode(posixpath.normpath(target)) for target in targets]


def _group_roots() -> list[Path]:
    return [Path(base) for base in set(cgroups.find_roots().values())]


def _rootfs_base(name: str) -> Base:
    directory = Path(name.removeprefix("rootfs:"))
    if not directory.is_dir():
        raise ImageUnavailable(f"{directory} is not a directory", problem="unknown_image")
    return image.base(f"rootfs:{directory.resolve()}", [directory.resolve()], {}, "", "")
