"""One debugging session: a program under its debugger, restarted when it ends."""

import contextlib
import os
import select
import socket
import subprocess
import sys
import time
from typing import Any

import hone_processes  # pyright: ignore[reportMissingImports]  # hone.utils.processes
from hone_debug_files import Refused, resolve
from hone_debug_wire import CHANNEL, INTERRUPT, Broken, Messages, Output, pack  # beside this file

DEBUGGEE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "hone_debuggee.py")
PIECE = 1 << 16
SETTLE_S = 10.0  # for a program to stop after an interrupt, or to exit after it closed its channel


class Session:
    """`program` is {"runner": "python" | "pytest", "file": path, optionally with ::test}."""

    def __init__(self, workdir: str, program: "dict[str, str]", env: "dict[str, str]") -> None:
        self.workdir, self.program, self.env = workdir, program, env
        self.child: Child | None = None
        self.state: dict[str, Any] = {}  # of the last stop: frame, context, breakpoints

    @property
    def running(self) -> bool:
        return self.child is not None

    def start(self, breakpoints: "list[dict[str, Any]]", timeout_s: float) -> "dict[str, Any]":
        """Start or restart the program. Returns its first stop or why there was none. Raises Refused."""
        self.stop()
        file = self.program["file"].partition("::")[0]
        if not os.path.exists(resolve(self.workdir, file)):
            raise Refused(f"`{file}` does not exist.")
        self.state = {"breakpoints": breakpoints}
        self.child = Child([sys.executable, DEBUGGEE], self.workdir, self.env)
        self.child.send({**self.program, "workdir": self.workdir, "breakpoints": breakpoints})
        reply = self.await_stop(timeout_s)
        if reply["ending"] is not None:
            self.stop()
        return reply

    def command(self, line: str, timeout_s: float, restart_timeout_s: float) -> "dict[str, Any]":
        """Run a command; restart a program that ended."""
        assert self.child is not None
        with contextlib.suppress(OSError):  # the channel is closed: `await_stop` finds out how
            self.child.send({"line": line})
        reply = self.await_stop(timeout_s)
        if reply["ending"] is not None:
            breakpoints = [each for each in self.state["breakpoints"] if not each["temporary"]]
            self.stop()
            try:
                reply["again"] = self.start(breakpoints, restart_timeout_s)
            except Refused as refusal:
                reply["again"] = {"error": str(refusal)}
        return reply

    def await_stop(self, timeout_s: float) -> "dict[str, Any]":
        """Wait until the program stops or ends; after `timeout_s`, interrupt it, and then kill it."""
        child = self.child
        assert child is not None
        timed_out = False
        try:
            message = child.receive(time.monotonic() + timeout_s)
        except TimeoutError:
            timed_out = True
            child.interrupt()
            try:
                message = child.receive(time.monotonic() + SETTLE_S)
            except TimeoutError:
                return self.reply({}, "killed", timed_out=True)
        if message is None:
            code = child.wait(SETTLE_S)
            return self.reply({}, "closed" if code is None else "exited", timed_out=timed_out, code=code)
        if message.get("event") == "stopped":
            self.state = {key: message.get(key) for key in ("frame", "context", "breakpoints")}
            return self.reply(message, None, timed_out=timed_out)
        if message.get("event") == "ended":
            child.wait(SETTLE_S)
            self.state["breakpoints"] = message.get("breakpoints", [])
            return self.reply(message, "ended", timed_out=timed_out, code=message.get("code"))
        return self.reply(message, "failed", timed_out=timed_out)

    def reply(
        self, message: "dict[str, Any]", ending: "str | None", *, timed_out: bool, code: Any = None
    ) -> "dict[str, Any]":
        """Return the answer to the client.

        ending: None for a stop; "ended" (the program ran to its end), "exited" (it exited without its
        debugger), "closed" (it runs on, but closed the debugger's channel), "killed" (it could not be
        interrupted), "failed" (it could not be run).
        """
        assert self.child is not None
        self.child.drain()
        return {
            "printed": self.child.written.take(),
            "debugger": str(message.get("output", "")),
            "ending": ending,
            "code": code,
            "timed_out": timed_out,
            **{key: self.state.get(key) for key in ("frame", "context", "breakpoints")},
        }

    def stop(self) -> None:
        if self.child is not None:
            self.child.end()
            self.child = None


class Child:
    """One program in a session of its own, with empty standard input and a channel for messages.

    Its output is capped, and its whole process tree dies with it.
    """

    def __init__(self, argv: "list[str]", cwd: str, env: "dict[str, str]") -> None:
        """Start `argv` with the channel's descriptor in its environment. Raises OSError."""
        self.channel, theirs = socket.socketpair()
        self.output, write_end = os.pipe()
        theirs.set_inheritable(True)
        try:
            self.process = subprocess.Popen(
                argv,
                cwd=cwd,
                env={**env, CHANNEL: str(theirs.fileno())},
                stdin=subprocess.DEVNULL,
                stdout=write_end,
                stderr=write_end,
                close_fds=False,  # no other descriptor here is inheritable
                start_new_session=True,
            )
        except BaseException:
            self.channel.close()
            os.close(self.output)
            raise
        finally:
            theirs.close()
            os.close(write_end)
        os.set_blocking(self.output, False)
        self.written = Output()
        self.messages = Messages()
        self.received: list[dict[str, Any]] = []
        self.output_open = True

    def send(self, message: "dict[str, Any]") -> None:
        """Raises OSError when the program has closed its channel."""
        self.channel.sendall(pack(message))

    def receive(self, deadline: float) -> "dict[str, Any] | None":
        """Return the next message; None when the channel is closed or broken. Raises TimeoutError.

        Reads the program's output meanwhile, so that the program never blocks on it.
        """
        while not self.received:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            watched = [self.channel, self.output] if self.output_open else [self.channel]
            ready = select.select(watched, [], [], left)[0]
            if self.output in ready:
                self.read_output()
            if self.channel in ready:
                try:
                    data = self.channel.recv(PIECE)
                    self.received += self.messages.feed(data)
                except (OSError, Broken):
                    return None
                if not data:
                    return None
        self.drain()
        return self.received.pop(0)

    def read_output(self) -> bool:
        """Read one piece of output; return False when none is ready."""
        try:
            data = os.read(self.output, PIECE)
        except BlockingIOError:
            return False
        self.output_open = bool(data)
        self.written.add(data)
        return bool(data)

    def drain(self) -> None:
        """Read the output written so far, at most 4 MiB: a program may never stop writing."""
        for _ in range(64):
            if not self.output_open or not self.read_output():
                break

    def interrupt(self) -> None:
        self.process.send_signal(INTERRUPT)

    def wait(self, timeout_s: float) -> "int | None":
        """Return the exit code, 128 + n after signal n; None if the program still runs."""
        deadline = time.monotonic() + timeout_s
        while self.process.poll() is None and time.monotonic() < deadline:
            if self.output_open:
                select.select([self.output], [], [], 0.01)
                self.read_output()
            else:
                time.sleep(0.01)
        code = self.process.poll()
        return 128 - code if code is not None and code < 0 else code

    def end(self) -> None:
        """Kill the program and all its descendants, and close its channel and output."""
        hone_processes.kill_descendants()
        self.process.wait()
        hone_processes.reap_children(SETTLE_S)
        self.drain()
        self.channel.close()
        os.close(self.output)
