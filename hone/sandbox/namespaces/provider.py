"""The namespaces provider: one spawn server, and the sandboxes it forked for this process."""

from __future__ import annotations

import asyncio
import json
import os
import posixpath
import socket
import subprocess
import sys
from contextlib import AsyncExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hone.sandbox.contract import Health, ProviderUnavailable, SandboxLost, SandboxSpec
from hone.sandbox.namespaces import cgroups, doctor, etc, owners, runtime
from hone.sandbox.namespaces.channel import Channel
from hone.sandbox.namespaces.rootfs import Plan
from hone.sandbox.namespaces.sandbox import NamespacesSandbox
from hone.sandbox.settings import SandboxSettings

_PACKAGE_ROOT = Path(__file__).parents[3]
_SERVER_S = 20.0  # for the spawn server to answer, to start and to end
# without `site`: the server needs the standard library and this package only, and stays small
_SERVER_CODE = (
    "import sys; sys.path.append(sys.argv[1]); "
    "from hone.sandbox.namespaces.spawner import main; main(sys.argv[3:])"
)
_RESERVED = ("/proc", "/dev", "/opt/hone", "/usr", "/etc", "/bin", "/sbin", "/lib", "/lib64")


class NamespacesProvider:
    """Sandboxes of image `host`. Entering it removes what dead owners left and starts the spawn server."""

    def __init__(self, settings: SandboxSettings) -> None:
        self._settings = settings
        self._state_dir = settings.state_dir or owners.default_state_dir()
        self._cache_dir = settings.cache_dir or runtime.default_cache_dir()
        self._gate = asyncio.Semaphore(settings.max_concurrent_starts)
        self._sending = asyncio.Lock()
        self._open: dict[str, NamespacesSandbox] = {}
        self._exited: dict[
            str, asyncio.Future[str]
        ] = {}  # id -> what it said when its last trace was removed
        self._control: socket.socket | None = None
        self._server: subprocess.Popen[bytes] | None = None
        self._started = 0

    # --- opening and closing

    async def __aenter__(self) -> NamespacesProvider:
        self._bwrap = doctor.require_bubblewrap()
        owners.open_state_dir(self._state_dir)
        await self.reconcile()
        self._runtime = await asyncio.to_thread(runtime.prepare, self._cache_dir)
        self._owner = owners.new_name()
        self._directory = self._state_dir / self._owner
        await asyncio.to_thread(etc.build, self._directory)
        try:
            self._control = await asyncio.to_thread(self._start_server)
        except BaseException:
            await self._stop_server()
            raise
        asyncio.get_running_loop().add_reader(self._control, self._listen)
        return self

    def _start_server(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        label = f"hone-spawner:{self._owner}"
        command = [sys.executable, "-I", "-S", "-c", _SERVER_CODE, str(_PACKAGE_ROOT), label, self._owner]
        with theirs:
            self._server = subprocess.Popen(
                [*command, str(os.getpid())],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                env={},
                cwd="/",
            )
        ours.settimeout(_SERVER_S)
        try:
            self._roots: dict[str, str] = json.loads(ours.recv(1 << 16))["roots"]
        except (ValueError, TimeoutError):
            ours.close()
            raise ProviderUnavailable(
                "the spawn server of the sandboxes did not start", retryable=True
            ) from None
        ours.setblocking(False)
        return ours

    async def __aexit__(self, *exc: object) -> None:
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._stop_server)
            await asyncio.gather(*(sandbox.close() for sandbox in list(self._open.values())))

    async def _stop_server(self) -> None:
        self._hang_up()
        if self._server is not None:
            await asyncio.to_thread(_wait, self._server)
        await asyncio.to_thread(owners.remove, self._owner, self._state_dir, _group_roots())

    # --- talking to the spawn server

    def _hang_up(self) -> None:
        if self._control is not None:
            asyncio.get_running_loop().remove_reader(self._control)
            self._control.close()
            self._control = None

    def _listen(self) -> None:
        """Readable: an event of the server, or its end."""
        assert self._control is not None
        try:
            data = self._control.recv(1 << 17)
        except BlockingIOError:
            return
        except ConnectionError:
            data = b""
        if not data:
            self._hang_up()
            for future in self._exited.values():
                if not future.done():
                    future.set_result("the spawn server died")
            return
        event: dict[str, Any] = json.loads(data)
        future = self._exited.get(event["id"])
        if future is not None and not future.done():
            future.set_result(event["error"])

    async def _tell(self, message: dict[str, Any], *fds: int) -> None:
        """Send one packet, waiting while the server's queue is full."""
        data = json.dumps(message).encode()
        loop = asyncio.get_running_loop()
        async with self._sending:
            while (control := self._control) is not None:
                try:
                    socket.send_fds(control, [data], list(fds))
                    return
                except BlockingIOError:
                    writable = loop.create_future()
                    loop.add_writer(control, writable.set_result, None)
                    try:
                        await writable
                    finally:
                        loop.remove_writer(control)
        raise ProviderUnavailable(
            "the spawn server of the sandboxes died; open the provider again", retryable=False
        )

    # --- the contract

    async def start(self, spec: SandboxSpec) -> NamespacesSandbox:
        _validate(spec)
        async with self._gate:
            return await self._start(spec)

    async def _start(self, spec: SandboxSpec) -> NamespacesSandbox:
        if self._control is None:
            raise ProviderUnavailable("the provider is not open", retryable=False)
        loop = asyncio.get_running_loop()
        self._started += 1
        sandbox_id = f"s{self._started}"
        exited = self._exited[sandbox_id] = loop.create_future()
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                ours.setblocking(False)
                _, channel = await loop.create_unix_connection(Channel, sock=ours)
                await self._tell(
                    {"op": "start", "plan": asdict(self._plan(sandbox_id, spec))}, theirs.fileno()
                )
        except BaseException:
            ours.close()
            del self._exited[sandbox_id]
            raise
        sandbox = NamespacesSandbox(
            f"{self._owner}/{sandbox_id}", spec, channel, self._enforced(), lambda: self._close(sandbox_id)
        )
        self._open[sandbox_id] = sandbox
        try:
            async with asyncio.timeout(self._settings.start_timeout_s):
                await channel.ready
        except SandboxLost as lost:
            await sandbox.close()
            why = exited.result() if exited.done() else str(lost)
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

    def _plan(self, sandbox_id: str, spec: SandboxSpec) -> Plan:
        limits, here = spec.limits, self._runtime
        return Plan(
            id=sandbox_id,
            owner=self._owner,
            bwrap=self._bwrap,
            workdir=posixpath.normpath(spec.workdir),
            layer=str(spec.layer.resolve()) if spec.layer else None,
            mounts=[(str(mount.source.resolve()), posixpath.normpath(mount.target)) for mount in spec.mounts],
            etc=str(self._directory / "etc"),
            runtime=str(here.directory),
            python_prefix=str(here.python_prefix) if here.python_prefix else None,
            python=here.python,
            library=here.library,
            memory_mib=limits.memory_mib,
            pids=limits.pids,
            cpus=limits.cpus,
            disk_mib=limits.disk_mib,
            watch_memory_kib=0 if "memory" in self._roots else limits.memory_mib << 10,
            limit_pids=0 if "pids" in self._roots else limits.pids,
        )

    def _enforced(self) -> dict[str, str]:
        return doctor.enforced(self._roots)

    async def _close(self, sandbox_id: str) -> None:
        """Wait until the server has removed the last trace."""
        exited = self._exited.get(sandbox_id)
        if exited is None:
            return
        if not exited.done() and self._control is not None:
            await self._tell({"op": "close", "id": sandbox_id})
        async with asyncio.timeout(_SERVER_S):
            await asyncio.shield(exited)
        self._open.pop(sandbox_id, None)
        self._exited.pop(sandbox_id, None)

    async def health(self) -> Health:
        return await doctor.examine(self._settings)

    async def reconcile(self) -> int:
        return await asyncio.to_thread(lambda: owners.reconcile(self._state_dir, _group_roots()))


