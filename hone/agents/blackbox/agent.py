"""The black-box agent: a command-line program in the sandbox that asks the policy through the gateway.

    sandbox: program -> 127.0.0.1:PORT -> unix socket | host: gateway -> session -> Chat
             program <- pipe, -> standard output      | host: acp.Conversation (protocol `acp` only)

Invariant: a failure after the first reply counts against the policy; a program that never received a reply
could not work here, which is an infrastructure fault.
"""

from __future__ import annotations

import asyncio
import json
import posixpath
import re
from collections import Counter
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from hone.agents.blackbox.acp import GRACE_S, AcpError, Conversation
from hone.agents.blackbox.layer import default_layers, prepare
from hone.agents.blackbox.program import LAYERS, Program, fill, load_program
from hone.agents.contract import AgentFailed, AgentRun
from hone.agents.scaffold import ScaffoldError
from hone.agents.settings import BlackboxAgentSettings
from hone.outcomes import Outcome
from hone.policy.engine import ContextOverflow
from hone.policy.gateway import Gateway, Limit, Session, SessionLimits, open_gateway
from hone.policy.gateway.record import Exchange
from hone.policy.messages import key_of
from hone.policy.reply import Chat, ToolCall
from hone.sandbox.contract import (
    ARGUMENT_MAX,
    TUNNEL_PATH,
    ExecResult,
    Mount,
    Sandbox,
    SandboxLost,
    SandboxSpec,
)
from hone.sandbox.init.bundle import forward_port_command
from hone.sandbox.owners import private_directory
from hone.types import Message, Task, Turn
from hone.utils import clock
from hone.utils.concurrency import cancel_all

PORT = 41911  # of the sandbox's own loopback
HOME = "/tmp/.agent"  # noqa: S108 - in the sandbox; outside the workdir, so that no patch holds its files
_INPUT = f"{HOME}/input"  # the named pipe of an agent with the protocol acp
KILL_TIMEOUT_S = 10.0
_JOIN_TIMEOUT_S = 30.0
_SEND_TIMEOUT_S = 60.0
_NO_LIMIT_S = 7 * 24 * 3600.0
_KEPT = 4096  # characters of the head and of the tail of an output, for the record
_LIMITS = {
    Limit.CALLS: Outcome.TURN_LIMIT,
    Limit.SAMPLED_TOKENS: Outcome.TOKEN_LIMIT,
    Limit.SECONDS: Outcome.TIME_LIMIT,
}


