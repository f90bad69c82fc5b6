"""The black-box agent: a command-line program in the sandbox that asks the policy through the gateway.

    sandbox: program -> 127.0.0.1:PORT -> unix socket | host: gateway -> session -> Chat

The rule that must not break: what the policy had a say in is its own doing; a program that never asked it
could not work here, and that is nobody's fault but ours.
"""

from __future__ import annotations

import asyncio
import posixpath
import re
from collections import Counter
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from hone.agents.blackbox.layer import default_layers, prepare
from hone.agents.blackbox.program import LAYERS, Program, fill, load_program
from hone.agents.blackbox.turns import Recorder
from hone.agents.contract import AgentFailed, AgentRun
from hone.agents.scaffold import ScaffoldError
from hone.agents.settings import AgentSettings
from hone.outcomes import Outcome
from hone.policy.engine import ContextOverflow
from hone.policy.gateway import Gateway, Limit, Session, SessionLimits, open_gateway
from hone.policy.reply import Chat
from hone.sandbox import owners
from hone.sandbox.contract import TUNNEL_PATH, ExecResult, Mount, Sandbox, SandboxLost, SandboxSpec
from hone.sandbox.init.bundle import forward_port_command
from hone.types import Task

PORT = 41911  # of the sandbox's own loopback
HOME = "/tmp/.agent"  # noqa: S108 - inside; what the program keeps, out of the workdir and its patch
GRACE_S = 10.0  # for a program to end by itself after its session is over
STOP_S = 10.0  # for one to end that was killed
_JOIN_S = 30.0
_NO_LIMIT_S = 7 * 24 * 3600.0
_KEPT = 4096  # characters of an output's head and tail in the record
_ARGUMENT_MAX = 131_071  # bytes; MAX_ARG_STRLEN of Linux, without the null
_LIMITS = {
    Limit.CALLS: Outcome.TURN_LIMIT,
    Limit.SAMPLED_TOKENS: Outcome.TOKEN_LIMIT,
    Limit.SECONDS: Outcome.TIME_LIMIT,
}


