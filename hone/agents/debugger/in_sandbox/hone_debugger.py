"""The debugger: pdb, driven over a private channel instead of a terminal.

At each stop it sends the output of the last command, the frame, the lines around it and the breakpoints, and
receives the next command. The program's output goes to its own standard output and is never mixed with the
debugger's.

The program can find the channel and write to it. That only spoils what its own agent observes.
"""

import bdb
import io
import linecache
import os
import pdb
import socket
import sys
import types
from typing import Any

from hone_debug_lines import breakpoint_error, first_statement  # beside this file
from hone_debug_wire import KEPT, Messages, Output, pack

CONTEXT = 11  # lines shown around the current one
NOT_HERE = "The command %s is not available here."
# Stepping does not stop in these modules; breakpoints do.
SKIPPED_MODULES = ["_pytest", "_pytest.*", "pluggy", "pluggy.*", "importlib", "importlib.*"]
OWN_FILES = (bdb.__file__, pdb.__file__, os.path.dirname(os.path.abspath(__file__)) + os.sep)  # prefixes


class CappedText(io.TextIOBase):
    """The debugger's output, capped like a program's."""

    def __init__(self) -> None:
        self.output = Output()

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        for start in range(0, len(text), KEPT):
            self.output.add(text[start : start + KEPT].encode("utf-8", "replace"))
        return len(text)


