"""Client of a Docker engine or podman's compatible service, with the calls that sandboxes need.

Each call has a time limit and raises ProviderUnavailable, which says whether a retry may help.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import struct
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import aiodocker
import aiohttp

from hone.sandbox.contract import ProviderUnavailable, WriteContext
from hone.sandbox.images.engine_build import build
from hone.sandbox.init.channel import Channel
from hone.utils.concurrency import run_in_thread

_HEADER = struct.Struct("!BxxxI")  # stream (1: stdout, 2: stderr), length
_STDOUT, _STDERR = 1, 2
_HEAD_MAX = 1 << 16  # bytes of the answer's header
_ERRORS_MAX = 4000  # bytes kept of standard error
OWNER_LABEL = "hone.owner"
_DEFAULT_URL = "unix:///var/run/docker.sock"
_CONNECT_S = 10.0
_ANSWER_S = 120.0  # limit on silence during a request; a busy engine is slow
_REMOVAL_S = 30.0  # limit on retries to remove a container
_REMOVAL_POLL_S = 0.01
_UNREACHABLE = 900  # aiodocker's status for a failed connection
# Messages of Docker and podman about a directory that is not on their machine.
_MISSING_SOURCE = re.compile(r"bind source path does not exist|init/loader\W.*no such file")
_TRANSIENT = ("temporarily", "cannot allocate", "no space left", "too many open files", "timeout", "deadline")


class AttachRefused(Exception):
    """The engine refused to attach to this container; holds its message."""


class AttachStream(asyncio.Protocol):
    """The attach stream of a container, demultiplexed for a channel.

    The engine upgrades an HTTP request. Then it sends each piece of output after a header (stream, three zero
    bytes, length); bytes written to the connection become the container's standard input.
    `upgraded` raises AttachRefused, or OSError when the engine disconnects first.
    """

    def __init__(self, request: bytes, channel: Channel) -> None:
        self.upgraded: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.errors = bytearray()  # the end of standard error
        self._request = request
        self._channel = channel
        self._head: bytearray | None = bytearray()  # of the response; None once it is complete
        self._pending = b""  # an incomplete header
        self._stream, self._left = 0, 0  # of the piece that is arriving

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's class is not a subclass
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        if self._head is not None:
            self._head += data
            head, end, data = bytes(self._head).partition(b"\r\n\r\n")
            if not end and len(head) < _HEAD_MAX:
                return
            self._head = None
            if head.split(b" ", 2)[1:2] not in ([b"101"], [b"200"]):
                message = (head + data).decode("utf-8", "replace")
                self._fail(AttachRefused(message[-_ERRORS_MAX:]))
                return
            self._channel.connection_made(self._transport)
            if not self.upgraded.done():
                self.upgraded.set_result(None)
        self._demultiplex(data)

    def _demultiplex(self, data: bytes) -> None:
        data = self._pending + data
        offset = 0
        while offset < len(data):
            if self._left == 0:
                if len(data) - offset < _HEADER.size:
                    break
                self._stream, self._left = _HEADER.unpack_from(data, offset)
                offset += _HEADER.size
                continue
            piece = data[offset : offset + self._left]
            offset += len(piece)
            self._left -= len(piece)
            if self._stream == _STDOUT:
                self._channel.data_received(piece)
            elif self._stream == _STDERR:
                self.errors += piece
                del self.errors[:-_ERRORS_MAX]
        self._pending = data[offset:]

    def abort(self) -> None:
        """Close the connection."""
        self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(exc or ConnectionResetError("the engine closed the connection"))
        self._channel.connection_lost(exc)

    def _fail(self, error: Exception) -> None:
        if not self.upgraded.done():
            self.upgraded.set_exception(error)
            self.upgraded.exception()  # mark it as retrieved, in case the waiter was cancelled
        self.abort()


def default_url() -> str:
    """Return $DOCKER_HOST, else the system's Docker socket."""
    return os.environ.get("DOCKER_HOST") or _DEFAULT_URL


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineInfo:
    """Name and version of an engine, and its enforcement."""

    name: str  # "Docker 20.10.24", "podman 4.3.1"
    api: str
    storage: str
    architecture: str  # as in image manifests: amd64, arm64, ...
    enforced: Mapping[str, str]  # limit or isolation of a sandbox -> how it is enforced


