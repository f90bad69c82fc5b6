"""The program under the debugger: the server starts `python hone_debuggee.py`."""

import fcntl
import os
import pdb
import signal
import socket
import sys
import traceback
import types
from typing import Any

from hone_debug_wire import CHANNEL, INTERRUPT, Messages  # beside this file
from hone_debugger import OWN_FILES, Debugger


def run_script(debugger: "Debugger", path: str) -> int:
    sys.argv[:] = [path]
    sys.path.insert(0, os.path.dirname(os.path.realpath(path)))
    path = os.path.abspath(path)
    with open(path, "rb") as file:
        code = compile(file.read(), path, "exec", dont_inherit=True)
    main = types.ModuleType("__main__")
    main.__file__ = path
    main.__dict__["__builtins__"] = __builtins__
    sys.modules["__main__"] = main
    try:
        debugger.run(code, main.__dict__)
    except SystemExit as ended:
        debugger.message(f"The program exited via sys.exit(). Exit status: {ended.code}")
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        kind, error, trace = sys.exc_info()
        sys.settrace(None)
        debugger.message("".join(traceback.format_exception(kind, error, program_traceback(trace))).rstrip())
        debugger.message("Uncaught exception. Entering post mortem debugging")
        debugger.message("Running 'cont' or 'step' will restart the program")
        debugger.reset()
        debugger.interaction(None, program_traceback(trace))  # type: ignore[arg-type]
        return 1
    return 0


def program_traceback(trace: "types.TracebackType | None") -> "types.TracebackType | None":
    """Return the part of a traceback that begins at the program's own first frame."""
    while trace is not None and trace.tb_next is not None:
        file = trace.tb_frame.f_code.co_filename
        if not file.startswith(OWN_FILES) and file != "<string>":
            break
        trace = trace.tb_next
    return trace


class Stops:
    """A pytest plugin that stops where a test begins: the first one, or each."""

    def __init__(self, debugger: "Debugger", each: bool) -> None:
        self.debugger, self.each, self.first = debugger, each, True

    def pytest_configure(self, config: Any) -> None:
        pdb.set_trace = self.debugger.set_trace  # type: ignore[assignment]  # pytest's reads a terminal

    def pytest_runtest_call(self, item: Any) -> None:
        if self.first or self.each:
            self.first = False
            self.debugger.arm(getattr(item, "obj", None))


def run_pytest(debugger: "Debugger", target: str) -> int:
    sys.path.insert(0, os.getcwd())
    import pytest

    arguments = ["-sq", target, *(["--tb=short"] if "::" in target else []), "-p", "no:cacheprovider"]
    pytest.hookimpl(trylast=True)(Stops.pytest_configure)
    debugger.follow()
    try:
        return int(pytest.main(arguments, plugins=[Stops(debugger, "::" in target)]))
    finally:
        sys.settrace(None)


def main() -> None:
    inherited = int(os.environ.pop(CHANNEL))
    number = fcntl.fcntl(inherited, fcntl.F_DUPFD_CLOEXEC, 100)  # low numbers stay free
    os.close(inherited)
    channel = socket.socket(fileno=number)
    job = receive_job(channel)
    sys.path[:] = [entry for entry in sys.path if os.path.realpath(entry) != os.path.dirname(__file__)]
    debugger = Debugger(channel, job["workdir"])
    signal.signal(INTERRUPT, debugger.interrupted)
    if hasattr(os, "register_at_fork"):  # Python 3.7
        os.register_at_fork(after_in_child=lambda: forked(channel))
    pdb.set_trace = sys.breakpointhook = debugger.set_trace  # type: ignore[assignment]
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # Python 3.7; before, the debugger's flush at each stop must do
            stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # as on a terminal
    debugger.restore(job["breakpoints"])
    try:
        code = (run_pytest if job["runner"] == "pytest" else run_script)(debugger, job["file"])
    except Exception as error:
        debugger.message("".join(traceback.format_exception_only(type(error), error)).rstrip())
        debugger.send("failed")
        os._exit(1)
    debugger.send("ended", code=code)
    sys.exit(code)


def receive_job(channel: socket.socket) -> "dict[str, Any]":
    messages = Messages()
    while True:
        data = channel.recv(1 << 16)
        if not data:
            os._exit(1)
        for message in messages.feed(data):
            return message


def forked(channel: socket.socket) -> None:
    """Run in a fork of the program: turn the debugger off."""
    sys.settrace(None)
    channel.close()


if __name__ == "__main__":
    main()
