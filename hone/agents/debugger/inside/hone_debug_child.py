"""A program that the server started: its output capped, its channel framed, its tree killed as one."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import time
from typing import Any

from hone_debug_wire import Broken, Frames, pack  # beside this file

KEPT = 10_000  # bytes of a program's output kept for one reply, half of them from its end
INTERRUPT = signal.SIGRTMIN + 10  # what a debugged program is asked to stop with
PIECE = 1 << 16
SETTLE_S = 2.0  # for a program that was interrupted, or that says it has ended, to do so


class Output:
    """Bytes written, of which head and tail are kept."""

    def __init__(self) -> None:
        self.total = 0
        self.head, self.tail = b"", b""

    def add(self, data: bytes) -> None:
        self.total += len(data)
        room = KEPT // 2 - len(self.head)
        self.head += data[:room]
        self.tail = (self.tail + data[room:])[-KEPT // 2 :] if room < len(data) else self.tail

    def take(self) -> str:
        """What is there, as text; the next call begins anew."""
        omitted = self.total - len(self.head) - len(self.tail)
        mark = f"\n[... {omitted} bytes omitted ...]\n".encode() if omitted else b""
        text = (self.head + mark + self.tail).decode("utf-8", "replace")
        self.total, self.head, self.tail = 0, b"", b""
        return text


class Child:
    """One program, in a session of its own, without a terminal; its standard input is empty."""

    def __init__(self, argv: list[str], cwd: str, env: dict[str, str]) -> None:
        """`argv` gets the number of the channel's descriptor appended. Raises OSError."""
        self.channel, theirs = socket.socketpair()
        self.output, write_end = os.pipe()
        theirs.set_inheritable(True)
        try:
            self.process = subprocess.Popen(
                [*argv, str(theirs.fileno())],
                cwd=cwd,
                env=env,
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
        self.frames = Frames()
        self.waiting: list[dict[str, Any]] = []
        self.output_open = True

    def send(self, message: dict[str, Any]) -> None:
        """Raises OSError when the program has closed its channel."""
        self.channel.sendall(pack(message))

    def receive(self, deadline: float) -> dict[str, Any] | None:
        """The next message; None when there will be none, or what came is no frame.

        Raises TimeoutError. Output is taken meanwhile, so that no program waits for a reader.
        """
        while not self.waiting:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            watched = [self.channel, self.output] if self.output_open else [self.channel]
            ready = select.select(watched, [], [], left)[0]
            if self.output in ready:
                self.take_output()
            if self.channel in ready:
                try:
                    data = self.channel.recv(PIECE)
                    self.waiting += self.frames.feed(data)
                except (OSError, Broken):
                    return None
                if not data:
                    return None
        self.drain()
        return self.waiting.pop(0)

    def take_output(self) -> bool:
        """Take one piece of what is there. False when there was none."""
        try:
            data = os.read(self.output, PIECE)
        except BlockingIOError:
            return False
        self.output_open = bool(data)
        self.written.add(data)
        return bool(data)

    def drain(self) -> None:
        """Take what was written until now; a program that never stops writing is not waited for."""
        for _ in range(64):
            if not self.output_open or not self.take_output():
                break

    def interrupt(self) -> None:
        self.process.send_signal(INTERRUPT)

    def wait(self, timeout_s: float) -> int | None:
        """The exit code, 128 + n for one killed by signal n; None when it still runs then."""
        deadline = time.monotonic() + timeout_s
        while self.process.poll() is None and time.monotonic() < deadline:
            if self.output_open:
                select.select([self.output], [], [], 0.01)
                self.take_output()
            else:
                time.sleep(0.01)
        code = self.process.poll()
        return 128 - code if code is not None and code < 0 else code

    def end(self) -> None:
        """Kill it with all that came from it, and close what it was reached by."""
        kill_all_below(os.getpid())
        self.process.wait()
        reap(SETTLE_S)
        self.drain()
        self.channel.close()
        os.close(self.output)


def kill_all_below(root: int) -> None:
    """Kill every descendant of `root`, again and again until there is none: what forks is stopped first."""
    stopped: set[int] = set()
    for _ in range(100):
        found, steady = descendants(root)
        new = found - stopped
        for pid in new:
            kill(pid, signal.SIGSTOP)
        stopped |= new
        if steady and not new:
            break
    for pid in stopped:
        kill(pid, signal.SIGKILL)


def kill(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return  # it is gone, or belongs to another user who put it here


def descendants(root: int) -> tuple[set[int], bool]:
    """Process ids below `root`, zombies excepted, and whether none came or went while they were read.

    Orphans are below their subreaper.
    """
    above: dict[int, int] = {}
    last, steady = last_pid(), True
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                state, parent = file.read().rpartition(b")")[2].split()[:2]
        except (OSError, ValueError):
            steady = False
            continue
        if state not in (b"Z", b"X"):
            above[int(name)] = int(parent)
    found, grew = {root}, True
    while grew:
        more = {pid for pid, parent in above.items() if parent in found} - found
        found |= more
        grew = bool(more)
    return found - {root}, steady and last_pid() == last


def last_pid() -> bytes:
    """The number of the process that was made last in this sandbox."""
    with open("/proc/loadavg", "rb") as file:
        return file.read().split()[-1]


def reap(timeout_s: float) -> None:
    """Collect what was killed: children and orphans. Called while no child is waited for elsewhere."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                time.sleep(0.002)
        except ChildProcessError:
            return