def _group_roots() -> list[Path]:
    return [Path(base) for base in set(cgroups.find_roots().values())]


def _wait(server: subprocess.Popen[bytes]) -> None:
    """Let the server end by itself, for it removes the last traces; kill it when it does not."""
    try:
        server.wait(_SERVER_S)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


def _validate(spec: SandboxSpec) -> None:
    """Raise ProviderUnavailable for an image we cannot serve, ValueError for a spec that makes no sense."""
    if spec.image != "host":
        raise ProviderUnavailable(
            f"the namespaces provider serves image 'host' only, not {spec.image!r}", retryable=False
        )
    for path in (spec.workdir, *(mount.target for mount in spec.mounts)):
        clean = posixpath.normpath(path)
        if not path.startswith("/") or clean == "/" or ".." in path.split("/"):
            raise ValueError(f"a path inside a sandbox is absolute and without '..', got {path!r}")
        if any(clean == name or clean.startswith(name + "/") for name in _RESERVED):
            raise ValueError(f"{path!r} lies in a directory that sandboxes keep for themselves")
    for source in [*(mount.source for mount in spec.mounts), *([spec.layer] if spec.layer else [])]:
        if not source.exists():
            raise FileNotFoundError(f"{source} does not exist")
    if spec.layer and not spec.layer.is_dir():
        raise NotADirectoryError(f"{spec.layer} is not a directory")
