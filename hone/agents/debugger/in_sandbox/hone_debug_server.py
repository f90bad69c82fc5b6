"""The server in the sandbox: `python -I hone_debug_server.py`, with the job as JSON on standard input.

It connects to the tunnel, sends the rollout's secret, and answers one request at a time, in order. Programs
that it runs are its children and die with it. It is not dumpable, so that they cannot read the secret.
"""

import json
import os
import select
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any

sys.path.insert(0, "/srv/hone/processes")
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import hone_debug_files as files
from hone_debug_files import Refused
from hone_debug_session import Child, Session
from hone_debug_wire import Broken, Messages, pack

PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER = 4, 36
TESTS = "test.py"  # run alone if it exists
SEARCH_TIMEOUT_S = 30.0
FILE_TOOLS = {"view": files.view, "rewrite": files.rewrite, "listdir": files.listdir}
PYTEST = ("-m", "pytest", "--tb=short", "-sq", "-p", "no:cacheprovider")


class SearchTimeout(Exception):
    """A search was stopped."""


class Server:
    def __init__(self, workdir: str) -> None:
        self.workdir = workdir
        # A cached .pyc would hide an edit within the same second.
        self.env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
        self.session: Session | None = None

    def serve(self, connection: socket.socket) -> None:
        """Answer requests until the other end hangs up; read the program's output between them."""
        messages = Messages()
        while True:
            child = self.session.child if self.session is not None else None
            watched: list[Any] = [connection]
            if child is not None and child.output_open:
                watched.append(child.output)
            ready = select.select(watched, [], [])[0]
            if connection not in ready:
                assert child is not None
                child.read_output()
                continue
            data = connection.recv(1 << 16)
            if not data:
                return
            for request in messages.feed(data):
                connection.sendall(pack({**self.answer(request), "id": request["id"]}))

    def answer(self, request: "dict[str, Any]") -> "dict[str, Any]":
        try:
            operation: Callable[..., dict[str, Any]] = getattr(self, f"on_{request['op']}")
            return operation(**request["arguments"])
        except Refused as refusal:
            return {"error": str(refusal)}
        except OSError as error:  # for example no memory or no space: the program has used them up
            return {"error": f"{error.strerror or error}"}

    def on_pdb(
        self,
        program: "dict[str, str]",
        breakpoints: "list[dict[str, Any]]",
        fresh: bool,
        line: "str | None",
        timeout_s: float,
        restart_timeout_s: float,
    ) -> "dict[str, Any]":
        """Run a pdb command; start the program first if `fresh` or if it does not run.

        Returns "started" (see `Session.start`) and "command" (see `Session.command`).
        """
        result: dict[str, Any] = {}
        if fresh or self.session is None or not self.session.running or self.session.program != program:
            self.stop()
            self.session = Session(self.workdir, program, self.env)
            result["started"] = self.session.start(breakpoints, timeout_s)
        assert self.session is not None
        if line is not None and self.session.running:
            result["command"] = self.session.command(line, timeout_s, restart_timeout_s)
        return {**result, "running": self.session.running}

    def on_files(self, tool: str, **arguments: Any) -> "dict[str, Any]":
        return FILE_TOOLS[tool](self.workdir, **arguments)

    def on_grep(self, pattern: str, path: str, limit: int) -> "dict[str, Any]":
        """Search files; a signal stops a regular expression that does not finish."""
        try:
            signal.setitimer(signal.ITIMER_REAL, SEARCH_TIMEOUT_S)
            try:
                return files.grep(self.workdir, pattern, path, limit)
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        except SearchTimeout:
            message = f"The search took longer than {SEARCH_TIMEOUT_S:g} s: search in a smaller place."
            raise Refused(message) from None

    def on_eval(self, timeout_s: float) -> "dict[str, Any]":
        """Run the visible tests, after ending a program under the debugger; no exit code: a timeout."""
        self.stop()
        paths = [TESTS] if os.path.isfile(os.path.join(self.workdir, TESTS)) else []
        child = Child([sys.executable, *PYTEST, *paths], self.workdir, self.env)
        code = child.wait(timeout_s)
        child.end()
        return {"printed": child.written.take(), "exit_code": code}

    def stop(self) -> None:
        if self.session is not None:
            self.session.stop()


def search_timed_out(number: int, frame: Any) -> None:
    """Handle SIGALRM."""
    raise SearchTimeout


def protect_process() -> None:
    """Make this process not dumpable (its memory is private) and the reaper of its programs' orphans."""
    import _ctypes  # `ctypes` costs several milliseconds more

    prctl = _ctypes.dlsym(_ctypes.dlopen(None, 0), "prctl")  # pyright: ignore[reportArgumentType]
    for option, value in ((PR_SET_DUMPABLE, 0), (PR_SET_CHILD_SUBREAPER, 1)):
        if _ctypes.call_function(prctl, (option, value, 0, 0, 0)) != 0:
            raise OSError(f"prctl({option}) failed")


def main() -> None:
    protect_process()
    job = json.loads(sys.stdin.buffer.read())
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)  # the job could be read again there
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, search_timed_out)
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(job["tunnel"])
    connection.sendall(job["secret"].encode())
    server = Server(job["workdir"])
    os.chdir(job["workdir"])
    try:
        server.serve(connection)
    except (Broken, OSError) as error:
        print(f"the connection broke: {error}", file=sys.stderr)
    finally:
        server.stop()


if __name__ == "__main__":
    main()