class BlackboxAgent:
    """Works only while it is open; see `hone.agents.contract.Agent`."""

    def __init__(self, program: Program, limits: SessionLimits, *, layers: Path) -> None:
        """`limits.calls` counts auxiliary calls too; `layers` is the directory of built layers."""
        self.program = program
        self._limits = limits
        self._layers = layers
        self.gateway: Gateway | None = None  # while open

    @classmethod
    def of(cls, settings: BlackboxAgentSettings) -> BlackboxAgent:
        """Return the agent that `settings` describe. Raises ScaffoldError."""
        limits = SessionLimits(
            calls=settings.turn_limit or 0,
            sampled_tokens=settings.token_limit,
            seconds=settings.time_limit_s or 0.0,
        )
        return cls(load_program(settings.program), limits, layers=default_layers())

    @asynccontextmanager
    async def open(self, spec: SandboxSpec) -> AsyncGenerator[SandboxSpec]:
        """Serve sandboxes; yields `spec` with the tunnel and the mount that they need.

        Installs the program's tools on first use, which needs the network. Raises ScaffoldError.
        """
        self.program.require_room(spec.limits)
        layer = await asyncio.to_thread(prepare, self.program, self._layers)
        mounts = (*spec.mounts, Mount(source=layer, target=self.program.layer))
        with private_directory() as directory:
            socket = directory / "gateway.sock"
            async with open_gateway(socket=socket) as self.gateway:
                yield replace(spec, mounts=mounts, tunnel=socket)
            self.gateway = None

    async def run(self, task: Task, sandbox: Sandbox, chat: Chat, run: AgentRun) -> None:
        """Raises AgentFailed, SandboxLost, EngineError, ContextOverflow, and what observers raise."""
        if self.gateway is None:
            raise RuntimeError("the black-box agent is not open")
        session = self.gateway.open(chat, limits=self._limits, on_exchange=Recorder(run).record)
        try:
            values = self._values(task, session, chat)
            command, env = self._command(values)
            await self._prepare(sandbox, task, values)
            talk = await self._open_conversation(sandbox)
            result, killed = await self._execute(sandbox, session, command, env, values, talk)
        except SandboxLost as error:
            if session.exchanges:
                raise
            raise AgentFailed(f"the sandbox was lost while {self.program.name} started: {error}") from error
        finally:
            await self.gateway.close(session)
        run.notes["program"] = _report(self.program, session, result, talk)
        self._set_ending(session, run, result, talk, killed=killed)

    def _values(self, task: Task, session: Session, chat: Chat) -> dict[str, Any]:
        """Return the values of the placeholders in the program's templates."""
        adds_version = self.program.wire in ("anthropic", "google")  # the client, to its base URL
        path = session.path.removesuffix("/v1") if adds_version else session.path
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
            if "\0" in text or len(text.encode()) > ARGUMENT_MAX:
                raise AgentFailed(
                    f"{self.program.name} cannot be given this task: an argument of its command has a null "
                    f"or more than {ARGUMENT_MAX} bytes; let it read {{{{ prompt_file }}}} instead"
                )
        return command, env

    async def _prepare(self, sandbox: Sandbox, task: Task, values: Mapping[str, Any]) -> None:
        """Write the program's files, and forward the port to the gateway."""
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
        joined = await sandbox.exec(forward_port_command(PORT, TUNNEL_PATH), timeout_s=_JOIN_TIMEOUT_S)
        if joined.exit_code != 0:
            raise AgentFailed(
                f"port {PORT} of the sandbox cannot be forwarded to the gateway: {_last_line(joined)}"
            )

    async def _open_conversation(self, sandbox: Sandbox) -> Conversation | None:
        """Return the conversation with an agent that starts next; None for the protocol `command`."""
        if self.program.run.protocol != "acp":
            return None
        made = await sandbox.exec(["mkfifo", "-m", "600", _INPUT], timeout_s=_JOIN_TIMEOUT_S)
        if made.exit_code != 0:
            raise AgentFailed(f"{_INPUT} cannot be made in this image: {_last_line(made)}")

        async def send(line: bytes) -> None:
            write = ["bash", "-c", 'cat >"$0"', _INPUT]
            sent = await sandbox.exec(write, stdin=line, timeout_s=_SEND_TIMEOUT_S)
            if sent.exit_code != 0:
                raise AcpError(f"it does not read its input: {sent.ending}")

        return Conversation(send)

    async def _execute(
        self,
        sandbox: Sandbox,
        session: Session,
        command: list[str],
        env: dict[str, str],
        values: Mapping[str, Any],
        talk: Conversation | None,
    ) -> tuple[ExecResult | None, bool]:
        """Run the program; return its result (None: even a kill did not end it) and whether it was killed."""
        deadline = asyncio.timeout(None)
        helpers = [asyncio.create_task(self._watch(sandbox, session, deadline, talk))]
        limit_s = self._limits.seconds or _NO_LIMIT_S
        on_output = None
        if talk is not None:
            command = ["bash", "-c", 'exec "$@" <>"$0"', _INPUT, *command]  # its input never ends
            limit_s = min(limit_s + 2 * GRACE_S + _SEND_TIMEOUT_S, _NO_LIMIT_S)  # cancelled before
            on_output = talk.feed
            helpers.append(asyncio.create_task(self._converse(sandbox, talk, values, deadline)))
        result = None
        try:
            async with deadline:
                result = await sandbox.exec(command, timeout_s=limit_s, env=env, on_output=on_output)
        except TimeoutError:
            if not deadline.expired():
                raise
        finally:
            await cancel_all(helpers)  # drops their errors: the command above raises for a lost sandbox
        return result, deadline.when() is not None

    async def _converse(
        self, sandbox: Sandbox, talk: Conversation, values: Mapping[str, Any], deadline: asyncio.Timeout
    ) -> None:
        """Give the agent its prompt; end it when it has answered, broke the protocol, or ran out of time."""
        with suppress(AcpError):  # `talk.broken`
            await talk.run(workdir=values["workdir"], prompt=values["prompt"], seconds=self._limits.seconds)
        await _kill(sandbox, deadline)

    async def _watch(
        self, sandbox: Sandbox, session: Session, deadline: asyncio.Timeout, talk: Conversation | None
    ) -> None:
        """Kill a program that never asks, or that keeps running after its session has ended."""
        try:
            async with asyncio.timeout(self.program.run.start_timeout_s):
                await session.over.wait()
        except TimeoutError:
            if session.calls_started:
                await session.over.wait()
        if session.ended is not None:
            if talk is not None:
                with suppress(AcpError):
                    await talk.cancel()
            await asyncio.sleep(GRACE_S)
        await _kill(sandbox, deadline)

    def _set_ending(
        self,
        session: Session,
        run: AgentRun,
        result: ExecResult | None,
        talk: Conversation | None,
        *,
        killed: bool,
    ) -> None:
        """Set the limit, the submission or the policy's failure that ended the run; raise any other error."""
        error = session.error
        if error is not None and not isinstance(error, ContextOverflow):
            raise error
        if session.ended is not None:
            run.ending = _LIMITS[session.ended]
            return
        if (result is not None and result.timed_out) or (talk is not None and talk.timed_out):
            run.ending = Outcome.TIME_LIMIT
            return
        if talk is None:
            ended_well = result is not None and result.exit_code == 0
        else:
            ended_well = talk.stop_reason is not None
        if error is not None and not (ended_well and session.exchanges):
            raise error
        if not session.exchanges:
            raise AgentFailed(self._start_error(result, talk, killed=killed))
        if talk is not None:
            run.ending = None if ended_well else Outcome.BROKE_SANDBOX
        else:
            assert result is not None, "a program is killed when its session is over, or had no call"
            run.ending = self.program.ending(result.exit_code, *_outputs(result))
        run.submitted = run.ending is None

    def _start_error(self, result: ExecResult | None, talk: Conversation | None, *, killed: bool) -> str:
        """Return a sentence on a program that ended before its first reply."""
        name = self.program.name
        if talk is not None and talk.broken is not None:
            return f"{name} cannot be used by the Agent Client Protocol: {talk.broken}"
        if talk is not None and talk.stop_reason is not None:
            return f"{name} ended its turn ({talk.stop_reason}) before its first reply of the model"
        last = _last_line(result) if result is not None else ""
        if result is None or killed:
            return f"{name} did not ask the model within {self.program.run.start_timeout_s:g} s: {last}"
        missing = re.search(r"version `(GLIBC\S*?)' not found", "".join(_outputs(result)))
        if missing:
            return (
                f"{name} needs {missing[1]}, but this image's C library is older: name a [runtime] that "
                "brings its own, or use a newer image"
            )
        if result.exit_code in (126, 127):
            return f"{name} cannot be started in this image: {last}; its tools are in {LAYERS}"
        return f"{name} ended with exit code {result.exit_code} before its first reply of the model: {last}"


