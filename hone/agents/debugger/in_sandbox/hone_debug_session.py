"""One debugging session: a program under its debugger, restarted when it ends."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from typing import Any

from hone_debug_child import SETTLE_S, Child  # beside this file
from hone_debug_files import Refused, resolve

DEBUGGEE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "hone_debuggee.py")


class Session:
    """`program` is {"runner": "python" | "pytest", "file": path, optionally with ::test}."""

    def __init__(self, workdir: str, program: dict[str, str], env: dict[str, str]) -> None:
        self.workdir, self.program, self.env = workdir, program, env
        self.child: Child | None = None
        self.state: dict[str, Any] = {}  # of the last stop: frame, context, breakpoints

    @property
    def running(self) -> bool:
        return self.child is not None

    def start(self, breakpoints: list[dict[str, Any]], timeout_s: float) -> dict[str, Any]:
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

    def command(self, line: str, timeout_s: float, restart_timeout_s: float) -> dict[str, Any]:
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

    def await_stop(self, timeout_s: float) -> dict[str, Any]:
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
        self, message: dict[str, Any], ending: str | None, *, timed_out: bool, code: Any = None
    ) -> dict[str, Any]:
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
