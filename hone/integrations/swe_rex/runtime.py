"""The runtime of SWE-ReX on a sandbox of Hone (`swerex.runtime.abstract.AbstractRuntime`)."""

from __future__ import annotations

import io
import logging
import posixpath
import shlex
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

from swerex.exceptions import (
    CommandTimeoutError,
    NonZeroExitCodeError,
    SessionDoesNotExistError,
    SessionExistsError,
    SwerexException,
)
from swerex.runtime.abstract import (
    AbstractRuntime,
    Action,
    BashObservation,
    CloseBashSessionResponse,
    CloseResponse,
    CloseSessionRequest,
    Command,
    CommandResponse,
    CreateBashSessionResponse,
    CreateSessionRequest,
    IsAliveResponse,
    ReadFileRequest,
    ReadFileResponse,
    UploadRequest,
    UploadResponse,
    WriteFileRequest,
    WriteFileResponse,
)

from hone.integrations.loop_thread import LoopThread
from hone.integrations.swe_rex.session import Session
from hone.sandbox.contract import TIMEOUT_MAX_S, Sandbox, SandboxError

T = TypeVar("T")
ALIVE_TIMEOUT_S = 10.0


class SandboxFailed(SwerexException, SandboxError):
    """The sandbox is gone, or its provider: a fault of the infrastructure, not of the agent."""


class HoneRuntime(AbstractRuntime):
    """Runs everything in one sandbox; relative paths start at its workdir.

    Args:
        sandbox: not closed by the runtime.
        thread: where the sandbox lives; None: in the event loop of the caller.
    """

    def __init__(
        self, sandbox: Sandbox, *, thread: LoopThread | None = None, logger: logging.Logger | None = None
    ) -> None:
        self.logger = logger or logging.getLogger("rex-runtime")
        self._sandbox = sandbox
        self._thread = thread
        self._sessions: dict[str, Session] = {}

    async def is_alive(self, *, timeout: float | None = None) -> IsAliveResponse:
        try:
            done = await self._there(self._sandbox.exec("true", timeout_s=timeout or ALIVE_TIMEOUT_S))
        except SandboxFailed as error:
            return IsAliveResponse(is_alive=False, message=str(error))
        return IsAliveResponse(is_alive=done.exit_code == 0, message=done.ending)

    async def create_session(self, request: CreateSessionRequest) -> CreateBashSessionResponse:
        if request.session in self._sessions:
            raise SessionExistsError(f"session {request.session!r} already exists")
        session = Session(self._sandbox, request)
        self._sessions[request.session] = session
        try:
            return await self._there(session.start())
        except BaseException:
            del self._sessions[request.session]
            await self._there(session.close())
            raise

    async def run_in_session(self, action: Action) -> BashObservation:
        return await self._there(self._session(action.session).run(action))

    async def close_session(self, request: CloseSessionRequest) -> CloseBashSessionResponse:
        await self._there(self._session(request.session).close())
        del self._sessions[request.session]
        return CloseBashSessionResponse()

    async def execute(self, command: Command) -> CommandResponse:
        """Run a command as `subprocess.run` would. Raises CommandTimeoutError, NonZeroExitCodeError."""
        done = await self._there(
            self._sandbox.exec(
                _argv(command),
                timeout_s=command.timeout or TIMEOUT_MAX_S,
                cwd=command.cwd,
                merge_stderr=command.merge_output_streams,
            )
        )
        if done.timed_out:
            raise CommandTimeoutError(f"Timeout ({command.timeout}s) exceeded while running command")
        stdout, stderr = (data.decode("utf-8", "backslashreplace") for data in (done.stdout, done.stderr))
        if command.check and done.exit_code != 0:
            message = (
                f"Command {command.command!r} failed with exit code {done.exit_code}. "
                f"Stdout:\n{stdout!r}\nStderr:\n{stderr!r}"
            )
            raise NonZeroExitCodeError(f"{command.error_msg}: {message}" if command.error_msg else message)
        return CommandResponse(stdout=stdout, stderr=stderr, exit_code=done.exit_code)

    async def read_file(self, request: ReadFileRequest) -> ReadFileResponse:
        """Raises FileNotFoundError, IsADirectoryError, UnicodeDecodeError."""
        data = await self._there(self._sandbox.read(request.path))
        encoding, errors = request.encoding or "utf-8", request.errors
        return ReadFileResponse(content=io.TextIOWrapper(io.BytesIO(data), encoding, errors).read())

    async def write_file(self, request: WriteFileRequest) -> WriteFileResponse:
        """Write a file with its parents; the mode of an existing one stays."""
        await self._there(self._write(request.path, request.content.encode("utf-8", "surrogateescape")))
        return WriteFileResponse()

    async def upload(self, request: UploadRequest) -> UploadResponse:
        await self._there(self._sandbox.upload(Path(request.source_path), request.target_path))
        return UploadResponse()

    async def close(self) -> CloseResponse:
        """Close the sessions."""
        sessions, self._sessions = list(self._sessions.values()), {}
        for session in sessions:
            await self._there(session.close())
        return CloseResponse()

    async def _write(self, path: str, data: bytes) -> None:
        place = posixpath.join(self._sandbox.spec.workdir, path)
        found = await self._sandbox.exec(["stat", "-L", "-c", "%a", "--", place])
        mode = int(found.text, 8) if found.exit_code == 0 else 0o644
        await self._sandbox.write(path, data, mode=mode)

    def _session(self, name: str) -> Session:
        if name not in self._sessions:
            raise SessionDoesNotExistError(f"session {name!r} does not exist")
        return self._sessions[name]

    async def _there(self, work: Coroutine[Any, Any, T]) -> T:
        """Await `work` where the sandbox lives. Raises SandboxFailed."""
        try:
            return await (work if self._thread is None else self._thread.run(work))
        except SandboxError as error:
            raise SandboxFailed(f"{type(error).__name__}: {error}") from error


def _argv(command: Command) -> list[str]:
    """Return the argument list that `subprocess.run` would start; `env` replaces the environment."""
    words = [command.command] if isinstance(command.command, str) else command.command
    argv = ["/bin/sh", "-c", *words] if command.shell else words
    if command.env is None:
        return argv
    assignments = [f"{name}={value}" for name, value in command.env.items()]
    return ["env", "-i", *assignments, "/bin/sh", "-c", f"exec {shlex.join(argv)}"]
