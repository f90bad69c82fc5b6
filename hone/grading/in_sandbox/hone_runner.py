"""The trusted test runner: `python3 -S hone_start.py` inside the grading sandbox.

    parent (this file)                                child (hone_session.py), one for each edition
    imports pytest, restores the test files, forks    waits at its gate
    makes itself untraceable, reads the nonce and
    the editions, says hello, one after the other:
    restores an edition, sends it to the child        imports the code under test, runs pytest
    checks and counts records  <--- channel -------  sends records, each with the run's key
    prints one line, framed by the nonce              exits

Invariants: no code of the repository runs in the parent or before the gate opens; the child never holds the
nonce, the parent's output or another edition of the tests; the child's output is a log for people and is
never parsed. Python starts without `site` and without variables that name modules, so that `Outside` comes
before every import. A repository that is pytest, or holds what pytest imports where nothing else does, is the
framework of its own tests: the child then imports it, after its gate opened.

The parent checks everything that the child runs of the runner before the gate (`check_self`). What goes wrong
there is no verdict; what goes wrong afterwards is in the report, and the grader compares it with a run of the
reference patch.

The files that run here use the standard library and pytest only, and no syntax newer than Python 3.6: an
image has its own interpreter. Standard input: the job as JSON, the nonce (32 bytes), the editions as JSON;
JSON follows its length in four bytes.
"""

import gc
import importlib
import json
import os
import resource
import select
import shutil
import stat
import struct
import sys
import time
from typing import Any, NoReturn

sys.path.insert(1, "/srv/hone/processes")
import hone_processes  # pyright: ignore[reportMissingImports]  # hone.utils.processes

sys.path.remove("/srv/hone/processes")
import hone_data  # beside this file
import hone_marks
import hone_titles
import hone_trusted
from hone_outside import Outside, find_plugins, start_site
from hone_tally import HELLO, LETTERS, UNUSABLE, Tally, name_canaries

NONCE_BYTES = 32
KEY_BYTES = 16
LOG_BYTES = 16384  # of the test run's output, kept from its end
RECORD_BYTES = 16 << 20  # longest record
CHANNEL_BYTES = 64 << 20  # all records together
SESSIONS = {"pytest": "hone_session", "unittest": "hone_unittest", "sympy": "hone_sympy"}
CANARIES = {"pytest": 2, "unittest": 6, "sympy": 2}
SET_ASIDE = "HONE_ASIDE_"  # before the name of a variable


def read_exactly(size: int) -> bytes:
    """Read exactly `size` bytes from standard input; later reads get the rest."""
    data = b""
    while len(data) < size:
        piece = os.read(0, size - len(data))
        if not piece:
            raise EOFError("the job on standard input is incomplete")
        data += piece
    return data


def read_json() -> Any:
    """Read JSON after its length."""
    (size,) = struct.unpack("!I", read_exactly(4))
    return json.loads(read_exactly(size))


def restore(workdir: str, files: "dict[str, str]") -> None:
    """Write trusted files; links and directories that a patch put in their place are replaced."""
    for name, text in files.items():
        parts = name.split("/")
        if name.startswith("/") or any(part in ("", ".", "..") for part in parts):
            raise ValueError(f"not a path below the repository: {name!r}")
        path = workdir
        for i, part in enumerate(parts):
            path = os.path.join(path, part)
            last = i == len(parts) - 1
            try:
                mode = os.lstat(path).st_mode
            except FileNotFoundError:
                mode = None
            if mode is not None and (last or not stat.S_ISDIR(mode)):
                shutil.rmtree(path) if stat.S_ISDIR(mode) else os.unlink(path)
                mode = None
            if mode is None and not last:
                os.mkdir(path, 0o755)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
        with os.fdopen(fd, "wb") as file:
            file.write(text.encode("utf-8", "surrogateescape"))


def encode(workdir: str, texts: "dict[str, str]") -> "dict[str, bytes]":
    """Return path -> bytes of files named below `workdir`."""
    return {
        os.path.join(workdir, name): text.encode("utf-8", "surrogateescape") for name, text in texts.items()
    }


def read_sources(
    workdir: str, files: "list[str]", folders: "list[str]", edited: "list[str]"
) -> "dict[str, bytes]":
    """Return path -> text of the existing tests, of all Python files in the tests' directories, and of every
    conftest.py above the tests.

    Args:
        edited: files that every edition has.
    """
    paths = [os.path.join(workdir, name) for name in files]
    for folder in folders:
        for place, _, names in os.walk(os.path.join(workdir, folder)):
            paths += [os.path.join(place, name) for name in names if name.endswith(".py")]
    above = {name[:end] for name in files for end in range(len(name)) if name[end] == "/"}
    paths += [os.path.join(workdir, folder, "conftest.py") for folder in ("", *above)]
    sources = {}
    for path in set(paths) - {os.path.join(workdir, name) for name in edited}:
        try:
            with open(path, "rb") as file:
                sources[path] = file.read()
        except OSError:
            continue  # its tests are reported as missing
    return sources


