"""The peer of the debugger: `python -m pdb` on a pseudo-terminal that is polled for its prompt.

    python polled_pdb.py FILE COUNT    with the commands as JSON on standard input

Runs inside the sandbox, beside the program, so that no transport is counted. Each command is followed by
three that ask for the breakpoints, the frame and the lines around it, as their texts are read from the same
terminal. Prints the seconds of each command as JSON.
"""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import termios
import time

POLL_S = 0.1
PROMPT = "(Pdb)"
ASKED_AFTER = ("b", "where", "l .")


def read(terminal: int) -> str:
    output = ""
    while PROMPT not in output:
        try:
            output += os.read(terminal, 1024).decode("utf-8", "ignore")
        except BlockingIOError:
            time.sleep(POLL_S)
    return output


def ask(terminal: int, command: str) -> str:
    os.write(terminal, command.encode() + b"\n")
    return read(terminal)


def main() -> None:
    file, count = sys.argv[1], int(sys.argv[2])
    commands = json.load(sys.stdin)
    terminal, theirs = pty.openpty()
    os.set_blocking(terminal, False)
    attributes = termios.tcgetattr(theirs)
    attributes[3] &= ~termios.ECHO
    termios.tcsetattr(theirs, termios.TCSANOW, attributes)
    process = subprocess.Popen(
        [sys.executable, "-m", "pdb", file],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    read(terminal)
    seconds = []
    for number in range(count):
        started = time.perf_counter()
        for command in (commands[number % len(commands)], *ASKED_AFTER):
            ask(terminal, command)
        seconds.append(time.perf_counter() - started)
    process.kill()
    print(json.dumps(seconds))


if __name__ == "__main__":
    main()