class Debugger(pdb.Pdb):
    def __init__(self, channel: socket.socket, workdir: str) -> None:
        self.capped = CappedText()
        super().__init__(
            stdin=io.StringIO(""),  # type: ignore[arg-type]
            stdout=self.capped,  # type: ignore[arg-type]
            nosigint=True,
            readrc=False,
            skip=SKIPPED_MODULES,
        )
        self.channel, self.workdir = channel, workdir
        self.messages = Messages()
        self.pid = os.getpid()
        self.busy = False  # evaluating a command
        self.armed: types.CodeType | None = None  # stop at the first line of this code
        self.test: types.CodeType | None = None  # the running test: stepping ends with it

    # --- the channel

    def send(self, event: str, **more: Any) -> None:
        """Send an event with the debugger's output and the breakpoints."""
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except Exception:  # the program may have closed or replaced it
                continue
        message = {"event": event, "output": self.capped.output.take(), "breakpoints": self.all_breakpoints()}
        try:
            self.channel.sendall(pack({**message, **more}))
        except OSError:
            os._exit(1)  # the program closed the channel

    def receive(self) -> str:
        """Return the next command; exit when the channel is closed."""
        while True:
            try:
                data = self.channel.recv(1 << 16)
            except OSError:
                data = b""
            if not data:
                os._exit(1)
            for message in self.messages.feed(data):
                return str(message["line"])

    def cmdloop(self, intro: Any = None) -> None:
        if os.getpid() != self.pid:  # a fork: only the program itself is debugged
            sys.settrace(None)
            return
        self.preloop()
        stop = None
        while not stop:
            linecache.checkcache()
            self.run_queue()
            self.send("stopped", frame=self.place(), context=self.context())
            line = self.precmd(self.receive())
            self.busy = True
            try:
                stop = self.onecmd(line)
            except KeyboardInterrupt:
                self.message("--KeyboardInterrupt--")
            finally:
                self.busy = False
            stop = self.postcmd(stop, line)  # type: ignore[arg-type]
        self.postloop()

    def run_queue(self) -> None:
        """Run the commands that pdb has queued; drop those of an alias."""
        queue, self.cmdqueue = self.cmdqueue, []
        for line in queue:
            if line.startswith("_pdbcmd"):
                self.onecmd(line)

    def interrupted(self, number: int, frame: "types.FrameType | None") -> None:
        """Handle the signal that interrupts a program which runs for too long."""
        if os.getpid() != self.pid:
            return
        if self.busy:
            raise KeyboardInterrupt
        if self.inside_debugger(frame):
            self.set_step()
            return
        sys.settrace(None)
        above = frame
        while above is not None:  # a frame with a trace function remembers the line of its last event
            above.f_trace, above = None, above.f_back
        self.message("Program interrupted.")
        self.interaction(frame, None)
        if self.breaks or self.stoplineno != -1:  # not a `continue` without breakpoints
            self.trace_from(frame)

    def inside_debugger(self, frame: "types.FrameType | None") -> bool:
        while frame is not None and frame is not self.botframe:
            if frame.f_code.co_filename.startswith(OWN_FILES):
                return True
            frame = frame.f_back
        return False

    def set_trace(self, frame: "types.FrameType | None" = None, **_: Any) -> None:
        """Stop at the next line; `breakpoint()` calls this."""
        self.set_step()
        self.trace_from(frame or sys._getframe().f_back)

    def trace_from(self, frame: "types.FrameType | None") -> None:
        """Trace `frame` and its callers, up to the program's first."""
        while frame is not None and frame is not self.botframe:
            frame.f_trace = self.trace_dispatch
            frame = frame.f_back
        sys.settrace(self.trace_dispatch)

    def get_stack(self, f: "types.FrameType | None", t: "types.TracebackType | None") -> Any:
        """Return the program's frames, without those that run it."""
        stack, index = super().get_stack(f, t)
        above = 0
        while above < index and self.runs_program(stack[above][0]):
            above += 1
        return stack[above:], index - above

    def is_skipped_module(self, module_name: "str | None") -> bool:
        # before Python 3.8, bdb raises for code whose globals have no `__name__`
        return module_name is not None and bool(super().is_skipped_module(module_name))

    def runs_program(self, frame: types.FrameType) -> bool:
        name = frame.f_globals.get("__name__", "")
        file = frame.f_code.co_filename
        return file.startswith(OWN_FILES) or file == "<string>" or bool(self.is_skipped_module(name))

    # --- where it stands

    def place(self) -> "dict[str, Any]":
        frame, line = self.stack[self.curindex]
        return {
            "file": self.canonic(frame.f_code.co_filename),
            "line": line,
            "function": frame.f_code.co_name,
        }

    def context(self) -> str:
        frame, current = self.stack[self.curindex]
        name = frame.f_code.co_filename
        lines = linecache.getlines(name, frame.f_globals)
        first = max(1, min(current - CONTEXT // 2, len(lines) - CONTEXT + 1))
        breaks = self.get_file_breaks(self.canonic(name))
        shown = []
        for number in range(first, min(first + CONTEXT, len(lines) + 1)):
            mark = ("B" if number in breaks else " ") + ("->" if number == current else "  ")
            shown.append(f"{number:>4} {mark} {lines[number - 1].rstrip()[:500]}")
        return "\n".join(shown)

    def all_breakpoints(self) -> "list[dict[str, Any]]":
        return [
            {
                "path": each.file,
                "line": each.line,
                "condition": each.cond or "",
                "temporary": bool(each.temporary),
                "enabled": bool(each.enabled),
                "ignore": each.ignore,
            }
            for each in bdb.Breakpoint.bpbynumber
            if each is not None
        ]

    def restore(self, breakpoints: "list[dict[str, Any]]") -> None:
        for each in breakpoints:
            wrong = self.set_break(each["path"], each["line"], each["temporary"], each["condition"] or None)
            if wrong:
                self.message(f"The breakpoint at {each['path']}:{each['line']} was not restored: {wrong}")
                continue
            made = self.get_breaks(each["path"], each["line"])[-1]
            made.ignore = each["ignore"]
            if not each["enabled"]:
                made.disable()

    # --- commands that differ from pdb's

    def lookupmodule(self, filename: str) -> "str | None":
        """Return the file of a path, which may be relative to the working directory."""
        path = os.path.join(self.workdir, filename)
        return self.canonic(path) if os.path.isfile(path) else super().lookupmodule(filename)

    def do_break(self, arg: str, temporary: bool = False) -> Any:  # type: ignore[override]
        if not arg:
            return super().do_break(arg)
        where, comma, condition = arg.partition(",")
        found = self.locate(where.strip())
        if isinstance(found, str):
            self.error(found)
            return None
        if found is not None:
            arg = f"{found[0]}:{found[1]}{comma}{condition}"
        return super().do_break(arg, temporary)  # type: ignore[arg-type]

    do_b = do_break  # type: ignore[assignment]

    def do_tbreak(self, arg: str) -> Any:
        return self.do_break(arg, True)

    def locate(self, where: str) -> "tuple[str, int] | str | None":
        """Return (file, line) of a breakpoint, or an error; None leaves the answer to pdb.

        The place of a function is its first statement, so that every breakpoint has a line.
        """
        name, colon, number = where.rpartition(":")
        if not colon and not where.isdigit():
            return self.locate_function(where)
        if not number.strip().isdigit():
            return self.locate_function(number.strip(), name.strip()) if colon else None
        file = self.lookupmodule(name.strip()) if colon else self.canonic(self.curframe.f_code.co_filename)  # type: ignore[union-attr]
        if not file:
            return None
        wrong = breakpoint_error("".join(linecache.getlines(file)), int(number))
        return wrong or (file, int(number))

    def locate_function(self, name: str, file: str = "") -> "tuple[str, int] | None":
        path = self.lookupmodule(file) if file else None
        if not file:
            try:
                value = eval(name, self.curframe.f_globals, self.curframe.f_locals)  # type: ignore[union-attr]
                code = getattr(value, "__func__", value).__code__
            except Exception:
                path = self.canonic(self.curframe.f_code.co_filename)  # type: ignore[union-attr]
            else:
                path, name = self.canonic(code.co_filename), code.co_name
                found = first_statement("".join(linecache.getlines(path)), name, code.co_firstlineno)
                return (path, found) if found else None
        found = first_statement("".join(linecache.getlines(path)), name) if path else None
        return (path, found) if path and found else None

    def do_clear(self, arg: str) -> None:
        if arg:
            super().do_clear(arg)
            return
        self.clear_all_breaks()
        self.message("All breakpoints have been cleared.")

    do_cl = do_clear  # type: ignore[assignment]

    def refuse(self, arg: str) -> None:
        self.error(NOT_HERE % (self.lastcmd.split() or ["that"])[0])

    do_interact = do_debug = do_commands = do_quit = do_q = do_exit = do_EOF = refuse  # type: ignore[assignment]
    do_run = do_restart = do_source = refuse  # type: ignore[assignment]

    # --- stopping where a test begins

    def arm(self, function: Any) -> None:
        """Stop at the first line of `function` when it is called next."""
        while hasattr(function, "__wrapped__"):
            function = function.__wrapped__
        self.armed = getattr(getattr(function, "__func__", function), "__code__", None)
        sys.settrace(self.trace_dispatch)

    def dispatch_call(self, frame: types.FrameType, arg: Any) -> Any:
        if self.armed is not None and frame.f_code is self.armed:
            self.test, self.armed = self.armed, None
            self.set_next(frame)
            return self.trace_dispatch
        return super().dispatch_call(frame, arg)

    def dispatch_return(self, frame: types.FrameType, arg: Any) -> Any:
        traced = super().dispatch_return(frame, arg)
        if frame.f_code is self.test:
            self._set_stopinfo(self.botframe, None, -1)  # type: ignore[attr-defined]
        return traced

    def follow(self) -> None:
        """Trace later calls, without stopping before a breakpoint."""
        self.reset()
        self.botframe = sys._getframe(1)
        self._set_stopinfo(self.botframe, None, -1)  # type: ignore[attr-defined]
        sys.settrace(self.trace_dispatch)