def restore_environment() -> None:
    """Give variables back that must not affect the start of Python; see `hone.grading.run`."""
    for name in [name for name in os.environ if name.startswith(SET_ASIDE)]:
        os.environ[name[len(SET_ASIDE) :]] = os.environ.pop(name)


def give_up(reason: str) -> "NoReturn":
    """Write why no test can run, and exit."""
    os.write(1, UNUSABLE + reason.replace("\n", " ").encode() + b"\n")
    os._exit(0)


def set_traceable(traceable: bool) -> None:
    """Permit or forbid processes of the same user to trace this one and open its memory (PR_SET_DUMPABLE)."""
    import _ctypes  # `ctypes` takes several milliseconds longer

    prctl = _ctypes.dlsym(_ctypes.dlopen(None, 0), "prctl")  # pyright: ignore[reportArgumentType]
    if _ctypes.call_function(prctl, (4, int(traceable), 0, 0, 0)):
        raise OSError("prctl(PR_SET_DUMPABLE) failed")


def start_child(job: "dict[str, Any]", sources: "dict[str, bytes]") -> "Child":
    """Fork a test process, which waits at its gate."""
    key = os.urandom(KEY_BYTES).hex().encode()
    canaries = name_canaries(CANARIES[job["suite"]])
    gate_read, gate = os.pipe()
    log, log_write = os.pipe()
    channel, channel_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            set_traceable(False)  # another run must not read this one's tests before it starts
            null = os.open(os.devnull, os.O_RDONLY)
            os.dup2(null, 0)
            os.dup2(log_write, 1)
            os.dup2(log_write, 2)
            for fd in set(range(3, max(channel_write, null) + 1)) - {gate_read, channel_write}:
                try:
                    os.close(fd)
                except OSError:
                    continue  # not open
            with os.fdopen(gate_read, "rb") as opened:
                edition = json.loads(opened.read())  # fails when the parent is gone
            sources.update(encode(job["workdir"], edition["texts"]))
            set_traceable(True)
            gc.enable()
            restore_environment()
            run_session({**job, **edition}, sources, hone_trusted.sender(channel_write, key), canaries)
        except BaseException as error:
            sys.excepthook(type(error), error, error.__traceback__)
        finally:
            os._exit(3)
    for fd in (gate_read, log_write, channel_write):
        os.close(fd)
    return Child(pid, gate, log, channel, Tally(key, canaries))


def run_session(
    job: "dict[str, Any]", sources: "dict[str, bytes]", send: hone_trusted.Send, canaries: "list[str]"
) -> None:
    """Run the tests in this test process, whose gate has opened, and exit."""
    trust = hone_trusted.Trust(job["workdir"], sources, send)
    if job["in_tree"]:
        hone_trusted.prepare_imports(job, trust)
    importlib.import_module(SESSIONS[job["suite"]]).run(job, trust, send, canaries)


class Child:
    """A test process as its parent sees it: records go to the tally, the end of the output is kept."""

    def __init__(self, pid: int, gate: int, log: int, channel: int, tally: "Tally") -> None:
        self.pid, self.gate, self.log, self.channel, self.tally = pid, gate, log, channel, tally
        self.open = [log, channel]
        self.tail, self.pending, self.total = bytearray(), bytearray(), 0
        self.exit_code: int | None = None
        for fd in self.open:
            os.set_blocking(fd, False)

    def watch(self, edition: "dict[str, Any]", timeout_s: float) -> bool:
        """Open the gate and read until the child exits; kill it at the timeout. Return whether it timed out.

        Output of processes that it left behind is ignored.
        """
        with os.fdopen(self.gate, "wb") as gate:
            gate.write(json.dumps(edition).encode())
        deadline = time.monotonic() + timeout_s
        timed_out = False
        while self.exit_code is None:
            left = deadline - time.monotonic()
            if left <= 0 and not timed_out:
                timed_out = True
                hone_processes.kill_group(self.pid)
            self.read(0.05 if timed_out else min(left, 0.05))
            done, status = os.waitpid(self.pid, os.WNOHANG)
            if done:
                self.exit_code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        hone_processes.kill_group(self.pid)
        while self.read(0):
            continue
        if self.pending:
            self.tally.blame("the result channel ended within a record")
        return timed_out

    def read(self, wait_s: float) -> bool:
        """Read available data, waiting at most `wait_s`; return whether there was any."""
        if not self.open:
            time.sleep(min(wait_s, 0.001))  # both streams are closed: the child exits now, or at the timeout
            return False
        ready = select.select(self.open, [], [], wait_s)[0]
        for fd in ready:
            try:
                data = os.read(fd, 65536)
            except BlockingIOError:
                continue
            if not data:
                self.open.remove(fd)
            elif fd == self.log:
                self.tail += data
                del self.tail[:-LOG_BYTES]
            else:
                self.take_records(data)
        return bool(ready)

    def take_records(self, data: bytes) -> None:
        self.total += len(data)
        *lines, rest = bytes(self.pending + data).split(b"\n")
        self.pending = bytearray(rest)
        for line in lines:
            self.tally.line(line)
        if self.total > CHANNEL_BYTES or len(self.pending) > RECORD_BYTES:
            self.tally.blame("the result channel was flooded")
            self.open.remove(self.channel)
            hone_processes.kill_group(self.pid)