def _enforced(name: str, info: Mapping[str, Any]) -> dict[str, str]:
    """Return `EngineInfo.enforced` for the response of GET /info."""
    swap = "cgroup" if info.get("SwapLimit") else "cgroup, swap excepted"
    return {
        "memory": swap if info.get("MemoryLimit") else "none",
        "pids": "cgroup" if info.get("PidsLimit") else "none",
        "cpus": "cgroup" if info.get("CpuCfsQuota", info.get("CPUCfsQuota")) else "none",
        "disk": "watchdog and file size limit; /tmp and /dev/shm: tmpfs size",
        "output": "process 1",
        "sockets": "cgroup" if info.get("CgroupVersion") == "2" else "none on cgroup version 1",
        "socket options": "none: the engine makes the network namespace",
        "terminals": "none: the engine makes the devpts instance",
        "machine stores": "seccomp",
        "shared files": "overlays, except mounts and the program of process 1",
        "network": "namespace",
        "isolation": f"container of {name}: no capabilities, no new privileges, "
        + ("seccomp" if "seccomp" in " ".join(info.get("SecurityOptions") or ()) else "no seccomp"),
    }


class Engine:
    """Use `open_engine`."""

    def __init__(self, url: str, client: aiodocker.Docker) -> None:
        self.url = url
        self._client = client

    @contextlib.contextmanager
    def _typed_errors(self) -> Iterator[None]:
        try:
            yield
        except aiodocker.DockerError as error:
            if error.status == _UNREACHABLE:
                raise self._unreachable(error.message) from error
            raise self._rejected(error.message) from error
        except AttachRefused as error:
            raise self._rejected(str(error)) from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self._unreachable(str(error) or type(error).__name__) from error

    def _unreachable(self, reason: str) -> ProviderUnavailable:
        return ProviderUnavailable(f"the engine at {self.url} does not answer: {reason}", retryable=True)

    def _rejected(self, message: str) -> ProviderUnavailable:
        if _MISSING_SOURCE.search(message):
            return ProviderUnavailable(
                f"the engine at {self.url} does not see this machine's files. Use an engine on this machine: "
                f"{message.strip()}",
                retryable=False,
            )
        transient = any(word in message.lower() for word in _TRANSIENT)
        return ProviderUnavailable(
            f"the engine at {self.url} refuses: {message.strip()}", retryable=transient
        )

    async def info(self) -> EngineInfo:
        with self._typed_errors():
            version = await self._client.version()
            info = await self._client.system.info()
        podman = any("Podman" in part.get("Name", "") for part in version.get("Components") or ())
        name = f"{'podman' if podman else 'Docker'} {version['Version']}"
        return EngineInfo(
            name=name,
            api=version["ApiVersion"],
            storage=str(info.get("Driver", "")),
            architecture=str(version.get("Arch", "")),
            enforced=_enforced(name, info),
        )

    # --- images

    async def image(self, name: str) -> dict[str, Any] | None:
        """Return an image's description; None when the engine does not have it."""
        with self._typed_errors():
            try:
                return await self._client.images.inspect(name)
            except aiodocker.DockerError as error:
                if error.status == 404:
                    return None
                raise

    async def image_names(self) -> list[str]:
        """Return the names and tags of the engine's images."""
        with self._typed_errors():
            found = await self._client.images.list()
        return [tag for image in found for tag in image.get("RepoTags") or () if tag != "<none>:<none>"]

    async def pull(self, name: str) -> None:
        """Pull an image. Raises aiodocker.DockerError with the registry's message."""
        async for _ in self._client.images.pull(name, stream=True):
            pass

    async def build(self, name: str, write_context: WriteContext, *, network: bool) -> None:
        """Build a Dockerfile as the image `name`. Raises ProviderUnavailable."""
        with tempfile.TemporaryDirectory(prefix="hone-build-") as folder:
            context = Path(folder) / "context"
            await run_in_thread(write_context, context)
            await build(self._client, context, name, Path(folder) / "context.tar", network=network)

    # --- containers

    async def create(self, name: str, config: Mapping[str, Any]) -> str:
        """Create a container and return its id."""
        with self._typed_errors():
            container = await self._client.containers.create(dict(config), name=name)
        return container.id

    async def attach(self, container: str, channel: Channel) -> AttachStream:
        """Connect the channel to the standard streams of a container that has not been started yet."""
        path = f"/{self._client.api_version}/containers/{container}/attach"
        request = (
            f"POST {path}?stream=1&stdin=1&stdout=1&stderr=1 HTTP/1.1\r\nHost: engine\r\n"
            "Connection: Upgrade\r\nUpgrade: tcp\r\nContent-Length: 0\r\n\r\n"
        ).encode()
        stream = AttachStream(request, channel)
        with self._typed_errors():
            async with asyncio.timeout(_CONNECT_S):
                await self._connect(stream)
            try:
                async with asyncio.timeout(_ANSWER_S):
                    await stream.upgraded
            except BaseException:
                stream.abort()
                raise
        return stream

    async def _connect(self, stream: AttachStream) -> None:
        loop = asyncio.get_running_loop()
        scheme, _, address = self.url.partition("://")
        if scheme == "unix":
            await loop.create_unix_connection(lambda: stream, address)
        else:
            host, _, port = address.rstrip("/").rpartition(":")
            await loop.create_connection(lambda: stream, host, int(port))

    async def start(self, container: str) -> None:
        with self._typed_errors():
            await self._client.containers.container(container).start()

    async def remove(self, container: str) -> None:
        """Kill and remove a container and its anonymous volumes."""
        handle = self._client.containers.container(container)
        deadline = asyncio.get_running_loop().time() + _REMOVAL_S
        with self._typed_errors():
            while True:
                try:
                    await handle.delete(force=True, v=True)
                    return
                except aiodocker.DockerError as error:
                    if error.status == 404:
                        return
                    # an engine that already removes it, because its process ended, refuses in many ways
                    if error.status == _UNREACHABLE or asyncio.get_running_loop().time() > deadline:
                        raise
                await asyncio.sleep(_REMOVAL_POLL_S)

    async def owned(self) -> dict[str, Mapping[str, str]]:
        """Return {id: labels} of all containers with an owner's label, in any state."""
        filters = json.dumps({"label": [OWNER_LABEL]})
        with self._typed_errors():
            found = await self._client.containers.list(all=1, filters=filters)
        return {container.id: container["Labels"] for container in found}

    async def written_bytes(self, container: str) -> int:
        """Return the size of the writable layer."""
        with self._typed_errors():
            described = await self._client.containers.container(container).show(size=1)
        return int(described.get("SizeRw") or 0)

    async def written_files(self, container: str) -> int:
        """Return the number of files made or changed in the writable layer. Takes seconds for many files."""
        with self._typed_errors():  # aiodocker has no method for this endpoint
            changes = await self._client._query_json(f"containers/{container}/changes")
        return len(changes or ())

    async def put(self, container: str, directory: str, archive: bytes) -> None:
        """Unpack a tar archive in a container's directory."""
        with self._typed_errors():
            await self._client.containers.container(container).put_archive(directory, archive)


@contextlib.asynccontextmanager
async def open_engine(url: str) -> AsyncIterator[Engine]:
    """Connect to an engine. Raises ProviderUnavailable for a URL that is neither unix:// nor tcp://."""
    if not url.startswith(("unix:///", "tcp://")):
        raise ProviderUnavailable(
            f"the URL of an engine is unix:///SOCKET or tcp://HOST:PORT, not {url!r}", retryable=False
        )
    timeout = aiohttp.ClientTimeout(sock_connect=_CONNECT_S, sock_read=_ANSWER_S)
    async with aiodocker.Docker(url=url, timeout=timeout) as client:
        yield Engine(url, client)
