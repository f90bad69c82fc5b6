"""The trusted test runner: it runs inside the grading sandbox, as `python3 hone_runner.py`, and is the only judge there.

    parent (this file)                                child (hone_session.py)
    says hello; imports pytest; restores test files
    forks                                             waits for the gate
    makes itself untraceable, reads the nonce,
    opens the gate                                    imports the code under test, runs pytest
    checks and tallies records  <--- channel -------  sends records, each with the run's key
    prints one line, framed by the nonce              exits

The rules that must not break: no code of the repository runs in the parent, nor before the gate opens; the child
never holds the nonce or the parent's output. What the child prints is a log for people and is never parsed.

Standard library and pytest only. Standard input: the job as length-prefixed JSON, then the nonce, 32 bytes.
"""

import json
import os
import select
import shutil
import signal
import stat
import struct
import sys
import time

HELLO = b"hone-grader: ready\n"
NONCE_BYTES = 32
KEY_BYTES = 16
LOG_BYTES = 16384  # of the test run's output, kept from its end
RECORD_BYTES = 1 << 20  # one record may be so long
CHANNEL_BYTES = 64 << 20  # all of them together

# A test's status in the report, one letter each, in the order of the expected ids.
LETTERS = {"passed": "p", "failed": "f", "error": "e", "skipped": "s", "xfailed": "x", "missing": "m"}


class Tally:
    """What the child's records amount to. Anything that an honest session cannot send is evidence of tampering.

    An honest session sends `collected` (every id, canaries included), then for each id `setup`, `call` unless
    the setup failed or skipped, `teardown`, and at last `end` with pytest's exit status.
    """

    def __init__(self, key, canaries):
        self.key, self.canaries = key, canaries
        self.phases = {}  # id -> {phase: outcome}, of collected ids
        self.failed_subtests = set()
        self.collected, self.end, self.tampered = False, None, None

    def blame(self, evidence):
        if self.tampered is None:
            self.tampered = evidence

    def line(self, line):
        key, _, body = line.partition(b" ")
        if key != self.key:
            return self.blame("something other than the test runner wrote to its result channel")
        try:
            kind, *values = json.loads(body)
            {
                "collected": self.on_collected,
                "phase": self.on_phase,
                "tampered": self.blame,
                "end": self.on_end,
            }[kind](*values)
        except (ValueError, TypeError, KeyError):
            self.blame("the result channel carried a record of a wrong shape")

    def on_collected(self, ids):
        if self.collected or len(set(ids)) != len(ids):
            return self.blame("tests were collected twice")
        self.collected = True
        self.phases = {test: {} for test in ids}

    def on_phase(self, test, phase, outcome):
        phases = self.phases.get(test)
        if phases is None:
            return self.blame("a result was reported for %s, which was not collected" % test)
        if self.end is not None:
            return self.blame("a result was reported after the end of the session")
        if outcome not in LETTERS or outcome in ("error", "missing"):
            raise ValueError(outcome)
        if phase == "subtest":
            if outcome == "failed":
                self.failed_subtests.add(test)
            return None
        before = {"setup": [], "call": ["setup"], "teardown": ["setup", "call"]}[phase]
        skipped_call = phase == "teardown" and list(phases) == ["setup"] and phases["setup"] != "passed"
        if list(phases) != before and not skipped_call:
            return self.blame("%s was reported twice, or its phases out of order" % test)
        phases[phase] = outcome
        return None

    def on_end(self, status):
        if self.end is not None:
            return self.blame("the session ended twice")
        self.end = int(status)
        return None

    def status(self, test):
        phases = self.phases.get(test, {})
        setup, call, teardown = (phases.get(phase) for phase in ("setup", "call", "teardown"))
        if setup is None:
            return "missing"
        if setup != "passed":
            return "error" if setup == "failed" else setup
        if call is None or teardown is None:
            return "missing"
        if call == "passed":
            return "failed" if test in self.failed_subtests else "error" if teardown == "failed" else "passed"
        return call

    def finished(self, exit_code):
        """Whether the session ran to its end: every collected test has all its phases and the exit codes agree."""
        if not self.collected or self.end is None or exit_code != self.end or self.end not in (0, 1):
            return False
        return all("teardown" in phases for phases in self.phases.values())

    def check_canaries(self):
        """To be asked of a finished session: the tests that must fail did, and the exit status says so."""
        for canary in self.canaries:
            status = self.status(canary)
            if status not in ("failed", "error", "skipped"):
                self.blame("a test that must fail came back as %s" % status)
        outcomes = {self.status(test) for test in self.phases}
        if self.end == 0 and outcomes & {"failed", "error"}:
            self.blame("the session's exit status contradicts its results")


def read_exactly(size):
    """From standard input, and not a byte more: what follows is read later."""
    data = b""
    while len(data) < size:
        piece = os.read(0, size - len(data))
        if not piece:
            raise EOFError("the job on standard input is cut short")
        data += piece
    return data


