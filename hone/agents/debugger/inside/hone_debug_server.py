"""The debugger's side of the sandbox: `python -I hone_debug_server.py`, with the job as JSON on its input.

It dials out to the tunnel, says the rollout's secret, and answers one request at a time, in order. Programs
that it runs are its children, and die with it; it is not dumpable, so that they cannot read the secret.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import hone_debug_files as files
from hone_debug_child import SETTLE_S, Child, kill
from hone_debug_files import Refused
from hone_debug_session import HERE, Session
from hone_debug_wire import Broken, Frames, pack

PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER = 4, 36
TESTS = "test.py"  # where it stands alone beside the code, it is what is run
SEARCH_S = 30.0
EXIT_S = 10.0  # for pytest to end once it has told its counts


class Server:
    def __init__(self, workdir: str) -> None:
        self.workdir = workdir
        # What is compiled is never kept: an edit within one second would be hidden by it.
        self.env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
        self.session: Session | None = None

    def serve(self, line: socket.socket) -> None:
        """Until the other end hangs up. Between requests, a program's output is taken as it comes."""
        frames = Frames()
        while True:
            child = self.session.child if self.session is not None else None
            watched: list[Any] = [line, *([child.output] if child is not None and child.output_open else [])]
            ready = select.select(watched, [], [])[0]
            if line not in ready:
                assert child is not None
                child.take_output()
                continue
            data = line.recv(1 << 16)
            if not data:
                return
            for request in frames.feed(data):
                line.sendall(pack({**self.answer(request), "id": request["id"]}))

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        try:
            operation: Callable[..., dict[str, Any]] = getattr(self, f"on_{request['op']}")
            return operation(**request["arguments"])
        except Refused as refusal:
            return {"error": str(refusal)}
        except OSError as error:  # no process, no memory, no room: the program's doing
            return {"error": f"{error.strerror or error}"}

    def on_pdb(
        self,
        program: dict[str, str],
        breakpoints: list[dict[str, Any]],
        fresh: bool,
        line: str | None,
        timeout_s: float,
    ) -> dict[str, Any]:
        """Run a pdb command; before that, where asked for or needed, start the program anew.

        Returns "started" (a reply of `Session.start`) and "command" (one of `Session.command`).
        """
        result: dict[str, Any] = {}
        if fresh or self.session is None or not self.session.running or self.session.program != program:
            self.stop()
            self.session = Session(self.workdir, program, self.env)
            result["started"] = self.session.start(breakpoints, timeout_s)
        assert self.session is not None
        if line is not None and self.session.running:
            result["command"] = self.session.command(line, timeout_s)
        return {**result, "running": self.session.running}

    def on_view(self, path: str, start: int | None, end: int | None) -> dict[str, Any]:
        return files.view(self.workdir, path, start, end)

    def on_rewrite(
        self, path: str, start: int | None, end: int | None, new_code: str, create: bool
    ) -> dict[str, Any]:
        return files.rewrite(self.workdir, path, start, end, new_code, create)

    def on_listdir(self, path: str, depth: int) -> dict[str, Any]:
        return files.listdir(self.workdir, path, depth)

    def on_grep(self, pattern: str, path: str, limit: int) -> dict[str, Any]:
        """Searched in a fork: a regular expression may never come to an end."""
        theirs, ours = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(theirs)
            search(ours, lambda: files.grep(self.workdir, pattern, path, limit, SEARCH_S))
        os.close(ours)
        try:
            return read_result(theirs, time.monotonic() + SEARCH_S + SETTLE_S)
        finally:
            kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            os.close(theirs)

    def on_eval(self, timeout_s: float) -> dict[str, Any]:
        """Run the visible tests. A debugged program ends first, so that the two do not meet."""
        self.stop()
        paths = [TESTS] if os.path.isfile(os.path.join(self.workdir, TESTS)) else []
        child = Child([sys.executable, f"{HERE}/hone_tests.py", *paths], self.workdir, self.env)
        try:
            message = child.receive(time.monotonic() + timeout_s)
            timed_out = False
        except TimeoutError:
            message, timed_out = None, True
        code = child.wait(0 if timed_out else EXIT_S)
        child.end()
        return {
            "printed": child.written.take(),
            "counts": message.get("counts") if message else None,
            "exit_code": code,
            "timed_out": timed_out,
        }

    def stop(self) -> None:
        if self.session is not None:
            self.session.stop()


def search(sink: int, find: Callable[[], dict[str, Any]]) -> None:
    """In a fork: write what `find` returns, and end."""
    try:
        try:
            result = find()
        except Refused as refusal:
            result = {"error": str(refusal)}
        data = json.dumps(result).encode()
        while data:
            data = data[os.write(sink, data) :]
    finally:
        os._exit(0)


def read_result(source: int, deadline: float) -> dict[str, Any]:
    data = b""
    while True:
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([source], [], [], left)[0]:
            raise Refused(f"The search took longer than {SEARCH_S:g} s.")
        piece = os.read(source, 1 << 16)
        if not piece:
            break
        data += piece
    if not data:
        raise Refused("The search was killed.")
    return json.loads(data)


def keep_to_itself() -> None:
    """Not dumpable: nothing inside reads its memory; and the parent of its programs' orphans."""
    import _ctypes  # `ctypes` costs several milliseconds more

    prctl = _ctypes.dlsym(_ctypes.dlopen(None, 0), "prctl")  # pyright: ignore[reportArgumentType]
    for option, value in ((PR_SET_DUMPABLE, 0), (PR_SET_CHILD_SUBREAPER, 1)):
        if _ctypes.call_function(prctl, (option, value, 0, 0, 0)) != 0:
            raise OSError(f"prctl({option}) failed")


def main() -> None:
    keep_to_itself()
    job = json.loads(sys.stdin.buffer.read())
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)  # the job was readable there
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    line = socket.socket(socket.AF_UNIX)
    line.connect(job["tunnel"])
    hello = {"secret": job["secret"], "python": ".".join(map(str, sys.version_info[:3]))}
    line.sendall(pack(hello))
    server = Server(job["workdir"])
    os.chdir(job["workdir"])
    try:
        server.serve(line)
    except (Broken, OSError) as error:
        print(f"the line broke: {error}", file=sys.stderr)
    finally:
        server.stop()


if __name__ == "__main__":
    main()
