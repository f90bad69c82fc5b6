"""Bash on a pseudo-terminal of a sandbox, and what it prints; works with every provider.

    write: exec("cat > FIFO") --> FIFO --> relay --> terminal --> bash
    read:  on_output          <--          relay <--

The relay is one command of the sandbox that runs as long as the terminal.
"""

from __future__ import annotations

import asyncio
import codecs
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from hone.sandbox.contract import TIMEOUT_MAX_S, ExecResult, Sandbox, SandboxLost, Stream
from hone.utils.concurrency import cancel_all

START_TIMEOUT_S = 60.0
WRITE_TIMEOUT_S = 20.0  # the relay reads at once, unless the program's terminal is full
KEPT = 1 << 20  # characters of unread output, half of them from the end
OMITTED = "\n[... output omitted ...]\n"
SEARCHED_AGAIN = 4096  # characters before new output in which a match may begin
DIRECTORY = "/tmp"  # noqa: S108 - in a sandbox of its own
READY = "terminal ready\n"

# Arguments: the FIFO. Input waits in it while the program does not read.
RELAY = f"""
import fcntl, os, pty, select, struct, sys, termios
os.makedirs(os.path.dirname(sys.argv[1]), 0o700, exist_ok=True)
os.mkfifo(sys.argv[1], 0o600)
fifo = os.open(sys.argv[1], os.O_RDWR)
os.write(1, {READY.encode()!r})
pid, terminal = pty.fork()
if pid == 0:
    os.execvp("bash", ["bash", "--noediting"])
mode = termios.tcgetattr(terminal)
mode[3] &= ~termios.ECHO
termios.tcsetattr(terminal, termios.TCSANOW, mode)
fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("4H", 24, 80, 0, 0))
os.set_blocking(terminal, False)
pending = b""
while True:
    readable, writable, _ = select.select([terminal] if pending else [terminal, fifo], [terminal] if pending else [], [])
    try:
        if terminal in readable:
            data = os.read(terminal, 65536)
            if not data:
                break
            os.write(1, data)
    except BlockingIOError:
        pass
    except OSError:
        break
    if fifo in readable:
        pending = os.read(fifo, 4096)
    if pending and (terminal in writable or fifo in readable):
        try:
            pending = pending[os.write(terminal, pending):]
        except BlockingIOError:
            pass
        except OSError:
            break
"""


class TerminalClosed(Exception):
    """Bash has ended, or its relay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """The first match in the unread output."""

    index: int  # of the pattern; of several that match at one place, the first
    before: str
    found: re.Match[str]


class UnreadOutput:
    """Decoded output that no match has taken yet; beyond 2 * KEPT characters it loses its middle."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
        self._text = ""
        self._searched = 0

    def feed(self, data: bytes) -> None:
        self._text += self._decoder.decode(data)
        if len(self._text) > 2 * KEPT:
            self._text = self._text[: KEPT // 2] + OMITTED + self._text[-KEPT // 2 :]
            self._searched = KEPT // 2

    def take(self, patterns: Sequence[re.Pattern[str]]) -> Match | None:
        """Remove the output up to the end of the first match; None: there is no match yet."""
        start = max(0, self._searched - SEARCHED_AGAIN)
        found = [
            (match.start(), index, match)
            for index, pattern in enumerate(patterns)
            if (match := pattern.search(self._text, start)) is not None
        ]
        if not found:
            self._searched = len(self._text)
            return None
        at, index, match = min(found, key=lambda each: each[:2])
        before, self._text = self._text[:at], self._text[match.end() :]
        self._searched = 0
        return Match(index=index, before=before, found=match)


class Terminal:
    """One terminal. Its methods are called one at a time, in the event loop of the sandbox."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.directory = f"{DIRECTORY}/.session-{secrets.token_hex(8)}"
        self._sandbox = sandbox
        self._fifo = f"{self.directory}/input"
        self._unread = UnreadOutput()
        self._changed = asyncio.Event()
        self._relay: asyncio.Task[ExecResult] | None = None

    async def start(self) -> None:
        """Start bash in the sandbox's workdir. Raises TerminalClosed, SandboxLost, TimeoutError."""
        command = ["python3", "-I", "-c", RELAY, self._fifo]
        self._relay = asyncio.create_task(
            self._sandbox.exec(command, timeout_s=TIMEOUT_MAX_S, merge_stderr=True, on_output=self._feed)
        )
        self._relay.add_done_callback(self._end)
        await self.expect([re.compile(re.escape(READY))], timeout_s=START_TIMEOUT_S)

    async def write(self, text: str) -> None:
        """Type `text`. Raises TerminalClosed, SandboxLost."""
        self._raise_if_ended()
        command = ["bash", "-c", '[ -p "$1" ] && exec cat > "$1"', "bash", self._fifo]
        data = text.encode("utf-8", "surrogateescape")
        done = await self._sandbox.exec(command, stdin=data, timeout_s=WRITE_TIMEOUT_S)
        if done.exit_code != 0:
            raise TerminalClosed(f"the terminal takes no input: {done.ending}")

    async def expect(self, patterns: Sequence[re.Pattern[str]], *, timeout_s: float | None) -> Match:
        """Wait until a pattern matches the unread output, and take the output up to the match's end.

        Raises TimeoutError, TerminalClosed, SandboxLost; the output stays unread.
        """
        async with asyncio.timeout(timeout_s):
            while (match := self._unread.take(patterns)) is None:
                self._raise_if_ended()
                self._changed.clear()
                await self._changed.wait()
        return match

    async def close(self) -> None:
        """Kill bash and its programs."""
        if self._relay is not None:
            await cancel_all([self._relay])

    def _feed(self, stream: Stream, data: bytes) -> None:
        self._unread.feed(data)
        self._changed.set()

    def _end(self, relay: asyncio.Task[ExecResult]) -> None:
        if not relay.cancelled():
            relay.exception()  # mark it as retrieved: the next call raises it
        self._changed.set()

    def _raise_if_ended(self) -> None:
        assert self._relay is not None, "the terminal was started"
        if self._relay.done():
            if self._relay.cancelled():
                raise TerminalClosed("the terminal was closed")
            if isinstance(self._relay.exception(), SandboxLost):
                raise SandboxLost(str(self._relay.exception()))
            raise TerminalClosed(f"bash has ended: {self._relay.result().ending}")