def main() -> None:
    """Run the job on standard input, write the framed report to standard output, and exit."""
    gc.disable()  # until the fork, as its documentation advises: imports leave little garbage
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # inherited from the caller
    job = read_json()
    workdir = job["workdir"]
    restore(workdir, job["test_files"])
    os.chdir(workdir)
    outside: Any = Outside(workdir)
    sys.meta_path.insert(0, outside)
    start_site()
    sys.meta_path.remove(outside)  # a .pth file may have inserted another finder before it
    sys.meta_path.insert(0, outside)
    sources = read_sources(workdir, job["run_files"], job["trusted"], job["edited"])
    for name in ("PYTEST_ADDOPTS", "PYTEST_PLUGINS"):
        os.environ.pop(name, None)
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    if any(os.path.isdir(os.path.join(site, "pytest")) for site in job["sites"]):  # the repository's version
        sys.path[:] = [entry for entry in sys.path if not entry.endswith("-packages")]
    given = os.environ.get(f"{SET_ASIDE}PYTHONPATH", "").split(os.pathsep)
    sys.path[1:1] = filter(None, given)
    sys.path += job["sites"]
    try:
        hone_trusted.check_self(workdir)
        import_framework(job)
    except Exception as error:
        give_up(f"{type(error).__name__}: {error}")
    folders = job["sites"] or ([] if job["bare"] else sys.path)
    job["plugins"] = find_plugins(folders, workdir) if job["suite"] == "pytest" else []

    if hasattr(gc, "freeze"):  # Python 3.7
        gc.freeze()
    data = hone_data.DataFiles(workdir, job["trusted"], list(job["test_files"]))
    children = [start_child(job, sources) for _ in range(job["runs"])]
    gc.enable()
    set_traceable(False)
    nonce = read_exactly(NONCE_BYTES)
    editions = read_json()
    os.write(1, HELLO)
    reports = []
    for child, edition in zip(children, editions):
        restore(workdir, edition["texts"])
        for name in data.known.keys() & edition["texts"].keys():
            data.remember(name)
        texts = hone_marks.Texts(workdir, {**sources, **encode(workdir, edition["texts"])})
        child.tally.may_end_as = texts.may_end_as
        child.tally.may_be_named = hone_titles.Titles(workdir, texts.sources).may_be_named
        reports.append(watch_child(job, child, edition, data))
    frame = b"\n" + nonce + b" " + json.dumps(reports).encode() + b"\n"
    while frame:
        frame = frame[os.write(1, frame) :]
    os._exit(0)


def import_framework(job: "dict[str, Any]") -> None:
    """Import the suite's framework from outside the repository, or find out that only this has pytest.

    Sets `in_tree`, and `framework`: the directory that pytest comes from. Raises what an import raises.
    """
    job["in_tree"], job["framework"] = not {"pytest", "_pytest"}.isdisjoint(job["own"]), ""
    if job["suite"] != "pytest":
        job["in_tree"] = False
        importlib.import_module(SESSIONS[job["suite"]])
        return
    if job["in_tree"]:
        return
    before = set(sys.modules)
    try:
        import hone_session
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in job["own"]:
            give_up(f"pytest cannot be imported ({type(error).__name__}: {error})")
        for name in set(sys.modules) - before:
            del sys.modules[name]
        job["in_tree"] = True
        return
    pytest, oldest = hone_session.pytest, hone_session.hone_pytest.OLDEST
    if hone_session.hone_pytest.version() < oldest:
        give_up("pytest is {}, but {}.{} or later is required".format(pytest.__version__, *oldest))
    job["framework"] = os.path.dirname(os.path.dirname(str(pytest.__file__)))


def watch_child(
    job: "dict[str, Any]", child: "Child", edition: "dict[str, Any]", data: "hone_data.DataFiles"
) -> "dict[str, Any]":
    """Let a test process run; return the report of its run."""
    started, tally = time.monotonic(), child.tally
    timed_out = child.watch(edition, job["timeout_s"])
    changed = data.changed()
    if changed is not None:
        tally.blame(f"the code under test changed {changed}, which belongs to the tests")
    finished = child.exit_code is not None and tally.finished(child.exit_code) and not timed_out
    if finished:
        tally.check_canaries()
    if job["reported"] is None:
        statuses: Any = {t: LETTERS[tally.status(t)] for t in tally.phases if t not in tally.canaries}
    else:
        statuses = "".join(LETTERS[tally.find(test)] for test in job["reported"])
    return {
        "statuses": statuses,
        "titles": {test: title for test, title in tally.titles.items() if test not in tally.canaries},
        "memory_kib": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss,
        "finished": finished,
        "tampered": tally.tampered,
        "crashed": tally.crashed,
        "exit_code": child.exit_code,
        "timed_out": timed_out,
        "seconds": time.monotonic() - started,
        "log": child.tail.decode("utf-8", "replace"),
    }