async def _kill(sandbox: Sandbox, deadline: asyncio.Timeout) -> None:
    """Kill the program, and give up its command soon after."""
    deadline.reschedule(asyncio.get_running_loop().time() + KILL_TIMEOUT_S)
    await sandbox.exec(["bash", "-c", "kill -9 -1"], timeout_s=KILL_TIMEOUT_S)  # all but process 1


def _outputs(result: ExecResult) -> tuple[str, str]:
    return result.text, result.stderr.decode("utf-8", "replace")


def _last_line(result: ExecResult) -> str:
    lines = "\n".join(_outputs(result)).strip().splitlines()
    return lines[-1][-300:] if lines else "it printed nothing"


def _report(
    program: Program, session: Session, result: ExecResult | None, talk: Conversation | None
) -> dict[str, Any]:
    """Return the record of the program for the trajectory."""
    report: dict[str, Any] = {
        "name": program.name,
        "exchanges": dict(Counter(str(exchange.purpose) for exchange in session.exchanges)),
        "retries": session.retries,
    }
    if talk is not None:
        report["acp"] = talk.notes
    if result is None:
        return report | {"exit_code": None}
    return report | {
        "exit_code": result.exit_code,
        "stdout": _excerpt(result.stdout, result.stdout_bytes),
        "stderr": _excerpt(result.stderr, result.stderr_bytes),
    }


def _excerpt(kept: bytes, total: int) -> dict[str, Any]:
    text = kept.decode("utf-8", "replace")
    return {"head": text[:_KEPT], "tail": text[_KEPT:][-_KEPT:], "bytes": total}


class Recorder:
    """Records each exchange of the main conversation as a turn, with its messages.

    A conversation that the client rewrote (compacted) is recorded again from its new beginning.
    """

    def __init__(self, run: AgentRun) -> None:
        self._run = run
        self._conversation: list[Message] = []  # the last request and its reply

    async def record(self, exchange: Exchange) -> None:
        """Await this while the sandbox is as the exchange left it. Raises what observers raise."""
        request = exchange.messages
        continues = request[: len(self._conversation)] == self._conversation
        reply = exchange.node.message
        self._run.messages.extend([*request[len(self._conversation) if continues else 0 :], reply])
        self._conversation = [*request, reply]
        turn = Turn(
            index=len(self._run.turns),
            node=exchange.reply.node,
            reply=exchange.reply.content,
            action=action_text(exchange.reply.tool_calls),
            exit_code=None,
            observation=observation(exchange),
            seconds=clock.monotonic() - exchange.started,
        )
        await self._run.record(turn)


def action_text(calls: Iterable[ToolCall]) -> str | None:
    """Return tool calls for display: `name: command` for one that runs a command, else `name {arguments}`."""
    lines = [_call_text(call["function"]["name"], call["function"]["arguments"]) for call in calls]
    return "\n".join(lines) or None


def _call_text(name: str, arguments: str) -> str:
    try:
        values = json.loads(arguments)
    except (ValueError, RecursionError):
        values = None
    if isinstance(values, dict) and isinstance(values.get("command"), str):
        return f"{name}: {values['command']}"
    return f"{name} {arguments}"


def observation(exchange: Exchange) -> str:
    """Return the answers to this reply in the next request; "" if it is missing or leaves out the reply."""
    answers: list[str] = []
    for message in reversed(exchange.followed_by):
        if message["role"] == "assistant":
            same = key_of(message) == key_of(exchange.node.message)
            return "\n".join(reversed(answers)) if same else ""
        answers.append(str(message.get("content") or ""))
    return ""
