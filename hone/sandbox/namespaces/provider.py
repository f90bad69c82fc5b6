"""The namespaces provider: images turned into plans, and the sandboxes that a spawn server makes of them."""

from __future__ import annotations

import asyncio
import math
import posixpath
import socket
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

from hone.sandbox import network, owners, trees
from hone.sandbox.contract import (
    Health,
    ImageUnavailable,
    ProviderUnavailable,
    SandboxLost,
    SandboxSpec,
)
from hone.sandbox.images.store import ImageStore
from hone.sandbox.init import bundle
from hone.sandbox.init.channel import Channel
from hone.sandbox.init.sandbox import InitSandbox
from hone.sandbox.namespaces import cgroups, doctor, host, image, runtime, snapshots
from hone.sandbox.namespaces.base import Base
from hone.sandbox.namespaces.plan import Overlay, Plan
from hone.sandbox.namespaces.server import SpawnServer
from hone.sandbox.paths import RESERVED, check_paths
from hone.sandbox.settings import SandboxSettings
from hone.utils.files import default_cache_dir

_RESERVED_IN_HOST = (*RESERVED, "/usr", "/etc", "/bin", "/sbin", "/lib", "/lib64")


class NamespacesProvider:
    """Entering it removes what dead owners left and starts the spawn server."""

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
        here = await asyncio.to_thread(runtime.prepare, self._cache_dir)
        self._owner = owners.new_name()
        self._directory = self._state_dir / self._owner
        server = SpawnServer(self._owner)
        try:
            await asyncio.to_thread(host.build_etc, self._directory)
            (self._directory / "net").mkdir()
            self._host = host.base(self._directory / "etc", here)
            await server.open()
        except BaseException:
            await self._remove(server)
            raise
        self._server = server
        return self

    async def __aexit__(self, *exc: object) -> None:
        server, self._server = self._server, None  # nothing is started from now on
        assert server is not None
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._remove, server)
            await asyncio.gather(*(sandbox.close() for sandbox in list(self._open.values())))

    async def _remove(self, server: SpawnServer) -> None:
        """To its end even when it is cancelled: nobody else removes what a living owner has."""
        removing = asyncio.create_task(self._end_and_remove(server))
        try:
            await asyncio.shield(removing)
        except asyncio.CancelledError:
            await removing
            raise

    async def _end_and_remove(self, server: SpawnServer) -> None:
        await server.close()
        await asyncio.to_thread(owners.remove, self._owner, self._state_dir, _group_roots())

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
            sockets = await network.open_ways_out(self._directory / "net", sandbox_id, spec, resources)
            plan = await asyncio.to_thread(self._plan, sandbox_id, base, spec, server.roots, sockets)
            async with self._gate:
                return await self._start(server, plan, base, spec, resources.pop_all())

    async def _find_base(self, image_name: str, resources: AsyncExitStack) -> Base:
        """The image, held while `resources` are open."""
        if image_name == "host":
            return self._host
        doctor.require_image_kernel()
        if image_name.startswith("rootfs:"):
            return await asyncio.to_thread(_rootfs_base, image_name)
        found = await self._images.ensure(image_name)
        try:
            resources.enter_context(self._images.use(found))
        except ImageUnavailable:  # evicted since: once more
            found = await self._images.ensure(image_name)
            resources.enter_context(self._images.use(found))
        if found.digest not in self._bases:
            arguments = (found.digest, found.layers, found.env, found.workdir, found.user)
            self._bases[found.digest] = await asyncio.to_thread(image.base, *arguments)
        return self._bases[found.digest]

    async def _start(
        self, server: SpawnServer, plan: Plan, base: Base, spec: SandboxSpec, resources: AsyncExitStack
    ) -> InitSandbox:
        why = ""

        async def end() -> None:
            nonlocal why
            why = await server.end(plan.id) or why
            self._open.pop(plan.id, None)
            await resources.aclose()

        async def snapshot(target: Path) -> None:
            target.mkdir(mode=0o700, parents=True)
            try:
                await server.snapshot(plan.id, target)
                await asyncio.to_thread(snapshots.write_record, target, base.name, plan)
            except BaseException:
                await asyncio.to_thread(trees.remove, target)
                raise

        try:
            channel = await self._send(server, plan)
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
            why = why or str(lost)
            raise ProviderUnavailable(doctor.explain(why), retryable=doctor.is_passing(why)) from None
        except TimeoutError:
            await sandbox.close()
            raise ProviderUnavailable(
                f"a sandbox was not ready within {self._settings.start_timeout_s:.0f} s", retryable=True
            ) from None
        except BaseException:
            await asyncio.shield(sandbox.close())
            raise
        return sandbox

    async def _send(self, server: SpawnServer, plan: Plan) -> Channel:
        """Have the plan built; the channel to its process 1."""
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                ours.setblocking(False)
                _, channel = await asyncio.get_running_loop().create_unix_connection(Channel, sock=ours)
                await server.start(plan, theirs.fileno())
        except BaseException:
            ours.close()
            raise
        return channel

    async def fork(self, sandbox: InitSandbox) -> InitSandbox:
        """Another sandbox that begins with the file state of this one; its processes are not taken along."""
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
        """Raises ValueError or an OSError for a spec that makes no sense."""
        check_paths(spec, _RESERVED_IN_HOST if spec.image == "host" else RESERVED)
        limits = spec.limits
        overlays = list(base.overlays)
        if spec.layer:
            lowers = [str(spec.layer.resolve())]
            overlays.append(Overlay(target=spec.workdir, name="workdir", lowers=lowers, translated=True))
        if spec.snapshot:
            below = snapshots.chain(spec.snapshot, base.name)
            overlays = [replace(overlay, snapshots=snapshots.of(below, overlay.name)) for overlay in overlays]
        # what no control group holds is left to the supervisor
        watched_kib = 0 if "memory" in roots else limits.memory_mib << 10
        limited_pids = 0 if "pids" in roots else limits.pids
        relay = (str(network.PROXY_PORT), network.PROXY_PATH) if spec.network else ()
        label = f"hone-sandbox:{self._owner}/{sandbox_id}"
        return Plan(
            id=sandbox_id,
            owner=self._owner,
            bwrap=self._bwrap,
            uid=base.uid,
            gid=base.gid,
            workdir=spec.workdir,
            directories=base.directories,
            links=base.links,
            files=base.files,
            overlays=overlays,
            copied=None,
            shown=[(str(self._bundle.directory), bundle.BUNDLE_TARGET), *base.shown],
            mounts=[(str(mount.source.resolve()), posixpath.normpath(mount.target)) for mount in spec.mounts],
            sockets=sockets,
            memory_mib=limits.memory_mib,
            pids=limits.pids,
            cpus=limits.cpus,
            disk_mib=limits.disk_mib,
            cores=0 if "cpu" in roots else math.ceil(limits.cpus),
            supervisor=self._bundle.command(label, str(watched_kib), str(limited_pids), "0", *relay),
        )

    async def health(self) -> Health:
        return await doctor.examine(self._settings)

    async def images(self) -> list[str]:
        return ["host", *(found.name for found in await self._images.list())]

    async def digest(self, image: str) -> str:
        if not image.startswith("docker://"):
            return ""
        return (await self._images.ensure(image)).digest

    async def reconcile(self) -> int:
        return await asyncio.to_thread(lambda: owners.reconcile(self._state_dir, _group_roots()))


def _group_roots() -> list[Path]:
    return [Path(base) for base in set(cgroups.find_roots().values())]


def _rootfs_base(name: str) -> Base:
    directory = Path(name.removeprefix("rootfs:"))
    if not directory.is_dir():
        raise ImageUnavailable(f"{directory} is not a directory", problem="unknown_image")
    return image.base(f"rootfs:{directory.resolve()}", [directory.resolve()], {}, "", "")