def restore(workdir, files):
    """Write trusted files, replacing whatever link or directory a patch may have put in their way."""
    for name, text in files.items():
        parts = name.split("/")
        if name.startswith("/") or any(part in ("", ".", "..") for part in parts):
            raise ValueError("not a path below the repository: %r" % name)
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


def make_untraceable():
    """PR_SET_DUMPABLE = 0: no process of the same user may trace this one, read its memory or open its descriptors."""
    import _ctypes  # `ctypes` costs several milliseconds more

    prctl = _ctypes.dlsym(_ctypes.dlopen(None, 0), "prctl")
    if _ctypes.call_function(prctl, (4, 0, 0, 0, 0)):
        raise OSError("prctl(PR_SET_DUMPABLE) failed")


def start_child(job, sources, key, canaries):
    """Fork the test process behind a gate. Returns its pid, the gate, its log and its channel."""
    gate_read, gate = os.pipe()
    log, log_write = os.pipe()
    channel, channel_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            null = os.open(os.devnull, os.O_RDONLY)
            os.dup2(null, 0)
            os.dup2(log_write, 1)
            os.dup2(log_write, 2)
            for fd in (null, gate, log, log_write, channel):
                os.close(fd)
            if os.read(gate_read, 1) != b"g":
                os._exit(3)
            os.close(gate_read)
            import hone_session

            hone_session.run(job, sources, key, canaries, channel_write)  # does not return
        finally:
            os._exit(3)
    for fd in (gate_read, log_write, channel_write):
        os.close(fd)
    return pid, gate, log, channel


def collect(pid, log, channel, tally, timeout_s):
    """Read the child's records and output until it is gone. Returns exit code, whether it timed out, and the log."""
    deadline = time.monotonic() + timeout_s
    tail, pending, total, status, timed_out = bytearray(), bytearray(), 0, None, False
    open_fds = {log, channel}
    for fd in open_fds:
        os.set_blocking(fd, False)
    while True:
        if status is None:
            done, raw = os.waitpid(pid, 0 if not open_fds and timed_out else os.WNOHANG)
            status = raw if done else None
        left = deadline - time.monotonic()
        if status is None and left <= 0 and not timed_out:
            timed_out = True
            kill_group(pid)
            deadline, left = time.monotonic() + 5, 5
        if open_fds:
            ready = select.select(
                list(open_fds), [], [], 0 if status is not None else min(max(left, 0), 0.05)
            )[0]
        else:
            ready = []
            time.sleep(0.001 if status is None else 0)
        if status is not None and not ready:
            break  # what a process left behind writes from now on is nobody's result
        for fd in ready:
            data = read_some(fd)
            if data is None:
                open_fds.discard(fd)
            elif fd == log:
                tail += data
                del tail[:-LOG_BYTES]
            else:
                total += len(data)
                pending += data
                *lines, rest = pending.split(b"\n")
                pending = bytearray(rest)
                for line in lines:
                    tally.line(bytes(line))
                if total > CHANNEL_BYTES or len(pending) > RECORD_BYTES:
                    tally.blame("the result channel was flooded")
                    kill_group(pid)
                    open_fds.discard(channel)
    kill_group(pid)
    if pending:
        tally.blame("the result channel ended within a record")
    return os.waitstatus_to_exitcode(status), timed_out, bytes(tail)


def read_some(fd):
    """None at the end of the stream."""
    try:
        return os.read(fd, 65536) or None
    except BlockingIOError:
        return b""


def kill_group(pid):
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def main():
    os.write(1, HELLO)
    (size,) = struct.unpack("!I", read_exactly(4))
    job = json.loads(read_exactly(size))
    workdir = job["workdir"]
    restore(workdir, job["test_files"])
    os.chdir(workdir)
    sources = {}
    for name in job["run_files"]:
        try:
            with open(os.path.join(workdir, name), "rb") as file:
                sources[os.path.join(workdir, name)] = file.read()
        except OSError:
            continue  # its tests will be missing
    import hone_session

    key = os.urandom(KEY_BYTES).hex().encode()
    canaries = hone_session.name_canaries()
    started = time.monotonic()
    pid, gate, log, channel = start_child(job, sources, key, canaries)
    make_untraceable()
    nonce = read_exactly(NONCE_BYTES)
    os.write(gate, b"g")
    tally = Tally(key, canaries)
    exit_code, timed_out, tail = collect(pid, log, channel, tally, job["timeout_s"])
    finished = tally.finished(exit_code) and not timed_out
    if finished:
        tally.check_canaries()
    report = {
        "statuses": "".join(LETTERS[tally.status(test)] for test in job["expected"]),
        "finished": finished,
        "tampered": tally.tampered,
        "exit_code": exit_code,
        "timed_out": timed_out,
        "seconds": time.monotonic() - started,
        "log": tail.decode("utf-8", "replace"),
    }
    frame = b"\n" + nonce + b" " + json.dumps(report).encode() + b"\n"
    while frame:
        frame = frame[os.write(1, frame) :]
    os._exit(0)


if __name__ == "__main__":
    main()
