"""A program that the server runs: its output is capped, and its whole process tree dies with it."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import time
from typing import Any

import hone_processes  # pyright: ignore[reportMissingImports]  # hone.utils.processes
from hone_debug_wire import INTERRUPT, Broken, Messages, Output, pack  # beside this file

PIECE = 1 << 16
SETTLE_S = 10.0  # for a program to stop after an interrupt, or to exit after it closed its channel


class Child:
    """One program in a session of its own, with empty standard input and a channel for messages."""

    def __init__(self, argv: list[str], cwd: str, env: dict[str, str]) -> None:
        """Append the number of the channel's descriptor to `argv` and start it. Raises OSError."""
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
        self.messages = Messages()
        self.received: list[dict[str, Any]] = []
        self.output_open = True

    def send(self, message: dict[str, Any]) -> None:
        """Raises OSError when the program has closed its channel."""
        self.channel.sendall(pack(message))

    def receive(self, deadline: float) -> dict[str, Any] | None:
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

    def wait(self, timeout_s: float) -> int | None:
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
