"""The client's side of the Agent Client Protocol: JSON-RPC 2.0, one message a line, protocol version 1.

    initialize -> session/new -> session/prompt -> its stop reason
                                 <- session/update, session/request_permission

The agent's side is not trusted: whatever the model runs in the sandbox can write to the agent's output. Every
line, message and note has a bound, and nothing that the agent says selects an outcome: a stop reason only
ends the conversation.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec

from hone.sandbox.contract import Stream
from hone.utils.concurrency import cancel_all

VERSION = 1  # of the protocol
LINE_MAX = 8 << 20  # bytes of one message
OUTPUT_MAX = 256 << 20  # bytes of all messages
MESSAGES_MAX = 100_000
UNANSWERED_MAX = 64  # of the agent that wait
MALFORMED_MAX = 100  # lines that are no message: agents log to their output
GRACE_S = 10.0  # for the agent to end its turn after session/cancel
_TOOL_CALLS_MAX = 100  # noted
_TEXT_MAX = 200  # characters of a noted text
_UNKNOWN_METHOD = -32601
_BAD_PARAMS = -32602
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)

Send = Callable[[bytes], Awaitable[None]]
_Id = int | str
_Result = TypeVar("_Result")


class AcpError(Exception):
    """The conversation cannot go on: the agent broke the protocol, or refused a request."""


class _Error(msgspec.Struct):
    message: str


class _Message(msgspec.Struct):
    """A request (id and method), a notification (method), or a response (id)."""

    id: _Id | None = None
    method: str | None = None
    params: msgspec.Raw = msgspec.Raw(b"{}")
    result: msgspec.Raw = msgspec.Raw()
    error: _Error | None = None


class _Initialized(msgspec.Struct):
    version: int = msgspec.field(name="protocolVersion")


class _NewSession(msgspec.Struct):
    id: str = msgspec.field(name="sessionId")


class _PromptDone(msgspec.Struct):
    reason: str = msgspec.field(name="stopReason")


class _Option(msgspec.Struct):
    id: str = msgspec.field(name="optionId")
    kind: str


class _Permission(msgspec.Struct):
    options: list[_Option]


class _Update(msgspec.Struct):
    kind: str = msgspec.field(name="sessionUpdate")
    call_id: str | None = msgspec.field(name="toolCallId", default=None)
    title: str | None = None
    status: str | None = None


class _UpdateParams(msgspec.Struct):
    update: _Update


class Conversation:
    """One conversation with an agent: `feed` takes its output, `send` is given each line for its input.

    The client offers neither files nor terminals: the agent has those of its sandbox.
    """

    def __init__(self, send: Send) -> None:
        self.stop_reason: str | None = None  # of the prompt; None: it was not answered
        self.broken: AcpError | None = None  # why the conversation cannot go on
        self.timed_out = False
        self._send = send
        self._sending = asyncio.Lock()
        self._received: asyncio.Queue[_Message] = asyncio.Queue()
        self._partial: list[bytes] = []  # the line so far
        self._partial_bytes = self._bytes = self._messages = self._malformed = 0
        self._session_id = ""
        self._cancelled = False
        self._next_id = 0
        self._updates: Counter[str] = Counter()
        self._tool_calls: dict[str, dict[str, str]] = {}

    @property
    def notes(self) -> dict[str, Any]:
        """Return what the agent reported, for the record of the rollout."""
        return {
            "stop_reason": self.stop_reason,
            "updates": dict(self._updates),
            "tool_calls": list(self._tool_calls.values()),
            "malformed": self._malformed,
            "error": None if self.broken is None else str(self.broken),
        }

    async def run(self, *, workdir: str, prompt: str, seconds: float) -> None:
        """Let the agent work on `prompt`; cancel it after `seconds` (0: never). Raises AcpError."""
        work = asyncio.ensure_future(self._work(workdir, prompt))
        try:
            done, _ = await asyncio.wait([work], timeout=seconds or None)
            if not done:
                self.timed_out = True
                await self.cancel()
                done, _ = await asyncio.wait([work], timeout=GRACE_S)
            if done:
                work.result()
        except AcpError as error:
            self.broken = self.broken or error
            raise
        finally:
            await cancel_all([work])

    async def cancel(self) -> None:
        """Ask the agent to end its turn."""
        self._cancelled = True
        if self._session_id:
            await self._write({"method": "session/cancel", "params": {"sessionId": self._session_id}})

    def feed(self, stream: Stream, data: bytes) -> None:
        """Take a piece of the agent's output; `Sandbox.exec` calls it."""
        if stream != "stdout" or self.broken is not None:
            return
        self._bytes += len(data)
        if self._bytes > OUTPUT_MAX:
            self._break(f"it wrote more than {OUTPUT_MAX >> 20} MiB of messages")
            return
        *lines, rest = data.split(b"\n")
        for line in lines:
            self._add(line)
            whole, self._partial, self._partial_bytes = b"".join(self._partial), [], 0
            self._take(whole)
        self._add(rest)

    # --- receiving

    def _add(self, piece: bytes) -> None:
        self._partial_bytes += len(piece)
        if self._partial_bytes > LINE_MAX:
            self._break(f"a message has more than {LINE_MAX >> 20} MiB")
        elif piece:
            self._partial.append(piece)

    def _take(self, line: bytes) -> None:
        """Note a notification; queue a request or a response."""
        if self.broken is not None or not line.strip():
            return
        self._messages += 1
        if self._messages > MESSAGES_MAX:
            self._break(f"it wrote more than {MESSAGES_MAX:,} messages")
        try:
            message = msgspec.json.decode(line, type=_Message)
            if message.id is None and message.method == "session/update":
                self._note(msgspec.json.decode(message.params, type=_UpdateParams).update)
        except _UNREADABLE:
            self._reject()
            return
        if message.id is not None:
            self._received.put_nowait(message)
        elif message.method is None:
            self._reject()
        if self._received.qsize() > UNANSWERED_MAX:
            self._break(f"more than {UNANSWERED_MAX} of its messages wait for an answer")

    def _note(self, update: _Update) -> None:
        kind = update.kind[:_TEXT_MAX]
        self._updates[kind if kind in self._updates or len(self._updates) < _TOOL_CALLS_MAX else "other"] += 1
        if update.call_id is None or (
            update.call_id not in self._tool_calls and len(self._tool_calls) >= _TOOL_CALLS_MAX
        ):
            return
        call = self._tool_calls.setdefault(update.call_id, {})
        call |= {"title": update.title[:_TEXT_MAX]} if update.title else {}
        call |= {"status": update.status[:_TEXT_MAX]} if update.status else {}

    def _reject(self) -> None:
        self._malformed += 1
        if self._malformed > MALFORMED_MAX:
            self._break(f"more than {MALFORMED_MAX} lines of its output are no messages of the protocol")

    def _break(self, sentence: str) -> None:
        if self.broken is None:
            self.broken = AcpError(sentence)
            self._partial = []
            self._received.put_nowait(_Message())  # wakes the reader up

    # --- sending

    async def _work(self, workdir: str, prompt: str) -> None:
        begun = await self._request(
            "initialize",
            {
                "protocolVersion": VERSION,
                "clientCapabilities": {
                    "fs": {"readTextFile": False, "writeTextFile": False},
                    "terminal": False,
                },
                "clientInfo": {"name": "hone", "version": "1"},
            },
            _Initialized,
        )
        if begun.version != VERSION:
            raise AcpError(f"it speaks version {begun.version} of the protocol, not {VERSION}")
        session = await self._request("session/new", {"cwd": workdir, "mcpServers": []}, _NewSession)
        self._session_id = session.id
        text = {"type": "text", "text": prompt}
        done = await self._request("session/prompt", {"sessionId": session.id, "prompt": [text]}, _PromptDone)
        self.stop_reason = done.reason[:_TEXT_MAX]

    async def _request(self, method: str, params: dict[str, Any], result: type[_Result]) -> _Result:
        """Return the agent's answer; answer its own requests meanwhile. Raises AcpError."""
        number, self._next_id = self._next_id, self._next_id + 1
        await self._write({"id": number, "method": method, "params": params})
        while True:
            message = await self._received.get()
            if self.broken is not None:
                raise self.broken
            if message.method is not None:
                await self._write({"id": message.id, **self._answer(message)})
            elif message.id != number:
                self._reject()
            elif message.error is not None:
                raise AcpError(f"it refused {method}: {message.error.message[:_TEXT_MAX]}")
            else:
                return self._read_result(message, method, result)

    def _read_result(self, message: _Message, method: str, result: type[_Result]) -> _Result:
        try:
            return msgspec.json.decode(message.result, type=result)
        except _UNREADABLE as error:
            raise AcpError(f"its answer to {method} cannot be read: {str(error)[:_TEXT_MAX]}") from None

    def _answer(self, request: _Message) -> dict[str, Any]:
        """Allow what the sandbox allows anyway; refuse all other requests."""
        if request.method != "session/request_permission":
            message = "this client offers neither files nor terminals: use those of the sandbox"
            return {"error": {"code": _UNKNOWN_METHOD, "message": message}}
        try:
            options = msgspec.json.decode(request.params, type=_Permission).options
        except _UNREADABLE:
            self._reject()
            return {"error": {"code": _BAD_PARAMS, "message": "the options cannot be read"}}
        allowed = next((option.id for option in options if option.kind.startswith("allow")), None)
        if self._cancelled or allowed is None:
            return {"result": {"outcome": {"outcome": "cancelled"}}}
        return {"result": {"outcome": {"outcome": "selected", "optionId": allowed}}}

    async def _write(self, message: dict[str, Any]) -> None:
        line = msgspec.json.encode({"jsonrpc": "2.0", **message}) + b"\n"
        async with self._sending:
            await self._send(line)