class BlackboxAgent:
    """See `hone.agents.contract.Agent`. It works while it is open.

    Of `limits`, `calls` counts the replies to side calls too.
    """

    def __init__(self, program: Program, limits: SessionLimits, *, layers: Path) -> None:
        """`layers` keeps the tools of programs, built once."""
        self.program = program
        self._limits = limits
        self._layers = layers
        self._gateway: Gateway | None = None

    @classmethod
    def of(cls, settings: AgentSettings) -> BlackboxAgent:
        """Raises ScaffoldError."""
        limits = SessionLimits(
            calls=settings.turn_limit or 0,
            sampled_tokens=settings.token_limit,
            seconds=settings.time_limit_s or 0.0,
        )
        return cls(load_program(settings.program), limits, layers=default_layers())

    @asynccontextmanager
    async def open(self, spec: SandboxSpec) -> AsyncGenerator[SandboxSpec]:
        """Serve sandboxes; yields `spec` with what each of them needs. Raises ScaffoldError.

        The first time, the program's tools are installed, which needs the network.
        """
        self.program.require_room(spec.limits)
        layer = await asyncio.to_thread(prepare, self.program, self._layers)
        mounts = (*spec.mounts, Mount(source=layer, target=self.program.layer))
        with owners.private_directory() as folder:
            socket = folder / "gateway.sock"
            async with open_gateway(socket=socket) as self._gateway:
                yield replace(spec, mounts=mounts, tunnel=socket)
            self._gateway = None

    async def run(self, task: Task, sandbox: Sandbox, chat: Chat, run: AgentRun) -> None:
        """Raises AgentFailed, SandboxLost, EngineError, ContextOverflow, and what observers raise."""
        if self._gateway is None:
            raise RuntimeError("the black-box agent is not open")
        session = self._gateway.open(chat, limits=self._limits, on_exchange=Recorder(run).record)
        try:
            values = self._values(task, session, chat)
            command, env = self._command(values)
            await self._furnish(sandbox, task, values)
            result, stopped = await self._execute(sandbox, session, command, env)
        except SandboxLost as error:
            if session.exchanges:
                raise
            raise AgentFailed(f"the sandbox was lost while {self.program.name} started: {error}") from error
        finally:
            await self._gateway.close(session)
        run.notes["program"] = _report(self.program, session, result)
        self._end(session, run, result, stopped=stopped)

    def _values(self, task: Task, session: Session, chat: Chat) -> dict[str, Any]:
        """What the program's templates may name."""
        path = session.path if self.program.wire != "anthropic" else session.path.removesuffix("/v1")
        values: dict[str, Any] = {
            "problem": task.problem,
            "workdir": task.environment.workdir,
            "prompt": "",
            "prompt_file": f"{HOME}/prompt.txt",
            "base_url": f"http://127.0.0.1:{PORT}{path}",
            "key": session.key,
            "model": self.program.run.model,
            "home": HOME,
            "layer": self.program.layer,
            "turn_limit": self._limits.calls,
            "max_prompt_tokens": chat.max_prompt_tokens,
        }
        return values | {"prompt": fill(self.program.run.prompt, values).strip()}

    def _command(self, values: Mapping[str, Any]) -> tuple[list[str], dict[str, str]]:
        command = [fill(word, values) for word in self.program.run.command]
        env = {name: fill(text, values) for name, text in self.program.run.env.items()}
        for text in (*command, *env.values()):
            if "\0" in text or len(text.encode()) > _ARGUMENT_MAX:
                raise AgentFailed(
                    f"{self.program.name} cannot be given this task: an argument of its command has a null "
                    f"or more than {_ARGUMENT_MAX} bytes; let it read {{{{ prompt_file }}}} instead"
                )
        return command, env

    async def _furnish(self, sandbox: Sandbox, task: Task, values: Mapping[str, Any]) -> None:
        """Write the program's files, and make the port lead to the gateway."""
        files = {values["prompt_file"]: values["prompt"]}
        files |= {fill(file.path, values): fill(file.text, values) for file in self.program.files}
        workdir = posixpath.normpath(task.environment.workdir)
        for path, text in files.items():
            if posixpath.normpath(posixpath.join(workdir, path)).startswith(f"{workdir}/"):
                raise ScaffoldError(f"{self.program.name}: the file {path} would become part of every patch")
            try:
                await sandbox.write(path, text.encode(), mode=0o600)
            except OSError as error:
                raise AgentFailed(f"{path} cannot be written in this image: {error}") from error
        joined = await sandbox.exec(forward_port_command(PORT, TUNNEL_PATH), timeout_s=_JOIN_S)
        if joined.exit_code != 0:
            raise AgentFailed(
                f"port {PORT} of the sandbox cannot be joined to the gateway: {_last_line(joined)}"
            )

    async def _execute(
        self, sandbox: Sandbox, session: Session, command: list[str], env: dict[str, str]
    ) -> tuple[ExecResult | None, bool]:
        """Run the program to its end; whether it had to be stopped. None: even that did not end it."""
        patience = asyncio.timeout(None)
        watch = asyncio.create_task(self._watch(sandbox, session, patience))
        result = None
        try:
            async with patience:
                limit_s = self._limits.seconds or _NO_LIMIT_S
                result = await sandbox.exec(command, timeout_s=limit_s, env=env)
        except TimeoutError:
            if not patience.expired():
                raise
        finally:
            watch.cancel()
            await asyncio.wait([watch])
            if not watch.cancelled():
                watch.exception()  # marks it as seen: that the sandbox is lost, the command above tells, too
        return result, patience.when() is not None

    async def _watch(self, sandbox: Sandbox, session: Session, patience: asyncio.Timeout) -> None:
        """Stop a program that does not start, or does not see that its session is over."""
        try:
            async with asyncio.timeout(self.program.run.start_timeout_s):
                await session.over.wait()
        except TimeoutError:
            if session.asked:
                await session.over.wait()
        if session.ended is not None:
            await asyncio.sleep(GRACE_S)
        patience.reschedule(asyncio.get_running_loop().time() + STOP_S)
        await sandbox.exec(["bash", "-c", "kill -9 -1"], timeout_s=STOP_S)  # all inside, but process 1

    def _end(self, session: Session, run: AgentRun, result: ExecResult | None, *, stopped: bool) -> None:
        """Tell how the run ended: a limit, a submission, a failure of the policy's; raise another's."""
        error = session.error
        if error is not None and not isinstance(error, ContextOverflow):
            raise error
        if session.ended is not None:
            run.ending = _LIMITS[session.ended]
            return
        if result is not None and result.timed_out:
            run.ending = Outcome.TIME_LIMIT
            return
        if error is not None and (result is None or result.exit_code != 0 or not session.exchanges):
            raise error
        if not session.exchanges:
            raise AgentFailed(self._why_not(result, stopped=stopped))
        assert result is not None, "a program is stopped when its session is over, or had no call"
        run.ending = self.program.ending(result.exit_code, *_printed(result))
        run.submitted = run.ending is None

    def _why_not(self, result: ExecResult | None, *, stopped: bool) -> str:
        """One sentence about a program that ended before the policy had its say."""
        name = self.program.name
        said = _last_line(result) if result is not None else ""
        if result is None or stopped:
            return f"{name} did not ask the model within {self.program.run.start_timeout_s:g} s: {said}"
        missing = re.search(r"version `(GLIBC\S*?)' not found", "".join(_printed(result)))
        if missing:
            return (
                f"{name} needs {missing[1]}, which this image's C library has not: name a runtime that "
                "brings its own, or use a newer image"
            )
        if result.exit_code in (126, 127):
            return f"{name} cannot be started in this image: {said}; its tools are in {LAYERS}"
        return f"{name} ended with exit code {result.exit_code} before it had a reply of the model: {said}"


def _printed(result: ExecResult) -> tuple[str, str]:
    return result.text, result.stderr.decode("utf-8", "replace")


def _last_line(result: ExecResult) -> str:
    lines = "\n".join(_printed(result)).strip().splitlines()
    return lines[-1][-300:] if lines else "it printed nothing"


def _report(program: Program, session: Session, result: ExecResult | None) -> dict[str, Any]:
    """What the trajectory tells of the program beside its turns."""
    report: dict[str, Any] = {
        "name": program.name,
        "exchanges": dict(Counter(str(exchange.purpose) for exchange in session.exchanges)),
        "retries": session.retries,
    }
    if result is None:
        return report | {"exit_code": None}
    return report | {
        "exit_code": result.exit_code,
        "stdout": _shown(result.stdout, result.stdout_bytes),
        "stderr": _shown(result.stderr, result.stderr_bytes),
    }


def _shown(kept: bytes, total: int) -> dict[str, Any]:
    text = kept.decode("utf-8", "replace")
    return {"head": text[:_KEPT], "tail": text[_KEPT:][-_KEPT:], "bytes": total}
